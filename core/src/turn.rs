//! A turn: what one actor contributed, as the log says it stands now.

use crate::Error;
use crate::event::{Event, Visibility, kind};
use crate::id::{ConversationId, EventId, TurnId};
use crate::json::{self, Raw};
use crate::message;
use crate::time::Timestamp;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// In which role an actor speaks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A person, or whoever asks.
    User,
    /// The model.
    Assistant,
    /// Instructions inside the conversation (the session's own system prompt is not a turn).
    System,
    /// What a tool answered.
    Tool,
}

/// How far a turn has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Open: chunks may still arrive.
    Pending,
    /// Said.
    Complete,
    /// Given up by its writer; what was said so far is kept.
    Aborted,
    /// Cut by a crash or by silence; what was durable is kept.
    Interrupted,
}

/// The words of an enum in JSON, SQL and errors.
#[doc(hidden)]
#[macro_export]
macro_rules! words {
    ($type:ident, $code:literal, $($variant:ident $word:literal),+) => {
        impl $type {
            /// The word in JSON and SQL.
            pub fn as_str(self) -> &'static str {
                match self { $($type::$variant => $word),+ }
            }
        }

        impl ::std::fmt::Display for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl ::std::str::FromStr for $type {
            type Err = $crate::Error;

            fn from_str(text: &str) -> Result<Self, $crate::Error> {
                match text {
                    $($word => Ok($type::$variant),)+
                    other => Err($crate::Error::invalid($code, format!(
                        "{:?} is not one of {}", $crate::id::clip(other), [$($word),+].join(", ")
                    ))),
                }
            }
        }
    };
}
words!(Role, "role.unknown", User "user", Assistant "assistant", System "system", Tool "tool");
words!(Status, "status.unknown", Pending "pending", Complete "complete", Aborted "aborted", Interrupted "interrupted");

/// What took a turn's place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Successor {
    /// The turn that replaces it.
    Turn(TurnId),
    /// The event that ended it without a replacement.
    Event(EventId),
}

impl fmt::Display for Successor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Successor::Turn(id) => id.fmt(f),
            Successor::Event(id) => id.fmt(f),
        }
    }
}

impl FromStr for Successor {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        text.parse().map(Successor::Turn).or_else(|_| text.parse().map(Successor::Event))
    }
}

impl Serialize for Successor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Successor {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Cow::<str>::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Successor {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Successor".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "examples": ["turn_01JD0000000000000000000000"]})
    }
}

/// What a store keeps about a turn beside its events: derived from them, small, without content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TurnRow {
    /// Its id.
    pub id: TurnId,
    /// The place of the event that began it: its place in the history.
    pub seq: u64,
    /// Who spoke.
    pub actor: Option<String>,
    /// In which role.
    pub role: Role,
    /// How far it has come.
    pub status: Status,
    /// When the store took its beginning.
    pub created: Timestamp,
    /// The place of the event that carries its content, if that is another one than `seq`.
    pub content_seq: Option<u64>,
    /// What took its place.
    pub superseded_by: Option<Successor>,
    /// The place of the event that said so.
    pub superseded_seq: Option<u64>,
}

impl TurnRow {
    /// The row of a turn right after the event that began it; `None` if the event begins none.
    pub fn begun(event: &Event) -> Option<TurnRow> {
        let id = event.turn.filter(|turn| turn.0 == event.id.0 && kind::begins_turn(&event.kind))?;
        Some(TurnRow {
            id,
            seq: event.seq,
            actor: event.actor.clone(),
            role: event.role?,
            status: if event.kind == kind::OPENED { Status::Pending } else { Status::Complete },
            created: event.at,
            content_seq: None,
            superseded_by: None,
            superseded_seq: None,
        })
    }

    /// The places of the events that it rests on: its beginning, its content and what superseded it, each once.
    pub fn places(&self) -> impl Iterator<Item = u64> {
        let content = self.content_seq.filter(|seq| *seq != self.seq);
        let superseded = self.superseded_seq.filter(|seq| Some(*seq) != content);
        [Some(self.seq), content, superseded].into_iter().flatten()
    }

    /// Places of the events that hold its words.
    pub fn bodies(&self) -> impl Iterator<Item = u64> {
        [Some(self.seq), self.content_seq].into_iter().flatten()
    }

    /// The row as it stood when the log ended at `seq`: how a fork sees what it inherited. A turn that was still open
    /// there will never be finished on this side, so it reads as interrupted.
    pub fn as_of(mut self, seq: u64) -> TurnRow {
        if self.superseded_seq.is_some_and(|at| at > seq) {
            (self.superseded_by, self.superseded_seq) = (None, None);
        }
        if self.status == Status::Pending || self.content_seq.is_some_and(|at| at > seq) {
            (self.status, self.content_seq) = (Status::Interrupted, None);
        }
        self
    }
}

/// The text of pieces in order of their offsets. A piece that was written again after a failure overlaps the one before
/// it and replaces it; what comes after a hole is not the text any more.
pub fn join_chunks(pieces: impl IntoIterator<Item = (u64, String)>) -> String {
    let mut out = String::new();
    for (offset, text) in pieces {
        let offset = offset as usize;
        if !out.is_char_boundary(offset) {
            break;
        }
        out.truncate(offset);
        out.push_str(&text);
    }
    out
}

/// Tokens that a provider counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Tokens {
    /// What went in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<u64>,
    /// What came out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion: Option<u64>,
}

/// The body of an event that carries a turn's content. The message inside is exactly what was given.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TurnBody {
    /// The message as it came; absent in `turn.opened`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Raw>,
    /// Tokens that the provider counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Tokens>,
    /// Which model said it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Through which client or importer it came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    /// Whatever the caller wants to keep with it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, Raw>,
    /// Why an open turn was aborted or interrupted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The event object of an imported transcript value, where it says more than the message does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<Raw>,
}

/// One actor's contribution, as it stands now.
#[derive(Clone, Debug, PartialEq, JsonSchema)]
#[schemars(transform = describe_content)]
pub struct Turn {
    /// Its id.
    pub id: TurnId,
    /// The conversation it was read from.
    pub conversation: ConversationId,
    /// Its place in the history.
    pub seq: u64,
    /// Who spoke.
    #[schemars(skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
    /// In which role.
    pub role: Role,
    /// The message as it was given; `None` if erased, or still open.
    #[schemars(
        description = "The whole message, where it has more fields than these.",
        skip_serializing_if = "Option::is_none"
    )]
    pub message: Option<Raw>,
    /// How far it has come.
    pub status: Status,
    /// Tokens that the provider counted.
    #[schemars(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Tokens>,
    /// Which model said it.
    #[schemars(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Through which client or importer it came.
    #[schemars(skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    /// Whatever the caller keeps with it, and `secrets` where redaction found any.
    pub metadata: BTreeMap<String, Raw>,
    /// Why it was aborted or interrupted.
    #[schemars(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When the store took its beginning.
    pub created: Timestamp,
    /// When a client or importer says that it was said.
    #[schemars(skip_serializing_if = "Option::is_none")]
    pub occurred_at: Option<Timestamp>,
    /// Who may see it.
    pub visibility: Visibility,
    /// The turn, or the event, that took its place.
    #[schemars(skip_serializing_if = "Option::is_none")]
    pub superseded_by: Option<Successor>,
    /// Whether its content was erased; absent if not.
    #[schemars(skip_serializing_if = "std::ops::Not::not")]
    pub erased: bool,
}

impl Turn {
    /// A turn right after the event that began it; `None` if the event begins none.
    pub fn begun(event: &Event) -> Option<Turn> {
        TurnRow::begun(event).map(|row| Turn::read(event.conversation, row, event))
    }

    /// Puts a row and the event that carries its content (its own beginning, for most) together.
    pub fn read(conversation: ConversationId, row: TurnRow, content: &Event) -> Turn {
        let body: TurnBody = content.read().unwrap_or_default();
        Turn {
            id: row.id,
            conversation,
            seq: row.seq,
            actor: row.actor,
            role: row.role,
            message: body.message,
            status: row.status,
            tokens: body.tokens,
            model: body.model,
            adapter: body.adapter,
            metadata: body.metadata,
            reason: body.reason,
            created: row.created,
            occurred_at: content.occurred_at,
            visibility: content.visibility,
            // A fork may have left between an abort and what took the turn's place later.
            superseded_by: row
                .superseded_by
                .or((row.status == Status::Aborted).then_some(Successor::Event(content.id))),
            erased: content.body.is_none(),
        }
    }

    /// The message, parsed for reading.
    pub fn value(&self) -> Option<Value> {
        serde_json::from_str(self.message.as_ref()?.get()).ok()
    }

    /// The turn for people, as [`message::render`] writes it.
    pub fn text(&self, asset_label: impl Fn(&str) -> Option<String>) -> String {
        self.value().map(|message| message::render(&message, asset_label)).unwrap_or_default()
    }
}

/// The fields of the message that are shown beside those of the turn. See [`Turn`]'s `Serialize`.
fn describe_content(schema: &mut Schema) {
    let shown = [
        ("content", "A text, or blocks, byte for byte as given."),
        ("tool_calls", "Calls of tools, byte for byte as given."),
        ("tool_results", "Results of tools, byte for byte as given."),
    ];
    if let Some(fields) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        for (name, description) in shown {
            fields.insert(name.to_string(), json!({"description": description}));
        }
    }
}

impl Serialize for Turn {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("id", &self.id)?;
        map.serialize_entry("conversation", &self.conversation)?;
        map.serialize_entry("seq", &self.seq)?;
        if let Some(actor) = &self.actor {
            map.serialize_entry("actor", actor)?;
        }
        map.serialize_entry("role", &self.role)?;
        let fields: BTreeMap<&str, &RawValue> =
            self.message.as_ref().and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default();
        for name in ["content", "tool_calls", "tool_results"] {
            if let Some(value) = fields.get(name) {
                map.serialize_entry(name, value)?;
            }
        }
        // A shape with more than these (a Responses item, say) is shown whole as well, so that nothing is hidden.
        if fields.keys().any(|name| !matches!(*name, "role" | "content" | "tool_calls" | "tool_results")) {
            map.serialize_entry("message", &self.message)?;
        }
        map.serialize_entry("status", &self.status)?;
        map.serialize_entry("visibility", &self.visibility)?;
        if let Some(tokens) = &self.tokens {
            map.serialize_entry("tokens", tokens)?;
        }
        for (name, value) in [("model", &self.model), ("adapter", &self.adapter), ("reason", &self.reason)] {
            if let Some(value) = value {
                map.serialize_entry(name, value)?;
            }
        }
        map.serialize_entry("metadata", &self.metadata)?;
        map.serialize_entry("created", &self.created)?;
        if let Some(at) = &self.occurred_at {
            map.serialize_entry("occurred_at", at)?;
        }
        if let Some(by) = &self.superseded_by {
            map.serialize_entry("superseded_by", by)?;
        }
        if self.erased {
            map.serialize_entry("erased", &true)?;
        }
        map.end()
    }
}

/// What was written for a caller, read back. Of a message that was not shown whole, what was shown is put together
/// again: it says the same, and is written for another caller with the same bytes.
impl<'de> Deserialize<'de> for Turn {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Turn, D::Error> {
        #[derive(Deserialize)]
        struct Told {
            id: TurnId,
            conversation: ConversationId,
            seq: u64,
            actor: Option<String>,
            role: Role,
            #[serde(default, deserialize_with = "json::present")]
            content: Option<Raw>,
            #[serde(default, deserialize_with = "json::present")]
            tool_calls: Option<Raw>,
            #[serde(default, deserialize_with = "json::present")]
            tool_results: Option<Raw>,
            message: Option<Raw>,
            status: Status,
            visibility: Visibility,
            tokens: Option<Tokens>,
            model: Option<String>,
            adapter: Option<String>,
            reason: Option<String>,
            #[serde(default)]
            metadata: BTreeMap<String, Raw>,
            created: Timestamp,
            occurred_at: Option<Timestamp>,
            superseded_by: Option<Successor>,
            #[serde(default)]
            erased: bool,
        }
        let told = Told::deserialize(deserializer)?;
        let fields = [
            ("content", &told.content),
            ("tool_calls", &told.tool_calls),
            ("tool_results", &told.tool_results),
        ];
        let shown: String = fields
            .into_iter()
            .filter_map(|(name, value)| Some(format!(",\"{name}\":{}", value.as_ref()?.get())))
            .collect();
        let message = match told.message {
            None if !shown.is_empty() => {
                let text = format!("{{\"role\":\"{}\"{shown}}}", told.role);
                Some(Raw::new(text).map_err(serde::de::Error::custom)?)
            }
            message => message,
        };
        Ok(Turn {
            id: told.id,
            conversation: told.conversation,
            seq: told.seq,
            actor: told.actor,
            role: told.role,
            message,
            status: told.status,
            tokens: told.tokens,
            model: told.model,
            adapter: told.adapter,
            metadata: told.metadata,
            reason: told.reason,
            created: told.created,
            occurred_at: told.occurred_at,
            visibility: told.visibility,
            superseded_by: told.superseded_by,
            erased: told.erased,
        })
    }
}
