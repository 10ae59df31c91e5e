//! Gemini CLI: one JSON value with a list of messages, rewritten after each message, or one message per line.
//!
//! A message of the model carries its tool calls together with their results; they become two turns. A message with an
//! id that was there before is a newer version of it: calls get their results that way.

use super::line::{Line, made, words};
use super::reader::Mapper;
use super::{
    AgentEntry, AgentFormat, EntryContent, ImportOrigin, ParsedTurn, Thread, conversation_id, name_of, nth,
    prompt_title,
};
use everturn_core::json::{Raw, quote};
use everturn_core::time::Timestamp;
use everturn_core::turn::Tokens;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};

const NAME: &str = "gemini";

/// Reads one file.
pub struct Gemini {
    threads: Vec<Thread>,
    fallback: Option<String>,
    seen: HashMap<u64, u32>,
    titled: bool,
    /// Current turns, each with the message that it came from.
    path: Vec<(u64, u64)>,
    standing: HashSet<u64>,
    /// Turns that were taken back; the next one takes their place.
    left: Vec<u64>,
    /// The fields beside the messages, where the file is one value.
    fields: Vec<(String, String)>,
    kept_fields: bool,
}

impl Gemini {
    /// For a file with this name.
    pub fn new(fallback: Option<String>) -> Gemini {
        Gemini {
            threads: Vec::new(),
            fallback,
            seen: HashMap::new(),
            titled: false,
            path: Vec::new(),
            standing: HashSet::new(),
            left: Vec::new(),
            fields: Vec::new(),
            kept_fields: false,
        }
    }

    fn begin(&mut self, text: &str) {
        if !self.threads.is_empty() {
            return;
        }
        let header = self.header();
        let line = Line::parse(text).unwrap_or_default();
        let field = Line::parse(&header).unwrap_or_default();
        let session = field.text("sessionId").or_else(|| line.text("sessionId")).map(Cow::into_owned);
        let id = match (&session, &self.fallback) {
            (Some(session), _) => conversation_id(&[NAME, session]),
            (None, Some(name)) => conversation_id(&[NAME, "file", name]),
            (None, None) => conversation_id(&[NAME, "line", text]),
        };
        let origin = ImportOrigin { format: AgentFormat::Gemini.name(), session, ..ImportOrigin::default() };
        self.threads.push(Thread { id, origin, branch: None });
    }

    fn header(&self) -> String {
        let fields: Vec<String> =
            self.fields.iter().map(|(name, value)| format!("{}:{value}", quote(name))).collect();
        format!("{{{}}}", fields.join(","))
    }

    fn name(&mut self, text: &str) -> u64 {
        let spelt = name_of(&["line", text]);
        let count = self.seen.entry(spelt).or_default();
        *count += 1;
        nth(spelt, u64::from(*count - 1))
    }

    fn event(
        &mut self,
        number: u64,
        at: Option<Timestamp>,
        what: &str,
        body: Raw,
        out: &mut Vec<AgentEntry>,
    ) {
        let name = self.name(body.get());
        let step = EntryContent::Event { what: what.into(), body };
        out.push(AgentEntry { thread: 0, line: number, name, key: name, at, title: None, step });
    }

    /// Records that a turn is current; returns the turns that it supersedes.
    fn stands(&mut self, turn: u64, message: u64) -> Vec<u64> {
        if self.standing.insert(turn) {
            self.path.push((turn, message));
        }
        std::mem::take(&mut self.left)
    }

    /// Everything from this message on was taken back.
    fn rewind(&mut self, id: &str) {
        let message = name_of(&["message", id]);
        if let Some(at) = self.path.iter().position(|(_, of)| *of == message) {
            let left = self.path.split_off(at);
            for (turn, _) in &left {
                self.standing.remove(turn);
            }
            self.left.extend(left.into_iter().map(|(turn, _)| turn));
            self.titled &= !self.path.is_empty();
        }
    }
}

impl Mapper for Gemini {
    fn threads(&self) -> &[Thread] {
        &self.threads
    }

    fn field(&mut self, name: &str, text: &str) {
        self.fields.push((name.to_string(), text.to_string()));
    }

    fn take(&mut self, number: u64, text: &str, out: &mut Vec<AgentEntry>) {
        self.begin(text);
        let line = Line::parse(text).unwrap_or_default();
        let at = line.time("timestamp");
        let kind = line.text("type").unwrap_or_default();
        let id = line.text("id").filter(|id| !id.is_empty());
        let content = line.raw("content").unwrap_or("\"\"");
        let made_of = match kind.as_ref() {
            "user" => Some((user(content), None)),
            "gemini" => Some(model(&line, content)),
            _ => None,
        };
        let (Some((message, results)), Some(id)) = (made_of, id) else {
            if let Some(id) = line.text("$rewindTo") {
                self.rewind(&id);
            }
            let what = match (kind.as_ref(), line.names().next()) {
                ("", Some(first)) if first.starts_with('$') => first.to_string(),
                ("", _) => "session".into(),
                (kind, _) => kind.to_string(),
            };
            return self.event(number, at, &what, made(text.to_string()), out);
        };
        let of = name_of(&["message", &id]);
        let metadata = BTreeMap::from([(NAME.to_string(), made(line.without("content")))]);
        let tokens = line.object("tokens");
        let tokens = tokens.map(|n| Tokens { prompt: n.number("input"), completion: n.number("output") });
        let mut named = None;
        if kind == "user" && !self.titled {
            named = prompt_title(&words(content));
            self.titled = named.is_some();
        }
        let said = ParsedTurn {
            model: line.text("model").map(Cow::into_owned),
            tokens,
            metadata,
            supersedes: self.stands(of, of),
            message,
            ..ParsedTurn::default()
        };
        let key = nth(of, name_of(&[text]));
        let step = EntryContent::Turn(Box::new(said));
        out.push(AgentEntry { thread: 0, line: number, name: of, key, at, title: named, step });
        if let Some(message) = results {
            let name = name_of(&["results", &id]);
            let key = nth(name, name_of(&[&message, text]));
            let said = ParsedTurn { message, supersedes: self.stands(name, of), ..ParsedTurn::default() };
            let step = EntryContent::Turn(Box::new(said));
            out.push(AgentEntry { thread: 0, line: number, name, key, at, title: None, step });
        }
    }

    fn keep(&mut self, number: u64, what: &str, body: Raw, _taken: Option<&str>, out: &mut Vec<AgentEntry>) {
        self.begin(body.get());
        self.event(number, None, what, body, out);
    }

    fn settle(&mut self, out: &mut Vec<AgentEntry>) {
        if !self.fields.is_empty() && !self.kept_fields {
            self.kept_fields = true;
            let header = self.header();
            self.begin(&header);
            self.event(1, None, "session", made(header), out);
        }
    }
}

/// A message of the user: a text, a part or a list of parts.
fn user(content: &str) -> String {
    let content = if content.starts_with('{') { format!("[{content}]") } else { content.to_string() };
    format!("{{\"role\":\"user\",\"content\":{content}}}")
}

/// A message of the model, and the results of its tools.
fn model(line: &Line<'_>, content: &str) -> (String, Option<String>) {
    let thoughts = line.list("thoughts").unwrap_or_default();
    let calls = line.list("toolCalls").unwrap_or_default();
    if thoughts.is_empty() && calls.is_empty() && content.starts_with(['"', '[']) {
        return (format!("{{\"role\":\"assistant\",\"content\":{content}}}"), None);
    }
    let mut blocks = Vec::new();
    for thought in thoughts.iter().filter_map(|thought| Line::parse(thought.get())) {
        let parts = ["subject", "description"].iter().filter_map(|name| thought.text(name));
        let text = parts.collect::<Vec<_>>().join(": ");
        blocks.push(format!("{{\"type\":\"thinking\",\"thinking\":{}}}", quote(&text)));
    }
    let text = words(content);
    if !text.is_empty() {
        blocks.push(format!("{{\"type\":\"text\",\"text\":{}}}", quote(&text)));
    }
    let mut results = Vec::new();
    for call in calls.iter().filter_map(|call| Line::parse(call.get())) {
        let (id, name) = (call.raw("id").unwrap_or("null"), call.raw("name").unwrap_or("\"tool\""));
        let arguments = call.raw("args").unwrap_or("{}");
        blocks.push(format!(
            "{{\"type\":\"tool_call\",\"id\":{id},\"name\":{name},\"arguments\":{arguments}}}"
        ));
        if let Some(result) = call.raw("result").filter(|raw| *raw != "null") {
            let (content, has_error) = answer(result);
            let is_error = has_error || call.text("status").as_deref() == Some("error");
            let is_error = if is_error { ",\"is_error\":true" } else { "" };
            results.push(format!(
                "{{\"type\":\"tool_result\",\"tool_use_id\":{id},\"name\":{name},\"content\":{content}{is_error}}}"
            ));
        }
    }
    let message = format!("{{\"role\":\"assistant\",\"content\":[{}]}}", blocks.join(","));
    let results =
        (!results.is_empty()).then(|| format!("{{\"role\":\"tool\",\"content\":[{}]}}", results.join(",")));
    (message, results)
}

/// Output of a tool, then its error, if texts are all there is, else the whole result; and whether it has an error.
fn answer(result: &str) -> (String, bool) {
    let parts: Vec<&serde_json::value::RawValue> = serde_json::from_str(result).unwrap_or_default();
    let whole = || (result.to_string(), false);
    let [part] = parts.as_slice() else { return whole() };
    let Some(response) = Line::parse(part.get())
        .and_then(|part| part.object("functionResponse"))
        .and_then(|response| response.object("response"))
    else {
        return whole();
    };
    let output = response.raw("output").filter(|raw| raw.starts_with('"'));
    match (output, response.text("error").filter(|error| !error.is_empty())) {
        (Some(output), None) => (output.to_string(), false),
        (None, None) => whole(),
        (_, Some(error)) => {
            let output = response.text("output").filter(|output| !output.is_empty());
            let texts: Vec<_> = output.into_iter().chain([error]).collect();
            (quote(&texts.join("\n")), true)
        }
    }
}
