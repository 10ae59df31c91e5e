//! The bridge between an async client and sync traits.
//!
//! One thread runs a small tokio runtime with nothing on it but the connections: they read and write sockets. A
//! query is a future that only communicates with its connection over a channel, so it needs no runtime: the
//! calling thread drives it, and sleeps until the connection wakes it. So a sync method may borrow, may call
//! `core`, which calls back, and may be called from inside another runtime; and statements that are started
//! together are sent together.

use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime};
use everturn_core::Error;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;
use tokio_postgres::NoTls;

/// A pool of connections and the thread that serves them.
pub struct Link {
    pool: Option<Pool>,
    runtime: tokio::runtime::Handle,
    /// Dropped last: the thread then stops.
    _stop: tokio::sync::oneshot::Sender<()>,
}

/// Maximum time that a request waits for a free connection.
const WAIT: Duration = Duration::from_secs(10);

impl Link {
    pub fn open(url: &str, connections: usize) -> Result<Link, Error> {
        let config: tokio_postgres::Config = url
            .parse()
            .map_err(|e| Error::invalid("store.url", format!("the PostgreSQL URL cannot be read: {e}")))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| {
            Error::internal("store.runtime", format!("cannot start the runtime of the connections: {e}"))
        })?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        thread::Builder::new()
            .name("postgres".into())
            .spawn(move || {
                let _ = runtime.block_on(stopped);
            })
            .map_err(|e| {
                Error::internal("store.runtime", format!("cannot start the thread of the connections: {e}"))
            })?;
        let manager =
            Manager::from_config(config, NoTls, ManagerConfig { recycling_method: RecyclingMethod::Fast });
        let pool = Pool::builder(manager)
            .max_size(connections)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(WAIT))
            .create_timeout(Some(WAIT))
            .build()
            .map_err(|e| {
                Error::internal("store.pool", format!("cannot make the pool of connections: {e}"))
            })?;
        Ok(Link { pool: Some(pool), runtime: handle, _stop: stop })
    }

    pub fn connection(&self) -> Result<Object, Error> {
        // Opening a connection starts a task, and waiting for one starts a timer.
        let _inside = self.runtime.enter();
        let pool = self.pool.as_ref().ok_or_else(|| Error::internal("store.pool", "the store is closed"))?;
        drive(pool.get()).map_err(|e| {
            Error::busy(
                "store.unreachable",
                format!("cannot get a connection to PostgreSQL ({e}); try again"),
            )
        })
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let _inside = self.runtime.enter();
        self.pool.take();
    }
}

struct Sleeper(Thread);

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Drives a future on this thread. Unlike a runtime's `block_on` it may be called from anywhere.
pub fn drive<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Sleeper(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
