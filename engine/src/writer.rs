//! Group commit: one at a time writes; whatever waits goes into one transaction and one sync.

use crate::journal::{Journal, Upload};
use everturn_core::Error;
use everturn_core::limits::WRITER_QUEUE_MAX;
use everturn_core::write::{Action, Write};
use everturn_store::Committed;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Most requests in one transaction: keeps the wait of the first of them short.
const BATCH_WRITES_MAX: usize = 1024;

/// A commit that takes no longer may be waited for by a thread that serves others as well.
const QUICK_COMMIT: Duration = Duration::from_millis(1);

/// How long nothing must come before the store may tidy up.
const SETTLE_AFTER: Duration = Duration::from_millis(20);

/// A request that waits for the writer.
pub struct Job {
    pub write: Write,
    /// When it was asked for.
    pub since: Instant,
    /// Bytes that were put for it and must not be collected before it is done.
    pub uploads: Vec<Upload>,
    pub done: oneshot::Sender<Result<Committed, Error>>,
}

/// The requests that wait.
#[derive(Default)]
pub struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    /// Held by whoever writes: the writer thread, or a caller that found it free.
    writing: Mutex<()>,
    last_commit_us: AtomicU64,
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    closed: bool,
    /// Commits since the store was last settled.
    unsettled: u64,
    /// Whether the writer thread waits to be told. Telling it costs a system call, so it is told only then.
    asleep: bool,
}

impl Queue {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock()
    }

    /// Queues a job, or gives it back with the reason why not. The writer thread is not told yet.
    pub fn push(&self, job: Job) -> Result<(), Box<(Job, Error)>> {
        let mut waiting = self.waiting();
        if waiting.closed {
            return Err(Box::new((job, closed())));
        }
        if waiting.jobs.len() >= WRITER_QUEUE_MAX {
            let text = format!(
                "WRITER_QUEUE_MAX is {WRITER_QUEUE_MAX} and as many appends wait; try again in a moment"
            );
            return Err(Box::new((job, Error::busy("writer.busy", text))));
        }
        waiting.jobs.push_back(job);
        Ok(())
    }

    /// Tells the writer thread that something waits.
    pub fn nudge(&self) {
        if std::mem::take(&mut self.waiting().asleep) {
            self.changed.notify_one();
        }
    }

    /// Whether one job waits, nobody writes, and the last commit was quick.
    fn is_quick(&self) -> bool {
        self.last_commit_us.load(Ordering::Relaxed) <= QUICK_COMMIT.as_micros() as u64
            && self.waiting().jobs.len() == 1
            && !self.writing.is_locked()
    }

    /// No more jobs; the writer ends when it has written what waits.
    pub fn close(&self) {
        self.waiting().closed = true;
        self.changed.notify_all();
    }

    fn take(&self) -> Vec<Job> {
        let mut waiting = self.waiting();
        let count = waiting.jobs.len().min(BATCH_WRITES_MAX);
        waiting.jobs.drain(..count).collect()
    }

    /// Waits until something is to be done.
    fn next(&self) -> Next {
        let mut waiting = self.waiting();
        loop {
            if !waiting.jobs.is_empty() {
                return Next::Write;
            }
            if waiting.closed {
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

enum Next {
    Write,
    Settle,
    End,
}

/// What the writer thread does until the queue is closed and empty.
pub fn run(journal: &Journal) {
    loop {
        match journal.queue.next() {
            Next::Write => {
                let _writing = journal.queue.writing.lock();
                write(journal, journal.queue.take());
            }
            Next::Settle => settle(journal),
            Next::End => return settle(journal),
        }
    }
}

/// A quiet moment, or the end. What is not settled is durable all the same.
fn settle(journal: &Journal) {
    match journal.log.settle() {
        Ok(()) => metrics::gauge!("everturn_index_lag_commits").set(0),
        Err(error) => tracing::warn!(%error, "settling failed; it is tried again after the next commit"),
    }
}

/// Writes what waits on the caller's own thread, if nobody is writing. A caller who is alone is spared two changes of
/// thread that way; with many callers, the others' requests go along, and what
/// comes meanwhile is left to the writer thread.
fn lead(journal: &Journal) {
    let queue = &journal.queue;
    // The one that writes looks once more at the queue when it is done.
    let Some(writing) = queue.writing.try_lock() else { return };
    write(journal, queue.take());
    drop(writing);
    if !queue.waiting().jobs.is_empty() {
        queue.nudge();
    }
}

fn write(journal: &Journal, batch: Vec<Job>) {
    if batch.is_empty() {
        return;
    }
    let mut writes = Vec::with_capacity(batch.len());
    let mut waiting = Vec::with_capacity(batch.len());
    for Job { write, since, uploads, done } in batch {
        let deletes = matches!(write.action, Action::Delete { .. });
        waiting.push((write.key.clone(), deletes, uploads, since, done));
        writes.push(write);
    }
    metrics::histogram!("everturn_commit_batch_requests").record(writes.len() as f64);
    let began = Instant::now();
    let answers = journal.log.commit(writes);
    let took = began.elapsed();
    journal.queue.last_commit_us.store(took.as_micros() as u64, Ordering::Relaxed);
    metrics::histogram!("everturn_commit_seconds").record(took);
    for ((key, deletes, uploads, ..), answer) in waiting.iter().zip(&answers) {
        match answer {
            Ok(committed) => journal.committed(key, *deletes, committed),
            Err(error) => journal.refused(error),
        }
        journal.uploaded(uploads);
    }
    let append_seconds = metrics::histogram!("everturn_append_seconds");
    // All at once at the end: whoever is woken by the first finds the others done as well.
    for ((.., since, done), answer) in waiting.into_iter().zip(answers) {
        append_seconds.record(since.elapsed());
        // Nobody may be waiting any more; what was asked for is done all the same.
        let _ = done.send(answer);
    }
    let mut queue = journal.queue.waiting();
    queue.unsettled += 1;
    let first = queue.unsettled == 1;
    metrics::gauge!("everturn_index_lag_commits").set(queue.unsettled as f64);
    drop(queue);
    if first {
        // It sleeps without an end in sight; now it has something to look after.
        journal.queue.nudge();
    }
}

pub(crate) fn closed() -> Error {
    Error::busy("store.closed", "the store was closed; open it again")
}

/// A request that was queued, and whose writer thread has not been told of it.
pub struct Submitted {
    answer: Option<oneshot::Receiver<Result<Committed, Error>>>,
    journal: Arc<Journal>,
}

impl Submitted {
    pub fn new(answer: oneshot::Receiver<Result<Committed, Error>>, journal: Arc<Journal>) -> Submitted {
        Submitted { answer: Some(answer), journal }
    }

    /// Blocks until the answer is there.
    fn wait(mut self) -> Result<Committed, Error> {
        let answer = self.answer.take().ok_or_else(closed)?;
        lead(&self.journal);
        answer.recv().map_err(|_| closed())?
    }

    /// Leaves it to the writer thread.
    fn leave(mut self) -> Option<oneshot::Receiver<Result<Committed, Error>>> {
        self.journal.queue.nudge();
        self.answer.take()
    }
}

impl Drop for Submitted {
    fn drop(&mut self) {
        // Nobody waits for it, but it was asked for.
        if self.answer.is_some() {
            self.journal.queue.nudge();
        }
    }
}

/// An answer that is on its way. A sync caller [`wait`](Commit::wait)s for it, an async one `.await`s it. Once it is
/// there, what it tells of is durable. Dropping it does not undo the request.
#[must_use = "the request may still fail: wait for it or await it"]
pub struct Commit<T> {
    answer: Answer<T, Submitted>,
}

/// An answer that is known, or who will bring it and how to read it.
enum Answer<T, R> {
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
            Ok(submitted) => Commit { answer: Answer::Coming(submitted, Box::new(read)) },
            Err(error) => Commit::ready(Err(error)),
        }
    }

    /// An answer that is known already.
    pub(crate) fn ready(answer: Result<T, Error>) -> Commit<T> {
        Commit { answer: Answer::Known(answer) }
    }

    /// The answer read on.
    pub(crate) fn map<U: 'static>(
        self,
        on: impl FnOnce(T) -> Result<U, Error> + Send + 'static,
    ) -> Commit<U> {
        match self.answer {
            Answer::Known(answer) => Commit::ready(answer.and_then(on)),
            Answer::Coming(submitted, read) => {
                Commit { answer: Answer::Coming(submitted, Box::new(|committed| on(read(committed)?))) }
            }
        }
    }

    /// Whether [`wait`](Commit::wait) takes so little time that an async caller may do it: nobody else writes or waits to
    /// write, and the last commit was quick. It spares two changes of thread.
    pub fn is_quick(&self) -> bool {
        match &self.answer {
            Answer::Known(_) => true,
            Answer::Coming(submitted, _) => submitted.journal.queue.is_quick(),
        }
    }

    /// Has the writer thread begin, so that the caller can do something else before it waits.
    pub(crate) fn begin(&self) {
        if let Answer::Coming(submitted, _) = &self.answer {
            submitted.journal.queue.nudge();
        }
    }

    /// Blocks until the answer is there.
    pub fn wait(self) -> Result<T, Error> {
        match self.answer {
            Answer::Known(answer) => answer,
            Answer::Coming(submitted, read) => read(submitted.wait()?),
        }
    }
}

impl<T> IntoFuture for Commit<T> {
    type Output = Result<T, Error>;
    type IntoFuture = CommitFuture<T>;

    fn into_future(self) -> CommitFuture<T> {
        CommitFuture {
            answer: Some(match self.answer {
                Answer::Known(answer) => Answer::Known(answer),
                Answer::Coming(submitted, read) => match submitted.leave() {
                    Some(receiver) => Answer::Coming(receiver.into_future(), read),
                    None => Answer::Known(Err(closed())),
                },
            }),
        }
    }
}

/// A [`Commit`] that is awaited.
pub struct CommitFuture<T> {
    answer: Option<Answer<T, oneshot::AsyncReceiver<Result<Committed, Error>>>>,
}

// Nothing in it is pinned: the receiver is `Unpin` and the rest is only moved.
impl<T> Unpin for CommitFuture<T> {}

impl<T> Future for CommitFuture<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.answer.take().expect("a future is not polled again after it is ready") {
            Answer::Known(answer) => Poll::Ready(answer),
            Answer::Coming(mut receiver, read) => match Pin::new(&mut receiver).poll(context) {
                Poll::Ready(answer) => Poll::Ready(answer.unwrap_or_else(|_| Err(closed())).and_then(read)),
                Poll::Pending => {
                    self.answer = Some(Answer::Coming(receiver, read));
                    Poll::Pending
                }
            },
        }
    }
}
