//! Group commit: one thread writes at a time; all queued requests go into one transaction and one sync. While a database
//! carries out one batch, the next one is prepared and sent. Requests about a conversation that another process keeps locked
//! wait apart, in their order, so that the others go on.

use crate::journal::{Journal, Upload};
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::error::code;
use everturn_core::id::Key;
use everturn_core::limits::WRITER_QUEUE_MAX;
use everturn_core::write::{Action, Write};
use everturn_store::{CommitProgress, Committed, PendingCommit, Unwritten};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{HashSet, VecDeque};
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

/// Most requests in one transaction: keeps the wait of the first of them short.
const BATCH_WRITES_MAX: usize = 1024;

/// Size of text at which no more requests join a transaction. PostgreSQL takes at most 1 GiB in one message.
const BATCH_BYTES_MAX: usize = 128 * 1024 * 1024;

/// Most batches under way at once.
const UNDER_WAY_MAX: usize = 2;

/// Longest commit for which a thread that serves others may wait.
const QUICK_COMMIT: Duration = Duration::from_millis(1);

/// Longest wait for a conversation that another process keeps locked, and the pause between two attempts.
const HELD_MAX: Duration = Duration::from_secs(15);
const HELD_PAUSE: Duration = Duration::from_millis(50);

/// Idle time after which the store may settle.
const SETTLE_AFTER: Duration = Duration::from_millis(20);

/// A request and the uploads that it needs.
pub type Prepared = (Write, Vec<Upload>);

/// Prepares a request once more. May block, even waiting for the writer.
pub type PrepareAgain = Box<dyn FnOnce() -> Result<Prepared, Error> + Send>;

/// A request that waits for the writer.
pub struct Job {
    pub write: Write,
    /// For a request that is refused if it is outdated.
    pub again: Option<PrepareAgain>,
    /// Time of the request.
    pub since: Instant,
    /// Uploads that must not be collected before the request is done.
    pub uploads: Vec<Upload>,
    pub done: Done,
}

type Done = oneshot::Sender<Result<Committed, Error>>;

/// The rest of a job whose request is being written.
struct Caller {
    key: Key,
    deletes: bool,
    again: Option<PrepareAgain>,
    since: Instant,
    uploads: Vec<Upload>,
    done: Done,
}

impl Job {
    fn split(self) -> (Write, Caller) {
        let Job { write, again, since, uploads, done } = self;
        let deletes = matches!(write.action, Action::Delete { .. });
        let caller = Caller { key: write.key.clone(), deletes, again, since, uploads, done };
        (write, caller)
    }
}

impl Caller {
    fn with(self, write: Write) -> Job {
        let Caller { again, since, uploads, done, .. } = self;
        Job { write, again, since, uploads, done }
    }
}

/// Queued requests.
#[derive(Default)]
pub struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    /// Held while writing: by the writer thread, or by a caller that found it free.
    writing: Mutex<()>,
    last_commit_us: AtomicU64,
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    /// Jobs whose conversations another process keeps locked, before all others about them, and the time of the next attempt.
    held: VecDeque<Job>,
    held_until: Option<Instant>,
    /// Number of threads that prepare requests again.
    preparing: usize,
    closed: bool,
    /// Commits since the store was last settled.
    unsettled: u64,
    /// Whether the writer thread sleeps. Waking it costs a system call, so it is woken only then.
    asleep: bool,
    /// Number of queued jobs for which it is woken. Fewer are left to wait for more while a batch is under way.
    enough: usize,
    /// Whether the batch that is under way may be done.
    rung: bool,
}

impl Queue {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock()
    }

    /// Queues a job, or returns it with the reason for refusing it. Does not wake the writer thread.
    pub fn push(&self, job: Job) -> Result<(), Box<(Job, Error)>> {
        let mut waiting = self.waiting();
        if waiting.closed {
            return Err(Box::new((job, closed())));
        }
        if waiting.jobs.len() + waiting.held.len() >= WRITER_QUEUE_MAX {
            let text = format!(
                "WRITER_QUEUE_MAX is {WRITER_QUEUE_MAX} and as many appends wait; try again in a moment"
            );
            return Err(Box::new((job, Error::busy("writer.busy", text))));
        }
        waiting.jobs.push_back(job);
        Ok(())
    }

    /// Wakes the writer thread.
    pub fn nudge(&self) {
        let mut waiting = self.waiting();
        if waiting.asleep && waiting.jobs.len() >= waiting.enough {
            waiting.asleep = false;
            self.changed.notify_one();
        }
    }

    /// Whether one job waits, nobody writes, and the last commit was quick.
    fn is_quick(&self) -> bool {
        self.last_commit_us.load(Ordering::Relaxed) <= QUICK_COMMIT.as_micros() as u64
            && self.waiting().jobs.len() == 1
            && !self.writing.is_locked()
    }

    /// Refuses further jobs; the writer ends once it has written the queued ones.
    pub fn close(&self) {
        self.waiting().closed = true;
        self.changed.notify_all();
    }

    fn take(&self) -> Vec<Job> {
        let mut waiting = self.waiting();
        let mut batch = Vec::new();
        if waiting.is_held_due() {
            waiting.held_until = None;
            batch.extend(waiting.held.drain(..));
        }
        let held: HashSet<Key> = waiting.held.iter().map(|job| job.write.key.clone()).collect();
        let mut bytes: usize = batch.iter().map(|job: &Job| job.write.action.bytes()).sum();
        while batch.len() < BATCH_WRITES_MAX && bytes < BATCH_BYTES_MAX {
            match waiting.jobs.pop_front() {
                Some(job) if held.contains(&job.write.key) => waiting.held.push_back(job),
                Some(job) => {
                    bytes += job.write.action.bytes();
                    batch.push(job);
                }
                None => break,
            }
        }
        batch
    }

    /// Conversations of which requests were put aside.
    fn held(&self) -> HashSet<Key> {
        self.waiting().held.iter().map(|job| job.write.key.clone()).collect()
    }

    /// Puts jobs aside, to be tried again in a moment.
    fn hold(&self, jobs: Vec<Job>) {
        let mut waiting = self.waiting();
        waiting.held.extend(jobs);
        waiting.held_until.get_or_insert(Instant::now() + HELD_PAUSE);
        drop(waiting);
        self.nudge();
    }

    /// Waits until this many jobs are queued, or until the commit is no longer under way.
    fn wait_for(&self, enough: usize, commit: &mut dyn PendingCommit, waker: &Waker) -> CommitProgress {
        loop {
            self.waiting().rung = false;
            match commit.progress(waker) {
                CommitProgress::UnderWay => {}
                ended => return ended,
            }
            let mut waiting = self.waiting();
            waiting.enough = enough;
            while !waiting.rung && waiting.jobs.len() < enough {
                waiting.asleep = true;
                self.changed.wait(&mut waiting);
            }
            (waiting.asleep, waiting.enough) = (false, 0);
            if waiting.jobs.len() >= enough {
                return CommitProgress::UnderWay;
            }
        }
    }

    /// Waits for the next thing to do.
    fn next(&self) -> Next {
        let mut waiting = self.waiting();
        loop {
            if !waiting.jobs.is_empty() || waiting.is_held_due() {
                return Next::Write;
            }
            if let Some(until) = waiting.held_until {
                waiting.asleep = true;
                self.changed.wait_until(&mut waiting, until);
                waiting.asleep = false;
                continue;
            }
            if waiting.closed && waiting.preparing == 0 {
                return Next::End;
            }
            waiting.asleep = true;
            if waiting.unsettled == 0 {
                self.changed.wait(&mut waiting);
                continue;
            }
            let before = waiting.unsettled;
            let time = self.changed.wait_for(&mut waiting, SETTLE_AFTER);
            waiting.asleep = false;
            if time.timed_out() && waiting.jobs.is_empty() && waiting.unsettled == before {
                waiting.unsettled = 0;
                return Next::Settle;
            }
        }
    }
}

impl Waiting {
    fn is_held_due(&self) -> bool {
        self.held_until.is_some_and(|until| until <= Instant::now())
    }
}

enum Next {
    Write,
    Settle,
    End,
}

/// Runs the writer thread, until the queue is closed and empty.
pub fn run(journal: &Arc<Journal>) {
    loop {
        match journal.queue.next() {
            Next::Write => {
                let _writing = journal.queue.writing.lock();
                write_ahead(journal);
            }
            Next::Settle => settle(journal),
            Next::End => return settle(journal),
        }
    }
}

/// Settles the store in a quiet moment, or at the end. Unsettled commits are durable all the same.
fn settle(journal: &Journal) {
    match journal.log.settle() {
        Ok(()) => metrics::gauge!("everturn_index_lag_commits").set(0),
        Err(error) => tracing::warn!(%error, "settling failed; it is tried again after the next commit"),
    }
}

/// Writes the queued requests on the caller's own thread, if nobody is writing. It spares a lone caller two thread
/// switches; with many callers, the others' requests go along, and later ones are left to the writer thread.
fn lead(journal: &Arc<Journal>) {
    let queue = &journal.queue;
    // The current writer checks the queue once more when it is done; a batch ahead may be large enough now.
    let Some(writing) = queue.writing.try_lock() else { return queue.nudge() };
    let batch = queue.take();
    if !batch.is_empty() {
        UnderWay::begin(journal, batch).finish(journal);
    }
    drop(writing);
    if !queue.waiting().jobs.is_empty() {
        queue.nudge();
    }
}

/// A request that was refused because it would be prepared in another way now.
struct Outdated {
    again: PrepareAgain,
    since: Instant,
    done: Done,
}

/// Prepares requests again and queues them, on a thread that may wait for the writer. Others go on meanwhile, also those
/// about the same conversations: one of them may be what it waits for.
fn prepare_again(journal: &Arc<Journal>, outdated: Vec<Outdated>) {
    let preparing = Preparing::new(journal.clone());
    let outdated = Arc::new(Mutex::new(outdated));
    let todo = outdated.clone();
    let prepare = move || {
        for Outdated { again, since, done } in std::mem::take(&mut *todo.lock()) {
            // The caller may be gone.
            match again() {
                Ok((write, uploads)) => preparing.queue(Job { write, again: None, since, uploads, done }),
                Err(error) => _ = done.send(Err(error)),
            }
        }
    };
    if let Err(error) = thread::Builder::new().name("everturn-prepare".into()).spawn(prepare) {
        let error = Error::busy("thread", format!("no thread can be started ({error}); try again"));
        for Outdated { done, .. } in std::mem::take(&mut *outdated.lock()) {
            let _ = done.send(Err(error.clone()));
        }
    }
}

/// Keeps the writer from ending while requests are being prepared again.
struct Preparing(Arc<Journal>);

impl Preparing {
    fn new(journal: Arc<Journal>) -> Preparing {
        journal.queue.waiting().preparing += 1;
        Preparing(journal)
    }

    /// Queues an accepted request, also if the queue has been closed since.
    fn queue(&self, job: Job) {
        self.0.queue.waiting().jobs.push_back(job);
        self.0.queue.nudge();
    }
}

impl Drop for Preparing {
    fn drop(&mut self) {
        self.0.queue.waiting().preparing -= 1;
        self.0.queue.changed.notify_all();
    }
}

/// Wakes the writer thread when a batch is answered. It does not keep the store open.
struct Bell(Arc<Queue>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.waiting().rung = true;
        self.0.changed.notify_all();
    }
}

/// A batch that was begun, and its callers.
struct UnderWay<'a> {
    commit: Box<dyn PendingCommit + 'a>,
    callers: Vec<Caller>,
    began: Instant,
}

/// Writes what is queued. If the store takes batches ahead, goes on until nothing is queued any more; otherwise one batch.
fn write_ahead(journal: &Arc<Journal>) {
    let queue = &journal.queue;
    let waker = Waker::from(Arc::new(Bell(queue.clone())));
    let mut under_way: VecDeque<UnderWay<'_>> = VecDeque::new();
    loop {
        let is_full = under_way.len() >= UNDER_WAY_MAX;
        let mut done = None;
        if let Some(first) = under_way.front_mut() {
            // A larger batch costs less for each request: the next one waits until it is as large as this one.
            let enough = if is_full { usize::MAX } else { first.callers.len() };
            match queue.wait_for(enough, &mut *first.commit, &waker) {
                CommitProgress::UnderWay => {}
                CommitProgress::Written => done = under_way.pop_front(),
                // Nothing is planned, and nothing put aside is taken up, until those behind it are written again as well.
                CommitProgress::NotWritten => {
                    under_way.drain(..).for_each(|batch| batch.finish(journal));
                    continue;
                }
            }
        }
        // The next batch is sent before the callers of this one are answered, so that the database does not wait for them.
        let batch = queue.take();
        let begun = (!batch.is_empty()).then(|| UnderWay::begin(journal, batch));
        if let Some(done) = done {
            done.finish(journal);
        }
        match begun {
            Some(mut begun) => {
                let is_sent = begun.commit.progress(Waker::noop()) != CommitProgress::NotWritten;
                under_way.push_back(begun);
                if !is_sent {
                    return under_way.drain(..).for_each(|batch| batch.finish(journal));
                }
            }
            None if under_way.is_empty() => return,
            None => {}
        }
    }
}

impl UnderWay<'_> {
    fn begin(journal: &Arc<Journal>, batch: Vec<Job>) -> UnderWay<'_> {
        let began = Instant::now();
        let (writes, callers) = batch.into_iter().map(Job::split).unzip();
        UnderWay { commit: journal.log.begin_commit(writes), callers, began }
    }

    /// Waits for the end of the batch, and answers its callers.
    fn finish(self, journal: &Arc<Journal>) {
        let answers = self.commit.finish(&journal.queue.held());
        answer(journal, self.callers, answers, self.began);
    }
}

fn answer(
    journal: &Arc<Journal>,
    callers: Vec<Caller>,
    answers: Vec<Result<Committed, Unwritten>>,
    began: Instant,
) {
    let took = began.elapsed();
    journal.queue.last_commit_us.store(took.as_micros() as u64, Ordering::Relaxed);
    metrics::histogram!("everturn_commit_batch_requests").record(callers.len() as f64);
    metrics::histogram!("everturn_commit_seconds").record(took);
    let (mut held, mut outdated, mut done_now) = (Vec::new(), Vec::new(), Vec::new());
    for (mut caller, answer) in callers.into_iter().zip(answers) {
        match (answer, caller.again.take()) {
            (Err(Unwritten { held: Some(write), .. }), again) if caller.since.elapsed() < HELD_MAX => {
                held.push(Caller { again, ..caller }.with(*write));
            }
            (Err(unwritten), Some(again)) if unwritten.error.is(code::OUTDATED) => {
                journal.uploaded(&caller.uploads);
                outdated.push(Outdated { again, since: caller.since, done: caller.done });
            }
            (answer, _) => done_now.push((caller, answer.map_err(|unwritten| unwritten.error))),
        }
    }
    if !held.is_empty() {
        journal.queue.hold(held);
    }
    if !outdated.is_empty() {
        prepare_again(journal, outdated);
    }
    for (caller, answer) in &done_now {
        match answer {
            Ok(committed) => journal.committed(&caller.key, caller.deletes, committed),
            Err(error) => journal.refused(error),
        }
        journal.uploaded(&caller.uploads);
        if answer.as_ref().is_ok_and(|committed| committed.repeated) {
            // The turn that they were stored with may have been erased since.
            let hashes: Vec<Hash> = caller.uploads.iter().map(|(_, sha256)| *sha256).collect();
            journal.collect(&caller.key.tenant, &hashes);
        }
    }
    let append_seconds = metrics::histogram!("everturn_append_seconds");
    // All at once at the end: a caller woken by the first result finds the others done as well.
    for (Caller { since, done, .. }, answer) in done_now {
        append_seconds.record(since.elapsed());
        // The caller may be gone; the request is done all the same.
        let _ = done.send(answer);
    }
    let mut queue = journal.queue.waiting();
    queue.unsettled += 1;
    let first = queue.unsettled == 1;
    metrics::gauge!("everturn_index_lag_commits").set(queue.unsettled as f64);
    drop(queue);
    if first {
        // It sleeps without a timeout; now there is something to settle.
        journal.queue.nudge();
    }
}

pub(crate) fn closed() -> Error {
    Error::busy("store.closed", "the store was closed; open it again")
}

/// A queued request of which the writer thread has not been told.
pub struct Submitted {
    answer: Option<oneshot::Receiver<Result<Committed, Error>>>,
    journal: Arc<Journal>,
}

impl Submitted {
    pub fn new(answer: oneshot::Receiver<Result<Committed, Error>>, journal: Arc<Journal>) -> Submitted {
        Submitted { answer: Some(answer), journal }
    }

    /// Blocks until the result is there.
    fn wait(mut self) -> Result<Committed, Error> {
        let answer = self.answer.take().ok_or_else(closed)?;
        lead(&self.journal);
        answer.recv().map_err(|_| closed())?
    }

    /// Leaves the request to the writer thread.
    fn leave(mut self) -> Option<oneshot::Receiver<Result<Committed, Error>>> {
        self.journal.queue.nudge();
        self.answer.take()
    }
}

impl Drop for Submitted {
    fn drop(&mut self) {
        // Nobody waits for it, but it was requested.
        if self.answer.is_some() {
            self.journal.queue.nudge();
        }
    }
}

/// A pending result. A sync caller [`wait`](Commit::wait)s for it, an async one `.await`s it. Once it is there, the
/// write is durable. Dropping it does not undo the request.
#[must_use = "the request may still fail: wait for it or await it"]
pub struct Commit<T> {
    answer: Outcome<T, Submitted>,
}

/// A known result, or the source of a pending one and the function that reads it.
enum Outcome<T, R> {
    Known(Result<T, Error>),
    Coming(R, Read<T>),
}

type Read<T> = Box<dyn FnOnce(Committed) -> Result<T, Error> + Send>;

impl<T: 'static> Commit<T> {
    pub(crate) fn new(
        submitted: Result<Submitted, Error>,
        read: impl FnOnce(Committed) -> Result<T, Error> + Send + 'static,
    ) -> Commit<T> {
        match submitted {
            Ok(submitted) => Commit { answer: Outcome::Coming(submitted, Box::new(read)) },
            Err(error) => Commit::ready(Err(error)),
        }
    }

    /// A result that is known already.
    pub(crate) fn ready(answer: Result<T, Error>) -> Commit<T> {
        Commit { answer: Outcome::Known(answer) }
    }

    /// Applies a function to the result.
    pub(crate) fn map<U: 'static>(
        self,
        on: impl FnOnce(T) -> Result<U, Error> + Send + 'static,
    ) -> Commit<U> {
        match self.answer {
            Outcome::Known(answer) => Commit::ready(answer.and_then(on)),
            Outcome::Coming(submitted, read) => {
                Commit { answer: Outcome::Coming(submitted, Box::new(|committed| on(read(committed)?))) }
            }
        }
    }

    /// Whether [`wait`](Commit::wait) takes so little time that an async caller may block on it: nobody else writes
    /// or waits to write, and the last commit was quick. It spares two thread switches.
    pub fn is_quick(&self) -> bool {
        match &self.answer {
            Outcome::Known(_) => true,
            // A database that others write too may be somewhere else, and may not answer.
            Outcome::Coming(submitted, _) => submitted.journal.alone && submitted.journal.queue.is_quick(),
        }
    }

    /// Wakes the writer thread, so that the caller can do something else before it waits.
    pub(crate) fn begin(&self) {
        if let Outcome::Coming(submitted, _) = &self.answer {
            submitted.journal.queue.nudge();
        }
    }

    /// Blocks until the result is there.
    pub fn wait(self) -> Result<T, Error> {
        match self.answer {
            Outcome::Known(answer) => answer,
            Outcome::Coming(submitted, read) => read(submitted.wait()?),
        }
    }
}

impl<T> IntoFuture for Commit<T> {
    type Output = Result<T, Error>;
    type IntoFuture = CommitFuture<T>;

    fn into_future(self) -> CommitFuture<T> {
        CommitFuture {
            answer: Some(match self.answer {
                Outcome::Known(answer) => Outcome::Known(answer),
                Outcome::Coming(submitted, read) => match submitted.leave() {
                    Some(receiver) => Outcome::Coming(receiver.into_future(), read),
                    None => Outcome::Known(Err(closed())),
                },
            }),
        }
    }
}

/// A [`Commit`] that is awaited.
pub struct CommitFuture<T> {
    answer: Option<Outcome<T, oneshot::AsyncReceiver<Result<Committed, Error>>>>,
}

// Nothing in it is pinned: the receiver is `Unpin` and the rest is only moved.
impl<T> Unpin for CommitFuture<T> {}

impl<T> Future for CommitFuture<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.answer.take().expect("a future is not polled again after it is ready") {
            Outcome::Known(answer) => Poll::Ready(answer),
            Outcome::Coming(mut receiver, read) => match Pin::new(&mut receiver).poll(context) {
                Poll::Ready(answer) => Poll::Ready(answer.unwrap_or_else(|_| Err(closed())).and_then(read)),
                Poll::Pending => {
                    self.answer = Some(Outcome::Coming(receiver, read));
                    Poll::Pending
                }
            },
        }
    }
}
