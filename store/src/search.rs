//! Recall: turns and facts found again, by words and by vectors.
//!
//! Derived: whatever is lost is made again from the log, and an index that is behind only finds less. It is kept apart from
//! the log, so that indexing makes no append wait.
//!
//! Every tenant has an index of its own: whatever influences an answer (counts, lengths, expanded prefixes, vectors, how far
//! the index is behind) belongs to the tenant who asks. Answers over all tenants, and the spans of [`RecallIndex::unindexed`],
//! are for the process that runs the store.
//!
//! A hit may be superseded or erased by now: callers look at each turn as it is now before they show it.

use everturn_core::Error;
use everturn_core::event::Event;
use everturn_core::id::{ConversationId, Key, TenantName};
use everturn_core::time::Timestamp;
use everturn_views::recall::{Counts, Entry, EntryId, EntryNo, Filter, TextQuery};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// All of recall. Implemented by whatever implements its parts.
pub trait Recall: RecallIndex + WordSearch + VectorSearch {}

impl<T: RecallIndex + WordSearch + VectorSearch> Recall for T {}

/// Keeping the indexes in step with the log.
pub trait RecallIndex: Send + Sync {
    /// Committed events that are not indexed yet, in the order of arrival, at most `limit`: new ones of any tenant, or those of
    /// one tenant whose index was lost. Erased bodies come as such. Nothing is left when the span is empty.
    fn unindexed(&self, limit: usize) -> Result<Unindexed, Error>;
    /// Applies changes that follow from events, in one transaction for each tenant; [`RecallIndex::unindexed`] then begins
    /// behind `span`. Applying the same again changes nothing, whether another process did so or a crash came in between.
    fn index(&self, changes: Vec<IndexChange>, span: Span) -> Result<(), Error>;
    /// Events of a tenant, or of all tenants, that are not indexed yet, and entries that have no vector of this model.
    fn behind(&self, tenant: Option<&TenantName>, model: Option<&str>) -> Result<Behind, Error>;
    /// Takes removed entries out of the files of a tenant, or of all tenants: afterwards none of their words is in them, nor in
    /// copies that the database left behind. Takes as long as writing the index anew; does nothing if nothing was removed. An
    /// index of more than `bytes_max` is left as it is. Returns whether the files are clean.
    fn scrub(&self, tenant: Option<&TenantName>, bytes_max: Option<u64>) -> Result<bool, Error>;
    /// Drops all indexes. Everything is then unindexed again.
    fn forget(&self) -> Result<(), Error>;
}

/// Events that are not in the index yet.
#[derive(Clone, Debug)]
pub struct Unindexed {
    /// In the order of arrival, each with its tenant.
    pub events: Vec<(TenantName, Event)>,
    /// Their span.
    pub span: Span,
}

/// A stretch of the order of arrival.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Span {
    /// Only this tenant's events: its index is made again. `None` for events of all tenants.
    pub tenant: Option<TenantName>,
    /// It begins behind this event.
    pub after: u64,
    /// It ends with this one.
    pub through: u64,
}

/// A change of an index.
#[derive(Clone, Debug)]
pub enum IndexChange {
    /// Adds an entry. Without a vector of its own it waits for vectors of every known model. An entry with the same id in the
    /// same conversation is replaced.
    Put(Box<Entry>),
    /// Marks an entry as superseded after a place: returned only with `include_superseded`.
    Fell {
        /// Its conversation.
        key: Key,
        /// The entry.
        id: EntryId,
        /// The place of the superseding event.
        seq: u64,
    },
    /// Removes an entry that was erased or retracted.
    Remove {
        /// The conversation in which it was erased: its own, or a fork of it.
        key: Key,
        /// The entry.
        id: EntryId,
    },
}

/// How far an index is behind the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Behind {
    /// Events that are not in it yet.
    pub events: u64,
    /// Turns and facts that cannot be found by meaning yet: they have no vector of the model in use.
    pub vectors: u64,
}

/// Search by words.
pub trait WordSearch: Send + Sync {
    /// Candidates for these words, with the counts of the tenant's index: [`everturn_views::recall::score`] ranks them.
    fn find_text(
        &self,
        tenant: &TenantName,
        query: &TextQuery,
        filter: &Filter,
        limit: usize,
    ) -> Result<Proposed, Error>;
    /// Turns before and after each of these in its conversation, up to `reach` on either side as far as the filter leaves them,
    /// each with how many turns away it is. Facts have none. Empty where nothing can be found.
    fn neighbours(
        &self,
        tenant: &TenantName,
        filter: &Filter,
        entries: &[EntryNo],
        reach: usize,
    ) -> Result<Vec<Vec<(Found, usize)>>, Error>;
}

/// Candidates for a query.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Proposed {
    /// Counts of the query's words in the tenant's index.
    pub counts: Counts,
    /// The likeliest first, as far as the index can tell without their text.
    pub found: Vec<Found>,
}

/// A hit.
#[derive(Clone, PartialEq, Debug)]
pub struct Found {
    /// Its number in this index.
    pub no: EntryNo,
    /// The conversation that it was said in; of what a fork inherited, the ancestor.
    pub conversation: ConversationId,
    /// Its place there.
    pub seq: u64,
    /// Its turn or fact.
    pub id: EntryId,
    /// When it was said.
    pub at: Timestamp,
    /// Higher is better; only comparable within one answer.
    pub score: f64,
}

/// Search by embedding vectors. Vectors of different models are never compared.
pub trait VectorSearch: Send + Sync {
    /// Nearest entries by this model's vectors, best first. Where a filter leaves few, all of those are compared,
    /// and where it leaves many, at least 95 of 100 of the ten best are found.
    fn find_near(
        &self,
        tenant: &TenantName,
        model: &str,
        vector: &[f32],
        filter: &Filter,
        limit: usize,
    ) -> Result<Vec<Found>, Error>;
    /// Similarity of these entries to a query by this model's vectors, in their order; `None` for one without a vector.
    fn nearness(
        &self,
        tenant: &TenantName,
        model: &str,
        vector: &[f32],
        entries: &[EntryNo],
    ) -> Result<Vec<Option<f64>>, Error>;
    /// Entries of one tenant that have no vector of this model: those of the tenant that is asked for, the ones named first in
    /// their order, or of each tenant in turn; then prose, then the rest, each newest first. Asking makes the model known: from
    /// then on every entry that comes waits for a vector of it.
    fn unembedded(
        &self,
        model: &str,
        wanted: Option<(&TenantName, &[EntryNo])>,
        limit: usize,
    ) -> Result<Vec<Unembedded>, Error>;
    /// Keeps vectors. Those of entries that are gone are dropped; an empty one says that there is nothing to embed, so
    /// that the entry does not wait any longer. Vectors of one model have one length.
    fn put_vectors(
        &self,
        tenant: &TenantName,
        model: &str,
        vectors: Vec<(EntryNo, Vec<f32>)>,
    ) -> Result<(), Error>;
    /// Models of the vectors of a tenant, or of all tenants.
    fn vector_models(&self, tenant: Option<&TenantName>) -> Result<Vec<String>, Error>;
    /// Drops vectors of all other models, at most `limit` at once. Returns their number: fewer than `limit` when it is done.
    fn keep_vectors_of(&self, model: &str, limit: usize) -> Result<usize, Error>;
}

/// An entry without a vector.
#[derive(Clone, PartialEq, Debug)]
pub struct Unembedded {
    /// Its number in this index.
    pub no: EntryNo,
    /// The conversation that it was said in.
    pub key: Key,
    /// Its place there.
    pub seq: u64,
    /// Its turn or fact.
    pub id: EntryId,
}
