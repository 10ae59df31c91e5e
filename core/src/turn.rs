//! A turn: one actor's contribution, in its current state.

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

/// Reasons of ended turns that programs recognise. Stored in the log, so they are frozen.
pub mod reason {
    use crate::Error;

    /// The generation of the turn was stopped by request.
    pub const STOPPED: &str = "stopped";

    /// The generation of the turn failed with this error.
    pub fn failed(error: &Error) -> String {
        format!("{}: {}", error.code(), error.text())
    }

    /// The text of a [`failed`] reason with this code. Any other reason is its own text.
    pub fn text<'r>(reason: &'r str, code: &str) -> &'r str {
        reason.strip_prefix(code).and_then(|text| text.strip_prefix(": ")).unwrap_or(reason)
    }
}

/// Role of an actor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A person or program that asks.
    User,
    /// The model.
    Assistant,
    /// Instructions inside the conversation (its system prompt is not a turn).
    System,
    /// A tool result.
    Tool,
}

/// Status of a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Open: chunks may still arrive.
    Pending,
    /// Finished.
    Complete,
    /// Ended by its writer; the text so far is kept.
    Aborted,
    /// Ended by a crash or by inactivity; durable text is kept.
    Interrupted,
}

/// Defines the names of an enum in JSON, SQL and errors.
#[doc(hidden)]
#[macro_export]
macro_rules! words {
    ($type:ident, $code:literal, $($variant:ident $word:literal),+) => {
        impl $type {
            /// The name in JSON and SQL.
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

/// The turn or the abort that superseded a turn.
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

/// A turn's row in a store: small, derived from its events, without content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TurnRow {
    /// Its id.
    pub id: TurnId,
    /// `seq` of the event that began it, which is its position in the log.
    pub seq: u64,
    /// Actor that spoke.
    pub actor: Option<String>,
    /// Role of the actor.
    pub role: Role,
    /// Current status.
    pub status: Status,
    /// Time at which the store accepted its beginning.
    pub created: Timestamp,
    /// `seq` of the event that carries its content, if different from `seq`.
    pub content_seq: Option<u64>,
    /// The turn or event that superseded it.
    pub superseded_by: Option<Successor>,
    /// `seq` of the event that superseded it.
    pub superseded_seq: Option<u64>,
    /// Position in reading order: its `seq`, or the smaller place of a turn that it supersedes. No two current turns
    /// have the same one.
    pub place: u64,
    /// `seq` of the last event that moved it to a smaller place.
    pub placed_seq: Option<u64>,
}

impl TurnRow {
    /// The row right after the event that began the turn; `None` if the event does not begin one.
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
            place: event.seq,
            placed_seq: None,
        })
    }

    /// The `seq` of each event that it depends on: its beginning, its content and what superseded it, each
    /// once.
    pub fn places(&self) -> impl Iterator<Item = u64> {
        let content = self.content_seq.filter(|seq| *seq != self.seq);
        let superseded = self.superseded_seq.filter(|seq| Some(*seq) != content);
        [Some(self.seq), content, superseded].into_iter().flatten()
    }

    /// The `seq` of each event that holds its text.
    pub fn bodies(&self) -> impl Iterator<Item = u64> {
        [Some(self.seq), self.content_seq].into_iter().flatten()
    }

    /// The row as of `seq`, which is how a fork sees an inherited turn. A turn that was still open there can
    /// never be finished in the fork, so it reads as interrupted.
    pub fn as_of(mut self, seq: u64) -> TurnRow {
        if self.superseded_seq.is_some_and(|at| at > seq) {
            (self.superseded_by, self.superseded_seq) = (None, None);
        }
        if self.placed_seq.is_some_and(|at| at > seq) {
            (self.place, self.placed_seq) = (self.seq, None);
        }
        if self.status == Status::Pending || self.content_seq.is_some_and(|at| at > seq) {
            (self.status, self.content_seq) = (Status::Interrupted, None);
        }
        self
    }
}

/// Joins chunks in the order of their offsets. A chunk that was written again after a failure overlaps the one
/// before it and replaces it; text after a gap is discarded.
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

/// Token counts reported by a provider.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Tokens {
    /// Tokens of the prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<u64>,
    /// Tokens of the completion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion: Option<u64>,
}

/// The body of an event that carries a turn's content. The message is kept exactly as given.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TurnBody {
    /// The message as given; absent in `turn.opened`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Raw>,
    /// Token counts reported by the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Tokens>,
    /// Model that produced it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Client or importer that it came through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    /// Metadata of the caller.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, Raw>,
    /// Actors that a private turn is addressed to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub audience: Vec<String>,
    /// Reason for an abort or interruption.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The original of a copied turn, and the originals of that one. Erasing any of them erases this turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copy_of: Vec<TurnId>,
    /// The event object of an imported transcript value, where it has more than the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<Raw>,
}

/// A stretch of the texts of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Spoken {
    /// Kind of notice, if a program wrote it in the user's name (`reminder`, `editor state`, …).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<Cow<'static, str>>,
    /// The text.
    pub text: String,
}

/// Durable text of an open turn. It survives a crash; text that came later may not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PartialTurn")]
pub struct Partial {
    /// The text. Empty while secrets are masked: they may be cut between two chunks, so nothing is stored before the
    /// end.
    pub text: String,
    /// Its length in bytes, which is the offset of the next chunk.
    pub offset: u64,
}

impl Partial {
    /// The text so far.
    pub fn new(text: String) -> Partial {
        Partial { offset: text.len() as u64, text }
    }
}

/// A turn: one actor's contribution, in its current state.
#[derive(Clone, Debug, PartialEq, JsonSchema)]
#[schemars(transform = describe_content)]
pub struct Turn {
    /// Its id.
    pub id: TurnId,
    /// The conversation it was read from.
    pub conversation: ConversationId,
    /// Position in the log.
    pub seq: u64,
    /// Position in reading order: that of the turn that it supersedes, else its `seq`.
    #[schemars(
        with = "Option<u64>",
        description = "Position in reading order, where it is not `seq`: that of the turn that it supersedes.",
        skip_serializing_if = "Option::is_none"
    )]
    pub place: u64,
    /// Actor that spoke.
    #[schemars(skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
    /// Role of the actor.
    pub role: Role,
    /// Speaker, where it is not the one that `role` names.
    #[schemars(
        description = "Speaker, where it is not the one that `role` names: `tool` for the results of tools in a message of the user, or the kind of notice that a program wrote in the user's name (`command`, `reminder`, `environment`, …).",
        skip_serializing_if = "Option::is_none"
    )]
    pub speaker: Option<Cow<'static, str>>,
    /// The texts of the message, split by speaker, where a program wrote some of what a person sent.
    #[schemars(
        description = "The texts of the message, in their order, split by speaker: present where a program wrote some of what a person sent (reminders, the state of an editor, hooks).",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub spoken: Vec<Spoken>,
    /// The message as given; `None` if erased, or still open: then see `partial`.
    #[schemars(
        description = "The whole message, where it has more fields than these.",
        skip_serializing_if = "Option::is_none"
    )]
    pub message: Option<Raw>,
    /// Current status.
    pub status: Status,
    /// Durable text so far, of an open turn.
    #[schemars(skip_serializing_if = "Option::is_none")]
    pub partial: Option<Partial>,
    /// Token counts reported by the provider.
    #[schemars(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Tokens>,
    /// Model that produced it.
    #[schemars(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Client or importer that it came through.
    #[schemars(skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    /// Metadata of the caller, and `secrets` where redaction found any.
    pub metadata: BTreeMap<String, Raw>,
    /// Reason for an abort or interruption.
    #[schemars(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Time at which the store accepted its beginning.
    pub created: Timestamp,
    /// Time at which it was said, according to the client or importer.
    #[schemars(skip_serializing_if = "Option::is_none")]
    pub occurred_at: Option<Timestamp>,
    /// `public`, `internal`, or `private`: for its own actor and its audience only.
    pub visibility: Visibility,
    /// Actors that a private turn is addressed to.
    #[schemars(skip_serializing_if = "Vec::is_empty")]
    pub audience: Vec<String>,
    /// Whether its content, or a private block of it, is left out because it is not for the caller; absent if not.
    #[schemars(skip_serializing_if = "std::ops::Not::not")]
    pub hidden: bool,
    /// The turn or event that superseded it.
    #[schemars(skip_serializing_if = "Option::is_none")]
    pub superseded_by: Option<Successor>,
    /// Whether its content was erased; absent if not.
    #[schemars(skip_serializing_if = "std::ops::Not::not")]
    pub erased: bool,
}

impl Turn {
    /// The turn right after the event that began it; `None` if the event does not begin one.
    pub fn begun(event: &Event) -> Option<Turn> {
        TurnRow::begun(event).map(|row| Turn::read(event.conversation, row, event))
    }

    /// Whether this is a later version of the same message, imported from a file that was still growing. Another answer to
    /// the same prompt has a different time, because the provider was called again for it.
    pub fn is_version_of(&self, earlier: &Turn) -> bool {
        let source = |turn: &Turn| Some((turn.role, turn.adapter.clone()?, turn.occurred_at?));
        earlier.superseded_by == Some(Successor::Turn(self.id))
            && source(self).is_some_and(|own| source(earlier) == Some(own))
    }

    /// Combines a row with the event that carries its content (for most turns, the event that began it).
    #[doc(hidden)]
    pub fn read(conversation: ConversationId, row: TurnRow, content: &Event) -> Turn {
        let body: TurnBody = content.read().unwrap_or_default();
        Turn {
            id: row.id,
            conversation,
            seq: row.seq,
            place: row.place,
            actor: row.actor,
            role: row.role,
            speaker: None,
            spoken: Vec::new(),
            message: body.message,
            status: row.status,
            partial: None,
            tokens: body.tokens,
            model: body.model,
            adapter: body.adapter,
            metadata: body.metadata,
            reason: body.reason,
            created: row.created,
            occurred_at: content.occurred_at,
            visibility: content.visibility,
            audience: body.audience,
            hidden: false,
            // A fork point may lie between an abort and a later replacement of the turn.
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

    /// The turn formatted for people by [`message::render`].
    pub fn text(&self, asset_label: impl Fn(&str) -> Option<String>) -> String {
        self.value().map(|message| message::render(&message, asset_label)).unwrap_or_default()
    }
}

/// Describes the message fields shown beside those of the turn. See [`Turn`]'s `Serialize`.
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
        if self.place != self.seq {
            map.serialize_entry("place", &self.place)?;
        }
        if let Some(actor) = &self.actor {
            map.serialize_entry("actor", actor)?;
        }
        map.serialize_entry("role", &self.role)?;
        if let Some(speaker) = &self.speaker {
            map.serialize_entry("speaker", speaker)?;
        }
        if !self.spoken.is_empty() {
            map.serialize_entry("spoken", &self.spoken)?;
        }
        let fields: BTreeMap<&str, &RawValue> =
            self.message.as_ref().and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default();
        for name in ["content", "tool_calls", "tool_results"] {
            if let Some(value) = fields.get(name) {
                map.serialize_entry(name, value)?;
            }
        }
        // A message with more fields than these (a Responses item, say) is also shown whole, so that nothing is
        // hidden.
        if fields.keys().any(|name| !matches!(*name, "role" | "content" | "tool_calls" | "tool_results")) {
            map.serialize_entry("message", &self.message)?;
        }
        map.serialize_entry("status", &self.status)?;
        if let Some(partial) = &self.partial {
            map.serialize_entry("partial", partial)?;
        }
        map.serialize_entry("visibility", &self.visibility)?;
        if !self.audience.is_empty() {
            map.serialize_entry("audience", &self.audience)?;
        }
        if self.hidden {
            map.serialize_entry("hidden", &true)?;
        }
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

/// Reads the form shown to callers. A message that was not shown whole is reassembled from its fields: it means
/// the same, and serialises to the same bytes.
impl<'de> Deserialize<'de> for Turn {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Turn, D::Error> {
        #[derive(Deserialize)]
        struct Told {
            id: TurnId,
            conversation: ConversationId,
            seq: u64,
            place: Option<u64>,
            actor: Option<String>,
            role: Role,
            speaker: Option<Cow<'static, str>>,
            #[serde(default)]
            spoken: Vec<Spoken>,
            #[serde(default, deserialize_with = "json::present")]
            content: Option<Raw>,
            #[serde(default, deserialize_with = "json::present")]
            tool_calls: Option<Raw>,
            #[serde(default, deserialize_with = "json::present")]
            tool_results: Option<Raw>,
            message: Option<Raw>,
            status: Status,
            partial: Option<Partial>,
            visibility: Visibility,
            #[serde(default)]
            audience: Vec<String>,
            #[serde(default)]
            hidden: bool,
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
            place: told.place.unwrap_or(told.seq),
            actor: told.actor,
            role: told.role,
            speaker: told.speaker,
            spoken: told.spoken,
            message,
            status: told.status,
            partial: told.partial,
            tokens: told.tokens,
            model: told.model,
            adapter: told.adapter,
            metadata: told.metadata,
            reason: told.reason,
            created: told.created,
            occurred_at: told.occurred_at,
            visibility: told.visibility,
            audience: told.audience,
            hidden: told.hidden,
            superseded_by: told.superseded_by,
            erased: told.erased,
        })
    }
}
