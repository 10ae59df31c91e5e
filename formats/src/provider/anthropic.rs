//! Anthropic Messages: blocks, results in messages of the user, system material apart.

use super::Provider;
use super::ids::tool_name;
use super::media::{Blob, Data};
use super::read::{ContentPart, Item, Kind};
use super::write::{Out, Writer, argument_object, holds, is_blocks};
use everturn_core::json::{array, object, quote};
use everturn_core::turn::Role;
use serde_json::Value;

pub struct Anthropic;

impl Writer for Anthropic {
    fn fits(&self, item: &Item<'_>) -> bool {
        let own = item.own;
        let content = match own.get("content") {
            Some(Value::String(_)) => !item.pieces.is_empty(),
            Some(blocks @ Value::Array(_)) => is_blocks(blocks),
            _ => false,
        };
        matches!(own.get("role").and_then(Value::as_str), Some("user" | "assistant"))
            // It refuses any other field.
            && own.as_object().is_some_and(|own| own.keys().all(|key| key == "role" || key == "content"))
            && content
            && item.pieces.iter().all(|piece| takes(piece, item.role))
    }

    fn say(&self, items: &[&Item<'_>], out: &mut Out) {
        let Some(first) = items.first() else { return };
        let mut blocks = Vec::new();
        let mut words = None;
        for item in items {
            for piece in item.said() {
                let raw =
                    (!piece.fresh && piece.own.is_object() && takes(piece, item.role)).then_some(piece.raw);
                let block = match &piece.kind {
                    Kind::Text(text) => Err(text.to_string()),
                    Kind::Media(blob) => {
                        media(blob).filter(|_| item.role != Role::Assistant).ok_or_else(|| blob.in_words())
                    }
                    Kind::Call { name, arguments, .. } => Ok(object([
                        ("type", quote("tool_use")),
                        ("id", quote(piece.id.as_deref().unwrap_or_default())),
                        ("name", quote(&tool_name(Provider::Anthropic, name))),
                        ("input", argument_object(*arguments)),
                    ])),
                    Kind::Reasoning { .. } | Kind::Hosted(_) => Ok(piece.raw.to_string()),
                    Kind::ToolResult { .. } | Kind::Unknown(_) => continue,
                };
                let block = block.unwrap_or_else(|text| {
                    let text = match item.role {
                        Role::System => format!("<system>{text}</system>"),
                        _ => text,
                    };
                    let block = text_block(&text);
                    words = (raw.is_none() && blocks.is_empty()).then_some(text);
                    block
                });
                blocks.push(raw.map_or(block, str::to_string));
            }
        }
        let role = if first.role == Role::Assistant { "assistant" } else { "user" };
        let content = match (words, blocks.len()) {
            (Some(words), 1) => quote(&words),
            _ => array(&blocks),
        };
        out.push(object([("role", quote(role)), ("content", content)]), Some(first.source));
    }

    fn answers(&self, answers: &[(&Item<'_>, &ContentPart<'_>)], out: &mut Out) {
        let blocks: Vec<String> = answers
            .iter()
            .map(|(_, piece)| match !piece.fresh && takes(piece, Role::User) {
                true => piece.raw.to_string(),
                false => answer(piece),
            })
            .collect();
        let source = answers.first().map(|(item, _)| item.source);
        out.push(object([("role", quote("user")), ("content", array(&blocks))]), source);
    }
}

fn answer(piece: &ContentPart<'_>) -> String {
    let mut fields =
        vec![("type", quote("tool_result")), ("tool_use_id", quote(piece.id.as_deref().unwrap_or_default()))];
    if let Kind::ToolResult { content, failed, .. } = &piece.kind {
        let said: Vec<&ContentPart<'_>> = content
            .iter()
            .filter(|piece| !matches!(&piece.kind, Kind::Text(text) if text.trim().is_empty()))
            .collect();
        match said.as_slice() {
            [] => {}
            [ContentPart { kind: Kind::Text(text), .. }] => fields.push(("content", quote(text))),
            said => {
                let blocks: Vec<String> = said.iter().map(|piece| answer_block(piece)).collect();
                fields.push(("content", array(&blocks)));
            }
        }
        if *failed {
            fields.push(("is_error", "true".to_string()));
        }
    }
    object(fields)
}

fn answer_block(piece: &ContentPart<'_>) -> String {
    match &piece.kind {
        _ if takes(piece, Role::User) && piece.own.is_object() => piece.raw.to_string(),
        Kind::Media(blob) => media(blob).unwrap_or_else(|| text_block(&blob.in_words())),
        Kind::Text(text) => text_block(text),
        _ => text_block(piece.raw),
    }
}

fn text_block(text: &str) -> String {
    object([("type", quote("text")), ("text", quote(text))])
}

/// Whether such a message can have the piece unchanged.
fn takes(piece: &ContentPart<'_>, role: Role) -> bool {
    let own = piece.own;
    let kind = own.get("type").and_then(Value::as_str).unwrap_or_default();
    let is_text = |key: &str| own.get(key).is_some_and(Value::is_string);
    match &piece.kind {
        Kind::Text(_) if own.is_string() => true,
        Kind::Text(text) => kind == "text" && !text.trim().is_empty(),
        Kind::Reasoning { .. } => piece.seal == Some(Provider::Anthropic),
        Kind::Hosted(owner) => *owner == Provider::Anthropic,
        Kind::Call { name, .. } => {
            kind == "tool_use"
                && is_text("id")
                && own.get("name").is_some_and(|own| own == name)
                && own.get("input").is_some_and(Value::is_object)
                && tool_name(Provider::Anthropic, name) == *name
        }
        Kind::ToolResult { content, .. } => {
            let fits = |piece: &ContentPart<'_>| match own.get("content") {
                Some(Value::Array(_)) => piece.own.is_object() && takes(piece, Role::User) || is_cited(piece),
                _ => true,
            };
            kind == "tool_result"
                && is_text("tool_use_id")
                && own.get("name").is_none()
                && own.get("content").is_none_or(|content| content.is_string() || content.is_array())
                && content.iter().all(fits)
        }
        Kind::Media(blob) => {
            // A file that was uploaded, and a document in blocks, have no other shape.
            let special = match own.pointer("/source/type").and_then(Value::as_str) {
                Some("file") => own.pointer("/source/file_id").is_some_and(Value::is_string),
                Some("content") => kind == "document" && own.pointer("/source/content").is_some(),
                _ => false,
            };
            let known = matches!(kind, "image" | "document") && own.get("asset_id").is_none();
            role != Role::Assistant
                && known
                && (special || media(blob).is_some_and(|block| holds(own, &block)))
        }
        Kind::Unknown(_) => false,
    }
}

/// Blocks that a result may hold beside words and media.
fn is_cited(piece: &ContentPart<'_>) -> bool {
    piece.own.get("type").is_some_and(|kind| kind == "search_result" || kind == "tool_reference")
}

fn media(blob: &Blob<'_>) -> Option<String> {
    let block = |kind: &str, source: Vec<(&str, String)>| {
        Some(object([("type", quote(kind)), ("source", object(source))]))
    };
    let pdf = blob.mime() == "application/pdf";
    match &blob.data {
        Data::Base64(data) if blob.is_picture() || pdf => block(
            if pdf { "document" } else { "image" },
            vec![("type", quote("base64")), ("media_type", quote(blob.mime())), ("data", quote(data))],
        ),
        Data::Url(url) if url.strip_prefix("https://").is_some_and(|rest| !rest.is_empty()) => {
            match blob.kind {
                "image" => block("image", vec![("type", quote("url")), ("url", quote(url))]),
                _ if pdf || blob.kind == "document" => {
                    block("document", vec![("type", quote("url")), ("url", quote(url))])
                }
                _ => None,
            }
        }
        Data::Text(text) if !text.trim().is_empty() => {
            let source =
                [("type", quote("text")), ("media_type", quote("text/plain")), ("data", quote(text))];
            let title = blob.label.as_ref().map(|label| ("title", quote(label)));
            let fields = [("type", quote("document")), ("source", object(source))];
            Some(object(fields.into_iter().chain(title)))
        }
        _ => None,
    }
}
