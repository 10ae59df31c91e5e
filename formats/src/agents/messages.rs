//! Messages as providers take them: a list, a request with a list in it, or one message a line.

use super::line::{Line, made, words};
use super::reader::Mapper;
use super::{Entry, Format, Origin, Said, Step, Thread, conversation_id, name_of, nth, title};
use everturn_core::json::{Raw, quote};
use everturn_core::message;
use everturn_core::turn::{Role, Tokens};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::HashMap;

/// Reads one file.
pub struct Messages {
    format: Format,
    threads: Vec<Thread>,
    fallback: Option<String>,
    seen: HashMap<u64, u32>,
    titled: bool,
    /// Messages before the first that a person said: together they tell one conversation from another.
    waiting: Vec<(u64, String)>,
    fields: Vec<(String, String)>,
    kept_fields: bool,
}

/// Messages that may come before the first that a person said.
const WAITING_MAX: usize = 20;

impl Messages {
    /// For a file with this name.
    pub fn new(format: Format, fallback: Option<String>) -> Messages {
        Messages {
            format,
            threads: Vec::new(),
            fallback,
            seen: HashMap::new(),
            titled: false,
            waiting: Vec::new(),
            fields: Vec::new(),
            kept_fields: false,
        }
    }

    fn thread(&mut self, parts: &[&str]) -> usize {
        let parts: Vec<&str> = ["messages"].iter().chain(parts).copied().collect();
        let origin = Origin { format: self.format.name(), ..Origin::default() };
        self.threads.push(Thread { id: conversation_id(&parts), origin, branch: None });
        self.threads.len() - 1
    }

    fn begin(&mut self, out: &mut Vec<Entry>) {
        if self.waiting.is_empty() && self.fields.is_empty() {
            return;
        }
        let waiting = std::mem::take(&mut self.waiting);
        let beginning: Vec<&str> = waiting.iter().map(|(_, text)| text.as_str()).collect();
        match self.fallback.clone() {
            Some(name) => self.thread(&["file", &name]),
            None => self.thread(&[&["text"], beginning.as_slice()].concat()),
        };
        for (number, text) in &waiting {
            self.say(0, *number, text, out);
        }
    }

    fn name(&mut self, thread: usize, text: &str) -> u64 {
        let spelt = name_of(&["line", text]);
        let count = self.seen.entry(nth(spelt, thread as u64)).or_default();
        *count += 1;
        nth(spelt, u64::from(*count - 1))
    }

    fn say(&mut self, thread: usize, number: u64, text: &str, out: &mut Vec<Entry>) {
        let name = self.name(thread, text);
        let line = Line::parse(text).unwrap_or_default();
        let at = ["timestamp", "created_at"].iter().find_map(|name| line.time(name));
        let entry = |step, title| Entry { thread, line: number, name, key: name, at, title, step };
        let Some(role) = role(&line) else {
            let what = line.text("type").unwrap_or("no role".into()).into_owned();
            return out.push(entry(Step::Event { what, body: made(text.to_string()) }, None));
        };
        let mut titled = None;
        if role == Role::User && (!self.titled || thread > 0) {
            titled = title(&words(line.raw("content").unwrap_or_default()));
            self.titled = titled.is_some();
        }
        let default = self.fields.iter().find(|(name, _)| name == "model");
        let default = default.and_then(|(_, model)| serde_json::from_str::<String>(model).ok());
        let said = Said {
            message: text.to_string(),
            model: line.text("model").map(Cow::into_owned).or(default).filter(|_| role == Role::Assistant),
            tokens: tokens(&line),
            ..Said::default()
        };
        out.push(entry(Step::Turn(Box::new(said)), titled));
    }

    /// A line that is a conversation of its own: a request with its messages.
    fn conversation(&mut self, number: u64, text: &str, line: &Line<'_>, list: &str, out: &mut Vec<Entry>) {
        let thread = self.thread(&["line", text]);
        for message in line.list(list).unwrap_or_default() {
            self.say(thread, number, message.get(), out);
        }
        let rest = line.without(list);
        if rest != "{}" {
            let name = self.name(thread, &rest);
            let step = Step::Event { what: "request".into(), body: made(rest) };
            out.push(Entry { thread, line: number, name, key: name, at: None, title: None, step });
        }
    }
}

fn role(line: &Line<'_>) -> Option<Role> {
    let fields =
        ["role", "type"].into_iter().filter_map(|name| Some((name.to_string(), line.text(name)?.into())));
    message::role(&Value::Object(fields.collect())).ok()
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

    fn take(&mut self, number: u64, text: &str, out: &mut Vec<Entry>) {
        let line = Line::parse(text).unwrap_or_default();
        if role(&line).is_none()
            && let Some(list) = ["messages", "input"].iter().find(|name| line.list(name).is_some())
        {
            return self.conversation(number, text, &line, list, out);
        }
        if self.waiting.is_empty() && !self.threads.is_empty() {
            return self.say(0, number, text, out);
        }
        self.waiting.push((number, text.to_string()));
        if role(&line) == Some(Role::User) || self.waiting.len() == WAITING_MAX {
            self.begin(out);
        }
    }

    fn keep(&mut self, number: u64, _what: &str, body: Raw, out: &mut Vec<Entry>) {
        self.take(number, body.get(), out);
    }

    fn settle(&mut self, out: &mut Vec<Entry>) {
        if self.threads.is_empty() {
            self.begin(out);
        }
        if !self.fields.is_empty() && !self.kept_fields && !self.threads.is_empty() {
            self.kept_fields = true;
            let fields: Vec<String> =
                self.fields.iter().map(|(name, value)| format!("{}:{value}", quote(name))).collect();
            let body = format!("{{{}}}", fields.join(","));
            let name = self.name(0, &body);
            let step = Step::Event { what: "request".into(), body: made(body) };
            out.push(Entry { thread: 0, line: 1, name, key: name, at: None, title: None, step });
        }
    }
}
