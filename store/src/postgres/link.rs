//! Connections to the database: where they lead, the pool, and the thread that serves them.
//!
//! A query is a future that only communicates with its connection over a channel, so the calling thread drives it
//! (`runtime.rs`); statements that are started together are sent together.

use super::db::explain;
use super::tls::Encryption;
use crate::runtime::{Runtime as Thread, drive};
use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime};
use everturn_core::Error;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio_postgres::Config;
use tokio_postgres_rustls::MakeRustlsConnect;

/// A pool of connections and the thread that serves them.
pub struct Link {
    pool: Option<Pool>,
    pub config: Config,
    /// Place of assets that the URL names.
    pub assets: Option<String>,
    pub tls: MakeRustlsConnect,
    pub runtime: Handle,
    /// Dropped last: the thread then stops.
    _thread: Thread,
}

/// Maximum time that a request waits for a free connection, and for a new one.
const WAIT: Duration = Duration::from_secs(10);
/// Maximum time that sent bytes stay unacknowledged: a peer that vanished is noticed then.
const UNACKNOWLEDGED: Duration = Duration::from_secs(10);
/// Connections of one process, unless the URL says `connections_max`.
const CONNECTIONS: usize = 8;

/// Parts of a URL.
struct Address {
    config: Config,
    connections: usize,
    assets: Option<String>,
    tls: MakeRustlsConnect,
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
                connections = value.parse().ok().filter(|n| (2..=1000).contains(n)).ok_or_else(|| {
                    invalid(format!("connections_max is {value:?}; use a number from 2 to 1000"))
                })?;
            }
            "assets" => assets = Some(value),
            "sslmode" => encryption.mode = Some(value),
            "sslrootcert" => encryption.root = Some(value),
            _ => rest.push(pair),
        }
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
    let (mode, tls) = encryption.connector()?;
    config.ssl_mode(mode);
    Ok(Address { config, connections, assets, tls })
}

impl Link {
    pub fn open(url: &str) -> Result<Link, Error> {
        let Address { config, connections, assets, tls } = parse(url)?;
        let thread = Thread::start("postgres")?;
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let pool = Pool::builder(Manager::from_config(config.clone(), tls.clone(), recycling))
            .max_size(connections)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(WAIT))
            .create_timeout(Some(WAIT))
            .build()
            .map_err(|e| {
                Error::internal("store.pool", format!("cannot make the pool of connections: {e}"))
            })?;
        let runtime = thread.handle.clone();
        Ok(Link { pool: Some(pool), config, assets, tls, runtime, _thread: thread })
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
