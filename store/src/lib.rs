//! Where conversations are kept.
//!
//! Short traits, their backends, and the module `conformance` (a feature): the one list of promises that every backend runs. A
//! behaviour that is not in that list is not promised. All rules about what may be written are in `core::write`; a
//! backend only looks up, writes down and makes durable.
//!
//! What it is not: it has no clock and makes no ids, it does not batch (the writer in `engine` does), and it knows no
//! message format.

pub mod assets;
mod checked;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod memory;
mod recall;
pub mod sqlite;

pub use checked::{CheckedIndex, CheckedLog};

use everturn_core::Error;
use everturn_core::access::AccessKey;
use everturn_core::chain::Hash;
use everturn_core::conversation::{Conversation, State, Tombstone};
use everturn_core::event::Event;
use everturn_core::id::{ConversationId, FactId, Key, KeyId, Tenant, TurnId};
use everturn_core::json::Raw;
use everturn_core::time::Timestamp;
use everturn_core::turn::{Status, TurnRow};
use everturn_core::write::{AnsweredRequest, EventRef, Learned, Place, Write};
use everturn_views::recall::{Counts, Entry, EntryId, EntryNo, Filter, TextQuery};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;

/// The ground: events, appended and never rewritten.
pub trait Log: Send + Sync {
    /// Writes every request of the batch, in order, in one transaction with one sync at its end.
    ///
    /// - If a request's answer is `Ok`, what it wrote survives `kill -9` and power loss.
    /// - Each request is atomic and has its own answer: one that is refused leaves no trace and does not disturb the others.
    /// - A request sees what the ones before it in the batch wrote.
    /// - If the disk refuses, every request of the batch answers with that error and none of them left a trace.
    /// - `seq` is dense, starts at 1 and is decided here, whatever the clocks say.
    fn commit(&self, batch: Vec<Write>) -> Vec<Result<Committed, Error>>;

    /// Called when nothing waits to be written: a chance to tidy up what commits left for later. Changes no answer.
    fn settle(&self) -> Result<(), Error>;

    /// Whether a commit would be taken now. The error says why not: the store was opened for reading only, another process took
    /// the right to write, the storage is not the one that was opened, or the last commit failed for want of room and there is still none.
    fn ready(&self) -> Result<(), Error>;

    /// Events of a conversation with `seq` greater than `after`, ascending, at most `limit`. For a fork, its parent's
    /// events come first, under the parent's conversation id. Each `prev` is the hash that is stored with the event before.
    /// Nothing is checked: [`CheckedLog::events`] is the way to read them.
    ///
    /// A page also ends once its bodies reach `PAGE_BYTES_MAX` bytes, so it may be shorter than `limit`; only an empty
    /// page is the end.
    fn stored_events(&self, key: &Key, after: u64, limit: usize) -> Result<Vec<Event>, Error>;

    /// Whether the event at a place, which has no body now, had one in this store: then it was erased here, and a
    /// `turn.erased` must say so. False if it was imported or restored without its body, and where a backend cannot tell.
    fn had_body(&self, key: &Key, seq: u64) -> Result<bool, Error>;

    /// The text of open turns that is durable, with the number of bytes. Empty for a turn that is not open.
    fn open_text(&self, key: &Key, turn: TurnId) -> Result<String, Error>;
}

/// What can be found without reading a log from its start. Derived: [`Index::rebuild`] gives the same answers.
pub trait Index: Send + Sync {
    /// A conversation. `NotFound` if it is not there, not this tenant's, or deleted.
    fn conversation(&self, key: &Key) -> Result<Conversation, Error>;
    /// Every tenant that has or had a conversation, in order.
    fn tenants(&self) -> Result<Vec<Tenant>, Error>;
    /// Counts what a tenant has stored, from its rows: takes time in proportion to them.
    fn usage(&self, tenant: &Tenant) -> Result<TenantUsage, Error>;
    /// Conversations of a tenant, last changed first.
    fn conversations(&self, tenant: &Tenant, query: &ConversationQuery) -> Result<Vec<Conversation>, Error>;
    /// Ids of a tenant's conversations that begin with this, at most `limit`.
    fn starting_with(
        &self,
        tenant: &Tenant,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<ConversationId>, Error>;
    /// For [`CheckedIndex::turns`].
    fn stored_turns(&self, key: &Key, query: &TurnQuery) -> Result<Vec<StoredTurn>, Error>;
    /// For [`CheckedIndex::turn`].
    fn stored_turn(&self, tenant: &Tenant, id: TurnId) -> Result<StoredTurn, Error>;
    /// For [`CheckedIndex::turn_in`].
    fn stored_turn_in(&self, key: &Key, id: TurnId) -> Result<StoredTurn, Error>;
    /// How many turns after a place do not stand any more: another took their place, or they were aborted.
    fn fallen_after(&self, key: &Key, seq: u64) -> Result<u64, Error>;
    /// Turns that are still open, over all tenants.
    fn open_turns(&self) -> Result<Vec<(Key, TurnId)>, Error>;
    /// Conversations whose time to live has passed, over all tenants.
    fn expired(&self, now: Timestamp, limit: usize) -> Result<Vec<Key>, Error>;
    /// For [`CheckedIndex::assets`]: the `asset.added` events.
    fn stored_assets(&self, key: &Key) -> Result<Vec<Event>, Error>;
    /// For [`CheckedIndex::asset`].
    fn stored_asset(&self, key: &Key, id: &str) -> Result<Option<Event>, Error>;
    /// For [`CheckedIndex::assets_with_id`].
    fn stored_assets_with_id(
        &self,
        tenant: &Tenant,
        id: &str,
        limit: usize,
    ) -> Result<Vec<(ConversationId, Event)>, Error>;
    /// The conversation of a tenant in which a fact was first stated under this id. `None` for another tenant's, and when
    /// every statement of it was erased.
    fn fact(&self, tenant: &Tenant, id: FactId) -> Result<Option<ConversationId>, Error>;
    /// What was learned from a turn, in every conversation of the tenant, and corrections of facts that have no other
    /// source: what goes when the turn is erased.
    fn learned_from(&self, tenant: &Tenant, turn: TurnId) -> Result<Vec<Learned>, Error>;
    /// Events that repeat words of a turn without naming it, in its conversation and in forks that see it: titles and
    /// imported lines.
    fn echoes(&self, key: &Key, turn: TurnId) -> Result<Vec<Event>, Error>;
    /// Number of bodies that this process erased so far: see [`Action::Derive`](everturn_core::write::Action::Derive).
    fn erasures(&self) -> Result<u64, Error>;
    /// Events of an actor whose bodies are not erased, over all conversations of a tenant, in the order of arrival. Looks at
    /// a bounded part of the log after a position (0 at first); `None` behind its end.
    fn written_by(&self, tenant: &Tenant, actor: &str, after: u64) -> Result<Option<WrittenPage>, Error>;
    /// The newest fold that was kept for a place at or before this one, an ancestor's included, and that place.
    fn fold(&self, key: &Key, at_or_before: u64) -> Result<Option<(u64, Raw)>, Error>;
    /// Keeps a fold for later. It may be lost: whoever needs it makes it again from the log.
    fn keep_fold(&self, key: &Key, seq: u64, fold: &Raw) -> Result<(), Error>;
    /// Whether any conversation of the tenant still has an asset with these bytes.
    fn asset_in_use(&self, tenant: &Tenant, sha256: Hash) -> Result<bool, Error>;
    /// What was deleted.
    fn tombstones(&self, tenant: &Tenant) -> Result<Vec<Tombstone>, Error>;
    /// Drops what is derived and makes it again from the log.
    fn rebuild(&self) -> Result<(), Error>;
    /// Gives unused space back, and with it whatever old titles, names and metadata stayed behind there.
    fn compact(&self) -> Result<(), Error>;
    /// Looks for damage: what the storage itself complains about, what is known to have been written and is missing, and
    /// every derived row that differs from the log. Changes nothing.
    fn check(&self) -> Result<Vec<Problem>, Error>;
    /// What processes wrote beside a log, where several could write at once. Nothing, where that cannot happen.
    fn branches(&self) -> Result<Vec<Branch>, Error>;
    /// Moves a branch to the end of a fork that was made at its `at_seq`. The events keep ids, times and bodies, and get
    /// new places and hashes. Says how many there are.
    fn adopt(&self, branch: &Branch, into: &Key) -> Result<u64, Error>;
}

/// Something that is wrong with a store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// The conversation, if it is about one.
    pub key: Option<Key>,
    /// What can be done about it.
    pub kind: ProblemKind,
    /// One sentence without an end.
    pub text: String,
}

/// What can be done about a problem.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProblemKind {
    /// The storage is damaged: a backup helps.
    Damaged,
    /// Events that were written are not in the log: a backup helps.
    Missing,
    /// Two processes wrote beside each other: [`Index::adopt`] helps.
    Diverged,
    /// A derived row is not what the log says: [`Index::rebuild`] helps.
    Derived,
}

/// Events that a process wrote beside a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Branch {
    /// The conversation.
    pub key: Key,
    /// The last event that it shares with the log.
    pub at_seq: u64,
    /// Its first event, by its number in this store.
    pub first: i64,
    /// How many events it has.
    pub events: u64,
}

/// Bytes by their hash, beside the log.
pub trait Assets: Send + Sync {
    /// Keeps the bytes; durable when it returns. Where they are kept already they are compared, and damaged ones replaced.
    /// A full disk is `Busy`.
    fn put(&self, tenant: &Tenant, sha256: Hash, bytes: Vec<u8>) -> Result<(), Error>;
    /// The bytes, or `NotFound`. Bytes that do not match their hash are `Corrupt`.
    fn get(&self, tenant: &Tenant, sha256: Hash) -> Result<Vec<u8>, Error>;
    /// Some of the bytes: up to the end, where the range goes beyond it. Not compared with the hash, which would take
    /// reading all of them: the caller compares pieces.
    fn get_range(&self, tenant: &Tenant, sha256: Hash, range: Range<u64>) -> Result<Vec<u8>, Error>;
    /// Forgets the bytes; absent ones are no error.
    fn delete(&self, tenant: &Tenant, sha256: Hash) -> Result<(), Error>;
    /// Everything that is kept, with the time it was written.
    fn list(&self) -> Result<Vec<(Tenant, Hash, Timestamp)>, Error>;
}

/// Keys of whoever may ask a server. Ground, but beside the log: a key is about access and not about a conversation.
pub trait Keys: Send + Sync {
    /// Keeps a new key; durable when it returns. One with the same id is a `Conflict`.
    fn put_key(&self, key: &AccessKey) -> Result<(), Error>;
    /// A key of any tenant, since whoever asks is not known before; revoked and expired ones too.
    fn key(&self, id: KeyId) -> Result<Option<AccessKey>, Error>;
    /// The keys of a tenant, oldest first, revoked and expired ones too.
    fn keys(&self, tenant: &Tenant) -> Result<Vec<AccessKey>, Error>;
    /// Whether any tenant has a key that is valid at this time; without one, whether there ever was a key.
    fn any_key(&self, valid_at: Option<Timestamp>) -> Result<bool, Error>;
    /// Takes a key back; durable when it returns. `NotFound` if it is not there or not this tenant's. One that was
    /// revoked before stays as it is.
    fn revoke_key(&self, tenant: &Tenant, id: KeyId, at: Timestamp) -> Result<AccessKey, Error>;
    /// Notes that a key was used. The time never goes back; an absent key is no error.
    fn touch_key(&self, id: KeyId, at: Timestamp) -> Result<(), Error>;
}

/// A whole store, of all tenants, for backup. What reads here is many short reads and not one long one: a backup may take
/// hours, and neither the log nor an erasure waits for it. What it reads is put back by `Begin`, `Restore`, `Bury` and
/// `Remember` (see `core::write`), in the order of [`Member::no`].
pub trait Backup: Send + Sync {
    /// Every conversation there is or was, deleted ones included, in the order of creation, as of one moment.
    fn members(&self) -> Result<Vec<Member>, Error>;
    /// One of them as it is now. `NotFound` if there never was one with this number.
    fn member(&self, no: u64) -> Result<Member, Error>;
    /// Its own events after one place up to another, ascending: at least one, and no more once their bodies have
    /// `bytes_max` bytes. Of a deleted conversation only those that its forks still need.
    fn member_events(&self, no: u64, after: u64, through: u64, bytes_max: usize)
    -> Result<Vec<Event>, Error>;
    /// Its requests with idempotency keys, for events after one place up to another, at most `limit`, in the order of
    /// their last events. A page never ends between two requests with the same last event.
    fn requests(
        &self,
        no: u64,
        after: u64,
        through: u64,
        limit: usize,
    ) -> Result<Vec<AnsweredRequest>, Error>;
    /// Some of the events whose bodies are erased. Begins at 0; each answer says where the next begins, and the last
    /// one `None`.
    fn erased(&self, from: u64) -> Result<ErasedPage, Error>;
    /// Every key of every tenant, as it is kept.
    fn all_keys(&self) -> Result<Vec<AccessKey>, Error>;
}

/// A conversation as a backup sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Its number in this store: 1, 2, 3, … in the order of creation. Never used twice, although an id may be.
    pub no: u64,
    /// Whose, and which.
    pub key: Key,
    /// When it was created.
    pub created: Timestamp,
    /// Number of the conversation that it was forked from, and the last event that both share.
    pub parent: Option<(u64, u64)>,
    /// Last own event that is there; 0 if none is.
    pub through: u64,
    /// That event's hash; `None` if the conversation is deleted.
    pub hash: Option<Hash>,
    /// If it was deleted, what stays of it.
    pub deleted: Option<Tombstone>,
}

/// Events whose bodies are erased.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ErasedPage {
    /// Number of the conversation, and place of the event. May contain events that are gone with their conversation.
    pub erased: Vec<(u64, u64)>,
    /// Where to go on.
    pub next: Option<u64>,
}

/// Turns and facts found again, by words and by meaning. Derived: what is lost is made again from the log, and an index
/// that is behind only finds less. It is kept apart from the log, so that taking something in makes no append wait.
///
/// Every tenant has an index of its own: whatever influences an answer (counts, lengths, expanded beginnings, vectors, how far
/// the index is behind) is the tenant's who asks. `behind_in_all`, `vector_models` of everybody and the spans of `unindexed`
/// are for the process that runs the store, never for an answer.
///
/// What is found here need not stand any more: whoever asks looks at each turn as it is now before showing it.
pub trait Recall: Send + Sync {
    /// What was committed and is not in an index yet, in the order of arrival, at most `limit` events: new ones of any tenant,
    /// or those of one tenant whose index was lost. Erased bodies come as such. Nothing is left when the span is empty.
    fn unindexed(&self, limit: usize) -> Result<Unindexed, Error>;
    /// Takes in what follows from events, in one transaction for each tenant; after it, [`Recall::unindexed`] begins behind
    /// `span`. Taking the same in again changes nothing, whether another process did or a crash came in between.
    fn index(&self, changes: Vec<IndexChange>, span: Span) -> Result<(), Error>;
    /// How many events of a tenant are not in its index yet, and how many of its entries have no vector of this model.
    fn behind(&self, tenant: &Tenant, model: Option<&str>) -> Result<Behind, Error>;
    /// The same over all tenants.
    fn behind_in_all(&self, model: Option<&str>) -> Result<Behind, Error>;
    /// Takes what was removed out of a tenant's files as well, or out of everybody's: afterwards none of its words is in them,
    /// nor in copies that the database left behind. Takes as long as writing the index anew; does nothing if nothing was
    /// removed. An index of more than `bytes_max` is left as it is. Says whether they are clean.
    fn scrub(&self, tenant: Option<&Tenant>, bytes_max: Option<u64>) -> Result<bool, Error>;
    /// Drops all indexes. Everything is then unindexed again.
    fn forget(&self) -> Result<(), Error>;
    /// What may fit these words, and what the tenant's index counts of them: [`everturn_views::recall::score`] says how well
    /// each one fits.
    fn find_text(
        &self,
        tenant: &Tenant,
        query: &TextQuery,
        filter: &Filter,
        limit: usize,
    ) -> Result<Proposed, Error>;
    /// Entries of one tenant that have no vector of this model: those of the tenant that is asked for, the ones named first in
    /// their order, or of each tenant in turn; then prose, then the rest, each newest first. Asking makes the model known: from
    /// then on every entry that comes waits for a vector of it.
    fn unembedded(
        &self,
        model: &str,
        wanted: Option<(&Tenant, &[EntryNo])>,
        limit: usize,
    ) -> Result<Vec<Unembedded>, Error>;
    /// Keeps vectors. Those of entries that are gone are dropped; an empty one says that there is nothing to embed, so
    /// that the entry does not wait any longer. Vectors of one model have one length.
    fn put_vectors(
        &self,
        tenant: &Tenant,
        model: &str,
        vectors: Vec<(EntryNo, Vec<f32>)>,
    ) -> Result<(), Error>;
    /// How near these entries are to a question by this model's vectors, in their order; `None` for one without a vector.
    fn nearness(
        &self,
        tenant: &Tenant,
        model: &str,
        vector: &[f32],
        entries: &[EntryNo],
    ) -> Result<Vec<Option<f64>>, Error>;
    /// Turns before and after each of these in its conversation, up to `reach` on either side as far as the filter leaves them,
    /// each with how many turns away it is. Facts have none. Empty where nothing can be found.
    fn neighbours(
        &self,
        tenant: &Tenant,
        filter: &Filter,
        entries: &[EntryNo],
        reach: usize,
    ) -> Result<Vec<Vec<(Found, usize)>>, Error>;
    /// The models of which a tenant, or anybody, has vectors. Those of different models are never compared.
    fn vector_models(&self, tenant: Option<&Tenant>) -> Result<Vec<String>, Error>;
    /// Drops vectors of all other models, at most `limit` at once. Says how many; fewer than `limit` when it is done.
    fn keep_vectors_of(&self, model: &str, limit: usize) -> Result<usize, Error>;
    /// What is nearest in meaning by this model's vectors, best first. Where a filter leaves few, all of those are compared;
    /// where many, at least 95 of 100 of the ten best are found.
    fn find_near(
        &self,
        tenant: &Tenant,
        model: &str,
        vector: &[f32],
        filter: &Filter,
        limit: usize,
    ) -> Result<Vec<Found>, Error>;
}

/// Events that are not in the index yet.
#[derive(Clone, Debug)]
pub struct Unindexed {
    /// In the order of arrival, each with whose it is.
    pub events: Vec<(Tenant, Event)>,
    /// Where they stand.
    pub span: Span,
}

/// A stretch of the order of arrival.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Span {
    /// The only tenant whose events are meant: its index takes them in again. `None` for everybody's.
    pub tenant: Option<Tenant>,
    /// It begins behind this event.
    pub after: u64,
    /// It ends with this one.
    pub through: u64,
}

/// What becomes of the index.
#[derive(Clone, Debug)]
pub enum IndexChange {
    /// This can be found from now on, by its vector too if it comes with one; otherwise it waits for vectors of every model
    /// that is known. One with the same id in the same conversation is replaced.
    Put(Box<Entry>),
    /// This does not stand any more after a place, but can be found by who asks for such.
    Fell {
        /// Where.
        key: Key,
        /// What.
        id: EntryId,
        /// The place of the event that says so.
        seq: u64,
    },
    /// This must not be found again: it was erased or taken back.
    Remove {
        /// Where it was erased: the conversation that it was said in, or a fork of it.
        key: Key,
        /// What.
        id: EntryId,
    },
}

/// How far an index is behind the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Behind {
    /// Events that are not in it yet.
    pub events: u64,
    /// Entries without a vector of the model in use.
    pub vectors: u64,
}

/// What may fit a question.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Proposed {
    /// What the tenant's index counts of the question's words.
    pub counts: Counts,
    /// The likeliest first, as far as can be told without their text.
    pub found: Vec<Found>,
}

/// Something that was found.
#[derive(Clone, PartialEq, Debug)]
pub struct Found {
    /// Its number in this index.
    pub no: EntryNo,
    /// The conversation that it was said in; of what a fork inherited, the ancestor.
    pub conversation: ConversationId,
    /// Its place there.
    pub seq: u64,
    /// Which turn or fact.
    pub id: EntryId,
    /// When it was said.
    pub at: Timestamp,
    /// How well it fits; more is better, and only comparable within one answer.
    pub score: f64,
}

/// Something without a vector.
#[derive(Clone, PartialEq, Debug)]
pub struct Unembedded {
    /// Its number in this index.
    pub no: EntryNo,
    /// The conversation that it was said in.
    pub key: Key,
    /// Its place there.
    pub seq: u64,
    /// Which turn or fact.
    pub id: EntryId,
}

/// Counted for an event beside its body, so that many small ones end a page too.
pub(crate) const EVENT_BYTES: usize = 300;

/// No conversation with this number.
pub(crate) fn absent_member(no: u64) -> Error {
    Error::not_found("backup.member", format!("this store has no conversation number {no}"))
}

/// No key with this id, or another tenant's, which looks the same.
pub(crate) fn absent_key(id: KeyId) -> Error {
    Error::not_found(
        "key.absent",
        format!(
            "the tenant has no key {id}; `everturn keys list` shows those there are, with --tenant those of another tenant"
        ),
    )
}

/// A key with this id is there already.
pub(crate) fn key_exists(id: KeyId) -> Error {
    Error::conflict("key.exists", format!("there is a key {id} already; make another"))
}

/// The answer to a write.
#[derive(Clone, Debug)]
pub struct Committed {
    /// The conversation afterwards; of a deleted one, what it was.
    pub conversation: Arc<Conversation>,
    /// What was appended; for a repeated request, what the first one appended.
    pub events: Vec<Event>,
    /// Whether this request had been answered before and wrote nothing now.
    pub repeated: bool,
    /// Assets that nothing refers to any more; the caller deletes their bytes.
    pub released: Vec<Hash>,
    /// Events whose bodies an erasure took, wherever they were written.
    pub erased: Vec<Place>,
}

impl Committed {
    /// A first answer that appended these events; nothing was released or erased.
    pub(crate) fn new(conversation: impl Into<Arc<Conversation>>, events: Vec<Event>) -> Committed {
        let conversation = conversation.into();
        Committed { conversation, events, repeated: false, released: Vec::new(), erased: Vec::new() }
    }
}

/// A part of what an actor wrote.
#[derive(Clone, Debug)]
pub struct WrittenPage {
    /// What was found.
    pub events: Vec<Written>,
    /// Where to go on.
    pub through: u64,
}

/// An event of an actor.
#[derive(Clone, Debug)]
pub struct Written {
    /// Where it was written.
    pub place: Place,
    /// A conversation that sees it: its own, or a fork if that was deleted.
    pub seen_in: ConversationId,
    /// See [`kind`](everturn_core::event::kind).
    pub kind: String,
    /// The turn that it begins or is about.
    pub turn: Option<TurnId>,
}

/// Bodies that this process erased, so that nothing is committed that was made of them before.
#[derive(Default)]
pub(crate) struct Erasures {
    /// Those before the first that is remembered.
    forgotten: u64,
    last: std::collections::VecDeque<EventRef>,
}

impl Erasures {
    /// Past this the oldest are forgotten; whoever read before them has to read again.
    const REMEMBERED_MAX: usize = 100_000;

    pub fn count(&self) -> u64 {
        self.forgotten + self.last.len() as u64
    }

    pub fn extend(&mut self, erased: impl IntoIterator<Item = EventRef>) {
        self.last.extend(erased);
        while self.last.len() > Self::REMEMBERED_MAX {
            self.last.pop_front();
            self.forgotten += 1;
        }
    }

    pub fn contains(&self, at: EventRef) -> bool {
        self.last.contains(&at)
    }

    /// Those after the first `mark`. `None` if some of them are forgotten.
    pub fn since(&self, mark: u64) -> Option<Vec<EventRef>> {
        let skip = mark.checked_sub(self.forgotten)?;
        Some(self.last.iter().skip(skip as usize).copied().collect())
    }
}

/// A turn as a backend keeps it. [`CheckedIndex`] makes a [`Turn`](everturn_core::turn::Turn) of it.
#[derive(Clone, Debug)]
pub struct StoredTurn {
    /// The conversation it was read from.
    pub conversation: ConversationId,
    /// What is derived about it.
    pub row: TurnRow,
    /// The events at the places that the row names ([`TurnRow::places`]), with their `prev`, as far as they are there.
    pub events: Vec<Event>,
}

impl StoredTurn {
    /// The message, unchecked: enough to look for what repeats it.
    pub(crate) fn message(&self) -> Option<serde_json::Value> {
        let place = self.row.content_seq.unwrap_or(self.row.seq);
        let content = self.events.iter().find(|event| event.seq == place)?;
        everturn_core::turn::Turn::read(self.conversation, self.row.clone(), content).value()
    }
}

/// Which conversations to list.
#[derive(Clone, Debug, Default)]
pub struct ConversationQuery {
    /// Only those whose title contains this, any case.
    pub text: Option<String>,
    /// Only those in this state.
    pub state: Option<State>,
    /// Only those after this one in the listing: its `updated` and id.
    pub after: Option<(Timestamp, ConversationId)>,
    /// At most this many.
    pub limit: usize,
}

/// What a tenant has stored. Erased and deleted content does not count, and what a fork inherited counts once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TenantUsage {
    /// Conversations.
    pub conversations: u64,
    /// Turns.
    pub turns: u64,
    /// Bytes of the bodies of events.
    pub bytes: u64,
    /// Assets whose bytes are kept; the same bytes in two conversations are two.
    pub assets: u64,
    /// Their bytes.
    pub asset_bytes: u64,
}

/// Which turns to read.
#[derive(Clone, Debug, Default)]
pub struct TurnQuery {
    /// Only those with a smaller `seq`.
    pub before: Option<u64>,
    /// Only those with a greater `seq`.
    pub after: Option<u64>,
    /// Newest first instead of oldest first.
    pub descending: bool,
    /// Only these actors', if any are named.
    pub actors: Vec<String>,
    /// Also superseded ones.
    pub include_superseded: bool,
    /// As they stood when the log ended here.
    pub as_of: Option<u64>,
    /// At most this many.
    pub limit: usize,
    /// End the page once its messages reach this many bytes; it always has one turn.
    pub bytes_max: Option<usize>,
}

impl TurnQuery {
    /// Whether a page with these turns is full.
    pub(crate) fn is_full(&self, page: &[StoredTurn], bytes: &mut usize) -> bool {
        let read = page.last().into_iter().flat_map(|turn| &turn.events);
        *bytes += read.filter_map(Event::text).map(str::len).sum::<usize>();
        page.len() >= self.limit || self.bytes_max.is_some_and(|max| *bytes >= max)
    }

    /// Whether a row is asked for, its place aside.
    pub(crate) fn takes(&self, row: &everturn_core::turn::TurnRow) -> bool {
        (self.include_superseded || (row.superseded_by.is_none() && row.status != Status::Aborted))
            && (self.actors.is_empty() || row.actor.as_ref().is_some_and(|actor| self.actors.contains(actor)))
    }

    /// The places between which to look, both inclusive.
    pub(crate) fn range(&self) -> (u64, u64) {
        (
            self.after.map_or(1, |after| after.saturating_add(1)),
            self.before
                .map_or(i64::MAX as u64, |b| b.saturating_sub(1))
                .min(self.as_of.unwrap_or(i64::MAX as u64)),
        )
    }
}
