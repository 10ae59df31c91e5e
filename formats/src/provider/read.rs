//! Splits a message of any shape into pieces, each with its original bytes.
//!
//! Core's lens tells the kind of a block, and its pairing tells which result answers which call. Gemini's `parts`,
//! which the lens does not know, are converted to blocks of ours for it; their original bytes are kept beside.

use super::media::{Blob, Data};
use super::{Media, Provider};
use everturn_core::json::{elements, field, fields};
use everturn_core::message::{self, MessagePart};
use everturn_core::pairing::{BlockPath, Pairs};
use everturn_core::turn::Role;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::HashMap;

/// A message after cleaning.
pub struct Source<'a> {
    pub text: Cow<'a, str>,
    /// The text, parsed.
    pub own: Cow<'a, Value>,
    /// The message as blocks that the lens knows, where it came in `parts`.
    pub view: Option<Value>,
    /// Whether a private block was removed.
    pub lost: bool,
}

impl Source<'_> {
    /// The form that the lens can read.
    pub fn seen(&self) -> &Value {
        self.view.as_ref().unwrap_or(&self.own)
    }
}

/// A message in pieces.
pub struct Item<'a> {
    /// Index in the input.
    pub source: usize,
    pub role: Role,
    /// Name of the speaker.
    pub name: Option<&'a str>,
    /// The message, cleaned.
    pub own: &'a Value,
    pub text: &'a str,
    pub pieces: Vec<ContentPart<'a>>,
    /// Whether a private block was removed.
    pub lost: bool,
}

/// One piece of a message.
pub struct ContentPart<'a> {
    pub kind: Kind<'a>,
    /// The block, part or item.
    pub own: &'a Value,
    pub raw: &'a str,
    /// Provider that signed it, and could tell that it was changed.
    pub seal: Option<Provider>,
    /// Id of its call as written; `None` where no id is needed.
    pub id: Option<String>,
    /// Whether it is rendered.
    pub keep: bool,
    /// Whether it must be rewritten although it has the right shape, for example because its id changed.
    pub fresh: bool,
}

impl ContentPart<'_> {
    /// Text that comes from no message.
    pub fn words(text: String) -> Self {
        let kind = Kind::Text(Cow::Owned(text));
        ContentPart { kind, own: &Value::Null, raw: "null", seal: None, id: None, keep: true, fresh: true }
    }
}

/// Kind of a [`ContentPart`].
pub enum Kind<'a> {
    /// Words.
    Text(Cow<'a, str>),
    /// Reasoning, with its words where they are shown.
    Reasoning { text: String, signed: bool },
    /// A tool is called. `call` is its place in [`Pairs::calls`].
    Call { call: usize, name: &'a str, arguments: Arguments<'a> },
    /// A tool answered. `answer` is its place in [`Pairs::results`].
    ToolResult { answer: usize, name: &'a str, content: Vec<ContentPart<'a>>, failed: bool },
    /// A picture, sound or file.
    Media(Box<Blob<'a>>),
    /// A block that only this provider understands.
    Hosted(Provider),
    /// A block of an unknown type.
    Unknown(&'a str),
}

/// Arguments of a tool call.
#[derive(Clone, Copy)]
pub enum Arguments<'a> {
    /// As text, which should be JSON.
    Text(&'a str),
    /// As JSON, in its own bytes.
    Json(&'a str),
}

/// Index of each call or result in the pairing, by message and block.
pub type Places = HashMap<(usize, BlockPath), usize>;

/// Splits messages into pieces, given the pairs of calls and results.
pub struct Reader<'a, 'm> {
    pub pairs: &'a Pairs<'a>,
    pub calls: Places,
    pub answers: Places,
    pub media: &'m dyn Media,
}

/// Responses items, beside calls, that its servers made or that only they understand.
const RESPONSES_HOSTED: [&str; 5] =
    ["mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "item_reference", "compaction"];

impl<'a, 'm> Reader<'a, 'm> {
    /// Prepares to read messages whose pairs are known.
    pub fn new(pairs: &'a Pairs<'a>, media: &'m dyn Media) -> Reader<'a, 'm> {
        let calls = pairs.calls.iter().enumerate().map(|(n, call)| ((call.message, call.place), n));
        let answers = pairs.results.iter().enumerate().map(|(n, a)| ((a.message, a.place), n));
        Reader { pairs, calls: calls.collect(), answers: answers.collect(), media }
    }

    /// The message in pieces, or the reason why it is none.
    pub fn item(&self, index: usize, source: &'a Source<'a>) -> Result<Item<'a>, String> {
        let seen = source.seen();
        if !seen.is_object() {
            return Err("it is not a message".into());
        }
        let kind = seen.get("type").and_then(Value::as_str).unwrap_or_default();
        let bare = seen.get("role").is_none();
        let role = match message::role(seen) {
            Ok(role) => role,
            Err(_) if bare && RESPONSES_HOSTED.contains(&kind) => Role::Assistant,
            Err(error) => return Err(error.text().to_string()),
        };
        let name = seen.get("name").and_then(Value::as_str).filter(|name| !name.trim().is_empty());
        let mut item = Item {
            source: index,
            role,
            name: name.filter(|_| !bare && role != Role::Tool),
            own: &source.own,
            text: &source.text,
            pieces: Vec::new(),
            lost: source.lost,
        };
        if bare {
            let piece = self.piece(index, BlockPath::Message, seen, &source.own, &source.text);
            item.pieces.push(piece);
            return Ok(item);
        }
        if self.answers.contains_key(&(index, BlockPath::Message)) {
            let piece = self.piece(index, BlockPath::Message, seen, &source.own, &source.text);
            item.pieces.push(piece);
            return Ok(item);
        }
        self.contents(index, source, &mut item);
        Ok(item)
    }

    fn contents(&self, index: usize, source: &'a Source<'a>, item: &mut Item<'a>) {
        let (seen, own) = (source.seen(), &*source.own);
        let fields = fields(&source.text);
        let raw = |name: &str| fields.iter().find(|(key, _)| key == name).map_or("null", |(_, value)| value);
        let is_gemini = source.view.is_some();
        let content = if is_gemini { "parts" } else { "content" };
        match (seen.get("content"), own.get(content)) {
            (Some(Value::String(text)), Some(own)) if !text.is_empty() => {
                item.pieces.push(plain(Kind::Text(Cow::Borrowed(text)), own, raw(content)));
            }
            (Some(Value::Array(blocks)), Some(Value::Array(owns))) => {
                for (n, raw) in elements(raw(content)).into_iter().enumerate() {
                    let (Some(block), Some(own)) = (blocks.get(n), owns.get(n)) else { continue };
                    item.pieces.push(self.piece(index, BlockPath::Block(n), block, own, raw));
                }
            }
            // No provider has such content; what it says is there as it was written.
            (Some(other), Some(own)) if !matches!(other, Value::Null | Value::String(_)) => {
                let words = match part(other) {
                    Some(MessagePart::Text(text)) => text,
                    _ => raw(content),
                };
                item.pieces.push(plain(Kind::Text(Cow::Borrowed(words)), own, raw(content)));
            }
            _ => {}
        }
        if let Some(refusal) = own.get("refusal").and_then(Value::as_str).filter(|_| !is_gemini) {
            item.pieces.push(plain(Kind::Text(Cow::Borrowed(refusal)), own, raw("refusal")));
        }
        for (list, calls) in [("tool_calls", true), ("tool_results", false)] {
            let owns = own.get(list).and_then(Value::as_array).filter(|_| !is_gemini);
            for ((n, own), raw) in owns.into_iter().flatten().enumerate().zip(elements(raw(list))) {
                let place = if calls { BlockPath::ToolCall(n) } else { BlockPath::ToolResult(n) };
                item.pieces.push(self.piece(index, place, own, own, raw));
            }
        }
        if self.calls.contains_key(&(index, BlockPath::FunctionCall)) {
            let call = &own["function_call"];
            item.pieces.push(self.piece(index, BlockPath::FunctionCall, call, call, raw("function_call")));
        }
        // Everything beside a signed part comes from the same provider, also if this code does not know it yet.
        let sealed = item.pieces.iter().find_map(|piece| piece.seal).filter(|_| item.role == Role::Assistant);
        if let Some(provider) = sealed {
            for piece in &mut item.pieces {
                let says_what =
                    if is_gemini { piece.own.is_object() } else { is_filled(piece.own.get("type")) };
                if says_what && matches!(piece.kind, Kind::Unknown(_)) {
                    piece.kind = Kind::Hosted(provider);
                }
            }
        }
    }

    fn piece(
        &self,
        index: usize,
        place: BlockPath,
        seen: &'a Value,
        own: &'a Value,
        raw: &'a str,
    ) -> ContentPart<'a> {
        let kind = seen.get("type").and_then(Value::as_str).unwrap_or_default();
        let mut seal = None;
        let of_gemini = std::ptr::from_ref(seen) != std::ptr::from_ref(own);
        if of_gemini && ["thoughtSignature", "thought_signature"].iter().any(|key| is_filled(own.get(key))) {
            seal = Some(Provider::Gemini);
        }
        let is_item = matches!(place, BlockPath::Message | BlockPath::Block(_));
        let kind = if is_item && is_hosted_item(own) {
            Kind::Hosted(Provider::OpenaiResponses)
        } else if let Some(&call) = self.calls.get(&(index, place)) {
            let name =
                own.pointer("/custom/name").and_then(Value::as_str).unwrap_or(self.pairs.calls[call].name);
            Kind::Call { call, name, arguments: arguments(own, raw) }
        } else if let Some(&answer) = self.answers.get(&(index, place)) {
            let result = &self.pairs.results[answer];
            let found = ["content", "output", "result"].iter().find_map(|key| Some((key, field(raw, key)?)));
            let raw = found.filter(|_| !of_gemini).map(|(key, raw)| {
                match own.get(key).is_some_and(message::is_mcp_result) {
                    true => field(raw, "content").unwrap_or("null"),
                    false => raw,
                }
            });
            let raw = raw.unwrap_or("null");
            Kind::ToolResult {
                answer,
                name: result.name.unwrap_or("tool"),
                content: self.said(result.content(), raw),
                failed: result.failed,
            }
        } else {
            match part(seen) {
                Some(MessagePart::Text("")) if !is_textual(own.get("text")) => Kind::Unknown(kind),
                Some(MessagePart::Text(text)) => Kind::Text(Cow::Borrowed(text)),
                Some(MessagePart::Thinking { text, signed }) => {
                    seal = seal.or(owner(place, own));
                    let summary = Some(summary(own)).filter(|summary| !summary.is_empty());
                    let text = summary.unwrap_or_else(|| text.unwrap_or_default().to_string());
                    Kind::Reasoning { text, signed }
                }
                Some(MessagePart::Media { kind, .. }) => Kind::Media(Box::new(self.blob(kind, seen))),
                _ if kind == "refusal" => match own.get("refusal").and_then(Value::as_str) {
                    Some(text) => Kind::Text(Cow::Borrowed(text)),
                    None => Kind::Unknown(kind),
                },
                _ if ["executableCode", "codeExecutionResult"].iter().any(|key| own.get(key).is_some())
                    && of_gemini =>
                {
                    Kind::Hosted(Provider::Gemini)
                }
                _ if is_hosted_by_anthropic(kind) => Kind::Hosted(Provider::Anthropic),
                _ => Kind::Unknown(if kind.is_empty() { "block" } else { kind }),
            }
        };
        ContentPart { kind, own, raw, seal, id: None, keep: true, fresh: false }
    }

    fn blob(&self, kind: &'a str, block: &'a Value) -> Blob<'a> {
        let mut blob = Blob::read(kind, block, self.media);
        // A document in blocks is text to everyone else, apart from its pictures.
        if matches!(blob.data, Data::Gone) {
            let text = message::text_within(block);
            if !text.is_empty() && block.pointer("/source/type").is_some_and(|kind| kind == "content") {
                blob.data = Data::Text(Cow::Owned(text));
            }
        }
        blob
    }

    /// Output of a tool: text and media; other JSON as its text.
    fn said(&self, content: Option<&'a Value>, raw: &'a str) -> Vec<ContentPart<'a>> {
        let is_block = |value: &Value| value.is_string() || part(value).is_some();
        match content {
            None | Some(Value::Null) => Vec::new(),
            Some(own @ Value::String(text)) => vec![plain(Kind::Text(Cow::Borrowed(text)), own, raw)],
            Some(Value::Array(blocks)) if blocks.iter().all(is_block) => {
                let raws = elements(raw);
                blocks.iter().zip(raws).map(|(block, raw)| self.said_block(block, raw)).collect()
            }
            Some(block) if is_block(block) => vec![self.said_block(block, raw)],
            Some(own) => vec![plain(Kind::Text(Cow::Borrowed(raw)), own, raw)],
        }
    }

    fn said_block(&self, own: &'a Value, raw: &'a str) -> ContentPart<'a> {
        let kind = match (part(own), own.get("type").and_then(Value::as_str)) {
            (Some(MessagePart::Text(text)), _) => Kind::Text(Cow::Borrowed(text)),
            (Some(MessagePart::Media { kind, .. }), _) => Kind::Media(Box::new(self.blob(kind, own))),
            (_, Some("computer_screenshot")) => Kind::Media(Box::new(Blob::read("image", own, self.media))),
            _ => Kind::Text(Cow::Borrowed(raw)),
        };
        plain(kind, own, raw)
    }
}

fn plain<'a>(kind: Kind<'a>, own: &'a Value, raw: &'a str) -> ContentPart<'a> {
    ContentPart { kind, own, raw, seal: None, id: None, keep: true, fresh: false }
}

/// Kind of a block; `None` if it is no block.
fn part(block: &Value) -> Option<MessagePart<'_>> {
    match block {
        Value::String(text) => Some(MessagePart::Text(text)),
        Value::Object(_)
            if block.get("role").is_none() && block.get("type").is_some_and(Value::is_string) =>
        {
            message::parts(block).pop()
        }
        Value::Object(fields) if fields.len() == 1 => fields.get("text")?.as_str().map(MessagePart::Text),
        _ => None,
    }
}

fn is_textual(value: Option<&Value>) -> bool {
    value.is_none_or(|value| value.is_string() || value.is_null())
}

fn is_filled(value: Option<&Value>) -> bool {
    value.and_then(Value::as_str).is_some_and(|text| !text.is_empty())
}

/// Provider whose reasoning this is, if it is sealed in that provider's own form.
fn owner(place: BlockPath, block: &Value) -> Option<Provider> {
    match block.get("type")?.as_str()? {
        "thinking" if is_filled(block.get("signature")) && block.get("thinking")?.is_string() => {
            Some(Provider::Anthropic)
        }
        "redacted_thinking" if is_filled(block.get("data")) => Some(Provider::Anthropic),
        "reasoning" if place == BlockPath::Message && is_filled(block.get("encrypted_content")) => {
            Some(Provider::OpenaiResponses)
        }
        _ => None,
    }
}

/// Text of a Responses reasoning item.
fn summary(item: &Value) -> String {
    let lists = ["summary", "content"].iter().filter_map(|key| item.get(key)?.as_array()).flatten();
    let texts: Vec<&str> = lists.filter_map(|part| part.get("text")?.as_str()).collect();
    texts.join("\n\n")
}

/// Whether this is an item of a Responses list that no result of ours can answer.
fn is_hosted_item(item: &Value) -> bool {
    let kind = item.get("type").and_then(Value::as_str).unwrap_or_default();
    item.get("role").is_none() && (RESPONSES_HOSTED.contains(&kind) || message::is_hosted_call(item))
}

fn is_hosted_by_anthropic(kind: &str) -> bool {
    matches!(kind, "server_tool_use" | "mcp_tool_use" | "container_upload" | "search_result")
        || kind.ends_with("_tool_result")
}

fn arguments<'a>(own: &'a Value, raw: &'a str) -> Arguments<'a> {
    let keys = ["arguments", "input", "args"];
    let (mut inner, mut text) = (own, raw);
    for wrapper in ["function", "custom", "functionCall", "function_call"] {
        if let (Some(value), Some(slice)) = (own.get(wrapper), field(raw, wrapper)) {
            (inner, text) = (value, slice);
            break;
        }
    }
    let found = fields(text).into_iter().find(|(key, _)| keys.contains(&&**key));
    match found {
        Some((key, raw)) => match inner.get(&*key) {
            Some(Value::String(text)) => Arguments::Text(text),
            Some(Value::Null) => Arguments::Text(""),
            _ => Arguments::Json(raw),
        },
        None => Arguments::Text(""),
    }
}

/// A message in Gemini's `parts` as blocks that the lens knows, one for each part; `None` if it is not one.
pub fn view_of_gemini(own: &Value, text: &str) -> Option<Value> {
    let parts = own.get("parts")?.as_array().filter(|_| own.get("content").is_none())?;
    let raws = field(text, "parts").map(elements).unwrap_or_default();
    let blocks: Vec<Value> = parts.iter().zip(raws).map(|(part, raw)| block_of_gemini(part, raw)).collect();
    let calls = blocks.iter().any(|block| block["type"] == "tool_call");
    let role = match own.get("role") {
        Some(Value::String(role)) if role == "function" => json!("user"),
        Some(role) => role.clone(),
        None if calls => json!("assistant"),
        None => json!("user"),
    };
    Some(json!({"role": role, "content": blocks, "name": own.get("name")}))
}

fn block_of_gemini(part: &Value, raw: &str) -> Value {
    let either =
        |camel: &str, snake: &str| part.get(camel).or_else(|| part.get(snake)).filter(|v| v.is_object());
    if let Some(call) = either("functionCall", "function_call") {
        let mut block = json!({"type": "tool_call", "name": call.get("name"), "arguments": call.get("args")});
        block["id"] = call.get("id").cloned().unwrap_or_default();
        return block;
    }
    if let Some(answer) = either("functionResponse", "function_response") {
        let response = answer.get("response").cloned().unwrap_or_default();
        let slice = ["functionResponse", "function_response"].iter().find_map(|key| field(raw, key));
        let slice = slice.and_then(|slice| field(slice, "response")).unwrap_or("null");
        let only = |key: &str| {
            response.as_object().filter(|fields| fields.len() == 1)?.get(key)?.as_str().map(str::to_string)
        };
        let error = only("error");
        let content = error.clone().or_else(|| only("output")).or_else(|| only("result"));
        return json!({
            "type": "tool_result", "id": answer.get("id"), "name": answer.get("name"), "is_error": error.is_some(),
            "content": content.unwrap_or_else(|| slice.to_string()),
        });
    }
    if let Some(data) = either("inlineData", "inline_data").or_else(|| either("fileData", "file_data")) {
        let mime = data.get("mimeType").or_else(|| data.get("mime_type")).and_then(Value::as_str);
        let kind = mime.and_then(|mime| mime.split('/').next());
        let kind = kind.filter(|kind| ["image", "audio", "video"].contains(kind)).unwrap_or("file");
        return json!({
            "type": kind, "mime_type": mime, "data": data.get("data"), "name": data.get("displayName"),
            "url": data.get("fileUri").or_else(|| data.get("file_uri")), "asset_id": part.get("asset_id"),
        });
    }
    match part.get("text").and_then(Value::as_str) {
        Some(text) if part.get("thought") == Some(&Value::Bool(true)) => {
            let seal = part.get("thoughtSignature").or_else(|| part.get("thought_signature"));
            json!({"type": "reasoning", "text": text, "thoughtSignature": seal})
        }
        Some(text) => json!({"type": "text", "text": text}),
        None => match part.get("asset_id") {
            Some(id) => json!({"type": "file", "asset_id": id}),
            None => json!({"type": "part"}),
        },
    }
}
