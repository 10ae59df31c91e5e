//! The one door to a database file: every connection is opened, set up and checked here.

use super::{library, ownership, rows, wal};
use everturn_core::Error;
use everturn_core::error::code;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, ffi};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Marks a file as ours: "Evts". Frozen.
const APPLICATION_ID: i32 = 0x4576_7473;
/// The mark of builds that were never released, whose formats cannot be told apart from ours by their numbers: "Evtn".
const UNRELEASED_APPLICATION_ID: i32 = 0x4576_746e;

/// Format of the file: of its tables and of everything in them.
const FORMAT: i32 = 1;

/// Maximum time that a statement waits for another process that holds the file for a moment (a checkpoint, a
/// first open).
pub const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Page cache of a connection. SQLite bounds all of them together only if it counts its memory, which all threads would wait for
/// (see `library`); so it is this much for each, and a store keeps at most `READERS_IDLE_MAX` of them beside its writer. What is
/// not in it is in the cache of the system.
const CACHE_KIB: u32 = 8 * 1024;

/// Maximum number of symbolic links to follow; more of them are a cycle.
const SYMLINKS_MAX: usize = 40;

/// The tables.
const SCHEMA: &str = include_str!("schema.sql");

/// Views for people.
const VIEWS: &str = include_str!("views.sql");

/// Network file systems, by their magic number on Linux. Their locks and syncs cannot be relied on.
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

/// Warns if a store is on a network file system.
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

/// Opens for reading and writing. Creates the file and its tables if they do not exist.
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
    let opened = match library::layer_for_writing() {
        Some(layer) => Connection::open_with_flags_and_vfs(path, OpenFlags::default(), layer),
        None => Connection::open(path),
    };
    let mut connection = opened.map_err(|e| explain(path, &e))?;
    set_up(&connection, path)?;
    let writable =
        connection.is_readonly("main").map(|read_only| !read_only).map_err(|e| explain(path, &e))?;
    if !writable {
        return Err(read_only(path));
    }
    prepare(&mut connection, path)?;
    Ok(connection)
}

/// Refuses a path without a file.
pub fn check_there(path: &Path) -> Result<(), Error> {
    if path.is_file() {
        return Ok(());
    }
    Err(Error::not_found(
        "store.absent",
        format!(
            "no store at {}; `everturn import` creates one from the sessions of agents, `everturn new` an empty conversation, or name another with --store",
            path.display()
        ),
    ))
}

/// Opens for reading only. The file must exist.
pub fn open_for_reading(path: &Path) -> Result<Connection, Error> {
    check_there(path)?;
    let connection = match open_beside_a_writer(path) {
        // In a read-only folder, SQLite cannot share a write-ahead log. If there is none, nobody is writing,
        // and the file can be read as immutable.
        Err(error)
            if matches!(error.code(), "store.read_only" | "store.cannot_open")
                && wal::bytes(path).is_none() =>
        {
            open_as_it_lies(path)?
        }
        opened => opened?,
    };
    if !has_tables(&connection, path)? {
        let text = format!("{} is empty; any command that writes makes a store of it", path.display());
        return Err(Error::not_found(code::STORE_EMPTY, text));
    }
    Ok(connection)
}

fn open_beside_a_writer(path: &Path) -> Result<Connection, Error> {
    library::set_up();
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(|e| explain(path, &e))?;
    set_up(&connection, path)?;
    // SQLite only reads the file at the first query.
    has_tables(&connection, path)?;
    Ok(connection)
}

pub fn open_as_it_lies(path: &Path) -> Result<Connection, Error> {
    library::set_up();
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    let escaped = path.display().to_string().replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    let connection = Connection::open_with_flags(format!("file:{escaped}?immutable=1"), flags)
        .map_err(|e| explain(path, &e))?;
    set_up(&connection, path)?;
    Ok(connection)
}

/// The folder with the indexes of a store.
pub fn index_folder(path: &Path) -> PathBuf {
    beside(path, "-index")
}

/// Path of the record of a store's head.
pub fn head_path(path: &Path) -> PathBuf {
    beside(path, "-head")
}

/// Gives a file beside a database the mode of the database, as SQLite does with its own files. Read permission
/// on a folder includes search permission.
#[cfg(unix)]
pub fn close_like(file: &File, database: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let Ok(like) = std::fs::metadata(database) else { return };
    let mut mode = like.permissions().mode() | 0o600;
    if let Ok(folder) = file.metadata()
        && folder.is_dir()
    {
        // Files in it belong to the group that the parent folder determines.
        mode |= (mode & 0o444) >> 2 | folder.permissions().mode() & 0o2000;
    }
    if let Err(error) = file.set_permissions(PermissionsExt::from_mode(mode)) {
        // Only the owner can change it.
        tracing::debug!(%error, "a file beside {} keeps its mode", database.display());
    }
}

#[cfg(not(unix))]
pub fn close_like(_: &File, _: &Path) {}

/// Opens a file beside the database, and creates it if needed. A symbolic link in its place is refused: its
/// target would be overwritten.
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

/// On other systems a folder cannot be opened, and its entries are durable with their files.
#[cfg(not(unix))]
pub fn sync_folder(_: &Path) -> std::io::Result<()> {
    Ok(())
}

pub fn set_up(connection: &Connection, path: &Path) -> Result<(), Error> {
    let pragmas = format!(
        "PRAGMA foreign_keys = ON;
         PRAGMA secure_delete = ON;
         PRAGMA cache_size = -{CACHE_KIB};
         PRAGMA temp_store = MEMORY;
         PRAGMA wal_autocheckpoint = {};
         PRAGMA journal_size_limit = {};",
        wal::CHECKPOINT_PAGES,
        wal::BYTES_MAX
    );
    // On macOS, fsync leaves the bytes in the cache of the disk, from where a power failure loses them.
    #[cfg(target_vendor = "apple")]
    let pragmas = pragmas + "PRAGMA fullfsync = ON; PRAGMA checkpoint_fullfsync = ON;";
    connection.busy_timeout(BUSY_TIMEOUT).map_err(|e| explain(path, &e))?;
    connection.set_prepared_statement_cache_capacity(64);
    // Without this SQLite plans a query again whenever a parameter changes, which costs more than the query.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(|e| explain(path, &e))?;
    connection.execute_batch(&pragmas).map_err(|e| explain(path, &e))
}

/// Whether the file has our tables; a new one has none. Refuses files that are not ours or of another format.
fn has_tables(connection: &Connection, path: &Path) -> Result<bool, Error> {
    let number =
        |pragma: &str| connection.query_row(&format!("PRAGMA {pragma}"), [], |row| row.get::<_, i32>(0));
    let (application, format) = number("application_id")
        .and_then(|application| Ok((application, number("user_version")?)))
        .map_err(|e| explain(path, &e))?;
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(|e| explain(path, &e))?;
    let file = path.display();
    match application {
        0 if tables == 0 => Ok(false),
        APPLICATION_ID if format == FORMAT => Ok(true),
        APPLICATION_ID => Err(crate::newer(&file, format, FORMAT)),
        UNRELEASED_APPLICATION_ID => Err(crate::unreleased(&file)),
        _ => Err(Error::invalid(
            "store.foreign",
            format!("{file} is a database of another program; name another file"),
        )),
    }
}

/// Makes the tables in a new file.
fn prepare(connection: &mut Connection, path: &Path) -> Result<(), Error> {
    let has_tables = has_tables(connection, path)?;
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
    if has_tables {
        return Ok(());
    }
    let transaction = connection
        .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)
        .map_err(|e| explain(path, &e))?;
    // Another process may have made them meanwhile.
    if self::has_tables(&transaction, path)? {
        return Ok(());
    }
    let views = ["id", "f.id", "f.turn"]
        .into_iter()
        .fold(VIEWS.to_string(), |sql, column| sql.replace(&format!("@{column}@"), &text_of_id(column)));
    let marks = format!("PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {FORMAT};");
    [SCHEMA, &views, &marks]
        .into_iter()
        .try_for_each(|sql| transaction.execute_batch(sql))
        .and_then(|()| transaction.commit())
        .map_err(|e| explain(path, &e))
}

/// The text of an id of sixteen bytes, as an expression of plain SQL: 26 characters of five bits each.
fn text_of_id(column: &str) -> String {
    let digit = |at: usize| format!("instr('123456789ABCDEF', substr(hex({column}), {}, 1))", at + 1);
    let character = |bits: String| format!("substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 1 + ({bits}), 1)");
    // Of 130 bits the first two are zero, so that character `n` begins at bit 5n - 2.
    let first = character(format!("{} >> 1", digit(0)));
    let others = (1..26).map(|n| 5 * n - 2).map(|bit| {
        let (at, shift) = (bit / 4, 3 - bit % 4);
        character(format!("(({} << 4) + {}) >> {shift} & 31", digit(at), digit(at + 1)))
    });
    std::iter::once(first).chain(others).collect::<Vec<_>>().join(" || ")
}

/// The error for the caller that corresponds to one of SQLite.
pub fn explain(path: &Path, error: &rusqlite::Error) -> Error {
    let file = path.display();
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => Error::busy(
            code::STORE_FULL,
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
            Error::internal(code::STORE_IO, text)
        }
        Some(ErrorCode::SystemIoFailure) => Error::internal(
            code::STORE_IO,
            format!(
                "the disk that holds {file} fails ({error}); nothing of this request was written; check the disk"
            ),
        ),
        Some(_) => Error::internal("store.sqlite", format!("{file}: {error}")),
        // Not an error of SQLite but ours, about an invalid value or row.
        None => match rows::malformed_row(error) {
            Some(text) => Error::corrupt(
                code::STORE_ROW,
                format!("{file}: {text}; `everturn doctor --rebuild` makes it again from the log"),
            ),
            None => Error::corrupt(
                "store.corrupt",
                format!("{file} is damaged ({error}); restore it from a backup"),
            ),
        },
    }
}

/// Whether a database file itself, without its write-ahead log, is marked as in use. False for an unreadable
/// file: opening it gives a better error. SQLite reads the file as immutable, so that no write-ahead log is
/// created.
pub fn marked_in_use(path: &Path) -> bool {
    path.is_file() && open_as_it_lies(path).is_ok_and(|file| ownership::in_use(&file).unwrap_or(false))
}

/// Refuses a database file with several names. Each name would have a write-ahead log of its own, invisible to
/// those who open another name.
#[cfg(unix)]
pub fn check_names(path: &Path) -> Result<(), Error> {
    use std::os::unix::fs::MetadataExt;
    match std::fs::metadata(path) {
        Ok(file) if file.is_file() && file.nlink() > 1 => Err(Error::invalid(
            "store.two_names",
            format!(
                "{} has {} names (hard links), and a writer would miss writes under another name; remove all names but one, and copy a store with `everturn backup`",
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

/// Whether an open file was removed. Cheaper than examining its path, which also detects a rename.
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

/// On other systems an open file can be neither removed nor replaced.
#[cfg(not(unix))]
pub fn is_removed(_: &File) -> bool {
    false
}

#[cfg(not(unix))]
pub fn is_open_at(_: &File, _: &Path) -> bool {
    true
}

/// Identity of the open files of a store, by device and inode. Their paths may later lead to other files.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Identity([(u64, u64); 2]);

impl Identity {
    /// The files that the path leads to now: the database and its write-ahead log.
    pub fn of(path: &Path) -> std::io::Result<Identity> {
        Identity::with_size(path).map(|(identity, _)| identity)
    }

    /// The same, with the size of the write-ahead log.
    #[cfg(unix)]
    fn with_size(path: &Path) -> std::io::Result<(Identity, u64)> {
        use std::os::unix::fs::MetadataExt;
        let (database, wal) = (std::fs::metadata(path)?, std::fs::metadata(beside(path, "-wal"))?);
        Ok((Identity([(database.dev(), database.ino()), (wal.dev(), wal.ino())]), wal.len()))
    }

    /// On other systems an open file can be neither removed nor replaced.
    #[cfg(not(unix))]
    fn with_size(path: &Path) -> std::io::Result<(Identity, u64)> {
        Ok((Identity([(0, 0); 2]), wal::bytes(path).unwrap_or(0)))
    }

    /// Returns an error if the path leads to other files: what is written to the open ones may be lost with
    /// this process. Returns the size of the write-ahead log.
    pub fn check(self, path: &Path) -> Result<u64, Error> {
        if let Ok((now, wal)) = Identity::with_size(path)
            && now == self
        {
            return Ok(wal);
        }
        Err(Error::busy(
            code::STORE_MOVED,
            format!(
                "{} or its write-ahead log was removed, renamed or replaced since this process opened it, so nothing was written; put the file back, or restart this process",
                path.display()
            ),
        ))
    }
}

/// The file that a path leads to, with symbolic links resolved, even if it does not exist yet. SQLite resolves
/// them as well: a store's other files are beside that one.
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
        // There is no link: the path is used as given.
        (Ok(real), Ok(plain), _) if real == plain && file == path => file,
        (Ok(real), _, Some(name)) => real.join(name),
        _ => path.to_path_buf(),
    }
}

pub fn read_only(path: &Path) -> Error {
    Error::invalid(
        "store.read_only",
        format!("{} is read-only; make it writable, or only read from it", path.display()),
    )
}

pub fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a recreated folder lost the group of its parent folder, and others of the group their
    /// access.
    #[cfg(unix)]
    #[test]
    fn a_folder_beside_a_database_keeps_its_group() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        let (database, index) = (folder.path().join("store.db"), folder.path().join("store.db-index"));
        std::fs::write(&database, "").expect("a file");
        std::fs::create_dir(&index).expect("a folder");
        let set = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode));
        set(&database, 0o640).and_then(|()| set(&index, 0o2700)).expect("modes");
        close_like(&File::open(&index).expect("it is there"), &database);
        let mode = index.metadata().expect("it is there").permissions().mode();
        assert_eq!(mode & 0o7777, 0o2750);
    }

    #[test]
    fn file_systems_of_other_machines_are_known_by_their_numbers() {
        assert_eq!(remote(0x6969), Some("NFS"));
        assert_eq!(remote(0xff53_4d42), Some("CIFS"));
        assert_eq!(remote(0xef53), None, "ext4 is here");
        warn_if_remote(Path::new("nowhere.db"));
    }
}
