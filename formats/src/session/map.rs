//! A session as a conversation: which line is a turn, and which is an event.
//!
//! | line | becomes |
//! |---|---|
//! | header | settings, and an event `session_start` with the header as its body |
//! | `photographer_message`, `user_message` | a user turn |
//! | `agent_message`, `assistant_message` | an assistant turn |
//! | `agent_thinking` | an assistant turn with one unsigned thinking block |
//! | `agent_tool_call` | an assistant turn with one tool call |
//! | `tool_result` | a tool turn |
//! | a message with `role` and `content` | that turn, of its `actor` and `model` |
//! | `message` with a message of any other shape under `message` | that turn, of its `actor` and `model` |
//! | anything else, `session_end` too | an event of its type with the line as its body |
//!
//! A line gives one step. Fields that a turn has no place for are in its metadata under `session`, so that nothing is
//! lost.

use super::entry::{SessionFields, needs_fields};
use super::read::Recorded;
use super::{END, START};
use crate::jsonl::{End, Header};
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::conversation::{Settings, SystemPrompt};
use everturn_core::event::{check_name, kind};
use everturn_core::id::ConversationId;
use everturn_core::json::{self, Raw};
use everturn_core::limits::{METADATA_BYTES_MAX, TITLE_BYTES_MAX};
use everturn_core::message;
use everturn_core::time::Timestamp;
use everturn_core::turn::Role;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};

/// Most tool calls that are remembered until their results come.
const PENDING_CALLS_MAX: usize = 1000;

/// Id of the conversation that a session becomes: the same whenever and wherever it is imported. A session's header
/// never changes, so the id is derived from it.
pub fn conversation_id(header: &Header) -> ConversationId {
    let mut bytes = [0; 16];
    let millis = header.started_at.map_or(0, Timestamp::millis);
    bytes[..6].copy_from_slice(&millis.to_be_bytes()[2..]);
    bytes[6..].copy_from_slice(&Hash::of(header.text.as_bytes()).0[..10]);
    ConversationId::from_bytes(bytes)
}

/// A step of the conversation, mapped from one line.
#[derive(Clone, PartialEq, Debug)]
pub enum Mapped {
    /// A message.
    Turn {
        /// Role of the turn.
        role: Role,
        /// The message made from this line, or the line itself if it is a message.
        message: Raw,
        /// Speaker, if the type of the line implies one.
        actor: Option<String>,
        /// Model that the line names; for turns of the agent, otherwise that of the header.
        model: Option<String>,
        /// Fields that the message has no place for, under `session`.
        metadata: BTreeMap<String, Raw>,
        /// Time of the turn.
        occurred_at: Option<Timestamp>,
    },
    /// Another event.
    Event {
        /// Type of the line. One that has a meaning to Everturn itself is prefixed with `imported.`.
        kind: String,
        /// The line as it came.
        body: Raw,
        /// Time of the event.
        occurred_at: Option<Timestamp>,
    },
}

/// Maps the lines of one session to steps, in order. It remembers which tool calls wait for their results, because a
/// session's lines need not name them.
pub struct Mapper {
    model: Option<String>,
    pending: VecDeque<(String, Option<String>)>,
}

/// In front of the type of a line that has not the meaning of that type.
pub(crate) const IMPORTED: &str = "imported.";
/// Type of a line that is a message or holds one, and the field that holds it.
pub(crate) const MESSAGE: &str = "message";
/// Names that programs use for the same field; the first is ours.
pub(super) const TEXT: [&str; 4] = ["text", "message", "content", "thinking"];
pub(super) const TOOL: [&str; 3] = ["tool", "name", "tool_name"];
pub(super) const PARAMETERS: [&str; 5] = ["parameters", "arguments", "args", "input", "params"];
const RESULT: [&str; 5] = ["result", "return_value", "value", "output", "content"];
pub(super) const CALL_ID: [&str; 4] = ["call_id", "tool_call_id", "tool_use_id", "id"];

#[derive(Serialize)]
struct Message<C> {
    role: Role,
    content: C,
}

#[derive(Serialize)]
struct Thinking {
    r#type: &'static str,
    thinking: Raw,
}

#[derive(Serialize)]
struct Call<'a> {
    r#type: &'static str,
    id: &'a str,
    name: &'a str,
    arguments: Raw,
}

#[derive(Serialize)]
struct ResultBlock<'a> {
    r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_use_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    content: Raw,
    #[serde(skip_serializing_if = "Option::is_none")]
    is_error: Option<bool>,
}

/// A line in parts: the fields that were understood are removed, the rest is kept.
struct Parts {
    role: Role,
    message: Raw,
    actor: Option<String>,
}

impl Mapper {
    /// Mapper for the session with this header.
    pub fn new(header: &Header) -> Mapper {
        let fields: SessionFields = serde_json::from_str(&header.text).unwrap_or_default();
        Mapper { model: model(&fields), pending: VecDeque::new() }
    }

    /// Continues a session, given its header and the calls without a result, oldest first.
    pub fn resume(header: Option<&str>, waiting: impl Iterator<Item = (String, Option<String>)>) -> Mapper {
        let fields: SessionFields =
            header.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        Mapper { model: model(&fields), pending: waiting.take(PENDING_CALLS_MAX).collect() }
    }

    /// Initial settings of the conversation. The header is in their metadata under `session`, unless it is too large
    /// for that; it is in the first event in any case.
    pub fn settings(header: &Header) -> Result<Settings, Error> {
        let title = header.title.clone().filter(|title| title.len() <= TITLE_BYTES_MAX).map(Some);
        let fields: SessionFields = serde_json::from_str(&header.text).unwrap_or_default();
        let prompt = fields.get("system_prompt").and_then(Raw::read::<String>);
        let system_prompt = prompt.map(|prompt| Some(SystemPrompt::new(prompt)));
        let mut settings = Settings { title, system_prompt, ..Settings::default() };
        if header.text.len() <= METADATA_BYTES_MAX / 2 {
            settings.metadata.insert("session".into(), Raw::new(header.text.clone())?);
        }
        Ok(settings)
    }

    /// The first event.
    pub fn start(header: &Header) -> Result<Mapped, Error> {
        event(Some(START), &header.text, header.started_at)
    }

    /// The last event.
    pub fn end(end: &End) -> Result<Mapped, Error> {
        let at = Recorded::new(end.line, end.text.clone()).at;
        event(Some(END), &end.text, at)
    }

    /// Maps a line between them.
    pub fn step(&mut self, recorded: &Recorded) -> Result<Mapped, Error> {
        let mut fields = recorded.fields();
        fields.take("type");
        let timestamp = fields.take("timestamp");
        let parts = match recorded.kind.as_deref() {
            Some("photographer_message") => words(Role::User, Some("photographer"), &mut fields)?,
            Some("user_message") => words(Role::User, None, &mut fields)?,
            Some("agent_message" | "assistant_message") => {
                words(Role::Assistant, Some("agent"), &mut fields)?
            }
            Some("agent_thinking") => thinking(&mut fields)?,
            Some("agent_tool_call") => self.call(recorded.line, &mut fields)?,
            Some("tool_result") => self.result(&mut fields)?,
            Some(MESSAGE) if role_of(&fields).is_none() => whole(&mut fields),
            _ => None,
        };
        let said = |role, message, actor, model: Option<String>, metadata| Mapped::Turn {
            role,
            message,
            actor,
            model: model.or_else(|| self.model.clone().filter(|_| role == Role::Assistant)),
            metadata,
            occurred_at: recorded.at,
        };
        let named = |raw: &Raw| raw.read::<String>().filter(|name| check_name("actor", name).is_ok());
        match parts {
            Some(Parts { role, message, actor }) if fits(message.get()) => {
                let actor = take(&mut fields, "actor", named).or(actor);
                let model = take(&mut fields, "model", named);
                // A time that loses precision in our format is kept as written, too.
                if let Some(raw) = timestamp.filter(|raw| !same_time(raw, recorded.at)) {
                    fields.0.insert(0, ("timestamp".into(), raw));
                }
                let mut metadata = BTreeMap::new();
                if !fields.0.is_empty() {
                    metadata.insert("session".into(), Raw::of(&fields)?);
                }
                Ok(said(role, message, actor, model, metadata))
            }
            _ => match role_of(&recorded.fields()) {
                Some(role) if fits(&recorded.text) => {
                    let own = recorded.fields();
                    let [actor, model] = ["actor", "model"].map(|name| own.get(name).and_then(named));
                    Ok(said(role, Raw::new(recorded.text.clone())?, actor, model, BTreeMap::new()))
                }
                _ => event(recorded.kind.as_deref(), &recorded.text, recorded.at),
            },
        }
    }

    fn call(&mut self, line: u64, fields: &mut SessionFields) -> Result<Option<Parts>, Error> {
        let Some(name) = text(fields, &TOOL) else { return Ok(None) };
        let id = text(fields, &CALL_ID).unwrap_or_else(|| format!("call_{line}"));
        let arguments = any(fields, &PARAMETERS).map_or_else(|| Raw::new("{}".into()), Ok)?;
        let block = Call { r#type: "tool_call", id: &id, name: &name, arguments };
        let message = Raw::of(&Message { role: Role::Assistant, content: [block] })?;
        if self.pending.len() == PENDING_CALLS_MAX {
            self.pending.pop_front();
        }
        self.pending.push_back((id, Some(name)));
        Ok(Some(Parts { role: Role::Assistant, message, actor: Some("agent".into()) }))
    }

    fn result(&mut self, fields: &mut SessionFields) -> Result<Option<Parts>, Error> {
        let named = text(fields, &TOOL);
        let given = text(fields, &CALL_ID);
        let is_error = fields.get("is_error").and_then(Raw::read::<bool>);
        if is_error.is_some() {
            fields.take("is_error");
        }
        // A result that names no call answers the oldest waiting call, of its tool if it names one.
        let waits = |(id, tool): &(String, Option<String>)| match (&given, &named) {
            (Some(given), _) => id == given,
            (None, Some(_)) => *tool == named,
            (None, None) => true,
        };
        let answered = self.pending.iter().position(waits).and_then(|at| self.pending.remove(at));
        let id = given.or(answered.as_ref().map(|(id, _)| id.clone()));
        let tool = named.or(answered.and_then(|(_, tool)| tool));
        // Without a field for it, the rest of the line is the result.
        let content = match any(fields, &RESULT) {
            Some(content) => content,
            None => Raw::of(&std::mem::take(fields))?,
        };
        let block = ResultBlock {
            r#type: "tool_result",
            tool_use_id: id.as_deref(),
            name: tool.as_deref(),
            content,
            is_error,
        };
        let message = Raw::of(&Message { role: Role::Tool, content: [block] })?;
        let actor = tool.filter(|tool| check_name("actor", tool).is_ok());
        Ok(Some(Parts { role: Role::Tool, message, actor }))
    }
}

/// The model that a header names.
fn model(header: &SessionFields) -> Option<String> {
    header.get("agent_provider").and_then(Raw::read::<Option<String>>).flatten()
}

fn words(role: Role, actor: Option<&str>, fields: &mut SessionFields) -> Result<Option<Parts>, Error> {
    let readable = |raw: &Raw| raw.get().starts_with(['"', '[']);
    let Some(content) = any_that(fields, &TEXT, readable) else { return Ok(None) };
    let message = Raw::of(&Message { role, content })?;
    Ok(Some(Parts { role, message, actor: actor.map(str::to_string) }))
}

fn thinking(fields: &mut SessionFields) -> Result<Option<Parts>, Error> {
    let Some(thinking) = any_that(fields, &TEXT, |raw| raw.get().starts_with('"')) else { return Ok(None) };
    let block = Thinking { r#type: "thinking", thinking };
    let message = Raw::of(&Message { role: Role::Assistant, content: [block] })?;
    Ok(Some(Parts { role: Role::Assistant, message, actor: Some("agent".into()) }))
}

fn event(kind: Option<&str>, text: &str, occurred_at: Option<Timestamp>) -> Result<Mapped, Error> {
    const UNNAMED: &str = "imported.entry";
    // It was written so because it lacks what a line of its type needs.
    let bare = kind.and_then(|name| name.strip_prefix(IMPORTED)).filter(|bare| needs_fields(bare));
    let kind = match bare.or(kind) {
        // Everturn's own kinds would have an effect on the conversation; most have a dot in their name.
        Some(name) if name.contains('.') || kind::RESERVED.contains(&name) => format!("{IMPORTED}{name}"),
        Some(name) => name.to_string(),
        None => UNNAMED.to_string(),
    };
    let kind = if check_name("kind", &kind).is_ok() { kind } else { UNNAMED.to_string() };
    Ok(Mapped::Event { kind, body: Raw::new(text.to_string())?, occurred_at })
}

/// A message that would not be one as a line: it has a `type` of its own, or its content is elsewhere.
fn whole(fields: &mut SessionFields) -> Option<Parts> {
    let role = |raw: &Raw| message::role(&raw.read::<serde_json::Value>()?).ok();
    let role = fields.get(MESSAGE).and_then(role)?;
    Some(Parts { role, message: fields.take(MESSAGE)?, actor: None })
}

/// The role of a line that is a message by itself.
pub(crate) fn role_of(fields: &SessionFields) -> Option<Role> {
    let role: String = fields.get("role")?.read()?;
    fields.get("content").or_else(|| fields.get("tool_calls"))?;
    message::role(&serde_json::json!({ "role": role })).ok()
}

/// Whether the message is shallow enough: it is stored one level deeper.
fn fits(message: &str) -> bool {
    json::check(&format!("{{\"message\":{message}}}")).is_ok()
}

/// Whether our format of the time loses nothing of the original.
fn same_time(raw: &Raw, at: Option<Timestamp>) -> bool {
    let (Some(text), Some(at)) = (raw.read::<String>(), at) else { return false };
    let Some(text) = text.strip_suffix('Z') else { return false };
    let (second, fraction) = text.split_once('.').unwrap_or((text, ""));
    format!("{second}.{fraction:0<6}Z") == at.to_string()
}

/// Removes the first of these fields that is present.
fn any(fields: &mut SessionFields, names: &[&str]) -> Option<Raw> {
    any_that(fields, names, |_| true)
}

fn any_that(fields: &mut SessionFields, names: &[&str], so: impl Fn(&Raw) -> bool) -> Option<Raw> {
    let name = names.iter().find(|name| fields.get(name).is_some_and(&so))?;
    fields.take(name)
}

/// Removes a field that `read` accepts.
fn take<T>(fields: &mut SessionFields, name: &str, read: impl Fn(&Raw) -> Option<T>) -> Option<T> {
    let value = fields.get(name).and_then(read)?;
    fields.take(name);
    Some(value)
}

/// The same for a name or an id: a text that is not empty, or a number.
fn text(fields: &mut SessionFields, names: &[&str]) -> Option<String> {
    let read = |raw: &Raw| match raw.get().as_bytes().first() {
        Some(b'"') => raw.read::<String>().filter(|text| !text.is_empty()),
        Some(b'0'..=b'9' | b'-') => Some(raw.get().to_string()),
        _ => None,
    };
    let raw = any_that(fields, names, |raw| read(raw).is_some())?;
    read(&raw)
}
