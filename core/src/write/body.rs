//! Event bodies that the rules of writing read. Frozen: logs hold them.

use super::EventAddress;
use crate::conversation::{CheckpointRef, EventsLeft, Lifecycle};
use crate::id::{ConversationId, EventId, FactId, TurnId};
use serde::{Deserialize, Serialize};

/// The body of `conversation.state`.
#[derive(Serialize, Deserialize)]
pub struct StateBody {
    /// The new state.
    pub state: Lifecycle,
    /// Reason given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The body of `turn.superseded`; the old turn is in the envelope.
#[derive(Serialize, Deserialize)]
pub struct SupersededBody {
    /// The turn that supersedes it.
    pub by: TurnId,
}

/// The body of `turn.erased`.
#[derive(Serialize, Deserialize)]
pub struct ErasedBody {
    /// Erased turns.
    pub turns: Vec<TurnId>,
    /// Reason given.
    #[serde(default)]
    pub reason: String,
    /// Actors that may read the reason, where something private was erased; absent if everyone may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason_for: Option<Vec<String>>,
    /// Tool calls that they answered: without this the calls would appear to be pending again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answered: Vec<String>,
    /// Facts erased with them, recorded so that copies of them can be found elsewhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub learned: Vec<Learned>,
    /// Other erased events.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<EventAddress>,
}

/// A fact learned from a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Learned {
    /// The conversation of its statement.
    pub conversation: ConversationId,
    /// The fact.
    pub fact: FactId,
}

/// Reach of a checkpoint or a trim.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Summarized {
    /// The last turn it covers.
    pub through: TurnId,
    /// `seq` of that turn.
    pub through_seq: u64,
    /// Number of turns up to it, superseded ones included.
    pub turns_before: u64,
}

/// The part of a `compaction` body that moves the start of the view.
#[derive(Serialize, Deserialize)]
pub(super) struct Compacted {
    /// The checkpoint that was in force before; if another compaction came first, this one is stale.
    pub previous: Option<CheckpointRef>,
    /// The turns that it covers.
    #[serde(default)]
    pub summarized: Option<Summarized>,
    /// The compaction that it reverts.
    #[serde(default)]
    pub reverts: Option<EventId>,
    /// The checkpoint that is in force again after a revert.
    #[serde(default)]
    pub restores: Option<CheckpointRef>,
}

/// The part of a `transcript_budget` body that moves the start of the view.
#[derive(Serialize, Deserialize)]
pub(super) struct Trimmed {
    /// The turns before the new start of the view.
    #[serde(default)]
    pub trimmed: Option<Summarized>,
    /// The events that left the view without their turns.
    #[serde(default)]
    pub left: Option<EventsLeft>,
}
