//! One writer at a time, whatever path it took to the file.
//!
//! The lock beside the file only gives the good error message: it can be removed, and another machine or container may
//! not see it. The truth is in the database. Each open for writing raises `epoch`, and each transaction of a writer
//! checks, inside itself, that the epoch is still its own. See `docs/decisions/0012-one-writer-one-file.md`.

use super::door;
use everturn_core::Error;
use rusqlite::{Connection, TransactionBehavior};
use std::path::Path;

/// The right to write, as the database has it.
#[derive(Clone, Copy)]
pub struct Ownership {
    epoch: i64,
}

impl Ownership {
    /// Takes it from whoever had it, and marks the database file as in use. From here until [`Ownership::end`] the file
    /// is only whole together with its write-ahead log.
    pub fn take(connection: &mut Connection, path: &Path) -> rusqlite::Result<Ownership> {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let marked: bool = transaction.query_row("SELECT in_use FROM ownership", [], |row| row.get(0))?;
        let epoch = transaction.query_row(
            "UPDATE ownership SET epoch = epoch + 1, in_use = 1 RETURNING epoch",
            [],
            |row| row.get(0),
        )?;
        transaction.commit()?;
        if !marked && !door::checkpoint(connection)? {
            tracing::warn!(
                "another process reads {}, so it could not be marked as in use; losing its write-ahead log may go unnoticed",
                path.display()
            );
        }
        Ok(Ownership { epoch })
    }

    /// Whether nobody has opened the store for writing since. Asked inside the transaction that is to write.
    pub fn holds(self, db: &Connection) -> rusqlite::Result<bool> {
        let epoch: i64 = db.prepare_cached("SELECT epoch FROM ownership")?.query_row([], |row| row.get(0))?;
        Ok(epoch == self.epoch)
    }

    /// A clean end: the database file is whole by itself.
    pub fn end(self, connection: &mut Connection) -> rusqlite::Result<()> {
        connection
            .execute("UPDATE ownership SET in_use = 0 WHERE epoch = ?", [self.epoch])
            .and_then(|_| door::checkpoint(connection))
            .map(drop)
    }
}

/// Counts a durable change that adds no event. Gives the count.
pub fn count_change(db: &Connection) -> rusqlite::Result<i64> {
    db.prepare_cached("UPDATE ownership SET changes = changes + 1 RETURNING changes")?
        .query_row([], |row| row.get(0))
}

/// The answer to a writer that is not the owner any more.
pub fn overtaken(path: &Path) -> Error {
    Error::busy(
        "store.overtaken",
        format!(
            "another process has opened {} for writing since this one did, so nothing was written; restart this process, or send your requests to the other one",
            path.display()
        ),
    )
}
