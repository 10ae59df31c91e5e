//! Conversations as this process wrote them last. A batch of appends to them needs no read: it is planned for what is known
//! here, and the statement that writes it also checks that the rows are still as they were left.

use everturn_core::conversation::Conversation;
use everturn_core::id::Key;
use everturn_core::write::{Action, Write};
use quick_cache::sync::Cache;
use std::collections::HashMap;
use std::sync::Arc;

/// Number of conversations that are remembered.
const REMEMBERED: usize = 4096;
/// A larger row costs more to compare than to read.
const ROW_MAX: usize = 4096;

/// A conversation as it was written last.
#[derive(Clone)]
pub struct Known {
    pub no: i64,
    pub conversation: Arc<Conversation>,
    /// The text of its row.
    pub row: String,
    /// Whether no other process wrote it between our last two writes.
    pub ours: bool,
}

pub struct Recent(Cache<Key, Known>);

impl Default for Recent {
    fn default() -> Recent {
        Recent(Cache::new(REMEMBERED))
    }
}

impl Recent {
    /// The conversations of a batch, if all its requests are appends to conversations that only this process writes.
    pub fn of(&self, batch: &[Write]) -> Option<HashMap<Key, Known>> {
        let mut all = HashMap::new();
        for write in batch {
            let Action::Append { drafts, .. } = &write.action else { return None };
            // The row of an earlier turn would have to be read.
            if drafts.iter().any(|draft| draft.turn.is_some_and(|turn| turn.0 != draft.id.0)) {
                return None;
            }
            if !all.contains_key(&write.key) {
                all.insert(write.key.clone(), self.0.get(&write.key).filter(|known| known.ours)?);
            }
        }
        Some(all)
    }

    /// Whether somebody else has written a conversation since this process did.
    pub fn is_overtaken(&self, key: &Key, row: &str) -> bool {
        self.0.get(key).is_some_and(|known| known.row != row)
    }

    pub fn remember(&self, key: Key, known: Known) {
        match known.row.len() <= ROW_MAX {
            true => self.0.insert(key, known),
            false => self.forget(&key),
        }
    }

    pub fn forget(&self, key: &Key) {
        self.0.remove(key);
    }
}
