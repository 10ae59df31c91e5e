//! Lookups for a plan, inside a transaction. Each is a round trip, so pending writes are flushed first.

use super::db::Db;
use super::read::{self, FAMILY, Lineage};
use super::rows::{self, signed};
use super::write::Buffer;
use everturn_core::Error;
use everturn_core::chain::{Hash, Head};
use everturn_core::conversation::Parent;
use everturn_core::event::Event;
use everturn_core::id::{ConversationId, Key, TurnId};
use everturn_core::turn::TurnRow;
use everturn_core::write::{
    Action, AssetRow, EventRef, Fork, ForkParent, ForkPoint, Level, Lookup, Statement, StatementsOf,
    SummaryRow, Traces, Turns,
};
use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::ops::RangeInclusive;
use tokio_postgres::Row;

/// Lookups for one request: nothing is written before its plan is made.
pub struct InDatabase<'a> {
    db: &'a Db,
    buffer: &'a RefCell<Buffer>,
    key: &'a Key,
    /// Origin of a fork that is being made.
    parent: Option<Parent>,
    line: OnceCell<Lineage>,
    /// Turns and hashes that were read at once; `None` for those that are not there.
    turns: HashMap<TurnId, Option<TurnRow>>,
    hashes: HashMap<u64, Option<Hash>>,
}

impl<'a> InDatabase<'a> {
    pub fn new(db: &'a Db, buffer: &'a RefCell<Buffer>, key: &'a Key) -> InDatabase<'a> {
        let (line, turns, hashes) = Default::default();
        InDatabase { db, buffer, key, parent: None, line, turns, hashes }
    }

    /// For the events of a conversation that may be deleted, but is read in forks.
    pub fn along(db: &'a Db, buffer: &'a RefCell<Buffer>, key: &'a Key, line: Lineage) -> InDatabase<'a> {
        InDatabase { line: OnceCell::from(line), ..InDatabase::new(db, buffer, key) }
    }

    /// For the plan of an action on a conversation that ends at `head`. What its many events look up is read here at once.
    pub fn planning(
        db: &'a Db,
        buffer: &'a RefCell<Buffer>,
        key: &'a Key,
        action: &Action,
        head: u64,
    ) -> Result<InDatabase<'a>, Error> {
        let mut found = InDatabase { parent: action.parent(), ..InDatabase::new(db, buffer, key) };
        let (turns, seqs) = (action.turns(), action.restored(head));
        if !turns.is_empty() {
            found.turns = read::turn_rows(found.db()?, found.line()?, &turns)?;
        }
        if !seqs.is_empty() {
            found.hashes = read::hashes_at(found.db()?, found.line()?, &seqs)?;
        }
        Ok(found)
    }
}

impl InDatabase<'_> {
    fn db(&self) -> Result<&Db, Error> {
        self.buffer.borrow_mut().flush(self.db, false)?;
        Ok(self.db)
    }

    fn line(&self) -> Result<&Lineage, Error> {
        if let Some(line) = self.line.get() {
            return Ok(line);
        }
        let none = || Lineage { tenant: self.key.tenant.clone(), levels: Vec::new() };
        let line = match (read::lineage_of(self.db()?, self.key)?, self.parent) {
            (Some(lineage), _) => lineage,
            (None, Some(parent)) => self.inherited(parent)?.unwrap_or_else(none),
            (None, None) => none(),
        };
        Ok(self.line.get_or_init(|| line))
    }

    /// Lineage of a fork before it exists: no level of its own yet, and those above up to its origin.
    fn inherited(&self, parent: Parent) -> Result<Option<Lineage>, Error> {
        let key = Key { tenant: self.key.tenant.clone(), id: parent.conversation };
        let Some(mut lineage) = read::lineage_of(self.db()?, &key)? else { return Ok(None) };
        lineage.levels.iter_mut().for_each(|level| level.cap = level.cap.min(parent.at_seq));
        let (floor, cap) = (parent.at_seq, i64::MAX as u64);
        lineage.levels.insert(0, read::Level { no: -1, id: self.key.id, floor, cap, deleted: false });
        Ok(Some(lineage))
    }

    fn tenant(&self) -> &str {
        self.key.tenant.as_str()
    }
}

impl Turns for InDatabase<'_> {
    fn turn(&self, id: TurnId) -> Result<Option<TurnRow>, Error> {
        match self.turns.get(&id) {
            Some(known) => Ok(known.clone()),
            None => read::turn_row(self.db()?, self.line()?, id),
        }
    }
}

impl Lookup for InDatabase<'_> {
    fn fork_parent(&self, parent: Parent) -> Result<Option<ForkParent>, Error> {
        let key = Key { tenant: self.key.tenant.clone(), id: parent.conversation };
        let db = self.db()?;
        let Some((_, conversation)) = read::conversation(db, &key)? else { return Ok(None) };
        let Some(lineage) = read::lineage_of(db, &key)? else { return Ok(None) };
        let hash = read::hash_at(db, &lineage, parent.at_seq)?.filter(|_| parent.at_seq > 0);
        let point = match hash {
            None => None,
            Some(hash) => {
                let turns = read::count_turns(db, &lineage, parent.at_seq)?;
                Some(ForkPoint { head: Head { seq: parent.at_seq, hash }, turns })
            }
        };
        Ok(Some(ForkParent { conversation, levels: lineage.levels.len(), point }))
    }

    fn lineage(&self) -> Result<Vec<Level>, Error> {
        let level = |level: &read::Level| Level {
            conversation: level.no as u64,
            floor: level.floor,
            cap: level.cap,
            deleted: level.deleted,
        };
        Ok(self.line()?.levels.iter().map(level).collect())
    }

    fn forks(&self, conversation: u64) -> Result<Vec<Fork>, Error> {
        read::forks(self.db()?, &self.key.tenant, conversation)
    }

    fn hash_at(&self, seq: u64) -> Result<Option<Hash>, Error> {
        match self.hashes.get(&seq) {
            Some(known) => Ok(*known),
            None => read::hash_at(self.db()?, self.line()?, seq),
        }
    }

    fn fallen_after(&self, seq: u64) -> Result<u64, Error> {
        read::fallen_after(self.db()?, self.line()?, seq)
    }

    fn erased_since(&self, mark: u64) -> Result<Option<Vec<EventRef>>, Error> {
        let sql = "SELECT conversation, seq FROM erased_bodies WHERE tenant = $1 AND no > $2 ORDER BY no";
        let found = self.db()?.query(sql, &[&self.tenant(), &signed(mark)])?;
        found.iter().map(event_ref).collect::<Result<_, _>>().map(Some)
    }
}

impl Traces for InDatabase<'_> {
    fn number(&self, id: ConversationId) -> Result<Option<u64>, Error> {
        let sql = "SELECT no FROM conversation_rows WHERE tenant = $1 AND id = $2 AND NOT replaced";
        let row = self.db()?.query_one(sql, &[&self.tenant(), &&id.to_bytes()[..]])?;
        row.map(|row| rows::unsigned(&row, 0)).transpose()
    }

    fn body_kind(&self, at: EventRef) -> Result<Option<String>, Error> {
        let sql = "SELECT kind FROM events WHERE tenant = $3 AND conversation = $1 AND seq = $2 AND body IS NOT NULL";
        let row = self.db()?.query_one(sql, &[&signed(at.conversation), &signed(at.seq), &self.tenant()])?;
        row.map(|row| rows::get(&row, 0)).transpose()
    }

    fn event(&self, at: EventRef) -> Result<Option<Event>, Error> {
        let db = self.db()?;
        let Some(lineage) = read::lineage_at(db, &self.key.tenant, signed(at.conversation))? else {
            return Ok(None);
        };
        if at.seq <= lineage.levels[0].floor {
            return Ok(None);
        }
        Ok(read::events_at(db, &lineage, &[at.seq])?.remove(&at.seq))
    }

    fn statements(&self, of: StatementsOf) -> Result<Vec<Statement>, Error> {
        read::statements(self.db()?, &self.key.tenant, of)
    }

    fn summaries(&self, conversation: u64, seqs: RangeInclusive<u64>) -> Result<Vec<SummaryRow>, Error> {
        let sql = "SELECT seq, through_seq FROM summary_rows WHERE tenant = $4 AND conversation = $1 AND seq BETWEEN $2 AND $3 ORDER BY seq";
        let found = self.db()?.query(
            sql,
            &[&signed(conversation), &signed(*seqs.start()), &signed(*seqs.end()), &self.tenant()],
        )?;
        let summary =
            |row| Ok(SummaryRow { seq: rows::unsigned(row, 0)?, through_seq: rows::unsigned(row, 1)? });
        found.iter().map(summary).collect()
    }

    fn summaries_reaching(&self, at: EventRef) -> Result<Vec<EventRef>, Error> {
        let sql = format!(
            "{FAMILY} SELECT s.conversation, s.seq FROM family f JOIN summary_rows s ON s.tenant = $3 AND s.conversation = f.no WHERE s.through_seq >= $2"
        );
        self.db()?
            .query(&sql, &[&signed(at.conversation), &signed(at.seq), &self.tenant()])?
            .iter()
            .map(event_ref)
            .collect()
    }

    fn shown_by(&self, turn: EventRef) -> Result<Vec<AssetRow>, Error> {
        let sql = "SELECT a.id, a.seq, a.sha256 FROM asset_references r
             JOIN asset_rows a ON a.tenant = $3 AND a.conversation = r.conversation AND a.id = r.asset
             WHERE r.tenant = $3 AND r.conversation = $1 AND r.turn_seq = $2";
        self.db()?
            .query(sql, &[&signed(turn.conversation), &signed(turn.seq), &self.tenant()])?
            .iter()
            .map(asset)
            .collect()
    }

    fn showing(&self, conversation: u64, asset: &str) -> Result<Vec<EventRef>, Error> {
        let sql = format!(
            "{FAMILY} SELECT r.conversation, r.turn_seq FROM family f JOIN asset_references r ON r.tenant = $3 AND r.conversation = f.no WHERE r.asset = $4"
        );
        self.db()?
            .query(&sql, &[&signed(conversation), &0i64, &self.tenant(), &asset])?
            .iter()
            .map(event_ref)
            .collect()
    }

    fn assets(&self, conversation: u64, seqs: RangeInclusive<u64>) -> Result<Vec<AssetRow>, Error> {
        let sql = "SELECT id, seq, sha256 FROM asset_rows WHERE tenant = $4 AND conversation = $1 AND seq BETWEEN $2 AND $3";
        let found = self.db()?.query(
            sql,
            &[&signed(conversation), &signed(*seqs.start()), &signed(*seqs.end()), &self.tenant()],
        )?;
        found.iter().map(asset).collect()
    }

    fn asset_count(&self, sha256: Hash) -> Result<u64, Error> {
        read::asset_count(self.db()?, &self.key.tenant, sha256)
    }
}

fn event_ref(row: &Row) -> Result<EventRef, Error> {
    Ok(EventRef { conversation: rows::unsigned(row, 0)?, seq: rows::unsigned(row, 1)? })
}

fn asset(row: &Row) -> Result<AssetRow, Error> {
    let sha256 = rows::optional_bytes(row, 2)?.map(Hash);
    Ok(AssetRow { id: rows::get(row, 0)?, seq: rows::unsigned(row, 1)?, sha256 })
}
