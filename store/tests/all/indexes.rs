//! Recall with index files: each tenant has its own, and any of them may be lost.

use everturn_core::id::{Key, TenantName};
use everturn_core::limits::INDEXES_OPEN_MAX;
use everturn_store::conformance::{Maker, append, create, done, take_in, take_in_some};
use everturn_store::sqlite::Sqlite;
use everturn_store::{Maintenance, RecallIndex, WordSearch};
use everturn_views::recall::{Filter, TextQuery};
use std::path::{Path, PathBuf};
use std::time::Duration;

fn open(folder: &Path) -> Sqlite {
    Sqlite::open(&folder.join("store.db"), Duration::ZERO).unwrap()
}

fn of(tenant: &str, m: &Maker) -> Key {
    Key { tenant: TenantName::new(tenant).unwrap(), id: m.key().id }
}

fn file(folder: &Path, tenant: &str) -> PathBuf {
    folder.join(format!("store.db-index/t-{tenant}.db"))
}

fn found(store: &Sqlite, tenant: &str) -> usize {
    let tenant = TenantName::new(tenant).unwrap();
    store.find_text(&tenant, &TextQuery::parse("beacon"), &Filter::default(), 100).unwrap().found.len()
}

fn behind(store: &Sqlite, tenant: &str) -> u64 {
    store.behind(Some(&TenantName::new(tenant).unwrap()), None).unwrap().events
}

/// A store in which two tenants wrote in turns, fully indexed.
fn furnished(folder: &Path, m: &Maker) -> (Key, Key) {
    let (one, two) = (of("one", m), of("two", m));
    let store = open(folder);
    create(&store, &one, vec![m.created()]);
    create(&store, &two, vec![m.created()]);
    for n in 0..20 {
        append(&store, &one, vec![m.say(&format!("beacon {n} of one"))]);
        append(&store, &two, vec![m.say(&format!("beacon {n} of two"))]);
    }
    take_in(&store);
    (one, two)
}

/// Everything that is left to index, by tenant.
fn left(store: &Sqlite) -> Vec<(Option<String>, usize)> {
    let mut left = Vec::new();
    loop {
        let unindexed = store.unindexed(8).unwrap();
        if unindexed.span.after == unindexed.span.through {
            return left;
        }
        let only = unindexed.span.tenant.as_ref().map(|tenant| tenant.to_string());
        if let Some(only) = &only {
            assert!(unindexed.events.iter().all(|(tenant, _)| tenant.as_str() == only));
        }
        left.push((only, unindexed.events.len()));
        store.index(Vec::new(), unindexed.span).unwrap();
    }
}

#[test]
fn a_lost_file_is_made_again_from_its_tenants_events_only() {
    let (folder, m) = (tempfile::tempdir().unwrap(), Maker::default());
    furnished(folder.path(), &m);
    std::fs::remove_file(file(folder.path(), "one")).unwrap();
    let store = open(folder.path());
    assert_eq!((found(&store, "one"), found(&store, "two")), (0, 20));
    assert_eq!((behind(&store, "one"), behind(&store, "two")), (21, 0), "only its tenant is told so");
    take_in(&store);
    assert_eq!((found(&store, "one"), behind(&store, "one")), (20, 0));
    drop(store);
    std::fs::remove_file(file(folder.path(), "one")).unwrap();
    let events = left(&open(folder.path()));
    assert!(events.iter().all(|(only, _)| only.as_deref() == Some("one")), "{events:?}");
    assert_eq!(events.iter().map(|(_, events)| events).sum::<usize>(), 21, "{events:?}");
}

/// After a power loss a file may be older than the others.
#[test]
fn a_file_that_fell_behind_catches_up_beside_new_events() {
    let (folder, m) = (tempfile::tempdir().unwrap(), Maker::default());
    let (one, two) = furnished(folder.path(), &m);
    let older = std::fs::read(file(folder.path(), "one")).unwrap();
    {
        let store = open(folder.path());
        for n in 20..30 {
            append(&store, &one, vec![m.say(&format!("beacon {n} of one"))]);
        }
        take_in(&store);
        assert_eq!(found(&store, "one"), 30);
    }
    std::fs::write(file(folder.path(), "one"), older).unwrap();
    let store = open(folder.path());
    append(&store, &one, vec![m.say("a beacon while it is behind")]);
    append(&store, &two, vec![m.say("another beacon of two")]);
    assert_eq!((found(&store, "one"), behind(&store, "one")), (20, 11));
    take_in(&store);
    assert_eq!((found(&store, "one"), found(&store, "two")), (31, 21));
    assert_eq!((behind(&store, "one"), behind(&store, "two")), (0, 0));
}

#[test]
fn a_lost_feed_costs_no_index() {
    let (folder, m) = (tempfile::tempdir().unwrap(), Maker::default());
    let (one, _) = furnished(folder.path(), &m);
    let before = std::fs::read(file(folder.path(), "two")).unwrap();
    std::fs::write(folder.path().join("store.db-index/feed.db"), "no database").unwrap();
    let store = open(folder.path());
    append(&store, &one, vec![m.say("one more beacon")]);
    take_in(&store);
    assert_eq!((found(&store, "one"), found(&store, "two")), (21, 20));
    drop(store);
    assert!(std::fs::read(file(folder.path(), "two")).unwrap() == before, "it was not written again");
}

#[test]
fn more_tenants_than_can_be_open_find_their_own() {
    let (folder, m) = (tempfile::tempdir().unwrap(), Maker::default());
    let store = open(folder.path());
    let names: Vec<String> = (0..INDEXES_OPEN_MAX + 9).map(|n| format!("tenant{n}")).collect();
    for name in &names {
        create(&store, &of(name, &m), vec![m.created(), m.say("the beacon")]);
    }
    take_in(&store);
    for _ in 0..2 {
        assert!(names.iter().all(|name| found(&store, name) == 1));
    }
    let open_files = std::fs::read_dir("/proc/self/fd").map_or(0, |all| {
        let to = |file: std::io::Result<std::fs::DirEntry>| std::fs::read_link(file.ok()?.path()).ok();
        all.filter_map(to).filter(|path| path.starts_with(folder.path().join("store.db-index"))).count()
    });
    // Each has a file, a write-ahead log and its index; and there are some reading connections.
    assert!(open_files <= (INDEXES_OPEN_MAX + 1) * 3 + 8 * 3, "{open_files} are open");
}

#[test]
fn with_the_last_conversation_goes_the_tenants_file() {
    let (folder, m) = (tempfile::tempdir().unwrap(), Maker::default());
    let (one, _) = furnished(folder.path(), &m);
    let store = open(folder.path());
    done(&store, m.delete(&one));
    take_in(&store);
    assert!(!file(folder.path(), "one").exists());
    assert_eq!((found(&store, "one"), found(&store, "two")), (0, 20));
    let again = of("one", &m);
    create(&store, &again, vec![m.created(), m.say("a new beacon")]);
    take_in(&store);
    assert_eq!((found(&store, "one"), behind(&store, "one")), (1, 0));
    drop(store);
    let left = left(&open(folder.path()));
    assert_eq!(left, [], "what was deleted is not looked for again");
}

#[test]
fn a_rebuild_empties_every_index_and_all_is_taken_in_again() {
    let (folder, m) = (tempfile::tempdir().unwrap(), Maker::default());
    furnished(folder.path(), &m);
    let store = open(folder.path());
    assert_eq!(found(&store, "one"), 20);
    store.rebuild().unwrap();
    assert_eq!(found(&store, "one"), 0);
    take_in(&store);
    assert_eq!((found(&store, "one"), found(&store, "two")), (20, 20));
}

/// Regression: the first tenant in the feed could not be written, and nothing was indexed for anyone.
#[test]
fn a_file_that_cannot_be_written_stops_nobody_else() {
    let (folder, m) = (tempfile::tempdir().unwrap(), Maker::default());
    let (one, two) = furnished(folder.path(), &m);
    std::fs::remove_file(file(folder.path(), "one")).unwrap();
    std::fs::create_dir(file(folder.path(), "one")).unwrap();
    let store = open(folder.path());
    for n in 0..10 {
        append(&store, &one, vec![m.say(&format!("beacon {n} again"))]);
        append(&store, &two, vec![m.say(&format!("beacon {n} again"))]);
    }
    for _ in 0..50 {
        // It fails whenever it is the turn of the first.
        let _ = take_in_some(&store, 3);
    }
    assert_eq!((found(&store, "two"), behind(&store, "two")), (30, 0));
    std::fs::remove_dir(file(folder.path(), "one")).unwrap();
    take_in(&store);
    assert_eq!((found(&store, "one"), behind(&store, "one")), (30, 0));
}
