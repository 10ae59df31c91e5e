//! The file itself: its content, what is refused, and the right to write.

use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::conversation::Settings;
use everturn_core::id::{ConversationId, Key};
use everturn_core::time::Timestamp;
use everturn_store::conformance::*;
use everturn_store::sqlite::Sqlite;
use everturn_store::{
    AssetIndex, CheckedIndex, CheckedLog, ConversationIndex, ConversationQuery, Log, Maintenance, TurnIndex,
    TurnQuery,
};
use rusqlite::Connection;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

fn open(path: &Path) -> Result<Sqlite, Error> {
    Sqlite::open(path, Duration::ZERO)
}

/// A closed store with some conversations of some length.
fn written() -> (TempDir, PathBuf, Vec<Key>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let store = open(&path).unwrap();
    let m = Maker::default();
    let keys: Vec<Key> = (0..20).map(|_| m.key()).collect();
    for key in &keys {
        create(&store, key, vec![m.created()]);
        append(&store, key, (0..20).map(|n| m.say(&"word ".repeat(n * 10))).collect());
    }
    drop(store);
    (folder, path, keys)
}

/// Reads everything that can be read; errors are allowed, panics are not.
fn read_all(store: &Sqlite, keys: &[Key]) -> Vec<Error> {
    let mut errors = Vec::new();
    let all = TurnQuery { limit: 1000, whole_log: true, ..TurnQuery::default() };
    for key in keys {
        errors.extend(store.conversation(key).err());
        errors.extend(store.events(key, 0, 1000).err());
        errors.extend(store.turns(key, &all).err());
        errors.extend(store.assets(key).err());
    }
    let listing = ConversationQuery { limit: 1000, ..ConversationQuery::default() };
    errors.extend(store.conversations(&tenant("acme"), &listing).err());
    errors.extend(store.open_turns().err());
    errors.extend(store.tombstones(&tenant("acme")).err());
    errors
}

#[test]
fn tables_and_views_have_the_names_that_people_know() {
    let (_folder, path, _) = written();
    let db = Connection::open(&path).unwrap();
    for table in ["conversations", "turns", "events", "assets", "conversation_facts"] {
        let found: i64 = db
            .query_row(
                "SELECT count(*) FROM sqlite_schema WHERE type IN ('table', 'view') AND name = ?",
                [table],
                |row| row.get(0),
            )
            .unwrap();
        assert_eq!(found, 1, "{table}");
    }
    let number =
        |pragma: &str| -> i64 { db.query_row(&format!("PRAGMA {pragma}"), [], |row| row.get(0)).unwrap() };
    assert_eq!(number("application_id"), 0x4576_7473);
    assert_eq!(number("user_version"), 1);
    let mode: String = db.query_row("PRAGMA journal_mode", [], |row| row.get(0)).unwrap();
    assert_eq!(mode, "wal");
}

#[test]
fn streams_left_open_are_found_without_reading_every_turn() {
    let (_folder, path, _) = written();
    let db = Connection::open(&path).unwrap();
    // The statement as the store runs it, taken from its source, so that the two cannot drift apart.
    let source = include_str!("../../src/sqlite/index.rs");
    let start = source.find("SELECT c.tenant, c.id, t.id FROM turn_rows t").unwrap();
    let sql = &source[start..start + source[start..].find('"').unwrap()];
    let plan: Vec<String> = db
        .prepare(&format!("EXPLAIN QUERY PLAN {sql}"))
        .unwrap()
        .query_map([], |row| row.get(3))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    assert!(plan.iter().any(|line| line.contains("turns_open")), "{plan:?}");
    assert!(plan.iter().all(|line| !line.contains("SCAN c")), "{plan:?}");
}

#[test]
fn rebuilding_brings_back_rows_that_were_lost() {
    let (_folder, path, keys) = written();
    let m = Maker::default();
    let store = open(&path).unwrap();
    let child = Key { id: ConversationId::from_bytes([7; 16]), ..keys[0].clone() };
    done(&store, m.fork(&child, &keys[0], 5));
    let settings = Settings { title: Some(Some("Fork".into())), ttl: Some(Some(5)), ..Settings::default() };
    let open_turn = m.open();
    let inherited = history(&store, &child);
    append(&store, &child, vec![m.update(settings), m.asset("asset_a", b"a"), m.show("asset_a"), open_turn]);
    append(&store, &child, vec![m.supersede(inherited[0].id, inherited[1].id)]);
    let answers = |store: &Sqlite| {
        let both = [&keys[0], &child].map(|key| {
            let conversation = store.conversation(key).unwrap();
            (conversation, log(store, key), history(store, key), store.assets(key).unwrap())
        });
        let expired = store.expired(Timestamp(i64::MAX), 99).unwrap();
        (
            both,
            expired,
            store.open_turns().unwrap(),
            store.asset_in_use(&child.tenant, Hash::of(b"a")).unwrap(),
        )
    };
    let before = answers(&store);
    // Everything in the file that is derived from the log.
    Connection::open(&path)
        .unwrap()
        .execute_batch(
            "UPDATE conversation_rows SET owner = 'x', title = 'x', participants = '[]', metadata = '{}', state = 'closed',
                 updated = 0, ttl = NULL, expires = NULL, retention = 'ephemeral', head_seq = 0, head_hash = zeroblob(32),
                 turns = 77;
             DELETE FROM turn_rows; DELETE FROM assets; DELETE FROM asset_references;
             INSERT INTO turn_rows (conversation, seq, id, role, status, created)
                 VALUES (1, 2000, zeroblob(16), 'user', 'complete', 0);",
        )
        .unwrap();
    store.rebuild().unwrap();
    assert_eq!(answers(&store), before);
    append(&store, &child, vec![m.say("and on")]);
    verify(&store, &child);
}

#[test]
fn a_directory_is_refused_with_the_name_of_a_file_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let error = open(folder.path()).err().unwrap();
    assert_eq!(error.code(), "store.is_directory");
    assert!(error.text().contains("everturn.db"), "{error:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was made in it");
    let beside = folder.path().with_extension("lock");
    assert!(!beside.exists(), "nothing was made beside it");
    assert_eq!(Sqlite::open_read_only(folder.path()).err().unwrap().code(), "store.absent");
    let nowhere = folder.path().join("absent").join("store.db");
    assert_eq!(open(&nowhere).err().unwrap().code(), "store.cannot_open");
    assert_eq!(Sqlite::open_read_only(&nowhere).err().unwrap().code(), "store.absent");
}

#[test]
fn a_file_that_is_no_database_is_refused_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    let text = "My notes. ".repeat(1000);
    std::fs::write(&path, &text).unwrap();
    for error in [open(&path).err().unwrap(), Sqlite::open_read_only(&path).err().unwrap()] {
        assert_eq!(error.code(), "store.not_a_database");
        assert!(matches!(error, Error::Corrupt(_)));
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
}

#[test]
fn a_database_of_another_program_is_refused_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    for (name, sql) in [
        ("tables.db", "CREATE TABLE theirs (x)"),
        ("id.db", "PRAGMA application_id = 7"),
        ("both.db", "PRAGMA application_id = 7; CREATE TABLE theirs (x)"),
    ] {
        let path = folder.path().join(name);
        Connection::open(&path).unwrap().execute_batch(sql).unwrap();
        let before = std::fs::read(&path).unwrap();
        for error in [open(&path).err().unwrap(), Sqlite::open_read_only(&path).err().unwrap()] {
            assert_eq!(error.code(), "store.foreign", "{name}");
        }
        assert_eq!(std::fs::read(&path).unwrap(), before, "{name}");
    }
}

#[test]
fn a_newer_format_is_refused_with_both_numbers() {
    let (_folder, path, _) = written();
    Connection::open(&path).unwrap().execute_batch("PRAGMA user_version = 99").unwrap();
    for error in [open(&path).err().unwrap(), Sqlite::open_read_only(&path).err().unwrap()] {
        assert_eq!(error.code(), "store.newer");
        assert!(error.text().contains("99") && error.text().contains("newer everturn"), "{error:?}");
    }
}

/// Builds that were never released had other marks, whatever number their format had.
#[test]
fn a_store_of_an_unreleased_build_is_refused_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    for format in [1, 9] {
        let path = folder.path().join(format!("{format}.db"));
        let sql = format!(
            "PRAGMA application_id = {}; PRAGMA user_version = {format}; CREATE TABLE conversation_rows (x)",
            0x4576_746e
        );
        Connection::open(&path).unwrap().execute_batch(&sql).unwrap();
        let before = std::fs::read(&path).unwrap();
        for error in [open(&path).err().unwrap(), Sqlite::open_read_only(&path).err().unwrap()] {
            assert_eq!(error.code(), "store.unreleased");
            let says = "cannot read a store of an unreleased build; export it with that build";
            assert!(error.text().contains(says), "{error:?}");
        }
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }
}

#[test]
fn an_empty_database_becomes_a_store_when_it_is_opened_for_writing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE x (x); DROP TABLE x").unwrap();
    let error = Sqlite::open_read_only(&path).err().unwrap();
    assert_eq!(error.code(), "store.empty");
    drop(open(&path).unwrap());
    Sqlite::open_read_only(&path).unwrap();
}

#[test]
fn damaged_pages_are_reported_and_never_a_panic() {
    let (_folder, path, keys) = written();
    let whole = std::fs::read(&path).unwrap();
    let pages = whole.len() / 4096;
    assert!(pages > 50, "{pages} pages");
    let mut noticed = 0;
    for page in 0..pages {
        let mut bytes = whole.clone();
        // The header of the page, its cells, and everything: each is another kind of damage.
        let place = match page % 3 {
            0 => page * 4096 + 100 * usize::from(page == 0)..page * 4096 + 120,
            1 => page * 4096 + 3000..page * 4096 + 4000,
            _ => page * 4096..page * 4096 + 4096,
        };
        bytes[place].iter_mut().for_each(|byte| *byte ^= 0xa5);
        std::fs::write(&path, &bytes).unwrap();
        let errors = match Sqlite::open_read_only(&path) {
            Err(error) => vec![error],
            Ok(store) => {
                let mut errors = read_all(&store, &keys);
                let (report, whole) = (store.check(), keys.iter().all(|key| verifies(&store, key)));
                noticed +=
                    usize::from(!errors.is_empty() || report.as_ref().is_ok_and(|r| !r.is_empty()) || !whole);
                errors.extend(report.err());
                errors
            }
        };
        for error in &errors {
            assert!(matches!(error, Error::Corrupt(_) | Error::NotFound(_)), "page {page}: {error:?}");
        }
        noticed += usize::from(errors.iter().any(|e| matches!(e, Error::Corrupt(_))));
    }
    assert!(noticed >= pages / 2, "{noticed} of {pages}");
}

fn verifies(store: &Sqlite, key: &Key) -> bool {
    let mut verifier = everturn_core::chain::Verifier::new(key.id, None);
    store.events(key, 0, 1000).is_ok_and(|events| events.iter().all(|event| verifier.push(event).is_ok()))
}

#[test]
fn a_file_that_was_cut_off_is_reported_and_never_a_panic() {
    let (_folder, path, keys) = written();
    let whole = std::fs::read(&path).unwrap();
    // SQLite treats a file of one byte as empty; one of none is a new store.
    for length in [50, 99, 100, 2000, 4096, 5000, whole.len() / 2, whole.len() - 4096] {
        std::fs::write(&path, &whole[..length]).unwrap();
        let errors = match open(&path) {
            Err(error) => vec![error],
            Ok(store) => {
                let mut errors = read_all(&store, &keys);
                match store.check() {
                    Ok(report) => {
                        assert!(!errors.is_empty() || !report.is_empty(), "{length} bytes pass as whole")
                    }
                    Err(error) => errors.push(error),
                }
                errors
            }
        };
        for error in &errors {
            assert!(matches!(error, Error::Corrupt(_)), "{length} bytes: {error:?}");
        }
    }
}

#[test]
fn values_that_make_no_sense_are_corrupt() {
    for sql in [
        "UPDATE events SET hash = x'00' WHERE seq = 3",
        "UPDATE events SET role = 'emperor' WHERE seq = 3",
        "UPDATE events SET seq = -3 WHERE seq = 3",
        "UPDATE events SET at = 'yesterday' WHERE seq = 3",
        "UPDATE events SET body = x'ff' WHERE seq = 3",
        "UPDATE turn_rows SET status = 'lost' WHERE seq = 3",
        "UPDATE turn_rows SET content_seq = 999 WHERE seq = 3",
        "UPDATE conversation_rows SET metadata = '{'",
        "UPDATE conversation_rows SET tenant = '../x' WHERE no = 1",
        "DELETE FROM events WHERE seq = 3",
    ] {
        let (_folder, path, keys) = written();
        Connection::open(&path).unwrap().execute_batch(sql).unwrap();
        let store = Sqlite::open_read_only(&path).unwrap();
        let errors = read_all(&store, &keys);
        for error in &errors {
            assert!(matches!(error, Error::Corrupt(_) | Error::NotFound(_)), "{sql}: {error:?}");
        }
        assert!(!errors.is_empty() || !verifies(&store, &keys[0]), "{sql} passes as whole");
    }
}

#[test]
fn a_store_that_was_opened_for_reading_refuses_to_write() {
    let (_folder, path, keys) = written();
    let store = Sqlite::open_read_only(&path).unwrap();
    let m = Maker::default();
    let error = refused(&store, addition(&keys[0], vec![m.say("no")]), "store.opened_read_only");
    assert!(error.text().contains("reading only"), "{error:?}");
    assert_eq!(store.rebuild().err().unwrap().code(), "store.opened_read_only");
    assert_eq!(verify(&store, &keys[0]).events, 21);
}

#[test]
fn one_process_writes_and_others_read() {
    let (_folder, path, keys) = written();
    let m = Maker::default();
    let writer = open(&path).unwrap();
    let error = open(&path).err().unwrap();
    assert_eq!(error.code(), "store.owned");
    let owner = format!("open for writing by process {}", std::process::id());
    assert!(matches!(error, Error::Busy(_)) && error.text().contains(&owner), "{error:?}");
    let reader = Sqlite::open_read_only(&path).unwrap();
    append(&writer, &keys[0], vec![m.say("fresh")]);
    assert_eq!(texts(&reader, &keys[0]).last().unwrap(), "fresh");
    drop(writer);
    let next = open(&path).unwrap();
    append(&next, &keys[0], vec![m.say("fresher")]);
    assert_eq!(texts(&reader, &keys[0]).last().unwrap(), "fresher");
}

#[test]
fn a_writer_waits_for_the_one_before_as_long_as_it_is_told() {
    let (_folder, path, _) = written();
    let first = open(&path).unwrap();
    let waiting = std::thread::spawn({
        let path = path.clone();
        move || Sqlite::open(&path, Duration::from_secs(60)).map(drop)
    });
    drop(first);
    waiting.join().unwrap().unwrap();
}

#[test]
fn a_reader_elsewhere_holds_up_the_scrubbing_after_an_erasure_and_nothing_else() {
    let (_folder, path, keys) = written();
    let m = Maker::default();
    let store = open(&path).unwrap();
    let secret = m.say("between you and me");
    let turn = turn_of(&secret);
    append(&store, &keys[0], vec![secret]);
    let reader = Connection::open(&path).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM events").unwrap();
    let batch = vec![addition(&keys[1], vec![m.say("unrelated")]), m.erase(&keys[0], &[turn])];
    let answers = store.commit(batch);
    assert!(answers[0].is_ok(), "it is written, so that sending it again would write it twice");
    let error = answers[1].as_ref().err().unwrap();
    assert_eq!(error.code(), "store.scrub");
    assert!(store.turn_in(&keys[0], turn).unwrap().erased, "the answer says that it is erased");
    reader.execute_batch("COMMIT").unwrap();
    done(&store, m.erase(&keys[0], &[turn]));
    for entry in std::fs::read_dir(path.parent().unwrap()).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        assert!(!bytes.windows(18).any(|window| window == b"between you and me"));
    }
}
