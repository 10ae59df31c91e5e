//! Queries to a store while a write is planned. A backend answers each with one query and decides nothing.

use super::{AssetRow, FactRow, SummaryRow};
use crate::Error;
use crate::chain::{Hash, Head};
use crate::conversation::{Conversation, Parent};
use crate::event::Event;
use crate::id::{ConversationId, FactId, TurnId};
use crate::turn::TurnRow;
use std::ops::RangeInclusive;

/// An event, identified by the store's number for its conversation. An id is not enough: a deleted conversation
/// that its forks still read may share its id with a new one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EventRef {
    /// The conversation's number in the store.
    pub conversation: u64,
    /// The event's `seq` there.
    pub seq: u64,
}

/// The turns of one conversation.
pub trait Turns {
    /// A turn as the conversation sees it, inherited ones included, also while a fork is being made.
    fn turn(&self, id: TurnId) -> Result<Option<TurnRow>, Error>;
}

/// One conversation and its family.
pub trait Lookup: Turns + Traces {
    /// The conversation to fork from, in the same tenant. `None` if it is absent or deleted.
    fn fork_parent(&self, parent: Parent) -> Result<Option<ForkParent>, Error>;
    /// The conversation, its parent, the parent's parent and so on.
    fn lineage(&self) -> Result<Vec<Level>, Error>;
    /// Direct forks of a conversation.
    fn forks(&self, conversation: u64) -> Result<Vec<Fork>, Error>;
    /// The hash of the event at `seq`, inherited ones included.
    fn hash_at(&self, seq: u64) -> Result<Option<Hash>, Error>;
    /// Number of turns after `seq` that a view from there on does not show: superseded, aborted, or read at an earlier
    /// place.
    fn fallen_after(&self, seq: u64) -> Result<u64, Error>;
    /// Bodies that were erased in this store after the first `mark` of them. `None` if some are no longer
    /// recorded.
    fn erased_since(&self, mark: u64) -> Result<Option<Vec<EventRef>>, Error>;
}

/// Copies of text, in any conversation of the tenant, deleted ones included. Queried while an erasure or a
/// deletion is planned.
pub trait Traces {
    /// The number of a conversation, also of a deleted one.
    fn number(&self, id: ConversationId) -> Result<Option<u64>, Error>;
    /// The kind of an event that has a body. `None` if the event is absent or erased.
    fn body_kind(&self, at: EventRef) -> Result<Option<String>, Error>;
    /// An event where it was written.
    fn event(&self, at: EventRef) -> Result<Option<Event>, Error>;
    /// Statements of facts, ordered by conversation and `seq`.
    fn statements(&self, of: StatementsOf) -> Result<Vec<Statement>, Error>;
    /// Summaries in this range of a conversation, ascending.
    fn summaries(&self, conversation: u64, seqs: RangeInclusive<u64>) -> Result<Vec<SummaryRow>, Error>;
    /// Summaries whose `through_seq` is `at` or later, in its conversation and in every fork that sees it.
    fn summaries_reaching(&self, at: EventRef) -> Result<Vec<EventRef>, Error>;
    /// Assets of the turn's own conversation that the turn refers to.
    fn shown_by(&self, turn: EventRef) -> Result<Vec<AssetRow>, Error>;
    /// Turns that refer to an asset, in its conversation and in all its forks.
    fn showing(&self, conversation: u64, asset: &str) -> Result<Vec<EventRef>, Error>;
    /// Assets added in this range of a conversation.
    fn assets(&self, conversation: u64, seqs: RangeInclusive<u64>) -> Result<Vec<AssetRow>, Error>;
    /// Number of assets of the tenant with these bytes.
    fn asset_count(&self, sha256: Hash) -> Result<u64, Error>;
}

/// The conversation that a fork leaves.
#[derive(Clone, Debug)]
pub struct ForkParent {
    /// The current state of the conversation.
    pub conversation: Conversation,
    /// Number of levels: the parent and its ancestors.
    pub levels: usize,
    /// The fork point, if the parent has an event there.
    pub point: Option<ForkPoint>,
}

/// The point where a fork begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ForkPoint {
    /// The last event shared with the parent.
    pub head: Head,
    /// Number of turns up to there.
    pub turns: u64,
}

/// A conversation or one of its ancestors, as far as the conversation sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Level {
    /// Its number in the store.
    pub conversation: u64,
    /// `seq` after which its own events begin.
    pub floor: u64,
    /// `seq` of the last visible event.
    pub cap: u64,
    /// Whether it was deleted and is kept for its forks.
    pub deleted: bool,
}

/// Location of the event at `seq` where it was written.
pub fn owner(lineage: &[Level], seq: u64) -> Option<EventRef> {
    let level = lineage.iter().find(|level| seq > level.floor && seq <= level.cap)?;
    Some(EventRef { conversation: level.conversation, seq })
}

/// A fork of a conversation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fork {
    /// Its number in the store.
    pub conversation: u64,
    /// `seq` of the last event shared with its parent.
    pub at_seq: u64,
    /// Whether it was deleted.
    pub deleted: bool,
}

/// A selection of statements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StatementsOf {
    /// Learned from this turn.
    Source(TurnId),
    /// About this fact: stating, correcting or retracting it.
    Fact(FactId),
    /// The statement that this event makes.
    Event(EventRef),
}

/// A statement of a fact.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Statement {
    /// The id of its conversation.
    pub conversation: ConversationId,
    /// Its event.
    pub at: EventRef,
    /// Its row.
    pub row: FactRow,
}
