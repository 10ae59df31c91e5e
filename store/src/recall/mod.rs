//! The index of words, in a SQLite file of its own beside the log; for a store in memory, in memory.
//!
//! Both backends feed it and ask it the same way. It knows nothing of the log but the [`Ground`] that it is handed.

mod find;
mod signs;
mod vectors;

use crate::sqlite::door::{self, explain};
use crate::sqlite::rows::{Bytes, signed};
use crate::{Behind, IndexChange, Recall, Span, Unembedded, Unindexed};
use everturn_core::Error;
use everturn_core::event::Event;
use everturn_core::id::{ConversationId, EventId, Key, Tenant};
use everturn_core::recall::{Entry, EntryId, EntryNo, Filter, Kind, TextQuery, terms};
use find::Common;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};
use signs::Signs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How many idle reading connections are kept.
const READERS_IDLE_MAX: usize = 8;

/// What the index is made from: the log of the backend that has it.
pub(crate) trait Ground {
    /// Its index.
    fn catalog(&self) -> &Catalog;
    /// The last event, in the order of arrival.
    fn last_arrived(&self) -> Result<u64, Error>;
    /// The id of the event at a place in the order of arrival.
    fn arrived_at(&self, no: u64) -> Result<Option<EventId>, Error>;
    /// Events after a place in the order of arrival, and the place up to which these are all that is left.
    fn arrived(&self, after: u64, limit: usize) -> Result<(Vec<(Tenant, Event)>, u64), Error>;
    /// How far a conversation can be read, by whoever may: to its end if it lives, else as far as its forks do.
    fn readable_through(&self, key: &Key) -> Result<u64, Error>;
    /// A conversation and its ancestors, each with how far it is seen. Nothing if it is not there.
    fn levels(&self, key: &Key) -> Result<Vec<(ConversationId, u64)>, Error>;
}

/// Everything that can be found.
pub(crate) struct Catalog {
    /// Where it is kept; `None` in memory.
    path: Option<PathBuf>,
    /// Closed before the writer: only a connection that may write empties the write-ahead log when it is the last.
    readers: Mutex<Vec<Opened>>,
    writer: Mutex<Option<Opened>>,
    /// Whether a conversation may have been deleted that is still in it.
    pub deletions: AtomicBool,
    common: Mutex<Common>,
    signs: Signs,
}

/// A connection, and the file that it is to: another process may have put a new one in its place.
struct Opened {
    connection: Connection,
    file: FileId,
}

type FileId = Option<(u64, u64)>;

#[cfg(unix)]
fn file_id(path: Option<&Path>) -> FileId {
    use std::os::unix::fs::MetadataExt;
    let file = path.and_then(|path| std::fs::metadata(path).ok())?;
    Some((file.dev(), file.ino()))
}

#[cfg(not(unix))]
fn file_id(_: Option<&Path>) -> FileId {
    None
}

impl Catalog {
    /// In memory, or in a file that is made when the first entry comes.
    pub fn new(path: Option<PathBuf>) -> Catalog {
        Catalog {
            path,
            writer: Mutex::default(),
            readers: Mutex::default(),
            // Before a crash, perhaps.
            deletions: AtomicBool::new(true),
            common: Mutex::default(),
            signs: Signs::default(),
        }
    }

    fn name(&self) -> &Path {
        self.path.as_deref().unwrap_or(Path::new("the index in memory"))
    }

    fn writer(&self) -> MutexGuard<'_, Option<Opened>> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn readers(&self) -> MutexGuard<'_, Vec<Opened>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs something in one transaction. A file that is damaged is begun anew, and the caller told to come again.
    fn writing<T>(&self, body: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, Error> {
        let mut writer = self.writer();
        let path = self.path.as_deref();
        let connection = match &mut *writer {
            Some(opened) if opened.file == file_id(path) => &mut opened.connection,
            other => {
                let connection = door::open_recall(path)?;
                &mut other.insert(Opened { connection, file: file_id(path) }).connection
            }
        };
        let done = (|| {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let done = body(&transaction)?;
            transaction.commit()?;
            Ok(done)
        })();
        done.map_err(|error| self.failed(&mut writer, &error))
    }

    /// Runs something on a connection of its own; `None` if there is no index yet.
    fn reading<T>(&self, body: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<Option<T>, Error> {
        let Some(path) = &self.path else { return self.writing(body).map(Some) };
        let now = file_id(Some(path));
        let idle = self.readers().pop().filter(|opened| opened.file == now);
        let mut connection = match idle {
            Some(opened) => opened.connection,
            None => match door::open_recall_for_reading(path)? {
                Some(connection) => connection,
                None => return Ok(None),
            },
        };
        let answer = (|| {
            let view = connection.transaction()?;
            let answer = body(&view)?;
            view.finish()?;
            Ok(answer)
        })();
        match answer {
            Ok(answer) => {
                let mut readers = self.readers();
                if readers.len() < READERS_IDLE_MAX {
                    readers.push(Opened { connection, file: now });
                }
                Ok(Some(answer))
            }
            Err(error) => {
                drop(connection);
                match self.failed(&mut self.writer(), &error) {
                    // What is damaged is empty now, and fills again.
                    Error::Busy(_) if is_damage(&error) => Ok(None),
                    error => Err(error),
                }
            }
        }
    }

    fn failed(&self, writer: &mut Option<Opened>, error: &rusqlite::Error) -> Error {
        if !is_damage(error) {
            return explain(self.name(), error);
        }
        tracing::warn!(%error, "{} is damaged; it is dropped and made again", self.name().display());
        self.drop_files(writer);
        Error::busy(
            "recall.damaged",
            "the index of words was damaged and is made again; try again in a moment",
        )
    }

    fn drop_files(&self, writer: &mut Option<Opened>) {
        *writer = None;
        self.readers().clear();
        *self.common.lock().unwrap_or_else(PoisonError::into_inner) = Common::default();
        self.signs.clear();
        if let Some(path) = &self.path {
            door::remove_recall(path);
        }
    }

    /// Where the index ends, and the id of the event there.
    fn position(&self) -> Result<(u64, Option<EventId>), Error> {
        let found = self.reading(|db| {
            db.prepare_cached("SELECT event, anchor FROM position")?.query_row([], |row| {
                let anchor: Option<Bytes<16>> = row.get(1)?;
                Ok((row.get::<_, i64>(0)? as u64, anchor.map(|bytes| EventId::from_bytes(bytes.0))))
            })
        })?;
        Ok(found.unwrap_or((0, None)))
    }

    fn removed_something(db: &Connection) -> rusqlite::Result<()> {
        db.prepare_cached("UPDATE position SET removed = 1 WHERE removed = 0")?.execute([]).map(drop)
    }

    fn put(&self, db: &Connection, entry: &Entry) -> rusqlite::Result<()> {
        let tenant = number(db, "tenants", entry.tenant.as_str())?;
        let conversation = Bytes(entry.conversation.to_bytes());
        db.prepare_cached("INSERT OR IGNORE INTO conversations (tenant, id) VALUES (?, ?)")?
            .execute(params![tenant, conversation])?;
        let conversation: i64 = db
            .prepare_cached("SELECT no FROM conversations WHERE tenant = ? AND id = ?")?
            .query_row(params![tenant, conversation], |row| row.get(0))?;
        let kind = kind_number(entry.id.kind());
        let old: Option<i64> = db
            .prepare_cached("SELECT no FROM entries WHERE id = ? AND conversation = ? AND kind = ?")?
            .query_row(params![Bytes(entry.id.to_bytes()), conversation, kind], |row| row.get(0))
            .optional()?;
        if let Some(no) = old {
            remove(db, no)?;
        }
        let actor = entry.actor.as_ref().map(|actor| number(db, "actors", actor)).transpose()?;
        let role = entry.role.map(|role| role.as_str());
        db.prepare_cached(
            "INSERT INTO entries (conversation, seq, kind, id, role, actor, at, fallen, prose)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )?
        .execute(params![
            conversation,
            signed(entry.seq),
            kind,
            Bytes(entry.id.to_bytes()),
            role,
            actor,
            entry.at.0,
            entry.fallen.map(signed),
            entry.prose
        ])?;
        let no = db.last_insert_rowid();
        vectors::added(db, no)?;
        let mut scope = format!("t{tenant} c{conversation} k{kind}");
        if let Some(actor) = actor {
            scope.push_str(&format!(" a{actor}"));
        }
        if let Some(role) = role {
            scope.push_str(&format!(" r{role}"));
        }
        let terms = terms(&entry.text);
        db.prepare_cached("INSERT INTO words (rowid, scope, names, text) VALUES (?, ?, ?, ?)")?
            .execute(params![no, scope, terms.names_text(), terms.words_text()])
            .map(drop)
    }

    /// The entries with an id in any of these conversations.
    fn entries(
        &self,
        db: &Connection,
        tenant: &Tenant,
        conversations: &[ConversationId],
        id: EntryId,
    ) -> rusqlite::Result<Vec<i64>> {
        let mut found = Vec::new();
        let mut statement = db.prepare_cached(
            "SELECT e.no FROM entries e JOIN conversations c ON c.no = e.conversation JOIN tenants t ON t.no = c.tenant
             WHERE e.id = ? AND e.kind = ? AND t.name = ? AND c.id = ?",
        )?;
        for conversation in conversations {
            let (id, kind) = (Bytes(id.to_bytes()), kind_number(id.kind()));
            let parameters = params![id, kind, tenant.as_str(), Bytes(conversation.to_bytes())];
            for no in statement.query_map(parameters, |row| row.get(0))? {
                found.push(no?);
            }
        }
        Ok(found)
    }

    /// Takes out what cannot be read any more, of conversations that were deleted.
    fn drop_deleted(&self, ground: &dyn Ground) -> Result<(), Error> {
        let all = self.reading(|db| {
            db.prepare("SELECT c.no, t.name, c.id FROM conversations c JOIN tenants t ON t.no = c.tenant")?
                .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get::<_, Bytes<16>>(2)?.0)))?
                .collect::<Result<Vec<(i64, String, [u8; 16])>, _>>()
        })?;
        for (no, tenant, id) in all.into_iter().flatten() {
            let key = Key { tenant: Tenant::new(tenant)?, id: ConversationId::from_bytes(id) };
            let through = ground.readable_through(&key)?;
            if through == u64::MAX {
                continue;
            }
            self.writing(|db| {
                let gone: Vec<i64> = db
                    .prepare_cached("SELECT no FROM entries WHERE conversation = ? AND seq > ?")?
                    .query_map(params![no, signed(through)], |row| row.get(0))?
                    .collect::<Result<_, _>>()?;
                gone.into_iter().try_for_each(|no| remove(db, no))?;
                if through == 0 {
                    db.execute("DELETE FROM conversations WHERE no = ?", [no])?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Writes the index anew, without what was removed from it.
    fn scrub(&self, bytes_max: Option<u64>) -> Result<bool, Error> {
        let removed =
            self.reading(|db| db.query_row("SELECT removed FROM position", [], |row| row.get::<_, bool>(0)))?;
        if removed != Some(true) {
            return Ok(true);
        }
        let bytes = self.path.as_ref().map_or(0, |path| std::fs::metadata(path).map_or(0, |file| file.len()));
        if bytes_max.is_some_and(|most| bytes > most) {
            return Ok(false);
        }
        // Until it is written anew, the index keeps what was removed and only leaves it out of answers. What it then
        // frees, and what SQLite left behind when it moved rows, goes when the whole file is written anew.
        self.writing(|db| {
            db.execute("INSERT INTO words (words) VALUES ('optimize')", [])?;
            db.execute(
                "DELETE FROM actors WHERE no NOT IN (SELECT actor FROM entries WHERE actor IS NOT NULL)",
                [],
            )
        })?;
        let mut writer = self.writer();
        let Some(Opened { connection, .. }) = &*writer else { return Ok(true) };
        let written = (|| {
            if self.path.is_some() {
                connection.execute_batch("VACUUM")?;
                let busy: i64 =
                    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
                if busy != 0 {
                    return Ok(false);
                }
            }
            connection.execute("UPDATE position SET removed = 0", [])?;
            Ok(true)
        })();
        match written {
            Ok(true) => Ok(true),
            Ok(false) => Err(Error::busy(
                "recall.scrub",
                format!(
                    "{} is being read, so copies of what was removed stay; it is tried again",
                    self.name().display()
                ),
            )),
            Err(error) => Err(self.failed(&mut writer, &error)),
        }
    }
}

/// Where the index ends. `None` if its words are from another log: a backup was put back, or the file exchanged.
fn position(ground: &dyn Ground) -> Result<Option<u64>, Error> {
    let (after, anchor) = ground.catalog().position()?;
    let same = after == 0 || (anchor.is_some() && ground.arrived_at(after)? == anchor);
    Ok(same.then_some(after))
}

fn remove(db: &Connection, no: i64) -> rusqlite::Result<()> {
    db.prepare_cached("DELETE FROM words WHERE rowid = ?")?.execute([no])?;
    db.prepare_cached("DELETE FROM entries WHERE no = ?")?.execute([no])?;
    vectors::remove(db, no)?;
    Catalog::removed_something(db)
}

/// The number of a name, given to it if it has none.
fn number(db: &Connection, table: &str, name: &str) -> rusqlite::Result<i64> {
    let find = format!("SELECT no FROM {table} WHERE name = ?");
    let known = db.prepare_cached(&find)?.query_row([name], |row| row.get(0)).optional()?;
    match known {
        Some(no) => Ok(no),
        None => {
            db.prepare_cached(&format!("INSERT INTO {table} (name) VALUES (?)"))?.execute([name])?;
            Ok(db.last_insert_rowid())
        }
    }
}

fn kind_number(kind: Kind) -> i64 {
    match kind {
        Kind::Turn => 0,
        Kind::Fact => 1,
    }
}

fn kind_of(number: i64) -> Kind {
    if number == 1 { Kind::Fact } else { Kind::Turn }
}

fn is_damage(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode;
    // What cannot be read as what it should be is damage too.
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) | None)
}

impl<T: Ground + Send + Sync> Recall for T {
    fn unindexed(&self, limit: usize) -> Result<Unindexed, Error> {
        let catalog = self.catalog();
        if catalog.deletions.swap(false, Ordering::SeqCst)
            && let Err(error) = catalog.drop_deleted(self)
        {
            catalog.deletions.store(true, Ordering::SeqCst);
            return Err(error);
        }
        let after = match position(self)? {
            Some(after) => after,
            None => {
                self.forget()?;
                0
            }
        };
        let (events, through) = self.arrived(after, limit)?;
        Ok(Unindexed { events, span: Span { after, through } })
    }

    fn index(&self, changes: Vec<IndexChange>, span: Span) -> Result<(), Error> {
        let catalog = self.catalog();
        let anchor = self.arrived_at(span.through)?.map(|id| Bytes(id.to_bytes()));
        let mut known = Vec::with_capacity(changes.len());
        for change in changes {
            let levels = match &change {
                IndexChange::Remove { key, .. } => self.levels(key)?,
                _ => Vec::new(),
            };
            known.push((change, levels.into_iter().map(|(id, _)| id).collect::<Vec<_>>()));
        }
        catalog.writing(|db| {
            let moved = db
                .prepare_cached("UPDATE position SET event = ?, anchor = ? WHERE event = ?")?
                .execute(params![signed(span.through), anchor, signed(span.after)])?;
            if moved == 0 {
                return Ok(());
            }
            for (change, levels) in known {
                match change {
                    IndexChange::Put(entry) => catalog.put(db, &entry)?,
                    IndexChange::Fell { key, id, seq } => {
                        for no in catalog.entries(db, &key.tenant, &[key.id], id)? {
                            db.prepare_cached("UPDATE entries SET fallen = ? WHERE no = ?")?
                                .execute(params![signed(seq), no])?;
                        }
                    }
                    IndexChange::Remove { key, id } => {
                        for no in catalog.entries(db, &key.tenant, &levels, id)? {
                            remove(db, no)?;
                        }
                    }
                }
            }
            Ok(())
        })
    }

    fn behind(&self, model: Option<&str>) -> Result<Behind, Error> {
        let events = self.last_arrived()?.saturating_sub(position(self)?.unwrap_or(0));
        let vectors = match model {
            Some(model) => self.catalog().reading(|db| vectors::missing(db, model))?.unwrap_or(0),
            None => 0,
        };
        Ok(Behind { events, vectors })
    }

    fn scrub(&self, bytes_max: Option<u64>) -> Result<bool, Error> {
        self.catalog().scrub(bytes_max)
    }

    fn forget(&self) -> Result<(), Error> {
        let catalog = self.catalog();
        let mut writer = catalog.writer();
        catalog.drop_files(&mut writer);
        Ok(())
    }

    fn find_text(
        &self,
        tenant: &Tenant,
        query: &TextQuery,
        filter: &Filter,
        limit: usize,
    ) -> Result<Vec<crate::Found>, Error> {
        let Some(scope) = find::Scope::new(self, tenant, filter)? else { return Ok(Vec::new()) };
        let catalog = self.catalog();
        let found = catalog.reading(|db| find::by_words(db, &catalog.common, &scope, query, limit))?;
        Ok(found.unwrap_or_default())
    }

    fn unembedded(&self, model: &str, first: &[EntryNo], limit: usize) -> Result<Vec<Unembedded>, Error> {
        let catalog = self.catalog();
        let waiting = |db: &Connection| vectors::unembedded(db, model, first, limit);
        match catalog.reading(|db| Ok((vectors::knows(db, model)?, waiting(db)?)))? {
            None => Ok(Vec::new()),
            Some((true, waiting)) => Ok(waiting),
            Some((false, _)) => catalog.writing(|db| {
                vectors::know(db, model)?;
                waiting(db)
            }),
        }
    }

    fn put_vectors(&self, model: &str, vectors: Vec<(EntryNo, Vec<f32>)>) -> Result<(), Error> {
        self.catalog().writing(|db| vectors::put(db, model, &vectors))
    }

    fn vector_models(&self) -> Result<Vec<String>, Error> {
        Ok(self.catalog().reading(vectors::models)?.unwrap_or_default())
    }

    fn keep_vectors_of(&self, model: &str, limit: usize) -> Result<usize, Error> {
        self.catalog().writing(|db| vectors::keep_only(db, model, limit))
    }

    fn find_near(
        &self,
        tenant: &Tenant,
        model: &str,
        vector: &[f32],
        filter: &Filter,
        limit: usize,
    ) -> Result<Vec<crate::Found>, Error> {
        let Some(scope) = find::Scope::new(self, tenant, filter)? else { return Ok(Vec::new()) };
        let catalog = self.catalog();
        let found = catalog.reading(|db| vectors::near(db, &catalog.signs, &scope, model, vector, limit))?;
        Ok(found.unwrap_or_default())
    }
}
