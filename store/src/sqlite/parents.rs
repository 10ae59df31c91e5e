//! The parent of a conversation. The event that begins a fork names it, and the hash of that event proves it;
//! the row only repeats it.

use super::read::{self, Level, Lineage};
use super::rows::{self, Bytes, EVENT_COLUMNS};
use everturn_core::chain::{Hash, Head, body_hash, envelope_hash};
use everturn_core::conversation::{Parent, Settings};
use everturn_core::event::{Body, Event, kind};
use everturn_core::id::ConversationId;
use rusqlite::{Connection, OptionalExtension, Row, params};

/// The parent that a conversation's first event names; `Some(None)` for a conversation that is not a fork.
/// `None` if the event is erased, damaged or not found.
pub fn told(db: &Connection, no: i64) -> rusqlite::Result<Option<Option<Parent>>> {
    let first = db
        .prepare_cached(
            "SELECT e.seq, e.salt, e.body_hash, iif(e.kind = ?2, e.body, '') AS body FROM places p
             JOIN events e ON e.no = p.event AND e.conversation = p.conversation AND e.seq = p.seq
             WHERE p.conversation = ?1 ORDER BY p.seq LIMIT 1",
        )?
        .query_row(params![no, kind::FORKED], |row| Ok(read_told(row).ok().flatten()))
        .optional()?;
    Ok(first.flatten())
}

fn read_told(row: &Row<'_>) -> rusqlite::Result<Option<Option<Parent>>> {
    if rows::unsigned(row, "seq")? == 1 {
        return Ok(Some(None));
    }
    let body = Body { salt: row.get::<_, Bytes<16>>("salt")?.0, text: row.get("body")? };
    let sound = body_hash(&body).0 == row.get::<_, Bytes<32>>("body_hash")?.0;
    let settings = serde_json::from_str::<Settings>(&body.text).ok().filter(|_| sound);
    Ok(settings.and_then(|settings| settings.parent).map(Some))
}

/// The parent that a conversation's first event names and its hash proves, with its number in this file. `None` if nothing
/// is proven.
pub fn proven(db: &Connection, no: i64) -> rusqlite::Result<Option<Option<(i64, Parent)>>> {
    let Some(told) = told(db, no)? else { return Ok(None) };
    let id: Option<Bytes<16>> = db
        .prepare_cached("SELECT id FROM conversation_rows WHERE no = ?")?
        .query_row([no], |row| Ok(row.get(0).ok()))?;
    let Some(id) = id.map(|id| ConversationId::from_bytes(id.0)) else { return Ok(None) };
    let found = match told {
        None => None,
        Some(parent) => match find(db, no, parent.conversation)? {
            Some(found) => Some((found, parent)),
            None => return Ok(None),
        },
    };
    // Rows of ancestors may be wrong as well: an event of the parent itself needs none of them.
    let before: Vec<Hash> = match found {
        None => vec![Head::genesis(id).hash],
        Some((found, Parent { conversation, at_seq })) => {
            let alone = Level { no: found, id: conversation, floor: 0, cap: at_seq };
            let alone = Lineage { levels: vec![alone], recent: Vec::new() };
            let own = read::hash_at(db, &alone, at_seq);
            let inherited = read::ancestors(db, found, conversation)
                .and_then(|lineage| read::hash_at(db, &lineage, at_seq));
            [own, inherited].into_iter().flatten().flatten().collect()
        }
    };
    let first = db
        .prepare_cached(&format!(
            "SELECT {EVENT_COLUMNS} FROM places p
             JOIN events ON events.no = p.event AND events.conversation = p.conversation AND events.seq = p.seq
             WHERE p.conversation = ? ORDER BY p.seq LIMIT 1"
        ))?
        .query_row([no], |row| Ok(rows::event(row, id, Hash([0; 32])).ok()))
        .optional()?
        .flatten();
    let Some(first) = first.map(|event| Event { body: None, ..event }) else { return Ok(None) };
    let follows = |prev: Hash| envelope_hash(&Event { prev, ..first.clone() }) == first.hash;
    Ok(before.into_iter().any(follows).then_some(found))
}

/// Whether the log proves another parent than the one in the row.
pub fn is_wrong(db: &Connection, no: i64, named: Option<Parent>) -> rusqlite::Result<bool> {
    Ok(told(db, no)?.is_some_and(|told| told != named) && proven(db, no)?.is_some())
}

/// The parent's number: according to the first event, or else to the row.
pub fn number(db: &Connection, no: i64) -> rusqlite::Result<Option<i64>> {
    match told(db, no)? {
        Some(None) => Ok(None),
        Some(Some(parent)) => find(db, no, parent.conversation),
        None => db
            .prepare_cached(
                "SELECT iif(typeof(parent) = 'integer', parent, NULL) FROM conversation_rows WHERE no = ?",
            )?
            .query_row([no], |row| row.get(0)),
    }
}

/// The number of a conversation's parent, by its id: the one in the row, if it has this id, since another
/// conversation may have reused the id of a deleted one; else the tenant's.
fn find(db: &Connection, no: i64, parent: ConversationId) -> rusqlite::Result<Option<i64>> {
    db.prepare_cached(
        "SELECT p.no FROM conversation_rows c JOIN conversation_rows p ON p.no = c.parent AND p.id = ?2 WHERE c.no = ?1
         UNION ALL
         SELECT p.no FROM conversation_rows c JOIN conversation_rows p ON p.tenant = c.tenant AND p.id = ?2 WHERE c.no = ?1
         LIMIT 1",
    )?
    .query_row(params![no, Bytes(parent.to_bytes())], |row| row.get(0))
    .optional()
}
