//! One file, one writer, any number of readers.
//!
//! A commit is one transaction with one sync. Readers have their own connections and never wait for the writer.

mod backup;
mod derived;
pub(crate) mod door;
mod erase;
mod head;
mod index;
mod keys;
pub(crate) mod library;
mod lock;
mod lookup;
mod ownership;
mod parents;
mod read;
mod recall;
mod recent;
pub(crate) mod rows;
mod wal;
mod write;

use crate::recall::Catalog;
use crate::{Committed, Log};
use door::explain;
pub use door::{check_there, resolve};
use everturn_core::Error;
use everturn_core::conversation::Conversation;
use everturn_core::error::code;
use everturn_core::event::Event;
use everturn_core::id::{Key, TenantName, TurnId};
use everturn_core::turn::Status;
use everturn_core::write::{Action, Write, absent, absent_turn};
use head::{HeadFile, Loss};
pub use library::notices;
use ownership::Ownership;
use parking_lot::{Mutex, RwLock};
use read::Lineage;
use recent::{Recent, RecentConversation};
use rows::Failure;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, Transaction, TransactionBehavior};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// Approximate number of written bytes after which the size of the write-ahead log is checked.
const WAL_LOOK_BYTES: usize = 1024 * 1024;

/// Bytes that a commit writes beside the text: a few pages.
const WAL_COMMIT_BYTES: usize = 16 * 1024;

/// Delay before emptying the write-ahead log is retried.
const SCRUB_AGAIN: Duration = Duration::from_millis(5);

/// Number of times that a reader checks before it reports a loss, and the delay between.
const LOSS_LOOKS: u32 = 10;
const LOSS_PAUSE: Duration = Duration::from_millis(20);

/// Maximum number of idle reading connections.
const READERS_IDLE_MAX: usize = 8;

/// A store in a SQLite file.
pub struct Sqlite {
    path: PathBuf,
    readers: Mutex<Vec<Connection>>,
    // A poisoned lock tells that a commit panicked: see `writer`.
    writer: Option<std::sync::Mutex<Writer>>,
    /// Durable conversations that are not settled yet. Changed by the writer only, right after a commit.
    recent: RwLock<Recent>,
    /// The files that this process writes to; `None` if it only reads.
    files: Option<door::Identity>,
    /// Whether another process has opened the store for writing since. From then on this one only reads.
    overtaken: AtomicBool,
    /// Indexes of recall, in a folder of their own.
    catalog: Catalog,
    /// Number of erased bodies, committed as such.
    erasures: AtomicU64,
    /// Whether the last write failed because of the disk.
    unwritable: AtomicBool,
}

struct Writer {
    connection: Connection,
    ownership: Ownership,
    head: HeadFile,
    known: write::Known,
    /// Size above which the write-ahead log is emptied.
    wal_limit: u64,
    /// Its size before the last transaction.
    wal_seen: u64,
    /// Approximate number of bytes written since its size was checked.
    unlooked: usize,
    /// Held as long as this process may write.
    _lock: lock::WriteLock,
}

impl Sqlite {
    /// Opens for reading and writing, waiting at most `patience` for another writer to end. Creates the file if
    /// needed. A store that has lost committed data is refused.
    pub fn open(path: &Path, patience: Duration) -> Result<Sqlite, Error> {
        Sqlite::open_for_writing(path, patience, false)
    }

    /// Like [`Sqlite::open`], but accepts the loss of committed data. New events are appended to the remaining ones.
    pub fn open_accepting_loss(path: &Path, patience: Duration) -> Result<Sqlite, Error> {
        Sqlite::open_for_writing(path, patience, true)
    }

    fn open_for_writing(path: &Path, patience: Duration, accept_loss: bool) -> Result<Sqlite, Error> {
        if path.is_dir() {
            // Before the lock file, which would otherwise be created beside the directory.
            return door::open_for_writing(path).map(|_| unreachable!("a directory is refused"));
        }
        let path = resolve(path);
        let lock = lock::WriteLock::take(&path, patience)?;
        door::check_names(&path)?;
        match check_whole(&path) {
            Ok(None) => {}
            Ok(Some(loss)) if accept_loss => tracing::warn!("continuing with what is left: {}", loss.what),
            Ok(Some(loss)) => return Err(loss.refused()),
            // Other problems with the file are reported where it is opened for writing.
            Err(_) if accept_loss => {}
            Err(error) => return Err(error),
        }
        let broken = |error: rusqlite::Error| explain(&path, &error);
        let mut connection = door::open_for_writing(&path)?;
        let mut head = HeadFile::open(&path, &connection)?;
        let (ownership, was_in_use) = Ownership::take(&mut connection, &path).map_err(broken)?;
        head.catch_up(&connection).map_err(broken)?;
        let files = door::Identity::of(&path).map_err(|e| {
            Error::internal(code::STORE_IO, format!("cannot examine {}: {e}; check the disk", path.display()))
        })?;
        let recent = load(&mut connection).map_err(|failure| failed(&path, failure))?;
        let writer = Writer {
            connection,
            ownership,
            head,
            known: write::Known::default(),
            wal_limit: wal::BYTES_MAX,
            wal_seen: 0,
            unlooked: 0,
            _lock: lock,
        };
        let store = Sqlite {
            catalog: Catalog::new(Some(door::index_folder(&path))),
            path,
            readers: Mutex::default(),
            writer: Some(std::sync::Mutex::new(writer)),
            recent: RwLock::new(recent),
            files: Some(files),
            overtaken: AtomicBool::new(false),
            erasures: AtomicU64::new(0),
            unwritable: AtomicBool::new(false),
        };
        store.settle()?;
        if was_in_use && let Err(error) = store.scrub_log() {
            // The previous process may have ended between an erasure and this.
            tracing::warn!(%error, "text erased just before the last shutdown may still be in the write-ahead log");
        }
        Ok(store)
    }

    /// Opens for reading only, beside a writer or without one. A store that has lost committed data is refused.
    pub fn open_read_only(path: &Path) -> Result<Sqlite, Error> {
        let path = resolve(path);
        let mut looks = 0;
        let whole = || check_whole(&path).and_then(|loss| loss.map_or(Ok(()), |loss| Err(loss.refused())));
        while let Err(error) = whole() {
            // A process that opens or closes the store for writing at this very moment makes it look so for an
            // instant.
            looks += 1;
            if looks == LOSS_LOOKS {
                return Err(error);
            }
            std::thread::sleep(LOSS_PAUSE);
        }
        let reader = door::open_for_reading(&path)?;
        Ok(Sqlite {
            catalog: Catalog::new(Some(door::index_folder(&path))),
            path,
            readers: Mutex::new(vec![reader]),
            writer: None,
            recent: RwLock::default(),
            files: None,
            overtaken: AtomicBool::new(false),
            erasures: AtomicU64::new(0),
            unwritable: AtomicBool::new(false),
        })
    }

    fn writer(&self) -> Result<std::sync::MutexGuard<'_, Writer>, Error> {
        let writer = self.writer.as_ref().ok_or_else(|| {
            Error::invalid(
                "store.opened_read_only",
                format!("{} was opened for reading only", self.path.display()),
            )
        })?;
        // A panic in the middle of a commit leaves a transaction that is rolled back; cached data may be wrong
        // then.
        Ok(writer.lock().unwrap_or_else(|poisoned: PoisonError<std::sync::MutexGuard<'_, Writer>>| {
            let mut guard = poisoned.into_inner();
            guard.known.forget();
            guard
        }))
    }

    /// Whether this process holds the unsettled conversations in memory. Otherwise they are read from the file.
    fn remembers(&self) -> bool {
        self.writer.is_some() && !self.overtaken.load(Ordering::SeqCst)
    }

    /// Begins a transaction of the writer. Refused while the path leads to other files, if the write-ahead log
    /// was truncated, and for good once another process has opened the store for writing.
    fn begin<'c>(
        &self,
        connection: &'c mut Connection,
        ownership: Ownership,
        wal_seen: &mut u64,
    ) -> Result<Transaction<'c>, Failure> {
        let wal = self.check_files()?;
        let shrank = wal < (*wal_seen).min(wal::BYTES_MAX);
        let is_cut = shrank && wal::is_cut(connection, &self.path)?;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // A process that has opened the store since may have emptied the log: that is checked first.
        self.check_ownership(&transaction, ownership)?;
        if is_cut {
            return Err(wal::was_cut(&self.path).into());
        }
        *wal_seen = wal;
        Ok(transaction)
    }

    /// Returns the size of the write-ahead log.
    fn check_files(&self) -> Result<u64, Error> {
        self.files.map_or(Ok(0), |files| files.check(&self.path))
    }

    /// Cached data may be wrong once another process has opened the store for writing: it is dropped.
    fn check_ownership(&self, db: &Connection, ownership: Ownership) -> Result<(), Failure> {
        if ownership.holds(db)? {
            return Ok(());
        }
        self.overtaken.store(true, Ordering::SeqCst);
        *self.recent.write() = Recent::default();
        Err(ownership::overtaken(&self.path).into())
    }

    /// Runs one short transaction of the writer.
    fn writing<T>(&self, body: impl FnOnce(&Connection) -> Result<T, Failure>) -> Result<T, Error> {
        self.writing_as(&mut *self.writer()?, body)
    }

    /// The same for a change that adds no event and must not be lost unnoticed.
    fn changing<T>(&self, body: impl FnOnce(&Connection) -> Result<T, Failure>) -> Result<T, Error> {
        let mut guard = self.writer()?;
        let (answer, changes) =
            self.writing_as(&mut guard, |db| Ok((body(db)?, ownership::count_change(db)?)))?;
        guard.head.note(None, Some(changes));
        Ok(answer)
    }

    fn writing_as<T>(
        &self,
        writer: &mut Writer,
        body: impl FnOnce(&Connection) -> Result<T, Failure>,
    ) -> Result<T, Error> {
        let Writer { connection, ownership, wal_seen, .. } = writer;
        let written = self.begin(connection, *ownership, wal_seen).and_then(|transaction| {
            let answer = body(&transaction)?;
            transaction.commit()?;
            Ok(answer)
        });
        let written = written.map_err(|failure| failed(&self.path, failure));
        self.note_written(written.as_ref().err());
        written
    }

    /// Records whether the disk accepted a write, for [`Log::ready`].
    fn note_written(&self, error: Option<&Error>) {
        let unwritable = error.is_some_and(|error| matches!(error.code(), code::STORE_FULL | code::STORE_IO));
        if self.unwritable.load(Ordering::Relaxed) != unwritable {
            self.unwritable.store(unwritable, Ordering::SeqCst);
        }
    }

    /// The unsettled part of a conversation. Taken before the database is read: what is settled in between is
    /// then seen twice, which does no harm, and never missed.
    fn recent(&self, key: &Key) -> Option<RecentConversation> {
        self.recent.read().conversations.get(key).cloned()
    }

    /// Runs a closure on a connection of its own, in one consistent view.
    fn reading<T>(&self, body: impl FnOnce(&Connection) -> Result<T, Failure>) -> Result<T, Error> {
        let idle = self.readers.lock().pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => {
                self.check_files()?;
                door::open_for_reading(&self.path)?
            }
        };
        let answer = (|| {
            let view = connection.transaction()?;
            let answer = body(&view)?;
            view.finish()?;
            Ok(answer)
        })();
        let mut readers = self.readers.lock();
        if readers.len() < READERS_IDLE_MAX {
            readers.push(connection);
        }
        answer.map_err(|failure| failed(&self.path, failure))
    }

    /// Reads a conversation, with its unsettled part.
    fn reading_in<T>(
        &self,
        key: &Key,
        body: impl Fn(&Connection, i64, Conversation, Lineage) -> Result<T, Failure>,
    ) -> Result<T, Error> {
        let read = || {
            let recent = self.recent(key);
            self.reading(|db| {
                // A process that does not write reads from the file what the writer has not settled.
                let recent = match self.remembers() {
                    true => recent,
                    false => Recent::load(db)?.conversations.remove(key),
                };
                let (no, stored) = read::conversation(db, key)?.ok_or_else(|| absent(key))?;
                let lineage = read::lineage(db, no, key.id)?;
                match recent
                    .filter(|recent| recent.no == no && recent.conversation.head.seq > stored.head.seq)
                {
                    Some(recent) => {
                        body(db, no, Arc::unwrap_or_clone(recent.conversation), lineage.with(recent.events))
                    }
                    None => body(db, no, stored, lineage),
                }
            })
        };
        self.mending(read, |db| {
            let no = read::number(db, key)?.ok_or_else(|| absent(key))?;
            derived::mend_lineage(db, no)
        })
    }

    /// Runs a read. If a derived row cannot be read, a process that may write rebuilds it and reads once more.
    fn mending<T>(
        &self,
        read: impl Fn() -> Result<T, Error>,
        mend: impl FnOnce(&Connection) -> Result<(), Failure>,
    ) -> Result<T, Error> {
        let answer = read();
        match &answer {
            Err(error) if error.is(code::STORE_ROW) && self.remembers() => {
                tracing::warn!("{}; rebuilding it", error.text());
            }
            _ => return answer,
        }
        let mut guard = self.writer()?;
        let mended = self.settle_as(&mut guard).and_then(|()| {
            guard.known.forget();
            self.writing_as(&mut guard, mend)
        });
        drop(guard);
        match mended {
            Ok(()) => read(),
            Err(error) => {
                tracing::error!(%error, "it cannot be rebuilt");
                answer
            }
        }
    }

    /// The same, for reads over many conversations.
    fn mending_all<T>(&self, read: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
        self.mending(read, derived::mend_malformed)
    }

    /// Before a query over many conversations: nothing may be left that only [`Sqlite::recent`] knows.
    fn settled_first(&self) -> Result<(), Error> {
        if self.remembers() { self.settle() } else { Ok(()) }
    }

    /// Writes all pending rows.
    fn settle_as(&self, writer: &mut Writer) -> Result<(), Error> {
        let settled = (|| {
            let Writer { connection, ownership, wal_seen, known, .. } = &mut *writer;
            let transaction = self.begin(connection, *ownership, wal_seen)?;
            let before = self.recent.read();
            write::Batch::new(&transaction, known, &before).settle()?;
            drop(before);
            Ok(self.finish(transaction, true, Recent::default())?)
        })();
        settled.map_err(|failure| failed(&self.path, failure))
    }

    /// Commits a batch, and publishes its unsettled part to readers.
    fn finish(&self, transaction: Transaction<'_>, settled: bool, added: Recent) -> rusqlite::Result<()> {
        transaction.commit()?;
        let mut recent = self.recent.write();
        if settled {
            *recent = added;
        } else {
            recent.extend(added);
        }
        Ok(())
    }

    /// Empties the write-ahead log, so that nothing erased is left in it. Waits for readers in small steps,
    /// between which others may use the writer's connection.
    fn scrub_log(&self) -> Result<(), Error> {
        let deadline = Instant::now() + door::BUSY_TIMEOUT;
        loop {
            let mut writer = self.writer()?;
            writer.wal_seen = 0;
            let busy = writer.connection.busy_timeout(Duration::ZERO).and_then(|()| {
                writer.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))
            });
            let restored = writer.connection.busy_timeout(door::BUSY_TIMEOUT);
            drop(writer);
            let busy: i64 =
                busy.and_then(|busy| restored.map(|()| busy)).map_err(|e| explain(&self.path, &e))?;
            if busy == 0 {
                return Ok(());
            }
            if Instant::now() > deadline {
                break;
            }
            std::thread::sleep(SCRUB_AGAIN);
        }
        Err(Error::busy(
            "store.scrub",
            format!(
                "erased, but another process reads {}, so copies stay in its write-ahead log; end that process and run `everturn doctor --compact`",
                self.path.display()
            ),
        ))
    }
}

impl Log for Sqlite {
    fn commit(&self, batch: Vec<Write>) -> Vec<Result<Committed, Error>> {
        let count = batch.len();
        let all = |error: Error| (0..count).map(|_| Err(error.clone())).collect();
        let mut guard = match self.writer() {
            Ok(guard) => guard,
            Err(error) => return all(error),
        };
        let Writer { connection, ownership, head, known, wal_limit, wal_seen, unlooked, .. } = &mut *guard;
        let erases: Vec<bool> = batch.iter().map(|write| write.action.removes()).collect();
        let deletes = |write: &&Write| write.action.deletes();
        let deleted: Vec<TenantName> =
            batch.iter().filter(deletes).map(|write| write.key.tenant.clone()).collect();
        let speaks = batch.iter().any(|write| matches!(write.action, Action::Chunk { .. }));
        let written = (|| {
            let transaction = self.begin(connection, *ownership, wal_seen)?;
            let before = self.recent.read();
            let mut work = write::Batch::new(&transaction, known, &before);
            let mut answers = Vec::with_capacity(count);
            for request in batch {
                match work.write(request) {
                    Ok(committed) => answers.push(Ok(committed)),
                    Err(Failure::Refused(error)) => answers.push(Err(error)),
                    Err(broken) => return Err(broken),
                }
            }
            let (settled, added, last) = (work.settled, work.added, work.last);
            drop(before);
            // Changes that add no event are counted, so that they are not lost unnoticed.
            let counted = speaks || !deleted.is_empty();
            let changes = counted.then(|| ownership::count_change(&transaction)).transpose()?;
            self.finish(transaction, settled, added)?;
            head.note(last, changes);
            self.note_written(None);
            Ok(answers)
        })();
        // Only now: after reading this number, nobody may read text that was erased before.
        self.erasures.store(known.erasures.count(), Ordering::SeqCst);
        deleted.iter().for_each(|tenant| self.catalog.note_deletion(tenant));
        match written {
            Ok(answers) if erases.contains(&true) => {
                drop(guard);
                match self.scrub_log() {
                    Ok(()) => answers,
                    // The others of the batch are written and not affected.
                    Err(error) => answers
                        .into_iter()
                        .zip(erases)
                        .map(|(answer, erases)| if erases { answer.and(Err(error.clone())) } else { answer })
                        .collect(),
                }
            }
            Ok(answers) => {
                let events = answers.iter().flatten().flat_map(|committed| &committed.events);
                *unlooked += WAL_COMMIT_BYTES + events.filter_map(Event::text).map(str::len).sum::<usize>();
                if *unlooked > WAL_LOOK_BYTES {
                    *unlooked = 0;
                    *wal_limit = wal::bound(connection, &self.path, *wal_limit);
                    *wal_seen = 0;
                }
                answers
            }
            Err(failure) => {
                known.forget();
                let error = failed(&self.path, failure);
                self.note_written(Some(&error));
                all(error)
            }
        }
    }

    fn settle(&self) -> Result<(), Error> {
        if self.recent.read().events == 0 {
            return Ok(());
        }
        self.settle_as(&mut *self.writer()?)
    }

    fn ready(&self) -> Result<(), Error> {
        let ownership = self.writer()?.ownership;
        self.check_files()?;
        self.reading(|db| self.check_ownership(db, ownership))?;
        if self.unwritable.load(Ordering::SeqCst) {
            // Only a write can tell whether there is space again.
            self.changing(|_| Ok(()))?;
        }
        self.writer()?.head.keep();
        Ok(())
    }

    fn stored_events(&self, key: &Key, after: u64, limit: usize) -> Result<Vec<Event>, Error> {
        self.reading_in(key, |db, _, _, lineage| Ok(read::events(db, &lineage, after, limit)?))
    }

    fn had_body(&self, key: &Key, seq: u64) -> Result<bool, Error> {
        self.reading_in(key, |db, _, _, lineage| Ok(read::had_body(db, &lineage, seq)?))
    }

    fn open_text(&self, key: &Key, turn: TurnId) -> Result<String, Error> {
        self.reading_in(key, |db, no, _, lineage| {
            let row = read::turn_row(db, &lineage, turn)?.ok_or_else(|| absent_turn(turn))?;
            // The chunks of a turn that has ended are overwritten, and may still be there.
            match row.status {
                Status::Pending => Ok(read::open_text(db, no, row.seq)?),
                _ => Ok(String::new()),
            }
        })
    }
}

/// The unsettled part of a database. Rows that do not match the log are rebuilt first.
fn load(connection: &mut Connection) -> Result<Recent, Failure> {
    let recent = Recent::load(connection)?;
    if recent.doubtful.is_empty() && !recent.unmarked {
        return Ok(recent);
    }
    tracing::warn!(
        conversations = recent.doubtful.len() + recent.conversations.len(),
        "derived rows do not match the log; rebuilding them"
    );
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let waiting = recent.conversations.values().map(|entry| entry.no);
    for no in waiting.chain(recent.doubtful.iter().copied()) {
        if let Err(failure) = derived::mend(&transaction, no) {
            // Others can be written all the same; `doctor` names this one.
            let error = failed(Path::new("the database"), failure);
            tracing::error!(%error, "conversation number {no} cannot be made again from its events");
        }
    }
    transaction
        .execute_batch("DELETE FROM settled; INSERT INTO settled SELECT coalesce(max(no), 0) FROM events")?;
    transaction.commit()?;
    Ok(Recent::default())
}

impl Drop for Sqlite {
    /// A clean end. If it fails, the next open finds the write-ahead log, as after a crash.
    fn drop(&mut self) {
        let Some(writer) = self.writer.take() else { return };
        self.readers.lock().clear();
        let mut writer = writer.into_inner().unwrap_or_else(PoisonError::into_inner);
        writer.head.keep();
        let is_cut = wal::is_cut(&writer.connection, &self.path).unwrap_or(true);
        if is_cut || !matches!(check_whole(&self.path), Ok(None)) {
            // A log that was truncated or overwritten meanwhile must not be copied into the database.
            tracing::error!(
                "{} lost data while it was open; its files are left as they are",
                self.path.display()
            );
            let _ = writer.connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
            return;
        }
        if let Err(error) = writer.ownership.end(&mut writer.connection) {
            tracing::debug!(%error, "{} could not be marked as closed", self.path.display());
        }
    }
}

/// Checks whether a store has lost committed data. Leaves its files as they are.
fn check_whole(path: &Path) -> Result<Option<Loss>, Error> {
    if let Some(loss) = head::check_wal(path) {
        return Ok(Some(loss));
    }
    // Read before the database: another process may write meanwhile.
    let recorded = head::recorded(path);
    if !std::fs::metadata(path).is_ok_and(|file| file.len() > 0) {
        // A store that does not exist yet.
        return Ok(None);
    }
    match door::open_for_reading(path) {
        Ok(connection) => head::check(&connection, path, recorded).map_err(|e| explain(path, &e)),
        // It has lost nothing yet.
        Err(error) if error.is(code::STORE_EMPTY) => Ok(None),
        Err(error) => Err(error),
    }
}

fn failed(path: &Path, failure: Failure) -> Error {
    match failure {
        Failure::Refused(error) => error,
        Failure::Broken(error) => explain(path, &error),
    }
}
