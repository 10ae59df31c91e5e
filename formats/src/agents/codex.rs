//! Codex: a line is an envelope with a time, a type and a payload. Files from before there were envelopes have the items
//! alone.
//!
//! Items that go to the model (`response_item`) are turns, as they are: their encrypted parts stay byte for byte. Events
//! for the screen (`event_msg`) repeat messages and are kept as events; only where a file has no items at all are the
//! messages among them turns.
//!
//! A rollback (`thread_rolled_back`) withdraws prompts from the newest on, with everything after them.
//!
//! An event (`token_count`) counts the tokens of an answer: behind its last item, or, up to 0.4x, before its first. So the
//! last item waits, with the events behind it, until the count or another item comes. At the end of the file it is given
//! as it is: the count of an answer that was taken over before it was counted stays in the event.

use super::line::{Line, made, words};
use super::reader::Mapper;
use super::{
    AgentEntry, AgentFormat, EntryContent, ImportOrigin, ParsedTurn, Thread, conversation_id, name_of, nth,
    prompt_title, title,
};
use everturn_core::json::{Raw, quote};
use everturn_core::message;
use everturn_core::time::Timestamp;
use everturn_core::turn::{Role, Tokens};
use everturn_views::speech;
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

const NAME: &str = "codex";

/// Longest summary that is put together from a history, in bytes.
const SUMMARY_BYTES_MAX: usize = 256 * 1024;

/// Reads the lines of one file.
pub struct Codex {
    threads: Vec<Thread>,
    fallback: Option<String>,
    /// Occurrences of each line.
    seen: HashMap<u64, u32>,
    model: Option<String>,
    titled: bool,
    /// Whether the title is a name that the program stores.
    named: bool,
    /// Current turns.
    path: Vec<OnPath>,
    /// Turns that were rolled back; the next one takes their place.
    left: Vec<u64>,
    /// Whether a message came as an item.
    items: bool,
    /// A message that came as an event, while there were no items.
    heard: Option<(AgentEntry, Kind)>,
    /// Whether such a message became a turn: then no items are to be expected.
    events_only: bool,
    /// The last item of an answer, which was not counted yet, and the events behind it.
    waiting: Vec<AgentEntry>,
    /// The count of an answer whose items are still to come.
    early: Option<Tokens>,
    /// Whether the last answer was given without its count.
    uncounted: bool,
    /// The last count: an update of rate limits repeats it.
    last: Option<String>,
}

/// A turn, as a rollback sees it.
struct OnPath {
    name: u64,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// A person's words. Rollbacks count these.
    Prompt,
    /// Text that the program adds itself: instructions, the environment.
    Context,
    /// An item of the model's answer.
    Answer,
    /// A tool result.
    Result,
}

/// Most entries that wait for a count.
const WAITING_MAX: usize = 8;

impl Codex {
    /// For a file with this name.
    pub fn new(fallback: Option<String>) -> Codex {
        Codex {
            threads: Vec::new(),
            fallback,
            seen: HashMap::new(),
            model: None,
            titled: false,
            named: false,
            path: Vec::new(),
            left: Vec::new(),
            items: false,
            heard: None,
            events_only: false,
            waiting: Vec::new(),
            early: None,
            uncounted: false,
            last: None,
        }
    }

    /// The first line tells which session it is. A fork's file repeats its parent's first line behind its own.
    fn begin(&mut self, text: &str) {
        if !self.threads.is_empty() {
            return;
        }
        let line = Line::parse(text).unwrap_or_default();
        let meta = match line.text("type").as_deref() {
            Some("session_meta") => line.object("payload"),
            None => Some(line.clone()),
            Some(_) => None,
        };
        let meta = meta.unwrap_or_default();
        let own = |line: &Line<'_>, name: &str| {
            line.text(name).filter(|text| !text.is_empty()).map(Cow::into_owned)
        };
        let session = own(&meta, "id").or_else(|| own(&meta, "session_id"));
        let id = match (&session, &self.fallback) {
            (Some(session), _) => conversation_id(&[NAME, session]),
            (None, Some(name)) => conversation_id(&[NAME, "file", name]),
            (None, None) => conversation_id(&[NAME, "line", text]),
        };
        let spawned =
            meta.object("source").and_then(|source| source.object("subagent")?.object("thread_spawn"));
        let parent = ["parent_thread_id", "forked_from_id"].iter().find_map(|name| own(&meta, name));
        let parent = parent.or_else(|| own(spawned.as_ref()?, "parent_thread_id"));
        let branch = meta.object("git").and_then(|git| own(&git, "branch"));
        let origin = ImportOrigin {
            format: AgentFormat::Codex.name(),
            agent: spawned.as_ref().and_then(|spawned| own(spawned, "agent_nickname")),
            parent: parent.map(|parent| conversation_id(&[NAME, &parent])),
            cwd: own(&meta, "cwd"),
            git_branch: branch,
            version: own(&meta, "cli_version"),
            session,
        };
        self.threads.push(Thread { id, origin, branch: None });
    }

    fn name(&mut self, text: &str) -> u64 {
        let spelt = name_of(&["line", text]);
        let count = self.seen.entry(spelt).or_default();
        *count += 1;
        nth(spelt, u64::from(*count - 1))
    }

    fn titled(&mut self, text: Option<&str>) -> Option<String> {
        let title = prompt_title(text.filter(|_| !self.titled)?)?;
        self.titled = true;
        Some(title)
    }

    /// A message that came as an event becomes a turn, if there are no items.
    fn hear(&mut self, message: Option<(AgentEntry, Kind)>, out: &mut Vec<AgentEntry>) {
        if let Some((mut heard, kind)) = self.heard.take().filter(|_| !self.items) {
            self.events_only = true;
            if let EntryContent::Turn(said) = &mut heard.step {
                said.supersedes = self.stands(heard.name, kind);
            }
            out.push(heard);
        }
        self.heard = message;
    }

    /// Records that a turn is current; returns the turns that it supersedes.
    fn stands(&mut self, name: u64, kind: Kind) -> Vec<u64> {
        self.path.push(OnPath { name, kind });
        std::mem::take(&mut self.left)
    }

    /// Takes back the last prompts, everything after them, and what the program said right before. What comes before the
    /// first prompt stays.
    fn roll_back(&mut self, prompts: u64) {
        let places = (0..self.path.len()).filter(|at| self.path[*at].kind == Kind::Prompt);
        let places: Vec<usize> = places.collect();
        let kept = places.len().saturating_sub(usize::try_from(prompts).unwrap_or(usize::MAX));
        let (Some(first), Some(mut cut)) = (places.first(), places.get(kept).copied()) else { return };
        while cut > *first && self.path[cut - 1].kind == Kind::Context {
            cut -= 1;
        }
        self.left.extend(self.path.drain(cut..).map(|turn| turn.name));
        self.titled = self.named || kept > 0;
    }

    /// Emits the entries of a line, now or when the answer before it is counted.
    fn give(
        &mut self,
        now: Vec<AgentEntry>,
        tokens: Option<Tokens>,
        answer: bool,
        out: &mut Vec<AgentEntry>,
    ) {
        let events = now.iter().all(|entry| matches!(entry.step, EntryContent::Event { .. }));
        let full = self.waiting.len() >= WAITING_MAX;
        // An answer that was counted before it came ends where somebody else speaks, or with the next count.
        let ends = tokens.is_some() || full || !events && !answer;
        let early = self.early.take_if(|_| ends);
        let counted = early.or(tokens);
        match self.waiting.first_mut() {
            Some(AgentEntry { step: EntryContent::Turn(said), .. }) if ends => {
                said.tokens = counted;
                self.uncounted = counted.is_none();
                self.early = tokens.filter(|_| early.is_some());
            }
            // The count of an answer that has passed stays in the event.
            _ if tokens.is_some() => self.early = tokens.filter(|_| !std::mem::take(&mut self.uncounted)),
            _ => {}
        }
        if ends || !events {
            out.append(&mut self.waiting);
        }
        let waits = answer || !self.waiting.is_empty();
        if waits { self.waiting.extend(now) } else { out.extend(now) }
    }

    /// The tokens of an answer, unless they were counted before.
    fn counted(&mut self, payload: &Line<'_>) -> Option<Tokens> {
        let usage = payload.object("info")?.object("last_token_usage")?;
        let count = payload.raw("info").map(str::to_string);
        if std::mem::replace(&mut self.last, count.clone()) == count {
            return None;
        }
        let (prompt, completion) = (usage.number("input_tokens"), usage.number("output_tokens"));
        (prompt.is_some() || completion.is_some()).then_some(Tokens { prompt, completion })
    }

    fn item(&mut self, item: &str, name: u64, line: &Line<'_>) -> Option<(ParsedTurn, Option<String>, Kind)> {
        let fields = Line::parse(item)?;
        let role = message::role(&speaker(&fields)).ok()?;
        let spoken = fields.text("type").as_deref() == Some("message") || fields.raw("role").is_some();
        self.items |= spoken;
        let mut metadata = BTreeMap::new();
        if line.raw("payload").is_some() {
            metadata.insert(NAME.to_string(), made(line.without("payload")));
        }
        let (kind, title) = match role {
            Role::User => {
                let text = words(fields.raw("content").unwrap_or_default());
                let kind = if speech::words(&text).is_ok() { Kind::Prompt } else { Kind::Context };
                (kind, self.titled(Some(&text).filter(|_| spoken).map(String::as_str)))
            }
            Role::System => (Kind::Context, None),
            Role::Assistant => (Kind::Answer, None),
            Role::Tool => (Kind::Result, None),
        };
        let said = ParsedTurn {
            message: item.to_string(),
            model: self.model.clone().filter(|_| kind == Kind::Answer),
            metadata,
            supersedes: self.stands(name, kind),
            ..ParsedTurn::default()
        };
        Some((said, title, kind))
    }
}

impl Mapper for Codex {
    fn threads(&self) -> &[Thread] {
        &self.threads
    }

    fn take(&mut self, number: u64, text: &str, given: &mut Vec<AgentEntry>) {
        let mut now = Vec::new();
        let out = &mut now;
        let (mut tokens, mut answer) = (None, false);
        self.begin(text);
        let name = self.name(text);
        let line = Line::parse(text).unwrap_or_default();
        let at = line.time("timestamp");
        let body = || made(text.to_string());
        let kind = line.text("type").unwrap_or_default();
        let payload = line.object("payload");
        let entry = |step, title| AgentEntry { thread: 0, line: number, name, key: name, at, title, step };
        match (kind.as_ref(), &payload) {
            ("response_item", Some(payload)) => {
                let item = line.raw("payload").unwrap_or_default();
                out.push(match self.item(item, name, &line) {
                    Some((said, title, kind)) => {
                        answer = kind == Kind::Answer;
                        entry(EntryContent::Turn(Box::new(said)), title)
                    }
                    None => entry(EntryContent::Event { what: what(&kind, payload), body: body() }, None),
                });
            }
            ("compacted", Some(payload)) => {
                let summary = summary(payload);
                let what = what(&kind, payload);
                out.push(match summary.is_empty() {
                    true => entry(EntryContent::Event { what, body: body() }, None),
                    false => entry(
                        EntryContent::Compaction {
                            what,
                            summary,
                            tokens_before: None,
                            kept: None,
                            body: body(),
                        },
                        None,
                    ),
                });
            }
            (_, Some(payload)) => {
                if kind == "turn_context" {
                    self.model = payload.text("model").map(Cow::into_owned).or(self.model.take());
                }
                let inner = payload.text("type").unwrap_or_default();
                if inner == "token_count" {
                    tokens = self.counted(payload);
                }
                let mut renamed = None;
                if kind == "event_msg" && matches!(inner.as_ref(), "user_message" | "agent_message") {
                    let (role, spoken) = match inner.as_ref() {
                        "user_message" => ("user", Kind::Prompt),
                        _ => ("assistant", Kind::Answer),
                    };
                    let heard = payload.text("message").filter(|_| !self.items).map(|words| {
                        let message = format!("{{\"role\":\"{role}\",\"content\":{}}}", quote(&words));
                        let model = self.model.clone().filter(|_| role == "assistant");
                        let name = name_of(&["heard", &name.to_string()]);
                        let said = ParsedTurn { message, model, ..ParsedTurn::default() };
                        let turn = EntryContent::Turn(Box::new(said));
                        (AgentEntry { name, key: name, ..entry(turn, None) }, spoken)
                    });
                    self.hear(heard, out);
                    if role == "user" {
                        renamed = self.titled(payload.text("message").as_deref());
                    }
                }
                if inner == "thread_name_updated" {
                    renamed = payload.text("thread_name").as_deref().and_then(title);
                    self.named |= renamed.is_some();
                    self.titled |= self.named;
                }
                if inner == "thread_rolled_back" {
                    self.hear(None, out);
                    self.roll_back(payload.number("num_turns").unwrap_or_default());
                }
                out.push(entry(EntryContent::Event { what: what(&kind, payload), body: body() }, renamed));
            }
            (_, None) => out.push(match self.item(text, name, &line) {
                Some((said, title, _)) => entry(EntryContent::Turn(Box::new(said)), title),
                None => entry(EntryContent::Event { what: what(&kind, &line), body: body() }, None),
            }),
        }
        self.give(now, tokens, answer, given);
    }

    fn keep(&mut self, number: u64, what: &str, body: Raw, _taken: Option<&str>, out: &mut Vec<AgentEntry>) {
        self.begin(body.get());
        let name = self.name(body.get());
        let step = EntryContent::Event { what: what.into(), body };
        let at: Option<Timestamp> = None;
        let entry = AgentEntry { thread: 0, line: number, name, key: name, at, title: None, step };
        self.give(vec![entry], None, false, out);
    }

    fn settle(&mut self, out: &mut Vec<AgentEntry>) {
        if let Some(AgentEntry { step: EntryContent::Turn(said), .. }) = self.waiting.first_mut() {
            said.tokens = self.early.take();
        }
        out.append(&mut self.waiting);
        // The item that it repeats may still come, unless this is known to be a file without.
        if self.events_only {
            self.hear(None, out);
        }
    }
}

/// The fields of an item that say in which role it speaks.
fn speaker(item: &Line<'_>) -> Value {
    let fields =
        ["role", "type"].into_iter().filter_map(|name| Some((name.to_string(), item.text(name)?.into())));
    Value::Object(fields.collect())
}

fn what(kind: &str, payload: &Line<'_>) -> String {
    match (kind, payload.text("type")) {
        ("", Some(inner)) => inner.into_owned(),
        ("", None) if payload.raw("record_type").is_some() => "record".into(),
        ("", None) => "session".into(),
        (kind, Some(inner)) if inner != kind => format!("{kind}/{inner}"),
        (kind, _) => kind.into(),
    }
}

/// Summary of a compaction, with the history that replaces everything before it: what people said, word for word.
fn summary(payload: &Line<'_>) -> String {
    let message = payload.text("message").filter(|message| !message.trim().is_empty());
    let mut out = message.as_deref().map(str::to_string).unwrap_or_default();
    let items: Vec<&RawValue> = payload.list("replacement_history").unwrap_or_default();
    for item in items.iter().filter_map(|item| Line::parse(item.get())) {
        let text = words(item.raw("content").unwrap_or_default());
        // The history ends with the summary itself, and begins with what the program says at every start.
        let is_told = message.as_deref().is_some_and(|message| {
            text.contains(message.trim())
                || item.text("role").as_deref() != Some("user")
                || speech::words(&text).is_err()
        });
        if text.trim().is_empty() || is_told {
            continue;
        }
        if out.len() + text.len() > SUMMARY_BYTES_MAX {
            break;
        }
        if !out.is_empty() {
            out += "\n\n";
        }
        out += &format!("{}: {text}", item.text("role").as_deref().unwrap_or("note"));
    }
    out
}
