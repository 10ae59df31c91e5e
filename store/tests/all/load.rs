//! Constant load beside a constant slow reader: the write-ahead log must not grow forever.

use everturn_store::conformance::*;
use everturn_store::sqlite::Sqlite;
use rusqlite::Connection;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Two readers in turn: each begins a slow read before the other ends, so that there is no moment without one.
fn keep_reading(path: &Path, enough: &AtomicBool) {
    let readers = [Connection::open(path).unwrap(), Connection::open(path).unwrap()];
    let begin = |reader: &Connection| {
        let read = "SELECT sum(length(hex(body))) FROM (SELECT body FROM events ORDER BY no DESC LIMIT 2)";
        reader.execute_batch(&format!("BEGIN; {read}")).unwrap();
    };
    begin(&readers[0]);
    while !enough.load(Ordering::Relaxed) {
        begin(&readers[1]);
        readers[0].execute_batch("COMMIT").unwrap();
        begin(&readers[0]);
        readers[1].execute_batch("COMMIT").unwrap();
    }
}

#[test]
fn the_write_ahead_log_stays_bounded_beside_a_slow_reader_that_never_pauses() {
    const WAL_BYTES_BOUND: u64 = 96 << 20;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let store = Sqlite::open(&path, Duration::ZERO).unwrap();
    let m = Maker::default();
    let key = m.key();
    create(&store, &key, vec![m.created()]);
    let text = "z".repeat(2 << 20);
    let enough = AtomicBool::new(false);
    let mut largest = 0;
    std::thread::scope(|threads| {
        threads.spawn(|| keep_reading(&path, &enough));
        let mut written = 0;
        while written < 2 * WAL_BYTES_BOUND {
            append(&store, &key, vec![m.say(&text)]);
            written += text.len() as u64;
            largest = largest.max(std::fs::metadata(folder.path().join("store.db-wal")).unwrap().len());
        }
        enough.store(true, Ordering::Relaxed);
    });
    assert!(largest < WAL_BYTES_BOUND, "it grew to {} MiB", largest >> 20);
}
