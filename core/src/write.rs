//! The rules of writing: how a request becomes events and rows.
//!
//! A store looks up the conversation and hands [`plan`] the request; back comes a [`Plan`], which is data: events, rows to
//! add, rows to drop. Whatever else the rules need to know they ask through [`Lookup`]. Every decision about what a write
//! does is made here, so that all stores agree. The [`fold`] that plans an append also rebuilds the rows from the log.
//!
//! `append`, `erase` and `delete` hold the rules, `lookup` the questions to a store, `rows` and `body` the shapes that are
//! stored, `refusal` the errors.

mod append;
mod approve;
mod body;
mod delete;
mod erase;
mod fold;
mod lookup;
mod refusal;
mod rows;

pub use append::{has_room_for, new_conversation, surely_fits, usage};
pub use body::{ErasedBody, Learned, StateBody, Summarized, SupersededBody};
pub use delete::{Deletion, Purge, deletion, needed, reader};
pub use erase::{Erasure, checkpoint, copies, learned};
pub use fold::{fold, move_view};
pub use lookup::{
    EventRef, Fork, ForkParent, ForkPoint, Level, Lookup, Statement, StatementsOf, Traces, Turns, owner,
};
pub use refusal::{absent, absent_turn, no_such_seq, not_open, stale_seq, still_open};
pub use rows::{AssetReference, AssetRow, Changes, ChunkRow, EchoRow, FactRow, SummaryRow};

use crate::Error;
use crate::chain::Hash;
use crate::conversation::{Conversation, Parent, Tombstone};
use crate::event::{Draft, Event, kind};
use crate::id::{ConversationId, EventId, Key, TurnId};
use crate::time::Timestamp;
use crate::turn::Status;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// One atomic request on one conversation.
#[derive(Clone, Debug)]
pub struct Write {
    /// The conversation.
    pub key: Key,
    /// The change to make.
    pub action: Action,
}

/// A change to a conversation.
#[derive(Clone, Debug)]
pub enum Action {
    /// Begin it. The drafts are its first events; with a parent it is a fork.
    Create {
        /// At least one draft.
        drafts: Vec<Draft>,
        /// Origin of the fork.
        parent: Option<Parent>,
        /// Makes a repeated request harmless.
        idempotency: Option<Idempotency>,
    },
    /// Begin a fork that also copies turns from after the point where it begins. Refused if one of them was erased since.
    Branch {
        /// Its first events.
        drafts: Vec<Draft>,
        /// Origin of the fork.
        parent: Parent,
        /// Drafts that copy a turn, with the `seq` of that turn in the origin.
        copies: BTreeMap<EventId, u64>,
        /// The store's count of erasures before the turns were read.
        mark: u64,
    },
    /// Append to the end.
    Append {
        /// At least one draft.
        drafts: Vec<Draft>,
        /// Refuse unless this is the `seq` of the last event.
        expected_seq: Option<u64>,
        /// The conversation for which the drafts were prepared. Refuse if they would be prepared in another way now: the
        /// policy has changed, or there may be no room.
        prepared_for: Option<Arc<Conversation>>,
        /// Makes a repeated request harmless.
        idempotency: Option<Idempotency>,
    },
    /// Put back events that were written elsewhere, chain and all. Those that are there already are skipped.
    Restore {
        /// Events in order, without gaps.
        events: Vec<Event>,
    },
    /// Begin it without events, as in a backup. Its events follow as restores; a deleted conversation that is
    /// only kept for its forks may have none left.
    Begin {
        /// Time of its creation.
        created: Timestamp,
        /// Origin of the fork.
        parent: Option<Parent>,
    },
    /// Delete it as it was deleted elsewhere: its tombstone comes from a backup and may name a later head.
    Bury {
        /// Stored unchanged.
        tombstone: Tombstone,
    },
    /// Record requests that were answered elsewhere, so that a client that repeats one writes nothing.
    Remember {
        /// Requests whose events are there already.
        requests: Vec<AnsweredRequest>,
    },
    /// Make a chunk of an open turn durable. Not an event: the turn's end will be one.
    Chunk {
        /// The open turn.
        turn: TurnId,
        /// Length of the turn's text before this chunk, in bytes.
        offset: u64,
        /// Text of the chunk.
        text: String,
    },
    /// Append something derived from the log's text: a checkpoint, facts. Refused if anything visible to the
    /// conversation was erased since, because its text may be in it.
    Derive {
        /// At least one.
        drafts: Vec<Draft>,
        /// The store's count of erasures before the text was read.
        mark: u64,
    },
    /// Request or resolve an approval. Refused if a resolution came first, or if its time has passed.
    Approve {
        /// The `approval.requested` or `approval.resolved` event, after any that make room for it.
        drafts: Vec<Draft>,
        /// `seq` of the request, for a resolution.
        request: Option<u64>,
        /// `seq` of the last event about this approval, up to `seen`.
        last: Option<u64>,
        /// `seq` up to which the caller has read the log; the rest is read here.
        seen: u64,
    },
    /// Erase the bodies of events, and record it. Everything learned from a turn is erased too, in every
    /// conversation of the tenant: the statements that name it as their source, and corrections of facts that
    /// have no other source.
    Erase {
        /// Turns to erase.
        turns: Vec<TurnId>,
        /// Other events to erase.
        events: Vec<EventAddress>,
        /// Whether checkpoints that cover the turns are erased too, including those of forks and reverted ones.
        summaries: bool,
        /// The `turn.erased` event.
        draft: Draft,
    },
    /// Delete it as a whole. A tombstone stays.
    Delete {
        /// Time of the deletion.
        at: Timestamp,
        /// Kept in the tombstone.
        reason: String,
        /// Refuse if its time to live has not passed by then: it may have been used since it was found due.
        only_expired: bool,
    },
}

impl Action {
    /// An append without conditions.
    pub fn append(drafts: Vec<Draft>) -> Action {
        Action::Append { drafts, expected_seq: None, prepared_for: None, idempotency: None }
    }

    /// The idempotency key, and whether it belongs to a creation. A store looks up the request that was answered under it
    /// before it asks for a plan: see [`Existing::answered`].
    pub fn idempotency(&self) -> Option<(bool, &Idempotency)> {
        match self {
            Action::Create { idempotency, .. } => idempotency.as_ref().map(|asked| (true, asked)),
            Action::Append { idempotency, .. } => idempotency.as_ref().map(|asked| (false, asked)),
            _ => None,
        }
    }

    /// The origin of a fork that it begins.
    pub fn parent(&self) -> Option<Parent> {
        match self {
            Action::Create { parent, .. } | Action::Begin { parent, .. } => *parent,
            Action::Branch { parent, .. } => Some(*parent),
            Action::Restore { events } => events.first().and_then(append::origin),
            _ => None,
        }
    }

    /// Turns that the plan of a restoration looks up, so that a store may read them at once.
    pub fn turns(&self) -> Vec<TurnId> {
        let Action::Restore { events } = self else { return Vec::new() };
        let named = |event: &Event| {
            let by = (event.kind == kind::SUPERSEDED).then(|| event.read::<SupersededBody>()).flatten();
            let begun = kind::begins_turn(&event.kind).then_some(TurnId(event.id.0));
            let changed = event.turn.filter(|_| by.is_some() || kind::ends_turn(&event.kind));
            [begun, changed, by.map(|body| body.by)].into_iter().flatten()
        };
        events.iter().flat_map(named).collect()
    }

    /// Events of a restoration up to `head`, whose hashes its plan compares.
    pub fn restored(&self, head: u64) -> Vec<u64> {
        let Action::Restore { events } = self else { return Vec::new() };
        events.iter().map(|event| event.seq).filter(|seq| *seq <= head).collect()
    }

    /// Size of the text that it writes, in bytes.
    pub fn bytes(&self) -> usize {
        let of = |drafts: &[Draft]| drafts.iter().map(|draft| draft.body.text.len()).sum();
        match self {
            Action::Create { drafts, .. }
            | Action::Branch { drafts, .. }
            | Action::Append { drafts, .. }
            | Action::Derive { drafts, .. }
            | Action::Approve { drafts, .. } => of(drafts),
            Action::Restore { events } => {
                events.iter().filter_map(|event| Some(event.body.as_ref()?.text.len())).sum()
            }
            Action::Chunk { text, .. } => text.len(),
            Action::Begin { .. }
            | Action::Bury { .. }
            | Action::Remember { .. }
            | Action::Erase { .. }
            | Action::Delete { .. } => 0,
        }
    }

    /// Whether it removes text, so that no copy may remain.
    pub fn removes(&self) -> bool {
        matches!(self, Action::Erase { .. }) || self.deletes()
    }

    /// Whether it deletes the conversation.
    pub fn deletes(&self) -> bool {
        matches!(self, Action::Delete { .. } | Action::Bury { .. })
    }

    /// Whether it may add events to the log.
    pub fn appends(&self) -> bool {
        !self.deletes() && !matches!(self, Action::Chunk { .. } | Action::Remember { .. })
    }
}

/// Address of an event.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct EventAddress {
    /// The conversation; for an inherited event of a fork, the ancestor.
    pub conversation: ConversationId,
    /// `seq` in that conversation.
    pub seq: u64,
}

/// A request with an idempotency key that was answered, as a store keeps it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AnsweredRequest {
    /// Whether it created the conversation. Such keys are unique in a tenant, others in their conversation.
    pub creation: bool,
    /// Chosen by the client.
    pub key: String,
    /// See [`Idempotency::fingerprint`].
    pub fingerprint: Hash,
    /// Its first event.
    pub first_seq: u64,
    /// Its last event.
    pub last_seq: u64,
}

/// A key that a client may send again, and the hash of its request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Idempotency {
    /// Chosen by the client.
    pub key: String,
    /// Hash of the request without ids and times.
    pub request: Hash,
    /// Error to return unless the request was answered before.
    pub only_repeat: Option<Error>,
}

impl Idempotency {
    /// Identifies a repeated request. Salted with the first event's salt: once that is erased, a short text
    /// cannot be guessed from this.
    pub fn fingerprint(&self, salt: &[u8; 16]) -> Hash {
        Hash::of(&[&salt[..], &self.request.0].concat())
    }

    /// Refuses a key that was used for another request. Once the first event is erased, there is nothing to
    /// compare with, and the key alone decides.
    fn check(&self, answered: &Answered) -> Result<(), Error> {
        let first = answered.events.first().and_then(|event| event.body.as_ref());
        if first.is_some_and(|body| self.fingerprint(&body.salt) != answered.fingerprint) {
            // The first line is the client's key; the second identifies the caller.
            let key = crate::id::clip(self.key.lines().next().unwrap_or_default());
            let text =
                format!("idempotency key {key:?} was used before with a different request; use a new key");
            return Err(Error::conflict("idempotency.reused", text));
        }
        Ok(())
    }

    /// The record of the request after these events were planned for it.
    fn answered(self, creation: bool, events: &[Event]) -> Option<AnsweredRequest> {
        let (first, last) = (events.first()?, events.last()?);
        let salt = first.body.as_ref().map_or([0; 16], |body| body.salt);
        let fingerprint = self.fingerprint(&salt);
        Some(AnsweredRequest {
            creation,
            key: self.key,
            fingerprint,
            first_seq: first.seq,
            last_seq: last.seq,
        })
    }
}

/// Rows that a store looks up before it asks for a plan.
#[derive(Default)]
pub struct Existing<'a> {
    /// The conversation, unless it is absent or deleted.
    pub conversation: Option<&'a Conversation>,
    /// The request that was answered under the same key, if the action has one: see [`Action::idempotency`].
    pub answered: Option<Answered>,
}

/// An answered request with its answer.
#[derive(Clone, Debug)]
pub struct Answered {
    /// See [`AnsweredRequest::fingerprint`].
    pub fingerprint: Hash,
    /// The conversation as it is now.
    pub conversation: Arc<Conversation>,
    /// The request's events as they are now.
    pub events: Vec<Event>,
}

/// Everything that a store has to write.
#[derive(Clone, Debug)]
pub enum Plan {
    /// Nothing: the request was answered before, with this.
    Repeat(Answered),
    /// Events at the end of the log, with their rows.
    Append(Box<PlannedAppend>),
    /// A chunk of an open turn's text. A repeated chunk changes nothing.
    Chunk(ChunkRow),
    /// Answered requests. One with the same key is replaced.
    Remember(Vec<AnsweredRequest>),
    /// The conversation is deleted; its tombstone stays.
    Delete(Deletion),
}

/// New events with everything that follows from them.
#[derive(Clone, Debug)]
pub struct PlannedAppend {
    /// The conversation afterwards.
    pub conversation: Conversation,
    /// New events, in order.
    pub events: Vec<Event>,
    /// Rows that follow from them.
    pub changes: Changes,
    /// The request to remember. One with the same key is replaced.
    pub request: Option<AnsweredRequest>,
    /// Bodies and rows to remove, after the new rows are written.
    pub erasure: Option<Erasure>,
}

impl PlannedAppend {
    fn new(conversation: Conversation, events: Vec<Event>, changes: Changes) -> PlannedAppend {
        PlannedAppend { conversation, events, changes, request: None, erasure: None }
    }
}

/// Decides what a request does. A refused request leaves no trace.
pub fn plan(key: &Key, action: Action, existing: Existing<'_>, lookup: &dyn Lookup) -> Result<Plan, Error> {
    match existing.conversation {
        None => plan_new(key, action, existing.answered, lookup),
        Some(conversation) => plan_existing(conversation, action, existing.answered, lookup),
    }
}

fn plan_new(
    key: &Key,
    action: Action,
    answered: Option<Answered>,
    lookup: &dyn Lookup,
) -> Result<Plan, Error> {
    let planned = match action {
        Action::Create { drafts, parent, idempotency } => {
            if let Some(answered) = repeated(idempotency.as_ref(), answered)? {
                return Ok(Plan::Repeat(answered));
            }
            let first = drafts.first().ok_or_else(refusal::empty)?;
            let conversation = append::begin(key, first.at, parent, lookup)?;
            let planned = append::append(conversation, drafts, lookup)?;
            let request = idempotency.and_then(|asked| asked.answered(true, &planned.events));
            PlannedAppend { request, ..planned }
        }
        Action::Branch { drafts, parent, copies, mark } => {
            let is_copied = |at: &EventRef| copies.values().any(|seq| *seq == at.seq);
            if lookup.erased_since(mark)?.is_none_or(|erased| erased.iter().any(is_copied)) {
                return Err(refusal::derived_from_erased());
            }
            refusal::check_batch(&drafts)?;
            let first = drafts.first().ok_or_else(refusal::empty)?;
            let conversation = append::begin(key, first.at, Some(parent), lookup)?;
            append::append(conversation, drafts, lookup)?
        }
        Action::Begin { created, parent } => {
            PlannedAppend::new(append::begin(key, created, parent, lookup)?, Vec::new(), Changes::default())
        }
        Action::Restore { events } => append::restore(key, None, events, lookup)?,
        _ => return Err(absent(key)),
    };
    Ok(Plan::Append(Box::new(planned)))
}

fn plan_existing(
    conversation: &Conversation,
    action: Action,
    answered: Option<Answered>,
    lookup: &dyn Lookup,
) -> Result<Plan, Error> {
    if let Action::Append { drafts, .. } | Action::Derive { drafts, .. } | Action::Approve { drafts, .. } =
        &action
        && let (Some(first), Some(due)) = (drafts.first(), conversation.expires())
        && due <= first.at
    {
        return Err(absent(&Key { tenant: conversation.tenant.clone(), id: conversation.id }));
    }
    let planned = match action {
        Action::Create { idempotency, .. } => {
            let answered = repeated(idempotency.as_ref(), answered)?;
            return answered.map(Plan::Repeat).ok_or_else(|| refusal::exists(conversation));
        }
        Action::Begin { .. } | Action::Branch { .. } => return Err(refusal::exists(conversation)),
        Action::Append { drafts, expected_seq, prepared_for, idempotency } => {
            if let Some(answered) = repeated(idempotency.as_ref(), answered)? {
                return Ok(Plan::Repeat(answered));
            }
            refusal::check_batch(&drafts)?;
            let head = conversation.head.seq;
            if let Some(expected) = expected_seq.filter(|expected| *expected != head) {
                return Err(stale_seq(head, expected));
            }
            if prepared_for.is_some_and(|known| append::is_outdated(&known, conversation, drafts.len())) {
                return Err(refusal::outdated());
            }
            let planned = append::append(conversation.clone(), drafts, lookup)?;
            let request = idempotency.and_then(|asked| asked.answered(false, &planned.events));
            PlannedAppend { request, ..planned }
        }
        Action::Restore { events } => {
            let key = Key { tenant: conversation.tenant.clone(), id: conversation.id };
            append::restore(&key, Some(conversation), events, lookup)?
        }
        Action::Derive { drafts, mark } => {
            if erase::is_seen(lookup.erased_since(mark)?, &lookup.lineage()?) {
                return Err(refusal::derived_from_erased());
            }
            append::append(conversation.clone(), drafts, lookup)?
        }
        Action::Approve { drafts, request, last, seen } => {
            let draft = drafts.last().ok_or_else(refusal::empty)?;
            approve::check(conversation, draft, (request, last), seen, lookup)?;
            append::append(conversation.clone(), drafts, lookup)?
        }
        Action::Erase { turns, events, summaries, draft } => {
            let turns = erase::turns(&turns, lookup)?;
            let mut planned = append::append(conversation.clone(), vec![draft], lookup)?;
            let erasure = erase::erasure(&turns, &events, summaries, lookup)?;
            if let Some(checkpoint) = erasure.own_checkpoint(&lookup.lineage()?) {
                planned.conversation.set_checkpoint(checkpoint);
            }
            PlannedAppend { erasure: Some(erasure), ..planned }
        }
        Action::Chunk { turn, offset, text } => {
            let row = lookup.turn(turn)?.ok_or_else(|| absent_turn(turn))?;
            if row.status != Status::Pending {
                return Err(not_open(row.id, row.status));
            }
            return Ok(Plan::Chunk(ChunkRow { turn_seq: row.seq, offset, text }));
        }
        Action::Delete { at, reason, only_expired } => {
            if only_expired && conversation.expires().is_none_or(|due| due > at) {
                return Err(refusal::not_due(conversation));
            }
            let tombstone = Tombstone { id: conversation.id, head: conversation.head, deleted: at, reason };
            return Ok(Plan::Delete(deletion(tombstone, lookup)?));
        }
        Action::Bury { tombstone } => {
            // A backup restores bytes only where an asset needs them.
            return Ok(Plan::Delete(Deletion { released: Vec::new(), ..deletion(tombstone, lookup)? }));
        }
        Action::Remember { requests } => return Ok(Plan::Remember(requests)),
    };
    Ok(Plan::Append(Box::new(planned)))
}

/// The answer to a repeated request. Refuses a key that was used for another request, and a new request that
/// may only repeat an old one.
fn repeated(asked: Option<&Idempotency>, answered: Option<Answered>) -> Result<Option<Answered>, Error> {
    let Some(asked) = asked else { return Ok(None) };
    match (answered, &asked.only_repeat) {
        (Some(answered), _) => asked.check(&answered).map(|()| Some(answered)),
        (None, Some(error)) => Err(error.clone()),
        (None, None) => Ok(None),
    }
}
