//! Ownership: one writing process at a time, also through different paths to the file.
//!
//! The lock beside the file only gives a good error message: it can be removed, and another machine or
//! container may not see it. The database is authoritative. Each open for writing sets a new `epoch`, and each
//! transaction of a writer checks, inside itself, that the epoch is still its own. See
//! `docs/decisions/0012-one-writer-one-file.md`.

use super::{door, wal};
use everturn_core::Error;
use everturn_core::error::code;
use rusqlite::{Connection, TransactionBehavior};
use std::path::Path;

/// A larger count was not written by us, and SQLite could not increment the largest integer.
const CHANGES_MAX: i64 = i64::MAX / 2;

/// The right to write, as recorded in the database.
#[derive(Clone, Copy)]
pub struct Ownership {
    epoch: i64,
}

impl Ownership {
    /// Takes it over, and marks the database file as in use. From here until [`Ownership::end`] the file is
    /// only complete together with its write-ahead log.
    ///
    /// The row is recreated in any case. A random epoch differs from that of every writer that is still
    /// running, even if the row was changed or removed.
    ///
    /// Also returns whether the file was marked before: the previous process did not end cleanly.
    pub fn take(connection: &mut Connection, path: &Path) -> rusqlite::Result<(Ownership, bool)> {
        // Read from the file itself: a mark that is only in the write-ahead log would be lost with it.
        let marked = door::marked_in_use(path);
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let changes = changes(&transaction)?.unwrap_or(0);
        transaction.execute("DELETE FROM ownership", [])?;
        let epoch = transaction.query_row(
            "INSERT INTO ownership (epoch, in_use, changes) VALUES (random(), 1, ?) RETURNING epoch",
            [changes],
            |row| row.get(0),
        )?;
        transaction.commit()?;
        if !marked && !wal::checkpoint(connection)? {
            tracing::warn!(
                "another process reads {}, so it could not be marked as in use; losing its write-ahead log may go unnoticed",
                path.display()
            );
        }
        Ok((Ownership { epoch }, marked))
    }

    /// Whether no other process has opened the store for writing since. Called inside the transaction that is
    /// to write.
    pub fn holds(self, db: &Connection) -> rusqlite::Result<bool> {
        db.prepare_cached("SELECT 1 FROM ownership WHERE epoch = ?")?.exists([self.epoch])
    }

    /// A clean end: the database file is complete by itself.
    pub fn end(self, connection: &mut Connection) -> rusqlite::Result<()> {
        connection
            .execute("UPDATE ownership SET in_use = 0 WHERE epoch = ?", [self.epoch])
            .and_then(|_| wal::checkpoint(connection))
            .map(drop)
    }
}

/// Whether the database is marked as in use.
pub fn in_use(db: &Connection) -> rusqlite::Result<bool> {
    db.query_row("SELECT EXISTS (SELECT 1 FROM ownership WHERE in_use)", [], |row| row.get(0))
}

/// Number of durable changes that added no event; `None` if the row is lost or invalid.
pub fn changes(db: &Connection) -> rusqlite::Result<Option<i64>> {
    db.query_row(
        "SELECT max(changes) FROM ownership WHERE typeof(changes) = 'integer' AND changes BETWEEN 0 AND ?",
        [CHANGES_MAX],
        |row| row.get(0),
    )
}

/// Counts a durable change that adds no event. Returns the count.
pub fn count_change(db: &Connection) -> rusqlite::Result<i64> {
    db.prepare_cached("UPDATE ownership SET changes = changes + 1 RETURNING changes")?
        .query_row([], |row| row.get(0))
}

/// The error for a writer that is no longer the owner.
pub fn overtaken(path: &Path) -> Error {
    Error::busy(
        code::OVERTAKEN,
        format!(
            "another process has opened {} for writing since this one did, so nothing was written; restart this process, or send your requests to the other one",
            path.display()
        ),
    )
}
