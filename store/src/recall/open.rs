//! Opens the databases of an index. They are derived from the log: a damaged one, or one of another version, is
//! recreated.

use crate::sqlite::door::{BUSY_TIMEOUT, beside, close_like, explain, open_as_it_lies, open_beside, set_up};
use crate::sqlite::library;
use everturn_core::Error;
use everturn_core::error::code;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Marks a file as part of the index: "Evti".
const RECALL_APPLICATION_ID: i32 = 0x4576_7469;

/// Version of the index: of its schemas, in thousands, and of the terms. A file of another version is dropped and
/// rebuilt.
const RECALL_VERSION: i32 = 1000 + everturn_views::recall::TERMS_VERSION as i32;

/// Makes word counts available.
const RECALL_VOCABULARY: &str = "CREATE VIRTUAL TABLE temp.vocabulary USING fts5vocab (main, words, row);";

/// Page cache of an index that is open for writing: there may be many of them.
const RECALL_WRITER_CACHE: &str = "PRAGMA cache_size = -4096;";

/// A database that is derived from the log, and may be lost.
#[derive(Clone, Copy)]
pub enum Derived {
    /// Positions of the indexes.
    Feed,
    /// The index of one tenant.
    Index,
}

impl Derived {
    fn schema(self) -> &'static str {
        match self {
            Derived::Feed => include_str!("../recall/feed.sql"),
            Derived::Index => include_str!("../recall/recall.sql"),
        }
    }

    fn vocabulary(self) -> &'static str {
        match self {
            Derived::Feed => "",
            Derived::Index => RECALL_VOCABULARY,
        }
    }
}

/// Opens a derived database for reading and writing, in memory without a path. A damaged one, or one of another
/// version, is recreated.
pub fn open_derived(path: Option<&Path>, kind: Derived) -> Result<Connection, Error> {
    library::set_up();
    let Some(path) = path else {
        let memory = Path::new("the index in memory");
        let connection = Connection::open_in_memory().map_err(|e| explain(memory, &e))?;
        set_up(&connection, memory)?;
        make_derived(&connection, kind)
            .and_then(|()| connection.execute_batch(kind.vocabulary()))
            .map_err(|e| explain(memory, &e))?;
        return Ok(connection);
    };
    let unwritable = |error: &rusqlite::Error| match explain(path, error) {
        Error::Invalid(_) => index_is_read_only(path),
        error => error,
    };
    make_private(path)?;
    let open = || -> rusqlite::Result<Option<Connection>> {
        let connection = Connection::open(path)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        match derived_version(&connection)? {
            Some(RECALL_VERSION) => {}
            None => {
                connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
                make_derived(&connection, kind)?;
            }
            Some(_) => return Ok(None),
        }
        Ok(Some(connection))
    };
    let damaged = |e: &rusqlite::Error| {
        matches!(e.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
    };
    let opened = match open() {
        Ok(Some(connection)) => connection,
        Err(error) if !damaged(&error) => return Err(unwritable(&error)),
        _ => {
            remove_derived(path);
            let busy = || Error::busy("store.busy", format!("{} is in use; try again", path.display()));
            open().map_err(|e| unwritable(&e))?.ok_or_else(busy)?
        }
    };
    set_up(&opened, path)?;
    // Entries lost in a power failure are rebuilt; the file stays consistent all the same.
    let ready = format!("PRAGMA synchronous = NORMAL; {RECALL_WRITER_CACHE} {}", kind.vocabulary());
    opened.execute_batch(&ready).map_err(|e| explain(path, &e))?;
    Ok(opened)
}

/// Opens a derived database for reading; `None` if there is none that can be read.
pub fn open_derived_for_reading(path: &Path, kind: Derived) -> Result<Option<Connection>, Error> {
    if !path.is_file() {
        return Ok(None);
    }
    library::set_up();
    let open = |beside_a_writer: bool| -> Result<Option<Connection>, Error> {
        let connection = if beside_a_writer {
            let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            Connection::open_with_flags(path, flags).map_err(|e| explain(path, &e))?
        } else {
            open_as_it_lies(path)?
        };
        connection.busy_timeout(BUSY_TIMEOUT).map_err(|e| explain(path, &e))?;
        let version = derived_version(&connection).map_err(|e| explain(path, &e))?;
        Ok((version == Some(RECALL_VERSION)).then_some(connection))
    };
    let opened = match open(true) {
        // In a folder that cannot be written, as in `open_for_reading`.
        Err(Error::Invalid(_)) if !beside(path, "-wal").exists() => open(false),
        opened => opened,
    };
    match opened {
        Ok(Some(connection)) => {
            set_up(&connection, path)?;
            connection.execute_batch(kind.vocabulary()).map_err(|e| explain(path, &e))?;
            Ok(Some(connection))
        }
        Ok(None) => Ok(None),
        Err(error) => {
            tracing::debug!(%error, "{} cannot be read", path.display());
            Ok(None)
        }
    }
}

fn make_derived(connection: &Connection, kind: Derived) -> rusqlite::Result<()> {
    // Another process may create it at the same moment: the second one finds it.
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let made = match derived_version(connection) {
        Ok(None) => connection.execute_batch(&format!(
            "{}; PRAGMA application_id = {RECALL_APPLICATION_ID}; PRAGMA user_version = {RECALL_VERSION};",
            kind.schema()
        )),
        other => other.map(drop),
    };
    connection.execute_batch(if made.is_ok() { "COMMIT" } else { "ROLLBACK" })?;
    made
}

/// The version of a derived database; `None` for a new file, an impossible one for a foreign file.
fn derived_version(connection: &Connection) -> rusqlite::Result<Option<i32>> {
    let number =
        |pragma: &str| connection.query_row(&format!("PRAGMA {pragma}"), [], |row| row.get::<_, i32>(0));
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    match number("application_id")? {
        RECALL_APPLICATION_ID => number("user_version").map(Some),
        0 if tables == 0 => Ok(None),
        _ => Ok(Some(-1)),
    }
}

/// Whether a file begins like a database and is as long as its header says. No connection of this process may
/// have it open: closing a second descriptor drops SQLite's locks.
pub fn looks_whole(path: &Path) -> bool {
    let mut header = [0; 32];
    let file = File::open(path).and_then(|mut file| {
        file.read_exact(&mut header)?;
        file.metadata()
    });
    let page_bytes = match u16::from_be_bytes([header[16], header[17]]) {
        1 => 65_536,
        bytes => u64::from(bytes),
    };
    let pages = u32::from_be_bytes([header[28], header[29], header[30], header[31]]);
    header.starts_with(b"SQLite format 3\0")
        && file.is_ok_and(|file| file.len() >= page_bytes * u64::from(pages))
}

/// Removes a derived database. What cannot be removed is found unusable when it is opened next.
pub fn remove_derived(path: &Path) {
    for suffix in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(beside(path, suffix));
    }
}

/// Creates the folder of an index, and its file, with the mode of the database, unless they exist: they hold
/// the same text.
fn make_private(path: &Path) -> Result<(), Error> {
    let cannot = |_| index_is_read_only(path);
    let Some(folder) = path.parent() else { return Ok(()) };
    let database = folder.to_str().and_then(|folder| folder.strip_suffix("-index")).map(Path::new);
    if !folder.is_dir() {
        // The store was moved away: nothing is created at the old path.
        if database.is_some_and(|database| !database.exists()) {
            return Err(index_is_read_only(path));
        }
        std::fs::create_dir_all(folder).map_err(cannot)?;
        if let Some(database) = database {
            close_like(&File::open(folder).map_err(cannot)?, database);
        }
    }
    if let Some(database) = database.filter(|_| !path.exists()) {
        close_like(&open_beside(path).map_err(cannot)?, database);
    }
    Ok(())
}

fn index_is_read_only(path: &Path) -> Error {
    let folder = path.parent().unwrap_or(path).display();
    Error::invalid(
        code::RECALL_READ_ONLY,
        format!(
            "{folder} cannot be written, so what is not in the index yet is not found; make it writable, or recall once where it is"
        ),
    )
}
