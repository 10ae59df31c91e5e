//! Serializes imports of the same session, so that a later one adds only the turns that are still missing.

use everturn_core::id::Key;
use parking_lot::{Condvar, Mutex};
use std::collections::HashSet;
use std::time::Duration;

/// Longest wait of an import for another import of the same session.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// The sessions that are imported at this moment.
#[derive(Default)]
pub(crate) struct RunningImports {
    sessions: Mutex<HashSet<Key>>,
    ended: Condvar,
}

/// The right to import a session, until it is dropped.
pub(super) struct ImportRight<'a> {
    running: &'a RunningImports,
    session: Key,
}

impl RunningImports {
    /// Waits until no other import of the session runs in this process. `None` if that takes too long.
    pub(super) fn begin(&self, session: Key) -> Option<ImportRight<'_>> {
        let mut sessions = self.sessions.lock();
        let runs = |sessions: &mut HashSet<Key>| sessions.contains(&session);
        if self.ended.wait_while_for(&mut sessions, runs, WAIT_MAX).timed_out() {
            return None;
        }
        sessions.insert(session.clone());
        Some(ImportRight { running: self, session })
    }
}

impl Drop for ImportRight<'_> {
    fn drop(&mut self) {
        self.running.sessions.lock().remove(&self.session);
        self.running.ended.notify_all();
    }
}
