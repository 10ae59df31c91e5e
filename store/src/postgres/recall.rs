//! The source of this process's indexes: conversations as they change, in the order in which this process learns of
//! it (see `feed`). There is no order of arrival that all processes share: a sequence is not in the order of commits.

use super::Postgres;
use super::db::Db;
use super::feed::{Changed, Cursor};
use super::read;
use super::rows::{self, EVENT_COLUMNS, signed};
use crate::recall::{Catalog, Ground};
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::event::Event;
use everturn_core::id::{ConversationId, EventId, Key, TenantName};
use everturn_core::write::needed;
use std::collections::{BTreeMap, HashMap};

/// Approximate maximum read at once, so that a few huge turns do not fill the memory.
const ARRIVED_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Events in the order in which this process learned of them.
#[derive(Default)]
pub struct Arrivals {
    cursor: Cursor,
    conversations: HashMap<i64, (TenantName, ConversationId, u64)>,
    /// Position before the first event, conversation, and `seq` before it; each ends where the next begins.
    runs: Vec<(u64, i64, u64)>,
    last: u64,
}

impl Arrivals {
    /// Tenants in which a conversation was deleted are noted in the catalog.
    fn look(&mut self, db: &Db, catalog: &Catalog) -> Result<(), Error> {
        for Changed { no, key, head_seq, floor, deleted, .. } in self.cursor.conversations(db)? {
            if deleted {
                catalog.note_deletion(&key.tenant);
            }
            let (.., known) = self.conversations.entry(no).or_insert((key.tenant, key.id, floor));
            if head_seq > *known {
                self.runs.push((self.last, no, *known));
                self.last += head_seq - *known;
                *known = head_seq;
            }
        }
        Ok(())
    }

    /// Conversation and `seq` of the events in a range of positions.
    fn between(&self, after: u64, through: u64) -> impl Iterator<Item = (u64, i64, u64)> + '_ {
        let first = self.runs.partition_point(|(before, ..)| *before <= after).saturating_sub(1);
        let ends = self.runs[first.min(self.runs.len())..].iter().enumerate().map(move |(nth, run)| {
            (*run, self.runs.get(first + nth + 1).map_or(self.last, |(before, ..)| *before))
        });
        let through = through.min(self.last);
        ends.take_while(move |((before, ..), _)| *before < through).flat_map(
            move |((before, no, seq), end)| {
                let from = before.max(after);
                (from..end.min(through)).map(move |at| (at + 1, no, seq + (at - before) + 1))
            },
        )
    }
}

impl Postgres {
    /// Looks for new events.
    fn look(&self) -> Result<(), Error> {
        self.arrivals.lock().look(&self.of_all()?, &self.catalog)
    }

    /// Events of these conversations, in this order, as far as they exist.
    fn arrived_events(&self, places: &[(u64, i64, u64)]) -> Result<Vec<(u64, TenantName, Event)>, Error> {
        let of: Vec<(TenantName, ConversationId)> = {
            let arrivals = self.arrivals.lock();
            let known = |(_, no, _): &(u64, i64, u64)| {
                let (tenant, id, _) = &arrivals.conversations[no];
                (tenant.clone(), *id)
            };
            places.iter().map(known).collect()
        };
        let sql = format!(
            "SELECT {EVENT_COLUMNS}, n.nth FROM unnest($1::text[], $2::bigint[], $3::bigint[]) WITH ORDINALITY AS n (tenant, conversation, seq, nth)
             JOIN events e ON e.tenant = n.tenant AND e.conversation = n.conversation AND e.seq = n.seq ORDER BY n.nth"
        );
        let tenants: Vec<&str> = of.iter().map(|(tenant, _)| tenant.as_str()).collect();
        let nos: Vec<i64> = places.iter().map(|(_, no, _)| *no).collect();
        let seqs: Vec<i64> = places.iter().map(|(.., seq)| signed(*seq)).collect();
        let mut events = Vec::new();
        for row in self.of_all()?.query(&sql, &[&tenants, &nos, &seqs])? {
            let at = rows::unsigned(&row, 14)? as usize - 1;
            let (tenant, id) = &of[at];
            events.push((places[at].0, tenant.clone(), rows::event(&row, *id, Hash([0; 32]))?));
        }
        Ok(events)
    }
}

impl Ground for Postgres {
    fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    fn last_arrived(&self) -> Result<u64, Error> {
        self.look()?;
        Ok(self.arrivals.lock().last)
    }

    /// A number instead of the event's own id, which is gone once its conversation is deleted. These indexes end with
    /// this process, so they are never those of another log.
    fn arrived_at(&self, no: u64) -> Result<Option<EventId>, Error> {
        let is_there = (1..=self.arrivals.lock().last).contains(&no);
        Ok(is_there.then(|| EventId::from_bytes(u128::from(no).to_be_bytes())))
    }

    fn arrived(&self, after: u64, limit: usize) -> Result<(Vec<(TenantName, Event)>, u64), Error> {
        self.look()?;
        let places: Vec<_> = self.arrivals.lock().between(after, u64::MAX).take(limit).collect();
        let Some((last, ..)) = places.last() else { return Ok((Vec::new(), after)) };
        let (mut out, mut bytes, mut through) = (Vec::new(), 0, *last);
        for (position, tenant, event) in self.arrived_events(&places)? {
            if bytes >= ARRIVED_BYTES_MAX {
                break;
            }
            bytes += event.text().map_or(0, str::len);
            out.push((tenant, event));
            through = position;
        }
        // Those that are gone after the last one that is there were deleted.
        Ok((out, if bytes < ARRIVED_BYTES_MAX { *last } else { through }))
    }

    fn counts(&self, after: u64, through: u64) -> Result<Vec<(TenantName, u64)>, Error> {
        let arrivals = self.arrivals.lock();
        let mut counts: BTreeMap<TenantName, u64> = BTreeMap::new();
        for (_, no, _) in arrivals.between(after, through) {
            *counts.entry(arrivals.conversations[&no].0.clone()).or_default() += 1;
        }
        Ok(counts.into_iter().collect())
    }

    fn numbers_of(&self, tenant: &TenantName, after: u64, through: u64) -> Result<Vec<u64>, Error> {
        let arrivals = self.arrivals.lock();
        let of_tenant = |(_, no, _): &(u64, i64, u64)| arrivals.conversations[no].0 == *tenant;
        Ok(arrivals.between(after, through).filter(of_tenant).map(|(position, ..)| position).collect())
    }

    fn events_at(&self, numbers: &[u64]) -> Result<Vec<(u64, Event)>, Error> {
        let places: Vec<_> = {
            let arrivals = self.arrivals.lock();
            numbers.iter().flat_map(|at| arrivals.between(at - 1, *at).collect::<Vec<_>>()).collect()
        };
        let events = self.arrived_events(&places)?;
        Ok(events.into_iter().map(|(position, _, event)| (position, event)).collect())
    }

    fn with_deletions(&self) -> Result<Vec<TenantName>, Error> {
        let sql = "SELECT DISTINCT tenant FROM conversation_rows WHERE deleted IS NOT NULL";
        let found = self.of_all()?.query(sql, &[])?;
        found.iter().map(|row| TenantName::new(rows::get::<String>(row, 0)?)).collect()
    }

    fn readable_through(&self, key: &Key) -> Result<u64, Error> {
        let sql = "SELECT no, deleted IS NOT NULL FROM conversation_rows WHERE tenant = $1 AND id = $2 AND NOT replaced";
        let db = self.of(&key.tenant)?;
        let Some(row) = db.query_one(sql, &[&key.tenant.as_str(), &&key.id.to_bytes()[..]])? else {
            return Ok(0);
        };
        if !rows::get::<bool>(&row, 1)? {
            return Ok(u64::MAX);
        }
        needed(rows::unsigned(&row, 0)?, |conversation| read::forks(&db, &key.tenant, conversation))
    }

    fn levels(&self, key: &Key) -> Result<Vec<(ConversationId, u64)>, Error> {
        let lineage = read::lineage_of(&self.of(&key.tenant)?, key)?;
        let levels = lineage.into_iter().flat_map(|lineage| lineage.levels);
        Ok(levels.map(|level| (level.id, level.cap)).collect())
    }
}
