//! Reading messages of every shape.
//!
//! A message is stored as it came (OpenAI chat, Anthropic blocks, Responses items, Gemini parts, our own
//! blocks). Nothing here changes it; [`parts`] lists its content and [`render`] formats it for people.

use crate::Error;
use crate::error::code;
use crate::event::Visibility;
use crate::json;
use crate::turn::Role;
use serde::de::IgnoredAny;
use serde_json::Value;
use std::borrow::Cow;

/// One part of a message.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum MessagePart<'a> {
    /// Text.
    Text(&'a str),
    /// Reasoning; signed if the provider can detect changes to it.
    Thinking {
        /// Text of the reasoning, if the provider showed it.
        text: Option<&'a str>,
        /// Whether it is signed or encrypted.
        signed: bool,
    },
    /// A tool call.
    Call {
        /// Id that pairs it with its result.
        id: Option<&'a str>,
        /// Name of the tool.
        name: &'a str,
        /// Arguments: an object, or JSON in a string.
        arguments: Option<&'a Value>,
    },
    /// A tool result.
    Result {
        /// Id of the call that it answers.
        id: Option<&'a str>,
        /// Name of the tool, where the shape has it.
        name: Option<&'a str>,
        /// Content: a string, blocks or any JSON.
        content: Option<&'a Value>,
    },
    /// Content other than text.
    Media {
        /// `image`, `audio`, `file`, …
        kind: &'a str,
        /// Name given in the block.
        label: Option<&'a str>,
        /// Id of the asset that holds its bytes, if any.
        asset_id: Option<&'a str>,
    },
    /// Any other part, shown by its type.
    Other(&'a str),
}

/// A field of an object. Messages have few fields, and comparing those is faster than the hash that a map's own
/// lookup computes. Inlined, so that the name's length is known where it is compared.
#[inline(always)]
pub fn field<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    const FEW: usize = 16;
    let fields = value.as_object()?;
    if fields.len() > FEW {
        return fields.get(name);
    }
    fields.iter().find(|(key, _)| key.as_str() == name).map(|(_, value)| value)
}

/// Several fields of an object, found in one pass.
#[inline(always)]
pub(crate) fn fields<'a, const N: usize>(value: &'a Value, names: [&str; N]) -> [Option<&'a Value>; N] {
    let mut found = [None; N];
    for (key, value) in value.as_object().into_iter().flatten() {
        if let Some(n) = names.iter().position(|name| key.as_str() == *name) {
            found[n] = Some(value);
        }
    }
    found
}

/// Beginning of most messages.
const ROLE_IN_FRONT: &str = "{\"role\":\"";

/// The role of a message of any shape.
pub fn role(message: &Value) -> Result<Role, Error> {
    let [role, kind] = fields(message, ["role", "type"]);
    role_of(role, kind)
}

/// Like [`role`], given the message's `role` and `type` fields.
pub(crate) fn role_of(role: Option<&Value>, kind: Option<&Value>) -> Result<Role, Error> {
    if let Some(role) = role {
        return role.as_str().and_then(role_named).ok_or_else(|| {
            Error::invalid(
                "message.role_unknown",
                format!("role {} is not user, assistant, system or tool", crate::id::clip(&role.to_string())),
            )
        });
    }
    match kind.and_then(Value::as_str) {
        Some("reasoning") => Ok(Role::Assistant),
        Some(kind) if kind.ends_with("_output") => Ok(Role::Tool),
        Some(kind) if kind.ends_with("_call") => Ok(Role::Assistant),
        _ => Err(Error::invalid(
            code::ROLE_MISSING,
            "the message has no role; give user, assistant, system or tool",
        )),
    }
}

fn role_named(name: &str) -> Option<Role> {
    match name {
        "user" => Some(Role::User),
        "assistant" | "model" => Some(Role::Assistant),
        "system" | "developer" => Some(Role::System),
        "tool" | "tool_result" | "function" => Some(Role::Tool),
        _ => None,
    }
}

/// The role of a message that begins with it, as most do, without parsing the message.
pub fn role_in_front(message: &str) -> Option<Role> {
    let (name, _) = message.strip_prefix(ROLE_IN_FRONT)?.split_once('"')?;
    role_named(name)
}

/// Adds the role of the turn to a message without one. `None` if the message has a role or needs none, like an item of a
/// provider that has a type.
pub fn in_role(message: &str, role: Role) -> Option<String> {
    // Most begin so, and are not looked into.
    if message.starts_with(ROLE_IN_FRONT) {
        return None;
    }
    let rest = message.trim_start().strip_prefix('{')?;
    let fields = json::fields(message);
    let named = |name: &str| fields.iter().find(|(key, _)| key == name).map(|(_, value)| *value);
    if named("type").is_some_and(|kind| kind.starts_with('"') && kind != "\"message\"") {
        return None;
    }
    match named("role") {
        None => {
            let comma = if fields.is_empty() { "" } else { "," };
            Some(format!("{{\"role\":\"{role}\"{comma}{rest}"))
        }
        Some("null") => {
            let others = fields.iter().filter(|(key, _)| key != "role");
            let others = others.map(|(key, value)| (&**key, value.to_string()));
            let own = ("role", json::quote(role.as_str()));
            Some(json::object(std::iter::once(own).chain(others)))
        }
        Some(_) => None,
    }
}

/// The parts of a message, in order.
pub fn parts(message: &Value) -> Vec<MessagePart<'_>> {
    let mut parts = Vec::new();
    if field(message, "role").is_none() && field(message, "type").is_some() {
        let item = block(message);
        let summary = field(message, "summary").and_then(Value::as_array).into_iter().flatten();
        if let MessagePart::Thinking { text: None, signed } = item {
            parts.extend(
                summary
                    .filter_map(|part| text(part, &["text"]))
                    .map(|text| MessagePart::Thinking { text: Some(text), signed }),
            );
        }
        if parts.is_empty() {
            parts.push(item);
        }
        return parts;
    }
    match field(message, "content") {
        Some(Value::String(text)) => parts.push(MessagePart::Text(text)),
        Some(Value::Array(blocks)) => parts.extend(blocks.iter().map(block)),
        Some(_) => {}
        None => {
            let gemini = field(message, "parts").and_then(Value::as_array);
            parts.extend(gemini.into_iter().flatten().map(gemini_part));
        }
    }
    for call in field(message, "tool_calls").and_then(Value::as_array).into_iter().flatten() {
        parts.push(tool_call(call));
    }
    for result in field(message, "tool_results").and_then(Value::as_array).into_iter().flatten() {
        parts.push(tool_result(result));
    }
    parts
}

/// The visibility of a block: as written, else `internal` for tool results and `public` for everything else.
pub fn visibility(block: &Value) -> Visibility {
    match field(block, "visibility").and_then(Value::as_str).and_then(|word| word.parse().ok()) {
        Some(visibility) => visibility,
        None if matches!(self::block(block), MessagePart::Result { .. }) => Visibility::Internal,
        None => Visibility::Public,
    }
}

/// The part that a content block or a Responses item represents.
pub fn block(block: &Value) -> MessagePart<'_> {
    if let Value::String(text) = block {
        return MessagePart::Text(text);
    }
    let Some(kind) = field(block, "type").and_then(Value::as_str) else {
        return match text(block, &["text"]) {
            Some(text) => MessagePart::Text(text),
            None => MessagePart::Other("block"),
        };
    };
    match kind {
        "text" | "output_text" | "input_text" => {
            MessagePart::Text(text(block, &["text"]).unwrap_or_default())
        }
        "thinking" | "reasoning" | "redacted_thinking" | "encrypted_content" => {
            MessagePart::Thinking { text: text(block, &["thinking", "text"]), signed: is_signed(kind, block) }
        }
        // Kimi's.
        "think" if field(block, "think").is_some_and(Value::is_string) => {
            MessagePart::Thinking { text: text(block, &["think"]), signed: is_signed(kind, block) }
        }
        "tool_use" | "tool_call" => tool_call(block),
        "tool_result" => tool_result(block),
        kind if kind.ends_with("_call_output") => tool_result(block),
        "tool_search_output" => {
            MessagePart::Result { id: text(block, &["call_id"]), name: None, content: field(block, "tools") }
        }
        kind if kind.ends_with("_call") => tool_call(block),
        "image" | "input_image" | "image_url" => media("image", block),
        "audio" | "input_audio" => media("audio", block),
        "file" | "input_file" => media("file", block),
        "document" | "attachment" | "video" => media(kind, block),
        other => MessagePart::Other(other),
    }
}

/// The part that a Gemini part represents, in either spelling of its fields.
pub fn gemini_part(part: &Value) -> MessagePart<'_> {
    let any = |names: &[&str]| names.iter().find_map(|name| field(part, name));
    if let Some(call) = any(&["functionCall", "function_call"]) {
        return tool_call(call);
    }
    if let Some(answer) = any(&["functionResponse", "function_response"]) {
        let (id, name) = (text(answer, &["id"]), text(answer, &["name"]));
        return MessagePart::Result { id, name, content: field(answer, "response") };
    }
    let asset_id = text(part, &["asset_id"]);
    if let Some(data) = any(&["inlineData", "inline_data", "fileData", "file_data"]) {
        let mime = text(data, &["mimeType", "mime_type"]).unwrap_or_default();
        let kind = ["image", "audio", "video"].into_iter().find(|kind| mime.starts_with(kind));
        let label = text(data, &["displayName", "display_name"]);
        return MessagePart::Media { kind: kind.unwrap_or("file"), label, asset_id };
    }
    match (text(part, &["text"]), field(part, "thought") == Some(&Value::Bool(true))) {
        (text, true) => MessagePart::Thinking { text, signed: is_signed("thinking", part) },
        (Some(text), false) => MessagePart::Text(text),
        (None, false) if asset_id.is_some() => MessagePart::Media { kind: "file", label: None, asset_id },
        (None, false) => MessagePart::Other("part"),
    }
}

/// Whether a block is signed reasoning: changing or dropping it makes the provider reject the conversation.
pub fn is_signed(kind: &str, block: &Value) -> bool {
    const SEALS: [&str; 4] = ["signature", "encrypted_content", "thinking_signature", "thoughtSignature"];
    matches!(kind, "redacted_thinking" | "encrypted_content") || SEALS.iter().any(|seal| has(block, seal))
}

/// Whether a message contains signed reasoning in any of its parts.
pub fn carries_signature(message: &Value) -> bool {
    let Value::Object(fields) = message else { return false };
    let (mut is_assistant, mut has_signature, mut has_sealed_part) = (false, false, false);
    for (key, value) in fields {
        match key.as_str() {
            "role" => is_assistant = value == "assistant",
            "signature" => has_signature = is_set(value),
            "content" | "tool_calls" | "reasoning_details" | "thinking_blocks" => {
                has_sealed_part |= value.as_array().into_iter().flatten().any(is_sealed);
            }
            _ => {}
        }
    }
    has_sealed_part || is_assistant && has_signature || is_sealed(message)
}

/// Whether a part, or a message that is a part itself, is signed reasoning. Visits each field once.
fn is_sealed(part: &Value) -> bool {
    let Value::Object(fields) = part else { return false };
    let (mut kind, mut has_signature, mut has_seal) = ("", false, false);
    for (key, value) in fields {
        match key.as_str() {
            "type" => kind = value.as_str().unwrap_or_default(),
            "signature" => has_signature = is_set(value),
            // Elsewhere a `signature` may be anything, but these names are unambiguous.
            "encrypted_content" | "thinking_signature" | "thoughtSignature" => has_seal |= is_set(value),
            _ => {}
        }
    }
    match kind {
        "redacted_thinking" | "encrypted_content" => true,
        "thinking" | "reasoning" => has_signature || has_seal,
        kind => has_seal || has_signature && kind.starts_with("reasoning."),
    }
}

fn has(block: &Value, seal: &str) -> bool {
    field(block, seal).is_some_and(is_set)
}

fn is_set(value: &Value) -> bool {
    !value.is_null() && value != ""
}

/// Whether this is a call that the provider ran itself, such as a web search: a Responses item that no result will name.
pub fn is_hosted_call(call: &Value) -> bool {
    const ANSWERED: [&str; 7] = [
        "function_call",
        "custom_tool_call",
        "tool_call",
        "local_shell_call",
        "shell_call",
        "computer_call",
        "apply_patch_call",
    ];
    let kind = field(call, "type").and_then(Value::as_str).unwrap_or_default();
    kind.ends_with("_call") && !ANSWERED.contains(&kind) && text(call, &["call_id"]).is_none()
}

pub(crate) fn tool_call(call: &Value) -> MessagePart<'_> {
    let [function, outer_name, kind, call_id, id, tool_call_id] =
        fields(call, ["function", "name", "type", "call_id", "id", "tool_call_id"]);
    let [name, tool_name, arguments, input, args] =
        fields(function.unwrap_or(call), ["name", "tool_name", "arguments", "input", "args"]);
    let name = first_text([name, tool_name]).or_else(|| first_text([outer_name, kind])).unwrap_or("tool");
    MessagePart::Call {
        id: first_text([call_id, id, tool_call_id]),
        name,
        arguments: arguments.or(input).or(args),
    }
}

pub(crate) fn tool_result(result: &Value) -> MessagePart<'_> {
    result_of(result, true)
}

/// A message with the role `tool`, which is a tool result as a whole. Its `id` is its own, not that of the
/// call.
pub(crate) fn tool_message(message: &Value) -> MessagePart<'_> {
    result_of(message, false)
}

fn result_of(result: &Value, is_part: bool) -> MessagePart<'_> {
    let [tool_use_id, tool_call_id, call_id, id, name, tool_name, content, output, body] = fields(
        result,
        ["tool_use_id", "tool_call_id", "call_id", "id", "name", "tool_name", "content", "output", "result"],
    );
    MessagePart::Result {
        id: match is_part {
            true => first_text([tool_use_id, tool_call_id, call_id, id]),
            false => first_text([tool_call_id, tool_use_id, call_id]),
        },
        name: first_text([name, tool_name]),
        content: content.or(output).or(body).map(unwrapped),
    }
}

/// Whether this is the result of an MCP server as a whole: content blocks, and fields that describe them.
pub fn is_mcp_result(value: &Value) -> bool {
    const FIELDS: [&str; 4] = ["content", "isError", "structuredContent", "_meta"];
    let is_block = |block: &Value| field(block, "type").is_some_and(Value::is_string);
    let Value::Object(fields) = value else { return false };
    let Some(Value::Array(blocks)) = fields.get("content") else { return false };
    // Without blocks, the structured content is all there is.
    let has_content = !blocks.is_empty() || !fields.contains_key("structuredContent");
    has_content && blocks.iter().all(is_block) && fields.keys().all(|name| FIELDS.contains(&name.as_str()))
}

/// The content blocks of an MCP server's result; any other content as it is.
fn unwrapped(content: &Value) -> &Value {
    match field(content, "content") {
        Some(blocks) if is_mcp_result(content) => blocks,
        _ => content,
    }
}

/// The arguments of a call, which most providers write as JSON in a string.
pub fn arguments(given: &Value) -> Cow<'_, Value> {
    match given.as_str().and_then(json_in) {
        Some(json) => Cow::Owned(json),
        None => Cow::Borrowed(given),
    }
}

/// The JSON in a text of a tool result, `None` if it holds none. Codex up to 0.4x wraps the output of a command in such
/// JSON (`{"output": "…", "metadata": {…}}`): that is its output alone.
pub fn json_output(text: &str) -> Option<Value> {
    let mut json = json_in(text)?;
    match json.as_object_mut() {
        Some(fields)
            if fields.get("output").is_some_and(Value::is_string)
                && fields.keys().all(|name| matches!(name.as_str(), "output" | "metadata")) =>
        {
            fields.remove("output")
        }
        _ => Some(json),
    }
}

/// JSON within other text, such as after the header of a command, as an array of the pieces in order. JSON without escapes,
/// and JSON that is part of a word or of code (`f({"a":"b"})`), stays text.
pub fn json_within(text: &str) -> Option<Value> {
    /// Each may be read to the end of the text.
    const FAILURES_MAX: usize = 32;
    if let Some(json) = json_output(text) {
        return Some(json);
    }
    let last = text.rfind('\\')?;
    let (mut pieces, mut read, mut copied, mut failures) = (Vec::new(), 0, 0, 0);
    for (start, _) in text[..last].match_indices(['{', '[']) {
        if start < read || failures == FAILURES_MAX || !begins_json(text, start) {
            continue;
        }
        let Some(piece) = json_at(&text[start..]) else {
            failures += 1;
            continue;
        };
        read = start + piece.len();
        if let Some(json) = piece.contains('\\').then(|| json_output(piece)).flatten() {
            pieces.extend([Value::from(&text[copied..start]), json]);
            copied = read;
        }
    }
    pieces.push(Value::from(&text[copied..]));
    (pieces.len() > 1).then_some(Value::Array(pieces))
}

/// Whether a bracket is not part of a word or of code, and begins an object, or a list of objects or texts.
fn begins_json(text: &str, at: usize) -> bool {
    let (before, behind) = (&text[..at], text[at + 1..].trim_start());
    let within: &[char] = if text[at..].starts_with('{') { &['"'] } else { &['"', '{', '['] };
    (before.is_empty() || before.ends_with(char::is_whitespace)) && behind.starts_with(within)
}

/// The object or array with which a text begins, if nothing but a space follows it at once.
fn json_at(text: &str) -> Option<&str> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
    values.next()?.ok()?;
    let (json, behind) = text.split_at(values.byte_offset());
    (behind.is_empty() || behind.starts_with(char::is_whitespace)).then_some(json)
}

/// The object or array that a text holds.
fn json_in(text: &str) -> Option<Value> {
    let may = text.trim_start().starts_with(['{', '[']) && crate::json::check(text).is_ok();
    may.then(|| serde_json::from_str(text).ok()).flatten()
}

fn media<'a>(kind: &'a str, block: &'a Value) -> MessagePart<'a> {
    let inner = field(block, "file").or_else(|| field(block, "source")).unwrap_or(block);
    const NAMES: [&str; 6] = ["name", "title", "filename", "file_name", "path", "label"];
    let label = text(block, &NAMES).or_else(|| text(inner, &NAMES));
    MessagePart::Media { kind, label, asset_id: text(block, &["asset_id"]) }
}

/// The first non-empty text.
fn first_text<const N: usize>(found: [Option<&Value>; N]) -> Option<&str> {
    found.into_iter().find_map(|value| value?.as_str()).filter(|text| !text.is_empty())
}

fn text<'a>(value: &'a Value, keys: &[&str]) -> Option<&'a str> {
    keys.iter().find_map(|key| field(value, key)?.as_str()).filter(|text| !text.is_empty())
}

/// Formats a message for people. `asset_label` returns the name of an asset whose block has none.
pub fn render(message: &Value, asset_label: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::new();
    let mut after_text = false;
    for part in parts(message) {
        let (shown, is_text) = match part {
            MessagePart::Text(text) => (text.to_string(), true),
            MessagePart::Thinking { .. } => continue,
            MessagePart::Call { name, .. } => (format!("<tool_call:{name}>"), false),
            MessagePart::Result { name: Some(name), .. } => (format!("<tool_result:{name}>"), false),
            MessagePart::Result { name: None, .. } => ("<tool_result>".to_string(), false),
            MessagePart::Media { kind, label, asset_id } => {
                let label = label
                    .map(str::to_string)
                    .or_else(|| asset_id.map(|id| asset_label(id).unwrap_or_else(|| id.to_string())));
                (label.map_or(format!("<{kind}>"), |label| format!("<{kind}:{label}>")), false)
            }
            MessagePart::Other(kind) => (format!("<{kind}>"), false),
        };
        let joins_text = after_text && is_text;
        if !joins_text && !out.is_empty() && !shown.is_empty() {
            out.push(' ');
        }
        out.push_str(&shown);
        after_text = is_text;
    }
    out
}

/// The text in a block that is no text itself: a search result, a plain document, the output of a tool that the provider
/// ran. Empty if it has none that people can read.
pub fn text_within(block: &Value) -> String {
    const NAMES: [&str; 12] = [
        "title", "url", "text", "source", "content", "output", "outputs", "result", "results", "stdout",
        "stderr", "error",
    ];
    fn walk(value: &Value, out: &mut Vec<String>) {
        match value {
            Value::String(text) if !text.trim().is_empty() => out.push(text.trim_end().to_string()),
            Value::Array(items) => items.iter().for_each(|item| walk(item, out)),
            Value::Object(_) => {
                NAMES.iter().filter_map(|name| field(value, name)).for_each(|inner| walk(inner, out))
            }
            _ => {}
        }
    }
    let mut out = Vec::new();
    match field(block, "source") {
        Some(source @ Value::Object(_)) => match text(source, &["type"]) {
            Some("text") => walk(field(source, "data").unwrap_or(&Value::Null), &mut out),
            Some("content") => walk(field(source, "content").unwrap_or(&Value::Null), &mut out),
            _ => {}
        },
        // The name of the block, and what it was found in, are not what it says.
        _ => {
            let said =
                NAMES[2..].iter().filter(|name| **name != "source").filter_map(|name| field(block, name));
            said.for_each(|said| walk(said, &mut out));
        }
    }
    out.join("\n")
}

/// A block of a type that has no part of its own, in words: its type, its name and the text in it. `None` if there is no
/// text.
pub fn in_words(block: &Value) -> Option<String> {
    if matches!(block, Value::Bool(_) | Value::Number(_)) {
        return Some(block.to_string());
    }
    let said = text_within(block);
    if said.is_empty() {
        return None;
    }
    let label = text(block, &["name", "title"]).map(|label| format!(":{label}")).unwrap_or_default();
    let mut lines: Vec<String> =
        text(block, &["type"]).map(|kind| format!("<{kind}{label}>")).into_iter().collect();
    lines.extend(text(block, &["source", "arguments"]).filter(|text| *text != "{}").map(str::to_string));
    lines.push(said);
    Some(lines.join("\n"))
}

/// Ids of the assets that a message refers to, at any depth.
pub fn asset_ids(message: &Value) -> Vec<String> {
    fn walk(key: &str, value: &Value, out: &mut Vec<String>) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| walk("", item, out)),
            Value::Object(fields) => fields.iter().for_each(|(key, value)| walk(key, value, out)),
            Value::String(text) => {
                let id = if key == "asset_id" {
                    Some(text.as_str())
                } else {
                    crate::asset::reference(text).map(|(_, id)| id)
                };
                if let Some(id) = id.filter(|id| !out.iter().any(|known| known == id)) {
                    out.push(id.to_string());
                }
            }
            _ => {}
        }
    }
    let mut out = Vec::new();
    walk("", message, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shown(message: Value) -> String {
        render(&message, |id| (id == "asset_1").then(|| "screenshot.png".to_string()))
    }

    #[test]
    fn every_shape_renders_for_people() {
        for (message, text) in [
            (json!({"role":"user","content":"hi"}), "hi"),
            (
                json!({"role":"user","content":[{"type":"image","asset_id":"asset_1","visibility":"public"},
                    {"type":"text","text":"Review this screenshot","visibility":"public"}]}),
                "<image:screenshot.png> Review this screenshot",
            ),
            (
                json!({"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},
                    {"type":"text","text":"a"},{"type":"text","text":"b"},{"type":"tool_use","id":"1","name":"ls","input":{}}]}),
                "ab <tool_call:ls>",
            ),
            (
                json!({"role":"assistant","content":[{"type":"think","think":"hm","encrypted":null},{"type":"text","text":"a"},
                    {"type":"think"}]}),
                "a <think>",
            ),
            (
                json!({"role":"assistant","content":null,"tool_calls":[{"id":"1","function":{"name":"grep","arguments":"{}"}}]}),
                "<tool_call:grep>",
            ),
            (
                json!({"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"x"}]}),
                "<tool_result>",
            ),
            (json!({"role":"tool","tool_call_id":"1","content":"42"}), "42"),
            (
                json!({"type":"function_call","call_id":"c","name":"read","arguments":"{}"}),
                "<tool_call:read>",
            ),
            (json!({"type":"function_call_output","call_id":"c","output":"ok"}), "<tool_result>"),
            (json!({"type":"reasoning","encrypted_content":"zzz","summary":[]}), ""),
            (json!({"type":"reasoning","summary":[{"type":"summary_text","text":"hm"}]}), ""),
            (json!({"role":"user","content":[{"type":"input_file","filename":"a.pdf"}]}), "<file:a.pdf>"),
            (json!({"role":"user","content":[{"type":"image","asset_id":"asset_9"}]}), "<image:asset_9>"),
            (json!({"role":"user","content":[{"type":"hologram"}, {"type":"video"}]}), "<hologram> <video>"),
            (
                json!({"role":"model","parts":[{"text":"hm","thought":true},{"text":"I look."},
                    {"functionCall":{"name":"ls","args":{}}}]}),
                "I look. <tool_call:ls>",
            ),
            (
                json!({"role":"user","parts":[{"functionResponse":{"name":"ls","response":{"output":"a"}}},
                    {"inlineData":{"mimeType":"image/png","data":""}},{"fileData":{"fileUri":"gs://a/b"}}]}),
                "<tool_result:ls> <image> <file>",
            ),
        ] {
            assert_eq!(shown(message.clone()), text, "{message}");
        }
    }

    #[test]
    fn a_block_without_a_part_of_its_own_has_its_text() {
        let found = json!({"type":"search_result","source":"https://a.example","title":"Notes",
            "content":[{"type":"text","text":"The wombat digs."}]});
        let document = json!({"type":"document","title":"Plan","source":{"type":"content","content":[
            {"type":"text","text":"One."},{"type":"image","source":{"type":"base64","data":"AAAA"}},{"type":"text","text":"Two."}]}});
        let searched = json!({"type":"web_search_tool_result","tool_use_id":"s","content":[
            {"type":"web_search_result","title":"Rust","url":"https://r.example","encrypted_content":"zzz"}]});
        let called = json!({"type":"mcp_call","name":"f","arguments":"{\"a\":1}","output":"42"});
        for (block, words) in [
            (found, Some("<search_result:Notes>\nhttps://a.example\nThe wombat digs.")),
            (document, Some("<document:Plan>\nOne.\nTwo.")),
            (searched, Some("<web_search_tool_result>\nRust\nhttps://r.example")),
            (called, Some("<mcp_call:f>\n{\"a\":1}\n42")),
            (json!({"text":"x","n":1}), Some("x")),
            (json!(7), Some("7")),
            (json!({"type":"hologram"}), None),
            (json!({"type":"server_tool_use","id":"s","name":"web_search","input":{"query":"q"}}), None),
            (json!({"type":"document","source":{"type":"base64","data":"JVBERi0"}}), None),
            (json!(null), None),
        ] {
            assert_eq!(in_words(&block).as_deref(), words, "{block}");
        }
    }

    #[test]
    fn json_in_a_string_is_read_as_json() {
        for (text, read) in [
            ("plain", None),
            ("42", None),
            ("[1, 2", None),
            (" {\"a\":\"x\\ny\"}", Some(json!({"a": "x\ny"}))),
            ("[\"a\"]", Some(json!(["a"]))),
            ("{\"output\":\"a\\nb\",\"metadata\":{\"exit_code\":0}}", Some(json!("a\nb"))),
            ("{\"output\":\"a\",\"next\":2}", Some(json!({"output": "a", "next": 2}))),
        ] {
            assert_eq!(json_output(text), read, "{text}");
        }
    }

    /// Regression: only a text that was JSON as a whole was read so, and behind a header `\n` became the first letter of a word.
    #[test]
    fn json_behind_a_header_is_read_as_json_and_code_as_text() {
        for (text, read) in [
            (
                "Wall time: 0.1 s\nOutput:\n{\"text\":\"a\\nb\"}",
                Some(json!(["Wall time: 0.1 s\nOutput:\n", {"text": "a\nb"}, ""])),
            ),
            ("{\"text\":\"a\\nb\"}", Some(json!({"text": "a\nb"}))),
            (
                "1: {\"a\":\"\\t\"}\n2: {\"output\":\"\\n\"} end \\n",
                Some(json!(["1: ", {"a": "\t"}, "\n2: ", "\n", " end \\n"])),
            ),
            ("x [\"C:\\\\new\"]\ny", Some(json!(["x ", ["C:\\new"], "\ny"]))),
            ("Output: {\"text\":\"plain\"}", None),
            ("in C:\\new\\table.rs, {\"a\": 1} and [x]", None),
            (r#"{"a": "^\d+$"} or [\n] or ["\w"]"#, None),
            (r#"print(["a\n"]); x["a\n"] = {"a\n"}; y = {"a":"\n"};"#, None),
            (r#"cut: {"a":"b\nc","#, None),
        ] {
            assert_eq!(json_within(text), read, "{text}");
        }
    }

    #[test]
    fn the_result_of_an_mcp_server_is_its_content() {
        let blocks = json!([{"type": "text", "text": "42"}]);
        let content = |content: Value| {
            let message = json!({"role": "tool", "content": [{"type": "tool_result", "content": content}]});
            match parts(&message)[..] {
                [MessagePart::Result { content: Some(content), .. }] => content.clone(),
                _ => panic!("{message}"),
            }
        };
        for wrapped in [
            json!({"content": blocks}),
            json!({"content": blocks, "isError": true}),
            json!({"content": blocks, "structuredContent": {"n": 42}, "_meta": {}}),
        ] {
            assert_eq!(content(wrapped), blocks);
        }
        assert_eq!(content(json!({"content": []})), json!([]));
        for other in [
            json!({"content": blocks, "rows": 3}),
            json!({"content": [{"id": 7}]}),
            json!({"content": "42"}),
            json!({"content": [], "structuredContent": {"n": 42}}),
            json!({"n": 42}),
            blocks.clone(),
        ] {
            assert_eq!(content(other.clone()), other);
        }
    }

    #[test]
    fn the_summary_of_a_reasoning_item_is_its_text() {
        let item = json!({"type":"reasoning","encrypted_content":"zzz","content":null,
            "summary":[{"type":"summary_text","text":"first"},{"type":"summary_text","text":"then"}]});
        let thought = |text| MessagePart::Thinking { text: Some(text), signed: true };
        assert_eq!(parts(&item), [thought("first"), thought("then")]);
    }

    #[test]
    fn roles_of_every_shape() {
        for (message, expected) in [
            (json!({"role":"developer"}), Role::System),
            (json!({"role":"model"}), Role::Assistant),
            (json!({"role":"tool_result"}), Role::Tool),
            (json!({"type":"function_call"}), Role::Assistant),
            (json!({"type":"function_call_output"}), Role::Tool),
            (json!({"type":"reasoning"}), Role::Assistant),
        ] {
            assert_eq!(role(&message).unwrap(), expected, "{message}");
        }
        for (message, named) in [
            (r#"{"content":"x"}"#, Some(r#"{"role":"user","content":"x"}"#)),
            (r#" { "content": 1.50 }"#, Some(r#"{"role":"user", "content": 1.50 }"#)),
            ("{}", Some(r#"{"role":"user"}"#)),
            (r#"{"content":"x","role":null}"#, Some(r#"{"role":"user","content":"x"}"#)),
            (r#"{"type":"message","content":[]}"#, Some(r#"{"role":"user","type":"message","content":[]}"#)),
            (r#"{"parts":[]}"#, Some(r#"{"role":"user","parts":[]}"#)),
            (r#"{ "role": "model", "parts": [] }"#, None),
            (r#"{"type":"mcp_list_tools","tools":[]}"#, None),
        ] {
            assert_eq!(in_role(message, Role::User).as_deref(), named, "{message}");
        }
        assert!(role(&json!({"role":"king"})).unwrap_err().text().contains("\"king\" is not user"));
        assert!(role(&json!({"content":"x"})).unwrap_err().text().contains("has no role"));
    }

    #[test]
    fn a_tool_result_is_internal_unless_it_says_otherwise() {
        assert_eq!(visibility(&json!({"type":"tool_result"})), Visibility::Internal);
        assert_eq!(visibility(&json!({"type":"text"})), Visibility::Public);
        assert_eq!(visibility(&json!({"type":"text","visibility":"private"})), Visibility::Private);
    }
}
