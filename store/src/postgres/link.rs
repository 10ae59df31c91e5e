//! The bridge between an async client and sync traits.
//!
//! One thread runs a small tokio runtime with nothing on it but the connections: they read and write sockets. A
//! query is a future that only communicates with its connection over a channel, so it needs no runtime: the
//! calling thread drives it, and sleeps until the connection wakes it. So a sync method may borrow, may call
//! `core`, which calls back, and may be called from inside another runtime; and statements that are started
//! together are sent together.

use super::db::explain;
use deadpool_postgres::{Connect, Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime};
use everturn_core::Error;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, select_ok};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_postgres::tls::NoTlsStream;
use tokio_postgres::{Client, Config, Connection, NoTls, Socket};

/// A pool of connections and the thread that serves them.
pub struct Link {
    pool: Option<Pool>,
    pub hosts: Arc<Hosts>,
    pub runtime: Handle,
    /// Dropped last: the thread then stops.
    _stop: tokio::sync::oneshot::Sender<()>,
}

/// Maximum time that a request waits for a free connection, and for a new one.
const WAIT: Duration = Duration::from_secs(10);
/// Maximum time that sent bytes stay unacknowledged: a peer that vanished is noticed then.
const UNACKNOWLEDGED: Duration = Duration::from_secs(10);
/// Idle time after which a connection asks whether its peer is still there.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// Time that a host has for its answer before the next one is asked as well.
const HEAD_START: Duration = Duration::from_millis(250);
/// Connections of one process, unless the URL says `connections_max`.
const CONNECTIONS: usize = 8;

/// Settings from a URL. Those that are ours are taken out; the client refuses parameters that it does not know.
fn parse(url: &str) -> Result<(Hosts, usize), Error> {
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
            number.parse().ok().filter(|n| (2..=1000).contains(n)).ok_or_else(|| {
                invalid(format!("connections_max is {number:?}; use a number from 2 to 1000"))
            })?;
    }
    let and = if rest.is_empty() { "" } else { "?" };
    let rest = format!("{and}{}", rest.join("&"));
    let configs = single_hosts(base).into_iter().map(|base| config(&format!("{base}{rest}")));
    Ok((Hosts { configs: configs.collect::<Result<_, _>>()?, last: AtomicUsize::new(0) }, connections))
}

/// The beginning of a URL for each of its hosts.
fn single_hosts(base: &str) -> Vec<String> {
    let (scheme, rest) = base.split_once("://").unwrap_or(("", base));
    let (authority, database) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    let (user, hosts) = authority.rfind('@').map_or(("", authority), |at| authority.split_at(at + 1));
    hosts.split(',').map(|host| format!("{scheme}://{user}{host}{database}")).collect()
}

fn config(url: &str) -> Result<Config, Error> {
    let mut config: Config = url.parse().map_err(|e: tokio_postgres::Error| {
        let why = std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string);
        let text = format!(
            "the PostgreSQL URL cannot be read: {why}; use postgres://USER:PASSWORD@HOST:PORT/DATABASE"
        );
        Error::invalid("store.url", text)
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
    if !url.contains("keepalives") {
        config.keepalives_idle(KEEPALIVE);
    }
    Ok(config)
}

/// The hosts of a URL.
pub struct Hosts {
    configs: Vec<Config>,
    /// The one that answered last, which is asked first.
    last: AtomicUsize,
}

impl Hosts {
    /// Connects to the first host that answers as `target_session_attrs` wants it. A host that accepts a connection
    /// and then says nothing must not keep us from the others, so they are asked a moment later.
    pub async fn connect(&self) -> Result<(Client, Connection<Socket, NoTlsStream>), tokio_postgres::Error> {
        let (count, first) = (self.configs.len(), self.last.load(Ordering::SeqCst));
        let attempts = (0..count).map(|nth| {
            let at = (first + nth) % count;
            let connect = async move {
                tokio::time::sleep(HEAD_START * nth as u32).await;
                Ok::<_, tokio_postgres::Error>((at, self.configs[at].connect(NoTls).await?))
            };
            connect.boxed()
        });
        let ((at, connected), _) = select_ok(attempts).await?;
        self.last.store(at, Ordering::SeqCst);
        Ok(connected)
    }
}

/// For the pool, whose own connector asks the hosts one after the other.
struct Connector(Arc<Hosts>);

impl Connect for Connector {
    fn connect(&self, _: &Config) -> BoxFuture<'_, Result<(Client, JoinHandle<()>), tokio_postgres::Error>> {
        let connect = async {
            let (client, connection) = self.0.connect().await?;
            let run = async {
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "a connection to PostgreSQL ended");
                }
            };
            Ok((client, tokio::spawn(run)))
        };
        connect.boxed()
    }
}

impl Link {
    pub fn open(url: &str) -> Result<Link, Error> {
        let (hosts, connections) = parse(url)?;
        let hosts = Arc::new(hosts);
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
        let manager = Manager::from_connect(Config::new(), Connector(hosts.clone()), recycling);
        let pool = Pool::builder(manager)
            .max_size(connections)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(WAIT))
            .create_timeout(Some(WAIT))
            .build()
            .map_err(|e| {
                Error::internal("store.pool", format!("cannot make the pool of connections: {e}"))
            })?;
        Ok(Link { pool: Some(pool), hosts, runtime: handle, _stop: stop })
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
    /// Refuses a pooler that gives a client the prepared statements of another: PgBouncer before 1.21 in transaction mode. It
    /// would work now and then, and execute a statement of another process under the same name.
    pub fn check_pooler(&self) -> Result<(), Error> {
        let (one, other) = (self.connection()?, self.connection()?);
        let _inside = self.runtime.enter();
        let asked = drive(async {
            let statement = one.prepare("SELECT 1").await?;
            // Takes the connection on which it was prepared, if there is a pooler.
            other.batch_execute("BEGIN").await?;
            let asked = one.query(&statement, &[]).await;
            other.batch_execute("ROLLBACK").await?;
            asked
        });
        asked.map(drop).map_err(|e| explain(&e).error)
    }

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
