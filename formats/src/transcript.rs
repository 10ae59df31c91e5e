//! A conversation as one JSON value: the transcript value, version 2.
//!
//! [`export`] writes it, [`parse`] reads it, and an imported value is exported equal. The value has three layers:
//! `messages` (input of the next model call), `events` (the history, in order) and `assets` (descriptors, with the bytes
//! of those that the messages show).
//!
//! Form of an imported value in the log, from which [`export`] restores it:
//!
//! - `conversation.created` carries [`ParsedTranscript::settings`]. Their `transcript` map is never empty: it marks the
//!   conversation as imported and holds everything that our model has no field for (`version` as it was, a foreign `id`,
//!   unknown fields, and under `metadata` the entries that settings cannot hold). The value's `metadata.retention` and
//!   `metadata.everturn` (title, owner, time to live, participants) are settings like those of any conversation.
//! - Each asset is an `asset.added` event whose body is the descriptor as it came, without its bytes.
//! - [`ParsedTranscript::checkpoint`], made of the summary, is a `compaction` event before the first turn.
//! - [`Item::Turn`] is a turn whose `core::turn::TurnBody` has the message and, where it differs from what the turn
//!   gives by itself, the `event`. The value's message without an event has [`NO_EVENT`] there, and one with an event
//!   that has none of the fields of [`TurnDetails`] has [`BARE_EVENT`].
//! - [`Item::Event`] is an event of that kind, without a turn, whose body is `{"event": …}`; one that changes the state
//!   has the fields of that as well ([`Item::body`]).
//! - `import.finished` comes last, and behind it, for a value that was not active, one `conversation.state` whose reason
//!   is [`STATE_REASON`] (it cannot stand before: a closed conversation takes no more events).
//!
//! Everything else up to `import.finished` is bookkeeping of the import and not part of the value. Later events are
//! exported as in any other conversation.
//!
//! It opens no store and gives no ids or times; `engine` stores the result of [`parse`].

mod export;
mod import;

pub use export::{ExportSource, WaitingCall, export};
pub use import::{AssetItem, Item, ParsedTranscript, parse};

use everturn_core::Error;
use everturn_core::asset::Asset;
use everturn_core::event::{Visibility, kind};
use everturn_core::id::{EventId, TurnId};
use everturn_core::json::Raw;
use everturn_core::message;
use everturn_core::time::Timestamp;
use everturn_core::turn::{Role, Tokens, Turn};
use everturn_views::projection::Message;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};

/// The messages of a transcript value, or of a bare list of them, and the value's summary.
pub fn messages(value: &Raw) -> Result<(Vec<Message>, Option<String>), Error> {
    let (list, summary) = match value.read::<Vec<Raw>>() {
        Some(list) => (list, None),
        None => {
            let fields: BTreeMap<String, Raw> = value.read().unwrap_or_default();
            let list = fields.get("messages").and_then(|messages| messages.read::<Vec<Raw>>());
            let list = list.ok_or_else(|| {
                let text = "expected a list of messages, or a transcript value with `messages`";
                Error::invalid("project.input", text)
            })?;
            (list, fields.get("summary").and_then(|summary| summary.read::<String>()))
        }
    };
    let messages = list.into_iter().enumerate();
    let messages = messages.map(|(n, raw)| Message::read(raw).map_err(|e| e.at(format!("messages[{n}]"))));
    Ok((messages.collect::<Result<_, _>>()?, summary))
}

/// The `_type` of a transcript value.
pub const TYPE: &str = "transcript";
/// The version that is written, and the newest that is read.
pub const VERSION: u64 = 2;
/// In place of a turn's event: the imported value has none for this message. (Null would read as "as derived".)
pub const NO_EVENT: &str = "false";
/// In place of a turn's event: the imported value has the one that the message gives, and nothing about the turn.
pub const BARE_EVENT: &str = "true";
/// The reason of the `conversation.state` event with which an import takes over the value's state.
pub const STATE_REASON: &str = "import";

/// The event that a turn gives by itself.
#[derive(Serialize)]
struct Derived {
    kind: &'static str,
    role: String,
    visibility: Visibility,
    text: String,
    blocks: Vec<Raw>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<EventId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    turn: Option<TurnId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    actor: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    audience: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<Tokens>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message_index: Option<usize>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<String, Raw>,
}

/// Details of a turn that its event carries beside the message.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TurnDetails {
    /// The turn.
    pub turn: Option<TurnId>,
    /// Its actor.
    pub actor: Option<String>,
    /// Actors that it is addressed to.
    pub audience: Vec<String>,
    /// Time at which it was said.
    pub at: Option<Timestamp>,
    /// Model that wrote it.
    pub model: Option<String>,
    /// Token counts.
    pub tokens: Option<Tokens>,
    /// Metadata.
    pub metadata: BTreeMap<String, Raw>,
}

impl TurnDetails {
    fn of(turn: &Turn) -> TurnDetails {
        TurnDetails {
            turn: Some(turn.id),
            actor: turn.actor.clone(),
            audience: turn.audience.clone(),
            at: Some(turn.occurred_at.unwrap_or(turn.created)),
            model: turn.model.clone(),
            tokens: turn.tokens,
            metadata: turn.metadata.clone(),
        }
    }
}

/// The fields of a message that matter here.
#[derive(Default, Deserialize)]
struct Shape {
    role: Option<Raw>,
    #[serde(rename = "type")]
    kind: Option<Raw>,
    content: Option<Raw>,
}

impl Derived {
    /// `message` is `None` for a turn that is open or erased: its place in the history is all there is to show.
    fn of(role: Role, visibility: Visibility, message: Option<&Raw>, labels: &Labels) -> Derived {
        let shape: Shape = message.and_then(Raw::read).unwrap_or_default();
        // A number that no double can hold is kept in the message and cannot be shown.
        let value: Option<Value> = message.and_then(Raw::read);
        Derived {
            kind: if role == Role::Tool { kind::TOOL_RESULT } else { kind::MESSAGE },
            role: shape.role.as_ref().and_then(Raw::read).unwrap_or_else(|| role.to_string()),
            visibility,
            text: value.map(|value| message::render(&value, |id| labels.get(id))).unwrap_or_default(),
            blocks: blocks(&shape, message),
            id: None,
            turn: None,
            actor: None,
            audience: Vec::new(),
            at: None,
            model: None,
            tokens: None,
            message_index: None,
            metadata: BTreeMap::new(),
        }
    }

    /// The same with what is known of the turn, and the index of its message in the value.
    fn about(self, about: TurnDetails, message_index: Option<usize>) -> Derived {
        let TurnDetails { turn, actor, audience, at, model, tokens, metadata } = about;
        let id = turn.map(|turn| EventId(turn.0));
        Derived { id, turn, actor, audience, at, model, tokens, message_index, metadata, ..self }
    }
}

/// The content as blocks, each exactly as in the message.
fn blocks(shape: &Shape, message: Option<&Raw>) -> Vec<Raw> {
    #[derive(Serialize)]
    struct Text<'a> {
        r#type: &'static str,
        text: &'a Raw,
    }
    match &shape.content {
        // An item of another shape (a Responses call, say) is a block itself.
        _ if shape.role.is_none() && shape.kind.is_some() => message.cloned().into_iter().collect(),
        Some(content) if content.get().starts_with('[') => content.read().unwrap_or_default(),
        Some(content) if content.get().starts_with('"') => {
            Raw::of(&Text { r#type: "text", text: content }).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

/// Labels of assets, by id.
#[derive(Default)]
struct Labels(HashMap<String, String>);

impl Labels {
    fn add(&mut self, descriptor: &Raw) {
        if let Some(asset) = descriptor.read::<Asset>() {
            let label = asset.label();
            self.0.insert(asset.id, label);
        }
    }

    fn get(&self, id: &str) -> Option<String> {
        self.0.get(id).cloned()
    }
}

/// The body of an imported event that belongs to no message.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GivenEvent {
    event: Raw,
}

/// The same for one that changes the state, which has what it changes beside it.
#[derive(Deserialize)]
struct GivenChange {
    event: Raw,
}

/// Whether an event of the kind changes the state by its body alone.
fn changes_state(kind: &str) -> bool {
    use kind::*;
    matches!(
        kind,
        PIN | UNPIN
            | SCRATCHPAD_SET
            | SCRATCHPAD_CLEAR
            | APPROVAL_REQUESTED
            | APPROVAL_RESOLVED
            | TOOL_STARTED
            | TOOL_FINISHED
            | TOOL_ABANDONED
    )
}

/// The field of an asset's descriptor for its bytes, in base64.
const DATA: &str = "data";

/// The entry of `metadata` for the settings of a conversation that the value has no field for.
const CARRIED: &str = "everturn";

/// Its fields.
const CARRIED_FIELDS: [&str; 4] = ["title", "owner", "ttl", "participants"];

#[derive(PartialEq, Default, Serialize)]
struct Carried {
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    participants: Vec<String>,
}

/// The text of `metadata.system_prompt`, which is a string or an object with `content`.
fn prompt_content(raw: &Raw) -> Option<String> {
    #[derive(Deserialize)]
    struct Prompt {
        content: String,
    }
    raw.read::<String>().or_else(|| raw.read::<Prompt>().map(|prompt| prompt.content))
}
