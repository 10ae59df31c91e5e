//! Where conversations are kept.
//!
//! Five short traits, their backends, and [`mod@conformance`]: the one list of promises that every backend runs. A
//! behaviour that is not in that list is not promised. All rules about what may be written are in `core::write`; a
//! backend only looks up, writes down and makes durable.
//!
//! What it is not: it has no clock and makes no ids, it does not batch (the writer in `engine` does), and it knows no
//! message format.

pub mod assets;
mod checked;
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
use everturn_core::recall::{Entry, EntryId, EntryNo, Filter, TextQuery};
use everturn_core::time::Timestamp;
use everturn_core::turn::{Status, TurnRow};
use everturn_core::write::{Learned, Write};
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

    /// Events of a conversation with `seq` greater than `after`, ascending, at most `limit`. For a fork, its parent's
    /// events come first, under the parent's conversation id. Each `prev` is the hash that is stored with the event before.
    /// Nothing is checked: [`CheckedLog::events`] is the way to read them.
    fn stored_events(&self, key: &Key, after: u64, limit: usize) -> Result<Vec<Event>, Error>;

    /// The text of open turns that is durable, with the number of bytes. Empty for a turn that is not open.
    fn open_text(&self, key: &Key, turn: TurnId) -> Result<String, Error>;
}

/// What can be found without reading a log from its start. Derived: [`Index::rebuild`] gives the same answers.
pub trait Index: Send + Sync {
    /// A conversation. `NotFound` if it is not there, not this tenant's, or deleted.
    fn conversation(&self, key: &Key) -> Result<Conversation, Error>;
    /// Every tenant that has or had a conversation, in order.
    fn tenants(&self) -> Result<Vec<Tenant>, Error>;
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
    /// What was learned from a turn, in every conversation of the tenant.
    fn learned_from(&self, tenant: &Tenant, turn: TurnId) -> Result<Vec<Learned>, Error>;
    /// The newest fold that was kept for a place at or before this one, an ancestor's included.
    fn fold(&self, key: &Key, at_or_before: u64) -> Result<Option<Raw>, Error>;
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
    /// Looks for damage: what is wrong, one sentence each.
    fn check(&self) -> Result<Vec<String>, Error>;
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

/// Turns and facts found again, by words and by meaning. Derived: what is lost is made again from the log, and an index
/// that is behind only finds less. It is kept apart from the log, so that taking something in makes no append wait.
///
/// What is found here need not stand any more: whoever asks looks at each turn as it is now before showing it.
pub trait Recall: Send + Sync {
    /// What was committed and is not in the index yet, in the order of arrival, at most `limit` events. Erased bodies
    /// come as such.
    fn unindexed(&self, limit: usize) -> Result<Unindexed, Error>;
    /// Takes in what follows from events, in one transaction; after it, [`Recall::unindexed`] begins behind `span`. Does
    /// nothing if another process has taken them in meanwhile.
    fn index(&self, changes: Vec<IndexChange>, span: Span) -> Result<(), Error>;
    /// How many events are not in the index yet, and how many entries have no vector of this model.
    fn behind(&self, model: Option<&str>) -> Result<Behind, Error>;
    /// Takes what was removed out of the files as well: afterwards none of its words is in them, nor in copies that the
    /// database left behind. Takes as long as writing the index anew; does nothing if nothing was removed. An index of
    /// more than `bytes_max` is left as it is. Says whether it is clean.
    fn scrub(&self, bytes_max: Option<u64>) -> Result<bool, Error>;
    /// Drops the index. Everything is then unindexed again.
    fn forget(&self) -> Result<(), Error>;
    /// What these words find, best first.
    fn find_text(
        &self,
        tenant: &Tenant,
        query: &TextQuery,
        filter: &Filter,
        limit: usize,
    ) -> Result<Vec<Found>, Error>;
    /// Entries that have no vector of this model: those among `first` in their order, then prose, then the rest, each newest
    /// first. Asking makes the model known: from then on every entry that comes waits for a vector of it.
    fn unembedded(&self, model: &str, first: &[EntryNo], limit: usize) -> Result<Vec<Unembedded>, Error>;
    /// Keeps vectors. Those of entries that are gone are dropped; an empty one says that there is nothing to embed, so
    /// that the entry does not wait any longer. Vectors of one model have one length.
    fn put_vectors(&self, model: &str, vectors: Vec<(EntryNo, Vec<f32>)>) -> Result<(), Error>;
    /// The models of which there are vectors. Those of different models are never compared.
    fn vector_models(&self) -> Result<Vec<String>, Error>;
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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// It begins behind this event.
    pub after: u64,
    /// It ends with this one.
    pub through: u64,
}

/// What becomes of the index.
#[derive(Clone, Debug)]
pub enum IndexChange {
    /// This can be found from now on. One with the same id in the same conversation is replaced.
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

/// No key with this id, or another tenant's, which looks the same.
pub(crate) fn absent_key(id: KeyId) -> Error {
    Error::not_found(
        "key.absent",
        format!("there is no key {id}; `everturn keys list` shows those there are"),
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
    /// Also those that another took the place of.
    pub include_superseded: bool,
    /// As they stood when the log ended here.
    pub as_of: Option<u64>,
    /// At most this many.
    pub limit: usize,
}

impl TurnQuery {
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
