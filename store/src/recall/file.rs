//! A derived database: one connection that writes, and some that read. In memory, one for both.
//!
//! A damaged one is dropped: it is then found empty and filled again.

use super::open::{self, Derived};
use crate::sqlite::door::explain;
use everturn_core::Error;
use parking_lot::{Mutex, MutexGuard};
use rusqlite::{Connection, TransactionBehavior};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum number of idle reading connections, over all databases.
const READERS_IDLE_MAX: usize = 8;

/// A derived database, which may be lost.
pub struct Database {
    /// Path of the file; `None` in memory.
    path: Option<PathBuf>,
    kind: Derived,
    writer: Mutex<Option<Opened>>,
    /// Whether another file may have replaced the one that was read before.
    replaced: AtomicBool,
}

/// A connection, and the identity of its file: another process may have replaced it.
struct Opened {
    connection: Connection,
    file: FileId,
}

/// Idle reading connections, the most recently used at the back.
#[derive(Default)]
pub struct Readers(Mutex<VecDeque<(PathBuf, Opened)>>);

type FileId = Option<(u64, u64)>;

#[cfg(unix)]
fn file_id(path: Option<&Path>) -> FileId {
    use std::os::unix::fs::MetadataExt;
    let file = path.and_then(|path| std::fs::metadata(path).ok())?;
    Some((file.dev(), file.ino()))
}

#[cfg(not(unix))]
fn file_id(_: Option<&Path>) -> FileId {
    None
}

impl Readers {
    fn idle(&self) -> MutexGuard<'_, VecDeque<(PathBuf, Opened)>> {
        self.0.lock()
    }

    fn take(&self, path: &Path) -> Option<Opened> {
        let mut idle = self.idle();
        let at = idle.iter().rposition(|(of, _)| of == path)?;
        idle.remove(at).map(|(_, opened)| opened)
    }

    fn give_back(&self, path: &Path, opened: Opened) {
        let mut idle = self.idle();
        idle.push_back((path.to_path_buf(), opened));
        if idle.len() > READERS_IDLE_MAX {
            idle.pop_front();
        }
    }

    /// Closes the connections to a file, or all of them.
    pub fn close(&self, path: Option<&Path>) {
        self.idle().retain(|(of, _)| path.is_some_and(|path| of != path));
    }
}

impl Database {
    pub fn new(path: Option<PathBuf>, kind: Derived) -> Database {
        Database { path, kind, writer: Mutex::default(), replaced: AtomicBool::new(false) }
    }

    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Size of the file in bytes, without its write-ahead log; 0 in memory.
    pub fn bytes(&self) -> u64 {
        self.path.as_ref().and_then(|path| std::fs::metadata(path).ok()).map_or(0, |file| file.len())
    }

    /// Whether another file replaced it since the last call: data cached from the old one is invalid.
    pub fn was_replaced(&self) -> bool {
        self.replaced.swap(false, Ordering::SeqCst)
    }

    fn name(&self) -> &Path {
        self.path.as_deref().unwrap_or(Path::new("the index in memory"))
    }

    fn writer(&self) -> MutexGuard<'_, Option<Opened>> {
        self.writer.lock()
    }

    fn opened<'w>(&self, writer: &'w mut Option<Opened>) -> Result<&'w mut Connection, Error> {
        let path = self.path();
        let opened = match writer.take().filter(|opened| opened.file == file_id(path)) {
            Some(opened) => opened,
            None => {
                let connection = open::open_derived(path, self.kind)?;
                self.replaced.store(true, Ordering::SeqCst);
                Opened { connection, file: file_id(path) }
            }
        };
        Ok(&mut writer.insert(opened).connection)
    }

    /// Runs a closure in one transaction. A damaged file is dropped, and the caller gets a busy error.
    pub fn writing<T>(
        &self,
        readers: &Readers,
        body: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, Error> {
        let mut writer = self.writer();
        let done = (|| {
            let transaction = self
                .opened(&mut writer)
                .map_err(Ok)?
                .transaction_with_behavior(TransactionBehavior::Immediate)
                .map_err(Err)?;
            let done = body(&transaction).map_err(Err)?;
            transaction.commit().map_err(Err)?;
            Ok(done)
        })();
        done.map_err(|error| match error {
            Ok(error) => error,
            Err(error) => self.failed(readers, &mut writer, &error),
        })
    }

    /// Runs a closure outside of a transaction, on the writing connection.
    pub fn alone<T>(
        &self,
        readers: &Readers,
        body: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, Error> {
        let mut writer = self.writer();
        let done = self.opened(&mut writer).map(|connection| body(connection))?;
        done.map_err(|error| self.failed(readers, &mut writer, &error))
    }

    /// Runs a closure in one consistent view; `None` if there is no such database, or none that can be read.
    pub fn reading<T>(
        &self,
        readers: &Readers,
        body: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<Option<T>, Error> {
        let Some(path) = &self.path else { return self.writing(readers, body).map(Some) };
        let now = file_id(Some(path));
        let idle = readers.take(path);
        if idle.as_ref().is_some_and(|opened| opened.file != now) {
            self.replaced.store(true, Ordering::SeqCst);
        }
        let mut connection = match idle.filter(|opened| opened.file == now) {
            Some(opened) => opened.connection,
            None => match open::open_derived_for_reading(path, self.kind)? {
                Some(connection) => connection,
                None => return Ok(None),
            },
        };
        let answer = (|| {
            let view = connection.transaction()?;
            let answer = body(&view)?;
            view.finish()?;
            Ok(answer)
        })();
        match answer {
            Ok(answer) => {
                readers.give_back(path, Opened { connection, file: now });
                Ok(Some(answer))
            }
            Err(error) => {
                drop(connection);
                match self.failed(readers, &mut self.writer(), &error) {
                    // A damaged database is empty now, and is filled again.
                    Error::Busy(_) if is_damage(&error) => Ok(None),
                    error => Err(error),
                }
            }
        }
    }

    /// Drops it with its files.
    pub fn remove(&self, readers: &Readers) {
        self.drop_files(readers, &mut self.writer());
    }

    fn failed(&self, readers: &Readers, writer: &mut Option<Opened>, error: &rusqlite::Error) -> Error {
        if !is_damage(error) {
            return explain(self.name(), error);
        }
        tracing::warn!(%error, "{} is damaged and will be rebuilt", self.name().display());
        self.drop_files(readers, writer);
        Error::busy("recall.damaged", "the index was damaged and is being rebuilt; try again in a moment")
    }

    fn drop_files(&self, readers: &Readers, writer: &mut Option<Opened>) {
        *writer = None;
        self.replaced.store(true, Ordering::SeqCst);
        if let Some(path) = &self.path {
            readers.close(Some(path));
            open::remove_derived(path);
        }
    }
}

fn is_damage(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode;
    // A value of the wrong type is damage too.
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) | None)
}
