//! Derived rows can always be rebuilt: whatever happens to them, the log can be written, `check` names what
//! differs from it, and rebuilding gives the answers of an undamaged store.

use everturn_core::chain::Hash;
use everturn_core::conversation::Settings;
use everturn_core::event::{Draft, kind};
use everturn_core::id::{Key, TurnId};
use everturn_core::time::Timestamp;
use everturn_core::write::{Action, Write};
use everturn_store::conformance::*;
use everturn_store::sqlite::Sqlite;
use everturn_store::{
    AssetIndex, Backup, CheckedIndex, ConversationIndex, ConversationQuery, Log, Maintenance, ProblemKind,
    Provenance, StoreProblem, TurnIndex, TurnQuery,
};
use rusqlite::Connection;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

fn open(path: &Path) -> Sqlite {
    Sqlite::open(path, Duration::ZERO).unwrap()
}

/// A closed store in which every derived table has rows.
struct World {
    _folder: TempDir,
    path: PathBuf,
    keys: Vec<Key>,
    /// An open turn of the second one.
    open: TurnId,
    m: Maker,
}

/// A request with an idempotency key.
fn repeatable(key: &Key, draft: Draft) -> Write {
    let idempotency = once("again", "x");
    let action = Action::Append { drafts: vec![draft], expected_seq: None, prepared_for: None, idempotency };
    Write { key: key.clone(), action }
}

fn world() -> World {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let (m, store) = (Maker::default(), open(&path));
    let keys = vec![m.key(), m.key(), m.key()];
    let (one, two, opened) = (m.say("one"), m.say("two"), m.open());
    let (first, second, turn) = (turn_of(&one), turn_of(&two), turn_of(&opened));
    let settings = Settings { title: Some(Some("Tea".into())), ttl: Some(Some(3600)), ..Settings::default() };
    create(&store, &keys[0], vec![m.created(), one, two, m.update(settings), opened]);
    let learned = m.learn(first, "tea");
    append(
        &store,
        &keys[0],
        vec![m.end(kind::COMMITTED, turn, "three"), m.asset("asset_a", b"a"), m.show("asset_a")],
    );
    append(&store, &keys[0], vec![m.supersede(second, turn), learned]);
    done(&store, m.fork(&keys[1], &keys[0], 6));
    let in_the_fork = m.open();
    let open_turn = turn_of(&in_the_fork);
    append(&store, &keys[1], vec![m.say("in the fork"), in_the_fork]);
    create(&store, &keys[2], vec![m.created()]);
    done(&store, repeatable(&keys[2], m.say("once")));
    for n in 0..5 {
        append(&store, &keys[2], vec![m.say(&format!("waits {n}"))]);
    }
    // Settled, except for the last three: as a crash leaves it.
    store.settle().unwrap();
    for n in 0..3 {
        append(&store, &keys[2], vec![m.say(&format!("unsettled {n}"))]);
    }
    let waiting = rusqlite::Connection::open(&path).unwrap();
    let behind: i64 = waiting
        .query_row("SELECT (SELECT max(no) FROM events) - event FROM settled", [], |row| row.get(0))
        .unwrap();
    assert_eq!(behind, 3);
    drop((waiting, store));
    World { _folder: folder, path, keys, open: open_turn, m }
}

/// All answers that are read from derived rows.
fn answers(store: &Sqlite, keys: &[Key]) -> String {
    let all = TurnQuery { limit: 1000, whole_log: true, ..TurnQuery::default() };
    let listing = ConversationQuery { limit: 1000, ..ConversationQuery::default() };
    let each: Vec<_> = keys
        .iter()
        .map(|key| {
            let turns = store.turns(key, &all).unwrap();
            (
                store.conversation(key).unwrap(),
                log(store, key),
                turns,
                store.assets(key).unwrap(),
                verify(store, key),
            )
        })
        .collect();
    let first = each[0].2[0].id;
    let tenant = tenant("acme");
    format!(
        "{each:?} {:?} {:?} {:?} {:?} {:?}",
        store.conversations(&tenant, &listing).unwrap(),
        store.open_turns().unwrap(),
        store.expired(Timestamp(i64::MAX), 99).unwrap(),
        store.learned_from(&tenant, first).unwrap(),
        store.asset_in_use(&tenant, Hash::of(b"a")).unwrap(),
    )
}

/// Damage to derived rows, and a word of what `check` reports.
const DAMAGE: &[(&str, &str)] = &[
    ("UPDATE settled SET event = 0", "settled"),
    ("UPDATE settled SET event = 999999", "settled"),
    ("UPDATE settled SET event = 'x'", "settled"),
    ("UPDATE settled SET event = -7", "settled"),
    ("DELETE FROM settled", "settled"),
    ("INSERT INTO settled VALUES (1)", "settled"),
    ("UPDATE settled SET event = event - 4", "settled"),
    ("UPDATE settled SET event = (SELECT max(no) FROM events)", "places"),
    ("DELETE FROM turn_rows", "turns"),
    ("DELETE FROM turn_rows WHERE conversation = 1 AND seq = 2", "turns"),
    ("UPDATE turn_rows SET status = 'aborted' WHERE seq = 2", "turns"),
    ("UPDATE turn_rows SET superseded_by = NULL, superseded_seq = NULL", "turns"),
    ("UPDATE turn_rows SET place = seq - 1 WHERE seq = 3", "turns"),
    ("UPDATE turn_rows SET place = NULL, placed_seq = NULL WHERE place IS NOT NULL OR seq = 2", "turns"),
    ("UPDATE turn_rows SET role = 'system', actor = 'eve' WHERE seq = 2", "turns"),
    (
        "INSERT INTO turn_rows SELECT 3, 11, zeroblob(16), 'eve', 'user', 'complete', 0, NULL, NULL, NULL, NULL, NULL",
        "turns",
    ),
    ("DELETE FROM places WHERE seq = 3", "places"),
    ("DELETE FROM places", "places"),
    ("UPDATE places SET event = 1 WHERE seq = 3", "places"),
    ("INSERT INTO places VALUES (3, 11, 1)", "places"),
    ("DELETE FROM assets", "assets"),
    ("UPDATE assets SET sha256 = zeroblob(32)", "assets"),
    ("DELETE FROM asset_references", "references"),
    ("UPDATE asset_references SET turn_seq = 2", "references"),
    ("DELETE FROM fact_rows", "facts"),
    ("UPDATE fact_rows SET source_turn = NULL", "facts"),
    ("UPDATE idempotency SET first_seq = 0", "repeated requests"),
    ("UPDATE idempotency SET last_seq = 9999", "repeated requests"),
    ("UPDATE conversation_rows SET title = 'Coffee' WHERE no = 1", "title"),
    ("UPDATE conversation_rows SET owner = 'eve', turns = 77, updated = 1", "owner"),
    ("UPDATE conversation_rows SET created = 1", "created"),
    ("UPDATE conversation_rows SET expires = 1", "expires"),
    ("UPDATE conversation_rows SET metadata = '{' WHERE no = 3", "in metadata"),
    ("UPDATE conversation_rows SET head_seq = head_seq - 2 WHERE no = 3", "head"),
    ("UPDATE conversation_rows SET head_hash = zeroblob(32)", "head"),
    ("UPDATE conversation_rows SET state = 'archived' WHERE no = 1", "state"),
    ("UPDATE conversation_rows SET deleted = 1, deleted_reason = 'no' WHERE no = 1", "deleted"),
    ("DELETE FROM turn_rows WHERE status = 'pending'", "turns"),
    ("UPDATE turn_rows SET status = 'complete' WHERE status = 'pending'", "turns"),
    ("INSERT INTO chunks VALUES (NULL, 1, 2, 0, 'never said')", "turns that are not open"),
    ("INSERT INTO chunks VALUES (NULL, 3, 99, 0, 'never said')", "turns that are not open"),
    ("INSERT INTO folds VALUES (3, 5, '{}', 77)", "folds"),
    ("INSERT INTO folds VALUES (3, 99, '{}', NULL)", "folds"),
    ("INSERT INTO echoes VALUES (1, 2, 7)", "repeated words"),
    ("INSERT INTO summaries VALUES (1, 2, 7)", "summaries"),
];

#[test]
fn whatever_happens_to_derived_rows_they_are_named_and_mended_and_the_log_goes_on() {
    let twin = world();
    let whole = {
        let store = Sqlite::open_read_only(&twin.path).unwrap();
        assert_eq!(store.check().unwrap(), Vec::new(), "nothing happened to it");
        drop(store);
        let store = open(&twin.path);
        // The first one may be hidden or archived by the damage; the others accept turns.
        for key in &twin.keys[1..] {
            append(&store, key, vec![twin.m.say("goes on")]);
        }
        answers(&store, &twin.keys)
    };
    for (sql, says) in DAMAGE {
        let world = world();
        Connection::open(&world.path).unwrap().execute_batch(sql).unwrap();
        let found = Sqlite::open_read_only(&world.path).unwrap().check().unwrap();
        let named =
            |problem: &StoreProblem| problem.kind == ProblemKind::Derived && problem.text.contains(says);
        assert!(found.iter().any(named), "{sql}: {found:#?}");
        let store = open(&world.path);
        for key in &world.keys[1..] {
            append(&store, key, vec![world.m.say("goes on")]);
            store.settle().unwrap();
        }
        store.rebuild().unwrap();
        assert_eq!(store.check().unwrap(), Vec::new(), "{sql}");
        assert_eq!(answers(&store, &world.keys), whole, "{sql}");
    }
}

/// Unreadable cells, and a word of what `check` reports.
const MALFORMED: &[(&str, &str)] = &[
    ("UPDATE conversation_rows SET participants = '['", "participants"),
    ("UPDATE conversation_rows SET metadata = 'nonsense'", "metadata"),
    ("UPDATE conversation_rows SET metadata = x'ff00'", "metadata"),
    ("UPDATE conversation_rows SET state = 'asleep'", "state"),
    ("UPDATE conversation_rows SET created = 'noon'", "created"),
    ("UPDATE conversation_rows SET updated = 'noon'", "updated"),
    ("UPDATE conversation_rows SET summarized_through = x'00'", "summarized_through"),
    ("UPDATE conversation_rows SET ttl = -1", "ttl"),
    ("UPDATE conversation_rows SET retention = 'never'", "retention"),
    ("UPDATE conversation_rows SET policy = 'none'", "policy"),
    ("UPDATE conversation_rows SET head_seq = -5", "head_seq"),
    ("UPDATE conversation_rows SET head_seq = 'x'", "head_seq"),
    ("UPDATE conversation_rows SET head_hash = x'00'", "head_hash"),
    ("UPDATE conversation_rows SET turns = -1", "turns"),
    ("UPDATE conversation_rows SET predecessor = x'00'", "predecessor"),
    ("UPDATE conversation_rows SET parent_seq = -1 WHERE no = 2", "parent"),
    ("UPDATE conversation_rows SET parent_seq = 'x' WHERE no = 2", "parent"),
    ("UPDATE conversation_rows SET parent = NULL WHERE no = 2", "parent"),
    ("UPDATE conversation_rows SET parent_seq = 2 WHERE no = 2", "parent"),
    ("UPDATE conversation_rows SET parent = 3 WHERE no = 2", "parent"),
    ("UPDATE conversation_rows SET prompt_sha256 = x'00', prompt_seq = 1", "prompt_sha256"),
    ("UPDATE conversation_rows SET checkpoint = '{'", "checkpoint"),
    ("UPDATE conversation_rows SET budget = 7", "budget"),
    ("UPDATE conversation_rows SET updated = 9223372036854775807, ttl = 9223372036854775807", "updated"),
    ("UPDATE turn_rows SET id = x'00' || seq WHERE status = 'pending'", "turns"),
    ("UPDATE turn_rows SET role = 'nobody'", "turns"),
    ("UPDATE turn_rows SET status = 'asleep'", "turns"),
    ("UPDATE turn_rows SET content_seq = -4", "turns"),
    ("UPDATE turn_rows SET superseded_by = 'nobody', superseded_seq = -1", "turns"),
    ("UPDATE turn_rows SET seq = 'x' || seq", "turns"),
    ("UPDATE turn_rows SET place = 'x'", "turns"),
    ("UPDATE turn_rows SET place = -1, placed_seq = 'x'", "turns"),
    ("UPDATE turn_rows SET place = 9999", "turns"),
    ("UPDATE places SET event = 'x'", "places"),
    ("UPDATE places SET seq = 'x' || seq", "places"),
    ("INSERT INTO places VALUES ('x', 1, 1)", "places"),
    ("UPDATE idempotency SET fingerprint = x'00'", "repeated requests"),
    ("UPDATE idempotency SET first_seq = 'x'", "repeated requests"),
    ("UPDATE settled SET event = 1e300", "settled"),
    ("UPDATE assets SET sha256 = x'00', seq = 'x'", "assets"),
    ("INSERT INTO folds SELECT no, 1, x'ff', 'x' FROM conversation_rows", "folds"),
    ("UPDATE conversation_rows SET parent = no, parent_seq = 3 WHERE no = 1", "parent"),
    ("UPDATE conversation_rows SET parent = 2, parent_seq = 3 WHERE no = 1", "parent"),
    ("UPDATE conversation_rows SET parent = 2 WHERE no = 1", "parent"),
    ("UPDATE conversation_rows SET parent = 3, parent_seq = 6 WHERE no = 1", "parent"),
    ("UPDATE conversation_rows SET parent = 3, parent_seq = 6 WHERE no IN (1, 2)", "parent"),
    ("UPDATE fact_rows SET id = x'00'", "facts"),
    ("UPDATE fact_rows SET seq = 'x'", "facts"),
    ("UPDATE asset_references SET asset = x'ff'", "references"),
    ("UPDATE assets SET sha256 = x'00'", "assets"),
];

#[test]
fn a_cell_that_cannot_be_read_is_named_and_keeps_nobody_from_writing() {
    let goes_on = |world: &World, store: &Sqlite| {
        for key in &world.keys {
            append(store, key, vec![world.m.say("goes on")]);
        }
        // As on opening a store; then the open turn of the fork is continued.
        store.open_turns().unwrap();
        done(store, chunk(&world.keys[1], world.open, 0, "so far"));
        append(store, &world.keys[1], vec![world.m.end(kind::COMMITTED, world.open, "said")]);
        done(store, world.m.fork(&world.m.key(), &world.keys[0], 3));
        // Last, because it is rewritten if the first answer is lost.
        assert_eq!(done(store, repeatable(&world.keys[2], world.m.say("once"))).events.len(), 1);
    };
    let twin = world();
    let whole = {
        let store = open(&twin.path);
        goes_on(&twin, &store);
        answers(&store, &twin.keys)
    };
    for (sql, says) in MALFORMED {
        let world = world();
        Connection::open(&world.path).unwrap().execute_batch(sql).unwrap();
        let reader = Sqlite::open_read_only(&world.path).unwrap();
        let found = reader.check().unwrap();
        let named =
            |problem: &StoreProblem| problem.kind == ProblemKind::Derived && problem.text.contains(says);
        assert!(found.iter().any(named), "{sql}: {found:#?}");
        // A read-only process gets an error that says what to do, or a correct answer.
        for key in &world.keys {
            if let Err(error) = reader.conversation(key).and(reader.turns(key, &TurnQuery::default())) {
                assert!(error.text().contains("doctor --rebuild"), "{sql}: {error}");
            }
        }
        drop(reader);
        let store = open(&world.path);
        store.conversations(&tenant("acme"), &ConversationQuery { limit: 9, ..Default::default() }).unwrap();
        goes_on(&world, &store);
        store.rebuild().unwrap();
        assert_eq!(store.check().unwrap(), Vec::new(), "{sql}");
        if *says != "repeated requests" {
            assert_eq!(answers(&store, &world.keys), whole, "{sql}");
        }
    }
}

/// Regression: a mark that is too high was left as it is if nothing was pending, and the next turns never got
/// their rows.
#[test]
fn a_wrong_mark_of_what_is_settled_is_set_right_where_nothing_waits() {
    for mark in ["999999", "-7", "'x'", "0"] {
        let world = world();
        open(&world.path).settle().unwrap();
        let db = Connection::open(&world.path).unwrap();
        db.execute_batch(&format!("UPDATE settled SET event = {mark}")).unwrap();
        drop(db);
        let read = texts(&Sqlite::open_read_only(&world.path).unwrap(), &world.keys[2]);
        let store = open(&world.path);
        append(&store, &world.keys[2], vec![world.m.say("after")]);
        store.settle().unwrap();
        assert_eq!(store.check().unwrap(), Vec::new(), "{mark}");
        assert_eq!(texts(&store, &world.keys[2]).len(), read.len() + 1, "{mark}");
    }
}

/// Regression: acknowledged turns were missing from what a second process read.
#[test]
fn a_reader_finds_what_is_not_settled_whatever_the_mark_says() {
    let whole = world();
    let truth = texts(&Sqlite::open_read_only(&whole.path).unwrap(), &whole.keys[2]);
    assert_eq!(truth.last().unwrap(), "unsettled 2");
    for mark in ["999999", "-7", "'x'", "0", "event - 4", "(SELECT max(no) FROM events)"] {
        let world = world();
        let db = Connection::open(&world.path).unwrap();
        db.execute_batch(&format!("UPDATE settled SET event = {mark}")).unwrap();
        assert_eq!(texts(&Sqlite::open_read_only(&world.path).unwrap(), &world.keys[2]), truth, "{mark}");
    }
}

/// An append builds on the head in the log: a wrong row alone cannot make a gap in the chain.
#[test]
fn an_append_makes_no_hole_in_the_chain() {
    for sql in [
        "UPDATE conversation_rows SET head_seq = 99 WHERE no = 3",
        "UPDATE conversation_rows SET head_seq = 99, head_hash = zeroblob(32) WHERE no = 3",
        "INSERT INTO places VALUES (3, 99, 9999)",
        "UPDATE places SET event = 9999 WHERE conversation = 3 AND seq = 10",
    ] {
        let world = world();
        open(&world.path).settle().unwrap();
        Connection::open(&world.path).unwrap().execute_batch(sql).unwrap();
        let store = open(&world.path);
        let written = append(&store, &world.keys[2], vec![world.m.say("next")]);
        assert_eq!(written.events[0].seq, 11, "{sql}");
        assert_eq!(verify(&store, &world.keys[2]).events, 11, "{sql}");
    }
}

/// A log that was really truncated accepts no events until the loss is accepted: they would get `seq` numbers
/// that were already used.
#[test]
fn nothing_is_appended_to_a_log_that_was_cut() {
    let world = world();
    open(&world.path).settle().unwrap();
    let db = Connection::open(&world.path).unwrap();
    db.execute_batch("PRAGMA foreign_keys = OFF; DELETE FROM events WHERE conversation = 3 AND seq > 6")
        .unwrap();
    drop(db);
    std::fs::remove_file(format!("{}-head", world.path.display())).unwrap();
    let store = open(&world.path);
    let error = refused(&store, addition(&world.keys[2], vec![world.m.say("next")]), "chain.truncated");
    assert!(error.text().contains("ends at seq 6 but had 10"), "{error}");
    assert!(error.text().contains("--rebuild --accept-loss"), "{error}");
    // Others can be continued, and the evidence stays.
    append(&store, &world.keys[1], vec![world.m.say("goes on")]);
    let found = store.check().unwrap();
    assert!(
        found.iter().any(|p| p.kind == ProblemKind::Missing && p.text.contains("seq 7 to 10")),
        "{found:#?}"
    );
    store.rebuild().unwrap();
    assert_eq!(append(&store, &world.keys[2], vec![world.m.say("next")]).events[0].seq, 7);
    verify(&store, &world.keys[2]);
    assert_eq!(store.check().unwrap(), Vec::new());
}

/// The evidence of a truncated log: rows about events that do not exist.
#[test]
fn events_that_rows_know_of_and_the_log_lacks_are_named_by_their_places() {
    let cases: [(&str, &[&str]); 4] = [
        (
            "DELETE FROM events WHERE conversation = 3 AND seq > 4 AND no <= (SELECT event FROM settled)",
            &["seq 5 to 7"],
        ),
        ("DELETE FROM events WHERE conversation = 1 AND seq IN (3, 6, 7)", &["seq 3 is", "seq 6 to 7"]),
        ("DELETE FROM events WHERE conversation = 2 AND seq >= 8", &["seq 8 to 9"]),
        (
            "UPDATE conversation_rows SET head_seq = 99, head_hash = zeroblob(32) WHERE no = 3",
            &["seq 11 to 99"],
        ),
    ];
    for (sql, says) in cases {
        let world = world();
        Connection::open(&world.path)
            .unwrap()
            .execute_batch(&format!("PRAGMA foreign_keys = OFF; {sql}"))
            .unwrap();
        let _ = std::fs::remove_file(format!("{}-head", world.path.display()));
        let found = Sqlite::open_read_only(&world.path).unwrap().check().unwrap();
        let missing: Vec<&StoreProblem> = found.iter().filter(|p| p.kind == ProblemKind::Missing).collect();
        assert_eq!(missing.len(), says.len(), "{sql}: {found:#?}");
        for (problem, says) in missing.iter().zip(says) {
            assert!(problem.text.contains(says) && problem.key.is_some(), "{sql}: {problem:?}");
        }
    }
}

/// Regression: a row that named itself as its parent was followed until memory was full; later it was an error
/// until a rebuild, and one that named a stranger was believed.
#[test]
fn a_wrong_parent_is_set_right_by_what_the_log_says() {
    let whole = world();
    let truth = |world: &World, store: &Sqlite| -> Vec<_> {
        world.keys.iter().map(|key| (texts(store, key), store.conversation(key).unwrap())).collect()
    };
    let expected = truth(&whole, &open(&whole.path));
    for sql in [
        "UPDATE conversation_rows SET parent = no, parent_seq = 3 WHERE no = 1",
        "UPDATE conversation_rows SET parent = 2, parent_seq = 3 WHERE no = 1",
        "UPDATE conversation_rows SET parent = 2 WHERE no = 1",
        "UPDATE conversation_rows SET parent = 3, parent_seq = 6 WHERE no = 1",
        "UPDATE conversation_rows SET parent = 3 WHERE no = 2",
        "UPDATE conversation_rows SET parent = NULL WHERE no = 2",
        "UPDATE conversation_rows SET parent = NULL, parent_seq = NULL WHERE no = 2",
        "UPDATE conversation_rows SET parent_seq = 4 WHERE no = 2",
        "UPDATE conversation_rows SET parent = 3 - no, parent_seq = 6 WHERE no < 3",
        "UPDATE conversation_rows SET parent = 3, parent_seq = 6 WHERE no < 3",
    ] {
        let world = world();
        Connection::open(&world.path).unwrap().execute_batch(sql).unwrap();
        let reader = Sqlite::open_read_only(&world.path).unwrap();
        let errors: Vec<_> =
            world.keys.iter().filter_map(|key| reader.stored_events(key, 0, 100).err()).collect();
        assert!(!errors.is_empty(), "{sql}");
        for error in errors {
            assert_eq!(error.code(), "store.row", "{sql}: {error}");
            assert!(error.text().contains("doctor --rebuild"), "{sql}: {error}");
        }
        drop(reader);
        let store = open(&world.path);
        assert_eq!(truth(&world, &store), expected, "{sql}");
        for key in &world.keys {
            append(&store, key, vec![world.m.say("goes on")]);
            verify(&store, key);
        }
        assert_eq!(store.check().unwrap(), Vec::new(), "{sql}");
    }
}

/// A fork can be read through a deleted parent, whatever became of that one's row.
#[test]
fn a_wrong_parent_of_a_deleted_conversation_is_set_right_too() {
    for sql in [
        "UPDATE conversation_rows SET parent = 2, parent_seq = 3 WHERE no = 1",
        "UPDATE conversation_rows SET parent = no, parent_seq = 3 WHERE no = 1",
        "UPDATE conversation_rows SET parent = 3, parent_seq = 3 WHERE no = 1",
    ] {
        let world = world();
        let store = open(&world.path);
        let before = texts(&store, &world.keys[1]);
        done(&store, world.m.delete(&world.keys[0]));
        drop(store);
        Connection::open(&world.path).unwrap().execute_batch(sql).unwrap();
        let found = Sqlite::open_read_only(&world.path).unwrap().check().unwrap();
        assert!(
            found.iter().any(|p| p.kind == ProblemKind::Derived && p.text.contains("parent")),
            "{found:#?}"
        );
        let store = open(&world.path);
        assert_eq!(texts(&store, &world.keys[1]), before, "{sql}");
        store.rebuild().unwrap();
        assert_eq!(store.check().unwrap(), Vec::new(), "{sql}");
        done(&store, world.m.delete(&world.keys[1]));
    }
}

/// A restored conversation has the id, and even the hashes, of the deleted one that forks still read.
#[test]
fn a_parent_that_comes_back_takes_no_forks_over() {
    let folder = tempfile::tempdir().unwrap();
    let (m, store) = (Maker::default(), open(&folder.path().join("store.db")));
    let [parent, fork, grandchild, living] = [m.key(), m.key(), m.key(), m.key()];
    create(&store, &parent, vec![m.created(), m.say("one")]);
    let events = log(&store, &parent);
    done(&store, m.fork(&fork, &parent, 2));
    append(&store, &fork, vec![m.say("two")]);
    done(&store, m.fork(&grandchild, &fork, 4));
    done(&store, m.fork(&living, &parent, 2));
    done(&store, m.delete(&fork));
    done(&store, m.delete(&parent));
    done(&store, restoration(&parent, &events));
    assert_eq!(store.check().unwrap(), Vec::new());
    store.rebuild().unwrap();
    assert_eq!(texts(&store, &grandchild), ["one", "two"]);
    assert_eq!(texts(&store, &living), ["one"]);
    assert!(store.members().unwrap().iter().all(|member| member.parent.is_none_or(|(no, _)| no < member.no)));
}

/// Regression: an entry in `places` that nobody wrote was taken for the last trace of a lost event, so that
/// rebuilding asked for `--accept-loss`.
#[test]
fn rows_that_know_of_events_which_never_were_are_wrong_rows() {
    for sql in [
        "INSERT INTO places VALUES (3, 99, 9999)",
        "INSERT INTO places VALUES (3, 8, 9999)",
        "INSERT INTO places VALUES (3, 11, 1)",
        "UPDATE conversation_rows SET head_seq = 99 WHERE no = 3",
    ] {
        let world = world();
        Connection::open(&world.path).unwrap().execute_batch(sql).unwrap();
        let found = Sqlite::open_read_only(&world.path).unwrap().check().unwrap();
        assert!(
            !found.is_empty() && found.iter().all(|p| p.kind == ProblemKind::Derived),
            "{sql}: {found:#?}"
        );
    }
}

/// The log determines whether a conversation is closed.
#[test]
fn a_state_that_nobody_set_refuses_no_append() {
    for state in ["archived", "abandoned", "closed"] {
        let world = world();
        let m = &world.m;
        open(&world.path).settle().unwrap();
        let db = Connection::open(&world.path).unwrap();
        db.execute("UPDATE conversation_rows SET state = ?", [state]).unwrap();
        drop(db);
        let store = open(&world.path);
        for key in &world.keys {
            append(&store, key, vec![m.say("goes on")]);
        }
        assert_eq!(store.check().unwrap(), Vec::new(), "{state}");
        // A state that was really set does, also after it is read again and with other events after it.
        let set = m.state(state.parse().unwrap());
        append(&store, &world.keys[2], vec![set]);
        append(&store, &world.keys[2], vec![m.update(Settings::default())]);
        drop(store);
        let error = refused(
            &open(&world.path),
            addition(&world.keys[2], vec![m.say("no")]),
            "conversation.not_active",
        );
        assert!(error.text().contains(state), "{error}");
    }
}

/// The content to erase or to back up is in the log; rows only locate it.
#[test]
fn malformed_rows_keep_nobody_from_erasing_deleting_and_backing_up() {
    for (sql, _) in MALFORMED {
        let world = world();
        let [parent, fork, other] = [0, 1, 2].map(|n| &world.keys[n]);
        let first = history(&open(&world.path), parent)[0].id;
        Connection::open(&world.path).unwrap().execute_batch(sql).unwrap();
        let reader = Sqlite::open_read_only(&world.path).unwrap();
        if let Err(error) = reader.members() {
            assert!(error.text().contains("doctor --rebuild"), "{sql}: {error}");
        }
        drop(reader);
        let store = open(&world.path);
        assert_eq!(store.members().unwrap().len(), 3, "{sql}");
        // A parent that only the log of the fork names is not known to be read before the fork is read.
        store.conversation(fork).unwrap();
        let erased = done(&store, world.m.erase(parent, &[first])).erased;
        assert_eq!(erased.len(), 2, "{sql}: the turn and what was learned from it");
        done(&store, world.m.delete(other));
        done(&store, world.m.delete(parent));
        store.rebuild().unwrap();
        verify(&store, fork);
        assert_eq!(texts(&store, fork), ["", "two", "three", "in the fork", ""], "{sql}");
        done(&store, world.m.delete(fork));
        assert_eq!(store.check().unwrap(), Vec::new(), "{sql}");
        assert_eq!(store.members().unwrap().iter().filter(|m| m.deleted.is_some()).count(), 3, "{sql}");
    }
}

/// A backup runs beside a writer, so it repairs nothing; it reads the log instead.
#[test]
fn a_backup_reads_past_wrong_rows_that_it_may_not_mend() {
    for sql in [
        "UPDATE conversation_rows SET head_hash = x'00' WHERE no = 2",
        "UPDATE conversation_rows SET created = 'zz' WHERE no = 2",
        "UPDATE conversation_rows SET parent = -1 WHERE no = 2",
        "UPDATE conversation_rows SET parent = -1, parent_seq = 1 WHERE no = 3",
        "UPDATE places SET seq = 9223372036854775807 WHERE conversation = 3 AND seq = 2",
        "UPDATE places SET seq = 'zz' WHERE conversation = 3 AND seq = 2",
    ] {
        let world = world();
        open(&world.path).settle().unwrap();
        let ends = |store: &Sqlite| -> Vec<_> {
            store.members().unwrap().into_iter().map(|m| (m.no, m.parent, m.through, m.hash)).collect()
        };
        let before = ends(&Sqlite::open_read_only(&world.path).unwrap());
        let unchecked = format!("PRAGMA foreign_keys = OFF; {sql}");
        Connection::open(&world.path).unwrap().execute_batch(&unchecked).unwrap();
        assert_eq!(ends(&Sqlite::open_read_only(&world.path).unwrap()), before, "{sql}");
    }
}

/// Rows of conversations that never existed are dropped, and a tenant that is not text hides no other.
#[test]
fn rows_of_nobody_are_dropped_and_hide_nothing() {
    let world = world();
    open(&world.path).settle().unwrap();
    let db = Connection::open(&world.path).unwrap();
    db.execute_batch(
        "PRAGMA foreign_keys = OFF;
         INSERT INTO turn_rows SELECT 99, seq, randomblob(16), actor, role, status, created, content_seq, superseded_by, superseded_seq, place, placed_seq FROM turn_rows LIMIT 1;
         INSERT INTO summaries VALUES (99, 1, 1);
         INSERT INTO echoes VALUES (99, 1, 1)",
    )
    .unwrap();
    drop(db);
    let store = open(&world.path);
    assert_ne!(store.check().unwrap(), Vec::new());
    store.rebuild().unwrap();
    assert_eq!(store.check().unwrap(), Vec::new());
    let tenants = store.tenants().unwrap();
    drop(store);
    let db = Connection::open(&world.path).unwrap();
    db.execute_batch("UPDATE conversation_rows SET tenant = x'00' WHERE no = 3").unwrap();
    drop(db);
    let reader = Sqlite::open_read_only(&world.path).unwrap();
    assert_eq!(reader.tenants().unwrap(), tenants);
    assert_ne!(reader.check().unwrap(), Vec::new());
}
