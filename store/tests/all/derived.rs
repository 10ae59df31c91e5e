//! Derived rows are derived: whatever happens to them, the log can be written, `check` names what differs from it, and
//! rebuilding gives the answers of a store to which nothing happened.

use everturn_core::conversation::Settings;
use everturn_core::event::kind;
use everturn_core::id::Key;
use everturn_core::time::Timestamp;
use everturn_store::conformance::*;
use everturn_store::sqlite::Sqlite;
use everturn_store::{CheckedIndex, ConversationQuery, Index, Log, Problem, ProblemKind, TurnQuery};
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
    m: Maker,
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
    append(&store, &keys[1], vec![m.say("in the fork"), m.open()]);
    create(&store, &keys[2], vec![m.created()]);
    let again = everturn_core::write::Idempotency {
        key: "again".into(),
        request: everturn_core::chain::Hash::of(b"x"),
        only_repeat: None,
    };
    let request = everturn_core::write::Write {
        key: keys[2].clone(),
        action: everturn_core::write::Action::Append {
            drafts: vec![m.say("once")],
            expected_seq: None,
            idempotency: Some(again),
        },
    };
    done(&store, request);
    for n in 0..5 {
        append(&store, &keys[2], vec![m.say(&format!("waits {n}"))]);
    }
    // Settled, but for the last three: as a crash leaves it.
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
    World { _folder: folder, path, keys, m }
}

/// Everything that is read from derived rows.
fn answers(store: &Sqlite, keys: &[Key]) -> String {
    let all = TurnQuery { limit: 1000, include_superseded: true, ..TurnQuery::default() };
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
        store.asset_in_use(&tenant, everturn_core::chain::Hash::of(b"a")).unwrap(),
    )
}

/// What may happen to derived rows, and a word of what `check` says about it.
const DAMAGE: &[(&str, &str)] = &[
    ("UPDATE settled SET event = 0", "settled"),
    ("UPDATE settled SET event = 999999", "settled"),
    ("UPDATE settled SET event = 'x'", "settled"),
    ("UPDATE settled SET event = -7", "settled"),
    ("DELETE FROM settled", "settled"),
    ("INSERT INTO settled VALUES (1)", "settled"),
    ("UPDATE settled SET event = event - 4", "settled"),
    ("UPDATE settled SET event = (SELECT max(no) FROM events)", "places"),
    ("DELETE FROM turns", "turns"),
    ("DELETE FROM turns WHERE conversation = 1 AND seq = 2", "turns"),
    ("UPDATE turns SET status = 'aborted' WHERE seq = 2", "turns"),
    ("UPDATE turns SET superseded_by = NULL, superseded_seq = NULL", "turns"),
    ("UPDATE turns SET role = 'system', actor = 'eve' WHERE seq = 2", "turns"),
    ("INSERT INTO turns SELECT 3, 11, zeroblob(16), 'eve', 'user', 'complete', 0, NULL, NULL, NULL", "turns"),
    ("DELETE FROM places WHERE seq = 3", "places"),
    ("DELETE FROM places", "places"),
    ("UPDATE places SET event = 1 WHERE seq = 3", "places"),
    ("INSERT INTO places VALUES (3, 11, 1)", "places"),
    ("DELETE FROM assets", "assets"),
    ("UPDATE assets SET sha256 = zeroblob(32)", "assets"),
    ("DELETE FROM asset_references", "references"),
    ("UPDATE asset_references SET turn_seq = 2", "references"),
    ("DELETE FROM conversation_facts", "facts"),
    ("UPDATE conversation_facts SET source_turn = NULL", "facts"),
    ("UPDATE idempotency SET first_seq = 0", "repeated requests"),
    ("UPDATE idempotency SET last_seq = 9999", "repeated requests"),
    ("UPDATE conversations SET title = 'Coffee' WHERE no = 1", "title"),
    ("UPDATE conversations SET owner = 'eve', turns = 77, updated = 1", "owner"),
    ("UPDATE conversations SET created = 1", "created"),
    ("UPDATE conversations SET expires = 1", "expires"),
    ("UPDATE conversations SET metadata = '{' WHERE no = 3", "everything"),
    ("UPDATE conversations SET head_seq = head_seq - 2 WHERE no = 3", "head"),
    ("UPDATE conversations SET head_hash = zeroblob(32)", "head"),
    ("UPDATE conversations SET state = 'archived' WHERE no = 1", "state"),
    ("UPDATE conversations SET deleted = 1, deleted_reason = 'no' WHERE no = 1", "deleted"),
];

#[test]
fn whatever_happens_to_derived_rows_they_are_named_and_mended_and_the_log_goes_on() {
    let twin = world();
    let whole = {
        let store = Sqlite::open_read_only(&twin.path).unwrap();
        assert_eq!(store.check().unwrap(), Vec::new(), "nothing happened to it");
        drop(store);
        let store = open(&twin.path);
        // The first one may be hidden or archived by what happens below; the others take turns.
        for key in &twin.keys[1..] {
            append(&store, key, vec![twin.m.say("goes on")]);
        }
        answers(&store, &twin.keys)
    };
    for (sql, says) in DAMAGE {
        let world = world();
        Connection::open(&world.path).unwrap().execute_batch(sql).unwrap();
        let found = Sqlite::open_read_only(&world.path).unwrap().check().unwrap();
        let named = |problem: &Problem| problem.kind == ProblemKind::Derived && problem.text.contains(says);
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

/// The evidence of a cut log: what rows know of events that are not there.
#[test]
fn events_that_rows_know_of_and_the_log_lacks_are_named_by_their_places() {
    let cases: [(&str, &[&str]); 4] = [
        (
            "DELETE FROM events WHERE conversation = 3 AND seq > 4 AND no <= (SELECT event FROM settled)",
            &["seq 5 to 7"],
        ),
        ("DELETE FROM events WHERE conversation = 1 AND seq IN (3, 6, 7)", &["seq 3 is", "seq 6 to 7"]),
        ("DELETE FROM events WHERE conversation = 2 AND seq >= 8", &["seq 8 to 9"]),
        ("UPDATE conversations SET head_seq = 99 WHERE no = 3", &["seq 11 to 99"]),
    ];
    for (sql, says) in cases {
        let world = world();
        Connection::open(&world.path)
            .unwrap()
            .execute_batch(&format!("PRAGMA foreign_keys = OFF; {sql}"))
            .unwrap();
        let _ = std::fs::remove_file(format!("{}-head", world.path.display()));
        let found = Sqlite::open_read_only(&world.path).unwrap().check().unwrap();
        let missing: Vec<&Problem> = found.iter().filter(|p| p.kind == ProblemKind::Missing).collect();
        assert_eq!(missing.len(), says.len(), "{sql}: {found:#?}");
        for (problem, says) in missing.iter().zip(says) {
            assert!(problem.text.contains(says) && problem.key.is_some(), "{sql}: {problem:?}");
        }
    }
}

/// A row that named itself as its parent was followed until memory was full.
#[test]
fn a_conversation_that_is_its_own_ancestor_is_an_error() {
    let world = world();
    let db = Connection::open(&world.path).unwrap();
    db.execute("UPDATE conversations SET parent = no, parent_seq = 3 WHERE no = 1", []).unwrap();
    drop(db);
    let store = open(&world.path);
    let error = store.turns(&world.keys[0], &TurnQuery { limit: 10, ..TurnQuery::default() }).unwrap_err();
    assert!(error.to_string().contains("do not end"), "{error}");
    assert!(store.check().unwrap().iter().any(|problem| problem.text.contains("do not end")));
}
