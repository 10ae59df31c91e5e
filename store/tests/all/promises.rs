//! Every backend runs the one list of promises.

use everturn_store::memory::Memory;
use everturn_store::sqlite::Sqlite;
use std::ops::Deref;
use std::time::Duration;
use tempfile::TempDir;

mod memory {
    everturn_store::conformance!(|| Box::new(super::Memory::default()));
}

mod sqlite {
    everturn_store::conformance!(super::fresh);
}

/// A store with its temporary folder.
struct Fresh {
    store: Sqlite,
    _folder: TempDir,
}

impl Deref for Fresh {
    type Target = Sqlite;

    fn deref(&self) -> &Sqlite {
        &self.store
    }
}

/// After each promise, every derived row matches the log.
impl Drop for Fresh {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(everturn_store::Maintenance::check(&self.store).unwrap(), Vec::new());
        }
    }
}

fn fresh() -> Fresh {
    let folder = tempfile::tempdir().unwrap();
    Fresh { store: Sqlite::open(&folder.path().join("store.db"), Duration::ZERO).unwrap(), _folder: folder }
}

/// A promise that is not in the list would never be checked.
#[test]
fn every_promise_is_in_the_list() {
    let list = include_str!("../../src/conformance.rs");
    let written = [
        include_str!("../../src/conformance/backup.rs"),
        include_str!("../../src/conformance/forks.rs"),
        include_str!("../../src/conformance/isolation.rs"),
        include_str!("../../src/conformance/keys.rs"),
        include_str!("../../src/conformance/reading.rs"),
        include_str!("../../src/conformance/recall.rs"),
        include_str!("../../src/conformance/removing.rs"),
        include_str!("../../src/conformance/restoring.rs"),
        include_str!("../../src/conformance/streams.rs"),
        include_str!("../../src/conformance/tenants.rs"),
        include_str!("../../src/conformance/writing.rs"),
    ];
    for line in written.iter().flat_map(|file| file.lines()) {
        let promise =
            line.strip_prefix("pub fn ").and_then(|rest| rest.strip_suffix("(store: &dyn Backend) {"));
        if let Some(promise) = promise {
            if promise == "take_in" {
                continue;
            }
            assert!(list.lines().any(|line| line.trim() == promise), "{promise} is not in conformance!");
        }
    }
}
