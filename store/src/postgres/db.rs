//! One connection: queries with one round trip each, or several in one.

use super::link::drive;
use deadpool_postgres::Object;
use everturn_core::Error;
use everturn_core::error::code;
use futures_util::future::join_all;
use std::cell::{Cell, RefCell};
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;

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
    /// Retrying may succeed.
    pub again: bool,
}

pub struct Db {
    client: Object,
    /// The first failure of a query.
    broken: RefCell<Option<Broken>>,
    /// Round trips so far.
    pub trips: Cell<u64>,
}

impl Db {
    pub fn new(client: Object) -> Db {
        Db { client, broken: RefCell::default(), trips: Cell::new(0) }
    }

    pub fn broken(&self) -> Option<Broken> {
        self.broken.borrow_mut().take()
    }

    fn note(&self, error: &tokio_postgres::Error) -> Error {
        let broken = explain(error);
        let told = broken.error.clone();
        self.broken.borrow_mut().get_or_insert(broken);
        told
    }

    /// One query, one round trip.
    pub fn query(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Error> {
        self.trips.set(self.trips.get() + 1);
        let run = async {
            let statement = self.client.prepare_cached(sql).await?;
            self.client.query(&statement, params).await
        };
        drive(run).map_err(|e| self.note(&e))
    }

    pub fn query_one(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Option<Row>, Error> {
        Ok(self.query(sql, params)?.into_iter().next())
    }

    pub fn execute(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<u64, Error> {
        self.trips.set(self.trips.get() + 1);
        let run = async {
            let statement = self.client.prepare_cached(sql).await?;
            self.client.execute(&statement, params).await
        };
        drive(run).map_err(|e| self.note(&e))
    }

    pub fn batch(&self, sql: &str) -> Result<(), Error> {
        self.trips.set(self.trips.get() + 1);
        drive(self.client.batch_execute(sql)).map_err(|e| self.note(&e))
    }

    /// Several statements in one round trip, between two plain commands.
    pub fn together(&self, before: &str, all: &[Pending], after: &str) -> Result<Vec<Vec<Row>>, Error> {
        self.trips.set(self.trips.get() + 1);
        let run = async {
            let mut prepared = Vec::with_capacity(all.len());
            for one in all {
                prepared.push(self.client.prepare_cached(one.sql).await?);
            }
            let plain = async |sql: &str| match sql {
                "" => Ok(()),
                sql => self.client.batch_execute(sql).await,
            };
            // Each is sent when it is first polled, so in this order. Beyond thirty, `join_all` would not
            // preserve it.
            let queries = async {
                let mut rows = Vec::with_capacity(all.len());
                let sent = prepared.iter().zip(all).map(|(statement, one)| async move {
                    let params: Vec<&(dyn ToSql + Sync)> =
                        one.params.iter().map(|value| &**value as &(dyn ToSql + Sync)).collect();
                    self.client.query(statement, &params).await
                });
                for answer in join_all(sent).await {
                    rows.push(answer?);
                }
                Ok::<_, tokio_postgres::Error>(rows)
            };
            let (before, rows, after) = futures_util::join!(plain(before), queries, plain(after));
            before?;
            let rows = rows?;
            after?;
            Ok::<_, tokio_postgres::Error>(rows)
        };
        drive(run).map_err(|e| self.note(&e))
    }
}

fn explain(error: &tokio_postgres::Error) -> Broken {
    let text = match error.as_db_error() {
        Some(told) => format!("PostgreSQL: {} ({})", told.message(), told.code().code()),
        None => format!("PostgreSQL: {error}"),
    };
    let code = error.code();
    let class = code.map_or("", |code| &code.code()[..2]);
    let again = matches!(code, Some(c) if *c == SqlState::T_R_SERIALIZATION_FAILURE || *c == SqlState::T_R_DEADLOCK_DETECTED);
    let error = match (class, code) {
        ("53", _) => {
            Error::busy("store.full", format!("{text}; nothing of this request was written; try again"))
        }
        ("25", Some(c)) if *c == SqlState::READ_ONLY_SQL_TRANSACTION => Error::busy(
            code::OVERTAKEN,
            format!("{text}: this server is a standby now; connect to the primary"),
        ),
        ("08" | "57", _) | (_, None) => Error::busy("store.unreachable", format!("{text}; try again")),
        _ => Error::internal("store.query", text),
    };
    Broken { error, by_data: matches!(class, "22" | "23"), again }
}
