//! The file itself: its content, what is refused, and the right to write.

use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::conversation::Settings;
use everturn_core::event::kind;
use everturn_core::id::{ConversationId, Key};
use everturn_core::time::Timestamp;
use everturn_store::conformance::*;
use everturn_store::sqlite::Sqlite;
use everturn_store::{
    AssetIndex, CheckedIndex, CheckedLog, ConversationIndex, ConversationQuery, Log, Maintenance, Provenance,
    TurnIndex, TurnQuery,
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
    assert_eq!(number("application_id"), 0x4576_746e);
    assert_eq!(number("user_version"), 9);
    let mode: String = db.query_row("PRAGMA journal_mode", [], |row| row.get(0)).unwrap();
    assert_eq!(mode, "wal");
}

/// Reverts what versions 7 and 8 added.
const UNDO_VERSION_7: &str =
    "DROP VIEW conversations; DROP INDEX conversations_by_time; ALTER TABLE conversation_rows DROP COLUMN said;
    ALTER TABLE conversation_rows DROP COLUMN began; PRAGMA user_version = 6;";

/// Reverts what versions 6 to 8 added.
pub const UNDO_VERSION_6: &str =
    "DROP VIEW conversation_facts; DROP VIEW turns; DROP VIEW conversations; DROP VIEW conversation_ids;
    DROP INDEX conversations_by_time; ALTER TABLE conversation_rows DROP COLUMN said;
    ALTER TABLE conversation_rows DROP COLUMN began;
    ALTER TABLE conversation_rows RENAME TO conversations; ALTER TABLE turn_rows RENAME TO turns;
    ALTER TABLE fact_rows RENAME TO conversation_facts; PRAGMA user_version = 5;";

/// Reverts what version 4 added.
const UNDO_VERSION_4: &str =
    "DROP INDEX turns_moved; ALTER TABLE turns DROP COLUMN placed_seq; ALTER TABLE turns DROP COLUMN place;
    PRAGMA user_version = 3;";

/// Reverts what version 5 added.
const UNDO_VERSION_5: &str = "ALTER TABLE events DROP COLUMN written_by; ALTER TABLE keys DROP COLUMN actors;
    PRAGMA user_version = 4;";

/// Reverts what version 3 added.
const UNDO_VERSION_3: &str = "DROP TABLE ownership; DROP TABLE summaries; DROP TABLE echoes; DROP INDEX conversation_facts_by_corrected; DROP INDEX turns_fallen;
    ALTER TABLE conversation_facts DROP COLUMN corrects; ALTER TABLE folds DROP COLUMN turns; PRAGMA user_version = 2;";

/// A file of version 6 has no times of conversations: they are read from their turns.
#[test]
fn a_file_of_version_6_is_upgraded_with_the_times_of_what_was_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let m = Maker::default();
    let (key, fork, silent) = (m.key(), m.key(), m.key());
    let said = |at: i64| everturn_core::event::Draft {
        occurred_at: Some(everturn_core::time::Timestamp(at)),
        ..m.say("then")
    };
    let store = open(&path).unwrap();
    create(&store, &key, vec![m.created(), said(50), said(70), said(60), said(i64::MAX / 2)]);
    done(&store, m.fork(&fork, &key, 3));
    append(&store, &fork, vec![said(40)]);
    create(&store, &silent, vec![m.created()]);
    let conversations = |store: &Sqlite| [&key, &fork, &silent].map(|key| store.conversation(key).unwrap());
    let before = conversations(&store);
    assert_eq!(before[0].began, Some(everturn_core::time::Timestamp(50)));
    assert_eq!(before[2].began, None);
    drop(store);
    Connection::open(&path).unwrap().execute_batch(UNDO_VERSION_7).unwrap();
    let store = open(&path).unwrap();
    assert_eq!(conversations(&store), before);
    assert_eq!(store.check().unwrap(), []);
}

/// In a file of version 2, erasing a turn reaches what was written before the upgrade.
#[test]
fn a_file_of_version_2_is_upgraded_with_what_erasing_needs_to_find() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let m = Maker::default();
    let key = m.key();
    let said = m.say("I like tea from the garden behind the house");
    let turn = turn_of(&said);
    let learned = m.learn(turn, "tea");
    let fact = everturn_core::id::FactId(learned.id.0);
    let corrected = m.draft(kind::FACT_CORRECTED, "null");
    let right = everturn_core::id::FactId(corrected.id.0);
    let text = serde_json::json!({"fact": right, "corrects": fact, "object": "green tea", "confidence": 1.0});
    let body = everturn_core::event::Body { text: text.to_string(), ..corrected.body };
    let corrected = everturn_core::event::Draft { body, ..corrected };
    let title = Some(Some("I like tea from the garden behind the house".into()));
    let created = m.event(kind::CREATED, &Settings { title, ..Settings::default() });
    let summarized = serde_json::json!({"through": turn, "through_seq": 2, "turns_before": 1});
    let checkpoint = serde_json::json!({"previous": null, "summarized": summarized}).to_string();
    let store = open(&path).unwrap();
    create(&store, &key, vec![created, said, learned, corrected, m.draft(kind::COMPACTION, checkpoint)]);
    drop(store);
    let back = format!("{UNDO_VERSION_6} {UNDO_VERSION_5} {UNDO_VERSION_4} {UNDO_VERSION_3}");
    Connection::open(&path).unwrap().execute_batch(&back).unwrap();
    let store = open(&path).unwrap();
    assert_eq!(store.echoes(&key, turn).unwrap().len(), 1, "the title");
    let mut erased: Vec<u64> = done(&store, m.erase(&key, &[turn])).erased.iter().map(|at| at.seq).collect();
    erased.sort_unstable();
    assert_eq!(erased, [2, 3, 4, 5], "the turn, the fact, its correction and the checkpoint");
    assert_eq!(store.check().unwrap(), []);
}

/// A file of version 3 knows which turn replaces which, but not their places.
#[test]
fn a_file_of_version_3_is_upgraded_with_the_places_of_edited_turns() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let m = Maker::default();
    let (key, fork) = (m.key(), m.key());
    let (one, two, better) = (m.say("one"), m.say("two"), m.say("one, better"));
    let [old, by] = [&one, &better].map(turn_of);
    let store = open(&path).unwrap();
    create(&store, &key, vec![m.created(), one, two]);
    append(&store, &key, vec![better, m.supersede(old, by)]);
    done(&store, m.fork(&fork, &key, 5));
    append(&store, &key, vec![m.say("not settled yet")]);
    drop(store);
    Connection::open(&path)
        .unwrap()
        .execute_batch(&format!("{UNDO_VERSION_6} {UNDO_VERSION_5} {UNDO_VERSION_4}"))
        .unwrap();
    let store = open(&path).unwrap();
    let read = |key: &Key| {
        let turns = store.turns(key, &everturn_store::TurnQuery { limit: 9, ..Default::default() }).unwrap();
        turns.iter().map(|turn| turn.text(|_| None)).collect::<Vec<_>>()
    };
    assert_eq!(read(&key), ["one, better", "two", "not settled yet"]);
    assert_eq!(read(&fork), ["one, better", "two"]);
    assert_eq!(store.check().unwrap(), []);
}

/// Reverts what later versions added: version 1 had an unused table of facts, and version 2 no table of
/// ownership.
#[test]
fn a_file_of_an_older_version_is_upgraded_when_it_is_opened_for_writing() {
    let v1 = include_str!("../../src/sqlite/v1.sql");
    let facts = &v1[v1.find("CREATE TABLE conversation_facts").unwrap()..];
    let back_to_2 = format!("{UNDO_VERSION_6} {UNDO_VERSION_5} {UNDO_VERSION_4} {UNDO_VERSION_3}");
    let back_to_1 = format!("{back_to_2} DROP TABLE conversation_facts; {facts}; PRAGMA user_version = 1");
    let back_to_4 = format!("{UNDO_VERSION_6} {UNDO_VERSION_5}");
    let back_to_5 = UNDO_VERSION_6.to_string();
    for (version, back) in [(1, back_to_1), (2, back_to_2), (4, back_to_4), (5, back_to_5)] {
        let (_folder, path, keys) = written();
        let before = log(&open(&path).unwrap(), &keys[0]);
        Connection::open(&path).unwrap().execute_batch(&back).unwrap();
        let error = Sqlite::open_read_only(&path).err().unwrap();
        let says = format!("has format {version}");
        assert!(error.text().contains(&says) && error.text().contains("open it for writing once"), "{error}");
        let store = open(&path).unwrap();
        assert_eq!(log(&store, &keys[0]), before);
        let m = Maker::default();
        let said = m.say("I like tea");
        let learned = m.learn(turn_of(&said), "tea");
        let fact = everturn_core::id::FactId(learned.id.0);
        append(&store, &keys[0], vec![said, learned]);
        assert_eq!(store.fact(&keys[0].tenant, fact).unwrap(), Some(keys[0].id));
        drop(store);
        Sqlite::open_read_only(&path).unwrap();
    }
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

/// The first files had no table of keys. They get one when they are upgraded.
#[test]
fn a_file_of_before_there_were_keys_has_none() {
    use everturn_store::AccessKeys;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    drop(Sqlite::open(&path, Duration::ZERO).unwrap());
    let back = "ALTER TABLE events DROP COLUMN written_by; DROP TABLE keys; PRAGMA user_version = 4";
    Connection::open(&path).unwrap().execute_batch(&format!("{UNDO_VERSION_6} {back}")).unwrap();
    let writer = Sqlite::open(&path, Duration::ZERO).unwrap();
    assert!(!writer.any_key(None).unwrap());
    let there = Connection::open(&path).unwrap().prepare("SELECT * FROM keys").is_ok();
    assert!(there, "the table is made");
}
