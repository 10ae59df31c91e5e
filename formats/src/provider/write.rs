//! Trait and helpers of the writers.

use super::read::{Arguments, ContentPart, Item, Kind};
use everturn_core::json::{self, object, quote};
use serde_json::Value;

/// Writes messages in the shape of one provider.
pub trait Writer {
    /// Whether the message can be sent as it is, apart from its pairs.
    fn fits(&self, item: &Item<'_>) -> bool;
    /// Writes the content of these items, as one message if the provider has messages.
    fn say(&self, items: &[&Item<'_>], out: &mut Out);
    /// Writes the results of the calls that were written last.
    fn answers(&self, answers: &[(&Item<'_>, &ContentPart<'_>)], out: &mut Out);
}

/// The rendered list so far.
#[derive(Default)]
pub struct Out {
    /// Messages as JSON.
    pub messages: Vec<String>,
    /// Input message that each came from.
    pub sources: Vec<Option<usize>>,
}

impl Out {
    /// Adds a message.
    pub fn push(&mut self, message: String, source: Option<usize>) {
        self.messages.push(message);
        self.sources.push(source);
    }
}

/// Whether this is a list of block objects. Bare strings are blocks only in our own shape.
pub fn is_blocks(content: &Value) -> bool {
    content.as_array().is_some_and(|blocks| !blocks.is_empty() && blocks.iter().all(Value::is_object))
}

/// Whether a block says all that this one, as we would write it, says. It may say more.
pub fn holds(own: &Value, block: &str) -> bool {
    fn covers(own: &Value, wanted: &Value) -> bool {
        match wanted {
            Value::Object(fields) => {
                fields.iter().all(|(key, value)| own.get(key).is_some_and(|own| covers(own, value)))
            }
            _ => own == wanted,
        }
    }
    own.get("asset_id").is_none() && serde_json::from_str(block).is_ok_and(|wanted| covers(own, &wanted))
}

/// Arguments for a field that takes JSON in a string. OpenAI's custom tools take any text, which is wrapped.
pub fn argument_text(call: &Value, arguments: Arguments<'_>) -> String {
    let custom = call.get("type").is_some_and(|kind| kind == "custom_tool_call" || kind == "custom");
    match arguments {
        _ if custom => argument_object(arguments),
        Arguments::Text(text) if text.trim().is_empty() => "{}".to_string(),
        Arguments::Text(text) | Arguments::Json(text) => text.to_string(),
    }
}

/// Arguments for a field that takes an object; any other value is wrapped as its `value`.
pub fn argument_object(arguments: Arguments<'_>) -> String {
    match arguments {
        Arguments::Text(text) if text.trim().is_empty() => "{}".to_string(),
        Arguments::Text(text) if json::check(text).is_err() => object([("value", quote(text))]),
        Arguments::Text(text) | Arguments::Json(text) => match text.trim_start().starts_with('{') {
            true => text.trim().to_string(),
            false => object([("value", text.trim().to_string())]),
        },
    }
}

/// Result of a tool for a field that takes only text. A failure begins with `Error: `, since there is no flag for it,
/// and readers recognize it by that prefix.
pub fn result_text(content: &[ContentPart<'_>], failed: bool) -> String {
    let texts: Vec<String> = content
        .iter()
        .filter_map(|piece| match &piece.kind {
            Kind::Text(text) => Some(text.to_string()),
            Kind::Media(blob) => Some(blob.in_words()),
            _ => None,
        })
        .collect();
    let text = texts.join("\n");
    let begins = |word: &str| {
        text.trim_start()
            .as_bytes()
            .get(..word.len())
            .is_some_and(|s| s.eq_ignore_ascii_case(word.as_bytes()))
    };
    match failed && !["error:", "tool error", "failed:"].iter().any(|word| begins(word)) {
        true => format!("Error: {text}"),
        false => text,
    }
}
