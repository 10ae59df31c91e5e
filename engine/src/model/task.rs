//! Tasks on the runtime of requests to models.

use super::runtime::runtime;
use everturn_core::Error;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::task::{AbortHandle, JoinHandle};

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
