//! A store that lost its write-ahead log, or the end of it, reports that when it is opened.

use everturn_core::Error;
use everturn_core::access::{AccessKey, KeyRole};
use everturn_core::chain::Hash;
use everturn_core::id::{Key, KeyId};
use everturn_store::conformance::*;
use everturn_store::sqlite::Sqlite;
use everturn_store::{AccessKeys, ConversationIndex, Log};
use rusqlite::Connection;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

fn open(path: &Path) -> Result<Sqlite, Error> {
    Sqlite::open(path, Duration::ZERO)
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    PathBuf::from(format!("{}{suffix}", path.display()))
}

/// The files of a store as `kill -9` leaves them: copied while it is open.
struct Killed {
    folder: TempDir,
    key: Key,
}

impl Killed {
    fn path(&self) -> PathBuf {
        self.folder.path().join("store.db")
    }

    fn wal(&self) -> PathBuf {
        beside(&self.path(), "-wal")
    }
}

/// Copies a store's files as they are at this moment.
fn copied(from: &Path, key: &Key) -> Killed {
    let folder = tempfile::tempdir().unwrap();
    for suffix in ["", "-wal", "-head"] {
        let _ = std::fs::copy(beside(from, suffix), beside(&folder.path().join("store.db"), suffix));
    }
    Killed { folder, key: key.clone() }
}

const TURNS: u64 = 45;

/// An open store with an empty conversation. The folder lives as long as the first part.
fn fresh() -> (TempDir, PathBuf, Maker, Sqlite, Key) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let (m, store) = (Maker::default(), open(&path).unwrap());
    let key = m.key();
    create(&store, &key, vec![m.created()]);
    (folder, path, m, store, key)
}

/// A store that was killed after 45 appends.
fn killed() -> Killed {
    let (_folder, path, m, store, key) = fresh();
    for n in 0..TURNS {
        append(&store, &key, vec![m.say(&format!("turn {n}"))]);
    }
    copied(&path, &key)
}

/// Both ways to open it give this error, however often it is tried.
fn refused_with(path: &Path, code: &str) -> Error {
    for _ in 0..2 {
        assert_eq!(Sqlite::open_read_only(path).err().expect("reading is refused").code(), code);
        assert_eq!(open(path).err().expect("writing is refused").code(), code);
    }
    open(path).err().unwrap()
}

#[test]
fn a_killed_store_is_whole() {
    let k = killed();
    assert_eq!(verify(&Sqlite::open_read_only(&k.path()).unwrap(), &k.key).events, TURNS + 1);
    let store = open(&k.path()).unwrap();
    assert_eq!(verify(&store, &k.key).events, TURNS + 1);
    append(&store, &k.key, vec![Maker::default().draft("note", "{}")]);
}

/// Regression: 45 of 498 acknowledged turns were gone, and `verify` reported no problem.
#[test]
fn a_lost_write_ahead_log_is_an_error() {
    let k = killed();
    std::fs::remove_file(k.wal()).unwrap();
    let error = refused_with(&k.path(), "store.wal_lost");
    assert!(matches!(error, Error::Corrupt(_)));
    assert!(error.text().contains("store.db-wal") && error.text().contains("--accept-loss"), "{error}");
    assert!(error.text().contains(&format!("0 events, but {} events were written", TURNS + 1)), "{error}");
    assert!(!k.wal().exists(), "trying to open it leaves the evidence as it is");
    let store = Sqlite::open_accepting_loss(&k.path(), Duration::ZERO).unwrap();
    drop(store);
    open(&k.path()).unwrap();
}

/// Regression: `sqlite3` without `-readonly` moves the log into the file as it closes it, and the store was refused though
/// nothing was missing.
#[test]
fn a_killed_store_that_sqlite3_has_closed_is_whole() {
    let k = killed();
    let head = std::fs::read(beside(&k.path(), "-head")).unwrap();
    let close =
        || drop(Command::new("sqlite3").arg(k.path()).arg("select count(*) from turns").output().unwrap());
    close();
    assert!(!k.wal().exists());
    // Without the record, nothing tells whether the last turns are there.
    std::fs::remove_file(beside(&k.path(), "-head")).unwrap();
    refused_with(&k.path(), "store.wal_lost");
    std::fs::write(beside(&k.path(), "-head"), &head).unwrap();
    // A file with pages of two times is not taken for whole.
    let whole = std::fs::read(k.path()).unwrap();
    let mut torn = whole.clone();
    torn[4096..8192].fill(0);
    std::fs::write(k.path(), &torn).unwrap();
    assert!(Sqlite::open_read_only(&k.path()).is_err());
    std::fs::write(k.path(), &whole).unwrap();
    assert_eq!(verify(&Sqlite::open_read_only(&k.path()).unwrap(), &k.key).events, TURNS + 1);
    let store = open(&k.path()).unwrap();
    append(&store, &k.key, vec![Maker::default().draft("note", "{}")]);
    assert_eq!(verify(&store, &k.key).events, TURNS + 2);
}

#[test]
fn a_copy_of_the_database_file_alone_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let store = open(&path).unwrap();
    let copy = folder.path().join("copy.db");
    std::fs::copy(&path, &copy).unwrap();
    refused_with(&copy, "store.wal_lost");
    drop(store);
    // After a clean end the file is the whole store.
    std::fs::copy(&path, &copy).unwrap();
    open(&copy).unwrap();
}

#[test]
fn a_cut_an_emptied_and_an_older_write_ahead_log_are_noticed() {
    let k = killed();
    let whole = std::fs::read(k.wal()).unwrap();
    for length in [0, 32, whole.len() / 2, whole.len() - 1] {
        std::fs::write(k.wal(), &whole[..length]).unwrap();
        let error = refused_with(&k.path(), "store.cut");
        assert!(error.text().contains(&format!("{} events", TURNS + 1)), "{error}");
        assert_eq!(std::fs::read(k.wal()).unwrap().len(), length, "the evidence stays");
    }
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    std::fs::write(k.wal(), &damaged).unwrap();
    refused_with(&k.path(), "store.cut");
    std::fs::write(k.wal(), &whole).unwrap();
    assert_eq!(verify(&open(&k.path()).unwrap(), &k.key).events, TURNS + 1);
}

#[test]
fn an_older_copy_of_the_database_is_noticed() {
    let (_folder, path, m, store, key) = fresh();
    drop(store);
    let older = std::fs::read(&path).unwrap();
    append(&open(&path).unwrap(), &key, vec![m.say("later")]);
    std::fs::write(&path, older).unwrap();
    refused_with(&path, "store.cut");
    drop(Sqlite::open_accepting_loss(&path, Duration::ZERO).unwrap());
    append(&open(&path).unwrap(), &key, vec![m.say("instead")]);
}

/// A deletion and a revoked key add no event; losing them would restore what was removed.
#[test]
fn a_lost_deletion_and_a_lost_revocation_are_noticed() {
    let (_folder, path, m, store, key) = fresh();
    let access = AccessKey {
        id: KeyId::from_bytes([1; 16]),
        tenant: key.tenant.clone(),
        role: KeyRole::Writer,
        actors: Vec::new(),
        label: None,
        created: m.now(),
        expires: None,
        revoked: None,
        last_used: None,
        secret: Hash::of(b"secret"),
    };
    store.put_key(&access).unwrap();
    let before = copied(&path, &key);
    let replay = |store: &Sqlite| {
        let after = copied(&path, &key);
        drop(store.conversation(&key));
        std::fs::copy(before.wal(), after.wal()).unwrap();
        std::fs::copy(before.path(), after.path()).unwrap();
        assert_eq!(open(&after.path()).err().unwrap().code(), "store.cut");
    };
    store.revoke_key(&access.tenant, access.id, m.now()).unwrap();
    replay(&store);
    done(&store, m.delete(&key));
    replay(&store);
}

/// Text of an open turn is acknowledged before it is an event: an older write-ahead log lost it unnoticed.
#[test]
fn lost_text_of_an_open_turn_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let (m, store) = (Maker::default(), open(&path).unwrap());
    let key = m.key();
    let open_turn = m.open();
    let turn = turn_of(&open_turn);
    create(&store, &key, vec![m.created(), open_turn]);
    done(&store, chunk(&key, turn, 0, "half a "));
    let before = copied(&path, &key);
    assert_eq!(open(&before.path()).unwrap().open_text(&key, turn).unwrap(), "half a ");
    let before = copied(&path, &key);
    done(&store, chunk(&key, turn, 7, "sentence"));
    let after = copied(&path, &key);
    std::fs::copy(before.wal(), after.wal()).unwrap();
    let error = refused_with(&after.path(), "store.cut");
    assert!(
        error.text().contains("the last 1 deletions, changes of keys or pieces of open turns"),
        "{error}"
    );
}

/// Regression: a crash after the record was removed left a store that was refused, although nothing else was
/// lost.
#[cfg(unix)]
#[test]
fn a_record_that_is_removed_while_somebody_writes_is_made_again() {
    let (_folder, path, m, store, key) = fresh();
    let head = beside(&path, "-head");
    let whole = |events: u64| {
        let crashed = copied(&path, &key);
        assert_eq!(verify(&open(&crashed.path()).unwrap(), &key).events, events);
    };
    std::fs::remove_file(&head).unwrap();
    append(&store, &key, vec![m.say("at the next commit")]);
    whole(2);
    let aside = beside(&path, "-aside");
    std::fs::rename(&head, &aside).unwrap();
    store.ready().unwrap();
    whole(2);
    // The new file is the one that is written from now on.
    let record = std::fs::read(&head).unwrap();
    append(&store, &key, vec![m.say("later")]);
    assert_ne!(std::fs::read(&head).unwrap(), record);
    std::fs::rename(&head, &aside).unwrap();
    drop(store);
    assert_eq!(verify(&open(&path).unwrap(), &key).events, 3, "a clean end is one without it too");
}

/// Regression: opening the store wrote the process id into the target of the link.
#[cfg(unix)]
#[test]
fn symbolic_links_beside_a_store_are_not_written_through() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let victim = folder.path().join("victim");
    std::fs::write(&victim, "precious").unwrap();
    for suffix in [".lock", "-head"] {
        drop(open(&path).unwrap());
        let link = beside(&path, suffix);
        std::fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        let error = open(&path).err().unwrap();
        assert_eq!(error.code(), "store.cannot_open", "{error}");
        assert!(
            error.text().contains(&format!("store.db{suffix}")) && error.text().contains("remove it"),
            "{error}"
        );
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious", "{suffix}");
        std::fs::remove_file(&link).unwrap();
    }
    open(&path).unwrap();
}

/// Regression: with the record gone, an emptied and a half-truncated write-ahead log looked complete.
#[test]
fn a_store_in_use_without_its_record_of_the_head_is_refused() {
    let k = killed();
    let head = beside(&k.path(), "-head");
    let (record, wal) = (std::fs::read(&head).unwrap(), std::fs::read(k.wal()).unwrap());
    for length in [0, 32, wal.len() / 2, wal.len()] {
        std::fs::write(k.wal(), &wal[..length]).unwrap();
        let _ = std::fs::remove_file(&head);
        let error = refused_with(&k.path(), "store.head_lost");
        assert!(matches!(error, Error::Corrupt(_)));
        assert!(error.text().contains("store.db-head") && error.text().contains("--accept-loss"), "{error}");
        std::fs::write(&head, &record[..20]).unwrap();
        refused_with(&k.path(), "store.head_lost");
    }
    // The loss can be accepted explicitly.
    drop(Sqlite::open_accepting_loss(&k.path(), Duration::ZERO).unwrap());
    let store = open(&k.path()).unwrap();
    assert_eq!(verify(&store, &k.key).events, TURNS + 1);
    append(&store, &k.key, vec![Maker::default().draft("note", "{}")]);
}

#[test]
fn an_older_record_of_the_head_is_no_error_and_after_a_clean_end_none_is_needed() {
    let k = killed();
    let head = beside(&k.path(), "-head");
    let record = std::fs::read(&head).unwrap();
    let store = open(&k.path()).unwrap();
    append(&store, &k.key, vec![Maker::default().draft("note", "{}")]);
    // As after a power loss, which may take what was not synced.
    let crashed = copied(&k.path(), &k.key);
    std::fs::write(beside(&crashed.path(), "-head"), &record).unwrap();
    assert_eq!(verify(&open(&crashed.path()).unwrap(), &k.key).events, TURNS + 2);
    drop(store);
    std::fs::remove_file(&head).unwrap();
    assert_eq!(verify(&open(&k.path()).unwrap(), &k.key).events, TURNS + 2);
    assert!(head.exists(), "the next writer makes it again");
}

/// The record is created before the mark is set: a process that is killed in between leaves a store that opens.
#[test]
fn a_record_without_a_mark_is_no_error() {
    let k = killed();
    drop(open(&k.path()).unwrap());
    let db = Connection::open(k.path()).unwrap();
    let in_use: i64 = db.query_row("SELECT in_use FROM ownership", [], |row| row.get(0)).unwrap();
    assert_eq!(in_use, 0);
    drop(db);
    assert!(beside(&k.path(), "-head").exists());
    open(&k.path()).unwrap();
}

/// The row with the writer and the mark may be damaged like any other.
#[test]
fn a_lost_or_wrong_row_of_the_writer_is_made_again() {
    for sql in [
        "DELETE FROM ownership",
        "UPDATE ownership SET epoch = 9223372036854775807",
        "UPDATE ownership SET epoch = -1",
        "UPDATE ownership SET epoch = 'x', in_use = 'x', changes = 'x'",
        "UPDATE ownership SET changes = 9223372036854775807",
        "INSERT INTO ownership SELECT * FROM ownership",
    ] {
        let k = killed();
        let m = Maker::default();
        // Its ids must differ from those of the first.
        for _ in 0..1000 {
            m.now();
        }
        // One that is counted was made before.
        let other = m.key();
        let store = open(&k.path()).unwrap();
        create(&store, &other, vec![m.created()]);
        done(&store, m.delete(&other));
        drop(store);
        let db = Connection::open(k.path()).unwrap();
        db.execute_batch(sql).unwrap();
        drop(db);
        assert_eq!(verify(&Sqlite::open_read_only(&k.path()).unwrap(), &k.key).events, TURNS + 1, "{sql}");
        for _ in 0..2 {
            let store = open(&k.path()).unwrap();
            append(&store, &k.key, vec![m.draft("note", "{}")]);
            let other = m.key();
            create(&store, &other, vec![m.created()]);
            done(&store, m.delete(&other));
            store.ready().unwrap();
        }
    }
}

/// A database that was removed without its side files makes room for a new store.
#[test]
fn a_new_store_in_an_old_ones_place_begins_anew() {
    let k = killed();
    std::fs::remove_file(k.path()).unwrap();
    std::fs::remove_file(k.wal()).unwrap();
    drop(open(&k.path()).unwrap());
    open(&k.path()).unwrap();
}

#[test]
fn a_clean_end_leaves_one_file_that_needs_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let (m, store) = (Maker::default(), open(&path).unwrap());
    let key = m.key();
    create(&store, &key, vec![m.created(), m.say("hello")]);
    let in_use = |path: &Path| -> i64 {
        let db = Connection::open(path).unwrap();
        db.query_row("SELECT in_use FROM ownership", [], |row| row.get(0)).unwrap()
    };
    assert_eq!(in_use(&path), 1);
    // The same with a reader still open.
    let reader = Sqlite::open_read_only(&path).unwrap();
    drop(store);
    let copy = folder.path().join("copy.db");
    std::fs::copy(&path, &copy).unwrap();
    assert_eq!(in_use(&copy), 0);
    assert_eq!(verify(&open(&copy).unwrap(), &key).events, 2);
    assert_eq!(verify(&reader, &key).events, 2);
}

/// Regression: they name the writing process and the last event, and were readable by everyone.
#[cfg(unix)]
#[test]
fn files_beside_the_database_are_as_closed_as_it_is() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    drop(open(&path).unwrap());
    for closed in [0o600, 0o660] {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(closed)).unwrap();
        let store = open(&path).unwrap();
        for suffix in ["-head", ".lock", "-wal"] {
            assert_eq!(mode(&beside(&path, suffix)), closed, "{suffix}");
        }
        drop(store);
        std::fs::remove_file(beside(&path, ".lock")).unwrap();
        std::fs::remove_file(beside(&path, "-head")).unwrap();
    }
}

/// A clean end would copy the rest of the log into the database: zeros over its first page. Once more was
/// written after the cut, it looked complete.
#[test]
fn a_write_ahead_log_that_was_cut_in_place_is_not_written_to_nor_copied_into_the_database() {
    for (left, later) in [(0, false), (0, true), (1, true)] {
        let (_folder, path, m, store, key) = fresh();
        for n in 0..20 {
            append(&store, &key, vec![m.say(&format!("turn {n}"))]);
        }
        let before = std::fs::read(&path).unwrap();
        let wal = std::fs::File::options().write(true).open(beside(&path, "-wal")).unwrap();
        wal.set_len(wal.metadata().unwrap().len() * left / 2).unwrap();
        for n in 0..40 * usize::from(later) {
            refused(&store, addition(&key, vec![m.say(&format!("later {n}"))]), "store.cut");
        }
        drop(store);
        assert!(std::fs::read(&path).unwrap() == before, "the database is as it was");
        assert!(matches!(open(&path), Err(Error::Corrupt(_))));
    }
}

/// Regression: a process that was killed between an erasure and the end of its scrubbing left the text in the
/// write-ahead log for good.
#[test]
fn an_erasure_that_was_cut_off_is_finished_by_the_next_start() {
    let (_folder, path, m, store, key) = fresh();
    let canary = m.say("canary");
    let turn = turn_of(&canary);
    append(&store, &key, vec![canary]);
    let holds = |path: &Path, word: &str| {
        std::fs::read(path).is_ok_and(|bytes| bytes.windows(word.len()).any(|part| part == word.as_bytes()))
    };
    // As long as there is a reader, the log cannot be emptied.
    let reader = Connection::open(&path).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM events").unwrap();
    let killed = std::thread::scope(|threads| {
        let erasure = m.erase(&key, &[turn]);
        let erasing = threads.spawn(|| store.commit(vec![erasure]));
        while !holds(&beside(&path, "-wal"), "turn.erased") {
            std::thread::yield_now();
        }
        let killed = copied(&path, &key);
        reader.execute_batch("COMMIT").unwrap();
        erasing.join().unwrap().remove(0).unwrap();
        killed
    });
    assert!(holds(&killed.wal(), "canary"), "it was killed in time");
    let again = open(&killed.path()).unwrap();
    assert!(verify(&again, &key).erased > 0);
    for suffix in ["", "-wal"] {
        assert!(!holds(&beside(&killed.path(), suffix), "canary"), "{suffix}");
    }
}
