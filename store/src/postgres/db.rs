//! One connection with one transaction on it: queries with one round trip each, or several in one. A whole transaction can
//! also be sent behind another one that is not answered yet.

use super::link::{Connection, Link};
use super::tls;
use crate::runtime::drive;
use everturn_core::Error;
use everturn_core::error::code;
use everturn_core::id::TenantName;
use futures_util::FutureExt;
use futures_util::future::{join_all, try_join_all};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::task::{JoinError, JoinHandle};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

pub type Param = Box<dyn ToSql + Sync + Send>;

/// A statement that waits to be sent.
pub struct Pending {
    pub sql: &'static str,
    pub params: Vec<Param>,
}

/// Puts parameters into boxes.
macro_rules! boxed {
    ($($value:expr),* $(,)?) => { vec![$(Box::new($value) as $crate::postgres::db::Param),*] };
}
pub(super) use boxed;

/// A failure of the database, as opposed to a refused request.
#[derive(Debug, Clone)]
pub struct Broken {
    pub error: Error,
    /// The request itself cannot be stored: the others of its batch can.
    pub by_data: bool,
    /// Retrying may succeed at once.
    pub again: bool,
    /// The connection is gone, or the server is not one to write to (any more).
    pub lost: bool,
    /// A lock was not free in time.
    pub held: bool,
}

impl Broken {
    pub fn lost(error: Error) -> Broken {
        Broken { error, by_data: false, again: false, lost: true, held: false }
    }
}

/// Rows that a transaction may touch. The server's own queries name their tenant as well; row-level security makes
/// a query that forgets it find nothing.
#[derive(Clone, Copy)]
pub enum Scope<'a> {
    Tenant(&'a TenantName),
    Tenants(&'a [&'a TenantName]),
    All,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// One snapshot for all queries.
    Read,
    Write,
    /// A batch of appends, whose locks others wait for. Its own wait for locks is short, or as long as a statement may take.
    Commit {
        waits: bool,
    },
    /// Work on the whole store, which may take any time.
    Long,
}

/// Longest time of one statement, locks included.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest wait of a batch for a lock, while other conversations wait for the batch.
const LOCK_TIMEOUT: Duration = Duration::from_millis(500);
/// Longest silence inside a batch: what a process that hangs has locked is free then.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest wait for an answer. Longer than a statement may take: it is for a connection that is silent.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// The command that begins a transaction. Everything is set for the transaction only, so that a pooler between us
/// and the server may give the next one to somebody else.
fn opening(scope: Scope<'_>, mode: Mode) -> String {
    let names = match scope {
        Scope::Tenant(tenant) => tenant.as_str().to_string(),
        Scope::Tenants(all) => all.iter().map(|tenant| tenant.as_str()).collect::<Vec<_>>().join(" "),
        Scope::All => "*".to_string(),
    };
    let begin = match mode {
        Mode::Read => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
        // A statement sees what was committed before it began, so what is read under a lock is current.
        Mode::Write | Mode::Commit { .. } | Mode::Long => "BEGIN ISOLATION LEVEL READ COMMITTED",
    };
    // A plan made while a table is small is used until the next ANALYZE: joined by hash or merge, it would read all rows of a
    // tenant that has grown since. Likewise for all rows of a table with few tenants.
    let by_index = match scope {
        Scope::Tenant(_) | Scope::Tenants(_) => {
            "; SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off"
        }
        _ => "",
    };
    let timeout_ms = if mode == Mode::Long { 0 } else { STATEMENT_TIMEOUT.as_millis() };
    let silence_ms = match mode {
        Mode::Commit { .. } => SILENCE_TIMEOUT.as_millis(),
        _ => timeout_ms,
    };
    let lock_timeout = match mode {
        Mode::Commit { waits: false } => format!("; SET LOCAL lock_timeout = {}", LOCK_TIMEOUT.as_millis()),
        _ => String::new(),
    };
    // A tenant's name has no quotes: see `TenantName`. Every statement is a lookup by an index, whatever its parameters, so
    // planning it for them would only take time: several milliseconds, because of the partitions.
    format!(
        "{begin}; SET LOCAL everturn.tenants = '{names}'; SET LOCAL plan_cache_mode = force_generic_plan; \
         SET LOCAL statement_timeout = {timeout_ms}; SET LOCAL idle_in_transaction_session_timeout = {silence_ms}{lock_timeout}{by_index}"
    )
}

pub struct Db {
    connection: Arc<Connection>,
    /// The command that begins the transaction, until the first statement takes it along.
    opening: RefCell<Option<String>>,
    patient: bool,
    /// The first failure of a query.
    broken: RefCell<Option<Broken>>,
    ended: Cell<bool>,
    /// Round trips so far.
    pub trips: Cell<u64>,
}

impl Db {
    pub fn begin(link: &Link, scope: Scope<'_>, mode: Mode) -> Result<Db, Error> {
        Ok(Db::begin_on(Arc::new(link.connection()?), scope, mode))
    }

    /// A transaction on a connection that others may use after it.
    pub fn begin_on(connection: Arc<Connection>, scope: Scope<'_>, mode: Mode) -> Db {
        Db {
            connection,
            opening: RefCell::new(Some(opening(scope, mode))),
            patient: mode == Mode::Long,
            broken: RefCell::default(),
            ended: Cell::new(false),
            trips: Cell::new(0),
        }
    }

    pub fn broken(&self) -> Option<Broken> {
        self.broken.borrow_mut().take()
    }

    /// Waits for the answers of one round trip.
    fn run<T>(&self, work: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, Error> {
        self.trips.set(self.trips.get() + 1);
        let _inside = self.connection.runtime.enter();
        let answer = match self.patient {
            true => drive(work).map_err(|error| explain(&error)),
            false => drive(in_time(ANSWER_TIMEOUT, work)),
        };
        let broken = match answer {
            Ok(value) => return Ok(value),
            Err(broken) => broken,
        };
        if broken.lost {
            self.connection.lose();
        }
        let error = broken.error.clone();
        self.broken.borrow_mut().get_or_insert(broken);
        Err(error)
    }

    /// Begins the transaction, if this is the first statement.
    async fn open(&self) -> Result<(), tokio_postgres::Error> {
        let opening = self.opening.borrow_mut().take();
        match opening {
            Some(sql) => self.connection.batch_execute(&sql).await,
            None => Ok(()),
        }
    }

    /// One query, one round trip.
    pub fn query(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Error> {
        self.run(async {
            let statement = self.connection.prepare_cached(sql).await?;
            // Each is sent when it is first polled, so in this order.
            let (opened, rows) = futures_util::join!(self.open(), self.connection.query(&statement, params));
            opened.and(rows)
        })
    }

    pub fn query_one(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Option<Row>, Error> {
        Ok(self.query(sql, params)?.into_iter().next())
    }

    pub fn execute(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<u64, Error> {
        self.run(async {
            let statement = self.connection.prepare_cached(sql).await?;
            let (opened, count) =
                futures_util::join!(self.open(), self.connection.execute(&statement, params));
            opened.and(count)
        })
    }

    /// Plain commands.
    pub fn batch(&self, sql: &str) -> Result<(), Error> {
        self.run(async {
            let (opened, done) = futures_util::join!(self.open(), self.connection.batch_execute(sql));
            opened.and(done)
        })
    }

    /// Lets go of the snapshot of the last query, which would keep old versions of rows for as long as the transaction
    /// is open.
    pub fn rest(&self) -> Result<(), Error> {
        self.batch("SELECT")
    }

    /// Commits. What follows would be outside the transaction, so this is the last use.
    pub fn commit(self) -> Result<(), Error> {
        self.together(&[], true).map(drop)
    }

    /// Several statements in one round trip, with the end of the transaction if they are the last.
    pub fn together(&self, all: &[Pending], commit: bool) -> Result<Vec<Vec<Row>>, Error> {
        self.run(async {
            let prepared = prepare(&self.connection, all).await?;
            self.ended.set(self.ended.get() || commit);
            let opening = self.opening.borrow_mut().take();
            send(&self.connection, opening.as_deref(), &prepared, all, commit).await
        })
    }

    /// Sends a whole transaction, and returns before it is answered. The server carries it out after what was sent before over
    /// the same connection; behind a transaction that is under way, it has the time of that one as well.
    pub fn send_whole(self, all: Vec<Pending>, is_behind: bool) -> Result<Sent, Error> {
        // Otherwise, the next transaction could overtake the statements that wait for this.
        let prepared = self.run(prepare(&self.connection, &all))?;
        self.ended.set(true);
        let (connection, opening) = (self.connection.clone(), self.opening.borrow_mut().take());
        let patience = if is_behind { 2 * ANSWER_TIMEOUT } else { ANSWER_TIMEOUT };
        let mut sending = async move {
            let sent = send(&connection, opening.as_deref(), &prepared, &all, true);
            in_time(patience, sent).await.map(drop)
        }
        .boxed();
        let connection = self.connection.clone();
        let _inside = connection.runtime.enter();
        // Sends everything.
        let answer = match sending.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => Answer::Known(answer),
            // A connection that has an answer for somebody who does not take it reads nothing more. So answers are taken as they
            // come, also while this thread waits for something that was sent later.
            Poll::Pending => Answer::Awaited(connection.runtime.spawn(sending)),
        };
        Ok(Sent { connection: self.connection.clone(), answer })
    }
}

/// The prepared form of each statement. It takes round trips only the first time on a connection.
async fn prepare(client: &Connection, all: &[Pending]) -> Result<Vec<Statement>, tokio_postgres::Error> {
    try_join_all(all.iter().map(|one| client.prepare_cached(one.sql))).await
}

/// Sends statements in one round trip, with the command that begins their transaction and with its end. All are sent when
/// the future is first polled. If one cannot be sent, the transaction is rolled back.
async fn send(
    client: &Client,
    opening: Option<&str>,
    prepared: &[Statement],
    all: &[Pending],
    commit: bool,
) -> Result<Vec<Vec<Row>>, tokio_postgres::Error> {
    // Before it was sent: a parameter may be larger than a message.
    let has_failed = AtomicBool::new(false);
    let open = async {
        match opening {
            Some(sql) => client.batch_execute(sql).await,
            None => Ok(()),
        }
    };
    let queries = async {
        let mut rows = Vec::with_capacity(all.len());
        let sent = prepared.iter().zip(all).map(|(statement, one)| {
            let has_failed = &has_failed;
            async move {
                let params: Vec<&(dyn ToSql + Sync)> =
                    one.params.iter().map(|value| &**value as &(dyn ToSql + Sync)).collect();
                client
                    .query(statement, &params)
                    .await
                    .inspect_err(|_| has_failed.store(true, Ordering::Relaxed))
            }
        });
        // Beyond thirty, `join_all` would not keep the order.
        for answer in join_all(sent).await {
            rows.push(answer?);
        }
        Ok::<_, tokio_postgres::Error>(rows)
    };
    let end = async {
        match commit {
            true if has_failed.load(Ordering::Relaxed) => client.batch_execute("ROLLBACK").await,
            true => client.batch_execute("COMMIT").await,
            false => Ok(()),
        }
    };
    let (opened, rows, ended) = futures_util::join!(open, queries, end);
    opened?;
    let rows = rows?;
    ended?;
    Ok(rows)
}

/// The answer, if it comes in time.
async fn in_time<T>(
    patience: Duration,
    work: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Broken> {
    match tokio::time::timeout(patience, work).await {
        Ok(answer) => answer.map_err(|error| explain(&error)),
        Err(_) => {
            let text = format!("PostgreSQL did not answer within {} s; try again", patience.as_secs());
            Err(Broken::lost(unreachable(text)))
        }
    }
}

/// A transaction that was sent whole.
pub struct Sent {
    connection: Arc<Connection>,
    answer: Answer,
}

enum Answer {
    Awaited(JoinHandle<Result<(), Broken>>),
    Known(Result<(), Broken>),
}

fn joined(answer: Result<Result<(), Broken>, JoinError>) -> Result<(), Broken> {
    let unknown = |error| {
        Broken::lost(unreachable(format!("the answer of PostgreSQL was not awaited ({error}); try again")))
    };
    answer.unwrap_or_else(|error| Err(unknown(error)))
}

impl Sent {
    /// The answer, if it is there. If not, the waker is woken once it is.
    pub fn answer(&mut self, waker: &Waker) -> Option<&Result<(), Broken>> {
        if let Answer::Awaited(answer) = &mut self.answer
            && let Poll::Ready(answer) = answer.poll_unpin(&mut Context::from_waker(waker))
        {
            self.answer = Answer::Known(joined(answer));
        }
        match &self.answer {
            Answer::Awaited(_) => None,
            Answer::Known(answer) => Some(answer),
        }
    }

    /// The answer; after a failure, once what was sent behind it is answered too. On a connection that was lost, none is
    /// waited for.
    pub fn wait(mut self) -> Result<(), Broken> {
        self.answer(Waker::noop());
        let answer = match self.answer {
            Answer::Known(answer) => answer,
            Answer::Awaited(answer) if self.connection.is_lost() => {
                answer.abort();
                Err(Broken::lost(unreachable("the connection to PostgreSQL was lost; try again".into())))
            }
            Answer::Awaited(answer) => joined(drive(answer)),
        };
        let Err(broken) = &answer else { return Ok(()) };
        // What was sent behind it has ended once this is answered, and holds no locks any more.
        let is_lost = broken.lost || {
            let _inside = self.connection.runtime.enter();
            drive(in_time(2 * ANSWER_TIMEOUT, self.connection.batch_execute("")))
                .is_err_and(|broken| broken.lost)
        };
        if is_lost {
            self.connection.lose();
        }
        answer
    }
}

/// Ends the transaction without waiting for the answer: the next user's statements queue up behind it.
impl Drop for Db {
    fn drop(&mut self) {
        if self.connection.is_lost() || self.opening.borrow().is_some() || self.ended.get() {
            return;
        }
        let _inside = self.connection.runtime.enter();
        let sent = pin!(self.connection.batch_execute("ROLLBACK"));
        let _ = sent.poll(&mut Context::from_waker(Waker::noop()));
    }
}

/// The error for a conversation that another transaction holds.
pub fn held_error() -> Error {
    Error::busy(
        code::HELD,
        "another transaction of the database holds this conversation, and nothing was written; try again",
    )
}

fn unreachable(text: String) -> Error {
    Error::busy("store.unreachable", text)
}

const CHECK_HOST: &str = "check the host in the URL, or the name server";

/// Errors of PgBouncer about the URL, which have the code of a broken connection.
fn refused_by_pooler(text: &str) -> Option<Error> {
    if text.contains("unsupported startup parameter") {
        let advice = "leave it out of the URL, or name it in ignore_startup_parameters of PgBouncer";
        return Some(Error::invalid("store.url", format!("{text}; {advice}")));
    }
    (text.contains("does not exist") || text.contains("no such database"))
        .then(|| Error::invalid("store.absent", format!("{text}; name it in the settings of the pooler")))
}

/// Errors of the client while it connects that no second attempt mends. It tells them apart by their words only.
fn refused_at_connecting(failed: &tokio_postgres::Error, text: &str) -> Option<Error> {
    let source = std::error::Error::source(failed).map(ToString::to_string).unwrap_or_default();
    let (code, advice) = match failed.to_string().as_str() {
        _ if source == "password missing" => {
            ("store.denied", "name it in the URL: postgres://USER:PASSWORD@HOST/DATABASE")
        }
        "authentication error" => ("store.denied", "check user, password and channel_binding in the URL"),
        "invalid configuration" => ("store.url", "use postgres://USER:PASSWORD@HOST:PORT/DATABASE"),
        "error performing TLS handshake" if source == "server does not support TLS" => {
            ("store.url", "set ssl = on there, or sslmode=disable in the URL if the network between is safe")
        }
        _ => return None,
    };
    Some(Error::invalid(code, format!("{text}; {advice}")))
}

/// Whether the name of the host is not known. That may pass, like any failure of a network.
fn is_unknown_host(failed: &tokio_postgres::Error) -> bool {
    std::error::Error::source(failed).is_some_and(|source| source.to_string().starts_with("failed to lookup"))
}

pub fn explain(failed: &tokio_postgres::Error) -> Broken {
    let text = match failed.as_db_error() {
        Some(told) => format!("PostgreSQL: {} ({})", told.message(), told.code().code()),
        None => match std::error::Error::source(failed) {
            Some(source) => format!("PostgreSQL: {failed}: {source}"),
            None => format!("PostgreSQL: {failed}"),
        },
    };
    let code = failed.code();
    let class = code.map_or("", |code| &code.code()[..2]);
    let refused = match code {
        Some(_) if class == "08" => refused_by_pooler(&text),
        Some(_) => None,
        None => refused_at_connecting(failed, &text),
    };
    if let Some(error) = refused {
        return Broken { error, by_data: false, again: false, lost: false, held: false };
    }
    if let "error encoding message to server" = failed.to_string().as_str() {
        let error = Error::too_large("store.message", format!("{text}; append less at once"));
        return Broken { error, by_data: true, again: false, lost: false, held: false };
    }
    let again = matches!(code, Some(c) if *c == SqlState::T_R_SERIALIZATION_FAILURE || *c == SqlState::T_R_DEADLOCK_DETECTED);
    let mut lost = false;
    let error = match (class, code) {
        ("53", Some(c)) if *c == SqlState::TOO_MANY_CONNECTIONS => {
            lost = true;
            Error::busy(
                "store.full",
                format!("{text}; lower connections_max in the URL, or raise max_connections of the server"),
            )
        }
        ("53", _) => {
            Error::busy("store.full", format!("{text}; nothing of this request was written; try again"))
        }
        ("25", Some(c)) if *c == SqlState::READ_ONLY_SQL_TRANSACTION => {
            lost = true;
            unreachable(format!(
                "{text}: this server is a standby; try again, and name the primary or target_session_attrs=read-write in the URL"
            ))
        }
        // This process was silent for too long, and the server ended the transaction.
        ("25", Some(c)) if *c == SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT => {
            lost = true;
            unreachable(format!("{text}; try again"))
        }
        ("55", Some(c)) if *c == SqlState::LOCK_NOT_AVAILABLE => held_error(),
        ("22", Some(c)) if *c == SqlState::CHARACTER_NOT_IN_REPERTOIRE => Error::invalid(
            "store.character",
            format!("{text}; a zero character cannot be in names: leave it out"),
        ),
        ("57", Some(c)) if *c == SqlState::QUERY_CANCELED => Error::busy(
            "store.busy",
            format!("{text}: a statement took longer than {} s; try again", STATEMENT_TIMEOUT.as_secs()),
        ),
        (_, None) if tls::complaint(failed).is_some() => {
            let why = tls::complaint(failed).unwrap_or_default();
            let text = format!(
                "the certificate of the PostgreSQL server is not trusted ({why}); name the one to trust by sslrootcert=FILE, and \
                 the host as it is in the certificate"
            );
            Error::invalid("store.certificate", text)
        }
        ("08" | "57", _) | (_, None) => {
            lost = true;
            unreachable(format!("{text}; {}", if is_unknown_host(failed) { CHECK_HOST } else { "try again" }))
        }
        (_, Some(c))
            if [SqlState::INVALID_SQL_STATEMENT_NAME, SqlState::DUPLICATE_PSTATEMENT].contains(c) =>
        {
            lost = true;
            Error::busy(
                "store.pooler",
                format!(
                    "{text}: a pooler between this server and PostgreSQL does not carry prepared statements; use PgBouncer 1.21 \
                     or later with max_prepared_statements above 0, or pool_mode = session"
                ),
            )
        }
        ("28", _) => Error::invalid("store.denied", format!("{text}; check user and password in the URL")),
        ("3D", _) => {
            Error::invalid("store.absent", format!("{text}; create it first: createdb NAME --owner ROLE"))
        }
        ("42", Some(c)) if *c == SqlState::INSUFFICIENT_PRIVILEGE => Error::invalid(
            "store.denied",
            format!(
                "{text}; the role in the URL must own the tables, or be allowed to create them in the schema"
            ),
        ),
        _ => Error::internal("store.query", text),
    };
    let held = matches!(code, Some(c) if *c == SqlState::LOCK_NOT_AVAILABLE);
    Broken { error, by_data: matches!(class, "22" | "23" | "54"), again, lost, held }
}
