//! Rows that a store keeps beside the events. They contain no text of turns; that is only in the events.

use crate::chain::Hash;
use crate::id::{FactId, TurnId};
use crate::turn::TurnRow;

/// Rows that follow from events.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Turns, new or changed.
    pub turns: Vec<TurnRow>,
    /// New assets.
    pub assets: Vec<AssetRow>,
    /// References of turns to assets.
    pub references: Vec<AssetReference>,
    /// Statements of facts.
    pub facts: Vec<FactRow>,
    /// Checkpoints and other events that repeat many turns.
    pub summaries: Vec<SummaryRow>,
    /// Events that may repeat a turn without naming it.
    pub echoes: Vec<EchoRow>,
    /// `seq` of each turn that has ended: its chunks are removed, because an event now holds the text.
    pub ended: Vec<u64>,
}

/// An event that summarizes turns, kept to find it when one of them is erased.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SummaryRow {
    /// `seq` of the event.
    pub seq: u64,
    /// The last `seq` whose turn it may repeat; 0 if it has no text and only decides which checkpoint is in
    /// force.
    pub through_seq: u64,
}

/// A text that may repeat a turn: see [`echo`](crate::echo).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EchoRow {
    /// `seq` of the event.
    pub seq: u64,
    /// See [`echo::bucket`](crate::echo::bucket).
    pub bucket: u16,
}

/// A statement of a fact.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FactRow {
    /// The fact.
    pub id: FactId,
    /// `seq` of the statement.
    pub seq: u64,
    /// The turn that it was learned from. Erasing that turn erases the statement.
    pub source_turn: Option<TurnId>,
    /// The fact that it corrects or retracts. When no statement of that fact is left, this one is removed too.
    pub corrects: Option<FactId>,
}

/// An asset.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AssetRow {
    /// Its id.
    pub id: String,
    /// `seq` of the `asset.added` event, whose body is the descriptor.
    pub seq: u64,
    /// Hash of its bytes, where the store has them.
    pub sha256: Option<Hash>,
}

/// A turn's reference to an asset.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AssetReference {
    /// Id of the asset.
    pub asset: String,
    /// `seq` of the turn.
    pub turn_seq: u64,
}

/// A chunk of an open turn's text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChunkRow {
    /// `seq` of the turn.
    pub turn_seq: u64,
    /// Length of the turn's text before this chunk, in bytes.
    pub offset: u64,
    /// Text of the chunk.
    pub text: String,
}
