//! A store in PostgreSQL: a spike. See `docs/decisions` for its findings.
//!
//! `link` joins the async client and the sync traits, `db` is one connection, `write` a batch, `lookup` the
//! lookups for a plan, `read` all queries, `index` and `beside` the traits.

mod beside;
mod db;
mod index;
mod link;
mod lookup;
mod read;
mod rows;
mod write;

use crate::{Committed, Log};
use db::{Broken, Db};
use everturn_core::Error;
use everturn_core::error::code;
use everturn_core::event::Event;
use everturn_core::id::{Key, TurnId};
use everturn_core::turn::join_chunks;
use everturn_core::write::{Write, absent, absent_turn};
use link::Link;
#[doc(hidden)]
pub use link::drive;
use read::Lineage;
use rows::signed;

/// A store that several processes may write at once.
pub struct Postgres {
    link: Link,
}

/// Number of connections of one process. Appends need one each while they wait for the disk; reads are short.
const CONNECTIONS: usize = 8;
/// Maximum number of attempts for a batch that the database cancels in favour of another.
const TRIES: usize = 5;
/// Lock held while creating the tables: they are created once, however many processes start together.
const MIGRATION_LOCK: i64 = 0x6576_6572_7475_726e;

impl Postgres {
    /// Connects, and creates the tables in the first schema of the URL's `search_path` if they do not exist.
    pub fn open(url: &str) -> Result<Postgres, Error> {
        let store = Postgres { link: Link::open(url, CONNECTIONS)? };
        let db = store.db()?;
        db.batch(&format!("BEGIN; SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"))?;
        let made = db.query_one("SELECT to_regclass('schema_versions') IS NOT NULL", &[])?;
        let made = made.map_or(Ok(false), |row| rows::get(&row, 0))?;
        let migrated = if made { Ok(()) } else { db.batch(include_str!("v1.sql")) };
        db.batch(if migrated.is_ok() { "COMMIT" } else { "ROLLBACK" })?;
        migrated.map(|()| store)
    }

    fn db(&self) -> Result<Db, Error> {
        Ok(Db::new(self.link.connection()?))
    }

    /// A connection, and a living conversation with its ancestors.
    fn reading(&self, key: &Key) -> Result<(Db, Lineage), Error> {
        let db = self.db()?;
        let lineage = read::lineage_of(&db, key)?.ok_or_else(|| absent(key))?;
        Ok((db, lineage))
    }

    fn try_commit(&self, batch: Vec<Write>) -> Result<Vec<Result<Committed, Error>>, Broken> {
        let unreachable = |error| Broken { error, by_data: false, again: false };
        let db = self.db().map_err(unreachable)?;
        let written = (|| {
            let failed = |error| db.broken().unwrap_or(unreachable(error));
            let mut open = write::Batch::begin(&db, &batch).map_err(failed)?;
            let answers =
                batch.into_iter().map(|request| open.write(request)).collect::<Result<Vec<_>, _>>()?;
            open.commit().map_err(failed)?;
            Ok(answers)
        })();
        tracing::debug!(trips = db.trips.get(), "a batch was sent to PostgreSQL");
        if written.is_err() {
            // Ignored: a connection that cannot even do this is closed, and the pool drops it.
            let _ = db.batch("ROLLBACK");
        }
        written
    }
}

impl Log for Postgres {
    fn commit(&self, batch: Vec<Write>) -> Vec<Result<Committed, Error>> {
        let count = batch.len();
        let mut failure = None;
        for _ in 0..TRIES {
            match self.try_commit(batch.clone()) {
                Ok(answers) => return answers,
                // One request fails the whole batch: retry each by itself.
                Err(broken) if broken.by_data && count > 1 => {
                    return batch.into_iter().flat_map(|request| self.commit(vec![request])).collect();
                }
                Err(broken) => {
                    let again = broken.again;
                    failure = Some(broken.error);
                    if !again {
                        break;
                    }
                }
            }
        }
        let error = failure.unwrap_or_else(|| Error::busy("store.busy", "the store is busy; try again"));
        vec![Err(error); count]
    }

    fn ready(&self) -> Result<(), Error> {
        let db = self.db()?;
        let standby = db.query_one("SELECT pg_is_in_recovery()", &[])?;
        if standby.map_or(Ok(false), |row| rows::get(&row, 0))? {
            return Err(Error::busy(code::OVERTAKEN, "this database is a standby; connect to the primary"));
        }
        Ok(())
    }

    fn stored_events(&self, key: &Key, after: u64, limit: usize) -> Result<Vec<Event>, Error> {
        let (db, lineage) = self.reading(key)?;
        read::events(&db, &lineage, after, limit)
    }

    fn had_body(&self, key: &Key, seq: u64) -> Result<bool, Error> {
        let (db, lineage) = self.reading(key)?;
        let Some(level) = lineage.owner(seq) else { return Ok(false) };
        let sql = "SELECT erased FROM events WHERE conversation = $1 AND seq = $2";
        let row = db.query_one(sql, &[&level.no, &signed(seq)])?;
        row.map_or(Ok(false), |row| rows::get(&row, 0))
    }

    fn open_text(&self, key: &Key, turn: TurnId) -> Result<String, Error> {
        let (db, lineage) = self.reading(key)?;
        let row = read::turn_row(&db, &lineage, turn)?.ok_or_else(|| absent_turn(turn))?;
        let sql =
            "SELECT start, text FROM turn_chunks WHERE conversation = $1 AND turn_seq = $2 ORDER BY start";
        let mut pieces = Vec::new();
        for row in db.query(sql, &[&lineage.0[0].no, &signed(row.seq)])? {
            pieces.push((
                rows::unsigned(&row, 0)?,
                String::from_utf8(rows::get(&row, 1)?).map_err(rows::wrong)?,
            ));
        }
        Ok(join_chunks(pieces))
    }
}

/// Runs commands on a server: for tests, which make and drop schemas.
pub fn run(url: &str, sql: &str) -> Result<(), Error> {
    Db::new(Link::open(url, 1)?.connection()?).batch(sql)
}
