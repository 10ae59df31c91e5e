//! A lock for each conversation, without one to be kept for each.

use everturn_core::id::Key;
use parking_lot::{Mutex, MutexGuard};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Number of locks that conversations share.
const LOCKS: usize = 16;

/// Locks by conversation. One may serve several of them, so nothing that holds one takes another.
#[derive(Default)]
pub struct Locks([Mutex<()>; LOCKS]);

impl Locks {
    /// Waits for the lock of a conversation.
    pub fn of(&self, key: &Key) -> MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        self.0[hasher.finish() as usize % LOCKS].lock()
    }
}
