//! Connections to the database: where they lead, the pool, and the thread that serves them.
//!
//! A query is a future that only communicates with its connection over a channel, so the calling thread drives it
//! (`runtime.rs`); statements that are started together are sent together.

use super::db::explain;
use super::tls::Encryption;
use crate::runtime::{Runtime as Thread, drive};
use deadpool_postgres::{
    Connect, Manager, ManagerConfig, Object, Pool, PoolError, QueueMode, RecyclingMethod, Runtime,
};
use everturn_core::Error;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, select_ok};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

/// A pool of connections and the thread that serves them.
pub struct Link {
    pool: Option<Pool>,
    pub hosts: Arc<Hosts>,
    /// Place of assets that the URL names.
    pub assets: Option<String>,
    pub runtime: Handle,
    /// Dropped last: the thread then stops.
    _thread: Thread,
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

/// Parts of a URL.
struct Address {
    hosts: Hosts,
    connections: usize,
    assets: Option<String>,
}

/// Takes our parameters out of a URL; the client refuses those that it does not know.
fn parse(url: &str) -> Result<Address, Error> {
    let invalid = |text: String| Error::invalid("store.url", text);
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let (mut connections, mut assets, mut encryption) = (CONNECTIONS, None, Encryption::default());
    let mut rest = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let mut decoded = url::form_urlencoded::parse(pair.as_bytes());
        let (name, value) =
            decoded.next().map(|(name, value)| (name, value.into_owned())).unwrap_or_default();
        match &*name {
            "connections_max" => {
                connections = value.parse().ok().filter(|n| (4..=1000).contains(n)).ok_or_else(|| {
                    invalid(format!("connections_max is {value:?}; use a number from 4 to 1000"))
                })?;
            }
            "assets" => assets = Some(value),
            "sslmode" => encryption.mode = Some(value),
            "sslrootcert" => encryption.root = Some(value),
            _ => rest.push(pair),
        }
    }
    let and = if rest.is_empty() { "" } else { "?" };
    let rest = format!("{and}{}", rest.join("&"));
    let (mode, tls) = encryption.connector()?;
    let configs = single_hosts(base).into_iter().map(|base| config(&format!("{base}{rest}"), mode));
    let hosts = Hosts { configs: configs.collect::<Result<_, _>>()?, tls, last: AtomicUsize::new(0) };
    Ok(Address { hosts, connections, assets })
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

fn config(url: &str, mode: SslMode) -> Result<Config, Error> {
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
    config.ssl_mode(mode);
    Ok(config)
}

/// A connection, encrypted where the settings want it.
type Encrypted = tokio_postgres::Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>;

/// The hosts of a URL.
pub struct Hosts {
    configs: Vec<Config>,
    tls: MakeRustlsConnect,
    /// The one that answered last, which is asked first.
    last: AtomicUsize,
}

impl Hosts {
    /// Connects to the first host that answers as `target_session_attrs` wants it. A host that accepts a connection
    /// and then says nothing must not keep us from the others, so they are asked a moment later.
    pub async fn connect(&self) -> Result<(Client, Encrypted), tokio_postgres::Error> {
        let (count, first) = (self.configs.len(), self.last.load(Ordering::SeqCst));
        let attempts = (0..count).map(|nth| {
            let at = (first + nth) % count;
            let connect = async move {
                tokio::time::sleep(HEAD_START * nth as u32).await;
                Ok::<_, tokio_postgres::Error>((at, self.configs[at].connect(self.tls.clone()).await?))
            };
            connect.boxed()
        });
        let ((at, connected), _) = select_ok(attempts).await?;
        self.last.store(at, Ordering::SeqCst);
        Ok(connected)
    }

    /// Cancels the statement that a session is waiting for.
    pub async fn cancel(&self, client: &Client) -> Result<(), tokio_postgres::Error> {
        client.cancel_token().cancel_query(self.tls.clone()).await
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
        let Address { hosts, connections, assets } = parse(url)?;
        let hosts = Arc::new(hosts);
        let thread = Thread::start("postgres")?;
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_connect(Config::new(), Connector(hosts.clone()), recycling);
        let pool = Pool::builder(manager)
            .max_size(connections)
            .runtime(Runtime::Tokio1)
            // A session that was used a moment ago has its memory in the processor's cache.
            .queue_mode(QueueMode::Lifo)
            .wait_timeout(Some(WAIT))
            .create_timeout(Some(WAIT))
            .build()
            .map_err(|e| {
                Error::internal("store.pool", format!("cannot make the pool of connections: {e}"))
            })?;
        let runtime = thread.handle.clone();
        Ok(Link { pool: Some(pool), hosts, assets, runtime, _thread: thread })
    }

    pub fn connection(&self) -> Result<Connection, Error> {
        // Opening a connection starts a task, and waiting for one starts a timer.
        let _inside = self.runtime.enter();
        let pool = self.pool.as_ref().ok_or_else(|| Error::internal("store.pool", "the store is closed"))?;
        let client = drive(pool.get()).map_err(|e| match e {
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
        })?;
        Ok(Connection { client: Some(client), runtime: self.runtime.clone(), lost: AtomicBool::new(false) })
    }
}

/// A connection of the pool. It returns there when it is dropped, unless it was lost.
pub struct Connection {
    /// Present until it is dropped.
    client: Option<Object>,
    pub runtime: Handle,
    lost: AtomicBool,
}

impl Connection {
    /// Notes that it must not be used again: no answer came, or it leads to a server that is no primary any more.
    pub fn lose(&self) {
        self.lost.store(true, Ordering::SeqCst);
    }

    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::SeqCst)
    }
}

impl Deref for Connection {
    type Target = deadpool_postgres::ClientWrapper;

    fn deref(&self) -> &Self::Target {
        self.client.as_ref().expect("a connection is taken only when it is dropped")
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let _inside = self.runtime.enter();
        let client = self.client.take();
        if self.is_lost() {
            client.into_iter().for_each(|client| drop(Object::take(client)));
        }
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
