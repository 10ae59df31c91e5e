//! Bodies of events that the rules of writing read. Frozen: logs hold them.

use super::Place;
use crate::conversation::{CheckpointRef, State};
use crate::id::{ConversationId, EventId, FactId, TurnId};
use serde::{Deserialize, Serialize};

/// The body of `conversation.state`.
#[derive(Serialize, Deserialize)]
pub struct StateBody {
    /// The new state.
    pub state: State,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The body of `turn.superseded`; the old turn is in the envelope.
#[derive(Serialize, Deserialize)]
pub struct SupersededBody {
    /// The turn that takes its place.
    pub by: TurnId,
}

/// The body of `turn.erased`.
#[derive(Serialize, Deserialize)]
pub struct ErasedBody {
    /// Whose content went.
    pub turns: Vec<TurnId>,
    /// Why.
    pub reason: String,
    /// The calls that they answered: with the words goes the only sign that those wait no longer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answered: Vec<String>,
    /// What was learned from them and went with them: without this nobody could tell which facts to look for elsewhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub learned: Vec<Learned>,
    /// Other events whose bodies went, where they were written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<Place>,
}

/// Something that was learned from a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Learned {
    /// Where it was stated: where the turn was said, or in a fork.
    pub conversation: ConversationId,
    /// Which fact.
    pub fact: FactId,
}

/// How far a checkpoint or a trim reaches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Summarized {
    /// The last turn it covers.
    pub through: TurnId,
    /// That turn's place.
    pub through_seq: u64,
    /// How many turns there are up to it, superseded ones included.
    pub turns_before: u64,
}

/// What a `compaction` event does to the view. The rest of its body is for readers: see `compaction`.
#[derive(Serialize, Deserialize)]
pub(super) struct Compacted {
    /// What was in force before it; another compaction that came first makes it stale.
    pub previous: Option<CheckpointRef>,
    /// What it covers from now on.
    #[serde(default)]
    pub summarized: Option<Summarized>,
    /// The compaction that it takes back.
    #[serde(default)]
    pub reverts: Option<EventId>,
    /// What is in force again, where it takes one back.
    #[serde(default)]
    pub restores: Option<CheckpointRef>,
}

/// What a `transcript_budget` event does to the view. The rest of its body is for readers: see `budget`.
#[derive(Serialize, Deserialize)]
pub(super) struct Trimmed {
    /// Present where the view begins later from now on.
    #[serde(default)]
    pub trimmed: Option<Summarized>,
}
