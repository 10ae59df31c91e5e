//! Our own plain shape, for a caller who speaks to a model in some other way. The [module](super) describes it.

use super::media::{Blob, Data, is_base64};
use super::read::{ContentPart, Item, Kind};
use super::write::{Out, Writer, argument_object, holds, is_blocks};
use everturn_core::json::{array, object, quote};
use everturn_core::turn::Role;
use serde_json::Value;

pub struct Neutral;

impl Writer for Neutral {
    fn fits(&self, item: &Item<'_>) -> bool {
        let own = item.own;
        let role = own.get("role").and_then(Value::as_str);
        let content = match own.get("content") {
            Some(Value::String(text)) => !text.is_empty() || role == Some("tool"),
            Some(blocks @ Value::Array(_)) => is_blocks(blocks),
            _ => false,
        };
        let foreign = ["parts", "type", "tool_calls", "tool_results", "function_call", "refusal"];
        let names = own.get("name").is_none_or(Value::is_string);
        let tool = role != Some("tool") || ["tool_call_id", "name"].iter().all(|key| own.get(key).is_some());
        matches!(role, Some("user" | "assistant" | "system" | "tool"))
            && !foreign.iter().any(|key| own.get(key).is_some())
            && content
            && names
            && tool
            && item.pieces.iter().all(takes)
    }

    fn say(&self, items: &[&Item<'_>], out: &mut Out) {
        let Some(first) = items.first() else { return };
        let pieces: Vec<&ContentPart<'_>> = items.iter().flat_map(|item| item.said()).collect();
        let content = match pieces.as_slice() {
            [ContentPart { kind: Kind::Text(text), .. }] => quote(text),
            pieces => array(&pieces.iter().filter_map(|piece| block(piece)).collect::<Vec<_>>()),
        };
        let role = match first.role {
            Role::User | Role::Tool => "user",
            Role::Assistant => "assistant",
            Role::System => "system",
        };
        let mut fields = vec![("role", quote(role)), ("content", content)];
        fields.extend(first.name.map(|name| ("name", quote(name))));
        out.push(object(fields), Some(first.source));
    }

    fn answers(&self, answers: &[(&Item<'_>, &ContentPart<'_>)], out: &mut Out) {
        for (item, piece) in answers {
            let Kind::ToolResult { name, content, failed, .. } = &piece.kind else { continue };
            if item.is_whole() && self.fits(item) {
                out.push(item.text.to_string(), Some(item.source));
                continue;
            }
            let said: Vec<&ContentPart<'_>> = content.iter().filter(|piece| !is_empty(piece)).collect();
            let content = match said.as_slice() {
                [ContentPart { kind: Kind::Text(text), .. }] => quote(text),
                pieces => match pieces.iter().filter_map(|piece| block(piece)).collect::<Vec<_>>() {
                    blocks if blocks.is_empty() => quote(""),
                    blocks => array(&blocks),
                },
            };
            let mut fields = vec![
                ("role", quote("tool")),
                ("tool_call_id", quote(piece.id.as_deref().unwrap_or_default())),
                ("name", quote(name)),
                ("content", content),
            ];
            if *failed {
                fields.push(("is_error", "true".to_string()));
            }
            out.push(object(fields), Some(item.source));
        }
    }
}

fn is_empty(piece: &ContentPart<'_>) -> bool {
    matches!(&piece.kind, Kind::Text(text) if text.is_empty())
}

fn block(piece: &ContentPart<'_>) -> Option<String> {
    if !piece.fresh && piece.own.is_object() && takes(piece) {
        return Some(piece.raw.to_string());
    }
    Some(match &piece.kind {
        Kind::Text(text) => object([("type", quote("text")), ("text", quote(text))]),
        Kind::Reasoning { text, .. } => object([("type", quote("reasoning")), ("text", quote(text))]),
        Kind::Call { name, arguments, .. } => object([
            ("type", quote("tool_call")),
            ("id", quote(piece.id.as_deref().unwrap_or_default())),
            ("name", quote(name)),
            ("arguments", argument_object(*arguments)),
        ]),
        Kind::Media(blob) => media(blob),
        Kind::ToolResult { .. } | Kind::Hosted(_) | Kind::Unknown(_) => return None,
    })
}

/// Whether the block is already in this shape.
fn takes(piece: &ContentPart<'_>) -> bool {
    let own = piece.own;
    let kind = own.get("type").and_then(Value::as_str).unwrap_or_default();
    let is_text = |key: &str| own.get(key).is_some_and(Value::is_string);
    match &piece.kind {
        Kind::Text(_) if own.is_string() => true,
        Kind::Text(text) => kind == "text" && !text.is_empty(),
        Kind::Reasoning { .. } => kind == "reasoning" && is_text("text"),
        Kind::Call { name, .. } => {
            kind == "tool_call"
                && is_text("id")
                && own.get("name").is_some_and(|own| own == name)
                && own.get("arguments").is_some_and(Value::is_object)
        }
        Kind::ToolResult { content, .. } => {
            let said = own.get("content").filter(|_| own.get("role").is_some());
            said.is_some_and(|said| said.is_string() || is_blocks(said) && content.iter().all(takes))
        }
        Kind::Media(blob) => {
            let words = matches!(blob.data, Data::Text(_)) && kind == "file" && own.get("asset_id").is_none();
            holds(own, &media(blob))
                || words && own.get("data").and_then(Value::as_str).is_some_and(is_base64)
        }
        Kind::Hosted(_) | Kind::Unknown(_) => false,
    }
}

fn media(blob: &Blob<'_>) -> String {
    let kind = if ["image", "audio", "video"].contains(&blob.kind) { blob.kind } else { "file" };
    let data = match &blob.data {
        Data::Base64(data) => ("data", quote(data)),
        Data::Url(url) => ("url", quote(url)),
        Data::Text(_) | Data::OpenaiFile(_) | Data::Gone => {
            return object([("type", quote("text")), ("text", quote(&blob.in_words()))]);
        }
    };
    let mime = blob.mime.as_ref().map(|_| ("mime_type", quote(blob.mime())));
    let name = blob.label.as_ref().map(|label| ("name", quote(label)));
    object([("type", quote(kind))].into_iter().chain(mime).chain([data]).chain(name))
}
