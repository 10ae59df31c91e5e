//! A file per conversation, kept up to date: `DIR/<tenant>/<conversation>.jsonl`, as `export` writes it.
//!
//! A commit only notes which conversation changed; one thread reads the new events from the log and appends them. The
//! files are derived: a torn, outdated or missing one is repaired from the log, and a failing disk costs no append.
//! Erased text must leave the files as well, so an erasure writes a new file and replaces the old one.
//!
//! Appended lines are not synced one by one: after a power loss a file ends earlier, and is continued from there.
//!
//! The mirror is not a second source of truth: a file that contradicts the log is set aside under another name, never
//! merged.

mod file;
mod work;

use crate::everturn::Shared;
use crate::journal::{Observed, Observer};
use crate::load;
use everturn_core::Error;
use everturn_core::event::kind;
use everturn_core::id::Key;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::HashMap;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use work::Work;

/// Wait before a failed disk is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Longest wait of an erasure for the mirror.
const ERASURE_PATIENCE: Duration = Duration::from_secs(3);

/// Queue of changed conversations, and the thread that writes their files.
pub struct Mirror {
    folder: PathBuf,
    /// Held until the thread ends, so that two stores do not write into one folder.
    lock: Mutex<Option<File>>,
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Signalled when the thread has written the changes that it took.
    written: Condvar,
    failures: AtomicU64,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Queue {
    changes: HashMap<Key, Change>,
    stopping: bool,
    /// Whether the thread is writing.
    writing: bool,
    /// Whether the thread sleeps until it is woken.
    asleep: bool,
}

/// Pending change of a conversation's file.
#[derive(Clone, Copy, Default)]
pub struct Change {
    /// Delete the file; it is written again only if the conversation exists.
    pub deleted: bool,
    /// Remove erased text from its file and those of related conversations.
    pub erased: bool,
}

impl Observer for Mirror {
    fn committed(&self, commit: &Observed<'_>) {
        if commit.deleted || !commit.events().is_empty() {
            self.note(commit.key, commit.deleted, commit.has(|kind| kind == kind::ERASED));
        }
    }
}

impl Mirror {
    /// Makes the folder if it does not exist, and keeps other processes from mirroring into it.
    pub fn open(folder: &Path) -> Result<Mirror, Error> {
        let cannot = |what: String| Error::invalid("mirror.folder", format!("{what}; choose another folder"));
        std::fs::create_dir_all(folder)
            .map_err(|e| cannot(format!("cannot create the mirror's folder {}: {e}", folder.display())))?;
        let path = folder.join(".lock");
        let lock = File::options().create(true).append(true).open(&path);
        let lock = lock.map_err(|e| cannot(format!("cannot write to {}: {e}", folder.display())))?;
        if let Err(TryLockError::WouldBlock) = lock.try_lock() {
            return Err(cannot(format!("{} is the mirror of another process", folder.display())));
        }
        Ok(Mirror {
            folder: folder.to_path_buf(),
            lock: Mutex::new(Some(lock)),
            queue: Mutex::default(),
            changed: Condvar::new(),
            written: Condvar::new(),
            failures: AtomicU64::new(0),
            thread: Mutex::default(),
        })
    }

    /// Removes erased and deleted text from mirrors of this store that this process does not keep up to date.
    pub fn update_others(shared: &Shared, changes: &[(Key, Change)]) -> Result<(), Error> {
        let own = shared.mirror.as_ref().and_then(|own| own.folder.canonicalize().ok());
        for folder in shared.copies.mirrors()? {
            if !folder.is_dir() || folder.canonicalize().ok() == own {
                continue;
            }
            let updated = Mirror::open(&folder).and_then(|mirror| {
                let mut work = Work::new(shared, &folder);
                let updated = changes.iter().try_for_each(|(key, change)| work.apply(key, *change));
                mirror.unlock();
                updated
            });
            updated.map_err(|error| {
                let text = format!(
                    "the text is erased from the store, but not from the mirror in {}: {error}; it is removed when `everturn serve --mirror` is next started, or delete that folder",
                    folder.display()
                );
                Error::internal("erase.mirror", text)
            })?;
        }
        Ok(())
    }

    /// Starts the thread. It first brings every file up to date with the log.
    pub fn start(&self, shared: Arc<Shared>) -> Result<(), Error> {
        let builder = std::thread::Builder::new().name("everturn-mirror".into());
        let thread = builder.spawn(move || {
            load::lower_priority();
            if let Some(mirror) = &shared.mirror {
                mirror.run(&shared);
                mirror.unlock();
            }
        });
        let thread = thread.map_err(|e| Error::internal("thread", format!("cannot start a thread: {e}")))?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    /// Notes a changed conversation. Cheap: the thread does the work.
    fn note(&self, key: &Key, deleted: bool, erased: bool) {
        let mut queue = self.queue();
        match queue.changes.get_mut(key) {
            Some(change) => {
                change.deleted |= deleted;
                change.erased |= erased;
            }
            None => drop(queue.changes.insert(key.clone(), Change { deleted, erased })),
        }
        if std::mem::take(&mut queue.asleep) {
            self.changed.notify_one();
        }
    }

    /// Waits until the noted changes of a conversation are written: erased text should be gone when the erasure is
    /// acknowledged. The wait is short: a failing disk is retried in the background.
    pub fn wait_for(&self, key: &Key) {
        let waits = |queue: &mut Queue| !queue.stopping && (queue.writing || queue.changes.contains_key(key));
        self.written.wait_while_for(&mut self.queue(), waits, ERASURE_PATIENCE);
    }

    /// Writes the pending changes, then ends the thread. Changes that a failing disk did not take are written after
    /// the next start.
    pub fn stop(&self) {
        self.queue().stopping = true;
        self.changed.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            // A panicked thread has reported it itself.
            let _ = thread.join();
        }
    }

    /// Number of failed writes. Each is retried.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Lets another process take over. Closing the file would not be enough: a child process that is just being
    /// started holds it open a moment longer.
    fn unlock(&self) {
        if let Some(lock) = self.lock.lock().take() {
            let _ = lock.unlock();
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    fn run(&self, shared: &Shared) {
        let mut work = Work::new(shared, &self.folder);
        let mut failing = false;
        loop {
            let (changes, stopping) = self.next(work.is_caught_up(), failing);
            let began = Instant::now();
            let mut failed: Option<Error> = None;
            for (key, change) in changes {
                if let Err(error) = work.apply(&key, change) {
                    failed = Some(self.again(key, change, error));
                }
            }
            self.queue().writing = false;
            self.written.notify_all();
            if stopping {
                if let Some(error) = failed {
                    tracing::warn!(%error, "the mirror is not up to date; the next start catches up");
                }
                return;
            }
            for (key, error) in work.catch_up() {
                failed = Some(match key {
                    Some(key) => self.again(key, Change::default(), error),
                    None => self.count(error),
                });
            }
            // A failing disk is logged once, not for every file and every attempt.
            match (&failed, failing) {
                (Some(error), false) => {
                    tracing::warn!(%error, "the mirror cannot be written; retrying in the background");
                }
                (None, true) => {
                    let failures = self.failures();
                    tracing::info!(failures, "the mirror is written again");
                }
                _ => {}
            }
            failing = failed.is_some();
            load::give_way(shared, began.elapsed());
        }
    }

    fn count(&self, error: Error) -> Error {
        self.failures.fetch_add(1, Ordering::Relaxed);
        error
    }

    /// Queues a failed change again, merged with newer ones.
    fn again(&self, key: Key, change: Change, error: Error) -> Error {
        let mut queue = self.queue();
        let waiting = queue.changes.entry(key).or_default();
        waiting.deleted |= change.deleted;
        waiting.erased |= change.erased;
        drop(queue);
        self.count(error)
    }

    /// Waits for something to do; after a failure, for a while or until the end.
    fn next(&self, caught_up: bool, failing: bool) -> (HashMap<Key, Change>, bool) {
        let mut queue = self.queue();
        if failing {
            self.changed.wait_while_for(&mut queue, |queue| !queue.stopping, RETRY_AFTER);
        }
        while caught_up && queue.changes.is_empty() && !queue.stopping {
            queue.asleep = true;
            self.changed.wait(&mut queue);
        }
        (queue.asleep, queue.writing) = (false, true);
        (std::mem::take(&mut queue.changes), queue.stopping)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Everturn, Options};

    fn until(so: impl Fn() -> bool) {
        let start = Instant::now();
        while !so() {
            assert!(start.elapsed() < Duration::from_secs(60), "waited in vain");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_disk_that_fails_is_counted_costs_no_append_and_is_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        // A file blocks the tenant's folder, whoever the user is.
        let in_the_way = folder.path().join("acme");
        std::fs::write(&in_the_way, "in the way").unwrap();
        let options = Options { mirror: Some(folder.path().to_path_buf()), ..Options::default() };
        let store = Everturn::open_with("memory:", options).unwrap();
        let tenant = store.tenant("acme").unwrap();
        let chat = tenant.create("").wait().unwrap();
        let mirror = store.inner.shared.mirror.as_ref().unwrap();
        until(|| mirror.failures() > 0);
        for _ in 0..20 {
            chat.append("heard").wait().unwrap();
        }
        std::fs::remove_file(&in_the_way).unwrap();
        let file = in_the_way.join(format!("{}.jsonl", chat.id()));
        until(|| std::fs::read_to_string(&file).is_ok_and(|text| text.matches("heard").count() == 20));
    }
}
