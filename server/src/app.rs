//! What all handlers share.

use crate::access::Access;
use crate::config::Config;
use everturn_core::Error;
use everturn_engine::Everturn;
use tokio_util::sync::CancellationToken;

/// What all handlers share.
pub struct App {
    /// The store.
    pub store: Everturn,
    /// How it is served.
    pub config: Config,
    /// What is known about those who ask.
    pub access: Access,
    /// Cancelled when the server begins to stop: streams end with a place to resume from.
    pub stopping: CancellationToken,
}

impl App {
    /// Over an open store.
    pub fn new(store: Everturn, config: Config) -> App {
        crate::metrics::collect();
        App { store, access: Access::new(&config), config, stopping: CancellationToken::new() }
    }
}

/// Runs what reads the disk, or waits for a model, away from the threads that serve.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(answer) => answer,
        Err(_) => Err(Error::internal("server.panic", "the request failed inside the server; see its log")),
    }
}
