//! A session whose failures never reach the recorded program.

use super::entry::{Entry, SessionFields};
use super::write::{Session, SessionSummary};
use everturn_core::Error;
use everturn_core::time::Timestamp;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Records the actions of a program, as far as possible. A disk that is full or not writable costs entries, never a
/// tool call: failures are counted, and the first one is reported.
pub struct Sink {
    session: Result<Session, Error>,
    on_first_failure: Box<dyn Fn(&Error) + Send + Sync>,
    failures: AtomicU64,
    last: Mutex<Option<Error>>,
}

impl Sink {
    /// Records into this session; if it could not be started, that is the first failure. `on_first_failure` logs the
    /// first one.
    pub fn new(
        session: Result<Session, Error>,
        on_first_failure: impl Fn(&Error) + Send + Sync + 'static,
    ) -> Sink {
        let first = session.as_ref().err().cloned();
        let sink = Sink {
            session,
            on_first_failure: Box::new(on_first_failure),
            failures: AtomicU64::new(0),
            last: Mutex::default(),
        };
        first.map(|error| sink.heard::<()>(Err(error)));
        sink
    }

    /// Records an entry. An `Err` counts as a failure.
    pub fn record(&self, entry: Result<Entry, Error>) {
        self.heard(entry.and_then(|entry| self.session()?.append(&entry)));
    }

    /// Ends the session. `None` if that failed.
    pub fn end(&self, at: Timestamp, extra: &SessionFields) -> Option<SessionSummary> {
        self.heard(self.session().and_then(|session| session.end(at, extra)))
    }

    /// The session, or the reason why it could not be started.
    pub fn session(&self) -> Result<&Session, Error> {
        self.session.as_ref().map_err(Error::clone)
    }

    /// Number of entries that could not be recorded.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Error of the last failure.
    pub fn last_error(&self) -> Option<Error> {
        self.last.lock().clone()
    }

    fn heard<T>(&self, result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                if self.failures.fetch_add(1, Ordering::Relaxed) == 0 {
                    (self.on_first_failure)(&error);
                }
                *self.last.lock() = Some(error);
                None
            }
        }
    }
}
