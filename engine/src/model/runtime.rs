//! Runtime of requests to models. It starts with the first one and stays.

use everturn_core::Error;
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{AbortHandle, JoinHandle};

/// Most concurrent name lookups, each of which blocks a thread.
const LOOKUPS_MAX: usize = 4;

pub fn runtime() -> Result<&'static Runtime, Error> {
    static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();
    let started = RUNTIME.get_or_init(|| {
        let mut builder = Builder::new_multi_thread();
        builder
            .worker_threads(1)
            .max_blocking_threads(LOOKUPS_MAX)
            .thread_name("everturn-models")
            .enable_all();
        builder.build().map_err(|e| e.to_string())
    });
    started
        .as_ref()
        .map_err(|e| Error::internal("model.runtime", format!("cannot start the model clients: {e}")))
}

/// Aborts its task when dropped.
pub struct Ends(pub AbortHandle);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Work that runs elsewhere; dropping it ends the work.
pub struct Task<T> {
    handle: JoinHandle<Result<T, Error>>,
    _ends: Ends,
}

impl<T: Send + 'static> Task<T> {
    pub fn spawn(work: impl Future<Output = Result<T, Error>> + Send + 'static) -> Result<Task<T>, Error> {
        let handle = runtime()?.spawn(work);
        Ok(Task { _ends: Ends(handle.abort_handle()), handle })
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.handle).poll(context).map(|done| {
            done.unwrap_or_else(|e| {
                Err(Error::internal("model.client", format!("the model client failed: {e}")))
            })
        })
    }
}
