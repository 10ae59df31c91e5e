//! A log that two processes wrote concurrently, before that was impossible: it opens, reads and can be
//! continued, and everything acknowledged by either can be kept.

use everturn_core::chain::{Head, next_event};
use everturn_core::event::Event;
use everturn_core::id::Key;
use everturn_store::conformance::*;
use everturn_store::sqlite::Sqlite;
use everturn_store::{Backup, ConversationIndex, Divergence, Maintenance, ProblemKind};
use rusqlite::{Connection, params};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

fn open(path: &Path) -> Sqlite {
    Sqlite::open(path, Duration::ZERO).unwrap()
}

/// Writes a row as every version of the program did.
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

/// A writer with a head of its own.
struct Writer<'a> {
    db: &'a Connection,
    m: &'a Maker,
    key: &'a Key,
    head: Head,
}

impl Writer<'_> {
    fn says(&mut self, text: &str) {
        let event = next_event(self.key.id, self.head, self.m.say(text));
        insert(self.db, &event);
        self.head = Head { seq: event.seq, hash: event.hash };
    }
}

/// A conversation with one turn, and the end of its log.
fn shared() -> (TempDir, PathBuf, Key, Maker, Head) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let (m, store) = (Maker::default(), open(&path));
    let key = m.key();
    create(&store, &key, vec![m.created(), m.say("shared")]);
    let head = store.conversation(&key).unwrap().head;
    (folder, path, key, m, head)
}

/// The log of three writers: two diverged after "shared", a third diverged from the second after "b1".
fn damaged() -> (TempDir, PathBuf, Key, Maker) {
    let (folder, path, key, m, head) = shared();
    let db = Connection::open(&path).unwrap();
    let mut a = Writer { db: &db, m: &m, key: &key, head };
    let mut b = Writer { db: &db, m: &m, key: &key, head };
    a.says("a1");
    b.says("b1");
    let mut c = Writer { db: &db, m: &m, key: &key, head: b.head };
    b.says("b2");
    a.says("a2");
    c.says("c2");
    a.says("a3");
    b.says("b3");
    a.says("a4");
    drop(db);
    (folder, path, key, m)
}

#[test]
fn a_log_that_two_processes_wrote_opens_and_goes_on_and_nothing_of_it_is_dropped() {
    let (_folder, path, key, m) = damaged();
    let reader = Sqlite::open_read_only(&path).unwrap();
    verify(&reader, &key);
    let found = reader.check().unwrap();
    assert!(
        found.iter().any(|p| p.kind == ProblemKind::Diverged && p.text.contains("from seq 3")),
        "{found:#?}"
    );
    drop(reader);
    let store = open(&path);
    assert_eq!(texts(&store, &key), ["shared", "a1", "a2", "a3", "a4"]);
    append(&store, &key, vec![m.say("a5")]);
    store.rebuild().unwrap();
    verify(&store, &key);

    // Each branch becomes a fork from where it diverged, and a branch of a branch a fork of that.
    let mut forks = Vec::new();
    while let Some(branch) = store.branches().unwrap().into_iter().next() {
        let fork = m.key();
        done(&store, m.fork(&fork, &branch.key, branch.at_seq));
        assert_eq!(store.adopt(&branch, &fork).unwrap(), branch.events);
        forks.push(fork);
    }
    let read = |store: &Sqlite| -> Vec<Vec<String>> { forks.iter().map(|fork| texts(store, fork)).collect() };
    assert_eq!(read(&store), [vec!["shared", "b1", "b2", "b3"], vec!["shared", "b1", "c2"]]);
    assert_eq!(texts(&store, &key), ["shared", "a1", "a2", "a3", "a4", "a5"]);
    assert_eq!(store.check().unwrap(), Vec::new());
    for key in forks.iter().chain([&key]) {
        verify(&store, key);
        append(&store, key, vec![m.say("and on")]);
    }
    store.rebuild().unwrap();
    assert_eq!(store.check().unwrap(), Vec::new());
}

/// Turns in a fork of the losing branch were acknowledged too.
#[test]
fn forks_that_left_another_branch_go_with_it() {
    moves_forks(6, false);
}

/// A deleted fork is kept for what its own forks read of it, be that its own events or only inherited ones.
#[test]
fn forks_of_a_deleted_fork_that_left_another_branch_go_with_it() {
    moves_forks(6, true);
    moves_forks(4, true);
}

/// Repairs a log with a fork of its second branch, and a fork of that.
fn moves_forks(grandchild_at: u64, deleted: bool) {
    let (_folder, path, key, m) = damaged();
    let (fork, grandchild) = (m.key(), m.key());
    // Made in a copy where the branch of the second writer was the whole log.
    let elsewhere = tempfile::tempdir().unwrap();
    let alone = elsewhere.path().join("alone.db");
    std::fs::copy(&path, &alone).unwrap();
    let db = Connection::open(&alone).unwrap();
    db.execute("DELETE FROM events WHERE seq > 2 AND instr(body, '\"b') = 0", []).unwrap();
    drop(db);
    let store = open(&alone);
    assert_eq!(texts(&store, &key), ["shared", "b1", "b2", "b3"]);
    done(&store, m.fork(&fork, &key, 4));
    append(&store, &fork, vec![m.say("in the fork")]);
    done(&store, m.fork(&grandchild, &fork, grandchild_at));
    append(&store, &grandchild, vec![m.say("in its fork")]);
    let inherited = texts(&store, &grandchild);
    if deleted {
        append(&store, &fork, vec![m.say("not inherited")]);
        done(&store, m.delete(&fork));
    }
    drop(store);
    let db = Connection::open(&path).unwrap();
    db.execute("ATTACH ? AS alone", [alone.to_str().unwrap()]).unwrap();
    db.execute_batch(
        "INSERT INTO conversation_rows SELECT * FROM alone.conversation_rows WHERE no > 1;
         INSERT INTO events SELECT no + 1000, conversation, seq, id, at, occurred_at, kind, actor, role, visibility, turn,
             body_hash, hash, salt, body, written_by FROM alone.events WHERE conversation > 1;
         INSERT INTO places SELECT conversation, seq, event + 1000 FROM alone.places WHERE conversation > 1;
         INSERT INTO turn_rows SELECT * FROM alone.turn_rows WHERE conversation > 1;",
    )
    .unwrap();
    drop(db);
    let store = open(&path);
    let mut repaired = Vec::new();
    while let Some(branch) = store.branches().unwrap().into_iter().next() {
        let into = m.key();
        done(&store, m.fork(&into, &branch.key, branch.at_seq));
        store.adopt(&branch, &into).unwrap();
        repaired.push(into);
    }
    assert_eq!(texts(&store, &key), ["shared", "a1", "a2", "a3", "a4"]);
    if deleted {
        assert_eq!(store.conversation(&fork).unwrap_err().code(), "conversation.absent");
        assert_eq!(store.tombstones(&fork.tenant).unwrap()[0].id, fork.id);
    } else {
        assert_eq!(texts(&store, &fork), ["shared", "b1", "b2", "in the fork"]);
    }
    assert_eq!(texts(&store, &grandchild), inherited);
    assert_eq!(inherited[..3], ["shared", "b1", "b2"]);
    assert_eq!(store.check().unwrap(), Vec::new());
    store.rebuild().unwrap();
    assert_eq!(store.check().unwrap(), Vec::new());
    // A backup is restored in the order of the members.
    let members = store.members().unwrap();
    assert!(members.iter().all(|member| member.parent.is_none_or(|(parent, _)| parent < member.no)));
    for key in [&key, &grandchild].into_iter().chain((!deleted).then_some(&fork)).chain(&repaired) {
        verify(&store, key);
        append(&store, key, vec![m.say("and on")]);
    }
    if deleted {
        return;
    }
    // An import relies on what a fork says about its parent.
    let memory = everturn_store::memory::Memory::default();
    for one in [&key, &repaired[0], &fork, &grandchild] {
        let own: Vec<Event> =
            log(&store, one).into_iter().filter(|event| event.conversation == one.id).collect();
        done(&memory, restoration(one, &own));
    }
    assert_eq!(texts(&memory, &grandchild), texts(&store, &grandchild));
}

/// A backup reaches the end of the log, even if the other process wrote last and less.
#[test]
fn a_shorter_branch_that_was_written_last_does_not_cut_a_backup() {
    let (_folder, path, key, m, head) = shared();
    let store = open(&path);
    for text in ["a1", "a2", "a3"] {
        append(&store, &key, vec![m.say(text)]);
    }
    drop(store);
    let db = Connection::open(&path).unwrap();
    Writer { db: &db, m: &m, key: &key, head }.says("b1");
    drop(db);
    let store = Sqlite::open_read_only(&path).unwrap();
    let members = store.members().unwrap();
    let member = store.member(members[0].no).unwrap();
    assert_eq!((members[0].through, member.through), (5, 5));
    let events = store.member_events(member.no, 0, member.through, usize::MAX).unwrap();
    assert_eq!(events.iter().map(|event| event.seq).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    assert_eq!(members[0].hash, Some(events[4].hash));
    assert_eq!(store.branches().unwrap()[0].events, 1);
}
