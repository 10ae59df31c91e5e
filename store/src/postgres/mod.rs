//! A store in PostgreSQL, which any number of processes write at once.
//!
//! `link` joins the async client and the sync traits, `db` is one transaction, `schema` makes the tables, `feed` has the news of other processes, `leases` shares work with them, `write` writes a batch, `lookup`
//! answers a plan, `ready` knows whether commits succeed, `read` has all queries, `index`, `keys`, `assets` and `backup` are the traits, `tls` encrypts, `recall`
//! is the index of recall, which all processes share.

mod assets;
mod backup;
mod db;
mod feed;
mod index;
mod keys;
mod leases;
mod link;
mod lookup;
mod read;
mod ready;
mod recall;
mod recent;
mod rows;
mod schema;
mod tls;
mod together;
mod write;

use crate::log::write_free;
use crate::{CommitProgress, Committed, Log, PendingCommit, Unwritten};
use assets::LazyPlace;
use db::{Broken, Db, Mode, Scope};
use everturn_core::Error;
use everturn_core::error::code;
use everturn_core::event::Event;
use everturn_core::id::{Key, TenantName, TurnId};
use everturn_core::turn::join_chunks;
use everturn_core::write::{Write, absent, absent_turn};
use feed::Node;
use link::{Connection, Link};
use parking_lot::Mutex;
use read::Lineage;
use recall::{Claim, Embedding};
use recent::{Known, Recent};
use rows::signed;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};
use together::Together;
use write::Proof;

/// A store that several processes may write at once.
pub struct Postgres {
    /// Events that this process is indexing, and entries that it is embedding.
    claim: Mutex<Option<Claim>>,
    embedding: Mutex<Option<Embedding>>,
    /// Tenants whose events could not be indexed the last time.
    failed: Mutex<BTreeSet<String>>,
    /// Last look for tenants with many vectors.
    indexes_looked_after: Mutex<Option<Instant>>,
    /// Why there is no table of vectors.
    without_vectors: Option<String>,
    /// `None` if it was opened for reading only.
    node: Option<Node>,
    /// Place of assets, if it is not the database.
    place: Option<LazyPlace>,
    /// Conversations that another process kept locked when they were last to be written.
    held: Mutex<BTreeSet<Key>>,
    /// Last time that the mark of the place was renewed.
    marked: Mutex<Option<Instant>>,
    /// Reads of conversations.
    together: Together,
    /// Conversations as this process wrote them last.
    recent: Recent,
    /// The connection on which batches are under way.
    pipeline: Mutex<Weak<Connection>>,
    link: Link,
}

/// Maximum number of attempts for a batch that the database cancels in favour of another.
const TRIES: usize = 5;
/// Longest time for which a batch waits for a database that is restarting or failing over.
const OUTAGE: Duration = Duration::from_secs(10);
/// Longest time, and the pause between two attempts, for a conversation that another process keeps locked.
const HELD_MAX: Duration = Duration::from_secs(15);
const HELD_PAUSE: Duration = Duration::from_millis(50);
/// Pause between two attempts to reach it.
const OUTAGE_PAUSE: Duration = Duration::from_millis(100);

impl Postgres {
    /// Connects, and brings the tables in the first schema of the URL's `search_path` to this version.
    pub fn open(url: &str) -> Result<Postgres, Error> {
        let link = Link::open(url)?;
        link.check_pooler()?;
        schema::make(&link)?;
        let place = assets::place(&link)?.map(LazyPlace::from);
        let without_vectors = recall::prepare(&link, false)?;
        let node = Some(Node::join(&link)?);
        Ok(Postgres::over(link, node, place, without_vectors))
    }

    /// Connects for reading only: a standby will do. Tables of another format are an error.
    pub fn open_read_only(url: &str) -> Result<Postgres, Error> {
        let link = Link::open(url)?;
        schema::check(&link)?;
        let place = assets::place_to_read(&link)?;
        let without_vectors = recall::prepare(&link, true)?;
        link.runtime.spawn(ready::report_replay(link.hosts.clone()));
        Ok(Postgres::over(link, None, place, without_vectors))
    }

    fn over(
        link: Link,
        node: Option<Node>,
        place: Option<LazyPlace>,
        without_vectors: Option<String>,
    ) -> Postgres {
        let (claim, embedding, failed, indexes_looked_after) = Default::default();
        let (marked, held, together, recent, pipeline) = Default::default();
        Postgres {
            claim,
            embedding,
            failed,
            indexes_looked_after,
            without_vectors,
            node,
            place,
            marked,
            held,
            together,
            recent,
            pipeline,
            link,
        }
    }

    /// Reads of one tenant, all as of one moment.
    fn of(&self, tenant: &TenantName) -> Result<Db, Error> {
        Db::begin(&self.link, Scope::Tenant(tenant), Mode::Read)
    }

    /// Reads over all tenants.
    fn of_all(&self) -> Result<Db, Error> {
        Db::begin(&self.link, Scope::All, Mode::Read)
    }

    fn writing(&self, scope: Scope<'_>) -> Result<Db, Error> {
        Db::begin(&self.link, scope, Mode::Write)
    }

    /// A transaction for a batch of the tenants in it.
    fn committing(&self, batch: &[Write], waits: bool) -> Result<Db, Broken> {
        Db::begin(&self.link, Scope::Tenants(&tenants(batch)), Mode::Commit { waits }).map_err(Broken::lost)
    }

    /// Work on the whole store that may take any time.
    fn whole(&self) -> Result<Db, Error> {
        Db::begin(&self.link, Scope::All, Mode::Long)
    }

    /// A transaction, and a living conversation with its ancestors.
    fn reading(&self, key: &Key) -> Result<(Db, Lineage), Error> {
        let db = self.of(&key.tenant)?;
        let lineage = read::lineage_of(&db, key)?.ok_or_else(|| absent(key))?;
        Ok((db, lineage))
    }

    /// Writes a batch once. `sent` are earlier attempts whose connections broke while they were committed.
    fn try_commit(&self, batch: Vec<Write>, sent: &mut Vec<Sent>, locks: Locks) -> Result<Answers, Broken> {
        let db = self.committing(&batch, locks == Locks::Wait)?;
        let failed = |error| db.broken().unwrap_or(Broken::lost(error));
        // Waits for the locks of an earlier attempt, so that it has ended one way or the other. One that was sent with its
        // commit may not have reached them yet: it fails later, since its rows have changed, unless this attempt fails too. So
        // each is looked for in every attempt.
        let node = self.node_number();
        let mut open = write::Batch::begin(&db, &batch, node, locks, &self.recent).map_err(failed)?;
        for nth in 0..sent.len() {
            if sent[nth].0.is_written(&db).map_err(failed)? {
                return Ok(sent.swap_remove(nth).1);
            }
        }
        let answers = batch.into_iter().map(|request| open.write(request)).collect::<Result<Vec<_>, _>>()?;
        self.remember_held(&open);
        self.end(&db, open, answers, sent)
    }

    /// Sends a batch of appends in one round trip, planned for what is known of their conversations. `None` if something has to
    /// be read first, or a request would be refused, which may be wrong now. Then, and after an error, nothing was sent.
    fn send_known(&self, batch: &[Write], began: Instant) -> Result<Option<CommitUnderWay<'_>>, Error> {
        if self.is_held(batch) {
            return Ok(None);
        }
        let Some(before) = self.recent.of(batch) else { return Ok(None) };
        // Until the whole batch is sent: another one must not get between its statements.
        let mut pipeline = self.pipeline.lock();
        let (connection, is_behind) = match pipeline.upgrade() {
            Some(connection) => (connection, true),
            None => (Arc::new(self.link.connection()?), false),
        };
        *pipeline = Arc::downgrade(&connection);
        if connection.is_lost() || connection.is_closed() {
            return Ok(None);
        }
        let tenants = tenants(batch);
        let db = Db::begin_on(connection, Scope::Tenants(&tenants), Mode::Commit { waits: false });
        let mut open = write::Batch::assuming(&db, batch, self.node_number(), before.clone());
        let mut answers = Vec::with_capacity(batch.len());
        for request in batch {
            match open.write(request.clone()) {
                Ok(Ok(committed)) if open.is_unsent() => answers.push(Ok(committed)),
                _ => return Ok(None),
            }
        }
        let proof = open.proof(&answers);
        let statements = open.into_statements(&self.recent)?;
        let sent = db.send_whole(statements, is_behind).inspect_err(|_| self.restore(&before))?;
        let batch = Vec::new();
        Ok(Some(CommitUnderWay { store: self, batch, answers, proof, before, sent, is_behind, began }))
    }

    /// Remembers conversations as they were before a batch that was not written.
    fn restore(&self, before: &HashMap<Key, Known>) {
        before.iter().for_each(|(key, known)| self.recent.remember(key.clone(), known.clone()));
    }

    /// Sends the end of a batch, with the commit.
    fn end(
        &self,
        db: &Db,
        open: write::Batch<'_>,
        answers: Answers,
        sent: &mut Vec<Sent>,
    ) -> Result<Answers, Broken> {
        let proof = open.proof(&answers);
        let committed = open.commit(&self.recent);
        tracing::debug!(trips = db.trips.get(), "a batch was sent to PostgreSQL");
        match committed {
            Ok(()) => Ok(answers),
            Err(error) => {
                let broken = db.broken().unwrap_or(Broken::lost(error));
                if broken.lost {
                    sent.push((proof, answers));
                }
                Err(broken)
            }
        }
    }

    fn node_number(&self) -> i64 {
        self.node.as_ref().map_or(0, |node| node.no)
    }
}

impl Postgres {
    /// Writes a batch, reading what it needs first. `sent` are attempts whose connections broke while they were committed.
    fn write(
        &self,
        batch: Vec<Write>,
        mut sent: Vec<Sent>,
        mut locks: Locks,
        began: Instant,
    ) -> Vec<Result<Committed, Unwritten>> {
        let (count, mut tries) = (batch.len(), 0);
        let error = loop {
            if !sent.is_empty() {
                // An earlier attempt may still be on its way, with the locks.
                locks = Locks::Wait;
            }
            match self.try_commit(batch.clone(), &mut sent, locks) {
                Ok(answers) => {
                    if answers.iter().flatten().any(|committed| !committed.repeated) {
                        self.node.iter().for_each(Node::committed);
                    }
                    return answered(answers, batch);
                }
                // One request fails the whole batch: retry each by itself.
                Err(broken) if broken.by_data && count > 1 => {
                    let alone = batch.into_iter().flat_map(|request| self.commit(vec![request]));
                    return alone.map(|answer| answer.map_err(Unwritten::from)).collect();
                }
                Err(broken) if broken.held && locks == Locks::Soon => locks = Locks::Free,
                Err(broken) if (broken.again || broken.held) && tries < TRIES => tries += 1,
                Err(broken) if broken.lost && began.elapsed() < OUTAGE => thread::sleep(OUTAGE_PAUSE),
                Err(broken) => break broken.error,
            }
        };
        // A batch that was sent whole, and not answered, may be written for as long as no other attempt succeeds.
        let error = if sent.is_empty() { error } else { unknown(&error) };
        answered(vec![Err(error); count], batch)
    }

    /// Whether another process kept a conversation locked when it was last to be written.
    fn is_held(&self, batch: &[Write]) -> bool {
        let held = self.held.lock();
        batch.iter().any(|write| held.contains(&write.key))
    }

    /// Remembers the conversations that were not free, for which the next batch does not wait.
    fn remember_held(&self, batch: &write::Batch<'_>) {
        let mut held = self.held.lock();
        held.retain(|key| !batch.has_locked(key));
        held.extend(batch.held().cloned());
    }
}

fn tenants(batch: &[Write]) -> Vec<&TenantName> {
    let tenants: BTreeSet<&TenantName> = batch.iter().map(|write| &write.key.tenant).collect();
    tenants.into_iter().collect()
}

/// A batch that was sent whole.
struct CommitUnderWay<'a> {
    store: &'a Postgres,
    batch: Vec<Write>,
    answers: Answers,
    proof: Proof,
    /// Its conversations as they were known before it.
    before: HashMap<Key, Known>,
    sent: db::Sent,
    /// Whether it was sent behind another.
    is_behind: bool,
    began: Instant,
}

impl PendingCommit for CommitUnderWay<'_> {
    fn progress(&mut self, waker: &Waker) -> CommitProgress {
        match self.sent.answer(waker) {
            None => CommitProgress::UnderWay,
            Some(Ok(())) => CommitProgress::Written,
            Some(Err(_)) => CommitProgress::NotWritten,
        }
    }

    fn finish(self: Box<Self>, waiting: &HashSet<Key>) -> Vec<Result<Committed, Unwritten>> {
        let CommitUnderWay { store, batch, answers, proof, before, sent, is_behind, began } = *self;
        let Err(broken) = sent.wait() else {
            store.node.iter().for_each(Node::committed);
            return answered(answers, batch);
        };
        store.restore(&before);
        if !broken.lost {
            let locks = if broken.held { Locks::Free } else { Locks::Soon };
            return write_free(batch, waiting, |batch| store.write(batch, Vec::new(), locks, began));
        }
        // The time of the one before is not its own.
        let began = if is_behind { Instant::now() } else { began };
        // What waits cannot be written before it is known that this was not: it may still be on its way.
        let waits = batch.iter().any(|request| waiting.contains(&request.key));
        if waits || began.elapsed() >= OUTAGE {
            return answered(vec![Err(unknown(&broken.error)); batch.len()], batch);
        }
        thread::sleep(OUTAGE_PAUSE);
        store.write(batch, vec![(proof, answers)], Locks::Wait, began)
    }
}

/// A batch that was not sent, perhaps because of an error of the connection.
struct NotSent<'a> {
    store: &'a Postgres,
    batch: Vec<Write>,
    error: Option<Error>,
    /// Time of the attempt. That of the batches before it is not its own.
    took: Duration,
}

impl PendingCommit for NotSent<'_> {
    fn progress(&mut self, _: &Waker) -> CommitProgress {
        CommitProgress::NotWritten
    }

    fn finish(self: Box<Self>, waiting: &HashSet<Key>) -> Vec<Result<Committed, Unwritten>> {
        let NotSent { store, batch, error, took } = *self;
        if let Some(error) = error.filter(|_| took >= OUTAGE) {
            return answered(vec![Err(error); batch.len()], batch);
        }
        let began = Instant::now();
        write_free(batch, waiting, |batch| {
            let locks = if store.is_held(&batch) { Locks::Free } else { Locks::Soon };
            store.write(batch, Vec::new(), locks, began)
        })
    }
}

/// The error for a commit that was not answered.
fn unknown(error: &Error) -> Error {
    Error::busy(
        "commit.unknown",
        format!(
            "{}. The commit was not answered, so it is unknown whether this was written: repeat it with the same \
             idempotency key, or read the conversation first",
            error.text().trim_end_matches("; try again")
        ),
    )
}

fn answered(answers: Answers, batch: Vec<Write>) -> Vec<Result<Committed, Unwritten>> {
    let unwritten = |error: Error, write| match error.is(code::HELD) {
        true => Unwritten::held(write),
        false => Unwritten::from(error),
    };
    let both = answers.into_iter().zip(batch);
    both.map(|(answer, write)| answer.map_err(|error| unwritten(error, write))).collect()
}

/// Attitude to locks that are not free.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Locks {
    /// Wait for them, for as long as a statement may take.
    Wait,
    /// Fail after a moment.
    Soon,
    /// Leave out what needs them.
    Free,
}

type Answers = Vec<Result<Committed, Error>>;
/// A batch that may have been committed: the proof if it was, and its answers.
type Sent = (Proof, Answers);

impl Log for Postgres {
    fn commit(&self, batch: Vec<Write>) -> Vec<Result<Committed, Error>> {
        let began = Instant::now();
        let mut answers = self.commit_free(batch);
        while began.elapsed() <= HELD_MAX {
            // In their order: all requests about a conversation are left out together.
            let held = answers.iter_mut().enumerate().filter_map(|(nth, answer)| {
                let write = answer.as_mut().err()?.held.take()?;
                Some((nth, *write))
            });
            let (left, writes): (Vec<usize>, Vec<Write>) = held.unzip();
            if left.is_empty() {
                break;
            }
            thread::sleep(HELD_PAUSE);
            let again = self.commit_free(writes);
            left.into_iter().zip(again).for_each(|(nth, answer)| answers[nth] = answer);
        }
        answers.into_iter().map(|answer| answer.map_err(|unwritten| unwritten.error)).collect()
    }

    fn commit_free(&self, batch: Vec<Write>) -> Vec<Result<Committed, Unwritten>> {
        self.begin_commit(batch).finish(&HashSet::new())
    }

    fn begin_commit(&self, batch: Vec<Write>) -> Box<dyn PendingCommit + '_> {
        let began = Instant::now();
        match self.send_known(&batch, began) {
            Ok(Some(commit)) => Box::new(CommitUnderWay { batch, ..commit }),
            Ok(None) => Box::new(NotSent { store: self, batch, error: None, took: began.elapsed() }),
            Err(error) => Box::new(NotSent { store: self, batch, error: Some(error), took: began.elapsed() }),
        }
    }

    fn ready(&self) -> Result<(), Error> {
        self.node()?.ready.check()
    }

    fn stored_events(&self, key: &Key, after: u64, limit: usize) -> Result<Vec<Event>, Error> {
        let (db, lineage) = self.reading(key)?;
        read::events(&db, &lineage, after, limit)
    }

    fn had_body(&self, key: &Key, seq: u64) -> Result<bool, Error> {
        let (db, lineage) = self.reading(key)?;
        let Some(level) = lineage.owner(seq) else { return Ok(false) };
        let sql = "SELECT erased FROM events WHERE tenant = $1 AND conversation = $2 AND seq = $3";
        let row = db.query_one(sql, &[&key.tenant.as_str(), &level.no, &signed(seq)])?;
        row.map_or(Ok(false), |row| rows::get(&row, 0))
    }

    fn open_text(&self, key: &Key, turn: TurnId) -> Result<String, Error> {
        let (db, lineage) = self.reading(key)?;
        let row = read::turn_row(&db, &lineage, turn)?.ok_or_else(|| absent_turn(turn))?;
        let sql = "SELECT start, text FROM turn_chunks WHERE tenant = $1 AND conversation = $2 AND turn_seq = $3 ORDER BY start";
        let mut pieces = Vec::new();
        for row in db.query(sql, &[&key.tenant.as_str(), &lineage.levels[0].no, &signed(row.seq)])? {
            pieces.push((
                rows::unsigned(&row, 0)?,
                String::from_utf8(rows::get(&row, 1)?).map_err(rows::wrong)?,
            ));
        }
        Ok(join_chunks(pieces))
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.node.iter().for_each(|node| node.leave(&self.link));
    }
}

/// Runs commands on a server, each statement by itself: for tests, which make and drop databases.
#[cfg(feature = "conformance")]
pub fn run(url: &str, sql: &str) -> Result<(), Error> {
    Link::open(url)?.outside(sql)
}
