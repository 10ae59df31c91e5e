//! The searched text of a message.

use crate::speech;
use everturn_core::message::{self, MessagePart};
use everturn_core::turn::{Role, Turn};
use serde_json::Value;

/// Maximum searched size of one tool result: its beginning and, after a cut, its end.
pub const RESULT_TEXT_BYTES_MAX: usize = 16 * 1024;
/// Maximum searched size of one message.
pub const ENTRY_TEXT_BYTES_MAX: usize = 256 * 1024;
/// A longer run without a space that resembles encoded bytes is left out.
const ENCODED_BYTES_MIN: usize = 200;

/// The searched text of a turn: its actor, and the words of these roles, or of all if none is named. `None` if it is empty
/// or erased.
pub fn searched_text(turn: &Turn, roles: &[Role]) -> Option<String> {
    let text = words_of(turn, roles)?;
    if text.trim().is_empty() {
        return None;
    }
    Some(match &turn.actor {
        Some(actor) => format!("{actor}: {text}"),
        None => text,
    })
}

/// The words of these roles in a turn, or of all if none is named.
pub fn words_of(turn: &Turn, roles: &[Role]) -> Option<String> {
    let message = turn.value()?;
    let has = |role| roles.is_empty() || roles.contains(&role);
    let whose = match (has(Role::User), has(Role::Tool)) {
        (true, false) => Whose::Person,
        (false, true) => Whose::Others,
        _ => Whose::All,
    };
    let is_all = whose == Whose::All || speech::of_said(turn, Some(&message)).role != Role::User;
    Some(read(&message, Json::Anywhere, true, if is_all { Whose::All } else { whose }))
}

/// Whether words of a tool or a program are in a person's message.
pub fn is_mixed(message: &Value) -> bool {
    let is_result = |part: &MessagePart<'_>| matches!(part, MessagePart::Result { .. });
    message::parts(message).iter().any(is_result)
        || speech::spoken(message).iter().any(|stretch| stretch.notice.is_some())
}

/// Speakers in a person's message.
#[derive(Clone, Copy, PartialEq)]
enum Whose {
    All,
    Person,
    /// Tools and programs.
    Others,
}

/// JSON in texts of calls and tool results that is read as JSON.
#[derive(Clone, Copy, PartialEq)]
enum Json {
    /// A result that is JSON as a whole.
    Whole,
    /// Also behind other text, and in arguments of calls.
    Anywhere,
}

/// The text of a message of any shape: prose, the names and arguments of calls, results, the names of files.
/// Reasoning, signatures and encoded bytes are not searched.
pub fn text_of(message: &Value) -> String {
    read(message, Json::Anywhere, true, Whose::All)
}

/// The same without searches that a provider ran itself. Frozen: prompts are replayed with it.
pub fn recalled_text_of(message: &Value) -> String {
    read(message, Json::Whole, false, Whose::All)
}

/// The same of a person's message, split by speaker: who wrote a text, where it was not the person, and the text.
/// Frozen: prompts are replayed with it.
pub fn recalled_stretches(message: &Value) -> Vec<(Option<&'static str>, String)> {
    let (mut all, mut texts) = (Vec::<(_, String)>::new(), speech::Texts::default());
    let mut add = |speaker: Option<&'static str>, text: &str| {
        if all.last().is_none_or(|(last, _)| *last != speaker) {
            all.push((speaker, String::new()));
        }
        all.last_mut().into_iter().for_each(|(_, before)| push(before, text));
    };
    for part in message::parts(message) {
        if let MessagePart::Text(text) = part {
            texts.stretches(text).iter().for_each(|one| add(one.notice, one.text));
            continue;
        }
        let speaker = matches!(part, MessagePart::Result { .. }).then_some(Role::Tool.as_str());
        let mut text = String::new();
        said(&mut text, part, message, Json::Whole);
        add(speaker, &text);
    }
    all.retain(|(_, text)| !text.is_empty());
    all
}

fn read(message: &Value, json: Json, with_hosted: bool, whose: Whose) -> String {
    let (mut out, mut texts) = (String::new(), speech::Texts::default());
    let blocks = message["content"].as_array();
    for (at, part) in message::parts(message).into_iter().enumerate() {
        if with_hosted && whose != Whose::Others {
            let block = blocks.and_then(|blocks| blocks.get(at)).unwrap_or(message);
            hosted(&mut out, &part, block);
        }
        match part {
            MessagePart::Text(text) if whose != Whose::All => {
                for stretch in texts.stretches(text) {
                    if stretch.notice.is_some() == (whose == Whose::Others) {
                        push(&mut out, stretch.text);
                    }
                }
            }
            MessagePart::Result { .. } if whose == Whose::Person => {}
            _ if whose == Whose::Others && !matches!(part, MessagePart::Result { .. }) => {}
            part => said(&mut out, part, message, json),
        }
    }
    cut(&out, ENTRY_TEXT_BYTES_MAX)
}

/// The text of one part.
fn said(out: &mut String, part: MessagePart<'_>, message: &Value, json: Json) {
    match part {
        MessagePart::Text(text) if message.get("role").is_some_and(|role| role == "tool") => {
            let mut result = String::new();
            output(&mut result, text, json);
            push(out, &cut(&result, RESULT_TEXT_BYTES_MAX));
        }
        MessagePart::Text(text) => push(out, text),
        MessagePart::Call { name, arguments, .. } => {
            push(out, name);
            if let Some(arguments) = arguments {
                let arguments = message::arguments(arguments);
                match json {
                    Json::Anywhere => walk(&arguments, &mut |text| output(out, text, json)),
                    Json::Whole => values(out, &arguments),
                }
            }
        }
        MessagePart::Result { name, content, .. } => {
            push(out, name.unwrap_or_default());
            let mut result = String::new();
            if let Some(content) = content {
                walk(content, &mut |text| output(&mut result, text, json));
            }
            push(out, &cut(&result, RESULT_TEXT_BYTES_MAX));
        }
        MessagePart::Media { label, .. } => push(out, label.unwrap_or_default()),
        MessagePart::Thinking { .. } | MessagePart::Other(_) => {}
    }
}

/// Input of a tool that the provider runs, such as the query of a web search.
fn hosted(out: &mut String, part: &MessagePart<'_>, block: &Value) {
    match part {
        MessagePart::Call { arguments: None, .. } => values(out, &block["action"]),
        MessagePart::Other(kind) if kind.ends_with("tool_use") => {
            push(out, block["name"].as_str().unwrap_or_default());
            values(out, &block["input"]);
        }
        // A search result, a document in words, and what a tool of the provider answered.
        MessagePart::Other(_) | MessagePart::Media { .. } => {
            if let MessagePart::Other(_) = part {
                push(out, block["title"].as_str().unwrap_or_default());
            }
            push(out, &cut(&message::text_within(block), RESULT_TEXT_BYTES_MAX));
        }
        MessagePart::Call { .. } if block.get("output").is_some() => {
            push(out, &cut(&message::text_within(block), RESULT_TEXT_BYTES_MAX));
        }
        _ => {}
    }
}

/// Whether a message has text of its own, beside calls, results and files.
pub fn has_prose(message: &Value) -> bool {
    let parts = message::parts(message);
    parts.into_iter().any(|part| matches!(part, MessagePart::Text(text) if !text.trim().is_empty()))
}

/// Every text and number in a value; for a content block, only its content.
fn values(out: &mut String, value: &Value) {
    walk(value, &mut |text| push(out, text));
}

/// One text of a tool result. Where it holds JSON, its keys are words like any other: they may be file names.
fn output(out: &mut String, text: &str, json: Json) {
    fn all(out: &mut String, value: &Value, json: Json) {
        match value {
            Value::String(text) => output(out, text, json),
            Value::Array(items) => items.iter().for_each(|item| all(out, item, json)),
            Value::Object(fields) => fields.iter().for_each(|(name, value)| {
                push(out, name);
                all(out, value, json);
            }),
            Value::Number(number) => push(out, &number.to_string()),
            Value::Null | Value::Bool(_) => {}
        }
    }
    let found = match json {
        Json::Whole => message::json_output(text),
        Json::Anywhere => message::json_within(text),
    };
    match found {
        Some(value) => all(out, &value, json),
        None => push(out, text),
    }
}

fn walk(value: &Value, found: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => found(text),
        Value::Number(number) => found(&number.to_string()),
        Value::Array(items) => items.iter().for_each(|item| walk(item, found)),
        Value::Object(fields) if fields.contains_key("type") => match message::block(value) {
            MessagePart::Text(text) => found(text),
            MessagePart::Media { label, .. } => found(label.unwrap_or_default()),
            MessagePart::Thinking { .. } => {}
            _ => fields.iter().filter(|(name, _)| *name != "type").for_each(|(_, value)| walk(value, found)),
        },
        Value::Object(fields) => fields.values().for_each(|value| walk(value, found)),
        Value::Null | Value::Bool(_) => {}
    }
}

fn push(out: &mut String, text: &str) {
    if text.is_empty() || text.starts_with("data:") && text.contains(";base64,") || is_encoded(text) {
        return;
    }
    if !out.is_empty() {
        out.push('\n');
    }
    out.push_str(text);
}

/// Whether a text is mostly bytes encoded as letters.
fn is_encoded(text: &str) -> bool {
    text.len() >= ENCODED_BYTES_MIN
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'=' | b'-' | b'_'))
}

/// The beginning and, if the text is too long, also the end: errors are usually there.
pub fn cut(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_string();
    }
    let head = text.floor_char_boundary(most / 4 * 3);
    let tail = text.ceil_char_boundary(text.len() - most / 4);
    format!("{}\n{}", &text[..head], &text[tail..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_every_shape_says() {
        let secret = "QUJD".repeat(100);
        for (message, text) in [
            (json!({"role":"user","content":"find it"}), "find it"),
            (
                json!({"role":"user","content":[{"type":"search_result","source":"https://a.example","title":"Notes",
                    "content":[{"type":"text","text":"The wombat digs."}]}]}),
                "Notes\nThe wombat digs.",
            ),
            (
                json!({"role":"user","content":[{"type":"document","title":"Plan","source":{"type":"content",
                    "content":[{"type":"text","text":"One."}]}}]}),
                "One.\nPlan",
            ),
            (
                json!({"type":"mcp_call","name":"f","arguments":"{\"a\":\"x\"}","output":"wombat"}),
                "wombat\nf\nx",
            ),
            (
                json!({"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},
                    {"type":"text","text":"looking"},{"type":"tool_use","id":"1","name":"grep","input":{"pattern":"fn main","n":3,"all":true}}]}),
                "looking\ngrep\nfn main\n3",
            ),
            (
                json!({"role":"assistant","content":null,"tool_calls":[{"id":"1","function":{"name":"read","arguments":"{\"path\":\"a.rs\"}"}}]}),
                "read\na.rs",
            ),
            (
                json!({"role":"assistant","tool_calls":[{"id":"1","function":{"name":"sh","arguments":"{broken"}}]}),
                "sh\n{broken",
            ),
            (
                json!({"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":[{"type":"text","text":"done"},
                    {"type":"image","source":{"type":"base64","data":secret.clone(),"media_type":"image/png"}}]}]}),
                "done",
            ),
            (json!({"role":"tool","tool_call_id":"1","content":"42 files"}), "42 files"),
            (
                json!({"type":"function_call","call_id":"c","name":"ls","arguments":"{\"d\":\"/tmp\"}"}),
                "ls\n/tmp",
            ),
            (json!({"type":"function_call_output","call_id":"c","output":"no such file"}), "no such file"),
            (
                json!({"type":"function_call_output","call_id":"c","output":{"error":{"code":7,"text":"denied"}}}),
                "7\ndenied",
            ),
            (
                json!({"type":"function_call_output","call_id":"c",
                    "output":"{\"output\":\"alpha.txt\\nwombat.yaml\\n\",\"metadata\":{\"exit_code\":0,\"duration_seconds\":0.1}}"}),
                "alpha.txt\nwombat.yaml\n",
            ),
            (
                json!({"type":"function_call_output","call_id":"c",
                    "output":"Wall time: 0.13 seconds\nOutput:\n{\"text\":\"first line\\ntapir line\\nokapi.yaml\"}"}),
                "Wall time: 0.13 seconds\nOutput:\n\ntext\nfirst line\ntapir line\nokapi.yaml",
            ),
            (
                json!({"type":"function_call","call_id":"c","name":"f","arguments":"{\"payload\":\"{\\\"doc\\\":\\\"intro\\\\nquagga\\\"}\"}"}),
                "f\ndoc\nintro\nquagga",
            ),
            (
                json!({"role":"tool","tool_call_id":"c","content":"{\"result\":\"{\\\"a\\\":\\\"x\\\\nwombat\\\"}\"}"}),
                "result\na\nx\nwombat",
            ),
            (
                json!({"role":"tool","tool_call_id":"c","content":"see C:\\new\\table.rs and ^\\d+\\n$"}),
                "see C:\\new\\table.rs and ^\\d+\\n$",
            ),
            (
                json!({"role":"tool","tool_call_id":"c","content":"{\"src/a.rs\":[\"x\\nwombat\",7]}"}),
                "src/a.rs\nx\nwombat\n7",
            ),
            (
                json!({"role":"user","content":[{"type":"tool_result","tool_use_id":"1",
                    "content":[{"type":"text","text":"[\"x\\nwombat\"]"}]}]}),
                "x\nwombat",
            ),
            (
                json!({"type":"web_search_call","id":"ws","status":"completed","action":{"type":"search","query":"wombat diet"}}),
                "wombat diet\nweb_search_call",
            ),
            (
                json!({"role":"assistant","content":[{"type":"text","text":"I look."},
                    {"type":"server_tool_use","id":"1","name":"web_search","input":{"query":"wombat"}}]}),
                "I look.\nweb_search\nwombat",
            ),
            (json!({"type":"reasoning","encrypted_content":"zzz","summary":[]}), ""),
            (
                json!({"role":"user","content":[{"type":"input_file","filename":"plan.pdf"},{"type":"hologram"}]}),
                "plan.pdf",
            ),
            (json!({"role":"user","content":[{"type":"text","text":secret}]}), ""),
            (json!({"role":"user","content":"data:image/png;base64,AAAA"}), ""),
            (json!(null), ""),
        ] {
            assert_eq!(text_of(&message), text, "{message}");
        }
    }

    #[test]
    fn long_results_keep_their_beginning_and_their_end() {
        let long = format!("first {} last", "wörd ".repeat(10_000));
        for message in [
            json!({"role":"tool","tool_call_id":"1","content":long.clone()}),
            json!({"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":long.clone()}]}),
        ] {
            let text = text_of(&message);
            assert!(text.starts_with("first") && text.ends_with("last"));
            assert!(text.len() <= RESULT_TEXT_BYTES_MAX + 1, "{}", text.len());
        }
        assert_eq!(text_of(&json!({"role":"user","content":long.clone()})), long, "prose is not a result");
    }
}
