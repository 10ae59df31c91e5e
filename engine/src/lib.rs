//! A conversation store for AI agents: every turn is kept in an append-only, hash-chained log, and from the log comes what the next model
//! call needs, inside a token budget.
//!
//! ```
//! use everturn::{ContextOptions, Everturn, NewTurn};
//!
//! let store = Everturn::open("memory:")?; // or "sqlite:chats.db", which is made if it is not there
//! let tenant = store.tenant("acme")?;
//! let chat = tenant.create("A trip to Oslo").wait()?;
//!
//! chat.append("Which day do we leave?").by("alice").wait()?;
//! chat.append(NewTurn::assistant("On the 3rd of May.")).wait()?;
//!
//! let context = chat.contexts().build(&ContextOptions::new(8_000))?;
//! assert_eq!(context.messages.len(), 2);
//! assert!(context.tokens.used <= 8_000);
//! # Ok::<(), everturn::Error>(())
//! ```
//!
//! # Finding your way
//!
//! - [`Everturn`] is an open store: opening and its [`Options`], checking, repairing, [backups](backup), access [`Keys`].
//! - [`Tenant`] is everything that one tenant owns: creating, listing and finding conversations, [recall](Tenant::recall) over all of them,
//!   [import](Tenant::import). No call reaches another tenant's data.
//! - [`ConversationHandle`] is one conversation: [`append`](ConversationHandle::append), [`history`](ConversationHandle::history),
//!   [`subscribe`](ConversationHandle::subscribe), [`fork`](ConversationHandle::fork), [`supersede`](ConversationHandle::supersede),
//!   [`generate`](ConversationHandle::generate), [`export`](ConversationHandle::export). What belongs together has a handle of its own:
//!   [`contexts`](ConversationHandle::contexts), [`state`](ConversationHandle::state), [`facts`](ConversationHandle::facts),
//!   [`assets`](ConversationHandle::assets), [`compaction`](ConversationHandle::compaction), [`log`](ConversationHandle::log), and
//!   [`open_turn`](ConversationHandle::open_turn) for answers that are streamed.
//! - [`model`] connects model servers, local models and embedders; [`script`] runs projectors and summarizers that users write.
//!
//! # Waiting
//!
//! A write answers with a [`Commit`] (an append with an [`Append`]): a sync caller `wait`s, an async one `.await`s, on any executor. Once it
//! answers, the write survives a power loss. Reads run on the caller's thread, on a connection of their own, and never wait for the writer.
//! A [`Subscription`] is an iterator for sync callers and a stream for async ones.
//!
//! # Errors
//!
//! Every [`Error`] has a class, a stable [`code`](Error::code), and a text that says what is wrong and what to do.
//!
//! # Not here
//!
//! The library opens no port, reads no arguments and formats nothing for people: the `everturn` program does.

// Reading order: `everturn` opens a store, `tenant` and `conversation` are its handles, `ingest` turns input into drafts of events, `journal`
// and `writer` commit them, and tell each `Observer`. Each feature has a folder: `context`, `streaming`, `compaction`, `recall`, `facts`,
// `generation`, `transfer`, `backup`, `erasing`, `mirror`. `background` sweeps, `load` lets requests go before background work.

mod assets;
mod background;
pub mod backup;
mod compaction;
mod context;
mod conversation;
mod erasing;
mod facts;
mod folds;
mod generation;
mod ingest;
mod keys;
mod load;
mod mirror;
pub mod model;
mod private;
mod proof;
mod quota;
mod recall;
pub mod script;
mod streaming;
mod tenant;
mod transfer;
mod world;
mod writer;

pub use assets::ConversationAssets;
pub use compaction::{CompactOptions, Compacted, ConversationCompaction, Summary};
pub use context::{
    Context, ContextOptions, ConversationContexts, Digest, Policy, Projection, RecallRequest, Receipt,
};
pub use conversation::{
    Append, AppendOptions, Appended, Change, ConversationHandle, ConversationState, Entry, ForkOptions,
    HistoryQuery, Order,
};
pub use erasing::{ErasedActor, Records};
pub use everturn_core::access::{AccessKey, KeyRole};
pub use everturn_core::asset::Asset;
pub use everturn_core::budget::Usage;
pub use everturn_core::chain::{Hash, Head, Report};
pub use everturn_core::conversation::{
    Conversation, Lifecycle, Parent, Retention, Settings, SystemPrompt, Tombstone,
};
pub use everturn_core::event::{Event, Visibility};
pub use everturn_core::fact::Fact;
pub use everturn_core::id::{ConversationId, EventId, FactId, GenerationId, KeyId, TenantName, TurnId};
pub use everturn_core::json::Raw;
pub use everturn_core::time::Timestamp;
pub use everturn_core::turn::{Role, Status, Tokens, Turn};
pub use everturn_core::{Error, limits};
pub use everturn_formats::provider::Provider;
pub use everturn_store::{Behind, TenantUsage};
pub use everturn_views::compaction::{Checkpoint, Covers};
pub use everturn_views::context::{Block, Cache, LeftOut, Section, Sections, Tokens as ContextTokens};
pub use everturn_views::projection::Options as ProjectionOptions;
pub use everturn_views::recall::{Kind as RecallKind, Mode as RecallMode, Snippet};
pub use everturn_views::state::{Approval, ApprovalBody, State, ToolBody};
pub use facts::{ConversationFacts, Correction, ExtractOptions, Extraction, FactQuery, NewFact};
pub use generation::{GenerateOptions, Generated, Generating, GenerationState, GenerationStatus, Progress};
pub use ingest::NewTurn;
pub use keys::{Grant, KEY_PREFIX, Keys, NewKey};
pub use proof::{ConversationLog, Doctor, Finding, Repaired};
pub use quota::{Quota, Quotas};
pub use recall::{Hit, Matched, Rank, RecallOptions, Recalled};
pub use streaming::hub::{Chunk, ChunkPosition, Position, Subscription, Update};
pub use streaming::turn::{NewStream, OpenTurn};
pub use tenant::{ListQuery, NewConversation, Page, Tenant};
pub use transfer::{Format, Imported};
pub use world::{SystemWorld, World};
pub use writer::{Commit, CommitFuture};

use compaction::worker::Changed;
use erasing::copies::Copies;
use everturn_core::event::kind;
use everturn_core::id::Key;
use everturn_core::limits::{STREAM_DEBOUNCE_MS, STREAM_IDLE_MAX_MS};
use everturn_core::redaction;
use everturn_core::turn::TurnBody;
use everturn_core::write::Write;
use everturn_store::assets::ObjectAssets;
use everturn_store::memory::Memory;
use everturn_store::sqlite::Sqlite;
use everturn_store::{Assets, CheckedIndex, CheckedLog, Committed, Recall};
use folds::Folds;
use generation::Generations;
use load::{Load, Slots};
use mirror::Mirror;
use parking_lot::{Condvar, Mutex, MutexGuard};
use recall::embedding::{self, Embeddings};
use recall::indexer::{self, Indexer};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use streaming::hub::Hub;
use streaming::open_turns::{Open, Streams};
use tokio::sync::broadcast;
use world::Source;
use writer::{Job, Queue, Submitted};

/// The page about generating: what it shows is run.
#[cfg(doctest)]
#[doc = include_str!("../../docs/generate.md")]
struct GeneratePage;

/// The page about recall.
#[cfg(doctest)]
#[doc = include_str!("../../docs/recall.md")]
struct RecallPage;

/// The page about embedders.
#[cfg(doctest)]
#[doc = include_str!("../../docs/embeddings.md")]
struct EmbeddingsPage;

/// The page about facts.
#[cfg(doctest)]
#[doc = include_str!("../../docs/facts.md")]
struct FactsPage;

/// The first page for somebody who writes Rust.
#[cfg(doctest)]
#[doc = include_str!("../../docs/quickstart-rust.md")]
struct QuickstartPage;

/// How a store is opened.
#[derive(Clone)]
pub struct Options {
    /// Only read; works beside a process that writes.
    pub read_only: bool,
    /// Make the store if it is not there. Otherwise that is an error.
    pub create: bool,
    /// How long to wait for another process that writes to end.
    pub patience: Duration,
    /// Open a store that has lost something that was committed, or rebuild one, and go on with what there is. Otherwise it
    /// is refused.
    pub accept_loss: bool,
    /// How long chunks of an open turn may wait before they are durable.
    pub debounce: Duration,
    /// An open turn without a chunk for this long is ended as interrupted.
    pub stream_idle_max: Duration,
    /// How often expired conversations and silent streams are looked for.
    pub sweep_every: Duration,
    /// How much each tenant may store.
    pub quotas: Quotas,
    /// Largest conversation that is read, or file that is imported, as one value in memory, in bytes.
    pub whole_bytes_max: u64,
    /// Whether this process compacts conversations, and learns facts from them, whose policy asks for it.
    pub auto_compaction: bool,
    /// Models that write checkpoints, by name. A conversation's policy names one, or gets `default`; without one the
    /// checkpoint is extracted. They also read turns for facts.
    pub summarizers: BTreeMap<String, Arc<dyn model::Summarize>>,
    /// Models that conversations are continued with, by name. Who names none gets `default`, or the only one.
    pub models: BTreeMap<String, model::Configured>,
    /// Whether this process takes what is committed into the index that recall looks in.
    pub index: bool,
    /// Who says what texts mean. Without one, recall compares words only.
    pub embedder: Option<Arc<dyn model::Embed>>,
    /// Who said it before: asked until everything has a vector of the embedder. The built-in one need not be named.
    pub former_embedder: Option<Arc<dyn model::Embed>>,
    /// Who orders the best 50 answers of recall once more: a better model than the embedder, since it reads only those.
    pub reranker: Option<Arc<dyn model::Embed>>,
    /// A folder in which a file per conversation is kept up to date.
    pub mirror: Option<PathBuf>,
    /// Where time and randomness come from.
    pub world: Arc<dyn World>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            read_only: false,
            create: true,
            patience: Duration::ZERO,
            accept_loss: false,
            debounce: Duration::from_millis(STREAM_DEBOUNCE_MS),
            stream_idle_max: Duration::from_millis(STREAM_IDLE_MAX_MS),
            sweep_every: Duration::from_secs(30),
            quotas: Quotas::default(),
            whole_bytes_max: 512 * 1024 * 1024,
            auto_compaction: true,
            summarizers: BTreeMap::new(),
            models: BTreeMap::new(),
            index: true,
            embedder: None,
            former_embedder: None,
            reranker: None,
            mirror: None,
            world: Arc::new(SystemWorld),
        }
    }
}

/// An open store. Clones share it; it closes when the last one is dropped.
#[derive(Clone)]
pub struct Everturn {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What the handles and the threads share.
pub(crate) struct Shared {
    pub log: Arc<dyn CheckedLog>,
    pub index: Arc<dyn CheckedIndex>,
    pub recall: Arc<dyn Recall>,
    pub indexer: Indexer,
    pub embeddings: Embeddings,
    pub assets: Arc<dyn Assets>,
    pub keys: Arc<dyn everturn_store::Keys>,
    pub backup: Arc<dyn everturn_store::Backup>,
    pub key_notes: keys::KeyNotes,
    pub stored: quota::Stored,
    pub source: Source,
    pub queue: Queue,
    pub hub: Hub,
    pub streams: Streams,
    pub options: Options,
    pub stopping: AtomicBool,
    pub load: Load,
    /// Recalls that run at once.
    pub recalls: Slots,
    /// Large conversations that are held in memory whole at once.
    pub wholes: Slots,
    /// Held by the check of everything that runs.
    pub checking: Mutex<()>,
    /// Wakes the threads that sleep between rounds.
    pub wake: Condvar,
    pub idle: Mutex<()>,
    /// Conversations as they were after their last commit; saves a read before each append.
    known: Mutex<HashMap<Key, Arc<Conversation>>>,
    /// Another process has opened the store for writing since: what is remembered may be stale.
    overtaken: AtomicBool,
    pub folds: Folds,
    /// Conversations to look at.
    pub changed: Changed,
    pub budgets: compaction::budget::Budgets,
    pub mirror: Option<Mirror>,
    pub copies: Copies,
    /// Tells whose list of conversations has changed.
    listed: broadcast::Sender<TenantName>,
    /// Answers that models are asked for.
    pub generations: Arc<Generations>,
    /// Bytes that were put for appends which are not committed yet, with how often.
    uploads: Mutex<HashMap<(TenantName, Hash), usize>>,
}

/// What a store is made of.
type Kept = (
    Arc<dyn CheckedLog>,
    Arc<dyn CheckedIndex>,
    Arc<dyn Recall>,
    Arc<dyn everturn_store::Keys>,
    Arc<dyn everturn_store::Backup>,
    Arc<dyn Assets>,
);

/// News of lists that may wait for whoever is slow to hear them.
const LISTED_AHEAD: usize = 64;

/// Past this the memory of conversations starts over.
const KNOWN_MAX: usize = 4096;

impl Everturn {
    /// Opens a store by URL: `sqlite:PATH` (or just a path) or `memory:`. A SQLite file is made if it is not there.
    pub fn open(url: &str) -> Result<Everturn, Error> {
        Everturn::open_with(url, Options::default())
    }

    /// Opens a store with options.
    pub fn open_with(url: &str, options: Options) -> Result<Everturn, Error> {
        let location = Location::parse(url)?;
        let (log, index, recall, keys, backup, assets): Kept = match &location {
            Location::Memory => {
                let memory = Arc::new(Memory::default());
                let assets = Arc::new(ObjectAssets::memory());
                (memory.clone(), memory.clone(), memory.clone(), memory.clone(), memory, assets)
            }
            Location::Sqlite(path) => {
                let is_new = !options.read_only && !path.exists();
                if !options.create {
                    everturn_store::sqlite::check_there(path)?;
                }
                let store = if options.read_only {
                    Sqlite::open_read_only(path)?
                } else if options.accept_loss {
                    Sqlite::open_accepting_loss(path, options.patience)?
                } else {
                    Sqlite::open(path, options.patience)?
                };
                if is_new {
                    close_new_store(path, backup::folder_of(path));
                }
                let (store, assets) = (Arc::new(store), ObjectAssets::folder(&assets_folder(path)));
                (store.clone(), store.clone(), store.clone(), store.clone(), store, Arc::new(assets))
            }
        };
        let copies = Copies::of(match &location {
            Location::Memory => None,
            Location::Sqlite(path) => Some(path),
        });
        let mirror = match &options.mirror {
            Some(folder) if !options.read_only => {
                let mirror = Mirror::open(folder)?;
                copies.note_mirror(folder)?;
                Some(mirror)
            }
            _ => None,
        };
        let shared = Arc::new(Shared {
            log,
            index,
            recall,
            indexer: Indexer::default(),
            embeddings: Embeddings::default(),
            assets,
            keys,
            backup,
            key_notes: keys::KeyNotes::default(),
            stored: quota::Stored::default(),
            source: Source::new(options.world.clone()),
            queue: Queue::default(),
            hub: Hub::default(),
            streams: Streams::default(),
            stopping: AtomicBool::new(false),
            load: Load::default(),
            recalls: Slots::new(load::heavy_max()),
            wholes: Slots::new(load::heavy_max()),
            checking: Mutex::default(),
            wake: Condvar::new(),
            idle: Mutex::default(),
            known: Mutex::default(),
            overtaken: AtomicBool::new(false),
            folds: Folds::default(),
            changed: Changed::default(),
            budgets: compaction::budget::Budgets::default(),
            mirror,
            copies,
            listed: broadcast::Sender::new(LISTED_AHEAD),
            generations: Arc::default(),
            uploads: Mutex::default(),
            options,
        });
        let everturn =
            Everturn { inner: Arc::new(Inner { threads: Mutex::default(), shared: shared.clone() }) };
        everturn.inner.start()?;
        if !shared.options.read_only {
            background::recover(&shared)?;
        }
        if let Some(mirror) = &shared.mirror {
            mirror.start(shared.clone())?;
        }
        Ok(everturn)
    }

    /// Everything that this tenant can do, and nothing of any other's.
    pub fn tenant(&self, name: &str) -> Result<Tenant, Error> {
        Ok(Tenant::new(self.inner.clone(), TenantName::new(name)?))
    }

    /// Has erasures reach session files below a folder, which were or will be recorded there: see [`Tenant::records_in`].
    pub fn note_records(&self, folder: &Path) -> Result<(), Error> {
        self.inner.shared.note_records(folder)
    }

    /// Whether the store takes what is written next. The error says why not: another process opened it for writing, or its
    /// file was removed, renamed or replaced. A store that was opened for reading only is always ready.
    pub fn ready(&self) -> Result<(), Error> {
        let shared = &self.inner.shared;
        if shared.options.read_only {
            return Ok(());
        }
        shared.log.ready().inspect_err(|error| shared.note_refusal(error))
    }

    /// Who may ask a server, of every tenant.
    pub fn keys(&self) -> Keys {
        Keys::new(self.inner.shared.clone(), Some(self.inner.clone()))
    }

    /// Tells whose list of conversations has changed, whenever this process begins or deletes one.
    pub fn listings(&self) -> Listings {
        Listings(self.inner.shared.listed.clone())
    }

    /// Says that somebody is being served: background work gives way for a moment. Appends and recall say so themselves.
    pub fn note_request(&self) {
        self.inner.shared.load.note();
    }

    /// Deletes what has expired and ends silent streams, now instead of at the next round. Says how many of each.
    pub fn sweep(&self) -> Result<background::Swept, Error> {
        background::sweep(&self.inner.shared)
    }

    /// Gives unused space of the file back. Takes as long as copying the file does, and writers wait meanwhile.
    pub fn compact(&self) -> Result<(), Error> {
        self.inner.shared.index.compact()
    }

    /// Takes everything that is committed into the indexes now, instead of within a second, and says how much is
    /// missing afterwards. Works also where the store was opened for reading only, if the indexes can be written.
    pub fn index_now(&self) -> Result<Behind, Error> {
        indexer::catch_up(&self.inner.shared)?;
        self.behind()
    }

    /// How far what recall finds is behind what is committed, over all tenants.
    pub fn behind(&self) -> Result<Behind, Error> {
        embedding::behind_in_all(&self.inner.shared)
    }

    /// Makes vectors of what has none, as far as this time allows, and says how much is missing afterwards. The background does
    /// it anyway; this is for a process that ends soon. Does nothing without an embedder.
    pub fn embed_now(&self, time: Duration) -> Result<Behind, Error> {
        embedding::catch_up(&self.inner.shared, None, time)?;
        self.behind()
    }

    /// The models of which there are vectors, each with how long those are: `model/384`. More than one while a change of the
    /// embedder is under way.
    pub fn vector_models(&self) -> Result<Vec<String>, Error> {
        self.inner.shared.recall.vector_models(None)
    }
}

pub use background::Swept;

/// News of lists of conversations.
#[derive(Clone)]
pub struct Listings(broadcast::Sender<TenantName>);

impl Listings {
    /// From now on. Whoever is slow to hear them misses some, and is told so.
    pub fn subscribe(&self) -> broadcast::Receiver<TenantName> {
        self.0.subscribe()
    }
}

/// Where a URL points.
enum Location {
    Memory,
    Sqlite(PathBuf),
}

impl Location {
    fn parse(url: &str) -> Result<Location, Error> {
        let unknown = |what: &str| {
            let text = format!("{:?} {what}; use sqlite:PATH or memory:", everturn_core::id::clip(url));
            Err(Error::invalid("store.url", text))
        };
        match url.split_once(':') {
            Some(("memory", "")) => Ok(Location::Memory),
            Some(("memory", _)) => unknown("has text after memory:"),
            Some(("sqlite", path)) if !path.is_empty() => {
                Ok(Location::Sqlite(PathBuf::from(path.strip_prefix("//").unwrap_or(path))))
            }
            Some(("sqlite", _)) => unknown("names no file"),
            Some((scheme, _))
                if scheme.len() > 1 && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'+') =>
            {
                unknown("is not a store this version knows")
            }
            _ if url.is_empty() => unknown("is empty"),
            _ => Ok(Location::Sqlite(PathBuf::from(url))),
        }
    }
}

/// Keeps others from reading a store that was just made and has nothing in it yet.
fn close_new_store(database: &Path, folder: &Path) {
    let database = everturn_store::sqlite::resolve(database);
    let beside = |suffix: &str| {
        let mut name = database.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    // Files that are made later get the mode of the database.
    for file in ["", "-wal", "-shm", "-head", ".lock"].map(beside).iter().filter(|file| file.exists()) {
        private::close(file, folder);
    }
    for made in ["-assets", "-index"].map(beside).iter().filter(|path| std::fs::create_dir(path).is_ok()) {
        private::close(made, folder);
    }
}

/// `chats.db` keeps its assets in `chats.db-assets`, beside the file that a symbolic link leads to. Where they were once
/// written beside the link, they stay.
fn assets_folder(database: &Path) -> PathBuf {
    let beside = |path: &Path| {
        let mut name = path.as_os_str().to_owned();
        name.push("-assets");
        PathBuf::from(name)
    };
    let (given, real) = (beside(database), beside(&everturn_store::sqlite::resolve(database)));
    if given.is_dir() && !real.is_dir() { given } else { real }
}

/// Whether somebody waits for what a thread does.
#[derive(Clone, Copy, PartialEq)]
enum Priority {
    Request,
    Background,
}

impl Inner {
    fn start(&self) -> Result<(), Error> {
        let mut threads = self.threads.lock();
        let mut spawn = |name: &str, priority: Priority, body: fn(&Arc<Shared>)| {
            let shared = self.shared.clone();
            let builder = std::thread::Builder::new().name(format!("everturn-{name}"));
            let thread = builder.spawn(move || {
                if priority == Priority::Background {
                    load::lower_priority();
                }
                body(&shared)
            });
            thread
                .map(|thread| threads.push(thread))
                .map_err(|e| Error::internal("thread", format!("cannot start a thread: {e}")))
        };
        if self.shared.options.read_only {
            return spawn("follow", Priority::Request, |shared| background::follow(shared));
        }
        spawn("writer", Priority::Request, |shared| writer::run(shared))?;
        spawn("chunks", Priority::Request, |shared| background::debounce(shared))?;
        if self.shared.options.auto_compaction {
            (0..compaction::worker::WORKERS)
                .try_for_each(|_| spawn("compaction", Priority::Background, compaction::worker::run))?;
        }
        if self.shared.options.index {
            spawn("indexer", Priority::Background, |shared| indexer::run(shared))?;
            if self.shared.options.embedder.is_some() {
                spawn("embedder", Priority::Background, |shared| embedding::run(shared))?;
            }
        }
        spawn("sweeper", Priority::Background, |shared| background::sweeper(shared))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.shared.options.auto_compaction {
            compaction::worker::finish(&self.shared);
        }
        // Before the last chunks are written: what an answer said so far is kept, and it comes back as interrupted.
        self.shared.generations.close();
        self.shared.stop();
        for thread in self.threads.lock().drain(..) {
            // A thread that ended badly has said so itself.
            let _ = thread.join();
        }
        if let Some(mirror) = &self.shared.mirror {
            mirror.stop();
        }
        self.shared.hub.close();
    }
}

impl Shared {
    fn known(&self) -> MutexGuard<'_, HashMap<Key, Arc<Conversation>>> {
        self.known.lock()
    }

    /// The same, if it is in memory.
    pub fn known_conversation(&self, key: &Key) -> Option<Arc<Conversation>> {
        self.known().get(key).cloned()
    }

    /// The conversation as of its last commit here.
    pub fn conversation(&self, key: &Key) -> Result<Arc<Conversation>, Error> {
        if let Some(known) = self.known_conversation(key) {
            return Ok(known);
        }
        let conversation = Arc::new(self.index.conversation(key)?);
        self.remember(key, conversation.clone());
        Ok(conversation)
    }

    fn remember(&self, key: &Key, conversation: Arc<Conversation>) {
        let mut known = self.known();
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        let newer = known.get(key).is_none_or(|old| old.head.seq <= conversation.head.seq);
        if newer && !self.options.read_only && !self.overtaken.load(Ordering::SeqCst) {
            known.insert(key.clone(), conversation);
        }
    }

    /// Forgets what is remembered once another process has taken the right to write: reads then come from the store.
    pub fn note_refusal(&self, error: &Error) {
        if error.code() == "store.overtaken" && !self.overtaken.swap(true, Ordering::SeqCst) {
            self.forget_derived();
        }
    }

    /// Refuses what a store that was opened for reading cannot do.
    fn writable(&self) -> Result<(), Error> {
        if self.options.read_only {
            return Err(Error::invalid(
                "store.opened_read_only",
                "the store was opened for reading only; open it for writing",
            ));
        }
        Ok(())
    }

    /// Queues a request for a caller who will wait for it, one way or the other. Refused if it would exceed the tenant's
    /// quota.
    pub fn submit(
        self: &Arc<Self>,
        mut write: Write,
        uploads: Vec<(TenantName, Hash)>,
    ) -> Result<Submitted, Error> {
        if let Err(error) = self.check_write(&mut write) {
            self.uploaded(&uploads);
            let hashes: Vec<Hash> = uploads.into_iter().map(|(_, sha256)| sha256).collect();
            self.collect(&write.key.tenant, &hashes);
            return Err(error);
        }
        self.submit_beyond_quota(write, uploads)
    }

    /// Queues a request that is part of an erasure, which no quota may stop.
    pub fn submit_beyond_quota(
        self: &Arc<Self>,
        write: Write,
        uploads: Vec<(TenantName, Hash)>,
    ) -> Result<Submitted, Error> {
        self.load.note();
        Ok(Submitted::new(self.queue(write, uploads)?, self.clone()))
    }

    /// Queues a request and has the writer thread see to it.
    pub fn submit_now(&self, write: Write) -> Result<oneshot::Receiver<Result<Committed, Error>>, Error> {
        let answer = self.queue(write, Vec::new())?;
        self.queue.nudge();
        Ok(answer)
    }

    fn queue(
        &self,
        write: Write,
        uploads: Vec<(TenantName, Hash)>,
    ) -> Result<oneshot::Receiver<Result<Committed, Error>>, Error> {
        self.writable()?;
        let (done, answer) = oneshot::channel();
        match self.queue.push(Job { write, since: std::time::Instant::now(), uploads, done }) {
            Ok(()) => Ok(answer),
            Err(refused) => {
                let (job, error) = *refused;
                self.uploaded(&job.uploads);
                Err(error)
            }
        }
    }

    /// Notes a folder of session files for erasures. A process that may only read the store goes on without the note.
    pub fn note_records(&self, folder: &Path) -> Result<(), Error> {
        match self.copies.note_records(folder) {
            Err(error) if self.options.read_only => {
                tracing::warn!(%error, "erasures by other processes will not reach what is recorded here");
                Ok(())
            }
            noted => noted,
        }
    }

    /// What follows from a commit. Called by the writer before the caller hears of it, in the order of the log.
    pub fn committed(&self, key: &Key, deleted: bool, committed: &Committed) {
        if committed.repeated {
            return;
        }
        self.count_stored(&key.tenant, deleted, &committed.events);
        for event in &committed.events {
            match event.turn {
                Some(turn) if event.kind == kind::OPENED => {
                    let opened: TurnBody = event.read().unwrap_or_default();
                    let open = Open {
                        seq: event.seq,
                        actor: event.actor.clone(),
                        role: event.role.unwrap_or(Role::Assistant),
                        model: opened.model,
                        metadata: opened.metadata,
                        text: String::new(),
                        json_bytes: 0,
                        durable: 0,
                        dirty_since: None,
                        last: event.at,
                        volatile: ingest::redaction_mode(&committed.conversation) == redaction::Mode::Mask,
                    };
                    self.streams.open().insert((key.clone(), turn), open);
                }
                Some(turn) if kind::ends_turn(&event.kind) => {
                    self.streams.open().remove(&(key.clone(), turn));
                    self.generations.turn_ended(key, Some(turn));
                }
                _ => {}
            }
        }
        if deleted
            || committed.events.iter().any(|event| matches!(&*event.kind, kind::CREATED | kind::FORKED))
        {
            // Nobody may be listening.
            let _ = self.listed.send(key.tenant.clone());
        }
        for place in &committed.erased {
            // Titles and checkpoints may be others now, also those of forks.
            let touched = Key { tenant: key.tenant.clone(), id: place.conversation };
            self.known().remove(&touched);
            self.folds.forget(Some(&touched));
        }
        if !committed.erased.is_empty() {
            self.hub.erase(&key.tenant, &committed.erased);
        }
        if deleted {
            self.budgets.forget(key);
            self.known().remove(key);
            self.folds.forget(Some(key));
            self.changed.forget(key);
            self.streams.open().retain(|(of, _), _| of != key);
            self.generations.turn_ended(key, None);
            self.hub.publish(key, std::iter::once(Update::Deleted));
        } else {
            self.remember(key, committed.conversation.clone());
            if self.options.auto_compaction && !committed.events.is_empty() {
                self.changed.note(key, committed.events.len());
            }
            if self.hub.is_followed(key) {
                let events = committed.events.iter().map(|event| Update::Event(Arc::new(event.clone())));
                self.hub.publish(key, events);
            }
        }
        if self.options.index {
            if deleted {
                self.indexer.note_removal();
            } else {
                self.indexer.note();
            }
        }
        if let Some(mirror) = self.mirror.as_ref().filter(|_| deleted || !committed.events.is_empty()) {
            mirror.committed(key, deleted, committed.events.iter().any(|event| event.kind == kind::ERASED));
        }
        self.collect(&key.tenant, &committed.released);
    }

    fn uploads(&self) -> MutexGuard<'_, HashMap<(TenantName, Hash), usize>> {
        self.uploads.lock()
    }

    /// Puts bytes, and keeps them from being collected until [`Shared::uploaded`] says that their event is there.
    pub fn upload(&self, tenant: &TenantName, sha256: Hash, bytes: Vec<u8>) -> Result<(), Error> {
        self.writable()?;
        *self.uploads().entry((tenant.clone(), sha256)).or_default() += 1;
        self.assets.put(tenant, sha256, bytes).inspect_err(|_| self.uploaded(&[(tenant.clone(), sha256)]))
    }

    /// The appends that these bytes were put for are done.
    pub fn uploaded(&self, done: &[(TenantName, Hash)]) {
        if done.is_empty() {
            return;
        }
        let mut uploads = self.uploads();
        for upload in done {
            if let Some(count) = uploads.get_mut(upload) {
                *count -= 1;
                if *count == 0 {
                    uploads.remove(upload);
                }
            }
        }
    }

    /// Deletes bytes that nothing refers to any more. What fails here is found again by the sweeper.
    pub fn collect(&self, tenant: &TenantName, hashes: &[Hash]) -> usize {
        let mut collected = 0;
        for sha256 in hashes {
            // Held while deleting, so that an upload of the same bytes comes before or after, not between.
            let uploads = self.uploads();
            let wanted = uploads.contains_key(&(tenant.clone(), *sha256))
                || self.index.asset_in_use(tenant, *sha256).unwrap_or(true);
            if !wanted {
                match self.assets.delete(tenant, *sha256) {
                    Ok(()) => collected += 1,
                    Err(error) => tracing::warn!(%error, "an unused asset could not be deleted"),
                }
            }
        }
        collected
    }

    /// Ends the threads: chunks are handed over, then everything that waits is written.
    fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        background::flush(self);
        self.queue.close();
        // Whoever has looked whether the store closes, and does not wait yet, holds the lock: without it they would miss this.
        drop(self.streams.open());
        self.streams.dirty.notify_all();
        drop(self.idle.lock());
        self.wake.notify_all();
        self.changed.wake();
        self.indexer.wake();
        self.embeddings.wake();
    }

    /// What an open turn says so far, if it is open here.
    pub(crate) fn open_turn(&self, key: &Key, turn: TurnId) -> Option<Open> {
        self.streams.open().get(&(key.clone(), turn)).cloned()
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.source.now()
    }

    /// The events after a place up to another, all of them.
    pub(crate) fn events_between(&self, key: &Key, after: u64, through: u64) -> Result<Vec<Event>, Error> {
        let mut events: Vec<Event> = Vec::new();
        loop {
            let last = events.last().map_or(after, |event| event.seq);
            if last >= through {
                return Ok(events);
            }
            let page = self.log.events(key, last, usize::try_from(through - last).unwrap_or(usize::MAX))?;
            if page.is_empty() {
                return Ok(events);
            }
            events.extend(page);
        }
    }

    /// Refuses to hold this many bytes as one value.
    pub(crate) fn check_whole(&self, bytes: u64) -> Result<(), Error> {
        let limit = self.options.whole_bytes_max;
        if bytes <= limit {
            return Ok(());
        }
        let advice = "read it in pages, or export it, which is streamed";
        Err(Error::limit("WHOLE_BYTES_MAX", limit, bytes, advice))
    }
}
