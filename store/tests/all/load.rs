//! Constant load with readers that are never all gone at once: the write-ahead log must not grow for ever.

use everturn_core::limits::BODY_BYTES_MAX;
use everturn_store::conformance::*;
use everturn_store::sqlite::Sqlite;
use rusqlite::Connection;
use std::time::Duration;

#[test]
fn the_write_ahead_log_stays_bounded_beside_readers_that_never_pause() {
    const WAL_BYTES_BOUND: u64 = 96 << 20;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let store = Sqlite::open(&path, Duration::ZERO).unwrap();
    let m = Maker::default();
    let key = m.key();
    create(&store, &key, vec![m.created()]);
    let reader = || {
        let db = Connection::open(&path).unwrap();
        db.execute_batch("BEGIN; SELECT count(*) FROM conversations").unwrap();
        db
    };
    let text = "z".repeat(BODY_BYTES_MAX / 8);
    let mut reading = reader();
    let mut written = 0;
    let mut largest = 0;
    while written < 3 * WAL_BYTES_BOUND {
        append(&store, &key, vec![m.say(&text)]);
        written += text.len() as u64;
        // The next reader begins before the last one ends.
        reading = reader();
        largest = largest.max(std::fs::metadata(folder.path().join("store.db-wal")).unwrap().len());
    }
    drop(reading);
    assert!(largest < WAL_BYTES_BOUND, "it grew to {} MiB", largest >> 20);
}
