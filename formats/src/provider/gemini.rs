//! Gemini: contents with `parts`, results in a content of their own, system material apart.

use super::Provider;
use super::ids::tool_name;
use super::media::{Blob, Data, is_mime, is_web};
use super::read::{ContentPart, Item, Kind};
use super::write::{Out, Writer, argument_object, holds, result_text};
use everturn_core::json::{array, object, quote};
use everturn_core::turn::Role;
use serde_json::Value;

pub struct Gemini;

impl Writer for Gemini {
    fn fits(&self, item: &Item<'_>) -> bool {
        let own = item.own;
        let parts = own.get("parts").and_then(Value::as_array).is_some_and(|parts| !parts.is_empty());
        matches!(own.get("role").and_then(Value::as_str), Some("user" | "model"))
            && ["content", "name", "type"].iter().all(|key| own.get(key).is_none())
            && parts
            && item.pieces.iter().all(takes)
    }

    fn say(&self, items: &[&Item<'_>], out: &mut Out) {
        let Some(first) = items.first() else { return };
        let mut parts = Vec::new();
        for item in items {
            for piece in item.said() {
                if !piece.fresh && takes(piece) {
                    parts.push(piece.raw.to_string());
                    continue;
                }
                let mut fields = match &piece.kind {
                    Kind::Text(text) if item.role == Role::System => {
                        vec![("text", quote(&format!("<system>{text}</system>")))]
                    }
                    Kind::Text(text) => vec![("text", quote(text))],
                    Kind::Media(blob) => {
                        vec![media(blob).unwrap_or_else(|| ("text", quote(&blob.in_words())))]
                    }
                    Kind::Call { name, arguments, .. } => {
                        let id = piece.id.as_deref().map(|id| ("id", quote(id)));
                        let name = ("name", quote(&tool_name(Provider::Gemini, name)));
                        let call = [name, ("args", argument_object(*arguments))];
                        vec![("functionCall", object(id.into_iter().chain(call)))]
                    }
                    Kind::Reasoning { text, .. } => {
                        vec![("text", quote(text)), ("thought", "true".to_string())]
                    }
                    Kind::Hosted(_) => {
                        parts.push(piece.raw.to_string());
                        continue;
                    }
                    Kind::ToolResult { .. } | Kind::Unknown(_) => continue,
                };
                let seal =
                    ["thoughtSignature", "thought_signature"].iter().find_map(|key| piece.own.get(key));
                let seal = seal.and_then(Value::as_str).filter(|_| piece.seal == Some(Provider::Gemini));
                fields.extend(seal.map(|seal| ("thoughtSignature", quote(seal))));
                parts.push(object(fields));
            }
        }
        let role = if first.role == Role::Assistant { "model" } else { "user" };
        out.push(object([("role", quote(role)), ("parts", array(&parts))]), Some(first.source));
    }

    fn answers(&self, answers: &[(&Item<'_>, &ContentPart<'_>)], out: &mut Out) {
        let (mut parts, mut shown) = (Vec::new(), Vec::new());
        for (_, piece) in answers {
            let Kind::ToolResult { name, content, failed, .. } = &piece.kind else { continue };
            if !piece.fresh && takes(piece) {
                parts.push(piece.raw.to_string());
                continue;
            }
            let key = if *failed { "error" } else { "output" };
            let response = match (answered_object(piece), failed) {
                (Some(response), false) => response,
                _ => object([(key, quote(&result_text(content, false)))]),
            };
            let id = piece.id.as_deref().map(|id| ("id", quote(id)));
            let answer = [("name", quote(&tool_name(Provider::Gemini, name))), ("response", response)];
            parts.push(object([("functionResponse", object(id.into_iter().chain(answer)))]));
            shown.extend(content.iter().filter_map(|piece| match &piece.kind {
                Kind::Media(blob) => media(blob).map(|part| object([part])),
                _ => None,
            }));
        }
        let source = answers.first().map(|(item, _)| item.source);
        out.push(object([("role", quote("user")), ("parts", array(&parts))]), source);
        // A content with results holds nothing else, so the media of a result follow it.
        if !shown.is_empty() {
            out.push(object([("role", quote("user")), ("parts", array(&shown))]), source);
        }
    }
}

/// The response of a Gemini part in its own bytes, if only its name or id had to change.
fn answered_object(piece: &ContentPart<'_>) -> Option<String> {
    let answer = ["functionResponse", "function_response"]
        .iter()
        .find_map(|key| everturn_core::json::field(piece.raw, key))?;
    everturn_core::json::field(answer, "response")
        .filter(|response| response.starts_with('{'))
        .map(str::to_string)
}

/// Whether the part can be sent as it is.
fn takes(piece: &ContentPart<'_>) -> bool {
    let own = piece.own;
    let text = |path: &str| own.pointer(path).and_then(Value::as_str);
    let named = |name: Option<&str>| name.is_some_and(|name| tool_name(Provider::Gemini, name) == name);
    let is_object = |path: &str| own.pointer(path).is_some_and(Value::is_object);
    let same_id = |path: &str| own.pointer(path) == piece.id.as_deref().map(Value::from).as_ref();
    let part = own.get("type").is_none();
    match &piece.kind {
        Kind::Text(words) => part && text("/text").is_some() && (!words.is_empty() || piece.seal.is_some()),
        Kind::Reasoning { .. } => {
            part && piece.seal == Some(Provider::Gemini) && own.get("thoughtSignature").is_some()
        }
        Kind::Call { .. } => {
            named(text("/functionCall/name"))
                && own.pointer("/functionCall/args").is_none_or(Value::is_object)
                && same_id("/functionCall/id")
        }
        Kind::ToolResult { .. } => {
            named(text("/functionResponse/name"))
                && is_object("/functionResponse/response")
                && same_id("/functionResponse/id")
        }
        Kind::Media(blob) => match &blob.data {
            // Text is sent as a file here where it came as one.
            Data::Text(_) => {
                text("/inlineData/mimeType").is_some_and(is_mime) && own.get("asset_id").is_none()
            }
            Data::Url(url) => text("/fileData/fileUri") == Some(url) && media(blob).is_some(),
            _ => media(blob).is_some_and(|(key, data)| holds(own, &object([(key, data)]))),
        },
        Kind::Hosted(owner) => *owner == Provider::Gemini,
        Kind::Unknown(_) => false,
    }
}

fn media(blob: &Blob<'_>) -> Option<(&'static str, String)> {
    let mime = is_mime(blob.mime()).then(|| ("mimeType", quote(blob.mime())));
    match &blob.data {
        Data::Base64(data) => Some(("inlineData", object([mime?, ("data", quote(data))]))),
        Data::Url(url) if is_web(url) || url.starts_with("gs://") => {
            Some(("fileData", object(mime.into_iter().chain([("fileUri", quote(url))]))))
        }
        Data::Url(_) | Data::Text(_) | Data::OpenaiFile(_) | Data::Gone => None,
    }
}
