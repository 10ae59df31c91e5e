//! Reading a whole store for a backup.

use everturn_core::Error;
use everturn_core::access::AccessKey;
use everturn_core::chain::Hash;
use everturn_core::conversation::Tombstone;
use everturn_core::event::Event;
use everturn_core::id::Key;
use everturn_core::time::Timestamp;
use everturn_core::write::AnsweredRequest;

/// A whole store, of all tenants. Many short reads and not one long one: a backup may take hours, and neither the log nor an
/// erasure waits for it. It is put back by `Begin`, `Restore`, `Bury` and `Remember` (see `core::write`), in the order of
/// [`Member::no`].
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
    /// Its tenant and id.
    pub key: Key,
    /// When it was created.
    pub created: Timestamp,
    /// Number of the conversation that it was forked from, and the last event that both share.
    pub parent: Option<(u64, u64)>,
    /// Last own event that is there; 0 if none is.
    pub through: u64,
    /// That event's hash; `None` if the conversation is deleted.
    pub hash: Option<Hash>,
    /// Its tombstone, if it was deleted.
    pub deleted: Option<Tombstone>,
}

/// Events whose bodies are erased.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ErasedPage {
    /// Number of the conversation, and place of the event. May contain events that are gone with their conversation.
    pub erased: Vec<(u64, u64)>,
    /// Start of the next page.
    pub next: Option<u64>,
}

/// Counted for an event beside its body, so that many small ones end a page too.
pub(crate) const EVENT_BYTES: usize = 300;

/// No conversation with this number.
pub(crate) fn absent_member(no: u64) -> Error {
    Error::not_found("backup.member", format!("this store has no conversation number {no}"))
}
