//! The ground: events, appended and never rewritten.

use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::conversation::Conversation;
use everturn_core::error::code;
use everturn_core::event::Event;
use everturn_core::id::{Key, TurnId};
use everturn_core::write::{EventAddress, EventRef, Write};
use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::task::Waker;

/// The ground: events, appended and never rewritten.
pub trait Log: Send + Sync {
    /// Writes every request of the batch, in order, in one transaction with one sync at its end.
    ///
    /// - If a request returns `Ok`, what it wrote survives `kill -9` and power loss.
    /// - Each request is atomic and has its own result: a refused one leaves no trace and does not affect the
    ///   others.
    /// - A request sees the writes of the ones before it in the batch.
    /// - If the disk fails, every request of the batch returns that error and none of them leaves a trace.
    /// - `seq` is dense, starts at 1 and is assigned here, whatever the clocks say.
    fn commit(&self, batch: Vec<Write>) -> Vec<Result<Committed, Error>>;

    /// Like [`Log::commit`], except that requests about a conversation on which another process keeps its hand are left out and
    /// come back: they did nothing, and are to be tried again before any later one about the same conversation. So the others do
    /// not wait for a process that hangs.
    fn commit_free(&self, batch: Vec<Write>) -> Vec<Result<Committed, Unwritten>> {
        self.commit(batch).into_iter().map(|answer| answer.map_err(Unwritten::from)).collect()
    }

    /// Begins a commit like [`Log::commit_free`]. Where the backend can, the batch is on its way when this returns, so that
    /// the next one can be prepared meanwhile. Batches are carried out in the order in which they are begun, and a later one
    /// sees the writes of those before it. Each is to be finished, in that order and before anything is committed in another
    /// way; once one was not written, all of them before another is begun.
    fn begin_commit(&self, batch: Vec<Write>) -> Box<dyn PendingCommit + '_> {
        Box::new(Unsent { log: self, batch })
    }

    /// Called when no write is waiting: does work that commits deferred. Changes no answer.
    fn settle(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Whether a commit would be accepted now. The error says why not: the store was opened for reading only,
    /// another process took over the right to write, the storage is not the one that was opened, the last
    /// commit failed for lack of space and there is still none, or a database does not answer commits. Answers within
    /// some seconds, whatever the storage does, and may be asked often.
    fn ready(&self) -> Result<(), Error>;

    /// Events of a conversation with `seq` greater than `after`, ascending, at most `limit`. For a fork, its
    /// parent's events come first, under the parent's conversation id. Each `prev` is the stored hash of the
    /// event before. Nothing is verified: [`CheckedLog::events`](crate::CheckedLog::events) is the way to read
    /// them.
    ///
    /// A page also ends once its bodies reach `PAGE_BYTES_MAX` bytes, so it may be shorter than `limit`; only
    /// an empty page is the end.
    fn stored_events(&self, key: &Key, after: u64, limit: usize) -> Result<Vec<Event>, Error>;

    /// Whether the event at `seq`, which has no body now, had one in this store: then it was erased here, and a
    /// `turn.erased` must say so. False if it was imported or restored without its body, and where a backend
    /// cannot tell.
    fn had_body(&self, key: &Key, seq: u64) -> Result<bool, Error>;

    /// The durable text of an open turn. Empty for a turn that is not open.
    fn open_text(&self, key: &Key, turn: TurnId) -> Result<String, Error>;
}

/// State of a commit that was begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommitProgress {
    /// Not answered yet.
    UnderWay,
    /// Durable.
    Written,
    /// Not sent ahead, or not written: [`PendingCommit::finish`] writes it, which takes time.
    NotWritten,
}

/// A commit that was begun.
pub trait PendingCommit {
    /// How far it is. The waker is woken once it is no longer under way.
    fn progress(&mut self, waker: &Waker) -> CommitProgress;

    /// Waits for the end, and returns the result of each request. Of a batch that was not written, requests about
    /// conversations that are `waiting` are left out, and come back: earlier ones about them are to be written first.
    fn finish(self: Box<Self>, waiting: &HashSet<Key>) -> Vec<Result<Committed, Unwritten>>;
}

/// A batch of a backend that sends nothing ahead.
struct Unsent<'a, L: ?Sized> {
    log: &'a L,
    batch: Vec<Write>,
}

impl<L: Log + ?Sized> PendingCommit for Unsent<'_, L> {
    fn progress(&mut self, _: &Waker) -> CommitProgress {
        CommitProgress::NotWritten
    }

    fn finish(self: Box<Self>, waiting: &HashSet<Key>) -> Vec<Result<Committed, Unwritten>> {
        write_free(self.batch, waiting, |batch| self.log.commit_free(batch))
    }
}

/// Writes the requests of a batch, but those about conversations that are `waiting`, which come back.
pub(crate) fn write_free(
    batch: Vec<Write>,
    waiting: &HashSet<Key>,
    write: impl FnOnce(Vec<Write>) -> Vec<Result<Committed, Unwritten>>,
) -> Vec<Result<Committed, Unwritten>> {
    let is_free: Vec<bool> = batch.iter().map(|request| !waiting.contains(&request.key)).collect();
    if is_free.iter().all(|is_free| *is_free) {
        return write(batch);
    }
    let (free, held): (Vec<Write>, Vec<Write>) =
        batch.into_iter().partition(|request| !waiting.contains(&request.key));
    let mut written = if free.is_empty() { Vec::new() } else { write(free) }.into_iter();
    let mut held = held.into_iter().map(|request| Err(Unwritten::held(request)));
    is_free.into_iter().filter_map(|is_free| if is_free { written.next() } else { held.next() }).collect()
}

/// A request that was not written.
#[derive(Debug)]
pub struct Unwritten {
    /// The reason.
    pub error: Error,
    /// The request itself, if it was left out because another process holds its conversation.
    pub held: Option<Box<Write>>,
}

impl Unwritten {
    /// A request that was left out.
    pub(crate) fn held(request: Write) -> Unwritten {
        let text = "another process holds this conversation, and nothing was written; try again";
        Unwritten { error: Error::busy(code::HELD, text), held: Some(Box::new(request)) }
    }
}

impl From<Error> for Unwritten {
    fn from(error: Error) -> Unwritten {
        Unwritten { error, held: None }
    }
}

/// The answer to a write.
#[derive(Clone, Debug)]
pub struct Committed {
    /// The conversation afterwards; a deleted one as it was before.
    pub conversation: Arc<Conversation>,
    /// Appended events; for a repeated request, those of the first one.
    pub events: Vec<Event>,
    /// Whether this request had been answered before and wrote nothing now.
    pub repeated: bool,
    /// Assets that are no longer referenced; the caller deletes their bytes.
    pub released: Vec<Hash>,
    /// Events with bodies erased by this write, in any conversation.
    pub erased: Vec<EventAddress>,
}

impl Committed {
    /// The result of a first request that appended these events; nothing was released or erased.
    pub(crate) fn new(conversation: impl Into<Arc<Conversation>>, events: Vec<Event>) -> Committed {
        let conversation = conversation.into();
        Committed { conversation, events, repeated: false, released: Vec::new(), erased: Vec::new() }
    }
}

/// The error for a store of a later format.
pub(crate) fn newer(store: &dyn fmt::Display, format: i32, known: i32) -> Error {
    let text = format!("{store} has format {format}, this program knows {known}; use a newer everturn");
    Error::conflict("store.newer", text)
}

/// The error for a store whose format never was one of a release.
pub(crate) fn unreleased(store: &dyn fmt::Display) -> Error {
    let text = format!(
        "{store} was made by an unreleased build: everturn {} cannot read a store of an unreleased build; export it with that \
         build",
        env!("CARGO_PKG_VERSION")
    );
    Error::invalid(code::STORE_UNRELEASED, text)
}

/// Bodies that this process erased, so that nothing derived from them before is committed.
#[derive(Default)]
pub(crate) struct Erasures {
    /// Number of erasures before the first that is remembered.
    forgotten: u64,
    last: VecDeque<EventRef>,
}

impl Erasures {
    /// Beyond this the oldest are forgotten; what was derived before them must be derived again.
    const REMEMBERED_MAX: usize = 100_000;

    pub fn count(&self) -> u64 {
        self.forgotten + self.last.len() as u64
    }

    pub fn extend(&mut self, erased: impl IntoIterator<Item = EventRef>) {
        self.last.extend(erased);
        while self.last.len() > Self::REMEMBERED_MAX {
            self.last.pop_front();
            self.forgotten += 1;
        }
    }

    pub fn contains(&self, at: EventRef) -> bool {
        self.last.contains(&at)
    }

    /// Erasures after the first `mark`. `None` if some of them are forgotten.
    pub fn since(&self, mark: u64) -> Option<Vec<EventRef>> {
        let skip = mark.checked_sub(self.forgotten)?;
        Some(self.last.iter().skip(skip as usize).copied().collect())
    }
}
