//! Recall: lexical search and search by embedding, over turns and facts.
//!
//! Indexes are derived: a lost one is rebuilt from the log, and one that is behind only finds less. They are kept
//! apart from the log, so that appends do not wait for indexing.
//!
//! Every tenant has an index of its own: everything that influences a result (counts, lengths, expanded prefixes,
//! embeddings, the backlog) belongs to that tenant. Results over all tenants, and the spans of
//! [`RecallIndex::unindexed`], are for the process that runs the store.
//!
//! A hit may have been superseded or erased since: callers check each turn before they show it.

use everturn_core::Error;
use everturn_core::event::Event;
use everturn_core::id::{ConversationId, Key, TenantName};
use everturn_core::time::Timestamp;
use everturn_core::write::EventAddress;
use everturn_views::recall::{EntryCounts, EntryId, EntryNo, Filter, IndexEntry, TextQuery};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// All of recall. Implemented by every type that implements its parts.
pub trait RecallStore: RecallIndex + WordSearch + VectorSearch {}

impl<T: RecallIndex + WordSearch + VectorSearch> RecallStore for T {}

/// Keeping the indexes in step with the log.
pub trait RecallIndex: Send + Sync {
    /// Committed events that are not indexed yet, in the order of arrival, at most `limit`: new ones of any
    /// tenant, or of one tenant. Erased bodies are included as such. Nothing is left when the span is empty. Where
    /// several processes write, these are claimed until [`RecallIndex::index`] or the next call.
    fn unindexed(&self, limit: usize) -> Result<Unindexed, Error>;
    /// Applies changes that follow from events, in one transaction for each tenant; [`RecallIndex::unindexed`]
    /// then continues after `span`. Applying the same again changes nothing, whether another process did so or
    /// a crash came in between.
    fn index(&self, changes: Vec<IndexChange>, span: Span) -> Result<(), Error>;
    /// Number of events of a tenant, or of all tenants, that are not indexed yet, and of entries that have no
    /// embedding of this model.
    fn behind(&self, tenant: Option<&TenantName>, model: Option<&str>) -> Result<Behind, Error>;
    /// Removes deleted entries from the files of a tenant, or of all tenants: afterwards none of their text is
    /// in them, nor in copies that the database left behind. Takes as long as rewriting the index; does nothing
    /// if nothing was removed. An index of more than `bytes_max` is left as it is. Returns whether the files
    /// are clean.
    fn scrub(&self, tenant: Option<&TenantName>, bytes_max: Option<u64>) -> Result<bool, Error>;
    /// Drops all indexes. Everything is then unindexed again.
    fn forget(&self) -> Result<(), Error>;
    /// The conversation under which an event is read: its own, while it lives, then a living fork that inherits it. `None` if
    /// nobody reads it. The entries of a deleted conversation that its forks read stay in the index under its own id.
    fn reader(&self, key: &Key, seq: u64) -> Result<Option<ConversationId>, Error>;
}

/// Events that are not in the index yet.
#[derive(Clone, Debug)]
pub struct Unindexed {
    /// In the order of arrival, each with its tenant.
    pub events: Vec<(TenantName, Event)>,
    /// Their span.
    pub span: Span,
}

/// A range of the order of arrival.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Span {
    /// Only this tenant's events: each tenant has an order of its own, or its index is rebuilt. `None` for events of all
    /// tenants.
    pub tenant: Option<TenantName>,
    /// Position before the first event.
    pub after: u64,
    /// Position of the last event.
    pub through: u64,
}

/// A change of an index.
#[derive(Clone, Debug)]
pub enum IndexChange {
    /// Adds an entry. Without an embedding of its own it waits for those of every known model. An entry with
    /// the same id in the same conversation is replaced.
    Put(Box<IndexEntry>),
    /// Marks an entry as superseded after a `seq`: returned only with `include_superseded`.
    Fell {
        /// Its conversation.
        key: Key,
        /// The entry.
        id: EntryId,
        /// `seq` of the superseding event.
        seq: u64,
    },
    /// Removes an entry that was erased or retracted.
    Remove {
        /// The conversation in which it was erased: its own, or a fork of it.
        key: Key,
        /// The entry.
        id: EntryId,
    },
    /// Removes the entries of an erased event.
    RemoveAt {
        /// Its tenant.
        tenant: TenantName,
        /// Its place.
        at: EventAddress,
    },
}

/// Lag of an index behind the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Behind {
    /// Number of events that are not in it yet.
    pub events: u64,
    /// Number of turns and facts that have no embedding of the model in use yet.
    pub vectors: u64,
}

/// Search by words.
pub trait WordSearch: Send + Sync {
    /// Candidates for a query, with the counts of the tenant's index: [`everturn_views::recall::score`] ranks
    /// them.
    fn find_text(
        &self,
        tenant: &TenantName,
        query: &TextQuery,
        filter: &Filter,
        limit: usize,
    ) -> Result<Proposed, Error>;
    /// Turns that are read before and after each of these in its conversation, up to `reach` on either side as far as
    /// the filter allows, each with its distance in turns. Facts have none. Empty where nothing can be found.
    fn neighbours(
        &self,
        tenant: &TenantName,
        filter: &Filter,
        entries: &[EntryNo],
        reach: usize,
    ) -> Result<Vec<Vec<(Proposal, usize)>>, Error>;
}

/// Candidates for a query.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Proposed {
    /// Counts of the query's words in the tenant's index.
    pub counts: EntryCounts,
    /// The best first, as far as the index can tell without their text.
    pub found: Vec<Proposal>,
}

/// A hit.
#[derive(Clone, PartialEq, Debug)]
pub struct Proposal {
    /// Its number in this index.
    pub no: EntryNo,
    /// The conversation that it was written in; for inherited turns of a fork, the ancestor. If that is deleted, the
    /// conversation in scope, or else a living fork that inherits it.
    pub conversation: ConversationId,
    /// `seq` in that conversation.
    pub seq: u64,
    /// The turn or fact.
    pub id: EntryId,
    /// Time at which it was said.
    pub at: Timestamp,
    /// Higher is better; only comparable within one result.
    pub score: f64,
}

/// Search by embedding. Embeddings of different models are never compared.
pub trait VectorSearch: Send + Sync {
    /// Why this store keeps no embeddings, and what to do about it; `None` where it does. Without them, the others find
    /// nothing, nothing waits, and nothing is stored.
    fn without_vectors(&self) -> Option<&str>;
    /// Nearest entries by this model's embeddings, best first. If a filter leaves few, all of those are
    /// compared; if it leaves many, at least 95 of 100 of the ten best are found.
    fn find_near(
        &self,
        tenant: &TenantName,
        model: &str,
        vector: &[f32],
        filter: &Filter,
        limit: usize,
    ) -> Result<Vec<Proposal>, Error>;
    /// Similarity of these entries to a query by this model's embeddings, in their order; `None` for one
    /// without an embedding.
    fn nearness(
        &self,
        tenant: &TenantName,
        model: &str,
        vector: &[f32],
        entries: &[EntryNo],
    ) -> Result<Vec<Option<f64>>, Error>;
    /// Entries of one tenant that have no embedding of this model: those of the given tenant, the ones named
    /// first in their order, or of each tenant in turn; then prose, then the rest, each newest first. The call
    /// makes the model known: from then on every new entry waits for an embedding of it.
    fn unembedded(
        &self,
        model: &str,
        wanted: Option<(&TenantName, &[EntryNo])>,
        limit: usize,
    ) -> Result<Vec<Unembedded>, Error>;
    /// Stores embeddings. Those of removed entries are dropped; an empty one means that there is nothing to
    /// embed, so that the entry does not wait any longer. Embeddings of one model have one length.
    fn put_vectors(
        &self,
        tenant: &TenantName,
        model: &str,
        vectors: Vec<(EntryNo, Vec<f32>)>,
    ) -> Result<(), Error>;
    /// Models of the embeddings of a tenant, or of all tenants.
    fn vector_models(&self, tenant: Option<&TenantName>) -> Result<Vec<String>, Error>;
    /// Drops embeddings of all other models, at most `limit` at once. Returns their number: fewer than `limit`
    /// when it is done.
    fn keep_vectors_of(&self, model: &str, limit: usize) -> Result<usize, Error>;
}

/// An entry without an embedding.
#[derive(Clone, PartialEq, Debug)]
pub struct Unembedded {
    /// Its number in this index.
    pub no: EntryNo,
    /// The conversation that it was written in; if that is deleted, a living fork that inherits it.
    pub key: Key,
    /// `seq` in that conversation.
    pub seq: u64,
    /// The turn or fact.
    pub id: EntryId,
}
