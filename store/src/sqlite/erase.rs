//! Removing content from the file without leaving a copy in it.
//!
//! Content is overwritten in place. Setting a column to null or deleting a row would let SQLite rebalance its
//! pages, which leaves stale copies of *neighbouring* rows in unused space even with `secure_delete`: see
//! `docs/decisions/0002-erase-in-place.md`. After the commit the write-ahead log is emptied as well.

use super::read::{self, Lineage};
use super::rows::{Bytes, signed};
use everturn_core::conversation::Tombstone;
use everturn_core::echo::Words;
use everturn_core::event::Event;
use everturn_core::turn::TurnRow;
use everturn_core::write::{Deletion, Erasure, EventRef, Purge};
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::BTreeSet;
use std::io::Write;

/// Overwrites some columns of a row.
pub fn wipe(db: &Connection, table: &str, columns: &[&str], row: i64, with: u8) -> rusqlite::Result<()> {
    for column in columns {
        // A null has no bytes to overwrite.
        let present: bool = db
            .prepare_cached(&format!("SELECT {column} IS NOT NULL FROM {table} WHERE rowid = ?"))?
            .query_row([row], |r| r.get(0))?;
        if !present {
            continue;
        }
        let mut blob = db.blob_open("main", table, *column, row, false)?;
        let nothing = vec![with; blob.len()];
        blob.write_all(&nothing).map_err(|e| rusqlite::Error::ToSqlConversionFailure(Box::new(e)))?;
        blob.close()?;
    }
    Ok(())
}

fn wipe_body(db: &Connection, no: i64) -> rusqlite::Result<()> {
    wipe(db, "events", &["body"], no, b' ')?;
    wipe(db, "events", &["salt"], no, 0)
}

/// An event and its row.
pub struct StoredEvent {
    /// Its number in this file.
    no: i64,
    pub kind: String,
    pub has_body: bool,
}

/// Finds an event. A wrong entry in `places` must not lead to another event.
pub fn find(db: &Connection, at: EventRef) -> rusqlite::Result<Option<StoredEvent>> {
    db.prepare_cached(
        "SELECT e.no, e.kind, e.salt <> zeroblob(16) OR trim(e.body) <> '' FROM places p
         JOIN events e ON e.no = p.event AND e.conversation = p.conversation AND e.seq = p.seq
         WHERE p.conversation = ? AND p.seq = ?",
    )?
    .query_row(params![signed(at.conversation), signed(at.seq)], |row| {
        Ok(StoredEvent { no: row.get(0)?, kind: row.get(1)?, has_body: row.get(2)? })
    })
    .optional()
}

/// Applies an erasure.
pub fn erase(db: &Connection, erasure: &Erasure) -> rusqlite::Result<()> {
    let Erasure { bodies, assets, facts, references, folds, checkpoints, released: _ } = erasure;
    for at in bodies {
        if let Some(event) = find(db, *at)? {
            wipe_body(db, event.no)?;
        }
    }
    let tables = [
        ("assets", "seq", assets),
        ("fact_rows", "seq", facts),
        ("summaries", "seq", bodies),
        ("echoes", "seq", bodies),
        ("asset_references", "turn_seq", references),
    ];
    for (table, column, places) in tables {
        let mut delete =
            db.prepare_cached(&format!("DELETE FROM {table} WHERE conversation = ? AND {column} = ?"))?;
        for at in places {
            delete.execute(params![signed(at.conversation), signed(at.seq)])?;
        }
    }
    for at in folds {
        db.prepare_cached(&format!(
            "{FAMILY} DELETE FROM folds WHERE seq >= ?2 AND conversation IN (SELECT no FROM family)"
        ))?
        .execute(params![signed(at.conversation), signed(at.seq)])?;
    }
    for (no, checkpoint) in checkpoints {
        let json = checkpoint.map(|checkpoint| super::write::json(&checkpoint)).transpose()?;
        let through = checkpoint.map(|checkpoint| Bytes(checkpoint.through.to_bytes()));
        db.execute(
            "UPDATE conversation_rows SET checkpoint = ?, summarized_through = ? WHERE no = ?",
            params![json, through, signed(*no)],
        )?;
    }
    Ok(())
}

/// A conversation (?1) and all forks that see one of its events (?2). `UNION` also terminates if rows refer to
/// each other.
pub const FAMILY: &str = "WITH RECURSIVE family (no) AS
    (SELECT ?1 UNION SELECT c.no FROM conversation_rows c JOIN family f ON c.parent = f.no WHERE c.parent_seq >= ?2)";

/// An event of a conversation itself, not of an ancestor.
pub fn own_event(db: &Connection, no: i64, seq: u64) -> rusqlite::Result<Option<Event>> {
    let level = read::Level { no, id: read::id(db, no)?, floor: 0, cap: i64::MAX as u64 };
    read::event_at(db, &Lineage { levels: vec![level], recent: Vec::new() }, seq)
}

/// Events that repeat a turn without naming it, in its conversation and in forks that see it.
pub fn echoes(
    db: &Connection,
    lineage: &Lineage,
    row: &TurnRow,
    words: &Words,
) -> rusqlite::Result<Vec<Event>> {
    let Some(level) = lineage.owner(row.seq) else { return Ok(Vec::new()) };
    let mut places: BTreeSet<(i64, i64)> = BTreeSet::new();
    for bucket in words.buckets() {
        let found = db
            .prepare_cached(&format!(
                "{FAMILY} SELECT e.conversation, e.seq FROM family f JOIN echoes e ON e.conversation = f.no
                 WHERE e.bucket = ?3"
            ))?
            .query_map(params![level.no, signed(row.seq), bucket], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<Result<Vec<_>, _>>()?;
        places.extend(found);
    }
    let mut events = Vec::new();
    for (no, seq) in places {
        let event = own_event(db, no, seq as u64)?;
        events.extend(event.filter(|event| words.are_repeated_by(event)));
    }
    Ok(events)
}

/// Overwrites the chunks of a turn that has ended: its content is in an event now.
pub fn chunks(db: &Connection, conversation: i64, turn_seq: u64) -> rusqlite::Result<()> {
    let pieces: Vec<i64> = db
        .prepare_cached("SELECT no FROM chunks WHERE conversation = ? AND turn_seq = ?")?
        .query_map(params![conversation, signed(turn_seq)], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    if pieces.is_empty() {
        return Ok(());
    }
    for no in pieces {
        wipe(db, "chunks", &["text"], no, b' ')?;
    }
    let some_open: bool =
        db.query_row("SELECT EXISTS (SELECT 1 FROM turn_rows WHERE status = 'pending')", [], |row| {
            row.get(0)
        })?;
    if !some_open {
        // Without a condition SQLite drops whole pages, which moves no row.
        db.execute("DELETE FROM chunks", [])?;
    }
    Ok(())
}

/// Chunks of turns that are not open.
const STRAY: &str = "FROM main.chunks k WHERE typeof(k.text) IN ('text', 'blob') AND trim(k.text) <> '' AND NOT EXISTS
    (SELECT 1 FROM turn_rows t WHERE t.conversation = k.conversation AND t.seq = k.turn_seq AND t.status = 'pending')";

/// Number of stray chunks, by conversation.
pub fn stray_pieces(db: &Connection) -> rusqlite::Result<Vec<(i64, i64)>> {
    db.prepare(&format!("SELECT k.conversation, count(*) {STRAY} GROUP BY k.conversation"))?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
}

/// Overwrites stray chunks.
pub fn wipe_stray_pieces(db: &Connection) -> rusqlite::Result<()> {
    let pieces: Vec<i64> = db
        .prepare(&format!("SELECT k.no {STRAY}"))?
        .query_map([], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    pieces.into_iter().try_for_each(|no| wipe(db, "chunks", &["text"], no, b' '))
}

/// Applies a deletion.
pub fn delete(db: &Connection, no: i64, deletion: &Deletion) -> rusqlite::Result<()> {
    wipe(db, "conversation_rows", &["owner", "title", "participants", "metadata", "policy"], no, b' ')?;
    let Tombstone { head, deleted, reason, .. } = &deletion.tombstone;
    db.execute(
        "UPDATE conversation_rows SET deleted = ?, deleted_reason = ?, head_seq = ?, head_hash = ?, owner = NULL, title = NULL,
             participants = '[]', metadata = '{}', policy = '{}', expires = NULL WHERE no = ?",
        params![deleted.0, reason, signed(head.seq), Bytes(head.hash.0), no],
    )?;
    deletion.purges.iter().try_for_each(|purge| self::purge(db, *purge))
}

/// Removes everything of a conversation after a `seq`.
fn purge(db: &Connection, purge: Purge) -> rusqlite::Result<()> {
    let (no, keep) = (signed(purge.conversation), signed(purge.keep));
    let events: Vec<i64> = db
        .prepare_cached(
            // A wrong entry in `places` must not erase another conversation's event.
            "SELECT e.no FROM places p JOIN events e ON e.no = p.event AND e.conversation = p.conversation
             WHERE p.conversation = ? AND p.seq > ?",
        )?
        .query_map(params![no, keep], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    for event in events {
        wipe_body(db, event)?;
        wipe(db, "events", &["actor"], event, b' ')?;
    }
    let pieces: Vec<i64> = db
        .prepare_cached("SELECT no FROM chunks WHERE conversation = ?")?
        .query_map([no], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    for piece in pieces {
        wipe(db, "chunks", &["text"], piece, b' ')?;
    }
    db.execute("DELETE FROM places WHERE conversation = ? AND seq > ?", params![no, keep])?;
    db.execute("DELETE FROM turn_rows WHERE conversation = ? AND seq > ?", params![no, keep])?;
    db.execute("DELETE FROM assets WHERE conversation = ? AND seq > ?", params![no, keep])?;
    db.execute("DELETE FROM asset_references WHERE conversation = ? AND turn_seq > ?", params![no, keep])?;
    db.execute("DELETE FROM idempotency WHERE conversation = ?", [no])?;
    db.execute("DELETE FROM folds WHERE conversation = ? AND seq > ?", params![no, keep])?;
    db.execute("DELETE FROM fact_rows WHERE conversation = ? AND seq > ?", params![no, keep])?;
    db.execute("DELETE FROM summaries WHERE conversation = ? AND seq > ?", params![no, keep])?;
    db.execute("DELETE FROM echoes WHERE conversation = ? AND seq > ?", params![no, keep])?;
    Ok(())
}

/// Hides a tombstone from every tenant (no tenant's name has a slash), because its conversation is restored.
pub fn bury(db: &Connection, no: i64) -> rusqlite::Result<()> {
    db.execute("UPDATE conversation_rows SET tenant = tenant || '/' || no WHERE no = ?", [no]).map(drop)
}
