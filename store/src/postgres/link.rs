//! Connections to the database: where they lead, the pool, and the thread that serves them.
//!
//! A query is a future that only communicates with its connection over a channel, so the calling thread drives it
//! (`runtime.rs`); statements that are started together are sent together.

use super::db::explain;
use super::tls::{self, Encryption};
use crate::runtime::{Runtime as Thread, drive};
use deadpool_postgres::{
    Connect, Manager, ManagerConfig, Object, Pool, PoolError, QueueMode, RecyclingMethod, Runtime,
};
use everturn_core::Error;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, select_ok};
use std::io::ErrorKind;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_postgres::config::{Host, SslMode};
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

/// Options of a URL, each with its values.
const OPTIONS: [(&str, &str); 22] = [
    ("application_name", "a name"),
    ("assets", "the URL of a place"),
    ("channel_binding", "disable, prefer or require"),
    ("connect_timeout", "a number of seconds"),
    ("connections_max", "a number from 4 to 1000"),
    ("dbname", "a name"),
    ("host", "a name"),
    ("hostaddr", "an IP address"),
    ("keepalives", "0 or 1"),
    ("keepalives_idle", "a number of seconds"),
    ("keepalives_interval", "a number of seconds"),
    ("keepalives_retries", "a number"),
    ("load_balance_hosts", "disable or random"),
    ("options", "settings, as in -c NAME=VALUE"),
    ("password", "a password"),
    ("port", "a number from 1 to 65535"),
    ("sslmode", "disable, prefer, require, verify-ca or verify-full"),
    ("sslnegotiation", "postgres or direct"),
    ("sslrootcert", "a PEM file, or system"),
    ("target_session_attrs", "any, read-write or read-only"),
    ("tcp_user_timeout", "a number of seconds"),
    ("user", "a name"),
];

/// Advice for a URL with more than one `@`.
const ENCODE: &str =
    "percent-encode special characters of the password: @ as %40, / as %2F, : as %3A, % as %25";

/// The error for a URL that the client does not understand.
fn unreadable(url: &str, why: &str) -> Error {
    let option = why.split('`').nth(1).unwrap_or_default();
    let values = OPTIONS.iter().find(|(name, _)| *name == option).map(|(_, values)| values);
    let advice = if url.split('?').next().is_some_and(|base| base.matches('@').count() > 1) {
        ENCODE.to_string()
    } else if let Some(values) = values {
        format!("use {values}")
    } else {
        let names = OPTIONS.map(|(name, _)| name).join(", ");
        format!("use postgres://USER:PASSWORD@HOST:PORT/DATABASE?OPTION=VALUE; the options are {names}")
    };
    Error::invalid("store.url", format!("the PostgreSQL URL cannot be read: {why}; {advice}"))
}

fn config(url: &str, mode: SslMode) -> Result<Config, Error> {
    let mut config: Config = url.parse().map_err(|e: tokio_postgres::Error| {
        unreadable(url, &std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string))
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

    /// The error of a connection that was not made, with what to do about these hosts.
    pub fn explain(&self, failed: &tokio_postgres::Error) -> Error {
        let error = explain(failed).error;
        match self.advised(failed, error.text()) {
            Some(text) => error.reworded(|_| text),
            None => error,
        }
    }

    /// The text of an error for which there is better advice than trying again or checking the password.
    fn advised(&self, failed: &tokio_postgres::Error, text: &str) -> Option<String> {
        if let Some(told) = failed.as_db_error() {
            let (message, code) = (told.message(), told.code().code());
            let advice = if message.contains("pg_hba.conf") && message.contains("no encryption") {
                "add a line to pg_hba.conf, or sslmode=require to the URL"
            } else if message.contains("pg_hba.conf") {
                "add a line to pg_hba.conf"
            } else if message.contains("SSL required") {
                "set sslmode=require or verify-full in the URL"
            } else {
                return None;
            };
            return Some(format!("PostgreSQL: {message} ({code}); {advice}"));
        }
        if tls::complaint(failed).is_some_and(|why| why.contains("CaUsedAsEndEntity")) {
            return Some(
                "the certificate of the PostgreSQL server is marked as an authority; make it with basicConstraints=CA:FALSE, \
                 or sign one with a CA"
                    .into(),
            );
        }
        let source = std::error::Error::source(failed)?.downcast_ref::<std::io::Error>()?;
        if source.kind() == ErrorKind::ConnectionRefused {
            let refused = match self.configs.len() {
                1 => format!("{} refused the connection", self.names()),
                _ => format!("none of {} can be used, and one refused the connection", self.names()),
            };
            return Some(format!("{refused}; is PostgreSQL running there?"));
        }
        (source.to_string().starts_with("failed to lookup") && self.have_part_of_password())
            .then(|| format!("{text}, and {ENCODE}"))
    }

    /// The hosts with their ports, without what may be part of a password.
    fn names(&self) -> String {
        let names = self.configs.iter().flat_map(|config| {
            config.get_hosts().iter().enumerate().map(|(nth, host)| {
                let ports = config.get_ports();
                let port = ports.get(nth).or(ports.first()).copied().unwrap_or(5432);
                match host {
                    Host::Tcp(name) if name.contains('@') => {
                        format!("{}:{port}", name.rsplit('@').next().unwrap_or_default())
                    }
                    Host::Tcp(name) if name.contains(':') => format!("[{name}]:{port}"),
                    Host::Tcp(name) => format!("{name}:{port}"),
                    #[cfg(unix)]
                    Host::Unix(folder) => format!("{}/.s.PGSQL.{port}", folder.display()),
                }
            })
        });
        names.collect::<Vec<_>>().join(", ")
    }

    /// Whether the URL was split within its password, at an `@` that is not encoded, or at a `/` before it.
    fn have_part_of_password(&self) -> bool {
        self.configs.iter().any(|config| {
            let has_at = |host: &Host| matches!(host, Host::Tcp(name) if name.contains('@'));
            config.get_hosts().iter().any(has_at)
                || config.get_dbname().is_some_and(|name| name.contains('@'))
        })
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
            PoolError::Backend(error) => self.hosts.explain(&error),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_that_cannot_be_read_says_what_can() {
        for (rest, says) in [
            (
                "u@h/d?colour=blue",
                "unknown option `colour`; use postgres://USER:PASSWORD@HOST:PORT/DATABASE?",
            ),
            ("u@h/d?colour=blue", "; the options are application_name, assets, "),
            ("u@h/d?target_session_attrs=primary", "; use any, read-write or read-only"),
            ("u@h/d?channel_binding=yes", "; use disable, prefer or require"),
            ("u@h/d?connect_timeout=soon", "; use a number of seconds"),
            ("u@h:high/d", "; use a number from 1 to 65535"),
            ("u:a@b:c@h/d", "; percent-encode special characters of the password: @ as %40"),
            ("u@h/d?colour", "; use postgres://USER:PASSWORD@HOST:PORT/DATABASE?"),
        ] {
            let error = parse(&format!("postgres://{rest}")).err().unwrap();
            assert_eq!(error.code(), "store.url", "{rest}");
            assert!(error.text().contains(says), "{rest}: {error}");
        }
    }

    #[test]
    fn every_option_is_taken() {
        for (name, value) in [
            ("application_name", "x"),
            ("assets", "file:///x"),
            ("channel_binding", "prefer"),
            ("connect_timeout", "1"),
            ("connections_max", "4"),
            ("dbname", "x"),
            ("host", "x"),
            ("hostaddr", "127.0.0.1"),
            ("keepalives", "0"),
            ("keepalives_idle", "1"),
            ("keepalives_interval", "1"),
            ("keepalives_retries", "1"),
            ("load_balance_hosts", "random"),
            ("options", "-c%20jit=off"),
            ("password", "x"),
            ("port", "5432"),
            ("sslmode", "require"),
            ("sslnegotiation", "direct"),
            ("target_session_attrs", "read-only"),
            ("tcp_user_timeout", "1"),
            ("user", "x"),
        ] {
            assert!(OPTIONS.iter().any(|(known, _)| *known == name), "{name}");
            assert!(parse(&format!("postgres:///d?{name}={value}")).is_ok(), "{name}");
        }
    }

    #[test]
    fn a_password_that_was_taken_for_a_host_is_noticed() {
        for (url, is_part) in [
            ("postgres://u:p@h/d", false),
            ("postgres://u:p%40s@h/d", false),
            ("postgres://u:p/s@h/d", false),
            ("postgres://u:p@s@h/d", true),
            ("postgres://u:p@s/t@h/d", true),
        ] {
            assert_eq!(parse(url).ok().unwrap().hosts.have_part_of_password(), is_part, "{url}");
        }
    }

    #[test]
    fn a_refused_connection_names_host_and_port() {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let refused = |hosts: &str| {
            let link = Link::open(&format!("postgres://everturn@{hosts}/everturn")).unwrap();
            link.connection().err().unwrap()
        };
        let host = format!("127.0.0.1:{port}");
        let one = refused(&host);
        assert_eq!(one.code(), "store.unreachable");
        assert_eq!(one.text(), format!("{host} refused the connection; is PostgreSQL running there?"));
        let two = refused(&format!("{host},{host}"));
        assert!(two.text().starts_with(&format!("none of {host}, {host} can be used")), "{two}");
    }
}
