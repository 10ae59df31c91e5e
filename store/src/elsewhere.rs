//! Changes that other processes make to the same store.

use everturn_core::Error;
use everturn_core::id::{Key, TenantName, TurnId};
use everturn_core::write::EventAddress;
use std::time::Duration;

/// Changes made by other processes. Only for storage that several processes write at once.
pub trait Elsewhere: Send + Sync {
    /// Waits until another process may have written something, at most this long. A notification may be lost;
    /// [`news`](Elsewhere::news) is complete all the same.
    fn wait(&self, patience: Duration);
    /// Ends a wait.
    fn wake(&self);
    /// Changes that became visible since the last call that returned them, those of this process included. After a
    /// restart of the database some may come again.
    fn news(&self) -> Result<News, Error>;
    /// Turns that other, living processes have open in these conversations.
    fn open_turns_of(&self, keys: &[Key]) -> Result<Vec<(Key, TurnId)>, Error>;
    /// Open turns of processes that have ended, or gave no sign for some seconds.
    fn orphaned_turns(&self) -> Result<Vec<(Key, TurnId)>, Error>;
}

/// Changes since an earlier moment.
#[derive(Clone, Debug, Default)]
pub struct News {
    /// Each conversation as it is now, in no particular order. A later change of one comes after an earlier one.
    pub changed: Vec<ChangedConversation>,
    /// Events whose bodies were erased.
    pub erased: Vec<(TenantName, EventAddress)>,
    /// Whether an access key was created or revoked.
    pub keys: bool,
}

impl News {
    /// Adds later news.
    pub fn add(&mut self, later: News) {
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
}
