//! Checks whether a store is complete when it is opened.
//!
//! Two checks, because a write-ahead log can be lost in two ways. The database file is marked as in use while a
//! process writes: marked and without a write-ahead log, it was copied alone, the log was removed, or another program
//! moved it into the file. And a small file beside it, `-head`, names the last event: a log that ends before it was
//! truncated, damaged or replaced by an older one. Marked and without that file, it is unknown whether the log is complete.
//!
//! The file is created and synced before the mark is set. After that it is overwritten after each commit and
//! never synced: it costs no more than a system call, and since the commit was synced before, it never names
//! what is not durable. After a power loss it may be older, which means nothing. If it is removed while a
//! process writes, it is recreated.

use super::rows::Bytes;
use super::{door, ownership, wal};
use everturn_core::Error;
use everturn_core::chain::Hash;
use rusqlite::{Connection, OptionalExtension};
use std::fs::File;
use std::path::{Path, PathBuf};

/// First bytes of a record. Frozen.
const MAGIC: &[u8; 8] = b"Evtnhd1\n";

/// Magic, event, changes, hash of the event, and the first bytes of the hash of all these.
const RECORD_BYTES: usize = 8 + 8 + 8 + 32 + 8;

/// End of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreHead {
    /// `no` of the last event; 0 before the first.
    pub event: i64,
    /// Hash of that event.
    pub hash: Hash,
    /// Number of changes that added no event: deletions, changes of keys, text of open turns.
    pub changes: i64,
}

impl StoreHead {
    /// Reads it from the database.
    pub fn of(db: &Connection) -> rusqlite::Result<StoreHead> {
        let last = db
            .query_row("SELECT no, hash FROM events ORDER BY no DESC LIMIT 1", [], |row| {
                Ok((row.get(0)?, Hash(row.get::<_, Bytes<32>>(1)?.0)))
            })
            .optional()?;
        let (event, hash) = last.unwrap_or((0, Hash([0; 32])));
        Ok(StoreHead { event, hash, changes: ownership::changes(db)?.unwrap_or(0) })
    }

    fn to_bytes(self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..16].copy_from_slice(&self.event.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.changes.to_be_bytes());
        bytes[24..56].copy_from_slice(&self.hash.0);
        let check = Hash::of(&bytes[..56]);
        bytes[56..].copy_from_slice(&check.0[..8]);
        bytes
    }

    /// `None` if these bytes are not a complete record.
    fn from_bytes(bytes: &[u8]) -> Option<StoreHead> {
        let bytes: &[u8; RECORD_BYTES] = bytes.try_into().ok()?;
        let number = |at: usize| Some(i64::from_be_bytes(bytes[at..at + 8].try_into().ok()?));
        let head =
            StoreHead { event: number(8)?, changes: number(16)?, hash: Hash(bytes[24..56].try_into().ok()?) };
        (head.to_bytes() == *bytes).then_some(head)
    }
}

/// The record of the head, open for writing.
pub struct HeadFile {
    file: File,
    head: StoreHead,
    /// The database that it belongs to.
    database: PathBuf,
}

impl HeadFile {
    /// Opens the record, which exists and is durable when this returns. Called before the database is marked as
    /// in use.
    pub fn open(path: &Path, db: &Connection) -> Result<HeadFile, Error> {
        let now = StoreHead::of(db).map_err(|e| door::explain(path, &e))?;
        HeadFile::open_with(path, now).map_err(|e| {
            let head = door::head_path(path);
            let text = format!("cannot write {} ({e}); make it writable, or remove it", head.display());
            Error::invalid("store.cannot_open", text)
        })
    }

    fn open_with(database: &Path, head: StoreHead) -> std::io::Result<HeadFile> {
        let durable = recorded(database).is_some();
        let path = door::head_path(database);
        let file = door::open_beside(&path)?;
        door::close_like(&file, database);
        let mut opened = HeadFile { file, head, database: database.to_path_buf() };
        opened.write()?;
        if !durable {
            opened.file.set_len(RECORD_BYTES as u64)?;
            opened.file.sync_all()?;
            door::sync_folder(&path)?;
        }
        Ok(opened)
    }

    /// Recreates the file if it was removed, renamed or replaced: without it, a crash would leave a store that
    /// is refused.
    pub fn keep(&mut self) {
        if door::is_open_at(&self.file, &door::head_path(&self.database)) {
            return;
        }
        match HeadFile::open_with(&self.database, self.head) {
            Ok(again) => *self = again,
            Err(error) => {
                tracing::warn!(%error, "the record of the store's head is lost and cannot be recreated")
            }
        }
    }

    /// Reads the head from the database, once no other process writes to it.
    pub fn catch_up(&mut self, db: &Connection) -> rusqlite::Result<()> {
        self.head = StoreHead::of(db)?;
        self.overwrite();
        Ok(())
    }

    /// Records a commit: its last event, and the current number of changes.
    pub fn note(&mut self, last: Option<(i64, Hash)>, changes: Option<i64>) {
        if last.is_none() && changes.is_none() {
            return;
        }
        (self.head.event, self.head.hash) = last.unwrap_or((self.head.event, self.head.hash));
        self.head.changes = changes.unwrap_or(self.head.changes);
        self.overwrite();
    }

    fn overwrite(&mut self) {
        if door::is_removed(&self.file) {
            return self.keep();
        }
        if let Err(error) = self.write() {
            // The commit is safe all the same; an older record does no harm.
            tracing::debug!(%error, "cannot write the record of the store's head");
        }
    }

    #[cfg(unix)]
    fn write(&mut self) -> std::io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(&self.file, &self.head.to_bytes(), 0)
    }

    #[cfg(not(unix))]
    fn write(&mut self) -> std::io::Result<()> {
        use std::io::{Seek, Write};
        self.file.rewind()?;
        self.file.write_all(&self.head.to_bytes())
    }
}

/// Evidence that committed data is lost.
pub struct Loss {
    code: &'static str,
    /// Description of the loss: a sentence without its full stop.
    pub what: String,
    /// Remedy for the loss.
    remedy: String,
}

impl Loss {
    pub fn refused(self) -> Error {
        let Loss { code, what, remedy } = self;
        let text = format!(
            "{what}; {remedy}, or run `everturn doctor --accept-loss` to continue with what is left (copy the files first: this cannot be undone)"
        );
        Error::corrupt(code, text)
    }
}

/// Looks for a database file that is marked as in use and has no write-ahead log, before SQLite creates a new
/// one.
pub fn check_wal(path: &Path) -> Option<Loss> {
    if wal::bytes(path).is_some() || !path.is_file() {
        return None;
    }
    let db = door::open_as_it_lies(path).ok().filter(|db| ownership::in_use(db).unwrap_or(false))?;
    let lacking = match recorded(path).map(|recorded| lacking(&db, path, recorded)) {
        // A program such as `sqlite3` moved the log into the file when it closed it.
        Some(Ok(None)) if is_sound(&db) => return None,
        Some(Ok(Some(lacking))) => lacking,
        _ => "the last turns may be missing".into(),
    };
    let file = path.display();
    Some(Loss {
        code: "store.wal_lost",
        what: format!("{file} was not closed, and its write-ahead log {file}-wal is missing: {lacking}"),
        remedy: "put that file back, or restore a backup (`everturn backup` makes one of a running store)"
            .into(),
    })
}

/// Whether the pages of a database belong together. A process that was killed while it copied the log leaves old ones
/// beside new ones.
fn is_sound(db: &Connection) -> bool {
    db.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0)).is_ok_and(|found| found == "ok")
}

/// The record beside a store, to be compared with the database. Read it before the database: another process
/// may write meanwhile.
pub fn recorded(path: &Path) -> Option<StoreHead> {
    StoreHead::from_bytes(&std::fs::read(door::head_path(path)).ok()?)
}

/// Looks for a database that ends before the recorded head, and for one in use without a record.
pub fn check(db: &Connection, path: &Path, recorded: Option<StoreHead>) -> rusqlite::Result<Option<Loss>> {
    let file = path.display();
    let Some(recorded) = recorded else {
        // Read again: a writer that has just started created it before it set the mark.
        let lost = ownership::in_use(db)? && self::recorded(path).is_none();
        return Ok(lost.then(|| Loss {
            code: "store.head_lost",
            what: format!(
                "{file} was not closed, and {file}-head, which names the last event, is missing or damaged: nothing tells \
                 whether the last turns are there"
            ),
            remedy: "put that file back, or restore a backup".into(),
        }));
    };
    Ok(lacking(db, path, recorded)?.map(|lacking| Loss {
        code: "store.cut",
        what: format!(
            "{lacking}: its write-ahead log {file}-wal was cut or damaged, or a file was replaced by an older one"
        ),
        remedy: "put the right files back, or restore a backup".into(),
    }))
}

/// Description of the loss, if the database has less than the record of its head.
fn lacking(db: &Connection, path: &Path, recorded: StoreHead) -> rusqlite::Result<Option<String>> {
    let file = path.display();
    let now = StoreHead::of(db)?;
    let at = |no: i64| {
        db.query_row("SELECT hash FROM events WHERE no = ?", [no], |row| {
            Ok(Hash(row.get::<_, Bytes<32>>(0)?.0))
        })
        .optional()
    };
    if now.event < recorded.event {
        let (has, had) = (now.event, recorded.event);
        return Ok(Some(format!(
            "{file} has {has} events, but {had} events were written, so the last {} are missing",
            had - has
        )));
    }
    if recorded.event > 0 && at(recorded.event)? != Some(recorded.hash) {
        return Ok(Some(format!("event {} of {file} is not the one that was written", recorded.event)));
    }
    // A lost row is recreated, and says nothing about changes.
    let changes = ownership::changes(db)?.filter(|changes| *changes < recorded.changes);
    let lost = changes.map(|changes| recorded.changes - changes);
    Ok(lost.map(|lost| {
        format!("{file} lacks the last {lost} deletions, changes of keys or pieces of open turns")
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back_and_a_torn_one_is_none() {
        let head = StoreHead { event: 498, hash: Hash([7; 32]), changes: 3 };
        let bytes = head.to_bytes();
        assert_eq!(StoreHead::from_bytes(&bytes), Some(head));
        for length in 0..bytes.len() {
            assert_eq!(StoreHead::from_bytes(&bytes[..length]), None);
        }
        for place in 0..bytes.len() {
            let mut torn = bytes;
            torn[place] ^= 1;
            assert_eq!(StoreHead::from_bytes(&torn), None, "byte {place}");
        }
    }
}
