//! A store in a folder of its own, and a world whose clock stands still until it is moved.

use crate::dice::Dice;
use everturn_core::chain::Hash;
use everturn_core::conversation::{Conversation, Settings};
use everturn_core::id::ConversationId;
use everturn_core::time::Timestamp;
use everturn_core::turn::Turn;
use everturn_engine::{
    Appended, Error, Everturn, HistoryEntry, HistoryQuery, NewConversation, NewTurn, Options, Tenant, Update,
    World,
};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// More than any step takes, also on a busy machine. Only a failing test waits this long.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A folder with a store in it. Gone with the test.
pub struct Stage {
    pub folder: tempfile::TempDir,
}

impl Stage {
    pub fn new() -> Stage {
        Stage { folder: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("store.db")
    }

    pub fn url(&self) -> String {
        format!("sqlite:{}", self.path().display())
    }

    pub fn open(&self) -> Everturn {
        self.open_with(quiet())
    }

    pub fn open_with(&self, options: Options) -> Everturn {
        Everturn::open_with(&self.url(), options).unwrap()
    }

    pub fn open_read_only(&self) -> Everturn {
        self.open_with(Options { read_only: true, ..Options::default() })
    }

    /// The files of the store in which this text stands.
    pub fn files_with(&self, text: &str) -> Vec<PathBuf> {
        let holds = |path: PathBuf| match std::fs::read(&path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).contains(text).then_some(Ok(path)),
            Err(error) => Some(Err(error)),
        };
        loop {
            let found: Result<Vec<PathBuf>, std::io::Error> =
                files(self.folder.path()).into_iter().filter_map(holds).collect();
            match found {
                // The mirror writes under another name first: list them again.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                found => return found.unwrap(),
            }
        }
    }
}

/// Every file below a folder.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found
}

/// A clock that is moved by hand, and random bytes that are the same in every run and whatever was asked before.
pub struct Still {
    now: AtomicI64,
    pattern: Mutex<[u8; 16]>,
}

/// 2026-01-01T00:00:00Z.
pub const START: Timestamp = Timestamp(1_767_225_600_000_000);

impl Still {
    pub fn new(seed: u64) -> Arc<Still> {
        let mut dice = Dice::new(seed);
        let pattern = std::array::from_fn(|_| dice.next() as u8 | 1);
        Arc::new(Still { now: AtomicI64::new(START.0), pattern: Mutex::new(pattern) })
    }

    pub fn set(&self, to: Timestamp) {
        self.now.store(to.0, Ordering::SeqCst);
    }

    pub fn advance_s(&self, seconds: i64) {
        self.now.fetch_add(seconds * 1_000_000, Ordering::SeqCst);
    }

    pub fn options(self: &Arc<Still>) -> Options {
        Options { world: self.clone(), sweep_every: Duration::from_secs(3600), ..quiet() }
    }
}

impl World for Still {
    fn now(&self) -> Timestamp {
        Timestamp(self.now.load(Ordering::SeqCst))
    }

    fn fill(&self, buffer: &mut [u8]) -> Result<(), Error> {
        let pattern = *self.pattern.lock().unwrap();
        buffer.iter_mut().zip(pattern.iter().cycle()).for_each(|(byte, with)| *byte = *with);
        Ok(())
    }
}

/// Nothing happens without being asked: whoever counts events must know which there are.
pub fn quiet() -> Options {
    Options { auto_compaction: false, ..Options::default() }
}

/// A store in memory and a tenant of it.
pub fn memory() -> (Everturn, Tenant) {
    let store = Everturn::open_with("memory:", quiet()).unwrap();
    let scope = store.tenant("acme").unwrap();
    (store, scope)
}

/// What tests ask for most.
pub trait Short {
    fn begin(&self) -> ConversationId;
    fn begin_with(&self, settings: Settings) -> Conversation;
    fn say(&self, id: ConversationId, turn: NewTurn) -> Turn;
    fn try_say(&self, id: ConversationId, turn: NewTurn) -> Result<Appended, Error>;
    /// Every turn, superseded ones included.
    fn turns(&self, id: ConversationId) -> Vec<Turn>;
    fn kinds(&self, id: ConversationId) -> Vec<String>;
    fn head(&self, id: ConversationId) -> Hash;
}

impl Short for Tenant {
    fn begin(&self) -> ConversationId {
        self.create(NewConversation::default()).wait().unwrap().id()
    }

    fn begin_with(&self, settings: Settings) -> Conversation {
        self.create(NewConversation { settings, ..NewConversation::default() }).wait().unwrap().get().unwrap()
    }

    fn say(&self, id: ConversationId, turn: NewTurn) -> Turn {
        self.try_say(id, turn).unwrap().turns.remove(0)
    }

    fn try_say(&self, id: ConversationId, turn: NewTurn) -> Result<Appended, Error> {
        self.conversation(id).append(turn).wait()
    }

    fn turns(&self, id: ConversationId) -> Vec<Turn> {
        let query = HistoryQuery { include_superseded: true, limit: 1000, ..HistoryQuery::default() };
        turns_of(self.conversation(id).history(query).unwrap().data)
    }

    fn kinds(&self, id: ConversationId) -> Vec<String> {
        self.conversation(id).log().read(0, 1000).unwrap().into_iter().map(|event| event.kind).collect()
    }

    fn head(&self, id: ConversationId) -> Hash {
        self.conversation(id).get().unwrap().head.hash
    }
}

pub fn turns_of(entries: Vec<HistoryEntry>) -> Vec<Turn> {
    entries
        .into_iter()
        .filter_map(|entry| match entry {
            HistoryEntry::Turn(turn) => Some(*turn),
            HistoryEntry::Event(_) => None,
        })
        .collect()
}

/// The words of a turn whose content is one text; `None` if it is open or erased.
pub fn words(turn: &Turn) -> Option<String> {
    Some(turn.value()?["content"].as_str()?.to_string())
}

/// The places of the events among some updates.
pub fn seqs(updates: &[Update]) -> Vec<u64> {
    updates
        .iter()
        .filter_map(|update| match update {
            Update::Event(event) => Some(event.seq),
            _ => None,
        })
        .collect()
}

/// Asserts a refusal: its code, and words that its sentence must have.
#[track_caller]
pub fn refused<T>(answer: Result<T, Error>, code: &str, says: &str) {
    match answer {
        Ok(_) => panic!("expected {code}, but it was accepted"),
        Err(error) => {
            assert_eq!(error.code(), code, "{error}");
            assert!(error.text().contains(says), "{error:?} does not say {says:?}");
        }
    }
}

/// Looks again and again until it is so.
#[track_caller]
pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain until {what}");
        std::thread::yield_now();
    }
}
