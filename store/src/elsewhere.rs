//! Changes by other processes that share the store, and leases of background work.

use everturn_core::Error;
use everturn_core::id::{Key, TenantName, TurnId};
use everturn_core::time::Timestamp;
use everturn_core::write::EventAddress;
use std::time::Duration;

/// Feed of changes by other processes. Only for storage that several processes write at the same time.
pub trait ChangeFeed: Leases + Send + Sync {
    /// Waits until another process may have written something, at most this long. A notification may be lost;
    /// [`news`](ChangeFeed::news) is complete all the same.
    fn wait(&self, patience: Duration);
    /// Ends a wait.
    fn wake(&self);
    /// Changes that became visible since the last call that returned them, those of this process included. After a
    /// restart of the database some may come again.
    fn news(&self) -> Result<RemoteChanges, Error>;
    /// Turns that other processes have open.
    fn open_turns_elsewhere(&self) -> Result<Vec<(Key, TurnId)>, Error>;
    /// Open turns of processes that have ended, or gave no sign for some seconds.
    fn orphaned_turns(&self) -> Result<Vec<(Key, TurnId)>, Error>;
}

/// Leases of background work, which one process does for all. A process without a heartbeat for some seconds loses its
/// leases, so work may be done twice; the rules of a commit make that harmless.
pub trait Leases {
    /// Whether this process leads a job of the whole store. The first process that asks leads it until it ends.
    fn leads(&self, job: &str) -> Result<bool, Error>;
    /// Takes the work on a conversation, and returns the `seq` through which it is done. `None` if another process has
    /// taken it. The caller ensures that this process takes it only once.
    fn take_work(&self, key: &Key) -> Result<Option<u64>, Error>;
    /// Ends the work on a conversation; `None` if nothing was done.
    fn end_work(&self, key: &Key, done: Option<WorkDone>) -> Result<(), Error>;
    /// Conversations with work that is due at this time.
    fn due_work(&self, now: Timestamp, limit: usize) -> Result<Vec<Key>, Error>;
    /// State of the work on conversations, each with its head, in the same order.
    fn work_left(&self, heads: &[(Key, u64)]) -> Result<Vec<WorkState>, Error>;
    /// Conversations that changed after this time, the last first, each with its head: a process that ended may have left work
    /// on them.
    fn changed_since(&self, since: Timestamp, limit: usize) -> Result<Vec<(Key, u64)>, Error>;
    /// Deletes traces of work that ended long ago.
    fn forget_work(&self) -> Result<(), Error>;
}

/// Work done on a conversation.
#[derive(Clone, Copy, Debug)]
pub struct WorkDone {
    /// `seq` through which it is done, unless more was done before.
    pub through: u64,
    /// Time at which more work becomes due without a new event.
    pub due: Option<Timestamp>,
}

/// State of the work on a conversation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkState {
    /// Done through the given head.
    Done,
    /// Taken by a living process.
    Taken,
    /// Not taken.
    Free,
}

/// Changes since an earlier moment.
#[derive(Clone, Debug, Default)]
pub struct RemoteChanges {
    /// Each conversation as it is now, in no particular order. A later change of one comes after an earlier one.
    pub changed: Vec<ChangedConversation>,
    /// Events whose bodies were erased.
    pub erased: Vec<(TenantName, EventAddress)>,
    /// Whether an access key was created or revoked.
    pub keys: bool,
}

impl RemoteChanges {
    /// Adds later changes.
    pub fn add(&mut self, later: RemoteChanges) {
        self.changed.extend(later.changed);
        self.erased.extend(later.erased);
        self.keys |= later.keys;
    }
}

/// A conversation that changed.
#[derive(Clone, Debug)]
pub struct ChangedConversation {
    /// The conversation.
    pub key: Key,
    /// `seq` of its last event.
    pub head_seq: u64,
    /// Whether it is new.
    pub created: bool,
    /// Whether it was deleted.
    pub deleted: bool,
    /// Time at which it expires.
    pub expires: Option<Timestamp>,
}
