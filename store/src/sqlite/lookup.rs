//! Lookups for a plan, inside a transaction.

use super::read::{self, Lineage};
use super::rows::{self, Bytes, Failure, signed};
use super::{derived, erase};
use crate::Erasures;
use everturn_core::Error;
use everturn_core::chain::{Hash, Head};
use everturn_core::conversation::Parent;
use everturn_core::event::Event;
use everturn_core::id::{ConversationId, Key, TurnId};
use everturn_core::turn::TurnRow;
use everturn_core::write::{
    AssetRow, EventRef, Fork, ForkParent, ForkPoint, Level, Lookup, Statement, StatementsOf, SummaryRow,
    Traces, Turns,
};
use rusqlite::types::FromSqlError;
use rusqlite::{Connection, OptionalExtension, params};
use std::cell::Cell;
use std::ops::RangeInclusive;
use std::path::Path;

/// Number of a conversation that has none yet.
const NOT_YET: i64 = -1;

/// One conversation of the database.
pub struct InDatabase<'a> {
    db: &'a Connection,
    key: &'a Key,
    /// Its number in this file, if it exists.
    no: Option<i64>,
    /// Origin of a fork that is being made.
    parent: Option<Parent>,
    /// `None` while rows are rebuilt.
    erasures: Option<&'a Erasures>,
    /// The error of the last query that failed.
    broken: Cell<Option<rusqlite::Error>>,
}

impl<'a> InDatabase<'a> {
    pub fn new(
        db: &'a Connection,
        key: &'a Key,
        no: Option<i64>,
        erasures: Option<&'a Erasures>,
    ) -> InDatabase<'a> {
        InDatabase { db, key, no, parent: None, erasures, broken: Cell::default() }
    }

    /// The same for a fork that is being made.
    pub fn forking(self, parent: Option<Parent>) -> InDatabase<'a> {
        InDatabase { parent, ..self }
    }

    /// The result of a plan made with this lookup. A query that failed on the way is a failure of the database,
    /// not a refusal.
    pub fn answer<T>(&self, planned: Result<T, Error>) -> Result<T, Failure> {
        match self.broken.take() {
            Some(error) => Err(Failure::Broken(error)),
            None => planned.map_err(Failure::Refused),
        }
    }

    /// The point where a fork began, also if its parent was deleted since.
    pub fn fork_point(&self, parent: Parent) -> Result<ForkPoint, Error> {
        let mut above = self.ancestry()?;
        above.levels.remove(0);
        let hash = read::hash_at(self.db, &above, parent.at_seq).map_err(unreadable)?;
        let hash = hash.ok_or_else(|| {
            Error::corrupt(
                "fork.parent",
                format!("the parent of {} has lost seq {}", self.key.id, parent.at_seq),
            )
        })?;
        let turns = read::count_turns(self.db, &above, parent.at_seq).map_err(unreadable)?;
        Ok(ForkPoint { head: Head { seq: parent.at_seq, hash }, turns })
    }

    fn ancestry(&self) -> Result<Lineage, Error> {
        match (self.no, self.parent) {
            (Some(no), _) => lineage(self.db, no, self.key.id).map_err(refusal),
            (None, Some(parent)) => self.inherited(parent),
            (None, None) => Ok(Lineage { levels: Vec::new(), recent: Vec::new() }),
        }
    }

    /// Lineage of a fork before it exists: no level of its own yet, and those above up to its origin.
    fn inherited(&self, parent: Parent) -> Result<Lineage, Error> {
        let key = Key { tenant: self.key.tenant.clone(), id: parent.conversation };
        let Some(no) = read::number(self.db, &key).map_err(unreadable)? else {
            return Ok(Lineage { levels: Vec::new(), recent: Vec::new() });
        };
        let mut above = lineage(self.db, no, key.id).map_err(refusal)?;
        above.levels.iter_mut().for_each(|level| level.cap = level.cap.min(parent.at_seq));
        let own = read::Level { no: NOT_YET, id: self.key.id, floor: parent.at_seq, cap: i64::MAX as u64 };
        above.levels.insert(0, own);
        Ok(above)
    }

    fn query<T>(&self, query: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, Error> {
        query(self.db).map_err(|error| {
            let text = format!("a query failed while a write was planned: {error}");
            self.broken.set(Some(error));
            Error::internal("store.query", text)
        })
    }
}

impl Turns for InDatabase<'_> {
    fn turn(&self, id: TurnId) -> Result<Option<TurnRow>, Error> {
        let lineage = self.ancestry()?;
        let Some(first) = lineage.levels.iter().find(|level| level.no != NOT_YET) else { return Ok(None) };
        mended(self.db, first.no, || read::turn_row(self.db, &lineage, id)).map_err(refusal)
    }
}

impl Lookup for InDatabase<'_> {
    fn fork_parent(&self, parent: Parent) -> Result<Option<ForkParent>, Error> {
        let key = Key { tenant: self.key.tenant.clone(), id: parent.conversation };
        let Some(no) = read::number(self.db, &key).map_err(unreadable)? else { return Ok(None) };
        let lineage = lineage(self.db, no, key.id).map_err(refusal)?;
        let found = mended(self.db, no, || read::conversation(self.db, &key)).map_err(refusal)?;
        let Some((_, conversation)) = found else { return Ok(None) };
        let hash = read::hash_at(self.db, &lineage, parent.at_seq).map_err(unreadable)?;
        let point = match hash.filter(|_| parent.at_seq > 0) {
            None => None,
            Some(hash) => {
                let turns = if parent.at_seq == conversation.head.seq {
                    conversation.turns
                } else {
                    read::count_turns(self.db, &lineage, parent.at_seq).map_err(unreadable)?
                };
                Some(ForkPoint { head: Head { seq: parent.at_seq, hash }, turns })
            }
        };
        Ok(Some(ForkParent { conversation, levels: lineage.levels.len(), point }))
    }

    fn lineage(&self) -> Result<Vec<Level>, Error> {
        let mut levels = self.ancestry()?.levels;
        levels.retain(|level| level.no != NOT_YET);
        self.query(|db| {
            let mut deleted =
                db.prepare_cached("SELECT deleted IS NOT NULL FROM conversation_rows WHERE no = ?")?;
            let level = |level: &read::Level| {
                Ok(Level {
                    conversation: level.no as u64,
                    floor: level.floor,
                    cap: level.cap,
                    deleted: deleted.query_row([level.no], |row| row.get(0))?,
                })
            };
            levels.iter().map(level).collect()
        })
    }

    fn forks(&self, conversation: u64) -> Result<Vec<Fork>, Error> {
        self.query(|db| read::forks(db, conversation))
    }

    fn hash_at(&self, seq: u64) -> Result<Option<Hash>, Error> {
        read::hash_at(self.db, &self.ancestry()?, seq).map_err(unreadable)
    }

    fn fallen_after(&self, seq: u64) -> Result<u64, Error> {
        let lineage = self.ancestry()?;
        let Some(first) = lineage.levels.iter().find(|level| level.no != NOT_YET) else { return Ok(0) };
        mended(self.db, first.no, || read::fallen_after(self.db, &lineage, seq)).map_err(refusal)
    }

    fn erased_since(&self, mark: u64) -> Result<Option<Vec<EventRef>>, Error> {
        Ok(self.erasures.map_or(Some(Vec::new()), |erasures| erasures.since(mark)))
    }
}

impl Traces for InDatabase<'_> {
    fn number(&self, id: ConversationId) -> Result<Option<u64>, Error> {
        self.query(|db| {
            db.prepare_cached("SELECT no FROM conversation_rows WHERE tenant = ? AND id = ?")?
                .query_row(params![self.key.tenant.as_str(), Bytes(id.to_bytes())], |row| {
                    rows::unsigned(row, "no")
                })
                .optional()
        })
    }

    fn body_kind(&self, at: EventRef) -> Result<Option<String>, Error> {
        let found = self.query(|db| erase::find(db, at))?;
        Ok(found.filter(|event| event.has_body).map(|event| event.kind))
    }

    fn event(&self, at: EventRef) -> Result<Option<Event>, Error> {
        self.query(|db| erase::own_event(db, signed(at.conversation), at.seq))
    }

    fn statements(&self, of: StatementsOf) -> Result<Vec<Statement>, Error> {
        self.query(|db| read::statements(db, &self.key.tenant, of))
    }

    fn summaries(&self, conversation: u64, seqs: RangeInclusive<u64>) -> Result<Vec<SummaryRow>, Error> {
        self.query(|db| {
            db.prepare_cached(
                "SELECT seq, through_seq FROM summaries WHERE conversation = ? AND seq BETWEEN ? AND ? ORDER BY seq",
            )?
            .query_map(params![signed(conversation), signed(*seqs.start()), signed(*seqs.end())], |row| {
                Ok(SummaryRow {
                    seq: rows::unsigned(row, "seq")?,
                    through_seq: rows::unsigned(row, "through_seq")?,
                })
            })?
            .collect()
        })
    }

    fn summaries_reaching(&self, at: EventRef) -> Result<Vec<EventRef>, Error> {
        self.query(|db| {
            db.prepare_cached(&format!(
                "{} SELECT s.conversation, s.seq FROM family f JOIN summaries s ON s.conversation = f.no
                 WHERE s.through_seq >= ?2",
                erase::FAMILY
            ))?
            .query_map(params![signed(at.conversation), signed(at.seq)], event_ref)?
            .collect()
        })
    }

    fn shown_by(&self, turn: EventRef) -> Result<Vec<AssetRow>, Error> {
        self.query(|db| {
            db.prepare_cached(
                "SELECT a.id, a.seq, a.sha256 FROM asset_references r
                 JOIN assets a ON a.conversation = r.conversation AND a.id = r.asset
                 WHERE r.conversation = ? AND r.turn_seq = ?",
            )?
            .query_map(params![signed(turn.conversation), signed(turn.seq)], asset)?
            .collect()
        })
    }

    fn showing(&self, conversation: u64, asset: &str) -> Result<Vec<EventRef>, Error> {
        self.query(|db| {
            db.prepare_cached(
                "WITH RECURSIVE family (no) AS
                     (SELECT ?1 UNION SELECT c.no FROM conversation_rows c JOIN family f ON c.parent = f.no)
                 SELECT r.conversation, r.turn_seq FROM family f JOIN asset_references r ON r.conversation = f.no
                 WHERE r.asset = ?2",
            )?
            .query_map(params![signed(conversation), asset], event_ref)?
            .collect()
        })
    }

    fn assets(&self, conversation: u64, seqs: RangeInclusive<u64>) -> Result<Vec<AssetRow>, Error> {
        self.query(|db| {
            db.prepare_cached(
                "SELECT id, seq, sha256 FROM assets WHERE conversation = ? AND seq BETWEEN ? AND ?",
            )?
            .query_map(params![signed(conversation), signed(*seqs.start()), signed(*seqs.end())], asset)?
            .collect()
        })
    }

    fn asset_count(&self, sha256: Hash) -> Result<u64, Error> {
        self.query(|db| read::asset_count(db, &self.key.tenant, sha256))
    }
}

fn event_ref(row: &rusqlite::Row<'_>) -> rusqlite::Result<EventRef> {
    Ok(EventRef { conversation: rows::unsigned(row, 0)?, seq: rows::unsigned(row, 1)? })
}

fn asset(row: &rusqlite::Row<'_>) -> rusqlite::Result<AssetRow> {
    let sha256: Option<Bytes<32>> = row.get("sha256")?;
    Ok(AssetRow {
        id: row.get("id")?,
        seq: rows::unsigned(row, "seq")?,
        sha256: sha256.map(|hash| Hash(hash.0)),
    })
}

/// Checks that the events of turns are where their rows say: what is not found would not be erased.
pub fn check_places(db: &Connection, no: i64, id: ConversationId, turns: &[TurnId]) -> Result<(), Failure> {
    let lineage = lineage(db, no, id)?;
    for turn in turns {
        let Some(row) = mended(db, no, || read::turn_row(db, &lineage, *turn))? else { continue };
        for seq in row.bodies() {
            if let Some(level) = lineage.owner(seq)
                && erase::find(db, EventRef { conversation: level.no as u64, seq })?.is_none()
            {
                let error = FromSqlError::Other("no event has it".into()).into();
                return Err(
                    rows::malformed(&format!("the place of seq {seq} of {}", level.id), &error).into()
                );
            }
        }
    }
    Ok(())
}

/// Reads derived rows. If one cannot be read, those of the conversation and its ancestors are rebuilt first.
pub fn mended<T>(db: &Connection, no: i64, read: impl Fn() -> rusqlite::Result<T>) -> Result<T, Failure> {
    match read() {
        Err(error) if rows::malformed_row(&error).is_some() => {
            derived::mend_lineage(db, no).map_err(unmended)?;
            Ok(read()?)
        }
        answer => Ok(answer?),
    }
}

/// A conversation's ancestors.
pub fn lineage(db: &Connection, no: i64, id: ConversationId) -> Result<Lineage, Failure> {
    mended(db, no, || read::lineage(db, no, id))
}

/// Rows that cannot be rebuilt concern one conversation, and only its request is refused.
pub fn unmended(failure: Failure) -> Failure {
    match failure {
        Failure::Broken(error) if error.sqlite_error_code().is_none() => unreadable(error).into(),
        failure => failure,
    }
}

fn unreadable(error: rusqlite::Error) -> Error {
    super::explain(Path::new("the database"), &error)
}

fn refusal(failure: Failure) -> Error {
    super::failed(Path::new("the database"), failure)
}
