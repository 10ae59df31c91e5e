//! Content blocks of the protocol, as blocks that every provider can be given.

use serde_json::{Value, json};

/// Content of a prompt, and the data that it has no field for.
pub fn prompt(blocks: &Value) -> (Value, Value) {
    let blocks = blocks.as_array().map(Vec::as_slice).unwrap_or_default();
    let links: Vec<&Value> = blocks.iter().filter(|block| block["type"] == "resource_link").collect();
    let metadata = if links.is_empty() { json!({}) } else { json!({"resource_links": links}) };
    (Value::Array(blocks.iter().cloned().map(block).collect()), metadata)
}

/// One block. Pictures and sound pass as they are; resources become text that names them.
pub fn block(block: Value) -> Value {
    let text = |text: String| json!({"type": "text", "text": text});
    match block["type"].as_str() {
        Some("resource_link") => {
            let (uri, name) = (word(&block["uri"]), word(&block["name"]));
            text(format!("[{}]({uri})", if name.is_empty() { uri } else { name }))
        }
        Some("resource") => {
            let resource = &block["resource"];
            let uri = word(&resource["uri"]);
            match (resource["text"].as_str(), &resource["blob"]) {
                (Some(words), _) => text(format!("<context ref=\"{uri}\">\n{words}\n</context>")),
                (None, Value::String(blob)) => {
                    json!({"type": "file", "name": uri, "mime_type": resource["mimeType"], "data": blob})
                }
                _ => text(format!("[{uri}]({uri})")),
            }
        }
        _ => block,
    }
}

/// Appends text to the last block if it is of that type, or begins another.
pub fn grow(blocks: &mut Vec<Value>, kind: &str, field: &str, text: &str) {
    if text.is_empty() {
        return;
    }
    match blocks.last_mut() {
        Some(last) if last["type"] == kind && last[field].is_string() => {
            if let Value::String(so_far) = &mut last[field] {
                so_far.push_str(text);
            }
        }
        _ => blocks.push(json!({"type": kind, field: text})),
    }
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
