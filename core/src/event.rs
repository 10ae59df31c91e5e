//! An event: one entry of the log, with an envelope that is never rewritten and a body that can be erased but
//! not changed.

use crate::Error;
use crate::chain::Hash;
use crate::id::{ConversationId, EventId, TurnId};
use crate::json;
use crate::limits::{BODY_BYTES_MAX, NAME_BYTES_MAX};
use crate::time::Timestamp;
use crate::turn::Role;
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

/// Kinds that mean something to Everturn itself. The set is open: any other kind is stored and served
/// unchanged.
pub mod kind {
    #![allow(missing_docs, reason = "the names say it; the meaning of each is in `core::write`")]
    pub const CREATED: &str = "conversation.created";
    pub const UPDATED: &str = "conversation.updated";
    pub const STATE: &str = "conversation.state";
    pub const FORKED: &str = "conversation.forked";
    pub const SYSTEM_PROMPT: &str = "system_prompt";
    pub const MESSAGE: &str = "message";
    pub const TOOL_RESULT: &str = "tool_result";
    pub const OPENED: &str = "turn.opened";
    pub const COMMITTED: &str = "turn.committed";
    pub const ABORTED: &str = "turn.aborted";
    pub const INTERRUPTED: &str = "turn.interrupted";
    pub const SUPERSEDED: &str = "turn.superseded";
    pub const ERASED: &str = "turn.erased";
    pub const ASSET_ADDED: &str = "asset.added";
    pub const IMPORT_FINISHED: &str = "import.finished";
    pub const IMPORT_LINE: &str = "import.line";
    pub const COMPACTION: &str = "compaction";
    pub const BUDGET: &str = "transcript_budget";
    pub const PROJECTION: &str = "transcript.projection";
    pub const RECEIPT: &str = "context.receipt";
    pub const PIN: &str = "state.pin";
    pub const UNPIN: &str = "state.unpin";
    pub const SCRATCHPAD_SET: &str = "scratchpad.set";
    pub const SCRATCHPAD_CLEAR: &str = "scratchpad.clear";
    pub const APPROVAL_REQUESTED: &str = "approval.requested";
    pub const APPROVAL_RESOLVED: &str = "approval.resolved";
    pub const TOOL_STARTED: &str = "tool.started";
    pub const TOOL_FINISHED: &str = "tool.finished";
    pub const TOOL_ABANDONED: &str = "tool.abandoned";
    pub const FACT_EXTRACTED: &str = "fact.extracted";
    pub const FACT_ADDED: &str = "fact.added";
    pub const FACT_CORRECTED: &str = "fact.corrected";
    pub const FACT_RETRACTED: &str = "fact.retracted";
    pub const FACTS_READ: &str = "facts.read";

    /// Kinds that change a conversation or a turn. Only Everturn's own operations write them.
    pub const RESERVED: [&str; 22] = [
        CREATED,
        UPDATED,
        STATE,
        FORKED,
        SYSTEM_PROMPT,
        MESSAGE,
        TOOL_RESULT,
        OPENED,
        COMMITTED,
        ABORTED,
        INTERRUPTED,
        SUPERSEDED,
        ERASED,
        COMPACTION,
        BUDGET,
        PROJECTION,
        RECEIPT,
        FACT_EXTRACTED,
        FACT_ADDED,
        FACT_CORRECTED,
        FACT_RETRACTED,
        FACTS_READ,
    ];

    /// Whether an event of this kind states, corrects or retracts a fact.
    pub fn is_fact(kind: &str) -> bool {
        matches!(kind, FACT_EXTRACTED | FACT_ADDED | FACT_CORRECTED | FACT_RETRACTED)
    }

    /// Whether an event of this kind sets or changes a conversation's settings.
    pub fn is_settings(kind: &str) -> bool {
        matches!(kind, CREATED | UPDATED | FORKED)
    }

    /// Whether an event of this kind begins a turn.
    pub fn begins_turn(kind: &str) -> bool {
        matches!(kind, MESSAGE | TOOL_RESULT | OPENED)
    }

    /// Whether an event of this kind ends an open turn and carries its content.
    pub fn ends_turn(kind: &str) -> bool {
        matches!(kind, COMMITTED | ABORTED | INTERRUPTED)
    }

    /// Whether an event of this kind begins or ends a turn.
    pub fn is_of_turn(kind: &str) -> bool {
        begins_turn(kind) || ends_turn(kind)
    }

    /// Whether events of this kind, other than turns, may contain text of callers. All other kinds are
    /// records of operations.
    pub fn has_words(kind: &str) -> bool {
        !is_of_turn(kind)
            && !matches!(kind, SUPERSEDED | ERASED | BUDGET | IMPORT_FINISHED | SYSTEM_PROMPT | FACTS_READ)
    }
}

/// Audience of an event, a turn or an asset.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Visibility {
    /// Shown to everyone.
    #[default]
    Public,
    /// Shown to the model and to operators.
    Internal,
    /// Shown only to its own actor, and to its audience if it has one.
    Private,
}

impl Visibility {
    /// The name in JSON and SQL.
    pub fn as_str(self) -> &'static str {
        match self {
            Visibility::Public => "public",
            Visibility::Internal => "internal",
            Visibility::Private => "private",
        }
    }
}

impl fmt::Display for Visibility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Visibility {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "public" => Ok(Visibility::Public),
            "internal" => Ok(Visibility::Internal),
            "private" => Ok(Visibility::Private),
            other => Err(Error::invalid(
                "visibility.unknown",
                format!("visibility {:?} is not public, internal or private", crate::id::clip(other)),
            )),
        }
    }
}

/// JSON text exactly as given, with a salt that keeps its hash from being guessed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Body {
    /// Sixteen random bytes, erased together with the text.
    pub salt: [u8; 16],
    /// The JSON text. These bytes are authoritative and never serialised again.
    pub text: String,
}

/// An event to append: everything that does not depend on its position in the chain.
#[derive(Clone, Debug)]
pub struct Draft {
    /// Id of the event; a turn that it begins has the same ULID.
    pub id: EventId,
    /// Time at which the store accepted it.
    pub at: Timestamp,
    /// Time at which it happened, according to the client or importer.
    pub occurred_at: Option<Timestamp>,
    /// Kind of the event, see [`kind`].
    pub kind: Cow<'static, str>,
    /// Actor that caused it.
    pub actor: Option<String>,
    /// Role of the actor.
    pub role: Option<Role>,
    /// Audience.
    pub visibility: Visibility,
    /// The turn that it begins or refers to.
    pub turn: Option<TurnId>,
    /// Access key that wrote it: its id, or `jwt:` and the subject of a token.
    pub key: Option<String>,
    /// Body and salt.
    pub body: Body,
}

impl Draft {
    /// Checks everything that does not depend on the conversation.
    pub fn check(&self) -> Result<(), Error> {
        self.check_envelope()?;
        json::check(&self.body.text)
    }

    /// Like [`Draft::check`], for a body that is known to be valid JSON because it was generated here.
    pub fn check_envelope(&self) -> Result<(), Error> {
        check_name("kind", &self.kind)?;
        if let Some(actor) = &self.actor {
            check_name("actor", actor)?;
        }
        if let Some(key) = &self.key {
            check_name("key", key)?;
        }
        self.at.check()?;
        self.occurred_at.map_or(Ok(()), Timestamp::check)?;
        if self.body.text.len() > BODY_BYTES_MAX {
            return Err(Error::limit(
                "BODY_BYTES_MAX",
                BODY_BYTES_MAX as u64,
                self.body.text.len() as u64,
                "split the turn or put the payload into an asset",
            ));
        }
        Ok(())
    }
}

/// Checks a name that is stored in a column: not empty, not too long, no control characters.
pub fn check_name(what: &str, name: &str) -> Result<(), Error> {
    if name.is_empty() || name.chars().any(char::is_control) {
        return Err(Error::invalid(
            "name.malformed",
            format!(
                "{what} {:?} is empty or has control characters; choose a printable name",
                crate::id::clip(name)
            ),
        ));
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::limit(
            "NAME_BYTES_MAX",
            NAME_BYTES_MAX as u64,
            name.len() as u64,
            &format!("shorten the {what}"),
        ));
    }
    Ok(())
}

/// One entry of the log.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema)]
#[schemars(transform = describe_erased)]
pub struct Event {
    /// Its id.
    pub id: EventId,
    /// The conversation it was written in; for an inherited event of a fork, the ancestor.
    pub conversation: ConversationId,
    /// Position in the log: dense, starting at 1, assigned by the store.
    pub seq: u64,
    /// Time at which the store accepted it. Order is `seq`, never this.
    pub at: Timestamp,
    /// Time at which it happened, according to the client or importer.
    #[schemars(skip_serializing_if = "Option::is_none")]
    pub occurred_at: Option<Timestamp>,
    /// Kind of the event: `message`, `turn.opened`, `compaction`, … The set is open.
    pub kind: String,
    /// Actor that caused it.
    #[schemars(skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
    /// Role of the actor.
    #[schemars(skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// Audience.
    pub visibility: Visibility,
    /// The turn that it begins or refers to.
    #[schemars(skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    /// Access key that wrote it: its id, or `jwt:` and the subject of a token. Absent without keys.
    #[schemars(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Byte for byte as written; absent once erased.
    #[schemars(with = "json::Raw", skip_serializing_if = "Option::is_none")]
    pub body: Option<Body>,
    /// Whether its body, or a private block of it, is left out because it is not for the caller; absent if not.
    #[schemars(skip_serializing_if = "std::ops::Not::not")]
    pub hidden: bool,
    /// `sha256(salt ‖ body)`; stays when the body is erased.
    pub body_hash: Hash,
    /// Hash of the previous event.
    pub prev: Hash,
    /// Hash of this event.
    pub hash: Hash,
}

impl Event {
    /// The body's text, unless erased.
    pub fn text(&self) -> Option<&str> {
        self.body.as_ref().map(|body| body.text.as_str())
    }

    /// Parses the body as `T`. `None` if it is erased or has another shape, as an imported event may.
    pub fn read<'a, T: Deserialize<'a>>(&'a self) -> Option<T> {
        serde_json::from_str(self.text()?).ok()
    }
}

/// Describes the `body` field, which is absent once erased.
fn describe_erased(schema: &mut Schema) {
    if let Some(fields) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        let description = "Whether its body was erased; absent if not.";
        fields.insert("erased".into(), json!({"type": "boolean", "description": description}));
    }
}

/// The form shown to callers: the field names of the model, and the body as written, absent once erased.
impl Serialize for Event {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("id", &self.id)?;
        map.serialize_entry("conversation", &self.conversation)?;
        map.serialize_entry("seq", &self.seq)?;
        map.serialize_entry("at", &self.at)?;
        if let Some(at) = &self.occurred_at {
            map.serialize_entry("occurred_at", at)?;
        }
        map.serialize_entry("kind", &self.kind)?;
        if let Some(actor) = &self.actor {
            map.serialize_entry("actor", actor)?;
        }
        if let Some(role) = &self.role {
            map.serialize_entry("role", role)?;
        }
        map.serialize_entry("visibility", &self.visibility)?;
        if let Some(turn) = &self.turn {
            map.serialize_entry("turn", turn)?;
        }
        if let Some(key) = &self.key {
            map.serialize_entry("key", key)?;
        }
        match self.text().map(serde_json::from_str::<&serde_json::value::RawValue>) {
            Some(Ok(body)) => map.serialize_entry("body", body)?,
            Some(Err(e)) => return Err(serde::ser::Error::custom(e)),
            None if self.hidden => {}
            None => map.serialize_entry("erased", &true)?,
        }
        if self.hidden {
            map.serialize_entry("hidden", &true)?;
        }
        map.serialize_entry("body_hash", &self.body_hash)?;
        map.serialize_entry("prev", &self.prev)?;
        map.serialize_entry("hash", &self.hash)?;
        map.end()
    }
}

/// Reads the form shown to callers. It has no salt, so such an event can be displayed, and serialised again
/// with the same bytes, but not verified.
impl<'de> Deserialize<'de> for Event {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Event, D::Error> {
        #[derive(Deserialize)]
        struct Told {
            id: EventId,
            conversation: ConversationId,
            seq: u64,
            at: Timestamp,
            occurred_at: Option<Timestamp>,
            kind: String,
            actor: Option<String>,
            role: Option<Role>,
            visibility: Visibility,
            turn: Option<TurnId>,
            key: Option<String>,
            #[serde(default, deserialize_with = "json::present")]
            body: Option<json::Raw>,
            #[serde(default)]
            hidden: bool,
            body_hash: Hash,
            prev: Hash,
            hash: Hash,
        }
        let told = Told::deserialize(deserializer)?;
        Ok(Event {
            id: told.id,
            conversation: told.conversation,
            seq: told.seq,
            at: told.at,
            occurred_at: told.occurred_at,
            kind: told.kind,
            actor: told.actor,
            role: told.role,
            visibility: told.visibility,
            turn: told.turn,
            key: told.key,
            hidden: told.hidden,
            body: told.body.map(|body| Body { salt: [0; 16], text: body.get().to_string() }),
            body_hash: told.body_hash,
            prev: told.prev,
            hash: told.hash,
        })
    }
}
