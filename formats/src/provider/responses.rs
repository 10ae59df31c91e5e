//! OpenAI Responses: a list of items, in which calls, results and reasoning stand beside messages.

use super::Provider;
use super::ids::tool_name;
use super::media::{Blob, Data, is_web};
use super::read::{ContentPart, Item, Kind};
use super::write::{Out, Writer, argument_text, holds, is_blocks, result_text};
use everturn_core::json::{array, object, quote};
use everturn_core::turn::Role;
use serde_json::Value;

pub struct Responses;

impl Writer for Responses {
    fn fits(&self, item: &Item<'_>) -> bool {
        let own = item.own;
        let Some(role) = own.get("role") else { return item.pieces.iter().all(takes) };
        let foreign = ["parts", "tool_calls", "tool_results", "function_call", "refusal", "name"];
        let content = match own.get("content") {
            Some(Value::String(text)) => !text.is_empty(),
            Some(blocks @ Value::Array(_)) => is_blocks(blocks),
            _ => false,
        };
        let fits = |piece: &ContentPart<'_>| match &piece.kind {
            Kind::Text(_) if piece.own.is_string() => true,
            Kind::Text(text) => {
                !text.is_empty()
                    && piece.own.get("type").is_some_and(|kind| match item.role {
                        Role::Assistant => kind == "output_text" || kind == "refusal",
                        _ => kind == "input_text",
                    })
            }
            Kind::Media(_) => item.role == Role::User && takes(piece),
            _ => false,
        };
        matches!(role.as_str(), Some("user" | "assistant" | "system" | "developer"))
            && own.get("type").is_none_or(|kind| kind == "message")
            && !foreign.iter().any(|key| own.get(key).is_some())
            && content
            && item.pieces.iter().all(fits)
    }

    fn say(&self, items: &[&Item<'_>], out: &mut Out) {
        for item in items {
            if item.is_whole() && self.fits(item) {
                out.push(item.text.to_string(), Some(item.source));
                continue;
            }
            let mut message = Message { item, blocks: Vec::new(), words: None };
            for piece in item.said() {
                let raw = (!piece.fresh && takes(piece)).then_some(piece.raw);
                match &piece.kind {
                    Kind::Text(text) => message.text(text),
                    Kind::Media(blob) => {
                        match media(blob).filter(|_| item.role == Role::User || item.role == Role::Tool) {
                            Some(block) => message.blocks.push(raw.map_or(block, str::to_string)),
                            None => message.text(&blob.in_words()),
                        }
                    }
                    Kind::Call { name, arguments, .. } => {
                        message.flush(out);
                        let call = || call(piece, name, &argument_text(piece.own, *arguments));
                        out.push(raw.map_or_else(call, str::to_string), Some(item.source));
                    }
                    Kind::Reasoning { .. } | Kind::Hosted(_) => {
                        message.flush(out);
                        out.push(piece.raw.to_string(), Some(item.source));
                    }
                    Kind::ToolResult { .. } | Kind::Unknown(_) => {}
                }
            }
            message.flush(out);
        }
    }

    fn answers(&self, answers: &[(&Item<'_>, &ContentPart<'_>)], out: &mut Out) {
        for (item, piece) in answers {
            let Kind::ToolResult { content, failed, .. } = &piece.kind else { continue };
            if !piece.fresh && takes(piece) {
                out.push(piece.raw.to_string(), Some(item.source));
                continue;
            }
            let shows =
                content.iter().any(|piece| matches!(&piece.kind, Kind::Media(blob) if media(blob).is_some()));
            let output = match shows {
                false => quote(&result_text(content, *failed)),
                true => array(&content.iter().filter_map(answer_block).collect::<Vec<_>>()),
            };
            let fields = [
                ("type", quote("function_call_output")),
                ("call_id", quote(piece.id.as_deref().unwrap_or_default())),
                ("output", output),
            ];
            out.push(object(fields), Some(item.source));
        }
    }
}

/// A message item that is being put together.
struct Message<'i, 'a> {
    item: &'i Item<'a>,
    blocks: Vec<String>,
    /// The only block so far, if it is text.
    words: Option<String>,
}

impl Message<'_, '_> {
    fn text(&mut self, text: &str) {
        let kind = if self.item.role == Role::Assistant { "output_text" } else { "input_text" };
        self.words = self.blocks.is_empty().then(|| text.to_string());
        self.blocks.push(object([("type", quote(kind)), ("text", quote(text))]));
    }

    fn flush(&mut self, out: &mut Out) {
        let blocks = std::mem::take(&mut self.blocks);
        let content = match (self.words.take(), blocks.len()) {
            (_, 0) => return,
            (Some(words), 1) => quote(&words),
            _ => array(&blocks),
        };
        let role = match self.item.role {
            Role::User | Role::Tool => "user",
            Role::Assistant => "assistant",
            Role::System => "developer",
        };
        out.push(object([("role", quote(role)), ("content", content)]), Some(self.item.source));
    }
}

fn call(piece: &ContentPart<'_>, name: &str, arguments: &str) -> String {
    object([
        ("type", quote("function_call")),
        ("call_id", quote(piece.id.as_deref().unwrap_or_default())),
        ("name", quote(&tool_name(Provider::OpenaiResponses, name))),
        ("arguments", quote(arguments)),
    ])
}

fn answer_block(piece: &ContentPart<'_>) -> Option<String> {
    let text = match &piece.kind {
        Kind::Text(text) if text.is_empty() => return None,
        Kind::Text(text) => text.to_string(),
        Kind::Media(blob) => match media(blob) {
            Some(block) => return Some(block),
            None => blob.in_words(),
        },
        _ => return None,
    };
    Some(object([("type", quote("input_text")), ("text", quote(&text))]))
}

/// Whether an item, or a block of a message of the user, can be sent as it is.
pub fn takes(piece: &ContentPart<'_>) -> bool {
    let own = piece.own;
    let kind = own.get("type").and_then(Value::as_str).unwrap_or_default();
    let is_text = |key: &str| own.get(key).is_some_and(Value::is_string);
    let bare = own.get("role").is_none();
    match &piece.kind {
        Kind::Call { name, .. } if kind == "function_call" || kind == "custom_tool_call" => {
            let input = if kind == "function_call" { "arguments" } else { "input" };
            let names =
                own.get("name").is_some_and(|own| own == name) && is_text("call_id") && is_text(input);
            bare && names && tool_name(Provider::OpenaiResponses, name) == *name
        }
        Kind::Call { .. } => bare && kind.ends_with("_call") && kind != "tool_call" && is_text("call_id"),
        Kind::ToolResult { content, .. }
            if kind == "function_call_output" || kind == "custom_tool_call_output" =>
        {
            let output = own.get("output");
            let fits = |piece: &ContentPart<'_>| match &piece.kind {
                Kind::Text(text) => {
                    !text.is_empty() && piece.own.get("type").is_some_and(|kind| kind == "input_text")
                }
                Kind::Media(_) => takes(piece),
                _ => false,
            };
            let blocks = output.is_some_and(is_blocks) && content.iter().all(fits);
            bare && is_text("call_id") && (output.is_some_and(Value::is_string) || blocks)
        }
        Kind::ToolResult { .. } => bare && kind.ends_with("_call_output") && own.get("output").is_some(),
        Kind::Reasoning { .. } => piece.seal == Some(Provider::OpenaiResponses),
        Kind::Hosted(owner) => *owner == Provider::OpenaiResponses,
        Kind::Media(blob) => media(blob).is_some_and(|block| holds(own, &block)),
        Kind::Text(_) | Kind::Unknown(_) => false,
    }
}

fn media(blob: &Blob<'_>) -> Option<String> {
    let image = |key, value: &str| Some(object([("type", quote("input_image")), (key, quote(value))]));
    let file = |key, value: &str| object([("type", quote("input_file")), (key, quote(value))]);
    match &blob.data {
        Data::Base64(_) if blob.is_picture() => image("image_url", &blob.data_url()?),
        Data::Base64(_) if blob.mime() == "application/pdf" => Some(object([
            ("type", quote("input_file")),
            ("filename", quote(blob.file_name())),
            ("file_data", quote(&blob.data_url()?)),
        ])),
        Data::Url(url) if is_web(url) && blob.kind == "image" => image("image_url", url),
        Data::Url(url) if is_web(url) && matches!(blob.kind, "file" | "document") => {
            Some(file("file_url", url))
        }
        Data::OpenaiFile(id) if blob.kind == "image" => image("file_id", id),
        Data::OpenaiFile(id) if blob.kind == "file" => Some(file("file_id", id)),
        _ => None,
    }
}
