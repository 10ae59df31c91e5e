//! The bridge between an async client and sync traits.
//!
//! One thread runs a small tokio runtime with nothing on it but the connections: they read and write sockets. A
//! query is a future that only communicates with its connection over a channel, so it needs no runtime: the
//! calling thread drives it, and sleeps until the connection wakes it. So a sync method may borrow, may call
//! `core`, which calls back, and may be called from inside another runtime; and statements that are started
//! together are sent together.

use super::db::explain;
use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime};
use everturn_core::Error;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio_postgres::{Config, NoTls};

/// A pool of connections and the thread that serves them.
pub struct Link {
    pool: Option<Pool>,
    pub config: Config,
    pub runtime: Handle,
    /// Dropped last: the thread then stops.
    _stop: tokio::sync::oneshot::Sender<()>,
}

/// Maximum time that a request waits for a free connection, and for a new one.
const WAIT: Duration = Duration::from_secs(10);
/// Maximum time that sent bytes stay unacknowledged: a peer that vanished is noticed then.
const UNACKNOWLEDGED: Duration = Duration::from_secs(10);
/// Connections of one process, unless the URL says `connections_max`.
const CONNECTIONS: usize = 8;

/// Settings from a URL. Those that are ours are taken out; the client refuses parameters that it does not know.
fn parse(url: &str) -> Result<(Config, usize), Error> {
    let invalid = |text: String| Error::invalid("store.url", text);
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let (ours, rest): (Vec<&str>, Vec<&str>) = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .partition(|pair| pair.starts_with("connections_max="));
    let mut connections = CONNECTIONS;
    for pair in ours {
        let number = pair.trim_start_matches("connections_max=");
        connections =
            number.parse().ok().filter(|n| (4..=1000).contains(n)).ok_or_else(|| {
                invalid(format!("connections_max is {number:?}; use a number from 4 to 1000"))
            })?;
    }
    let and = if rest.is_empty() { "" } else { "?" };
    let mut config: Config =
        format!("{base}{and}{}", rest.join("&")).parse().map_err(|e: tokio_postgres::Error| {
            let why = std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string);
            invalid(format!(
                "the PostgreSQL URL cannot be read: {why}; use postgres://USER:PASSWORD@HOST:PORT/DATABASE"
            ))
        })?;
    if config.get_application_name().is_none() {
        config.application_name("everturn");
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(WAIT);
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(UNACKNOWLEDGED);
    }
    Ok((config, connections))
}

impl Link {
    pub fn open(url: &str) -> Result<Link, Error> {
        let (config, connections) = parse(url)?;
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
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let pool = Pool::builder(Manager::from_config(config.clone(), NoTls, recycling))
            .max_size(connections)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(WAIT))
            .create_timeout(Some(WAIT))
            .build()
            .map_err(|e| {
                Error::internal("store.pool", format!("cannot make the pool of connections: {e}"))
            })?;
        Ok(Link { pool: Some(pool), config, runtime: handle, _stop: stop })
    }

    pub fn connection(&self) -> Result<Object, Error> {
        // Opening a connection starts a task, and waiting for one starts a timer.
        let _inside = self.runtime.enter();
        let pool = self.pool.as_ref().ok_or_else(|| Error::internal("store.pool", "the store is closed"))?;
        drive(pool.get()).map_err(|e| match e {
            PoolError::Backend(error) => explain(&error).error,
            PoolError::Timeout(_) => Error::busy(
                "store.unreachable",
                format!(
                    "PostgreSQL gave no connection within {} s; it may be down, or all connections are in use: try again",
                    WAIT.as_secs()
                ),
            ),
            other => {
                Error::busy("store.unreachable", format!("cannot connect to PostgreSQL ({other}); try again"))
            }
        })
    }
}

impl Link {
    /// Runs commands outside a transaction.
    pub fn outside(&self, sql: &str) -> Result<(), Error> {
        let connection = self.connection()?;
        let _inside = self.runtime.enter();
        drive(connection.batch_execute(sql)).map_err(|e| explain(&e).error)
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
