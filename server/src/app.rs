//! State shared by all handlers.

use crate::access::Access;
use crate::config::Config;
use crate::lanes::{self, Charge, Thread};
use crate::openai::Streams;
use everturn_api::{Reply, Work, WorkFuture};
use everturn_core::Error;
use everturn_engine::Everturn;
use everturn_engine::model::Embed;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// State shared by all handlers.
pub struct App {
    /// The store.
    pub store: Everturn,
    /// Configuration of the server.
    pub config: Config,
    /// State of access control.
    pub access: Access,
    /// Cancelled when the server begins to stop: streams end with a position to resume from.
    pub stopping: CancellationToken,
    /// Events of recent streams.
    pub streams: Streams,
    /// Embedding models, by name.
    pub embedders: BTreeMap<String, Arc<dyn Embed>>,
}

impl App {
    /// Serves an open store.
    pub fn new(store: Everturn, config: Config) -> App {
        crate::metrics::collect();
        let access = Access::new(&config);
        let (stopping, streams, embedders) = (CancellationToken::new(), Streams::default(), BTreeMap::new());
        App { store, access, config, stopping, streams, embedders }
    }

    /// Adds embedding models.
    pub fn with_embedders(mut self, embedders: BTreeMap<String, Arc<dyn Embed>>) -> App {
        self.embedders = embedders;
        self
    }
}

/// Runs work that reads the disk, or waits for a model, away from the threads that serve.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let thread = match lanes::current() {
        Some(request_lane) => Some(request_lane.lane.thread().await?),
        None => None,
    };
    on_thread(thread, work).await
}

/// [`blocking`], as the `Threads` of an operation.
pub fn elsewhere(work: Box<dyn FnOnce() + Send>) -> WorkFuture {
    Box::pin(blocking(move || {
        work();
        Ok(())
    }))
}

/// As [`blocking`], for work that needs much memory or processor time, or that waits for the client: limited per
/// tenant.
pub async fn large<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    on_thread(large_thread().await?, work).await
}

/// Permission for such work, for a caller that runs it itself.
pub async fn large_thread() -> Result<Option<Thread>, Error> {
    match lanes::current() {
        Some(request_lane) => request_lane.lane.large().await.map(Some),
        None => Ok(None),
    }
}

async fn on_thread<T: Send + 'static>(
    thread: Option<Thread>,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let work = move || {
        let _thread = thread;
        work()
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(answer) => answer,
        Err(_) => Err(panicked()),
    }
}

/// The error for work that ended without an answer.
pub fn panicked() -> Error {
    Error::internal("server.panic", "the request failed inside the server; see its log")
}

/// Runs work with an answer that may be large. It counts as unsent before the thread is free for the next
/// request.
pub async fn replying(
    work: Work,
    reply: impl FnOnce() -> Result<Reply, Error> + Send + 'static,
) -> Result<(Reply, Option<Charge>), Error> {
    let request_lane = lanes::current();
    let thread = match &request_lane {
        Some(request_lane) => Some(match work {
            Work::Large => request_lane.lane.large().await?,
            Work::Page => request_lane.lane.answer().await?,
            Work::Blocking | Work::Quick => request_lane.lane.thread().await?,
        }),
        None => None,
    };
    on_thread(thread, move || {
        let reply = reply()?;
        let charge = request_lane.and_then(|request_lane| request_lane.lane.charge(reply.json.len()));
        Ok((reply, charge))
    })
    .await
}
