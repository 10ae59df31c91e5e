//! The one door to a database file: every connection is opened, set up and checked here.

use super::{ownership, rows};
use everturn_core::Error;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, ffi};
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Says that a file is ours: "Evtn". Frozen.
const APPLICATION_ID: i32 = 0x4576_746e;

/// How long a statement waits for another process that holds the file for a moment (a checkpoint, a first open).
pub const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// How many pages may gather in the write-ahead log before they move into the database: 16 MiB.
const CHECKPOINT_PAGES: u32 = 4000;

/// The caches of all connections of the process together take about this much; past it, pages that are not in use make room.
const CACHES_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// A write-ahead log that grew past this because somebody was always reading is cut back: 64 MiB.
pub const WAL_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// As many symbolic links are followed; a longer way is a circle.
const SYMLINKS_MAX: usize = 40;

/// How long a commit may wait for readers to let go of such a log.
const WAL_READERS_PATIENCE: Duration = Duration::from_secs(2);

/// One step of the schema for each version; a released step is never edited. Version N is what step N leaves.
const MIGRATIONS: &[&str] = &[include_str!("v1.sql"), include_str!("v2.sql"), include_str!("v3.sql")];

/// Came after the first files of version 1 were written, so it is made wherever it is missing.
const KEYS: &str = include_str!("keys.sql");

/// Says that a file belongs to the index: "Evtr".
const RECALL_APPLICATION_ID: i32 = 0x4576_7472;

/// The version of the index: of its schemas and of how words are made. There are no steps between versions: a file of another
/// one is dropped and made again.
const RECALL_VERSION: i32 = 4000 + everturn_core::recall::TERMS_VERSION as i32;

/// Lets counts of words be asked for.
const RECALL_VOCABULARY: &str = "CREATE VIRTUAL TABLE temp.vocabulary USING fts5vocab (main, words, row);";

/// A page cache of an index that is open for writing: there may be many of them.
const RECALL_WRITER_CACHE: &str = "PRAGMA cache_size = -4096;";

/// A database that is derived from the log, and can be lost.
#[derive(Clone, Copy)]
pub enum Derived {
    /// How far the indexes are.
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

/// File systems of other machines, by the number that Linux gives them. Their locks and syncs cannot be relied on.
const REMOTE: &[(u32, &str)] = &[
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x0102_1997, "9P"),
    (0x00c3_6400, "Ceph"),
    (0x5346_414f, "AFS"),
];

fn remote(file_system: u32) -> Option<&'static str> {
    REMOTE.iter().find(|(number, _)| *number == file_system).map(|(_, name)| *name)
}

/// Says so if a store lies on a file system of another machine.
#[cfg(target_os = "linux")]
fn warn_if_remote(path: &Path) {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let file_system = rustix::fs::statfs(folder).ok().map(|stat| stat.f_type as u32);
    if let Some(name) = file_system.and_then(remote) {
        tracing::warn!(
            "{} is on {name}, a network file system, where locks and syncs may not hold; put the store on a local disk",
            path.display()
        );
    }
}

#[cfg(not(target_os = "linux"))]
fn warn_if_remote(_: &Path) {}

/// Opens for reading and writing. Makes the file and its tables if they are not there.
pub fn open_for_writing(path: &Path) -> Result<Connection, Error> {
    if path.is_dir() {
        return Err(Error::invalid(
            "store.is_directory",
            format!(
                "{} is a directory; name a file in it, such as {}",
                path.display(),
                path.join("everturn.db").display()
            ),
        ));
    }
    warn_if_remote(path);
    let mut connection = Connection::open(path).map_err(|e| explain(path, &e))?;
    set_up(&connection, path)?;
    let writable =
        connection.is_readonly("main").map(|read_only| !read_only).map_err(|e| explain(path, &e))?;
    if !writable {
        return Err(read_only(path));
    }
    migrate(&mut connection, path)?;
    Ok(connection)
}

/// Refuses a path at which there is no file.
pub fn check_there(path: &Path) -> Result<(), Error> {
    if path.is_file() {
        return Ok(());
    }
    Err(Error::not_found(
        "store.absent",
        format!("no store at {}; `everturn new` makes one, or name another with --store", path.display()),
    ))
}

/// Opens for reading only. The file must be there.
pub fn open_for_reading(path: &Path) -> Result<Connection, Error> {
    check_there(path)?;
    let connection = match open_beside_a_writer(path) {
        // Where nothing may be written, SQLite cannot share a write-ahead log. If there is none, nobody is writing, and
        // the file can be read as it lies.
        Err(error)
            if matches!(error.code(), "store.read_only" | "store.cannot_open")
                && wal_bytes(path).is_none() =>
        {
            open_as_it_lies(path)?
        }
        opened => opened?,
    };
    let version = version(&connection, path)?;
    if version < MIGRATIONS.len() {
        return Err(Error::conflict(
            "store.older",
            format!(
                "{} has format {version}, this program reads {}; open it for writing once to upgrade it",
                path.display(),
                MIGRATIONS.len()
            ),
        ));
    }
    Ok(connection)
}

fn open_beside_a_writer(path: &Path) -> Result<Connection, Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(|e| explain(path, &e))?;
    set_up(&connection, path)?;
    // SQLite looks at the file only when it is asked something.
    version(&connection, path)?;
    Ok(connection)
}

pub fn open_as_it_lies(path: &Path) -> Result<Connection, Error> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    let escaped = path.display().to_string().replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    let connection = Connection::open_with_flags(format!("file:{escaped}?immutable=1"), flags)
        .map_err(|e| explain(path, &e))?;
    set_up(&connection, path)?;
    Ok(connection)
}

/// Opens a derived database for reading and writing, in memory without a path. One that is damaged, or of another version, is
/// begun anew.
pub fn open_derived(path: Option<&Path>, kind: Derived) -> Result<Connection, Error> {
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
    // What a power loss takes is made again; the file stays whole all the same.
    let ready = format!("PRAGMA synchronous = NORMAL; {RECALL_WRITER_CACHE} {}", kind.vocabulary());
    opened.execute_batch(&ready).map_err(|e| explain(path, &e))?;
    Ok(opened)
}

/// Opens a derived database for reading; `None` if there is none that can be read.
pub fn open_derived_for_reading(path: &Path, kind: Derived) -> Result<Option<Connection>, Error> {
    if !path.is_file() {
        return Ok(None);
    }
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
    // Another process may make it in this moment: whoever comes second finds it there.
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

/// The version of a derived database; `None` for a new file, an impossible one for a file that is something else.
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

/// Whether a file begins as a database and is as long as its header says. No connection of this process may have it open:
/// closing a second descriptor drops SQLite's locks.
pub fn looks_whole(path: &Path) -> bool {
    use std::io::Read;
    let mut header = [0; 32];
    let file = std::fs::File::open(path).and_then(|mut file| {
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

/// Removes the index that earlier versions kept for all tenants in one file.
pub fn remove_shared_index(path: &Path) {
    remove_derived(&beside(path, "-recall"));
}

/// The folder with the indexes of a store.
pub fn index_folder(path: &Path) -> PathBuf {
    beside(path, "-index")
}

/// Makes the folder of an index, and its file, with the mode of the database, unless they are there: they hold the same words.
fn make_private(path: &Path) -> Result<(), Error> {
    let cannot = |_| index_is_read_only(path);
    let Some(folder) = path.parent() else { return Ok(()) };
    let database = folder.to_str().and_then(|folder| folder.strip_suffix("-index")).map(Path::new);
    if !folder.is_dir() {
        // A store that was moved away: nothing is made where it was.
        if database.is_some_and(|database| !database.exists()) {
            return Err(index_is_read_only(path));
        }
        std::fs::create_dir_all(folder).map_err(cannot)?;
        if let Some(database) = database {
            let folder = File::open(folder).map_err(cannot)?;
            close_like(&folder, database);
            open_to_enter(&folder);
        }
    }
    if let Some(database) = database.filter(|_| !path.exists()) {
        close_like(&open_beside(path).map_err(cannot)?, database);
    }
    Ok(())
}

/// Lets those into a folder who may read it.
#[cfg(unix)]
fn open_to_enter(folder: &File) {
    use std::os::unix::fs::PermissionsExt;
    if let Ok(mode) = folder.metadata().map(|folder| folder.permissions().mode()) {
        let _ = folder.set_permissions(PermissionsExt::from_mode(mode | (mode & 0o444) >> 2));
    }
}

#[cfg(not(unix))]
fn open_to_enter(_: &File) {}

fn index_is_read_only(path: &Path) -> Error {
    let folder = path.parent().unwrap_or(path).display();
    Error::invalid(
        "recall.read_only",
        format!(
            "{folder} cannot be written, so what is not in the index yet is not found; make it writable, or recall once where it is"
        ),
    )
}

/// Where the record of a store's head is.
pub fn head_path(path: &Path) -> PathBuf {
    beside(path, "-head")
}

/// Gives a file beside a database the mode of the database, as SQLite does with those that it makes.
#[cfg(unix)]
pub fn close_like(file: &File, database: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let Ok(like) = std::fs::metadata(database) else { return };
    let mode = like.permissions().mode() | 0o600;
    if let Err(error) = file.set_permissions(PermissionsExt::from_mode(mode)) {
        // Only its owner can change it.
        tracing::debug!(%error, "a file beside {} keeps its mode", database.display());
    }
}

#[cfg(not(unix))]
pub fn close_like(_: &File, _: &Path) {}

/// Opens a file beside the database, and makes it if needed. A symbolic link in its place is refused: whatever it leads to
/// would be overwritten.
pub fn open_beside(path: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    options.create(true).truncate(false).read(true).write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, rustix::fs::OFlags::NOFOLLOW.bits() as i32);
    options.open(path)
}

/// Makes the entry of a file in its folder durable.
#[cfg(unix)]
pub fn sync_folder(path: &Path) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

/// Elsewhere a folder cannot be opened, and its entries are durable with their files.
#[cfg(not(unix))]
pub fn sync_folder(_: &Path) -> std::io::Result<()> {
    Ok(())
}

fn set_up(connection: &Connection, path: &Path) -> Result<(), Error> {
    let pragmas = format!(
        "PRAGMA foreign_keys = ON;
         PRAGMA secure_delete = ON;
         PRAGMA cache_size = -32768;
         PRAGMA soft_heap_limit = {CACHES_BYTES_MAX};
         PRAGMA temp_store = MEMORY;
         PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES};
         PRAGMA journal_size_limit = {WAL_BYTES_MAX};"
    );
    connection.busy_timeout(BUSY_TIMEOUT).map_err(|e| explain(path, &e))?;
    connection.set_prepared_statement_cache_capacity(64);
    // Without this SQLite plans a query anew whenever a parameter changes, which costs more than the query.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(|e| explain(path, &e))?;
    connection.execute_batch(&pragmas).map_err(|e| explain(path, &e))
}

/// The file's format version; 0 for a new file. Refuses files that are not ours or that are newer than we are.
fn version(connection: &Connection, path: &Path) -> Result<usize, Error> {
    let number =
        |pragma: &str| connection.query_row(&format!("PRAGMA {pragma}"), [], |row| row.get::<_, i32>(0));
    let (application, version) = number("application_id")
        .and_then(|application| Ok((application, number("user_version")?)))
        .map_err(|e| explain(path, &e))?;
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(|e| explain(path, &e))?;
    if application != APPLICATION_ID && (application != 0 || tables > 0) {
        return Err(Error::invalid(
            "store.foreign",
            format!("{} is a database of another program; name another file", path.display()),
        ));
    }
    let version = usize::try_from(version).unwrap_or(usize::MAX);
    if version > MIGRATIONS.len() {
        return Err(Error::conflict(
            "store.newer",
            format!(
                "{} has format {version}, this program knows up to {}; use a newer everturn",
                path.display(),
                MIGRATIONS.len()
            ),
        ));
    }
    Ok(version)
}

fn migrate(connection: &mut Connection, path: &Path) -> Result<(), Error> {
    let from = version(connection, path)?;
    let wal: String = connection
        .query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))
        .map_err(|e| explain(path, &e))?;
    if wal != "wal" {
        return Err(Error::invalid(
            "store.no_wal",
            format!(
                "{} cannot keep a write-ahead log (journal mode is {wal}); put the store on a local disk",
                path.display()
            ),
        ));
    }
    connection.execute_batch("PRAGMA synchronous = FULL").map_err(|e| explain(path, &e))?;
    for (step, sql) in MIGRATIONS.iter().enumerate().skip(from) {
        let version = step + 1;
        let transaction = connection
            .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)
            .map_err(|e| explain(path, &e))?;
        transaction.execute_batch(sql).map_err(|e| explain(path, &e))?;
        if version == 3 && from > 0 {
            super::write::fill_version_3(&transaction).map_err(|failure| super::failed(path, failure))?;
        }
        transaction
            .execute_batch(&format!(
                "PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {version};"
            ))
            .and_then(|()| transaction.commit())
            .map_err(|e| explain(path, &e))?;
    }
    connection.execute_batch(KEYS).map_err(|e| explain(path, &e))
}

/// What SQLite's complaint means for the caller.
pub fn explain(path: &Path, error: &rusqlite::Error) -> Error {
    let file = path.display();
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => Error::busy(
            "store.full",
            format!(
                "the disk that holds {file} is full; nothing of this request was written; free some space and try again"
            ),
        ),
        Some(ErrorCode::ReadOnly) => read_only(path),
        Some(ErrorCode::NotADatabase) => Error::corrupt(
            "store.not_a_database",
            format!("{file} is not a database; restore it from a backup or name another file"),
        ),
        Some(ErrorCode::DatabaseCorrupt) => {
            Error::corrupt("store.corrupt", format!("{file} is damaged ({error}); restore it from a backup"))
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            Error::busy("store.busy", format!("{file} is in use by another process; try again"))
        }
        Some(ErrorCode::CannotOpen) => Error::invalid(
            "store.cannot_open",
            format!("cannot open {file} ({error}); check that its folder exists and may be written"),
        ),
        Some(ErrorCode::PermissionDenied) => {
            Error::invalid("store.denied", format!("no permission for {file}; check its owner and mode"))
        }
        Some(ErrorCode::SystemIoFailure)
            if error.sqlite_error().is_some_and(|e| e.extended_code == ffi::SQLITE_IOERR_WRITE) =>
        {
            let text = format!(
                "{file} or a file beside it cannot be written: its disk fails, or a limit on the size of files (`ulimit -f`) is reached; nothing of this request was written; check the disk and the limit"
            );
            Error::internal("store.io", text)
        }
        Some(ErrorCode::SystemIoFailure) => Error::internal(
            "store.io",
            format!(
                "the disk that holds {file} fails ({error}); nothing of this request was written; check the disk"
            ),
        ),
        Some(_) => Error::internal("store.sqlite", format!("{file}: {error}")),
        // Not SQLite complains but we, about a value or a row that cannot be there.
        None => match rows::malformed_row(error) {
            Some(text) => Error::corrupt(
                "store.row",
                format!("{file}: {text}; `everturn doctor --rebuild` makes it again from the log"),
            ),
            None => Error::corrupt(
                "store.corrupt",
                format!("{file} is damaged ({error}); restore it from a backup"),
            ),
        },
    }
}

/// Empties a write-ahead log that has grown past `limit`. Checkpoints that happen by themselves begin it anew only when
/// nobody reads; here the commit waits for those who do, while whoever comes later no longer needs the log. Gives the
/// next limit: higher, if a reader did not let go in time, so that it does not hold up every commit.
pub fn bound_wal(connection: &Connection, path: &Path, limit: u64) -> u64 {
    let bytes = wal_bytes(path).unwrap_or(0);
    if bytes < limit {
        return limit;
    }
    let emptied = connection.busy_timeout(WAL_READERS_PATIENCE).and_then(|()| {
        connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0))
    });
    // What was committed is safe whether this works or not.
    let restored = connection.busy_timeout(BUSY_TIMEOUT);
    if matches!((emptied, restored), (Ok(0), Ok(()))) { WAL_BYTES_MAX } else { bytes + WAL_BYTES_MAX / 4 }
}

/// Moves the whole write-ahead log into the database file and syncs it. False if readers did not let go in time; what was
/// committed is safe all the same.
pub fn checkpoint(connection: &Connection) -> rusqlite::Result<bool> {
    connection.busy_timeout(WAL_READERS_PATIENCE)?;
    let busy = connection.query_row("PRAGMA wal_checkpoint(FULL)", [], |row| row.get::<_, i64>(0));
    connection.busy_timeout(BUSY_TIMEOUT)?;
    Ok(busy? == 0)
}

/// The size of a store's write-ahead log; `None` without one.
pub fn wal_bytes(path: &Path) -> Option<u64> {
    std::fs::metadata(beside(path, "-wal")).ok().map(|file| file.len())
}

/// Whether a database file itself, without its write-ahead log, is marked as in use. What cannot be read is not: opening it
/// says more about that. SQLite looks at the file as it lies, so that no write-ahead log is made.
pub fn marked_in_use(path: &Path) -> bool {
    path.is_file() && open_as_it_lies(path).is_ok_and(|file| ownership::in_use(&file).unwrap_or(false))
}

/// Refuses a database file with several names. Each name would have a write-ahead log of its own, and whoever opens one
/// would not see what is in the other's.
#[cfg(unix)]
pub fn check_names(path: &Path) -> Result<(), Error> {
    use std::os::unix::fs::MetadataExt;
    match std::fs::metadata(path) {
        Ok(file) if file.is_file() && file.nlink() > 1 => Err(Error::invalid(
            "store.two_names",
            format!(
                "{} has {} names (hard links), and a writer would not see what was written under another; remove all names but one, and copy a store with `everturn backup`",
                path.display(),
                file.nlink()
            ),
        )),
        _ => Ok(()),
    }
}

#[cfg(not(unix))]
pub fn check_names(_: &Path) -> Result<(), Error> {
    Ok(())
}

/// Whether an open file was removed. Cheaper than looking at its path, which also tells where it was renamed.
#[cfg(unix)]
pub fn is_removed(file: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    file.metadata().is_ok_and(|file| file.nlink() == 0)
}

/// Whether a path leads to an open file.
#[cfg(unix)]
pub fn is_open_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let of = |file: std::fs::Metadata| (file.dev(), file.ino());
    file.metadata()
        .map(of)
        .ok()
        .is_some_and(|open| std::fs::symlink_metadata(path).map(of).is_ok_and(|at| at == open))
}

/// Elsewhere an open file can be neither removed nor replaced.
#[cfg(not(unix))]
pub fn is_removed(_: &File) -> bool {
    false
}

#[cfg(not(unix))]
pub fn is_open_at(_: &File, _: &Path) -> bool {
    true
}

/// What SQLite writes before the frames of a write-ahead log, and before the page of each.
const WAL_HEADER_BYTES: i64 = 32;
const WAL_FRAME_HEADER_BYTES: i64 = 24;

/// The files of a store that a process opened, by device and inode. Their paths may come to lead to others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Identity([(u64, u64); 2]);

/// Whether the write-ahead log is shorter than the frames that SQLite knows to be in it. Another process may have emptied it in good
/// order: then it knows of none.
pub fn wal_is_cut(connection: &Connection, path: &Path) -> rusqlite::Result<bool> {
    let frames: i64 = connection.query_row("PRAGMA wal_checkpoint(NOOP)", [], |row| row.get(1))?;
    let page: i64 = connection.query_row("PRAGMA page_size", [], |row| row.get(0))?;
    let bytes = if frames > 0 { WAL_HEADER_BYTES + frames * (WAL_FRAME_HEADER_BYTES + page) } else { 0 };
    Ok(wal_bytes(path).unwrap_or(0) < bytes as u64)
}

/// The error for a write-ahead log that is shorter than it was: what it held may be lost, and what follows would be too.
pub fn wal_was_cut(path: &Path) -> Error {
    let text = format!(
        "the write-ahead log of {} was cut since this process wrote to it, so nothing more is written; restart this process, which says what is missing",
        path.display()
    );
    Error::busy("store.cut", text)
}

impl Identity {
    /// The files that the path leads to now: the database and its write-ahead log.
    pub fn of(path: &Path) -> std::io::Result<Identity> {
        Identity::with_size(path).map(|(identity, _)| identity)
    }

    /// With the size of the write-ahead log.
    #[cfg(unix)]
    fn with_size(path: &Path) -> std::io::Result<(Identity, u64)> {
        use std::os::unix::fs::MetadataExt;
        let (database, wal) = (std::fs::metadata(path)?, std::fs::metadata(beside(path, "-wal"))?);
        Ok((Identity([(database.dev(), database.ino()), (wal.dev(), wal.ino())]), wal.len()))
    }

    /// Elsewhere an open file can be neither removed nor replaced.
    #[cfg(not(unix))]
    fn with_size(path: &Path) -> std::io::Result<(Identity, u64)> {
        Ok((Identity([(0, 0); 2]), wal_bytes(path).unwrap_or(0)))
    }

    /// Refuses to go on where the path leads to other files: what is written to the open ones may be lost with this process.
    /// Gives the size of the write-ahead log.
    pub fn check(self, path: &Path) -> Result<u64, Error> {
        match Identity::with_size(path) {
            Ok((now, wal)) if now == self => return Ok(wal),
            _ => {}
        }
        Err(Error::busy(
            "store.moved",
            format!(
                "{} or its write-ahead log was removed, renamed or replaced since this process opened it, so nothing was written; put the file back, or restart this process",
                path.display()
            ),
        ))
    }
}

/// The file that a path leads to, with symbolic links resolved, also if it is not there yet. SQLite resolves them as
/// well: a store's other files lie beside that one.
pub fn resolve(path: &Path) -> PathBuf {
    let mut file = path.to_path_buf();
    for _ in 0..SYMLINKS_MAX {
        let Ok(target) = std::fs::read_link(&file) else { break };
        file = match file.parent() {
            Some(folder) => folder.join(target),
            None => target,
        };
    }
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match (folder.canonicalize(), std::path::absolute(folder), file.file_name()) {
        // Nothing is a link: the path is named as it was given.
        (Ok(real), Ok(plain), _) if real == plain && file == path => file,
        (Ok(real), _, Some(name)) => real.join(name),
        _ => path.to_path_buf(),
    }
}

fn read_only(path: &Path) -> Error {
    Error::invalid(
        "store.read_only",
        format!("{} is read-only; make it writable, or only read from it", path.display()),
    )
}

/// The right to write to a store: one process at a time. Let go when dropped, also by a crash.
#[derive(Debug)]
pub struct WriteLock {
    file: File,
}

impl Drop for WriteLock {
    fn drop(&mut self) {
        // Closing the file is not enough: a child that was forked and has not yet become another program has it open too,
        // and would keep the lock for that moment. Where this fails, closing still lets go.
        let _ = self.file.unlock();
    }
}

impl WriteLock {
    /// Takes the right, waiting at most `patience` for another process to end.
    pub fn take(path: &Path, patience: Duration) -> Result<WriteLock, Error> {
        let lock = beside(path, ".lock");
        let cannot = |e: &std::io::Error| match e.kind() {
            std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => read_only(path),
            _ if lock.is_symlink() => Error::invalid(
                "store.cannot_open",
                format!("{} is a symbolic link, and is not written through; remove it", lock.display()),
            ),
            _ => Error::invalid(
                "store.cannot_open",
                format!("cannot open {}: {e}; check that its folder exists", lock.display()),
            ),
        };
        let mut file = open_beside(&lock).map_err(|e| cannot(&e))?;
        close_like(&file, path);
        let deadline = Instant::now() + patience;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(std::fs::TryLockError::WouldBlock) if Instant::now() < deadline => {
                    // Waiting for a process that tells nobody when it ends; the file lock has no timed wait.
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(std::fs::TryLockError::WouldBlock) => {
                    let mut owner = String::new();
                    let _ = file.read_to_string(&mut owner);
                    let owner = if owner.is_empty() {
                        "another process".to_string()
                    } else {
                        owner.trim().to_string()
                    };
                    return Err(Error::busy(
                        "store.owned",
                        format!(
                            "{} is open for writing by {owner}; wait until it ends, or, if it is a server, ask it with --url (reading is allowed)",
                            path.display()
                        ),
                    ));
                }
                Err(std::fs::TryLockError::Error(e)) => return Err(cannot(&e)),
            }
        }
        let program = std::env::args().next().unwrap_or_default();
        let program = Path::new(&program)
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        let owner = format!("process {} ({program})\n", std::process::id());
        // The note is for people who meet the lock; without it the lock still holds.
        let _ = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(owner.as_bytes()));
        Ok(WriteLock { file })
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that starts children and reopens its store was told now and then that it owns the store itself: a child
    /// between fork and exec shares every open file, and with it the lock. A second handle to the same file is like that.
    #[test]
    fn the_right_to_write_is_let_go_at_once_also_while_a_child_has_the_file_open() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("store.db");
        let lock = WriteLock::take(&path, Duration::ZERO).expect("nobody has it");
        let inherited = lock.file.try_clone().expect("a second handle");
        assert_eq!(WriteLock::take(&path, Duration::ZERO).expect_err("it is taken").code(), "store.owned");
        drop(lock);
        WriteLock::take(&path, Duration::ZERO).expect("it was let go");
        drop(inherited);
    }

    #[test]
    fn file_systems_of_other_machines_are_known_by_their_numbers() {
        assert_eq!(remote(0x6969), Some("NFS"));
        assert_eq!(remote(0xff53_4d42), Some("CIFS"));
        assert_eq!(remote(0xef53), None, "ext4 is here");
        warn_if_remote(Path::new("nowhere.db"));
    }
}
