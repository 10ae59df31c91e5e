//! The write-ahead log of a store: its size, and whether it is complete.

use super::door::{BUSY_TIMEOUT, beside};
use everturn_core::Error;
use rusqlite::Connection;
use std::path::Path;
use std::time::Duration;

/// Number of pages in the write-ahead log after which they move into the database: 16 MiB.
pub const CHECKPOINT_PAGES: u32 = 4000;

/// Size at which a write-ahead log that grew because of constant reading is truncated: 64 MiB.
pub const BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Maximum time that a commit waits for readers to release such a log.
const READERS_PATIENCE: Duration = Duration::from_secs(2);

/// Bytes that SQLite writes before the frames of a write-ahead log, and before the page of each.
const HEADER_BYTES: i64 = 32;
const FRAME_HEADER_BYTES: i64 = 24;

/// Empties a write-ahead log that has grown past `limit`. Automatic checkpoints restart it only when nobody
/// reads; here the commit waits for current readers, while later ones no longer need the log. Returns the next
/// limit: higher, if a reader did not release it in time, so that it does not delay every commit.
pub fn bound(connection: &Connection, path: &Path, limit: u64) -> u64 {
    let size = bytes(path).unwrap_or(0);
    if size < limit {
        return limit;
    }
    let emptied = connection.busy_timeout(READERS_PATIENCE).and_then(|()| {
        connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0))
    });
    // Committed data is safe whether this works or not.
    let restored = connection.busy_timeout(BUSY_TIMEOUT);
    if matches!((emptied, restored), (Ok(0), Ok(()))) { BYTES_MAX } else { size + BYTES_MAX / 4 }
}

/// Moves the whole write-ahead log into the database file and syncs it. False if readers did not release it in
/// time; committed data is safe all the same.
pub fn checkpoint(connection: &Connection) -> rusqlite::Result<bool> {
    connection.busy_timeout(READERS_PATIENCE)?;
    let busy = connection.query_row("PRAGMA wal_checkpoint(FULL)", [], |row| row.get::<_, i64>(0));
    connection.busy_timeout(BUSY_TIMEOUT)?;
    Ok(busy? == 0)
}

/// The size of a store's write-ahead log; `None` without one.
pub fn bytes(path: &Path) -> Option<u64> {
    std::fs::metadata(beside(path, "-wal")).ok().map(|file| file.len())
}

/// Whether the write-ahead log is shorter than the frames that SQLite knows to be in it. If another process
/// emptied it properly, SQLite knows of none.
pub fn is_cut(connection: &Connection, path: &Path) -> rusqlite::Result<bool> {
    let frames: i64 = connection.query_row("PRAGMA wal_checkpoint(NOOP)", [], |row| row.get(1))?;
    let page: i64 = connection.query_row("PRAGMA page_size", [], |row| row.get(0))?;
    let known = if frames > 0 { HEADER_BYTES + frames * (FRAME_HEADER_BYTES + page) } else { 0 };
    Ok(bytes(path).unwrap_or(0) < known as u64)
}

/// The error for a truncated write-ahead log: its content may be lost, and later writes would be.
pub fn was_cut(path: &Path) -> Error {
    let text = format!(
        "the write-ahead log of {} was truncated after this process wrote to it, so writes are refused; restart this process to see what is missing",
        path.display()
    );
    Error::busy("store.cut", text)
}
