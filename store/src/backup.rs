//! Reading a whole store for a backup.

use everturn_core::Error;
use everturn_core::access::AccessKey;
use everturn_core::chain::Hash;
use everturn_core::conversation::Tombstone;
use everturn_core::event::Event;
use everturn_core::id::Key;
use everturn_core::time::Timestamp;
use everturn_core::write::AnsweredRequest;

/// Reads a whole store, of all tenants. Many short reads instead of one long one: a backup may take hours, and
/// neither the log nor an erasure waits for it. It is restored by `Begin`, `Restore`, `Bury` and `Remember`
/// (see `core::write`), in the order of [`Member::no`].
pub trait Backup: Send + Sync {
    /// Every conversation that exists or existed, deleted ones included, in the order of creation, as of one
    /// moment.
    fn members(&self) -> Result<Vec<Member>, Error>;
    /// The current state of one of them. `NotFound` if there never was one with this number.
    fn member(&self, no: u64) -> Result<Member, Error>;
    /// Its own events with `seq` greater than `after` up to `through`, ascending: at least one, and no more
    /// once their bodies have `bytes_max` bytes. For a deleted conversation only those that its forks still
    /// need.
    fn member_events(&self, no: u64, after: u64, through: u64, bytes_max: usize)
    -> Result<Vec<Event>, Error>;
    /// Its requests with idempotency keys, for events with `seq` greater than `after` up to `through`, at most
    /// `limit`, in the order of their last events. A page never ends between two requests with the same last
    /// event.
    fn requests(
        &self,
        no: u64,
        after: u64,
        through: u64,
        limit: usize,
    ) -> Result<Vec<AnsweredRequest>, Error>;
    /// A page of the events with erased bodies. Starts at 0; each page says where the next one starts, and the
    /// last one `None`.
    fn erased(&self, from: u64) -> Result<ErasedPage, Error>;
    /// Every key of every tenant, as stored.
    fn all_keys(&self) -> Result<Vec<AccessKey>, Error>;
}

/// A conversation as a backup sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Its number in this store: 1, 2, 3, … in the order of creation. Never reused, although an id may be.
    pub no: u64,
    /// Its tenant and id.
    pub key: Key,
    /// Time of creation.
    pub created: Timestamp,
    /// Number of the parent of a fork, and the `seq` of the last event that both share.
    pub parent: Option<(u64, u64)>,
    /// `seq` of its last own event; 0 if there is none.
    pub through: u64,
    /// Hash of that event; `None` if the conversation is deleted.
    pub hash: Option<Hash>,
    /// Its tombstone, if it was deleted.
    pub deleted: Option<Tombstone>,
}

/// Events with erased bodies.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ErasedPage {
    /// Number of the conversation and `seq` of the event. May contain events that were deleted with their
    /// conversation.
    pub erased: Vec<(u64, u64)>,
    /// Start of the next page.
    pub next: Option<u64>,
}

/// Size counted for an event in addition to its body, so that many small ones also fill a page.
pub(crate) const EVENT_BYTES: usize = 300;

/// The error for a number without a conversation.
pub(crate) fn absent_member(no: u64) -> Error {
    Error::not_found("backup.member", format!("this store has no conversation number {no}"))
}
