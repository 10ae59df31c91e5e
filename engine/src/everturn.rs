//! An open store: its parts, its threads, and operations on all of it.

use crate::background::{self, Pauses};
use crate::compaction::worker::{self as compactor, Compactions};
use crate::context::Transcripts;
use crate::conversation::due::Deadlines;
use crate::elsewhere;
use crate::erasing::copies::Copies;
use crate::expiry::{Expiry, Unexpired};
use crate::folds::Folds;
use crate::generation::Generations;
use crate::journal::{Journal, Observer, Upload};
use crate::keys::{KeyRing, Keys};
use crate::listings::Listings;
use crate::load::{self, Load, Slots};
use crate::locks::Locks;
use crate::mirror::Mirror;
use crate::quota::{QuotaCounts, Quotas};
use crate::recall::RecallIndex;
use crate::recall::embedding;
use crate::recall::indexer::{self, Indexer};
use crate::streaming::changes::ChangeHub;
use crate::streaming::hub::Hub;
use crate::streaming::open_turns::Streams;
use crate::tenant::Tenant;
use crate::token_usage::{Price, TokenCounts};
use crate::transfer::one_at_a_time::RunningImports;
use crate::world::{Source, SystemWorld, World};
use crate::writer::{self, PrepareAgain, Submitted};
use crate::{backup, model, private};
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::id::TenantName;
use everturn_core::limits::{STREAM_DEBOUNCE_MS, STREAM_IDLE_MAX_MS};
use everturn_core::time::Timestamp;
use everturn_core::write::Write;
use everturn_store::assets::{FolderAssets, MemoryAssets};
use everturn_store::memory::Memory;
use everturn_store::sqlite::Sqlite;
use everturn_store::{Assets, Behind, ChangeFeed, CheckedIndex, CheckedLog, RecallStore};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Options for opening a store.
#[derive(Clone)]
pub struct Options {
    /// Open for reading only; works beside a writing process.
    pub read_only: bool,
    /// Create the store if it does not exist. Otherwise that is an error.
    pub create: bool,
    /// Longest wait for another writing process to end.
    pub patience: Duration,
    /// Open or rebuild a store that has lost committed data, and go on with the rest. Otherwise that is refused.
    pub accept_loss: bool,
    /// Longest time until chunks of an open turn are durable.
    pub debounce: Duration,
    /// An open turn without a chunk for this long is ended as interrupted.
    pub stream_idle_max: Duration,
    /// Interval between sweeps for expired conversations and idle streams.
    pub sweep_every: Duration,
    /// Storage quotas of the tenants.
    pub quotas: Quotas,
    /// Prices of models; none by default.
    pub prices: Vec<Price>,
    /// Largest conversation read, or file imported, as one value in memory, in bytes.
    pub whole_bytes_max: u64,
    /// Whether this process compacts conversations and extracts facts where their policy asks for it.
    pub auto_compaction: bool,
    /// Models that write checkpoints, by name. A conversation's policy names one, else `default` is used; without one
    /// the checkpoint is extracted. They also read turns for facts.
    pub summarizers: BTreeMap<String, Arc<dyn model::Summarizer>>,
    /// Models that continue conversations, by name. A request without a name uses `default`, or the only one.
    pub models: BTreeMap<String, model::Configured>,
    /// Whether this process indexes commits for recall.
    pub index: bool,
    /// Embedding model. Without one, recall is lexical.
    pub embedder: Option<Arc<dyn model::Embed>>,
    /// Previous embedding model: used until everything has a vector of the new one. The built-in one need not be
    /// named.
    pub former_embedder: Option<Arc<dyn model::Embed>>,
    /// Reranking model, applied to the best 50 results of recall. It may be larger than the embedder, since it reads
    /// only those.
    pub reranker: Option<Arc<dyn model::Embed>>,
    /// Mirror: a folder with one file per conversation, kept up to date.
    pub mirror: Option<PathBuf>,
    /// Source of time and randomness.
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
            prices: Vec::new(),
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
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// State shared by the handles and the threads.
pub(crate) struct Shared {
    pub options: Options,
    pub journal: Arc<Journal>,
    pub recall: RecallIndex,
    pub keys: KeyRing,
    /// Changes by other processes, where several write one store.
    pub elsewhere: Option<Arc<dyn ChangeFeed>>,
    pub backup: Arc<dyn everturn_store::Backup>,
    pub quotas: Arc<QuotaCounts>,
    pub token_counts: TokenCounts,
    pub folds: Arc<Folds>,
    pub transcripts: Arc<Transcripts>,
    pub compaction: Arc<Compactions>,
    pub streams: Arc<Streams>,
    pub hub: Arc<Hub>,
    pub generations: Arc<Generations>,
    pub listings: Arc<Listings>,
    pub changes: Arc<ChangeHub>,
    pub deadlines: Arc<Deadlines>,
    pub expiry: Arc<Expiry>,
    pub mirror: Option<Arc<Mirror>>,
    pub copies: Copies,
    pub load: Load,
    pub pauses: Pauses,
    /// Limits the large conversations held in memory as a whole.
    pub wholes: Slots,
    pub imports: RunningImports,
    /// Held during a check of the whole store.
    pub checking: Mutex<()>,
    /// Held while a session is ended.
    pub ending: Locks,
}

/// Parts of a store.
type StoreParts = (
    Arc<dyn CheckedLog>,
    Arc<dyn CheckedIndex>,
    Arc<dyn RecallStore>,
    Arc<dyn everturn_store::AccessKeys>,
    Arc<dyn everturn_store::Backup>,
    Arc<dyn Assets>,
    Option<Arc<dyn ChangeFeed>>,
);

impl Everturn {
    /// Opens a store by URL: `sqlite:PATH` (or just a path), `postgres://USER@HOST/DATABASE` or `memory:`. A SQLite
    /// file is created if it does not exist, and tables in a PostgreSQL database if it has none. PostgreSQL needs the feature
    /// `postgres`, and assets of such a store in an object store (`?assets=s3://…`) the feature `objects`.
    pub fn open(url: &str) -> Result<Everturn, Error> {
        Everturn::open_with(url, Options::default())
    }

    /// Opens a store with options.
    pub fn open_with(url: &str, options: Options) -> Result<Everturn, Error> {
        let location = Location::parse(url)?;
        let (log, index, recall, keys, backup, assets, elsewhere): StoreParts = match &location {
            Location::Memory => {
                let memory = Arc::new(Memory::default());
                let assets = Arc::new(MemoryAssets::default());
                (memory.clone(), memory.clone(), memory.clone(), memory.clone(), memory, assets, None)
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
                let (store, assets) = (Arc::new(store), FolderAssets::new(&assets_folder(path)));
                (store.clone(), store.clone(), store.clone(), store.clone(), store, Arc::new(assets), None)
            }
            Location::Postgres(url) => open_postgres(url, options.read_only)?,
        };
        let unexpired = Arc::new(Unexpired::new(log, index, options.world.clone(), options.read_only));
        let (log, index): (Arc<dyn CheckedLog>, Arc<dyn CheckedIndex>) =
            (unexpired.clone(), unexpired.clone());
        let copies = Copies::of(match &location {
            Location::Memory | Location::Postgres(_) => None,
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
        let mirror = mirror.map(Arc::new);
        let quotas = Arc::new(QuotaCounts::new(options.quotas.clone(), index.clone()));
        let (indexer, compaction) =
            (Arc::<Indexer>::default(), Arc::new(Compactions::new(options.auto_compaction)));
        let (streams, hub, folds) =
            (Arc::<Streams>::default(), Arc::<Hub>::default(), Arc::<Folds>::default());
        let (generations, listings) = (Arc::<Generations>::default(), Arc::<Listings>::default());
        let transcripts = Arc::<Transcripts>::default();
        let changes = Arc::<ChangeHub>::default();
        let deadlines = Arc::<Deadlines>::default();
        let expiry = Arc::<Expiry>::default();
        // In this order: an open turn must be known before its event is published.
        let mut observers: Vec<Arc<dyn Observer>> = vec![
            quotas.clone(),
            streams.clone(),
            generations.clone(),
            listings.clone(),
            changes.clone(),
            folds.clone(),
            transcripts.clone(),
            hub.clone(),
            compaction.clone(),
            deadlines.clone(),
            unexpired,
            expiry.clone(),
        ];
        if options.index {
            observers.push(indexer.clone());
        }
        observers.extend(mirror.clone().map(|mirror| mirror as Arc<dyn Observer>));
        let source = Source::new(options.world.clone());
        let mut journal = Journal::new(log, index, assets, source, options.read_only, observers);
        journal.alone = elsewhere.is_none();
        let shared = Arc::new(Shared {
            journal: Arc::new(journal),
            recall: RecallIndex::new(recall, indexer),
            keys: KeyRing::new(keys),
            elsewhere,
            backup,
            quotas,
            token_counts: TokenCounts::default(),
            folds,
            transcripts,
            compaction,
            streams,
            hub,
            generations,
            listings,
            changes,
            deadlines,
            expiry,
            mirror,
            copies,
            load: Load::default(),
            pauses: Pauses::default(),
            wholes: Slots::new(load::heavy_max()),
            imports: RunningImports::default(),
            checking: Mutex::default(),
            ending: Locks::default(),
            options,
        });
        let everturn =
            Everturn { inner: Arc::new(Inner { threads: Mutex::default(), shared: shared.clone() }) };
        everturn.inner.start()?;
        if !shared.options.read_only {
            let first = background::leads(&shared).and_then(|leads| match leads {
                true => background::delete_expired(&shared),
                false => Ok(()),
            });
            if let Err(error) = first {
                tracing::warn!(%error, "expired conversations are not deleted; the sweeper retries");
            }
            background::recover(&shared)?;
            let embeds = shared.options.index && shared.options.embedder.is_some();
            if let Some(why) = shared.recall.store.without_vectors().filter(|_| embeds) {
                tracing::warn!("{why}");
            }
        }
        if let Some(mirror) = &shared.mirror {
            mirror.start(shared.clone())?;
        }
        Ok(everturn)
    }

    /// Handle of a tenant. No call reaches another tenant's data.
    pub fn tenant(&self, name: &str) -> Result<Tenant, Error> {
        Ok(Tenant::new(self.inner.clone(), TenantName::new(name)?))
    }

    /// Makes erasures reach session files below a folder, existing and future ones: see [`Tenant::records_in`].
    #[doc(hidden)]
    pub fn note_records(&self, folder: &Path) -> Result<(), Error> {
        self.inner.shared.note_records(folder)
    }

    /// Whether the store accepts the next write. The error says why not: another process opened it for writing,
    /// its file was removed, renamed or replaced, or its database does not answer commits. A read-only store is always ready.
    pub fn ready(&self) -> Result<(), Error> {
        self.inner.shared.journal.ready()
    }

    /// Whether the store was opened for reading only. It may then lag behind a process that writes.
    pub fn is_read_only(&self) -> bool {
        self.inner.shared.options.read_only
    }

    /// Access keys of all tenants.
    pub fn keys(&self) -> Keys {
        Keys::new(self.inner.shared.clone(), Some(self.inner.clone()))
    }

    /// Notifies of a tenant's changed list of conversations, whenever this process begins or deletes one. For servers.
    #[doc(hidden)]
    pub fn listings(&self) -> Arc<Listings> {
        self.inner.shared.listings.clone()
    }

    /// Notes a request in progress: background work pauses for a moment. Appends and recall do this themselves. For servers.
    #[doc(hidden)]
    pub fn note_request(&self) {
        self.inner.shared.load.note();
    }

    /// Whether a conversation has expired and is not deleted yet. Only a process that may write deletes it. For commands
    /// that only read.
    #[doc(hidden)]
    pub fn is_sweep_due(&self) -> Result<bool, Error> {
        let shared = &self.inner.shared;
        Ok(!shared.journal.index.expired(shared.now(), 1)?.is_empty())
    }

    /// Deletes expired conversations and ends idle streams now, instead of at the next round. Returns the number of
    /// each.
    pub fn sweep(&self) -> Result<background::Swept, Error> {
        background::sweep(&self.inner.shared)
    }

    /// Sweeps until nothing is left that has expired, in rounds that do not delay other work for long.
    pub fn sweep_all(&self) -> Result<background::Swept, Error> {
        let mut all = background::Swept::default();
        loop {
            let swept = self.sweep()?;
            all.expired += swept.expired;
            all.interrupted += swept.interrupted;
            all.abandoned += swept.abandoned;
            all.approvals += swept.approvals;
            all.collected += swept.collected;
            if swept.expired == 0 {
                return Ok(all);
            }
        }
    }

    /// Returns unused space of the file to the system. Takes as long as copying the file, and writers wait meanwhile.
    pub fn compact(&self) -> Result<(), Error> {
        self.inner.shared.journal.index.compact()
    }

    /// Runs the due compactions that need no model. Closing does this as well, but the store cannot be used meanwhile.
    pub fn finish_compactions(&self) {
        self.inner.shared.finish_compactions();
    }

    /// Indexes all commits now, instead of within a second, and returns the remaining backlog. Also works on a read-only
    /// store, if the indexes can be written.
    pub fn index_now(&self) -> Result<Behind, Error> {
        indexer::catch_up(&self.inner.shared)?;
        self.behind()
    }

    /// Backlog of the recall index, over all tenants.
    pub fn behind(&self) -> Result<Behind, Error> {
        embedding::behind_in_all(&self.inner.shared)
    }

    /// Computes missing vectors for at most `time`, and returns the remaining backlog. A background thread does this anyway;
    /// call it in a process that ends soon. Does nothing without an embedder.
    pub fn embed_now(&self, time: Duration) -> Result<Behind, Error> {
        embedding::catch_up(&self.inner.shared, None, time)?;
        self.behind()
    }

    /// Models with vectors in the index, each with its dimensions: `model/384`. More than one while a change of the
    /// embedder is under way.
    pub fn vector_models(&self) -> Result<Vec<String>, Error> {
        self.inner.shared.recall.store.vector_models(None)
    }
}

#[cfg(feature = "postgres")]
fn open_postgres(url: &str, read_only: bool) -> Result<StoreParts, Error> {
    use everturn_store::postgres::Postgres;
    let store = Arc::new(if read_only { Postgres::open_read_only(url)? } else { Postgres::open(url)? });
    let elsewhere = (!read_only).then(|| store.clone() as Arc<dyn ChangeFeed>);
    let assets = store.assets();
    Ok((store.clone(), store.clone(), store.clone(), store.clone(), store, assets, elsewhere))
}

#[cfg(not(feature = "postgres"))]
fn open_postgres(_: &str, _: bool) -> Result<StoreParts, Error> {
    Err(Error::missing_feature("postgres", "a store in PostgreSQL"))
}

/// Whether a text names a database in libpq's other form, `host=… port=…`. It would be taken for the name of a file.
fn is_key_value(text: &str) -> bool {
    let names = ["host", "hostaddr", "port", "user", "password", "dbname", "service", "sslmode", "options"];
    text.split_whitespace()
        .next()
        .and_then(|word| word.split_once('='))
        .is_some_and(|(name, _)| names.contains(&name))
}

/// Location that a URL names.
pub(crate) enum Location {
    Memory,
    Sqlite(PathBuf),
    Postgres(String),
}

impl Location {
    pub(crate) fn parse(url: &str) -> Result<Location, Error> {
        let unknown = |what: &str| {
            let text = format!(
                "{:?} {what}; use sqlite:PATH, postgres://USER@HOST/DATABASE or memory:",
                everturn_core::id::clip(&everturn_core::redaction::without_password(url))
            );
            Err(Error::invalid("store.url", text))
        };
        if is_key_value(url) {
            // It may have a password, so it is not shown.
            let text = "the store is named by options of libpq (host=… dbname=…); use sqlite:PATH, \
                        postgres://USER@HOST/DATABASE or memory:";
            return Err(Error::invalid("store.url", text));
        }
        match url.split_once(':') {
            Some(("memory", "")) => Ok(Location::Memory),
            Some(("memory", _)) => unknown("has text after memory:"),
            Some(("sqlite", path)) if !path.is_empty() => {
                Ok(Location::Sqlite(PathBuf::from(path.strip_prefix("//").unwrap_or(path))))
            }
            Some(("sqlite", _)) => unknown("names no file"),
            Some(("postgres" | "postgresql", rest)) if rest.starts_with("//") => {
                Ok(Location::Postgres(url.to_string()))
            }
            Some(("postgres" | "postgresql", _)) => unknown("names no server"),
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

/// The file that a URL names, with symbolic links resolved; `None` for a store that is no file.
pub fn store_file(url: &str) -> Result<Option<PathBuf>, Error> {
    Ok(match Location::parse(url)? {
        Location::Memory | Location::Postgres(_) => None,
        Location::Sqlite(path) => Some(everturn_store::sqlite::resolve(&path)),
    })
}

/// What makes SQLite slower in this program than it could be, each with what to do; empty if nothing does. To be asked while a store
/// is open.
pub fn sqlite_notices() -> Vec<String> {
    everturn_store::sqlite::notices()
}

/// Makes a new, empty store private.
pub(crate) fn close_new_store(database: &Path, folder: &Path) {
    let database = everturn_store::sqlite::resolve(database);
    let beside = |suffix: &str| {
        let mut name = database.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    // Files made later get the mode of the database.
    for file in ["", "-wal", "-shm", "-head", ".lock"].map(beside).iter().filter(|file| file.exists()) {
        private::close(file, folder);
    }
    for made in ["-assets", "-index"].map(beside).iter().filter(|path| std::fs::create_dir(path).is_ok()) {
        private::close(made, folder);
    }
}

/// Assets of `chats.db` are in `chats.db-assets`, beside the file that a symbolic link leads to. Assets once written
/// beside the link stay there.
pub(crate) fn assets_folder(database: &Path) -> PathBuf {
    let beside = |path: &Path| {
        let mut name = path.as_os_str().to_owned();
        name.push("-assets");
        PathBuf::from(name)
    };
    let (given, real) = (beside(database), beside(&everturn_store::sqlite::resolve(database)));
    if given.is_dir() && !real.is_dir() { given } else { real }
}

/// Whether callers wait for a thread's work.
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
        spawn("writer", Priority::Request, |shared| writer::run(&shared.journal))?;
        spawn("chunks", Priority::Request, |shared| background::debounce(shared))?;
        if self.shared.options.auto_compaction {
            (0..compactor::WORKERS)
                .try_for_each(|_| spawn("compaction", Priority::Background, compactor::run))?;
        }
        if self.shared.options.index {
            spawn("indexer", Priority::Background, |shared| indexer::run(shared))?;
            if self.shared.options.embedder.is_some() {
                spawn("embedder", Priority::Background, |shared| embedding::run(shared))?;
            }
        }
        if self.shared.elsewhere.is_some() {
            spawn("elsewhere", Priority::Request, |shared| elsewhere::run(shared))?;
        }
        spawn("sweeper", Priority::Background, background::sweeper)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.finish_compactions();
        // Before the last chunks are written: the text of a running reply is kept, and its turn is recovered as
        // interrupted.
        self.shared.generations.close();
        self.shared.stop();
        for thread in self.threads.lock().drain(..) {
            // A panicked thread has reported it itself.
            let _ = thread.join();
        }
        if let Some(mirror) = &self.shared.mirror {
            mirror.stop();
        }
        self.shared.hub.close();
        self.shared.changes.close();
    }
}

impl Shared {
    fn finish_compactions(self: &Arc<Self>) {
        if self.options.auto_compaction {
            compactor::finish(self);
        }
    }

    /// Queues a request whose caller will wait for it. Refused if it would exceed the tenant's quota.
    pub fn submit(&self, write: Write, uploads: Vec<Upload>) -> Result<Submitted, Error> {
        self.submit_prepared(write, uploads, None)
    }

    /// The same for an append that may be prepared `again` if it is outdated when it is written.
    pub fn submit_prepared(
        &self,
        mut write: Write,
        uploads: Vec<Upload>,
        again: Option<PrepareAgain>,
    ) -> Result<Submitted, Error> {
        if let Err(error) = self.quotas.check_write(&mut write) {
            self.journal.uploaded(&uploads);
            let hashes: Vec<Hash> = uploads.into_iter().map(|(_, sha256)| sha256).collect();
            self.journal.collect(&write.key.tenant, &hashes);
            return Err(error);
        }
        self.load.note();
        self.journal.submit(write, uploads, again)
    }

    /// Queues a request that is part of an erasure, to which no quota applies.
    pub fn submit_beyond_quota(&self, write: Write, uploads: Vec<Upload>) -> Result<Submitted, Error> {
        self.load.note();
        self.journal.submit(write, uploads, None)
    }

    pub fn now(&self) -> Timestamp {
        self.journal.source.now()
    }

    /// Notes a folder of session files for erasures. A read-only process goes on without the note.
    pub fn note_records(&self, folder: &Path) -> Result<(), Error> {
        match self.copies.note_records(folder) {
            Err(error) if self.options.read_only => {
                tracing::warn!(%error, "erasures by other processes will not reach these session files");
                Ok(())
            }
            noted => noted,
        }
    }

    /// Refuses to hold this many bytes as one value.
    pub fn check_whole(&self, bytes: u64) -> Result<(), Error> {
        let limit = self.options.whole_bytes_max;
        if bytes <= limit {
            return Ok(());
        }
        let advice = "read it in pages, or export it, which is streamed";
        Err(Error::limit("WHOLE_BYTES_MAX", limit, bytes, advice))
    }

    /// Ends the threads: pending chunks and queued requests are written first.
    fn stop(&self) {
        self.pauses.stop();
        background::flush(self);
        self.journal.queue.close();
        self.expiry.wake();
        self.streams.wake();
        self.compaction.wake();
        self.recall.indexer.wake();
        self.recall.embeddings.wake();
        if let Some(elsewhere) = &self.elsewhere {
            elsewhere.wake();
        }
    }
}
