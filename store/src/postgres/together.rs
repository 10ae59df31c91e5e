//! Conversations that callers ask for at the same time, read by one statement.

use everturn_core::Error;
use everturn_core::conversation::Conversation;
use everturn_core::id::Key;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

type Answer = Arc<Mutex<Option<Result<Option<Conversation>, Error>>>>;

/// Collects the keys that are asked for while a statement runs; the next statement reads them all.
#[derive(Default)]
pub struct Together {
    asked: Mutex<Vec<(Key, Answer)>>,
    reading: Mutex<()>,
}

impl Together {
    /// The conversation as it is at some time during this call; `None` if there is none. `read` may be called for others too.
    pub fn read(
        &self,
        key: &Key,
        read: impl FnOnce(&[&Key]) -> Result<HashMap<Key, Conversation>, Error>,
    ) -> Result<Option<Conversation>, Error> {
        let answer = Answer::default();
        self.asked.lock().push((key.clone(), answer.clone()));
        let reading = self.reading.lock();
        // Another caller may have read it while this one waited.
        if let Some(found) = answer.lock().take() {
            return found;
        }
        let asked = std::mem::take(&mut *self.asked.lock());
        let mut keys: Vec<&Key> = asked.iter().map(|(key, _)| key).collect();
        keys.sort_unstable();
        keys.dedup();
        let found = read(&keys);
        for (key, answer) in &asked {
            let found = found.as_ref().map(|found| found.get(key).cloned()).map_err(Error::clone);
            *answer.lock() = Some(found);
        }
        drop(reading);
        found.map(|mut found| found.remove(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use everturn_core::id::{ConversationId, TenantName};
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn key(n: u8) -> Key {
        Key { tenant: TenantName::new("acme").unwrap(), id: ConversationId::from_bytes([n; 16]) }
    }

    /// While one caller reads, seven wait; they are read at once, and a failure reaches each of them.
    #[test]
    fn those_who_wait_are_read_at_once() {
        for fails in [false, true] {
            let (together, reads) = (Together::default(), AtomicUsize::new(0));
            let read = |keys: &[&Key]| {
                // The first reads until all others wait.
                while reads.load(Ordering::SeqCst) == 0 && together.asked.lock().len() < 7 {
                    std::thread::yield_now();
                }
                let expected = if reads.fetch_add(1, Ordering::SeqCst) == 0 { 1 } else { 7 };
                assert_eq!(keys.len(), expected);
                if fails { Err(Error::busy("store.unreachable", "try again")) } else { Ok(HashMap::new()) }
            };
            std::thread::scope(|threads| {
                let first = threads.spawn(|| together.read(&key(0), read));
                while !together.reading.is_locked() {
                    std::thread::yield_now();
                }
                let (together, read) = (&together, &read);
                let others: Vec<_> =
                    (1..8).map(|n| threads.spawn(move || together.read(&key(n), read))).collect();
                for thread in others.into_iter().chain([first]) {
                    assert_eq!(thread.join().unwrap().is_err(), fails);
                }
            });
            assert_eq!(reads.load(Ordering::SeqCst), 2);
        }
    }
}
