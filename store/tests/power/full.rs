//! A full disk: the whole batch reports it, nothing of it is written, reads continue, and so do writes once
//! there is space again.

use crate::disk::Disk;
use everturn_core::Error;
use everturn_core::id::Key;
use everturn_core::write::Write;
use everturn_store::conformance::*;
use everturn_store::sqlite::Sqlite;
use everturn_store::{ConversationIndex, Log, Maintenance};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

struct Cramped {
    store: Sqlite,
    disk: Arc<Disk>,
    keys: [Key; 2],
    _folder: TempDir,
}

fn cramped(m: &Maker) -> Cramped {
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::watch(folder.path());
    let path = folder.path().canonicalize().unwrap().join("store.db");
    let store = Sqlite::open(&path, Duration::ZERO).unwrap();
    let keys = [m.key(), m.key()];
    for key in &keys {
        create(&store, key, vec![m.created(), m.say("from before")]);
    }
    Cramped { store, disk, keys, _folder: folder }
}

fn batch(m: &Maker, keys: &[Key; 2], size: usize) -> Vec<Write> {
    let text = "y".repeat(size);
    vec![
        addition(&keys[0], vec![m.say(&text), m.say(&text)]),
        creation(&m.key(), vec![m.created(), m.say(&text)]),
        addition(&keys[1], vec![m.say(&text)]),
    ]
}

/// Commits with this much space left and returns whether it was enough.
fn squeeze(c: &Cramped, m: &Maker, space: u64, size: usize) -> bool {
    let before = c.keys.clone().map(|key| log(&c.store, &key));
    let listed = || c.store.starting_with(&tenant("acme"), "", usize::MAX).unwrap().len();
    let conversations = listed();
    c.disk.set_space(Some(space));
    let answers = c.store.commit(batch(m, &c.keys, size));
    if answers.iter().all(Result::is_ok) {
        c.disk.set_space(None);
        return true;
    }
    for answer in answers {
        let error = answer.expect_err("all of a batch, or nothing");
        assert_eq!(error.code(), "store.full", "with {space} bytes");
        assert!(matches!(error, Error::Busy(_)) && error.text().contains("free some space"), "{error:?}");
    }
    // Reads continue, and show nothing of it.
    assert_eq!(c.keys.clone().map(|key| log(&c.store, &key)), before);
    assert_eq!(listed(), conversations);
    assert_eq!(c.store.commit(batch(m, &c.keys, size)).into_iter().filter(Result::is_ok).count(), 0);
    c.disk.set_space(None);
    for answer in c.store.commit(batch(m, &c.keys, size)) {
        answer.unwrap();
    }
    for (key, before) in c.keys.iter().zip(&before) {
        assert_eq!(log(&c.store, key)[..before.len()], before[..]);
        verify(&c.store, key);
    }
    assert_eq!(listed(), conversations + 1);
    false
}

#[test]
fn a_batch_that_finds_the_disk_full_leaves_nothing_and_can_be_sent_again() {
    let m = Maker::default();
    let c = cramped(&m);
    let mut enough = 0;
    // From nothing at all to more than the batch needs, so that the disk fills up at every kind of write.
    let spaces: Vec<u64> = (0..60).map(|n| n * 2503).collect();
    for space in &spaces {
        enough += usize::from(squeeze(&c, &m, *space, 5000));
    }
    assert!(enough > 5 && enough < 50, "{enough} of {} had enough space", spaces.len());
    assert_eq!(c.store.check().unwrap(), Vec::new());
}

#[test]
fn a_batch_larger_than_the_cache_that_finds_the_disk_full_leaves_nothing() {
    // Its first pages are written before the commit, when the cache is full.
    let m = Maker::default();
    let c = cramped(&m);
    assert!(!squeeze(&c, &m, 36 << 20, 12 << 20));
}

#[test]
fn a_full_disk_is_said_when_a_store_is_made_on_it() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::watch(folder.path());
    let path = folder.path().canonicalize().unwrap().join("store.db");
    for space in (0..100).map(|n| n * 1009) {
        disk.set_space(Some(space));
        match Sqlite::open(&path, Duration::ZERO) {
            Err(error) => assert_eq!(error.code(), "store.full", "with {space} bytes: {error:?}"),
            Ok(_) => break,
        }
    }
    disk.set_space(None);
    let store = Sqlite::open(&path, Duration::ZERO).unwrap();
    let m = Maker::default();
    create(&store, &m.key(), vec![m.created()]);
}
