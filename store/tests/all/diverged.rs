//! An event that something else wrote beside a log: no writer of ours does that. It is reported, and the log goes on.

use everturn_core::chain::next_event;
use everturn_core::event::Event;
use everturn_store::conformance::*;
use everturn_store::sqlite::Sqlite;
use everturn_store::{Backup, ConversationIndex, Maintenance, ProblemKind};
use rusqlite::{Connection, params};
use std::path::Path;
use std::time::Duration;

fn open(path: &Path) -> Sqlite {
    Sqlite::open(path, Duration::ZERO).unwrap()
}

/// Writes a row beside the log.
fn insert(db: &Connection, event: &Event) {
    let body = event.body.as_ref().unwrap();
    db.execute(
        "INSERT INTO events (conversation, seq, id, at, kind, actor, role, visibility, turn, body_hash, hash, salt, body)
         VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        params![
            event.seq as i64,
            event.id.to_bytes(),
            event.at.0,
            event.kind,
            event.actor,
            event.role.map(|role| role.as_str()),
            event.visibility.as_str(),
            event.turn.map(|turn| turn.to_bytes()),
            event.body_hash.0,
            event.hash.0,
            body.salt,
            body.text,
        ],
    )
    .unwrap();
}

#[test]
fn an_event_beside_the_log_is_reported_and_the_log_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let (m, store) = (Maker::default(), open(&path));
    let key = m.key();
    create(&store, &key, vec![m.created(), m.say("shared")]);
    let head = store.conversation(&key).unwrap().head;
    for text in ["a1", "a2", "a3"] {
        append(&store, &key, vec![m.say(text)]);
    }
    drop(store);
    insert(&Connection::open(&path).unwrap(), &next_event(key.id, head, m.say("b1")));
    let store = Sqlite::open_read_only(&path).unwrap();
    verify(&store, &key);
    let found = store.check().unwrap();
    assert!(
        found.iter().any(|p| p.kind == ProblemKind::Damaged && p.text.contains("from seq 3 on, 1 event")),
        "{found:#?}"
    );
    // A backup reaches the end of the log, even if the other event was written last.
    let members = store.members().unwrap();
    let member = store.member(members[0].no).unwrap();
    assert_eq!((members[0].through, member.through), (5, 5));
    let events = store.member_events(member.no, 0, member.through, usize::MAX).unwrap();
    assert_eq!(events.iter().map(|event| event.seq).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    assert_eq!(members[0].hash, Some(events[4].hash));
    drop(store);
    let store = open(&path);
    append(&store, &key, vec![m.say("a4")]);
    store.rebuild().unwrap();
    assert_eq!(texts(&store, &key), ["shared", "a1", "a2", "a3", "a4"]);
    verify(&store, &key);
}
