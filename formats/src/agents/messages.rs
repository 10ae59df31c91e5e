//! Messages in the shapes of providers: a list, a request with a list in it, or one message a line, as Kimi CLI and Cursor
//! write them.
//!
//! Instructions that a request gives apart from its messages are the conversation's system prompt. Where they come in
//! several pieces, the first is the prompt and the others are turns behind it, so that an export has the same pieces again.

use super::cursor;
use super::detect::LISTS;
use super::line::{Line, made, words};
use super::reader::Mapper;
use super::{
    AgentEntry, AgentFormat, EntryContent, ImportOrigin, ParsedTurn, Thread, conversation_id, name_of, nth,
    prompt_title,
};
use everturn_core::json::{Raw, quote};
use everturn_core::message;
use everturn_core::turn::{Role, Tokens};
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::HashMap;

/// Reads one file.
pub struct Messages {
    format: AgentFormat,
    threads: Vec<Thread>,
    fallback: Option<String>,
    seen: HashMap<u64, u32>,
    titled: bool,
    /// Messages that tell the conversation from others: for a file with a name those up to the first that a person said,
    /// else all of them, because two chats may begin alike.
    waiting: Vec<(u64, String)>,
    /// Size of the waiting messages, in bytes.
    waiting_bytes: usize,
    fields: Vec<(String, String)>,
    kept_fields: bool,
    /// Whether the system prompt was emitted.
    prompted: bool,
}

/// The fields of a request that hold instructions, as the providers call them.
const SYSTEM: [&str; 4] = ["system", "instructions", "systemInstruction", "system_instruction"];

/// Longer instructions stay in the event that keeps the request, in bytes.
const PROMPT_BYTES_MAX: usize = 1024 * 1024;

/// Messages that may come before the first that a person said.
const WAITING_MAX: usize = 20;

/// Two files without a name that are alike for this many bytes are the same conversation.
const TOLD_APART_BYTES: usize = 16 * 1024 * 1024;

impl Messages {
    /// For a file with this name.
    pub fn new(format: AgentFormat, fallback: Option<String>) -> Messages {
        Messages {
            format,
            threads: Vec::new(),
            fallback,
            seen: HashMap::new(),
            titled: false,
            waiting: Vec::new(),
            waiting_bytes: 0,
            fields: Vec::new(),
            kept_fields: false,
            prompted: false,
        }
    }

    fn thread(&mut self, parts: &[&str]) -> usize {
        let parts: Vec<&str> = ["messages"].iter().chain(parts).copied().collect();
        let origin = ImportOrigin { format: self.format.name(), ..ImportOrigin::default() };
        self.threads.push(Thread { id: conversation_id(&parts), origin, branch: None });
        self.threads.len() - 1
    }

    fn session(&mut self, session: Session) -> usize {
        let format = self.format.name();
        let id = |session: &str| conversation_id(&[format, session]);
        let (agent, parent) = match session.parent {
            Some(parent) => (Some(session.id.clone()), Some(id(&parent))),
            None => (None, None),
        };
        let thread = id(&session.id);
        let origin =
            ImportOrigin { format, session: Some(session.id), agent, parent, ..ImportOrigin::default() };
        self.threads.push(Thread { id: thread, origin, branch: None });
        self.threads.len() - 1
    }

    fn begin(&mut self, out: &mut Vec<AgentEntry>) {
        if self.waiting.is_empty() && self.fields.is_empty() {
            return;
        }
        let waiting = std::mem::take(&mut self.waiting);
        let beginning: Vec<&str> = waiting.iter().map(|(_, text)| text.as_str()).collect();
        let thread = match self.fallback.clone() {
            Some(name) => match Session::of(self.format, &name) {
                Some(session) => self.session(session),
                None => self.thread(&["file", &name]),
            },
            None => self.thread(&[&["text"], beginning.as_slice()].concat()),
        };
        let instructions = self.instructions();
        self.prompted = !instructions.is_empty();
        self.prompt(thread, 1, instructions, out);
        for (number, text) in &waiting {
            self.say(thread, *number, text, out);
        }
    }

    /// The instructions in the fields so far.
    fn instructions(&self) -> Vec<String> {
        let fields = self.fields.iter().filter(|(name, _)| SYSTEM.contains(&name.as_str()));
        fields.flat_map(|(_, value)| pieces(value)).collect()
    }

    fn prompt(&mut self, thread: usize, number: u64, texts: Vec<String>, out: &mut Vec<AgentEntry>) {
        let mut texts = texts.into_iter();
        let Some(prompt) = texts.next().filter(|text| text.len() <= PROMPT_BYTES_MAX) else { return };
        let name = name_of(&["system"]);
        let (key, step) = (nth(name, name_of(&[&prompt])), EntryContent::System(prompt));
        out.push(AgentEntry { thread, line: number, name, key, at: None, title: None, step });
        for text in texts {
            let message = format!("{{\"role\":\"system\",\"content\":{}}}", quote(&text));
            self.say(thread, number, &message, out);
        }
    }

    fn name(&mut self, thread: usize, text: &str) -> u64 {
        let spelt = name_of(&["line", text]);
        let count = self.seen.entry(nth(spelt, thread as u64)).or_default();
        *count += 1;
        nth(spelt, u64::from(*count - 1))
    }

    fn say(&mut self, thread: usize, number: u64, text: &str, out: &mut Vec<AgentEntry>) {
        let name = self.name(thread, text);
        let line = Line::parse(text).unwrap_or_default();
        let at = match self.format {
            AgentFormat::Cursor => cursor::time(&line),
            _ => ["timestamp", "created_at"].iter().find_map(|name| line.time(name)),
        };
        let entry = |step, title| AgentEntry { thread, line: number, name, key: name, at, title, step };
        let Some(role) = role(&line) else {
            if let Some(prompt) =
                line.text("content").filter(|_| line.text("role").as_deref() == Some("_system_prompt"))
            {
                return self.prompt(thread, number, vec![prompt.into_owned()], out);
            }
            let what = line.text("type").or(line.text("role")).unwrap_or("no role".into()).into_owned();
            return out.push(entry(EntryContent::Event { what, body: made(text.to_string()) }, None));
        };
        let mut titled = None;
        if role == Role::User && (!self.titled || thread > 0) {
            let content = ["content", "parts"].iter().find_map(|name| line.raw(name));
            titled = prompt_title(&words(content.unwrap_or_default()));
            self.titled = titled.is_some();
        }
        let default = self.fields.iter().find(|(name, _)| name == "model");
        let default = default.and_then(|(_, model)| serde_json::from_str::<String>(model).ok());
        let said = ParsedTurn {
            message: match line.raw("role").or(line.raw("type")) {
                Some(_) => text.to_string(),
                None => format!("{{\"role\":\"user\",{}", &text[1..]),
            },
            model: line.text("model").map(Cow::into_owned).or(default).filter(|_| role == Role::Assistant),
            tokens: tokens(&line),
            ..ParsedTurn::default()
        };
        out.push(entry(EntryContent::Turn(Box::new(said)), titled));
    }

    /// A line that is a conversation of its own: a request with its messages.
    fn conversation(
        &mut self,
        number: u64,
        text: &str,
        line: &Line<'_>,
        list: &str,
        out: &mut Vec<AgentEntry>,
    ) {
        let thread = self.thread(&["line", text]);
        let instructions = SYSTEM.iter().filter_map(|name| line.raw(name)).flat_map(pieces).collect();
        self.prompt(thread, number, instructions, out);
        for message in line.list(list).unwrap_or_default() {
            self.say(thread, number, message.get(), out);
        }
        let rest = line.without(list);
        if rest != "{}" {
            let name = self.name(thread, &rest);
            let step = EntryContent::Event { what: "request".into(), body: made(rest) };
            out.push(AgentEntry { thread, line: number, name, key: name, at: None, title: None, step });
        }
    }
}

/// The session that the path of a file names, where its lines do not.
struct Session {
    id: String,
    /// The session that a subagent worked for.
    parent: Option<String>,
}

impl Session {
    fn of(format: AgentFormat, path: &str) -> Option<Session> {
        let mut parts = path.rsplit(['/', '\\']);
        let file = parts.next()?.split('.').next()?;
        let folder = parts.next()?;
        match format {
            // Earlier contexts of a session are beside it, with a number.
            AgentFormat::Kimi if file == "context" => Some(Session { id: folder.to_string(), parent: None }),
            AgentFormat::Kimi => Some(Session { id: format!("{folder}/{file}"), parent: None }),
            AgentFormat::Cursor if folder == "subagents" => {
                Some(Session { id: file.to_string(), parent: parts.next().map(str::to_string) })
            }
            AgentFormat::Cursor if folder == file => Some(Session { id: file.to_string(), parent: None }),
            _ => None,
        }
    }
}

fn role(line: &Line<'_>) -> Option<Role> {
    // Gemini takes a content without a role as the user's.
    if line.raw("role").or(line.raw("type")).is_none() && line.list("parts").is_some() {
        return Some(Role::User);
    }
    let fields =
        ["role", "type"].into_iter().filter_map(|name| Some((name.to_string(), line.text(name)?.into())));
    message::role(&Value::Object(fields.collect())).ok()
}

/// The texts of instructions: one, a list of blocks, or a content with parts.
fn pieces(value: &str) -> Vec<String> {
    let inner = Line::parse(value).and_then(|content| content.raw("parts")).unwrap_or(value);
    match serde_json::from_str::<Vec<&RawValue>>(inner) {
        Ok(blocks) => blocks.iter().flat_map(|block| pieces(block.get())).collect(),
        Err(_) => match inner.starts_with('{') {
            true => Line::parse(inner)
                .and_then(|block| block.text("text"))
                .map(Cow::into_owned)
                .into_iter()
                .collect(),
            false => serde_json::from_str(inner).into_iter().collect(),
        },
    }
}

fn tokens(line: &Line<'_>) -> Option<Tokens> {
    let usage = line.object("usage")?;
    let any = |names: [&str; 2]| names.iter().find_map(|name| usage.number(name));
    let (prompt, completion) =
        (any(["input_tokens", "prompt_tokens"]), any(["output_tokens", "completion_tokens"]));
    (prompt.is_some() || completion.is_some()).then_some(Tokens { prompt, completion })
}

impl Mapper for Messages {
    fn threads(&self) -> &[Thread] {
        &self.threads
    }

    fn field(&mut self, name: &str, text: &str) {
        self.fields.push((name.to_string(), text.to_string()));
    }

    fn take(&mut self, number: u64, text: &str, out: &mut Vec<AgentEntry>) {
        let text = &match self.format {
            AgentFormat::Cursor => cursor::message(number, text),
            _ => Cow::Borrowed(text),
        };
        let line = Line::parse(text).unwrap_or_default();
        if role(&line).is_none()
            && let Some(list) = LISTS.iter().find(|name| line.list(name).is_some())
        {
            return self.conversation(number, text, &line, list, out);
        }
        if self.waiting.is_empty() && !self.threads.is_empty() {
            return self.say(0, number, text, out);
        }
        self.waiting.push((number, text.to_string()));
        self.waiting_bytes += text.len();
        let enough = match self.fallback {
            Some(_) => role(&line) == Some(Role::User) || self.waiting.len() == WAITING_MAX,
            None => self.waiting_bytes >= TOLD_APART_BYTES,
        };
        if enough {
            self.begin(out);
        }
    }

    fn keep(&mut self, number: u64, _what: &str, body: Raw, taken: Option<&str>, out: &mut Vec<AgentEntry>) {
        let list =
            |line: Line<'_>| role(&line).is_none() && LISTS.iter().any(|name| line.list(name).is_some());
        match taken.and_then(Line::parse).is_some_and(list) {
            // Beside the conversation that the line is.
            true => self.say(self.threads.len() - 1, number, body.get(), out),
            false => self.take(number, body.get(), out),
        }
    }

    fn settle(&mut self, out: &mut Vec<AgentEntry>) {
        if self.threads.is_empty() || !self.waiting.is_empty() {
            self.begin(out);
        }
        if !self.fields.is_empty() && !self.kept_fields && !self.threads.is_empty() {
            self.kept_fields = true;
            // They came after the messages.
            if !self.prompted {
                let texts = self.instructions();
                let joined = (!texts.is_empty()).then(|| texts.join("\n\n"));
                self.prompt(0, 1, joined.into_iter().collect(), out);
            }
            let fields: Vec<String> =
                self.fields.iter().map(|(name, value)| format!("{}:{value}", quote(name))).collect();
            let body = format!("{{{}}}", fields.join(","));
            let name = self.name(0, &body);
            let step = EntryContent::Event { what: "request".into(), body: made(body) };
            out.push(AgentEntry { thread: 0, line: 1, name, key: name, at: None, title: None, step });
        }
    }
}
