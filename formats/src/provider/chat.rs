//! OpenAI chat completions: messages with `tool_calls`, results as messages of their own.

use super::Provider;
use super::ids::{is_actor_name, tool_name};
use super::media::{Blob, Data, is_web};
use super::read::{ContentPart, Item, Kind};
use super::write::{Out, Writer, argument_text, holds, is_blocks, result_text};
use everturn_core::json::{array, object, quote};
use everturn_core::turn::Role;
use serde_json::Value;

pub struct Chat;

/// Fields of a text block that only Anthropic knows. Its blocks look like ours otherwise.
const OF_ANTHROPIC: [&str; 2] = ["cache_control", "citations"];
/// Fields that agents and other APIs add to messages. Further ones, as those for reasoning, belong to the servers that made
/// them.
const OF_OTHERS: [&str; 9] = [
    "timestamp",
    "created_at",
    "finish_reason",
    "toolCalls",
    "origin",
    "cache_control",
    "id",
    "model",
    "usage",
];

impl Writer for Chat {
    fn fits(&self, item: &Item<'_>) -> bool {
        let own = item.own;
        let unset = |key: &str| own.get(key).is_none_or(Value::is_null);
        let role = own.get("role").and_then(Value::as_str).unwrap_or_default();
        let name = own.get("name").is_none_or(|name| name.as_str().is_some_and(is_actor_name));
        let calls = own.get("tool_calls").is_none_or(|calls| calls.as_array().is_some_and(|c| !c.is_empty()));
        let speaks = ["tool_calls", "refusal", "audio"].iter().any(|key| !unset(key));
        let content = match own.get("content") {
            Some(Value::String(text)) => !text.is_empty() || speaks || role == "tool",
            Some(blocks @ Value::Array(_)) => is_blocks(blocks),
            None | Some(Value::Null) => speaks,
            _ => false,
        };
        let shape = match role {
            "user" | "system" | "developer" => name && unset("tool_calls"),
            "assistant" => name && calls,
            "tool" => {
                unset("tool_calls")
                    && own.get("tool_call_id").is_some_and(Value::is_string)
                    && own.get("is_error").is_none()
            }
            _ => false,
        };
        let foreign = ["parts", "type", "tool_results", "function_call"].iter().chain(&OF_OTHERS);
        shape
            && content
            && !foreign.into_iter().any(|key| own.get(key).is_some())
            && item.pieces.iter().all(|piece| takes(piece, item.role))
    }

    fn say(&self, items: &[&Item<'_>], out: &mut Out) {
        let Some(first) = items.first() else { return };
        let role = match first.role {
            Role::User | Role::Tool => "user",
            Role::Assistant => "assistant",
            Role::System if first.own.get("role").is_some_and(|role| role == "developer") => "developer",
            Role::System => "system",
        };
        let (mut blocks, mut texts, mut calls) = (Vec::new(), Vec::new(), Vec::new());
        for item in items {
            let mut words = String::new();
            for piece in item.said() {
                let raw =
                    (!piece.fresh && piece.own.is_object() && takes(piece, item.role)).then_some(piece.raw);
                let block = match &piece.kind {
                    Kind::Call { name, arguments, .. } => {
                        let call = || call(piece, name, &argument_text(piece.own, *arguments));
                        calls.push(raw.map_or_else(call, str::to_string));
                        continue;
                    }
                    Kind::Media(blob) => {
                        media(blob).filter(|_| role == "user").ok_or_else(|| blob.in_words())
                    }
                    Kind::Text(text) => Err(text.to_string()),
                    Kind::Reasoning { .. } | Kind::ToolResult { .. } | Kind::Hosted(_) | Kind::Unknown(_) => {
                        continue;
                    }
                };
                let block = block.unwrap_or_else(|text| {
                    words += &text;
                    object([("type", quote("text")), ("text", quote(&text))])
                });
                blocks.push(raw.map_or(block, str::to_string));
            }
            if !words.is_empty() {
                texts.push(words);
            }
        }
        let content = match (texts.as_slice(), blocks.len()) {
            (_, 0) => "null".to_string(),
            (texts, _) if role != "user" => quote(&texts.join("\n\n")),
            ([text], 1) => quote(text),
            _ => array(&blocks),
        };
        let mut fields = vec![("role", quote(role)), ("content", content)];
        fields.extend(first.name.filter(|name| is_actor_name(name)).map(|name| ("name", quote(name))));
        if !calls.is_empty() {
            fields.push(("tool_calls", array(&calls)));
        }
        out.push(object(fields), Some(first.source));
    }

    fn answers(&self, answers: &[(&Item<'_>, &ContentPart<'_>)], out: &mut Out) {
        let mut pictures = Vec::new();
        for (item, piece) in answers {
            let Kind::ToolResult { content, failed, .. } = &piece.kind else { continue };
            if item.is_whole() && self.fits(item) {
                out.push(item.text.to_string(), Some(item.source));
                continue;
            }
            let fields = [
                ("role", quote("tool")),
                ("tool_call_id", quote(piece.id.as_deref().unwrap_or_default())),
                ("content", quote(&result_text(content, *failed))),
            ];
            out.push(object(fields), Some(item.source));
            for piece in content {
                if let Kind::Media(blob) = &piece.kind
                    && let Some(block) = media(blob)
                {
                    pictures.push((item.source, block));
                }
            }
        }
        // A result takes only text here, so its pictures follow as a message of the user.
        if let Some((source, _)) = pictures.first() {
            let source = *source;
            let blocks: Vec<String> = pictures.into_iter().map(|(_, block)| block).collect();
            out.push(object([("role", quote("user")), ("content", array(&blocks))]), Some(source));
        }
    }
}

fn call(piece: &ContentPart<'_>, name: &str, arguments: &str) -> String {
    let function = [("name", quote(&tool_name(Provider::OpenaiChat, name))), ("arguments", quote(arguments))];
    object([
        ("id", quote(piece.id.as_deref().unwrap_or_default())),
        ("type", quote("function")),
        ("function", object(function)),
    ])
}

/// Whether such a message can have the piece unchanged.
fn takes(piece: &ContentPart<'_>, role: Role) -> bool {
    let own = piece.own;
    let kind = own.get("type").and_then(Value::as_str).unwrap_or_default();
    match &piece.kind {
        Kind::Text(_) if OF_ANTHROPIC.iter().any(|name| own.get(name).is_some()) => false,
        Kind::Text(_) if own.is_string() || own.get("role").is_some() => true,
        Kind::Text(text) => {
            !text.is_empty() && (kind == "text" || kind == "refusal" && role == Role::Assistant)
        }
        Kind::Call { name, .. } => {
            let wrapper = own.get(kind).filter(|_| matches!(kind, "function" | "custom"));
            let input = wrapper.and_then(|call| call.get("arguments").or_else(|| call.get("input")));
            own.get("id").is_some_and(Value::is_string)
                && wrapper.and_then(|call| call.get("name")).is_some_and(|own| own == name)
                && input.is_some_and(Value::is_string)
                && tool_name(Provider::OpenaiChat, name) == *name
        }
        Kind::ToolResult { content, .. } => {
            let is_words = |piece: &ContentPart<'_>| {
                let filled = matches!(&piece.kind, Kind::Text(text) if !text.is_empty());
                filled && piece.own.get("type").is_some_and(|kind| kind == "text")
            };
            let said = own.get("content").filter(|_| own.get("role").is_some());
            said.is_some_and(|said| said.is_string() || is_blocks(said) && content.iter().all(is_words))
        }
        Kind::Media(blob) => role == Role::User && media(blob).is_some_and(|block| holds(own, &block)),
        Kind::Reasoning { .. } | Kind::Hosted(_) | Kind::Unknown(_) => false,
    }
}

fn media(blob: &Blob<'_>) -> Option<String> {
    let image =
        |url: &str| object([("type", quote("image_url")), ("image_url", object([("url", quote(url))]))]);
    let sound = match blob.mime() {
        "audio/wav" | "audio/x-wav" | "audio/wave" => Some("wav"),
        "audio/mp3" | "audio/mpeg" => Some("mp3"),
        _ => None,
    };
    match (&blob.data, sound) {
        (Data::Url(url), _) if blob.kind == "image" && is_web(url) => Some(image(url)),
        (Data::Base64(_), _) if blob.is_picture() => blob.data_url().map(|url| image(&url)),
        (Data::Base64(data), Some(format)) => {
            let audio = object([("data", quote(data)), ("format", quote(format))]);
            Some(object([("type", quote("input_audio")), ("input_audio", audio)]))
        }
        (Data::Base64(_), _) if blob.mime() == "application/pdf" => {
            let file = [("filename", quote(blob.file_name())), ("file_data", quote(&blob.data_url()?))];
            Some(object([("type", quote("file")), ("file", object(file))]))
        }
        (Data::OpenaiFile(id), _) if blob.kind == "file" => {
            Some(object([("type", quote("file")), ("file", object([("file_id", quote(id))]))]))
        }
        _ => None,
    }
}
