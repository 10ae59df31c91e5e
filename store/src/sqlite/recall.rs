//! What the index of words is made from: the events, in the order of their rows.

use super::read;
use super::rows::{self, Bytes, EVENT_COLUMNS, signed};
use super::{Sqlite, erase};
use crate::recall::{Catalog, Ground};
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::event::Event;
use everturn_core::id::{ConversationId, EventId, Key, Tenant};
use rusqlite::{OptionalExtension, params};

/// No more than about this is read at once, so that a few huge turns do not fill the memory.
const ARRIVED_BYTES_MAX: usize = 8 * 1024 * 1024;

impl Ground for Sqlite {
    fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    fn last_arrived(&self) -> Result<u64, Error> {
        self.reading(|db| {
            let last: i64 = db
                .prepare_cached("SELECT coalesce(max(no), 0) FROM events")?
                .query_row([], |row| row.get(0))?;
            Ok(last as u64)
        })
    }

    fn arrived_at(&self, no: u64) -> Result<Option<EventId>, Error> {
        self.reading(|db| {
            let id: Option<Bytes<16>> = db
                .prepare_cached("SELECT id FROM events WHERE no = ?")?
                .query_row([signed(no)], |row| row.get(0))
                .optional()?;
            Ok(id.map(|id| EventId::from_bytes(id.0)))
        })
    }

    fn arrived(&self, after: u64, limit: usize) -> Result<(Vec<(Tenant, Event)>, u64), Error> {
        self.reading(|db| {
            let mut statement = db.prepare_cached(&format!(
                "SELECT events.no AS no, c.tenant AS tenant, c.id AS conversation_id, {EVENT_COLUMNS}
                 FROM events JOIN conversations c ON c.no = events.conversation
                 WHERE events.no > ? ORDER BY events.no LIMIT ?"
            ))?;
            let mut found = statement.query(params![signed(after), signed(limit as u64)])?;
            let (mut out, mut bytes, mut through) = (Vec::new(), 0, after);
            while let Some(row) = found.next()?.filter(|_| bytes < ARRIVED_BYTES_MAX) {
                let tenant: String = row.get("tenant")?;
                let conversation = ConversationId::from_bytes(row.get::<_, Bytes<16>>("conversation_id")?.0);
                let event = rows::event(row, conversation, Hash([0; 32]))?;
                bytes += event.text().map_or(0, str::len);
                // A tombstone that was moved out of sight has its number behind the tenant's name.
                let tenant = Tenant::new(tenant.split('/').next().unwrap_or_default())?;
                out.push((tenant, event));
                through = rows::unsigned(row, "no")?;
            }
            Ok((out, through))
        })
    }

    fn readable_through(&self, key: &Key) -> Result<u64, Error> {
        self.reading(|db| {
            let found: Option<(i64, bool)> = db
                .prepare_cached(
                    "SELECT no, deleted IS NOT NULL FROM conversations WHERE tenant = ? AND id = ?",
                )?
                .query_row(params![key.tenant.as_str(), Bytes(key.id.to_bytes())], |row| {
                    Ok((row.get(0)?, row.get(1)?))
                })
                .optional()?;
            match found {
                None => Ok(0),
                Some((_, false)) => Ok(u64::MAX),
                Some((no, true)) => Ok(erase::needed(db, no)?),
            }
        })
    }

    fn levels(&self, key: &Key) -> Result<Vec<(ConversationId, u64)>, Error> {
        self.reading(|db| {
            let Some((no, _)) = read::conversation(db, key)? else { return Ok(Vec::new()) };
            let lineage = read::lineage(db, no, key.id)?;
            Ok(lineage.levels.iter().map(|level| (level.id, level.cap)).collect())
        })
    }
}
