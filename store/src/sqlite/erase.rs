//! Taking words back out of the file, so that no copy is left in it.
//!
//! Content is overwritten in place. Setting a column to null or deleting a row would let SQLite rebalance its pages,
//! which leaves stale copies of *neighbouring* rows in unused space even with `secure_delete`: see
//! `docs/decisions/0002-erase-in-place.md`. After the commit the write-ahead log is emptied as well.

use super::read::Lineage;
use super::rows::{Bytes, signed};
use everturn_core::chain::Hash;
use everturn_core::time::Timestamp;
use everturn_core::turn::TurnRow;
use rusqlite::{Connection, OptionalExtension, params};
use std::io::Write;

/// Overwrites some columns of a row.
fn wipe(db: &Connection, table: &str, columns: &[&str], row: i64, with: u8) -> rusqlite::Result<()> {
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

/// Erases the bodies of events.
pub fn bodies(db: &Connection, lineage: &Lineage, places: &[u64]) -> rusqlite::Result<()> {
    for seq in places {
        let Some(level) = lineage.owner(*seq) else { continue };
        let no: Option<i64> = db
            .query_row(
                "SELECT event FROM places WHERE conversation = ? AND seq = ?",
                params![level.no, signed(*seq)],
                |r| r.get(0),
            )
            .optional()?;
        if let Some(no) = no {
            wipe_body(db, no)?;
        }
    }
    Ok(())
}

/// Erases the content of turns, and the assets that only they showed. Gives the hashes of bytes that nothing refers
/// to any more.
pub fn turns(db: &Connection, lineage: &Lineage, rows: &[TurnRow]) -> rusqlite::Result<Vec<Hash>> {
    let mut released = Vec::new();
    for row in rows {
        let content: Vec<u64> = [Some(row.seq), row.content_seq].into_iter().flatten().collect();
        bodies(db, lineage, &content)?;
        // Only where it was said: another level may have a turn of its own at the same place.
        if let Some(level) = lineage.owner(row.seq) {
            released.extend(unrefer(db, level.no, row.seq)?);
        }
    }
    Ok(released)
}

/// A turn no longer shows its assets; those that no other turn shows go.
fn unrefer(db: &Connection, conversation: i64, turn_seq: u64) -> rusqlite::Result<Vec<Hash>> {
    let shown: Vec<String> = db
        .prepare_cached("SELECT asset FROM asset_references WHERE conversation = ? AND turn_seq = ?")?
        .query_map(params![conversation, signed(turn_seq)], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    let mut released = Vec::new();
    for asset in shown {
        db.execute(
            "DELETE FROM asset_references WHERE conversation = ? AND turn_seq = ? AND asset = ?",
            params![conversation, signed(turn_seq), asset],
        )?;
        let still_shown: bool = db.query_row(
            // A fork may show what its parent brought in.
            "WITH RECURSIVE family (no) AS
                 (SELECT ?1 UNION ALL SELECT c.no FROM conversations c JOIN family f ON c.parent = f.no)
             SELECT EXISTS (SELECT 1 FROM asset_references r JOIN family f ON r.conversation = f.no WHERE r.asset = ?2)",
            params![conversation, asset],
            |row| row.get(0),
        )?;
        let added: Option<(i64, Option<Bytes<32>>)> = db
            .query_row(
                "SELECT p.event, a.sha256 FROM assets a JOIN places p ON p.conversation = a.conversation AND p.seq = a.seq
                 WHERE a.conversation = ? AND a.id = ?",
                params![conversation, asset],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .optional()?;
        if let Some((event, sha256)) = added.filter(|_| !still_shown) {
            wipe_body(db, event)?;
            db.execute("DELETE FROM assets WHERE conversation = ? AND id = ?", params![conversation, asset])?;
            released.extend(sha256.map(|hash| Hash(hash.0)));
        }
    }
    Ok(released)
}

/// Overwrites the pieces of a turn that has ended: its content is in an event now.
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
        db.query_row("SELECT EXISTS (SELECT 1 FROM turns WHERE status = 'pending')", [], |row| row.get(0))?;
    if !some_open {
        // Without a condition SQLite drops whole pages, which moves no row.
        db.execute("DELETE FROM chunks", [])?;
    }
    Ok(())
}

/// Deletes a conversation. What living forks inherited from it stays until the last of them is gone. Gives the hashes
/// of bytes that may be unused now.
pub fn delete(db: &Connection, no: i64, at: Timestamp, reason: &str) -> rusqlite::Result<Vec<Hash>> {
    wipe(db, "conversations", &["owner", "title", "participants", "metadata", "policy"], no, b' ')?;
    db.execute(
        "UPDATE conversations SET deleted = ?, deleted_reason = ?, owner = NULL, title = NULL, participants = '[]', metadata = '{}',
             policy = '{}', expires = NULL WHERE no = ?",
        params![at.0, reason, no],
    )?;
    let mut released = Vec::new();
    let mut next = Some(no);
    // A deleted parent may have been kept only for this fork.
    while let Some(no) = next {
        released.extend(purge(db, no, needed(db, no)?)?);
        next = db
            .query_row(
                "SELECT p.no FROM conversations c JOIN conversations p ON p.no = c.parent WHERE c.no = ? AND p.deleted IS NOT NULL",
                [no],
                |row| row.get(0),
            )
            .optional()?;
    }
    Ok(released)
}

/// How far living forks still read in a conversation; 0 if none does.
pub fn needed(db: &Connection, no: i64) -> rusqlite::Result<u64> {
    let forks: Vec<(i64, i64, bool)> = db
        .prepare_cached("SELECT no, parent_seq, deleted IS NOT NULL FROM conversations WHERE parent = ?")?
        .query_map([no], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
        .collect::<Result<_, _>>()?;
    let mut through = 0;
    for (fork, seq, deleted) in forks {
        // A deleted fork needs only what its own forks read through it.
        let read = if deleted { needed(db, fork)? } else { u64::MAX };
        through = through.max(read.min(seq as u64));
    }
    Ok(through)
}

/// Removes everything of a conversation after a place.
fn purge(db: &Connection, no: i64, keep: u64) -> rusqlite::Result<Vec<Hash>> {
    let keep = signed(keep);
    let events: Vec<i64> = db
        .prepare_cached("SELECT event FROM places WHERE conversation = ? AND seq > ?")?
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
    let released: Vec<Hash> = db
        .prepare_cached(
            "SELECT sha256 FROM assets WHERE conversation = ? AND seq > ? AND sha256 IS NOT NULL",
        )?
        .query_map(params![no, keep], |row| Ok(Hash(row.get::<_, Bytes<32>>(0)?.0)))?
        .collect::<Result<_, _>>()?;
    db.execute("DELETE FROM places WHERE conversation = ? AND seq > ?", params![no, keep])?;
    db.execute("DELETE FROM turns WHERE conversation = ? AND seq > ?", params![no, keep])?;
    db.execute("DELETE FROM assets WHERE conversation = ? AND seq > ?", params![no, keep])?;
    db.execute("DELETE FROM asset_references WHERE conversation = ? AND turn_seq > ?", params![no, keep])?;
    db.execute("DELETE FROM idempotency WHERE conversation = ?", [no])?;
    db.execute("DELETE FROM folds WHERE conversation = ? AND seq > ?", params![no, keep])?;
    db.execute("DELETE FROM conversation_facts WHERE conversation = ?", [no])?;
    Ok(released)
}

/// Moves a tombstone out of every tenant's sight (no tenant's name has a slash), because its conversation comes back.
pub fn bury(db: &Connection, no: i64) -> rusqlite::Result<()> {
    db.execute("UPDATE conversations SET tenant = tenant || '/' || no WHERE no = ?", [no]).map(drop)
}
