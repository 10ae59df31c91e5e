//! How a request becomes events and rows.
//!
//! A store hands [`plan`] what it knows of a conversation and what a caller wants; back come the next links of the
//! chain and the rows that change. Every rule about what may be written lives here, so that all stores agree. The same
//! [`fold`] that plans an append also rebuilds the rows from the log: what a store derives is never a second truth.

use crate::Error;
use crate::asset::Asset;
use crate::budget::Usage;
use crate::chain::{self, Hash, Head};
use crate::conversation::{BudgetRef, CheckpointRef, Conversation, Parent, Settings, State, Tombstone};
use crate::echo;
use crate::event::{Draft, Event, kind};
use crate::fact;
use crate::id::{ConversationId, EventId, FactId, Key, TurnId};
use crate::limits::{BATCH_EVENTS_MAX, FORK_DEPTH_MAX, PARTICIPANTS_MAX};
use crate::message;
use crate::time::Timestamp;
use crate::turn::{Status, Successor, TurnBody, TurnRow};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One atomic request on one conversation.
#[derive(Clone, Debug)]
pub struct Write {
    /// Whose, and which.
    pub key: Key,
    /// What to do.
    pub action: Action,
}

/// What to do with a conversation.
#[derive(Clone, Debug)]
pub enum Action {
    /// Begin it. The drafts are its first events; with a parent it is a fork.
    Create {
        /// At least one of them.
        drafts: Vec<Draft>,
        /// Where it leaves its parent.
        parent: Option<Parent>,
        /// Makes a repeated request harmless.
        idempotency: Option<Idempotency>,
    },
    /// Add to its end.
    Append {
        /// At least one of them.
        drafts: Vec<Draft>,
        /// Refuse unless the log ends here.
        expected_seq: Option<u64>,
        /// Makes a repeated request harmless.
        idempotency: Option<Idempotency>,
    },
    /// Put back events that were written elsewhere, chain and all. Those that are there already are skipped.
    Restore {
        /// In order, without gaps.
        events: Vec<Event>,
    },
    /// Begin it without events, as a backup has it. Its events follow as restores; a deleted conversation that is only
    /// kept because of its forks may have none left.
    Begin {
        /// When it was created.
        created: Timestamp,
        /// Where it leaves its parent.
        parent: Option<Parent>,
    },
    /// Delete it as it was deleted elsewhere: its tombstone comes from a backup and may name a later head.
    Bury {
        /// Kept as it is.
        tombstone: Tombstone,
    },
    /// Remember requests that were answered elsewhere, so that a client that repeats one writes nothing.
    Remember {
        /// Requests whose events are there already.
        requests: Vec<AnsweredRequest>,
    },
    /// Make a piece of an open turn durable. Not an event: the turn's end will be one.
    Chunk {
        /// The open turn.
        turn: TurnId,
        /// Bytes of the turn's text before this piece.
        offset: u64,
        /// The piece.
        text: String,
    },
    /// Append what was made of the log's words: a checkpoint, facts. Refused if anything that the conversation sees was
    /// erased since, because the words may be in it.
    Derive {
        /// At least one of them.
        drafts: Vec<Draft>,
        /// Number of erasures before the words were read, as the store counts them.
        mark: u64,
    },
    /// Erase the bodies of events, and record it. Whatever was learned from a turn goes with it, in every conversation of
    /// the tenant: the statements that name it as their source, and corrections of facts that have no other source.
    Erase {
        /// Turns whose content goes.
        turns: Vec<TurnId>,
        /// Other events whose bodies go.
        events: Vec<Place>,
        /// Whether checkpoints that cover the turns go as well, also those of forks and those that were taken back.
        summaries: bool,
        /// The `turn.erased` event.
        draft: Draft,
    },
    /// Delete it whole. A tombstone stays.
    Delete {
        /// When.
        at: Timestamp,
        /// Why.
        reason: String,
        /// Refuse if its time to live has not passed by then: something may have been said since it was found due.
        only_expired: bool,
    },
}

/// Where an event was written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Place {
    /// The conversation; for an inherited event of a fork, the ancestor.
    pub conversation: ConversationId,
    /// Its place there.
    pub seq: u64,
}

/// A request with an idempotency key that was answered: what a store keeps to recognise it.
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

/// A key that a client may send again, and the hash of what it sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Idempotency {
    /// Chosen by the client.
    pub key: String,
    /// Of the request without ids and times.
    pub request: Hash,
    /// Refuse with this error unless the request was answered before.
    pub only_repeat: Option<Error>,
}

impl Idempotency {
    /// What a store keeps to recognise the request. Salted with the first event's salt: once that is erased, nobody can
    /// guess a short text from this.
    pub fn fingerprint(&self, salt: &[u8; 16]) -> Hash {
        Hash::of(&[&salt[..], &self.request.0].concat())
    }

    /// Refuses a key that was used for something else.
    pub fn conflict(&self) -> Error {
        Error::conflict(
            "idempotency.reused",
            format!(
                "idempotency key {:?} was used before with another body; use a new key",
                crate::id::clip(&self.key)
            ),
        )
    }
}

/// What a store must be able to tell while a write is planned, all of it as the conversation itself sees it.
pub trait Lookup {
    /// A turn of this conversation, inherited ones included.
    fn turn(&self, id: TurnId) -> Result<Option<TurnRow>, Error>;
    /// The point in its parent where a fork begins. The parent belongs to the same tenant.
    fn fork_point(&self, parent: Parent) -> Result<ForkPoint, Error>;
    /// The hash of the event at this place, inherited ones included.
    fn hash_at(&self, seq: u64) -> Result<Option<Hash>, Error>;
    /// How many turns after this place do not stand any more: another took their place, or they were aborted.
    fn fallen_after(&self, seq: u64) -> Result<u64, Error>;
    /// Whether anything that this conversation sees was erased after so many erasures.
    fn erased_since(&self, mark: u64) -> Result<bool, Error>;
}

/// What a fork needs to know of its parent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ForkPoint {
    /// The event that both share.
    pub head: Head,
    /// Turns up to there.
    pub turns: u64,
}

/// What a store has to write down.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The conversation afterwards.
    pub conversation: Conversation,
    /// New events, in order.
    pub events: Vec<Event>,
    /// Rows that follow from them.
    pub changes: Changes,
}

/// Rows to add or replace.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Turns, new or changed.
    pub turns: Vec<TurnRow>,
    /// New assets.
    pub assets: Vec<AssetRow>,
    /// Which turn refers to which asset.
    pub references: Vec<AssetReference>,
    /// Statements of facts.
    pub facts: Vec<FactRow>,
    /// Checkpoints and whatever else repeats many turns.
    pub summaries: Vec<SummaryRow>,
    /// Events that may repeat a turn without naming it.
    pub echoes: Vec<EchoRow>,
}

/// What a store keeps about an event that sums up turns, to find it when one of them is erased.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SummaryRow {
    /// The place of the event.
    pub seq: u64,
    /// It may repeat turns up to here; 0 if it has no words and only decides which checkpoint is in force.
    pub through_seq: u64,
}

/// What a store keeps about a text that may repeat a turn: see [`echo`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EchoRow {
    /// The place of the event.
    pub seq: u64,
    /// See [`echo::bucket`].
    pub bucket: u16,
}

/// What a store keeps about a statement of a fact beside its event. No words: they are in the event only.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FactRow {
    /// The fact.
    pub id: FactId,
    /// The place of the statement.
    pub seq: u64,
    /// The turn that it was learned from: when that is erased, so are the words of the statement.
    pub source_turn: Option<TurnId>,
    /// The fact that it corrects or takes back: when nothing of that is left, its words go too.
    pub corrects: Option<FactId>,
}

/// What a store keeps about an asset beside its event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AssetRow {
    /// Its id.
    pub id: String,
    /// The `asset.added` event, whose body is the descriptor.
    pub seq: u64,
    /// Its address, where its bytes are ours.
    pub sha256: Option<Hash>,
}

/// A turn shows an asset.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AssetReference {
    /// Which asset.
    pub asset: String,
    /// The turn's place.
    pub turn_seq: u64,
}

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

/// What a `compaction` event does to the view. The rest of its body is for readers: see `compaction`.
#[derive(Serialize, Deserialize)]
struct Compacted {
    /// What was in force before it; another compaction that came first makes it stale.
    previous: Option<CheckpointRef>,
    /// What it covers from now on.
    #[serde(default)]
    summarized: Option<Summarized>,
    /// The compaction that it takes back.
    #[serde(default)]
    reverts: Option<EventId>,
    /// What is in force again, where it takes one back.
    #[serde(default)]
    restores: Option<CheckpointRef>,
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

/// What a `transcript_budget` event does to the view. The rest of its body is for readers: see `budget`.
#[derive(Serialize, Deserialize)]
struct Trimmed {
    /// Present where the view begins later from now on.
    #[serde(default)]
    trimmed: Option<Summarized>,
}

/// Plans a creation, an append or a restore. `existing` is the conversation, if it is there.
pub fn plan(
    key: &Key,
    existing: Option<Conversation>,
    action: Action,
    lookup: &dyn Lookup,
) -> Result<Plan, Error> {
    match (action, existing) {
        (Action::Create { .. } | Action::Begin { .. }, Some(conversation)) => Err(Error::conflict(
            "conversation.exists",
            format!(
                "{} exists already, with {} events; append to it instead",
                conversation.id, conversation.head.seq
            ),
        )),
        (Action::Create { drafts, parent, .. }, None) => {
            let Some(first) = drafts.first() else { return Err(empty()) };
            let conversation = begin(key, first.at, parent, lookup)?;
            append(conversation, drafts, lookup)
        }
        (Action::Begin { created, parent }, None) => {
            let conversation = begin(key, created, parent, lookup)?;
            Ok(Plan { conversation, events: Vec::new(), changes: Changes::default() })
        }
        (
            Action::Append { .. }
            | Action::Derive { .. }
            | Action::Erase { .. }
            | Action::Chunk { .. }
            | Action::Delete { .. }
            | Action::Bury { .. }
            | Action::Remember { .. },
            None,
        ) => Err(absent(key)),
        (Action::Append { drafts, expected_seq, .. }, Some(conversation)) => {
            if drafts.len() > BATCH_EVENTS_MAX {
                return Err(Error::limit(
                    "BATCH_EVENTS_MAX",
                    BATCH_EVENTS_MAX as u64,
                    drafts.len() as u64,
                    "append in several batches",
                ));
            }
            let head = conversation.head.seq;
            if let Some(expected) = expected_seq.filter(|expected| *expected != head) {
                return Err(stale_seq(head, expected));
            }
            append(conversation, drafts, lookup)
        }
        (Action::Derive { drafts, mark }, Some(conversation)) => {
            if lookup.erased_since(mark)? {
                return Err(Error::conflict(
                    "derive.erased",
                    "something was erased while this was made of it; nothing was written, make it again",
                ));
            }
            append(conversation, drafts, lookup)
        }
        (Action::Restore { events }, existing) => restore(key, existing, events, lookup),
        (Action::Erase { turns, draft, .. }, Some(conversation)) => {
            for turn in turns {
                if lookup.turn(turn)?.is_some_and(|row| row.status == Status::Pending) {
                    return Err(still_open(turn));
                }
            }
            append(conversation, vec![draft], lookup)
        }
        (
            Action::Chunk { .. } | Action::Delete { .. } | Action::Bury { .. } | Action::Remember { .. },
            Some(_),
        ) => Err(Error::internal("write.not_planned", "this request writes no events")),
    }
}

/// The answer to a request that expects the log to end elsewhere.
pub fn stale_seq(head: u64, expected: u64) -> Error {
    let from = expected.min(head) + 1;
    Error::conflict(
        "append.stale_seq",
        format!("head is {head}, you expected {expected}; read from {from} and append again"),
    )
}

/// The answer for a conversation that is not there, or not this tenant's.
pub fn absent(key: &Key) -> Error {
    Error::not_found("conversation.absent", format!("no conversation {}; `list` shows what there is", key.id))
}

/// Refuses to delete what was found due and is not any more.
pub fn check_due(conversation: &Conversation, at: Timestamp, only_expired: bool) -> Result<(), Error> {
    if only_expired && conversation.expires().is_none_or(|due| due > at) {
        return Err(Error::conflict(
            "delete.not_due",
            format!("{} is in use again; it stays", conversation.id),
        ));
    }
    Ok(())
}

/// The answer for a turn that is not there, or not this tenant's.
pub fn absent_turn(id: TurnId) -> Error {
    Error::not_found("turn.absent", format!("no turn {id} here; `history` shows what there is"))
}

/// The answer to a chunk, a commit or an abort for a turn that has ended.
pub fn not_open(turn: TurnId, status: Status) -> Error {
    Error::conflict("turn.not_open", format!("{turn} is {status} already; open a new turn"))
}

/// The answer to what can only be done with a turn that has ended.
pub fn still_open(turn: TurnId) -> Error {
    Error::conflict("turn.open", format!("{turn} is still open; commit or abort it first"))
}

/// Refuses a fork that would have too many ancestors. `levels` counts its parent and the parent's ancestors.
pub fn check_fork_depth(levels: usize) -> Result<(), Error> {
    if levels > FORK_DEPTH_MAX {
        let advice =
            "begin anew from its transcript value, imported under another tenant or into another store";
        return Err(Error::limit("FORK_DEPTH_MAX", FORK_DEPTH_MAX as u64, levels as u64, advice));
    }
    Ok(())
}

/// The answer for a place that a conversation does not have.
pub fn no_such_seq(conversation: &Conversation, seq: u64) -> Error {
    let head = conversation.head.seq;
    Error::invalid(
        "seq.out_of_range",
        format!("{} has no seq {seq}; its events are 1 to {head}", conversation.id),
    )
}

fn empty() -> Error {
    Error::invalid("append.empty", "nothing to append; give at least one turn")
}

/// A conversation before its first event: empty, or standing where it leaves its parent.
pub fn begin(
    key: &Key,
    at: Timestamp,
    parent: Option<Parent>,
    lookup: &dyn Lookup,
) -> Result<Conversation, Error> {
    let Some(parent) = parent else {
        return Ok(Conversation::new(key.id, key.tenant.clone(), at, Head::genesis(key.id)));
    };
    let point = lookup.fork_point(parent)?;
    let mut conversation = Conversation::new(key.id, key.tenant.clone(), at, point.head);
    conversation.turns = point.turns;
    conversation.parent = Some(parent);
    Ok(conversation)
}

fn append(mut conversation: Conversation, drafts: Vec<Draft>, lookup: &dyn Lookup) -> Result<Plan, Error> {
    if drafts.is_empty() {
        return Err(empty());
    }
    let mut events = Vec::with_capacity(drafts.len());
    let mut changes = Changes::default();
    for draft in drafts {
        admit(&conversation, &draft, &changes, lookup)?;
        let event = chain::next_event(conversation.id, conversation.head, draft);
        fold(&mut conversation, &event, &mut changes, lookup)?;
        events.push(event);
    }
    conversation.check()?;
    if events.iter().any(|event| !kind::RESERVED.contains(&&*event.kind) || kind::begins_turn(&event.kind)) {
        check_budget(&conversation, &changes, lookup)?;
    }
    Ok(Plan { conversation, events, changes })
}

/// What the messages view of a conversation retains, without its bytes. `fallen` are turns that do not count.
pub fn usage(conversation: &Conversation, fallen: u64) -> Usage {
    let (start, turns_before) = conversation.view_start();
    Usage {
        messages: conversation.turns.saturating_sub(turns_before).saturating_sub(fallen),
        events: conversation.head.seq.saturating_sub(start),
        bytes: 0,
    }
}

/// Refuses what goes over the conversation's budget, if its policy is to reject. The engine counts bytes, and makes room
/// under the other policies: appends at the same moment may pass the limit by their number until the next one makes room.
fn check_budget(conversation: &Conversation, changes: &Changes, lookup: &dyn Lookup) -> Result<(), Error> {
    let policy = conversation.limits();
    // Superseded turns are counted too, which costs nothing and settles nearly every append.
    if !policy.rejects() || policy.exceeded(&usage(conversation, 0)).is_none() {
        return Ok(());
    }
    let start = conversation.view_start().0;
    let now =
        changes.turns.iter().filter(|row| row.superseded_by.is_some() && row.seq > start).count() as u64;
    let usage = usage(conversation, lookup.fallen_after(start)? + now);
    if policy.exceeded(&usage).is_some() { Err(policy.refuse(&usage)) } else { Ok(()) }
}

/// Whether this may be written now.
fn admit(
    conversation: &Conversation,
    draft: &Draft,
    changes: &Changes,
    lookup: &dyn Lookup,
) -> Result<(), Error> {
    let kind = &*draft.kind;
    let refuse = |advice: &str| {
        Err(Error::conflict(
            "conversation.not_active",
            format!("{} is {}; {advice}", conversation.id, conversation.state),
        ))
    };
    // The end of an open turn may bring assets along.
    let brought = kind == kind::ASSET_ADDED && draft.turn.is_some();
    let about_it = matches!(kind, kind::ERASED | kind::UPDATED | kind::COMPACTION | kind::RECEIPT)
        || kind::ends_turn(kind)
        // What was said can be learned from, and a fact can be wrong, also when nothing more is said.
        || kind::is_fact(kind)
        || kind == kind::FACTS_READ
        || brought;
    match conversation.state {
        State::Active => {}
        State::Archived | State::Abandoned if about_it || kind == kind::STATE => {}
        State::Archived | State::Abandoned => return refuse("resume it first"),
        State::Closed if about_it => {}
        State::Closed => {
            return refuse("it cannot be continued: `reset` starts a new one, `fork` goes on from a copy");
        }
    }
    if kind::ends_turn(kind) {
        let row = about_turn(draft.turn, changes, lookup)?;
        if row.status != Status::Pending {
            return Err(not_open(row.id, row.status));
        }
    }
    if kind::is_fact(kind) && draft.turn.is_some() {
        let row = about_turn(draft.turn, changes, lookup)?;
        if row.status == Status::Pending {
            return Err(still_open(row.id));
        }
    }
    if kind == kind::COMPACTION
        && let Ok(body) = serde_json::from_str::<Compacted>(&draft.body.text)
        && body.previous != conversation.checkpoint
    {
        return Err(Error::conflict(
            "compaction.stale",
            "another compaction was first; nothing is lost, and there may be nothing left to compact",
        ));
    }
    if kind == kind::SUPERSEDED {
        let row = about_turn(draft.turn, changes, lookup)?;
        // An aborted turn names the event that ended it until a turn takes its place.
        if let Some(by @ Successor::Turn(_)) = row.superseded_by {
            return Err(Error::conflict(
                "turn.superseded",
                format!("{} is superseded by {by} already; supersede that one", row.id),
            ));
        }
        if row.status == Status::Pending {
            return Err(still_open(row.id));
        }
    }
    Ok(())
}

fn about_turn(turn: Option<TurnId>, changes: &Changes, lookup: &dyn Lookup) -> Result<TurnRow, Error> {
    let id = turn.ok_or_else(|| Error::invalid("turn.missing", "the event names no turn"))?;
    find_turn(id, changes, lookup)?.ok_or_else(|| absent_turn(id))
}

fn find_turn(id: TurnId, changes: &Changes, lookup: &dyn Lookup) -> Result<Option<TurnRow>, Error> {
    match changes.turns.iter().rev().find(|row| row.id == id) {
        Some(row) => Ok(Some(row.clone())),
        None => lookup.turn(id),
    }
}

/// What one event does to its conversation and the rows. An event that came from elsewhere and lacks what its kind
/// promises does nothing; it is kept all the same.
pub fn fold(
    conversation: &mut Conversation,
    event: &Event,
    changes: &mut Changes,
    lookup: &dyn Lookup,
) -> Result<(), Error> {
    match event.kind.as_str() {
        kind::CREATED | kind::UPDATED | kind::FORKED => {
            if let Some(settings) = event.read::<Settings>() {
                if settings.checkpoint.is_some() {
                    changes.summaries.push(SummaryRow { seq: event.seq, through_seq: 0 });
                }
                conversation.set(settings, event.seq);
            }
        }
        kind::STATE => {
            if let Some(body) = event.read::<StateBody>() {
                conversation.state = body.state;
            }
        }
        kind if kind::begins_turn(kind) => {
            // One that came from elsewhere and names no turn is an event only.
            if let Some(row) = TurnRow::begun(event) {
                changes.turns.push(row);
                conversation.turns += 1;
                refer(event, event.seq, changes);
            }
        }
        kind if kind::ends_turn(kind) => end_turn(event, changes, lookup)?,
        kind::SUPERSEDED => {
            if let (Some(id), Some(body)) = (event.turn, event.read::<SupersededBody>())
                && let Some(mut row) = find_turn(id, changes, lookup)?
            {
                row.superseded_by = Some(Successor::Turn(body.by));
                row.superseded_seq = Some(event.seq);
                changes.turns.push(row);
            }
        }
        kind::COMPACTION | kind::BUDGET => {
            let mut checkpoint = conversation.checkpoint;
            move_view(event, &mut checkpoint, &mut conversation.budget);
            conversation.set_checkpoint(checkpoint);
            changes.summaries.extend(summary(event));
        }
        kind::PROJECTION => changes.summaries.extend(summary(event)),
        kind if kind::is_fact(kind) => {
            if let Some((id, corrects)) = fact::told_by(event) {
                changes.facts.push(FactRow { id, seq: event.seq, source_turn: event.turn, corrects });
            }
        }
        kind::ASSET_ADDED => {
            if let Some(asset) = event.read::<Asset>() {
                changes.assets.push(AssetRow { id: asset.id, seq: event.seq, sha256: asset.sha256 });
            }
        }
        _ => {}
    }
    if echo::may_repeat(&event.kind) {
        let buckets = echo::buckets(event);
        changes.echoes.extend(buckets.into_iter().map(|bucket| EchoRow { seq: event.seq, bucket }));
    }
    if let Some(actor) = &event.actor
        && kind::is_of_turn(&event.kind)
        && conversation.participants.len() < PARTICIPANTS_MAX
        && !conversation.participants.contains(actor)
    {
        conversation.participants.push(actor.clone());
    }
    conversation.head = Head { seq: event.seq, hash: event.hash };
    conversation.updated = conversation.updated.max(event.at);
    Ok(())
}

/// How far back an event that sums up turns reaches. A projection repeats the checkpoint that it was made with.
fn summary(event: &Event) -> Option<SummaryRow> {
    let through_seq = match event.kind.as_str() {
        kind::COMPACTION => {
            event.read::<Compacted>()?.summarized.map_or(0, |summarized| summarized.through_seq)
        }
        kind::PROJECTION => event.seq,
        _ => return None,
    };
    event.body.as_ref().map(|_| SummaryRow { seq: event.seq, through_seq })
}

/// What a compaction or a budget does to where the messages view begins.
pub fn move_view(event: &Event, checkpoint: &mut Option<CheckpointRef>, budget: &mut Option<BudgetRef>) {
    if event.kind == kind::COMPACTION
        && let Some(body) = event.read::<Compacted>()
    {
        match (body.reverts, body.summarized) {
            (Some(_), _) => *checkpoint = body.restores,
            (None, Some(Summarized { through, through_seq, turns_before })) => {
                let (event, seq) = (event.id, event.seq);
                *checkpoint = Some(CheckpointRef { event, seq, through, through_seq, turns_before });
            }
            (None, None) => {}
        }
    }
    if event.kind == kind::BUDGET
        && let Some(body) = event.read::<Trimmed>()
    {
        let before = budget.map_or((0, 0), |b| (b.through_seq, b.turns_before));
        let (through_seq, turns_before) = body.trimmed.map_or(before, |t| (t.through_seq, t.turns_before));
        *budget = Some(BudgetRef { seq: event.seq, through_seq, turns_before });
    }
}

fn end_turn(event: &Event, changes: &mut Changes, lookup: &dyn Lookup) -> Result<(), Error> {
    let Some(id) = event.turn else { return Ok(()) };
    let Some(mut row) = find_turn(id, changes, lookup)? else { return Ok(()) };
    row.content_seq = Some(event.seq);
    row.status = match event.kind.as_str() {
        kind::COMMITTED => Status::Complete,
        kind::ABORTED => Status::Aborted,
        _ => Status::Interrupted,
    };
    if row.status == Status::Aborted {
        row.superseded_by = Some(Successor::Event(event.id));
        row.superseded_seq = Some(event.seq);
    }
    refer(event, row.seq, changes);
    changes.turns.push(row);
    Ok(())
}

/// Notes which assets a turn's content shows.
fn refer(event: &Event, turn_seq: u64, changes: &mut Changes) {
    // Most turns show none, and parsing each would cost every append.
    if !event.text().is_some_and(|text| text.contains("asset_")) {
        return;
    }
    let Some(message) = event.read::<TurnBody>().and_then(|body| body.message?.read::<Value>()) else {
        return;
    };
    for asset in message::asset_ids(&message) {
        changes.references.push(AssetReference { asset, turn_seq });
    }
}

fn restore(
    key: &Key,
    existing: Option<Conversation>,
    events: Vec<Event>,
    lookup: &dyn Lookup,
) -> Result<Plan, Error> {
    let Some(first) = events.first() else { return Err(empty()) };
    let mut conversation = match existing {
        Some(conversation) => conversation,
        None => {
            let parent = (first.kind == kind::FORKED)
                .then(|| first.read::<Settings>().and_then(|s| s.parent))
                .flatten();
            begin(key, first.at, parent, lookup)?
        }
    };
    let mut changes = Changes::default();
    let mut added = Vec::new();
    for event in events {
        if event.conversation != key.id {
            return Err(Error::invalid(
                "restore.foreign",
                format!("seq {} belongs to {}, not {}", event.seq, event.conversation, key.id),
            ));
        }
        if event.seq <= conversation.head.seq {
            if lookup.hash_at(event.seq)? != Some(event.hash) {
                return Err(Error::conflict(
                    "restore.diverged",
                    format!(
                        "{} differs from what is here at seq {}; import it under another tenant or store",
                        key.id, event.seq
                    ),
                ));
            }
            continue;
        }
        chain::Verifier::after(conversation.id, conversation.head).push(&event)?;
        if kind::begins_turn(&event.kind) && find_turn(TurnId(event.id.0), &changes, lookup)?.is_some() {
            let text = format!(
                "seq {}: {} was said already; the file is not one that Everturn wrote",
                event.seq,
                TurnId(event.id.0)
            );
            return Err(Error::corrupt("restore.turn_twice", text));
        }
        fold(&mut conversation, &event, &mut changes, lookup)?;
        added.push(event);
    }
    Ok(Plan { conversation, events: added, changes })
}
