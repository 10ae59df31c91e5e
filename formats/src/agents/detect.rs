//! Which program wrote a file, by its content.

use super::line::Line;
use everturn_core::json;
use serde::de::IgnoredAny;
use std::fmt;

/// How much of a file is looked at.
pub const HEAD_BYTES: usize = 64 * 1024;

/// Lines that are looked at before a file is given up.
const LINES_MAX: usize = 50;

/// The fields of a request that hold what was said.
pub const LISTS: [&str; 3] = ["messages", "input", "contents"];

/// How a file is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// Claude Code: `~/.claude/projects/<project>/<session>.jsonl`.
    ClaudeCode,
    /// Codex: `~/.codex/sessions/Y/M/D/rollout-….jsonl[.zst]`.
    Codex,
    /// Gemini CLI: `~/.gemini/tmp/<hash>/chats/session-*.json[l]`.
    Gemini,
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

impl Format {
    /// Its name in reports and metadata.
    pub fn name(self) -> &'static str {
        match self {
            Format::ClaudeCode => "claude-code",
            Format::Codex => "codex",
            Format::Gemini => "gemini-cli",
            Format::OpenaiChat => "openai-chat",
            Format::OpenaiResponses => "openai-responses",
            Format::Anthropic => "anthropic",
            Format::GeminiContents => "gemini",
            Format::Messages => "messages",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How the entries of a file are separated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// One JSON value a line.
    Lines,
    /// One JSON value as a whole.
    Value,
}

/// Tells the format of a file that begins with these bytes; `None` if none of ours.
pub fn detect(head: &[u8]) -> Option<Format> {
    layout(head).map(|(format, _)| format)
}

/// The same, and how it is separated.
pub fn layout(head: &[u8]) -> Option<(Format, Layout)> {
    let text = String::from_utf8_lossy(head);
    let text = text.trim_start_matches('\u{feff}').trim_start();
    let says = |words: [&str; 2]| words.iter().any(|words| text.contains(words));
    if text.starts_with('[') {
        let list = says(["\"role\"", "\"type\""]) || text.contains("\"parts\"");
        return list.then(|| (shape(text), Layout::Value));
    }
    // Everturn's own files, and session files, are not an agent's.
    if !text.starts_with('{') || says(["\"type\":\"session_start\"", "\"type\": \"session_start\""]) {
        return None;
    }
    let whole =
        |line: &str| (json::check(line).is_ok()).then(|| Line::parse(line).and_then(|line| of_line(&line)));
    let lines: Vec<&str> = text.lines().take(LINES_MAX).collect();
    if lines.len() > 1 && goes_over_lines(text) {
        return of_beginning(text, false);
    }
    let found: Vec<Option<Option<(Format, Layout)>>> = lines.iter().map(|line| whole(line.trim())).collect();
    if let Some(found) = found.iter().flatten().flatten().next() {
        return Some(*found);
    }
    // The first value goes over several lines, or further than what was read of it.
    match found.first() {
        Some(None) => of_beginning(text, lines.len() == 1),
        _ => None,
    }
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

fn of_line(line: &Line<'_>) -> Option<(Format, Layout)> {
    let has = |name: &str| line.raw(name).is_some();
    let kind = line.text("type");
    let kind = kind.as_deref();
    if has("_type") {
        return None;
    }
    if has("sessionId") && has("messages") {
        return Some((Format::Gemini, Layout::Value));
    }
    if has("sessionId") && !has("type") && (has("projectHash") || has("startTime")) {
        return Some((Format::Gemini, Layout::Lines));
    }
    if has("payload") && kind.is_some() {
        return Some((Format::Codex, Layout::Lines));
    }
    // Before there were envelopes: the first line is the session's, the next ones are items.
    let session = has("id") && has("timestamp") && (has("instructions") || has("git"));
    if has("record_type") || (session && !has("type")) {
        return Some((Format::Codex, Layout::Lines));
    }
    let claude = match kind {
        Some("user" | "assistant") => has("message") || has("uuid"),
        Some("summary") => has("leafUuid"),
        Some("file-history-snapshot") => has("snapshot"),
        Some(_) => has("sessionId") || has("parentUuid"),
        None => false,
    };
    if claude {
        return Some((Format::ClaudeCode, Layout::Lines));
    }
    if has("role") && (has("content") || has("tool_calls") || has("parts")) {
        return Some((Format::Messages, Layout::Lines));
    }
    if matches!(kind, Some(kind) if kind.ends_with("_call") || kind.ends_with("_call_output") || kind == "reasoning")
    {
        return Some((Format::OpenaiResponses, Layout::Lines));
    }
    LISTS.iter().find_map(|name| {
        let list = line.raw(name).filter(|raw| raw.starts_with('[') && is_said(name, raw))?;
        Some((shape(list), Layout::Lines))
    })
}

/// A value of which only the beginning is known.
fn of_beginning(text: &str, one_line: bool) -> Option<(Format, Layout)> {
    let has = |name: &str| text.contains(&format!("\"{name}\""));
    if has("_type") {
        return None;
    }
    if has("sessionId") && (has("projectHash") || has("startTime")) {
        return Some((Format::Gemini, Layout::Value));
    }
    if one_line && has("payload") && has("timestamp") {
        return Some((Format::Codex, Layout::Lines));
    }
    if one_line && (has("parentUuid") || (has("sessionId") && has("message"))) {
        return Some((Format::ClaudeCode, Layout::Lines));
    }
    if LISTS.iter().any(|name| has(name) && is_said(name, text)) {
        return Some((shape(text), Layout::Value));
    }
    (one_line && has("role") && has("content")).then_some((Format::Messages, Layout::Lines))
}

/// Whether a list of this name holds what was said: many files have `contents`, and Gemini's have parts.
fn is_said(name: &str, text: &str) -> bool {
    name != "contents" || text.contains("\"parts\"")
}

/// Which provider's messages these are. All are read the same way; the name is for people.
fn shape(text: &str) -> Format {
    let says = |kinds: &[&str]| {
        let spelt = |kind: &&str| {
            text.contains(&format!("\"type\":\"{kind}\"")) || text.contains(&format!("\"type\": \"{kind}\""))
        };
        kinds.iter().any(spelt)
    };
    if says(&["function_call", "function_call_output", "reasoning", "input_text", "output_text", "message"]) {
        Format::OpenaiResponses
    } else if says(&["tool_use", "tool_result", "thinking", "redacted_thinking", "document"]) {
        Format::Anthropic
    } else if text.contains("\"parts\"") {
        Format::GeminiContents
    } else {
        Format::OpenaiChat
    }
}
