//! The bridge between async clients and sync traits.
//!
//! One thread runs a small tokio runtime that serves sockets and timers. The calling thread drives a future by itself
//! and sleeps until its socket or timer wakes it. So a sync method may borrow its arguments, may call `core`, which
//! calls back, and may be called from inside another runtime.

use everturn_core::Error;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use tokio::runtime::{Builder, Handle};

/// A thread that serves sockets and timers until this is dropped.
pub struct Runtime {
    pub handle: Handle,
    _stop: tokio::sync::oneshot::Sender<()>,
}

impl Runtime {
    /// Starts a thread of this name.
    pub fn start(name: &str) -> Result<Runtime, Error> {
        let cannot = |e| Error::internal("store.runtime", format!("cannot start the thread {name}: {e}"));
        let runtime = Builder::new_current_thread().enable_all().build().map_err(cannot)?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let serve = move || {
            let _ = runtime.block_on(stopped);
        };
        thread::Builder::new().name(name.into()).spawn(serve).map_err(cannot)?;
        Ok(Runtime { handle, _stop: stop })
    }

    /// Drives a future that opens sockets or sets timers.
    pub fn drive<F: Future>(&self, future: F) -> F::Output {
        let _inside = self.handle.enter();
        drive(future)
    }
}

struct Sleeper(Thread);

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Drives a future on this thread. Unlike a runtime's `block_on` it may be called from anywhere; inside a task of a runtime,
/// the future must not wait for the task's turn to end.
pub fn drive<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Sleeper(thread::current())));
    let mut context = Context::from_waker(&waker);
    // Inside a task of a runtime, its budget must not count: a future that has used it up is woken by the runtime, once the task
    // lets go of this thread, which it never would.
    let mut future = pin!(tokio::task::unconstrained(future));
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a server that was told to stop hung for ever, because it closed its store inside a task.
    #[test]
    fn any_number_of_futures_is_driven_inside_one_task() {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let free = tokio::sync::Semaphore::new(1);
        runtime.block_on(async { (0..1000).for_each(|_| drop(drive(free.acquire()).unwrap())) });
    }
}
