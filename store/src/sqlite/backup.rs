//! Reading the whole file, a short transaction at a time.

use super::rows::{self, Bytes, EVENT_COLUMNS, Failure, signed};
use super::{Sqlite, keys, parents, write};
use crate::{Backup, EVENT_BYTES, ErasedPage, Member};
use everturn_core::Error;
use everturn_core::access::AccessKey;
use everturn_core::chain::{Hash, Head};
use everturn_core::conversation::Tombstone;
use everturn_core::event::Event;
use everturn_core::id::{ConversationId, Key, TenantName};
use everturn_core::time::Timestamp;
use everturn_core::write::AnsweredRequest;
use rusqlite::types::{FromSqlError, ValueRef};
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::collections::HashMap;

/// Number of rows of `events` that one transaction searches for erased bodies.
const ERASED_SPAN: u64 = 50_000;

/// Uses `places` and not the head of the row: a deleted conversation keeps its head and loses its events. An
/// entry that names no event, or another one, does not count.
const MEMBERS: &str = "SELECT c.no, c.tenant, c.id, c.parent, c.parent_seq, c.head_seq, c.deleted, c.deleted_reason,
        iif(typeof(c.created) = 'integer', c.created, coalesce((SELECT e.at FROM events e WHERE e.conversation = c.no ORDER BY e.no LIMIT 1), 0)) AS created,
        coalesce(l.seq, 0) AS through, iif(c.deleted IS NULL, coalesce(l.hash, c.head_hash), c.head_hash) AS hash
    FROM conversation_rows c LEFT JOIN events l ON l.no = (
        SELECT p.event FROM places p JOIN events e ON e.no = p.event AND e.conversation = p.conversation AND e.seq = p.seq
        WHERE p.conversation = c.no ORDER BY p.seq DESC LIMIT 1)";

impl Backup for Sqlite {
    fn members(&self) -> Result<Vec<Member>, Error> {
        let list = || {
            self.reading(|db| {
            let mut members: Vec<Member> = db
                .prepare_cached(&format!("{MEMBERS} ORDER BY c.no"))?
                .query_map([], |row| member(db, row))?
                .collect::<Result<_, _>>()?;
            // The last event of each group: SQLite returns the other columns of the row with the maximum.
            let mut unsettled: HashMap<u64, (u64, Hash)> = db
                .prepare_cached(
                    "SELECT conversation, max(seq) AS seq, hash FROM events WHERE no > (SELECT event FROM settled)
                     GROUP BY conversation",
                )?
                .query_map([], |row| Ok((rows::unsigned(row, "conversation")?, end(row)?)))?
                .collect::<Result<_, _>>()?;
            for member in &mut members {
                if let Some((seq, hash)) = unsettled.remove(&member.no).filter(|(seq, _)| *seq > member.through) {
                    (member.through, member.hash) = (seq, Some(hash));
                }
            }
            Ok(members)
        })
        };
        self.mending_all(list)
    }

    fn member(&self, no: u64) -> Result<Member, Error> {
        self.reading(|db| {
            let mut found = db
                .prepare_cached(&format!("{MEMBERS} WHERE c.no = ?"))?
                .query_row([signed(no)], |row| member(db, row))
                .optional()?
                .ok_or_else(|| crate::absent_member(no))?;
            let unsettled = db
                .prepare_cached(
                    "SELECT seq, hash FROM events WHERE no > (SELECT event FROM settled) AND conversation = ?
                     ORDER BY seq DESC, no LIMIT 1",
                )?
                .query_row([signed(no)], end)
                .optional()?;
            if let Some((seq, hash)) = unsettled.filter(|(seq, _)| *seq > found.through) {
                (found.through, found.hash) = (seq, Some(hash));
            }
            Ok(found)
        })
    }

    fn member_events(
        &self,
        no: u64,
        after: u64,
        through: u64,
        bytes_max: usize,
    ) -> Result<Vec<Event>, Error> {
        self.reading(|db| {
            let conversation: Option<Bytes<16>> = db
                .prepare_cached("SELECT id FROM conversation_rows WHERE no = ?")?
                .query_row([signed(no)], |row| row.get(0))
                .optional()?;
            let id = ConversationId::from_bytes(conversation.ok_or_else(|| crate::absent_member(no))?.0);
            let mut events: Vec<Event> = Vec::new();
            let mut bytes = 0;
            let settled = format!(
                "SELECT {EVENT_COLUMNS} FROM places p JOIN events ON events.no = p.event
                 WHERE p.conversation = ? AND p.seq > ? AND p.seq <= ? ORDER BY p.seq"
            );
            let waiting = format!(
                "SELECT {EVENT_COLUMNS} FROM events WHERE no > (SELECT event FROM settled)
                 AND conversation = ? AND seq > ? AND seq <= ? ORDER BY no"
            );
            for sql in [settled, waiting] {
                let from = events.last().map_or(after, |event| event.seq);
                let mut statement = db.prepare_cached(&sql)?;
                let mut found = statement.query(params![signed(no), signed(from), signed(through)])?;
                while events.is_empty() || bytes < bytes_max {
                    let Some(row) = found.next()? else { break };
                    // Written by a second process beside the log.
                    let seq = rows::unsigned(row, "seq")?;
                    if events.last().is_some_and(|last| seq <= last.seq) {
                        continue;
                    }
                    let prev = match events.last() {
                        Some(last) => last.hash,
                        None => hash_before(db, no, seq)?,
                    };
                    let event = rows::event(row, id, prev)?;
                    bytes += EVENT_BYTES + event.text().map_or(0, str::len);
                    events.push(event);
                }
                if events.last().is_some_and(|event| event.seq == through) || bytes >= bytes_max && bytes > 0
                {
                    break;
                }
            }
            Ok(events)
        })
    }

    fn requests(
        &self,
        no: u64,
        after: u64,
        through: u64,
        limit: usize,
    ) -> Result<Vec<AnsweredRequest>, Error> {
        self.reading(|db| {
            let appends = write::conversation_scope(signed(no));
            let last: Option<i64> = db
                .prepare_cached(
                    "SELECT last_seq FROM idempotency WHERE conversation = ? AND last_seq > ? AND last_seq <= ?
                     ORDER BY last_seq LIMIT 1 OFFSET ?",
                )?
                .query_row(
                    params![signed(no), signed(after), signed(through), signed(limit.max(1) as u64 - 1)],
                    |row| row.get(0),
                )
                .optional()?;
            let through = last.unwrap_or(signed(through));
            let found = db
                .prepare_cached(
                    "SELECT scope, key, fingerprint, first_seq, last_seq FROM idempotency
                     WHERE conversation = ? AND last_seq > ? AND last_seq <= ? ORDER BY last_seq, scope, key",
                )?
                .query_map(params![signed(no), signed(after), through], |row| {
                    Ok(AnsweredRequest {
                        creation: row.get_ref("scope")?.as_str()? != appends,
                        key: row.get("key")?,
                        fingerprint: Hash(row.get::<_, Bytes<32>>("fingerprint")?.0),
                        first_seq: rows::unsigned(row, "first_seq")?,
                        last_seq: rows::unsigned(row, "last_seq")?,
                    })
                })?
                .collect::<Result<_, _>>()?;
            Ok(found)
        })
    }

    fn erased(&self, from: u64) -> Result<ErasedPage, Error> {
        self.reading(|db| {
            let end: i64 = db.query_row("SELECT coalesce(max(no), 0) FROM events", [], |row| row.get(0))?;
            let through = from.saturating_add(ERASED_SPAN);
            let erased = db
                .prepare_cached(
                    "SELECT conversation, seq FROM events WHERE no > ? AND no <= ? AND salt = zeroblob(16) AND trim(body) = ''",
                )?
                .query_map(params![signed(from), signed(through)], |row| {
                    Ok((rows::unsigned(row, "conversation")?, rows::unsigned(row, "seq")?))
                })?
                .collect::<Result<_, _>>()?;
            Ok(ErasedPage { erased, next: (through < end as u64).then_some(through) })
        })
    }

    fn all_keys(&self) -> Result<Vec<AccessKey>, Error> {
        self.reading(|db| Ok(keys::all(db)?))
    }
}

/// The hash that an event's `prev` must have; for the first event of a fork, that of the event at the fork
/// point.
fn hash_before(db: &Connection, no: u64, seq: u64) -> Result<Hash, Failure> {
    let id: Bytes<16> = db
        .prepare_cached("SELECT id FROM conversation_rows WHERE no = ?")?
        .query_row([signed(no)], |row| row.get(0))?;
    let lineage = super::read::lineage(db, signed(no), ConversationId::from_bytes(id.0))?;
    if let Some(hash) = super::read::hash_at(db, &lineage, seq.saturating_sub(1))? {
        return Ok(hash);
    }
    let waiting = db
        .prepare_cached(
            "SELECT hash FROM events WHERE no > (SELECT event FROM settled) AND conversation = ? AND seq = ?",
        )?
        .query_row(params![signed(no), signed(seq.saturating_sub(1))], |row| row.get::<_, Bytes<32>>(0))
        .optional()?;
    // A gap in the chain appears as a wrong `prev`, which verification then reports.
    Ok(waiting.map_or(Hash([0; 32]), |hash| Hash(hash.0)))
}

fn end(row: &Row<'_>) -> rusqlite::Result<(u64, Hash)> {
    Ok((rows::unsigned(row, "seq")?, Hash(row.get::<_, Bytes<32>>("hash")?.0)))
}

/// Names the row in its error.
fn member(db: &Connection, row: &Row<'_>) -> rusqlite::Result<Member> {
    let no = row.get::<_, i64>("no")?;
    read_member(db, no, row)
        .map_err(|error| rows::malformed(&format!("the row of conversation number {no}"), &error))
}

fn read_member(db: &Connection, no: i64, row: &Row<'_>) -> rusqlite::Result<Member> {
    let tenant: String = row.get("tenant")?;
    // The tenant of a buried tombstone has a slash and a suffix.
    let tenant = tenant.split('/').next().unwrap_or_default();
    let id = ConversationId::from_bytes(row.get::<_, Bytes<16>>("id")?.0);
    let parent = match row.get_ref("parent")? {
        ValueRef::Null => None,
        // The row may be wrong where the log says otherwise.
        _ => match parents::proven(db, no)? {
            Some(proven) => proven.map(|(no, parent)| (no as u64, parent.at_seq)),
            None => Some((rows::unsigned(row, "parent")?, rows::unsigned(row, "parent_seq")?)),
        },
    };
    let deleted: Option<i64> = row.get("deleted")?;
    let deleted = deleted.map(|at| {
        Ok::<_, rusqlite::Error>(Tombstone {
            id,
            head: Head {
                seq: rows::unsigned(row, "head_seq")?,
                hash: Hash(row.get::<_, Bytes<32>>("hash")?.0),
            },
            deleted: Timestamp(at),
            reason: row.get::<_, Option<String>>("deleted_reason")?.unwrap_or_default(),
        })
    });
    Ok(Member {
        no: rows::unsigned(row, "no")?,
        key: Key { tenant: TenantName::new(tenant).map_err(|e| FromSqlError::Other(Box::new(e)))?, id },
        created: Timestamp(row.get("created")?),
        parent,
        through: rows::unsigned(row, "through")?,
        hash: match deleted {
            None => Some(Hash(row.get::<_, Bytes<32>>("hash")?.0)),
            Some(_) => None,
        },
        deleted: deleted.transpose()?,
    })
}
