//! Rows that a store keeps beside the events. None of them has words in it: those are in the events only.

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
    /// Assets that turns show.
    pub references: Vec<AssetReference>,
    /// Statements of facts.
    pub facts: Vec<FactRow>,
    /// Checkpoints and whatever else repeats many turns.
    pub summaries: Vec<SummaryRow>,
    /// Events that may repeat a turn without naming it.
    pub echoes: Vec<EchoRow>,
    /// Places of turns that have ended: the pieces of their text go, because an event has it now.
    pub ended: Vec<u64>,
}

/// An event that sums up turns, kept to find it when one of them is erased.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SummaryRow {
    /// The place of the event.
    pub seq: u64,
    /// It may repeat turns up to here; 0 if it has no words and only decides which checkpoint is in force.
    pub through_seq: u64,
}

/// A text that may repeat a turn: see [`echo`](crate::echo).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EchoRow {
    /// The place of the event.
    pub seq: u64,
    /// See [`echo::bucket`](crate::echo::bucket).
    pub bucket: u16,
}

/// A statement of a fact.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FactRow {
    /// The fact.
    pub id: FactId,
    /// The place of the statement.
    pub seq: u64,
    /// The turn that it was learned from. Erasing that turn erases the statement.
    pub source_turn: Option<TurnId>,
    /// The fact that it corrects or retracts. When no statement of that fact is left, this one goes too.
    pub corrects: Option<FactId>,
}

/// An asset.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AssetRow {
    /// Its id.
    pub id: String,
    /// The `asset.added` event, whose body is the descriptor.
    pub seq: u64,
    /// Its address, where its bytes are ours.
    pub sha256: Option<Hash>,
}

/// An asset that a turn shows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AssetReference {
    /// Id of the asset.
    pub asset: String,
    /// The turn's place.
    pub turn_seq: u64,
}

/// A piece of an open turn's text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChunkRow {
    /// The turn's place.
    pub turn_seq: u64,
    /// Bytes of the turn's text before this piece.
    pub offset: u64,
    /// The piece.
    pub text: String,
}
