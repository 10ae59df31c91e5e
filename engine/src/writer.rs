//! Group commit: one thread writes; whatever waits goes into one transaction and one sync.

use crate::Shared;
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::id::Tenant;
use everturn_core::limits::WRITER_QUEUE_MAX;
use everturn_core::write::{Action, Write};
use everturn_store::Committed;
use std::collections::VecDeque;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::{Condvar, Mutex, PoisonError};
use std::task::{Context, Poll};

/// Most requests in one transaction: keeps the wait of the first of them short.
const BATCH_WRITES_MAX: usize = 1024;

/// A request that waits for the writer.
pub struct Job {
    pub write: Write,
    /// Bytes that were put for it and must not be collected before it is done.
    pub uploads: Vec<(Tenant, Hash)>,
    pub done: oneshot::Sender<Result<Committed, Error>>,
}

/// The requests that wait.
#[derive(Default)]
pub struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    closed: bool,
}

impl Queue {
    /// Hands a job to the writer, or gives it back with the reason why not.
    pub fn push(&self, job: Job) -> Result<(), Box<(Job, Error)>> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
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
        if waiting.jobs.len() == 1 {
            self.changed.notify_one();
        }
        Ok(())
    }

    /// No more jobs; the writer ends when it has written what waits.
    pub fn close(&self) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.changed.notify_all();
    }

    fn next_batch(&self) -> Option<Vec<Job>> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if !waiting.jobs.is_empty() {
                let count = waiting.jobs.len().min(BATCH_WRITES_MAX);
                return Some(waiting.jobs.drain(..count).collect());
            }
            if waiting.closed {
                return None;
            }
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// What the writer thread does until the queue is closed and empty.
pub fn run(shared: &Shared) {
    while let Some(batch) = shared.queue.next_batch() {
        let mut writes = Vec::with_capacity(batch.len());
        let mut waiting = Vec::with_capacity(batch.len());
        for Job { write, uploads, done } in batch {
            let deletes = matches!(write.action, Action::Delete { .. });
            waiting.push((write.key.clone(), deletes, uploads, done));
            writes.push(write);
        }
        let answers = shared.log.commit(writes);
        for ((key, deletes, uploads, done), answer) in waiting.into_iter().zip(answers) {
            if let Ok(committed) = &answer {
                shared.committed(&key, deletes, committed);
            }
            shared.uploaded(&uploads);
            // Nobody may be waiting any more; what was asked for is done all the same.
            let _ = done.send(answer);
        }
    }
}

pub(crate) fn closed() -> Error {
    Error::busy("store.closed", "the store was closed; open it again")
}

/// An answer that is on its way. A sync caller [`wait`](Commit::wait)s for it, an async one `.await`s it. Once it is
/// there, what it tells of is durable. Dropping it does not undo the request.
#[must_use = "the request may still fail: wait for it or await it"]
pub struct Commit<T> {
    answer: Answer<T, oneshot::Receiver<Result<Committed, Error>>>,
}

/// An answer that is known, or who will bring it and how to read it.
enum Answer<T, R> {
    Known(Result<T, Error>),
    Coming(R, Read<T>),
}

type Read<T> = Box<dyn FnOnce(Committed) -> Result<T, Error> + Send>;

impl<T: 'static> Commit<T> {
    pub(crate) fn new(
        submitted: Result<oneshot::Receiver<Result<Committed, Error>>, Error>,
        read: impl FnOnce(Committed) -> Result<T, Error> + Send + 'static,
    ) -> Commit<T> {
        match submitted {
            Ok(receiver) => Commit { answer: Answer::Coming(receiver, Box::new(read)) },
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
            Answer::Coming(receiver, read) => {
                Commit { answer: Answer::Coming(receiver, Box::new(|committed| on(read(committed)?))) }
            }
        }
    }

    /// Blocks until the answer is there.
    pub fn wait(self) -> Result<T, Error> {
        match self.answer {
            Answer::Known(answer) => answer,
            Answer::Coming(receiver, read) => read(receiver.recv().map_err(|_| closed())??),
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
                Answer::Coming(receiver, read) => Answer::Coming(receiver.into_future(), read),
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
