//! The source of the indexes: events in the order of their rows.

use super::Sqlite;
use super::read;
use super::rows::{self, Bytes, EVENT_COLUMNS, Failure, signed};
use crate::recall::{Catalog, Ground, Visible};
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::event::Event;
use everturn_core::id::{ConversationId, EventId, Key, TenantName};
use rusqlite::{OptionalExtension, Row, params};
use std::collections::{BTreeMap, HashMap};

/// Approximate maximum read at once, so that a few huge turns do not fill the memory.
const ARRIVED_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Events with their tenants.
fn arrived(condition: &str) -> String {
    format!(
        "SELECT {EVENT_COLUMNS}, events.no AS no, c.tenant AS tenant, c.id AS conversation_id
         FROM events JOIN conversation_rows c ON c.no = events.conversation WHERE {condition}"
    )
}

/// The tenant of a row. A hidden tombstone has its number after the tenant's name.
fn tenant(row: &Row<'_>) -> Result<TenantName, Failure> {
    let tenant: String = row.get("tenant")?;
    Ok(TenantName::new(tenant.split('/').next().unwrap_or_default())?)
}

fn event(row: &Row<'_>) -> Result<Event, Failure> {
    let conversation = ConversationId::from_bytes(row.get::<_, Bytes<16>>("conversation_id")?.0);
    Ok(rows::event(row, conversation, Hash([0; 32]))?)
}

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

    fn arrived(&self, after: u64, limit: usize) -> Result<(Vec<(TenantName, Event)>, u64), Error> {
        self.reading(|db| {
            let mut statement = db.prepare_cached(&arrived("events.no > ? ORDER BY events.no LIMIT ?"))?;
            let mut found = statement.query(params![signed(after), signed(limit as u64)])?;
            let (mut out, mut bytes, mut through) = (Vec::new(), 0, after);
            while let Some(row) = found.next()?.filter(|_| bytes < ARRIVED_BYTES_MAX) {
                let event = event(row)?;
                bytes += event.text().map_or(0, str::len);
                out.push((tenant(row)?, event));
                through = rows::unsigned(row, "no")?;
            }
            Ok((out, through))
        })
    }

    fn counts(&self, after: u64, through: u64) -> Result<Vec<(TenantName, u64)>, Error> {
        if after >= through {
            return Ok(Vec::new());
        }
        self.reading(|db| {
            let mut statement = db.prepare_cached(
                "SELECT c.tenant AS tenant, count(*) AS events FROM events e JOIN conversation_rows c ON c.no = e.conversation
                 WHERE e.no > ? AND e.no <= ? GROUP BY e.conversation",
            )?;
            let mut found = statement.query([signed(after), signed(through)])?;
            let mut counts: BTreeMap<TenantName, u64> = BTreeMap::new();
            while let Some(row) = found.next()? {
                *counts.entry(tenant(row)?).or_default() += rows::unsigned(row, "events")?;
            }
            Ok(counts.into_iter().collect())
        })
    }

    fn numbers_of(&self, tenant: &TenantName, after: u64, through: u64) -> Result<Vec<u64>, Error> {
        // The tenant's conversations, and its hidden tombstones: `acme` and `acme/17`.
        const OF_TENANT: &str = "c.tenant >= ?1 AND c.tenant < ?1 || '0'
            AND (c.tenant = ?1 OR substr(c.tenant, length(?1) + 1, 1) = '/')";
        self.reading(|db| {
            let numbers = db
                .prepare_cached(&format!(
                    "SELECT p.event FROM conversation_rows c CROSS JOIN places p ON p.conversation = c.no
                     WHERE {OF_TENANT} AND p.event > ?2 AND p.event <= ?3
                     UNION SELECT e.no FROM events e CROSS JOIN conversation_rows c ON c.no = e.conversation
                     WHERE e.no > (SELECT event FROM settled) AND e.no > ?2 AND e.no <= ?3 AND {OF_TENANT}
                     ORDER BY 1"
                ))?
                .query_map(params![tenant.as_str(), signed(after), signed(through)], |row| {
                    Ok(row.get::<_, i64>(0)? as u64)
                })?
                .collect::<Result<_, _>>()?;
            Ok(numbers)
        })
    }

    fn events_at(&self, numbers: &[u64]) -> Result<Vec<(u64, Event)>, Error> {
        self.reading(|db| {
            let mut statement = db.prepare_cached(&arrived("events.no = ?"))?;
            let (mut out, mut bytes) = (Vec::new(), 0);
            for number in numbers {
                if bytes >= ARRIVED_BYTES_MAX {
                    break;
                }
                let mut found = statement.query([signed(*number)])?;
                if let Some(row) = found.next()? {
                    let event = event(row)?;
                    bytes += event.text().map_or(0, str::len);
                    out.push((*number, event));
                }
            }
            Ok(out)
        })
    }

    fn with_deletions(&self) -> Result<Vec<TenantName>, Error> {
        self.reading(|db| {
            let mut statement =
                db.prepare_cached("SELECT DISTINCT tenant FROM conversation_rows WHERE deleted IS NOT NULL")?;
            let mut found = statement.query([])?;
            let mut tenants = Vec::new();
            while let Some(row) = found.next()? {
                tenants.push(tenant(row)?);
            }
            Ok(tenants)
        })
    }
}

impl Visible for Sqlite {
    fn readable_through(&self, key: &Key) -> Result<u64, Error> {
        self.reading(|db| {
            let found: Option<(i64, bool)> = db
                .prepare_cached(
                    "SELECT no, deleted IS NOT NULL FROM conversation_rows WHERE tenant = ? AND id = ?",
                )?
                .query_row(params![key.tenant.as_str(), Bytes(key.id.to_bytes())], |row| {
                    Ok((row.get(0)?, row.get(1)?))
                })
                .optional()?;
            match found {
                None => Ok(0),
                Some((_, false)) => Ok(u64::MAX),
                Some((no, true)) => Ok(read::needed(db, no)?),
            }
        })
    }

    fn readers(
        &self,
        tenant: &TenantName,
        places: &[(ConversationId, u64)],
    ) -> Result<Vec<Option<ConversationId>>, Error> {
        if places.is_empty() {
            return Ok(Vec::new());
        }
        self.reading(|db| {
            let mut row = db.prepare_cached(
                "SELECT no, deleted IS NOT NULL FROM conversation_rows WHERE tenant = ? AND id = ?",
            )?;
            let mut known: HashMap<ConversationId, Option<(i64, bool)>> = HashMap::new();
            let mut readers = Vec::with_capacity(places.len());
            for (id, seq) in places {
                let found = match known.get(id) {
                    Some(found) => *found,
                    None => {
                        let values = params![tenant.as_str(), Bytes(id.to_bytes())];
                        let found = row.query_row(values, |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
                        known.insert(*id, found);
                        found
                    }
                };
                readers.push(match found {
                    None => None,
                    Some((_, false)) => Some(*id),
                    Some((no, true)) => read::reader(db, no, *seq)?,
                });
            }
            Ok(readers)
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
