//! Detects the format of a file by its content.

use super::line::Line;
use everturn_core::id::clip;
use everturn_core::{Error, json};
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;
use std::fmt;

/// Bytes of a file that are looked at.
pub const HEAD_BYTES: usize = 64 * 1024;

/// Lines that are looked at before a file is given up.
const LINES_MAX: usize = 50;

/// Fields that are named of a file of no known format.
const FIELDS_MAX: usize = 8;

/// Fields of a request that hold messages.
pub const LISTS: [&str; 3] = ["messages", "input", "contents"];

/// Format of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AgentFormat {
    /// Claude Code: `~/.claude/projects/<project>/<session>.jsonl`, and `{"loglines": […]}` of Claude Code on the web.
    ClaudeCode,
    /// Codex: `~/.codex/sessions/Y/M/D/rollout-….jsonl[.zst]`.
    Codex,
    /// Gemini CLI: `~/.gemini/tmp/<hash>/chats/session-*.json[l]`.
    Gemini,
    /// pi: `~/.pi/agent/sessions/<folder>/<session>.jsonl`.
    Pi,
    /// Droid: `~/.factory/sessions/<folder>/<session>.jsonl`.
    Droid,
    /// Qwen Code: `~/.qwen/projects/<folder>/chats/<session>.jsonl`.
    Qwen,
    /// Copilot CLI: `~/.copilot/session-state/<session>/events.jsonl`.
    Copilot,
    /// Kimi CLI: `~/.kimi/sessions/<folder>/<session>/context.jsonl`.
    Kimi,
    /// Kimi Code: `~/.kimi-code/sessions/<folder>/<session>/agents/<agent>/wire.jsonl`.
    KimiCode,
    /// Cursor's agent: `~/.cursor/projects/<folder>/agent-transcripts/<session>/<session>.jsonl`.
    Cursor,
    /// opencode: output of `opencode export`.
    Opencode,
    /// A list of messages for OpenAI's chat completions.
    OpenaiChat,
    /// A list of items of OpenAI's Responses.
    OpenaiResponses,
    /// A list of messages for Anthropic.
    Anthropic,
    /// A list of contents for Gemini.
    GeminiContents,
    /// One message a line, with `role` and `content`.
    Messages,
}

impl AgentFormat {
    /// Every format.
    pub const ALL: [AgentFormat; 16] = [
        AgentFormat::ClaudeCode,
        AgentFormat::Codex,
        AgentFormat::Gemini,
        AgentFormat::Pi,
        AgentFormat::Droid,
        AgentFormat::Qwen,
        AgentFormat::Copilot,
        AgentFormat::Kimi,
        AgentFormat::KimiCode,
        AgentFormat::Cursor,
        AgentFormat::Opencode,
        AgentFormat::OpenaiChat,
        AgentFormat::OpenaiResponses,
        AgentFormat::Anthropic,
        AgentFormat::GeminiContents,
        AgentFormat::Messages,
    ];

    /// Its name in reports and metadata.
    pub fn name(self) -> &'static str {
        match self {
            AgentFormat::ClaudeCode => "claude-code",
            AgentFormat::Codex => "codex",
            AgentFormat::Gemini => "gemini-cli",
            AgentFormat::Pi => "pi",
            AgentFormat::Droid => "droid",
            AgentFormat::Qwen => "qwen-code",
            AgentFormat::Copilot => "copilot-cli",
            AgentFormat::Kimi => "kimi-cli",
            AgentFormat::KimiCode => "kimi-code",
            AgentFormat::Cursor => "cursor",
            AgentFormat::Opencode => "opencode",
            AgentFormat::OpenaiChat => "openai-chat",
            AgentFormat::OpenaiResponses => "openai-responses",
            AgentFormat::Anthropic => "anthropic",
            AgentFormat::GeminiContents => "gemini",
            AgentFormat::Messages => "messages",
        }
    }
}

impl fmt::Display for AgentFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Separation of the entries of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// One JSON value a line.
    Lines,
    /// One JSON value as a whole.
    Value,
}

/// Format of a file that begins with these bytes; `None` if it is not known.
pub fn detect(head: &[u8]) -> Option<AgentFormat> {
    layout(head).map(|(format, _)| format)
}

/// Format and layout of a file that begins with these bytes.
pub fn layout(head: &[u8]) -> Option<(AgentFormat, Layout)> {
    let text = String::from_utf8_lossy(head);
    let text = json::replace_lone_surrogates(&text);
    let text = text.trim_start_matches('\u{feff}').trim_start();
    let says = |words: [&str; 2]| words.iter().any(|words| text.contains(words));
    if let Some(inner) = text.strip_prefix('[') {
        return (has_message(inner) && begins_with_object(inner) && !begins_with_event(inner))
            .then(|| (shape(text), Layout::Value));
    }
    let first = text.lines().next().and_then(|line| Line::parse(line.trim()));
    if let Some(format) = first.as_ref().and_then(of_first_line) {
        return Some((format, Layout::Lines));
    }
    // Everturn's own files, and session files, are not an agent's.
    if !text.starts_with('{') || says(["\"type\":\"session_start\"", "\"type\": \"session_start\""]) {
        return None;
    }
    // An item behind lines of another kind does not make them items.
    let of_line_at = |at: usize, line: &Line<'_>| if at > 0 && is_item(line) { None } else { of_line(line) };
    let whole = |at: usize, line: &str| {
        let line = values(line).map_or(line, |values| values[0].get());
        (json::check(line).is_ok()).then(|| Line::parse(line).and_then(|line| of_line_at(at, &line)))
    };
    let lines: Vec<&str> = text.lines().take(LINES_MAX).collect();
    if lines.len() > 1 && goes_over_lines(text) {
        return of_beginning(text, false);
    }
    let found: Vec<Option<Option<(AgentFormat, Layout)>>> =
        lines.iter().enumerate().map(|(at, line)| whole(at, line.trim())).collect();
    if let Some(found) = found.iter().flatten().flatten().next() {
        return Some(*found);
    }
    // The first value spans several lines, or more than was read of it.
    match found.first() {
        Some(None) => of_beginning(text, lines.len() == 1),
        _ => None,
    }
}

/// Values of a line with several of them, each complete: some programs forget a line break.
pub fn values(line: &str) -> Option<Vec<&RawValue>> {
    let values: Result<Vec<&RawValue>, _> = serde_json::Deserializer::from_str(line).into_iter().collect();
    values
        .ok()
        .filter(|values| values.len() > 1 && values.iter().all(|value| json::check(value.get()).is_ok()))
}

/// Whether the first element of a list is an object, as far as it can be seen. Logs begin with a bracket, too.
fn begins_with_object(list: &str) -> bool {
    let first = serde_json::Deserializer::from_str(list).into_iter::<IgnoredAny>().next();
    list.trim_start().starts_with('{')
        && match first {
            Some(Ok(_)) => true,
            Some(Err(error)) => error.is_eof(),
            None => false,
        }
}

/// Whether one of the first elements of a list is a message, or may be one as far as it can be seen. A list of whole
/// conversations has messages further in.
fn has_message(list: &str) -> bool {
    let mut rest = list.trim_start();
    for _ in 0..LINES_MAX {
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Line<'_>>();
        match values.next() {
            Some(Ok(line)) if is_message(&line) => return true,
            Some(Ok(_)) => {}
            Some(Err(error)) if error.is_eof() => return may_be_message(rest),
            _ => return false,
        }
        match rest[values.byte_offset()..].trim_start().strip_prefix(',') {
            Some(next) => rest = next.trim_start(),
            None => return false,
        }
    }
    false
}

/// Whether an object says something: a message of a provider, or an item of Responses.
fn is_message(line: &Line<'_>) -> bool {
    let says =
        ["content", "parts", "tool_calls", "function_call"].iter().any(|name| line.raw(name).is_some());
    line.raw("role").is_some() && says || line.list("parts").is_some() || is_item(line)
}

/// The same for an object of which only the beginning is known. Behind a long content comes the role.
fn may_be_message(text: &str) -> bool {
    let fields = fields_in(text);
    let has = |wanted: &str| fields.iter().any(|(name, _)| *name == wanted);
    let kind = fields
        .iter()
        .find(|(name, _)| *name == "type")
        .and_then(|(_, rest)| serde_json::Deserializer::from_str(rest).into_iter::<String>().next()?.ok());
    ["role", "parts", "content"].into_iter().any(has)
        || kind.is_some_and(|kind| kind == "message" || is_item_type(&kind))
}

/// Whether the first element of a list says something without a role: an event of some program, and no message or item.
fn begins_with_event(list: &str) -> bool {
    const SAYING: [&str; 5] = ["user", "assistant", "human", "system", "message"];
    let first = serde_json::Deserializer::from_str(list).into_iter::<Line<'_>>().next();
    first.and_then(Result::ok).is_some_and(|line| {
        line.text("type").is_some_and(|kind| SAYING.contains(&kind.as_ref()))
            && line.raw("content").is_some()
            && line.raw("role").is_none()
    })
}

/// Names of the fields of an object of which only the beginning is known.
fn names_in(text: &str) -> Vec<&str> {
    fields_in(text).into_iter().map(|(name, _)| name).collect()
}

/// The fields of such an object: the name, and the text from the value on.
fn fields_in(text: &str) -> Vec<(&str, &str)> {
    let (mut fields, mut depth, mut quoted, mut escaped) = (Vec::new(), 0, None, false);
    for (at, byte) in text.bytes().enumerate() {
        match (quoted, byte) {
            (Some(_), _) if escaped => escaped = false,
            (Some(_), b'\\') => escaped = true,
            (Some(from), b'"') => {
                let value = text[at + 1..].trim_start().strip_prefix(':');
                fields.extend(value.filter(|_| depth == 1).map(|value| (&text[from..at], value)));
                quoted = None;
            }
            (Some(_), _) => {}
            (None, b'"') => quoted = Some(at + 1),
            (None, b'{' | b'[') => depth += 1,
            (None, b'}' | b']') => depth -= 1,
            _ => {}
        }
    }
    fields
}

/// Error for a file of no known format: a description of it, and the known formats.
pub fn unknown(head: &[u8]) -> Error {
    let text = String::from_utf8_lossy(head);
    let text = text.trim_start_matches('\u{feff}').trim_start();
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Line<'_>>();
    let looks = match values.next() {
        Some(Ok(line)) => {
            let fields = fields(&line.names().collect::<Vec<_>>());
            let whole = text[values.byte_offset()..].trim().is_empty();
            format!("{} {fields}", if whole { "a JSON object" } else { "JSON objects, the first" })
        }
        _ if text.contains(['\0', '\u{fffd}']) => "binary data".to_string(),
        _ if let Some(inner) = text.strip_prefix('[').filter(|inner| begins_with_object(inner)) => {
            let first = serde_json::Deserializer::from_str(inner).into_iter::<Line<'_>>().next();
            let fields = match first.and_then(Result::ok) {
                Some(line) => fields(&line.names().collect::<Vec<_>>()),
                None => fields(&names_in(inner)),
            };
            format!("a JSON list of objects, the first {fields}")
        }
        _ if text.starts_with('{') => {
            let names: Vec<String> = names_in(text).into_iter().take(FIELDS_MAX).map(shown).collect();
            let fields = if names.is_empty() { String::new() } else { format!(" with {}", names.join(", ")) };
            format!("a JSON object, long or cut off,{fields}").trim_end_matches(',').to_string()
        }
        _ if let Ok(value) = serde_json::from_str::<Value>(text) => match value {
            Value::Array(items) if items.is_empty() => "an empty JSON list",
            Value::Array(_) => "a JSON list, and not of messages",
            Value::String(_) => "a JSON string",
            Value::Number(_) => "a JSON number",
            _ => "a JSON value without messages",
        }
        .to_string(),
        _ => format!(
            "text that is not JSON, beginning with {}",
            shown(text.lines().next().unwrap_or_default())
        ),
    };
    let known: Vec<&str> = AgentFormat::ALL.iter().map(|format| format.name()).collect();
    let text = format!(
        "unknown format: it looks like {looks}; known are {}, and exports of Everturn (jsonl, transcript, session)",
        known.join(", ")
    );
    Error::invalid("import.unknown", text)
}

/// The fields of an object, by their names.
fn fields(names: &[&str]) -> String {
    let shown: Vec<String> = names.iter().copied().take(FIELDS_MAX).map(shown).collect();
    match names.len() {
        0 => "without fields".to_string(),
        1..=FIELDS_MAX => format!("with {}", shown.join(", ")),
        _ => format!("with {}, …", shown.join(", ")),
    }
}

fn shown(text: &str) -> String {
    format!("{:?}", clip(text))
}

/// Whether the first value does not end with its line: then later lines are parts of it, also where one reads like a
/// value of its own.
fn goes_over_lines(text: &str) -> bool {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
    let whole = match values.next() {
        Some(Ok(_)) => true,
        Some(Err(error)) => error.is_eof(),
        None => false,
    };
    whole && text[..values.byte_offset()].contains('\n')
}

/// The agents whose first line is a header of their own.
fn of_first_line(line: &Line<'_>) -> Option<AgentFormat> {
    let has = |name: &str| line.raw(name).is_some();
    let data = line.object("data");
    match line.text("type")?.as_ref() {
        "session" if has("id") && has("timestamp") && has("cwd") => Some(AgentFormat::Pi),
        // A session file names its session otherwise.
        "session_start" if has("id") && !has("session_id") => Some(AgentFormat::Droid),
        // The journal that Kimi CLI writes beside its context has no time here.
        "metadata" if has("protocol_version") && has("created_at") => Some(AgentFormat::KimiCode),
        "session.start" if data.is_some_and(|data| data.raw("sessionId").is_some()) => {
            Some(AgentFormat::Copilot)
        }
        _ => None,
    }
}

fn of_line(line: &Line<'_>) -> Option<(AgentFormat, Layout)> {
    let has = |name: &str| line.raw(name).is_some();
    let kind = line.text("type");
    let kind = kind.as_deref();
    if has("_type") {
        return None;
    }
    if has("sessionId") && has("messages") {
        return Some((AgentFormat::Gemini, Layout::Value));
    }
    if line.raw("loglines").is_some_and(|list| list.starts_with('[') && list.contains("\"message\"")) {
        return Some((AgentFormat::ClaudeCode, Layout::Value));
    }
    if line.object("info").is_some() && line.raw("messages").is_some_and(|list| list.contains("\"parts\"")) {
        return Some((AgentFormat::Opencode, Layout::Value));
    }
    let role = line.text("role");
    // Kimi's notes between the messages.
    if role.as_deref().is_some_and(|role| ["_system_prompt", "_checkpoint", "_usage"].contains(&role)) {
        return Some((AgentFormat::Kimi, Layout::Lines));
    }
    let inner = line.object("message").filter(|_| kind.is_none() && !has("content"));
    if role.is_some() && inner.is_some_and(|message| message.list("content").is_some()) {
        return Some((AgentFormat::Cursor, Layout::Lines));
    }
    if has("sessionId") && !has("type") && (has("projectHash") || has("startTime")) {
        return Some((AgentFormat::Gemini, Layout::Lines));
    }
    if has("payload") && has("timestamp") && kind.is_some() {
        return Some((AgentFormat::Codex, Layout::Lines));
    }
    // Before there were envelopes: the first line is the session's, the next ones are items.
    let session = has("id") && has("timestamp") && (has("instructions") || has("git"));
    let is_state = line.text("record_type").as_deref() == Some("state");
    if is_state || (session && !has("type")) {
        return Some((AgentFormat::Codex, Layout::Lines));
    }
    let in_parts = line.object("message").is_some_and(|message| message.raw("parts").is_some());
    if has("sessionId") && has("uuid") && (in_parts || has("systemPayload")) {
        return Some((AgentFormat::Qwen, Layout::Lines));
    }
    let claude = match kind {
        // Logs have such types, too.
        Some("user" | "assistant") => {
            line.object("message").is_some() || has("uuid") && (has("sessionId") || has("parentUuid"))
        }
        Some("summary") => has("leafUuid"),
        Some("file-history-snapshot") => has("snapshot"),
        // Its notes without an id have names with hyphens (`queue-operation`). Other programs name sessions, too.
        Some(kind) if !has("uuid") => has("sessionId") && (kind.contains('-') || kind == "mode"),
        Some(_) => has("sessionId") || has("parentUuid"),
        None => false,
    };
    if claude {
        return Some((AgentFormat::ClaudeCode, Layout::Lines));
    }
    if has("role") && (has("content") || has("tool_calls") || has("parts")) {
        return Some((AgentFormat::Messages, Layout::Lines));
    }
    if is_item(line) {
        return Some((AgentFormat::OpenaiResponses, Layout::Lines));
    }
    LISTS.iter().find_map(|name| {
        let list = line.raw(name).filter(|raw| is_said(name, raw))?;
        let list = list.strip_prefix('[').filter(|inner| has_message(inner)).and(Some(list))?;
        Some((shape(list), Layout::Lines))
    })
}

/// Whether a line is an item of Responses that is no message. A part of a message that opencode keeps in a file is none.
fn is_item(line: &Line<'_>) -> bool {
    line.text("type").is_some_and(|kind| is_item_type(&kind)) && line.raw("messageID").is_none()
}

fn is_item_type(kind: &str) -> bool {
    kind.ends_with("_call") || kind.ends_with("_call_output") || kind == "reasoning"
}

/// A value of which only the beginning is known.
fn of_beginning(text: &str, one_line: bool) -> Option<(AgentFormat, Layout)> {
    let has = |name: &str| text.contains(&format!("\"{name}\""));
    if has("_type") {
        return None;
    }
    if has("sessionId") && (has("projectHash") || has("startTime")) {
        return Some((AgentFormat::Gemini, Layout::Value));
    }
    if has("loglines") && has("message") {
        return Some((AgentFormat::ClaudeCode, Layout::Value));
    }
    if has("info") && has("sessionID") && has("parts") {
        return Some((AgentFormat::Opencode, Layout::Value));
    }
    if one_line && has("payload") && has("timestamp") {
        return Some((AgentFormat::Codex, Layout::Lines));
    }
    if one_line && (has("parentUuid") || (has("sessionId") && has("message"))) {
        return Some((AgentFormat::ClaudeCode, Layout::Lines));
    }
    let is_list = |(name, value): &(&str, &str)| {
        let inner = value.trim_start().strip_prefix('[').filter(|inner| has_message(inner));
        LISTS.contains(name) && inner.is_some_and(|inner| is_said(name, inner))
    };
    if fields_in(text).iter().any(is_list) {
        return Some((shape(text), Layout::Value));
    }
    (one_line && has("role") && has("content")).then_some((AgentFormat::Messages, Layout::Lines))
}

/// Whether a list of this name holds messages: many files have `contents` or `input`.
fn is_said(name: &str, text: &str) -> bool {
    match name {
        "contents" => text.contains("\"parts\""),
        _ => text.contains("\"role\"") || text.contains("_call"),
    }
}

/// Provider of the messages. All are read the same way; the name is for people.
fn shape(text: &str) -> AgentFormat {
    let says = |kinds: &[&str]| {
        let spelt = |kind: &&str| {
            text.contains(&format!("\"type\":\"{kind}\"")) || text.contains(&format!("\"type\": \"{kind}\""))
        };
        kinds.iter().any(spelt)
    };
    if says(&["function_call", "function_call_output", "reasoning", "input_text", "output_text", "message"]) {
        AgentFormat::OpenaiResponses
    } else if says(&["tool_use", "tool_result", "thinking", "redacted_thinking", "document"]) {
        AgentFormat::Anthropic
    } else if text.contains("\"parts\"") {
        AgentFormat::GeminiContents
    } else {
        AgentFormat::OpenaiChat
    }
}
