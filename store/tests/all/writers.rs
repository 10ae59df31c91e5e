//! A second writer, by whatever path: nothing acknowledged is lost and no `seq` is assigned twice.
//!
//! Regression: concurrent writers assigned 300 `seq` numbers twice among 600 acknowledged appends; after that
//! the store could no longer be opened for writing.

use everturn_core::id::{ConversationId, Key};
use everturn_store::conformance::*;
use everturn_store::sqlite::Sqlite;
use everturn_store::{AccessKeys, ConversationIndex, FoldCache, Log, Maintenance};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

const STORE: &str = "EVERTURN_TEST_STORE";
const APPENDS: usize = 300;

fn open(path: &Path) -> Result<Sqlite, everturn_core::Error> {
    Sqlite::open(path, Duration::ZERO)
}

fn shared() -> Key {
    Key { tenant: tenant("acme"), id: ConversationId::from_bytes([5; 16]) }
}

/// A store with one conversation.
fn begun() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let m = Maker::default();
    create(&open(&path).unwrap(), &shared(), vec![m.created()]);
    (folder, path)
}

/// Appends turns until one is refused. Returns what was acknowledged, by `seq`, and the refusal.
fn append_all(store: &Sqlite, m: &Maker, name: &str) -> (BTreeMap<u64, String>, Option<String>) {
    let mut acknowledged = BTreeMap::new();
    for n in 0..APPENDS {
        let text = format!("{name}-{n}");
        match store.commit(vec![addition(&shared(), vec![m.say(&text)])]).remove(0) {
            Ok(committed) => drop(acknowledged.insert(committed.events[0].seq, text)),
            Err(error) => return (acknowledged, Some(error.code().into())),
        }
    }
    (acknowledged, None)
}

/// Entry point of the other process: this binary again, with a job. Without one, this does nothing.
#[test]
fn another_process_that_writes_comes_in_here() {
    let Ok(path) = std::env::var(STORE) else { return };
    println!();
    let m = Maker::default();
    // Ids of this process must differ from those of the other.
    for _ in 0..1_000_000 {
        m.now();
    }
    match open(Path::new(&path)) {
        Err(error) => println!("refused {}", error.code()),
        Ok(store) => {
            println!("open");
            let (acknowledged, refusal) = append_all(&store, &m, "other");
            acknowledged.iter().for_each(|(seq, text)| println!("acknowledged {seq} {text}"));
            println!("end {}", refusal.unwrap_or_default());
        }
    }
}

struct Other {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Other {
    fn start(path: &Path) -> Other {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "writers::another_process_that_writes_comes_in_here", "--nocapture"]);
        let mut child = command.env(STORE, path).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Other { child, lines }
    }

    /// The rest of the first line with this beginning.
    fn says(&mut self, beginning: &str) -> String {
        loop {
            let line = self.lines.next().expect("the other process says something").unwrap();
            if let Some(rest) = line.strip_prefix(beginning) {
                return rest.trim().to_string();
            }
            assert!(!line.starts_with("refused") && !line.starts_with("end"), "{line}");
        }
    }

    /// Everything acknowledged to it, until its end.
    fn finish(mut self) -> BTreeMap<u64, String> {
        let mut acknowledged = BTreeMap::new();
        for line in self.lines.by_ref() {
            let line = line.unwrap();
            if let Some((seq, text)) = line.strip_prefix("acknowledged ").and_then(|l| l.split_once(' ')) {
                acknowledged.insert(seq.parse().unwrap(), text.to_string());
            }
        }
        assert!(self.child.wait().unwrap().success());
        acknowledged
    }
}

/// Asserts that everything acknowledged to any writer is in the log, each at its own `seq`.
fn assert_all_there(path: &Path, acknowledged: &[BTreeMap<u64, String>]) {
    let store = open(path).unwrap();
    let report = verify(&store, &shared());
    let texts = texts(&store, &shared());
    let total: usize = acknowledged.iter().map(BTreeMap::len).sum();
    let mut places: BTreeMap<u64, &String> = BTreeMap::new();
    for (seq, text) in acknowledged.iter().flatten() {
        assert_eq!(places.insert(*seq, text), None, "seq {seq} was given twice");
        assert_eq!(&texts[*seq as usize - 2], text);
    }
    assert_eq!(report.events as usize, total + 1);
    assert_eq!(store.check().unwrap(), Vec::new());
}

#[cfg(unix)]
#[test]
fn a_symbolic_link_is_another_way_to_the_same_lock() {
    let (folder, path) = begun();
    let elsewhere = tempfile::tempdir().unwrap();
    let link = elsewhere.path().join("link.db");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    std::os::unix::fs::symlink(folder.path(), elsewhere.path().join("folder")).unwrap();
    let m = Maker::default();
    let store = open(&path).unwrap();
    for way in [link.clone(), elsewhere.path().join("folder").join("store.db")] {
        assert_eq!(Other::start(&way).says("refused"), "store.owned");
        assert_eq!(open(&way).err().unwrap().code(), "store.owned", "also in the same process");
    }
    let (acknowledged, refusal) = append_all(&store, &m, "owner");
    assert_eq!((acknowledged.len(), refusal), (APPENDS, None));
    drop(store);
    assert_all_there(&link, &[acknowledged]);
}

#[cfg(unix)]
#[test]
fn a_link_to_a_store_that_is_not_there_yet_locks_the_place_where_it_will_be() {
    let folder = tempfile::tempdir().unwrap();
    let (path, link) = (folder.path().join("store.db"), folder.path().join("link.db"));
    std::os::unix::fs::symlink("store.db", &link).unwrap();
    let store = open(&link).unwrap();
    assert!(path.is_file());
    assert_eq!(open(&path).err().unwrap().code(), "store.owned");
    drop(store);
    open(&path).unwrap();
}

#[test]
fn a_writer_that_was_overtaken_is_refused_for_good() {
    let (_folder, path) = begun();
    let m = Maker::default();
    let first = open(&path).unwrap();
    append(&first, &shared(), vec![m.say("first-before")]);
    std::fs::remove_file(path.with_extension("db.lock")).unwrap();
    let mut other = Other::start(&path);
    other.says("open");
    let (mut acknowledged, mut refusal) = append_all(&first, &m, "first");
    assert_eq!(refusal.take().as_deref(), Some("store.overtaken"));
    acknowledged.insert(2, "first-before".into());
    let others = other.finish();
    assert_eq!(others.len(), APPENDS, "whoever came last goes on undisturbed");
    // Every write is refused, and reads show the state that the other process made.
    let overtaken = |result: Result<(), everturn_core::Error>| {
        assert_eq!(result.err().unwrap().code(), "store.overtaken");
    };
    overtaken(first.rebuild());
    overtaken(first.compact());
    overtaken(first.keep_fold(&shared(), 1, &everturn_core::json::Raw::new("{}".to_string()).unwrap()));
    overtaken(
        first.revoke_key(&shared().tenant, everturn_core::id::KeyId::from_bytes([1; 16]), m.now()).map(drop),
    );
    refused(&first, addition(&shared(), vec![m.say("again")]), "store.overtaken");
    assert_eq!(
        first.conversation(&shared()).unwrap().head.seq as usize,
        2 + acknowledged.len() - 1 + others.len()
    );
    assert_eq!(verify(&first, &shared()).events as usize, 1 + acknowledged.len() + others.len());
    drop(first);
    assert_all_there(&path, &[acknowledged, others]);
}

#[test]
fn a_writer_that_was_overtaken_in_its_own_process_is_refused_too() {
    let (_folder, path) = begun();
    let m = Maker::default();
    let first = open(&path).unwrap();
    append(&first, &shared(), vec![m.say("one")]);
    std::fs::remove_file(path.with_extension("db.lock")).unwrap();
    let second = open(&path).unwrap();
    append(&second, &shared(), vec![m.say("two")]);
    let error = refused(&first, addition(&shared(), vec![m.say("three")]), "store.overtaken");
    assert!(error.text().contains("restart"), "{error}");
    assert_eq!(texts(&first, &shared()), ["one", "two"]);
    drop(first);
    append(&second, &shared(), vec![m.say("three")]);
    drop(second);
    assert_eq!(texts(&open(&path).unwrap(), &shared()), ["one", "two", "three"]);
}

#[cfg(unix)]
#[test]
fn a_database_with_two_names_is_not_written() {
    let (folder, path) = begun();
    let other = folder.path().join("other.db");
    let m = Maker::default();
    let store = open(&path).unwrap();
    std::fs::hard_link(&path, &other).unwrap();
    let error = open(&other).err().unwrap();
    assert_eq!(error.code(), "store.two_names");
    assert!(error.text().contains("2 names") && error.text().contains("everturn backup"), "{error}");
    assert_eq!(Other::start(&other).says("refused"), "store.two_names");
    let (acknowledged, refusal) = append_all(&store, &m, "owner");
    assert_eq!((acknowledged.len(), refusal), (APPENDS, None));
    drop(store);
    std::fs::remove_file(&other).unwrap();
    assert_all_there(&path, &[acknowledged]);
}

/// The row of the writer is reset, so that the next one might get the epoch of one that is still running.
#[test]
fn a_writer_is_refused_also_where_the_row_of_the_writer_was_changed() {
    for sql in
        ["DELETE FROM ownership", "UPDATE ownership SET epoch = epoch - 1", "UPDATE ownership SET epoch = 0"]
    {
        let (_folder, path) = begun();
        let m = Maker::default();
        let first = open(&path).unwrap();
        append(&first, &shared(), vec![m.say("one")]);
        rusqlite::Connection::open(&path).unwrap().execute_batch(sql).unwrap();
        std::fs::remove_file(path.with_extension("db.lock")).unwrap();
        let second = open(&path).unwrap();
        refused(&first, addition(&shared(), vec![m.say("lost")]), "store.overtaken");
        append(&second, &shared(), vec![m.say("two")]);
        assert_eq!(texts(&second, &shared()), ["one", "two"], "{sql}");
    }
}

#[test]
fn a_writer_that_was_overtaken_is_not_ready_before_it_writes_again() {
    let (_folder, path) = begun();
    let m = Maker::default();
    let first = open(&path).unwrap();
    append(&first, &shared(), vec![m.say("one")]);
    first.ready().unwrap();
    std::fs::remove_file(path.with_extension("db.lock")).unwrap();
    let second = open(&path).unwrap();
    append(&second, &shared(), vec![m.say("two")]);
    assert_eq!(first.ready().unwrap_err().code(), "store.overtaken");
    assert_eq!(first.conversation(&shared()).unwrap().head.seq, 3, "it answers as the store is now");
    second.ready().unwrap();
}

/// Regression: appends to a file that can never be found again were acknowledged.
#[cfg(unix)]
#[test]
fn a_writer_whose_file_was_removed_renamed_or_replaced_acknowledges_nothing() {
    let (folder, path) = begun();
    let (m, aside) = (Maker::default(), folder.path().join("aside"));
    let store = open(&path).unwrap();
    append(&store, &shared(), vec![m.say("before")]);
    let refuses = || {
        let error = refused(&store, addition(&shared(), vec![m.say("lost")]), "store.moved");
        assert!(error.text().contains("store.db") && error.text().contains("restart"), "{error}");
        assert_eq!(store.ready().unwrap_err().code(), "store.moved");
        assert_eq!(store.settle().err().map_or("store.moved", |e| e.code()), "store.moved");
    };
    for suffix in ["", "-wal"] {
        let file = PathBuf::from(format!("{}{suffix}", path.display()));
        std::fs::rename(&file, &aside).unwrap();
        refuses();
        std::fs::copy(&aside, &file).unwrap();
        refuses();
        // Once put back, it can be continued.
        std::fs::rename(&aside, &file).unwrap();
        store.ready().unwrap();
        append(&store, &shared(), vec![m.say("after")]);
    }
    std::fs::remove_file(&path).unwrap();
    refuses();
}
