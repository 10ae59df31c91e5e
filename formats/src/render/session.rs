//! A conversation as a session file: the header, one line for each message or event, and the end.
//!
//! The types of lines are those that [`session`](crate::session) reads: exporting an imported file gives the same file.

use super::{Document, Out, Preamble, is_said, time, title};
use crate::session::{
    IMPORTED, MESSAGE, Mapped, Mapper, NewSession, Recorded, SessionFields, check_entry, line, role_of,
};
use everturn_core::Error;
use everturn_core::conversation::{Conversation, Lifecycle};
use everturn_core::event::{Event, kind};
use everturn_core::json::Raw;
use everturn_core::message::{MessagePart, block};
use everturn_core::time::Timestamp;
use everturn_core::turn::{Role, Turn};
use everturn_core::viewer::{Viewer, without_private};
use serde::Deserialize;
use serde_json::Value;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::io::Write;

const START: &str = "session_start";
const END: &str = "session_end";
/// Most calls that are remembered until their results come.
const CALLS_WAITING_MAX: usize = 1000;

pub struct SessionDocument<'a, W> {
    out: Out<W>,
    about: Preamble<'a>,
    has_begun: bool,
    /// Agent named in the header.
    agent: Option<String>,
    latest: Timestamp,
    entries: u64,
    by_type: BTreeMap<String, u64>,
    /// Tools of the calls without a result so far, by the id of the call. An import of the file knows them, too.
    calls: HashMap<String, String>,
    /// A `session_end` that may be the last line.
    end: Option<SessionFields>,
}

impl<'a, W: Write> SessionDocument<'a, W> {
    pub fn new(out: Out<W>, about: Preamble<'a>) -> SessionDocument<'a, W> {
        let latest = started(about.conversation);
        SessionDocument {
            out,
            about,
            has_begun: false,
            agent: None,
            latest,
            entries: 0,
            by_type: BTreeMap::new(),
            calls: HashMap::new(),
            end: None,
        }
    }

    /// Writes the header: the one that the conversation came with, or a new one.
    fn begin(&mut self, given: Option<&str>) -> Result<(), Error> {
        if std::mem::replace(&mut self.has_begun, true) {
            return Ok(());
        }
        let conversation = self.about.conversation;
        let header = match given {
            Some(text) => format!("{text}\n"),
            None => {
                let prompt = self.about.system_prompt.map(|prompt| &prompt.content);
                let named = [("title", conversation.title.as_ref()), ("system_prompt", prompt)];
                let extra = named.into_iter().filter_map(|(name, text)| Some((name.to_string(), text?)));
                let extra =
                    extra.map(|(name, text)| Ok((name, Raw::of(text)?))).collect::<Result<_, Error>>()?;
                let id = conversation.id.to_string();
                NewSession {
                    extra: SessionFields(extra),
                    ..NewSession::about(title(conversation), id, started(conversation))
                }
                .line()?
            }
        };
        let fields: SessionFields = serde_json::from_str(&header).unwrap_or_default();
        self.agent = fields.get("agent_provider").and_then(Raw::read::<Option<String>>).flatten();
        self.out.write(&header)
    }

    fn entry(&mut self, name: &str, at: Timestamp, fields: &SessionFields) -> Result<(), Error> {
        self.line(name, &line(name, at, fields)?)
    }

    fn line(&mut self, name: &str, text: &str) -> Result<(), Error> {
        self.begin(None)?;
        self.end = None;
        self.entries += 1;
        *self.by_type.entry(name.to_string()).or_default() += 1;
        self.out.write(text)
    }

    /// The tool of a call or a result; where a result does not name it, the call did.
    fn tool(&mut self, name: &str, fields: &mut SessionFields) -> Result<Option<String>, Error> {
        let named = fields.get("tool").and_then(Raw::read::<String>);
        let Some(id) = fields.get("call_id").and_then(Raw::read::<String>) else { return Ok(named) };
        match (name, named) {
            ("agent_tool_call", Some(tool)) => {
                if self.calls.len() < CALLS_WAITING_MAX {
                    self.calls.insert(id, tool.clone());
                }
                Ok(Some(tool))
            }
            ("tool_result", named) => {
                let called = self.calls.remove(&id);
                if let (None, Some(tool)) = (&named, &called) {
                    fields.0.insert(0, ("tool".into(), Raw::of(tool)?));
                }
                Ok(named.or(called))
            }
            (_, named) => Ok(named),
        }
    }

    /// Whether an import makes this turn of its message as a line.
    fn comes_back(&self, turn: &Turn, message: &Raw) -> bool {
        let recorded = Recorded::new(1, message.get().to_string());
        if matches!(recorded.kind.as_deref(), Some(START | END)) {
            return false;
        }
        let of_header = self.agent.as_ref().filter(|_| turn.role == Role::Assistant);
        match Mapper::resume(None, std::iter::empty()).step(&recorded) {
            Ok(Mapped::Turn { role, message: mapped, actor, model, .. }) => {
                let model = model.as_ref().or(of_header);
                (role, mapped.get(), &actor, model)
                    == (turn.role, message.get(), &turn.actor, turn.model.as_ref())
            }
            _ => false,
        }
    }

    /// Turns a message into lines of known types; `None` if it has content that these have no field for.
    fn lines(&self, turn: &Turn, message: &Raw) -> Option<Vec<(&'static str, SessionFields)>> {
        #[derive(Deserialize)]
        struct Message {
            #[serde(default)]
            content: Option<Raw>,
            #[serde(default)]
            tool_calls: Option<Vec<Raw>>,
            #[serde(default)]
            tool_call_id: Option<Raw>,
            #[serde(default)]
            tool_results: Option<Raw>,
            #[serde(default)]
            refusal: Option<Raw>,
        }
        let parsed: Message = message.read()?;
        if parsed.tool_results.is_some() || parsed.refusal.is_some_and(|refusal| refusal.get() != "null") {
            return None;
        }
        let content = parsed.content.as_ref().filter(|content| content.get() != "null");
        let mut lines = Vec::new();
        if let (Role::Tool, Some(id)) = (turn.role, &parsed.tool_call_id) {
            let name = message.read::<Value>()?["name"].as_str().map(str::to_string);
            let fields = fields([
                ("tool", name.map(|name| Raw::of(&name))),
                ("result", content.cloned().map(Ok)),
                ("call_id", Some(Ok(id.clone()))),
            ])?;
            return Some(vec![("tool_result", fields)]);
        }
        let speech = match turn.role {
            Role::User if turn.actor.as_deref() == Some("photographer") => "photographer_message",
            Role::User => "user_message",
            Role::Assistant => "agent_message",
            Role::System | Role::Tool => "",
        };
        match content {
            None => {}
            Some(text) if text.get().starts_with('"') && !speech.is_empty() => {
                lines.push((speech, SessionFields(vec![("text".into(), text.clone())])));
            }
            Some(blocks) => {
                for raw in blocks.read::<Vec<Raw>>()? {
                    lines.push(self::part(&raw, speech)?);
                }
            }
        }
        for call in parsed.tool_calls.unwrap_or_default() {
            lines.push(self::part(&call, speech)?);
        }
        (!lines.is_empty()).then_some(lines)
    }
}

/// Whether lines have the fields that their types need: a result may be without content, and a call without arguments.
fn are_complete(lines: &[(&'static str, SessionFields)]) -> bool {
    lines.iter().all(|(name, fields)| check_entry(name, fields).is_ok())
}

/// One block as a line.
fn part(raw: &Raw, speech: &'static str) -> Option<(&'static str, SessionFields)> {
    let value: Value = raw.read()?;
    // Any field besides these would be lost.
    let only = |names: &[&str]| {
        value.as_object().is_some_and(|own| own.keys().all(|key| names.contains(&key.as_str())))
    };
    let own: SessionFields = raw.read().unwrap_or_default();
    let taken = |names: &[&str]| names.iter().find_map(|name| own.get(name).cloned()).map(Ok);
    // A tool call of OpenAI's chat: its arguments are JSON in a string.
    if let Some(function) = own.get("function") {
        let function: SessionFields = function.read()?;
        let arguments = function.get("arguments").and_then(Raw::read::<String>);
        let parameters = arguments.map(|text| Raw::new(text.clone()).or_else(|_| Raw::of(&text)));
        let name = function.get("name").cloned().map(Ok);
        let made = [("tool", name), ("parameters", parameters), ("call_id", taken(&["id"]))];
        return Some(("agent_tool_call", fields(made)?));
    }
    match block(&value) {
        MessagePart::Text(_) if !speech.is_empty() && only(&["type", "text"]) => {
            Some((speech, fields([("text", taken(&["text"]))])?))
        }
        MessagePart::Thinking { text: Some(_), signed: false } if only(&["type", "thinking", "text"]) => {
            Some(("agent_thinking", fields([("text", taken(&["thinking", "text"]))])?))
        }
        MessagePart::Call { id, name, .. } => {
            let parameters = taken(&["arguments", "input"]);
            Some((
                "agent_tool_call",
                fields([
                    ("tool", Some(Raw::of(&name))),
                    ("parameters", parameters),
                    ("call_id", id.map(|id| Raw::of(&id))),
                ])?,
            ))
        }
        MessagePart::Result { id, name, .. } => {
            let made = [
                ("tool", name.map(|name| Raw::of(&name))),
                ("result", taken(&["content", "output"])),
                ("call_id", id.map(|id| Raw::of(&id))),
                ("is_error", taken(&["is_error"])),
            ];
            Some(("tool_result", fields(made)?))
        }
        _ => None,
    }
}

/// Start of the session: an imported one was created here long after its first turn.
fn started(conversation: &Conversation) -> Timestamp {
    conversation.began.map_or(conversation.created, |began| began.min(conversation.created))
}

fn fields<const N: usize>(named: [(&str, Option<Result<Raw, Error>>); N]) -> Option<SessionFields> {
    let present = named.into_iter().filter_map(|(name, raw)| Some((name.to_string(), raw?)));
    present.map(|(name, raw)| Some((name, raw.ok()?))).collect::<Option<Vec<_>>>().map(SessionFields)
}

impl<W: Write> Document for SessionDocument<'_, W> {
    fn turn(&mut self, turn: &Turn) -> Result<(), Error> {
        let Some(message) = turn.message.as_ref().filter(|_| is_said(turn)) else { return Ok(()) };
        // A line cannot say that it is not for everyone.
        let message = &match without_private(message.get()) {
            Some(Cow::Borrowed(_)) => message.clone(),
            Some(Cow::Owned(public)) => Raw::new(public)?,
            None => return Ok(()),
        };
        let at = time(turn);
        self.latest = self.latest.max(at);
        let mut whole: SessionFields = message.read().unwrap_or_default();
        let own_type = whole.get("type").and_then(Raw::read::<String>);
        let is_message = role_of(&whole).is_some();
        self.begin(None)?;
        // A message that looks like a line is one if an import makes this turn of it, and not if it is another's words then.
        let looks_like_one = is_message && whole.get("timestamp").and_then(Raw::read::<String>).is_some();
        if let Some(name) = own_type.as_ref().filter(|_| looks_like_one && self.comes_back(turn, message)) {
            return self.line(name, &format!("{}\n", message.get()));
        }
        let is_whole = own_type.is_some() && looks_like_one;
        let lines =
            if is_whole { None } else { self.lines(turn, message).filter(|lines| are_complete(lines)) };
        let Some(lines) = lines else {
            let mut rest: SessionFields =
                turn.metadata.get("session").and_then(Raw::read).unwrap_or_default();
            let original_time = rest.take("timestamp").and_then(|raw| raw.read::<Timestamp>());
            // A message that reads differently as a line: an item of Responses, Gemini's parts, a refusal.
            let differs =
                whole.get("refusal").is_some() || own_type.as_ref().is_some_and(|own| own != MESSAGE);
            if !is_message || differs || is_whole {
                whole = SessionFields(vec![(MESSAGE.into(), message.clone())]);
            }
            whole.take("type");
            // The line has a time of its own.
            let own_time = whole.take("timestamp");
            let said_at = own_time.as_ref().and_then(Raw::read::<Timestamp>);
            if let Some(own_time) =
                own_time.filter(|_| said_at.is_none() && whole.get("original_timestamp").is_none())
            {
                whole.0.push(("original_timestamp".into(), own_time));
            }
            for (name, given) in [("actor", &turn.actor), ("model", &turn.model)] {
                if let Some(given) = given.as_ref().filter(|_| whole.get(name).is_none()) {
                    whole.0.push((name.into(), Raw::of(given)?));
                }
            }
            whole.0.extend(rest.0);
            return self.entry(MESSAGE, said_at.or(original_time).unwrap_or(at), &whole);
        };
        let mut rest: SessionFields = turn.metadata.get("session").and_then(Raw::read).unwrap_or_default();
        let original_time = rest.take("timestamp").and_then(|raw| raw.read::<Timestamp>());
        for (name, mut fields) in lines {
            let tool = self.tool(name, &mut fields)?;
            let usual = match name {
                "user_message" => None,
                "photographer_message" => Some("photographer"),
                "tool_result" => tool.as_deref(),
                _ => Some("agent"),
            };
            if let Some(actor) = turn.actor.as_deref().filter(|actor| Some(*actor) != usual) {
                fields.0.push(("actor".into(), Raw::of(&actor)?));
            }
            let usual = self.agent.as_ref().filter(|_| turn.role == Role::Assistant);
            if let Some(model) = turn.model.as_ref().filter(|model| Some(*model) != usual) {
                fields.0.push(("model".into(), Raw::of(model)?));
            }
            // Once: they are about the line that the turn was made of.
            for (name, value) in std::mem::take(&mut rest.0) {
                if fields.get(&name).is_none() {
                    fields.0.push((name, value));
                }
            }
            self.entry(name, original_time.unwrap_or(at), &fields)?;
        }
        Ok(())
    }

    fn event(&mut self, event: &Event) -> Result<(), Error> {
        let name = event.kind.strip_prefix(IMPORTED).unwrap_or(&event.kind);
        let is_ours = kind::RESERVED.contains(&event.kind.as_str())
            || matches!(event.kind.as_str(), kind::IMPORT_FINISHED | kind::ASSET_ADDED);
        let is_for_everyone = || !Viewer::everyone().event(event.clone()).hidden;
        let Some(text) = event.text().filter(|_| !is_ours && is_for_everyone()) else { return Ok(()) };
        let at = event.occurred_at.unwrap_or(event.at);
        self.latest = self.latest.max(at);
        let mut own: SessionFields = serde_json::from_str(text).unwrap_or_default();
        let is_line = own.get("type").and_then(Raw::read::<String>).as_deref() == Some(name);
        match name {
            START if is_line && !self.has_begun => self.begin(Some(text)),
            END if is_line => {
                self.begin(None)?;
                self.end = Some(own);
                Ok(())
            }
            // Another session's header in the middle would end this one.
            START | END => Ok(()),
            name if is_line && own.get("timestamp").is_some() => {
                let name = name.to_string();
                self.line(&name, &format!("{text}\n"))
            }
            name => {
                if own.0.is_empty() && text != "{}" {
                    own.0.push(("body".into(), Raw::new(text.to_string())?));
                }
                own.take("type");
                own.take("timestamp");
                // An event may have any body, a line of a known type must have its fields.
                let name = match check_entry(name, &own) {
                    Ok(()) => name.to_string(),
                    Err(_) => format!("{IMPORTED}{name}"),
                };
                self.entry(&name, at, &own)
            }
        }
    }

    fn finish(mut self: Box<Self>) -> Result<(), Error> {
        self.begin(None)?;
        let conversation = self.about.conversation;
        // A session that goes on has no end: importing the longer file later adds the new lines.
        let mut fields = match self.end.take() {
            Some(end) => end,
            None if conversation.state == Lifecycle::Closed => SessionFields(vec![
                ("ended_at".into(), Raw::of(&self.latest)?),
                ("duration_s".into(), Raw::of(&seconds(started(conversation), self.latest))?),
            ]),
            None => return self.out.flush(),
        };
        let at = fields.take("timestamp").and_then(|raw| raw.read()).unwrap_or(self.latest);
        fields.take("type");
        for (name, value) in [("entries", Raw::of(&self.entries)?), ("by_type", Raw::of(&self.by_type)?)] {
            match fields.0.iter_mut().find(|(own, _)| own == name) {
                Some((_, own)) => *own = value,
                None => fields.0.push((name.into(), value)),
            }
        }
        self.out.write(&line(END, at, &fields)?)?;
        self.out.flush()
    }
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.0.saturating_sub(from.0).max(0) as f64 / 1e6
}
