//! Taking words back out of the file, so that no copy is left in it.
//!
//! Content is overwritten in place. Setting a column to null or deleting a row would let SQLite rebalance its pages,
//! which leaves stale copies of *neighbouring* rows in unused space even with `secure_delete`: see
//! `docs/decisions/0002-erase-in-place.md`. After the commit the write-ahead log is emptied as well.

use super::read::{self, Lineage};
use super::recent::Nothing;
use super::rows::{self, Bytes, CONVERSATION_COLUMNS, Failure, signed};
use everturn_core::chain::{Hash, Head};
use everturn_core::conversation::Conversation;
use everturn_core::echo::Words;
use everturn_core::event::{Event, kind};
use everturn_core::id::{ConversationId, FactId, Tenant, TurnId};
use everturn_core::time::Timestamp;
use everturn_core::turn::TurnRow;
use everturn_core::write::{self, Changes, Learned, Place};
use rusqlite::types::FromSqlError;
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::{BTreeMap, BTreeSet};
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

/// One erasure on its way.
pub struct Erasure<'a> {
    db: &'a Connection,
    tenant: &'a Tenant,
    /// Bodies that went, by the number of the conversation.
    pub erased: Vec<(i64, u64)>,
    /// Hashes of bytes that nothing may refer to any more.
    pub released: Vec<Hash>,
    /// Conversations that lost a checkpoint.
    unsummarized: BTreeSet<i64>,
    /// Conversations whose folds are not what the log says any more, and from where on.
    refolded: BTreeMap<i64, u64>,
}

impl<'a> Erasure<'a> {
    pub fn new(db: &'a Connection, tenant: &'a Tenant) -> Erasure<'a> {
        Erasure {
            db,
            tenant,
            erased: Vec::new(),
            released: Vec::new(),
            unsummarized: BTreeSet::new(),
            refolded: BTreeMap::new(),
        }
    }

    /// Erases a turn with what was learned from it and the assets that only it showed, on request also what sums it up.
    pub fn turn(&mut self, lineage: &Lineage, row: &TurnRow, summaries: bool) -> rusqlite::Result<()> {
        for seq in [Some(row.seq), row.content_seq].into_iter().flatten() {
            if let Some(level) = lineage.owner(seq)
                && !self.body(level.no, seq)?
            {
                let error = FromSqlError::Other("no event has it".into()).into();
                return Err(rows::malformed(&format!("the place of seq {seq} of {}", level.id), &error));
            }
        }
        for Statement { conversation, seq, .. } in learned(self.db, self.tenant, row.id)? {
            self.body(conversation, seq)?;
        }
        // Only where it was said: another level may have a turn of its own at the same place.
        if let Some(level) = lineage.owner(row.seq) {
            self.unrefer(level.no, row.seq)?;
            if summaries {
                self.summaries(level.no, row.seq)?;
            }
        }
        Ok(())
    }

    /// Erases another event, with what follows from that.
    pub fn event(&mut self, place: Place) -> rusqlite::Result<()> {
        let no: Option<i64> = self
            .db
            .prepare_cached("SELECT no FROM conversations WHERE tenant = ? AND id = ?")?
            .query_row(params![self.tenant.as_str(), Bytes(place.conversation.to_bytes())], |row| row.get(0))
            .optional()?;
        let Some(no) = no else { return Ok(()) };
        let reach: Option<i64> = self
            .db
            .prepare_cached(
                "SELECT through_seq FROM summaries WHERE conversation = ? AND seq = ? AND through_seq > 0",
            )?
            .query_row(params![no, signed(place.seq)], |row| row.get(0))
            .optional()?;
        let told: Option<Bytes<16>> = self
            .db
            .prepare_cached("SELECT id FROM conversation_facts WHERE conversation = ? AND seq = ?")?
            .query_row(params![no, signed(place.seq)], |row| row.get(0))
            .optional()?;
        self.body(no, place.seq)?;
        if let Some(reach) = reach {
            // Later checkpoints roll on from this one.
            self.summaries(no, reach as u64)?;
        }
        if let Some(fact) = told {
            for Statement { conversation, seq, .. } in
                corrections(self.db, self.tenant, vec![FactId::from_bytes(fact.0)], Vec::new())?
            {
                self.body(conversation, seq)?;
            }
        }
        Ok(())
    }

    /// Erases whatever sums up the turn at a place, in the conversation and in all forks that see it.
    fn summaries(&mut self, conversation: i64, seq: u64) -> rusqlite::Result<()> {
        let found: Vec<(i64, i64)> = self
            .db
            .prepare_cached(&format!(
                "{FAMILY} SELECT s.conversation, s.seq FROM family f JOIN summaries s ON s.conversation = f.no
                 WHERE s.through_seq >= ?2"
            ))?
            .query_map(params![conversation, signed(seq)], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<Result<_, _>>()?;
        found.into_iter().try_for_each(|(conversation, seq)| self.body(conversation, seq as u64).map(drop))
    }

    /// Erases one body, unless it is erased already, and the rows that followed from it. Says whether there is such an
    /// event.
    fn body(&mut self, conversation: i64, seq: u64) -> rusqlite::Result<bool> {
        let at = params![conversation, signed(seq)];
        let found: Option<(i64, String, bool)> = self
            .db
            .prepare_cached(
                // A wrong place must not erase another event.
                "SELECT e.no, e.kind, e.salt <> zeroblob(16) OR trim(e.body) <> '' FROM places p
                 JOIN events e ON e.no = p.event AND e.conversation = p.conversation AND e.seq = p.seq
                 WHERE p.conversation = ? AND p.seq = ?",
            )?
            .query_row(at, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
            .optional()?;
        let Some((event, kind, has_words)) = found else { return Ok(false) };
        if !has_words {
            return Ok(true);
        }
        wipe_body(self.db, event)?;
        self.erased.push((conversation, seq));
        let in_folds = !kind::is_of_turn(&kind) && kind != kind::IMPORT_LINE;
        if in_folds {
            let from = self.refolded.entry(conversation).or_insert(seq);
            *from = seq.min(*from);
        }
        match kind.as_str() {
            kind::COMPACTION => drop(self.unsummarized.insert(conversation)),
            kind::ASSET_ADDED => {
                let bytes: Option<Option<Bytes<32>>> = self
                    .db
                    .prepare_cached("DELETE FROM assets WHERE conversation = ? AND seq = ? RETURNING sha256")?
                    .query_row(at, |row| row.get(0))
                    .optional()?;
                self.released.extend(bytes.flatten().map(|hash| Hash(hash.0)));
            }
            kind if kind::is_fact(kind) => {
                self.db
                    .prepare_cached("DELETE FROM conversation_facts WHERE conversation = ? AND seq = ?")?
                    .execute(at)?;
            }
            _ => {}
        }
        for table in ["summaries", "echoes"] {
            self.db
                .prepare_cached(&format!("DELETE FROM {table} WHERE conversation = ? AND seq = ?"))?
                .execute(at)?;
        }
        Ok(true)
    }

    /// A turn no longer shows its assets; those that no other turn shows go.
    fn unrefer(&mut self, conversation: i64, turn_seq: u64) -> rusqlite::Result<()> {
        let shown: Vec<String> = self
            .db
            .prepare_cached("SELECT asset FROM asset_references WHERE conversation = ? AND turn_seq = ?")?
            .query_map(params![conversation, signed(turn_seq)], |row| row.get(0))?
            .collect::<Result<_, _>>()?;
        for asset in shown {
            self.db.execute(
                "DELETE FROM asset_references WHERE conversation = ? AND turn_seq = ? AND asset = ?",
                params![conversation, signed(turn_seq), asset],
            )?;
            let added: Option<i64> = self
                .db
                .query_row(
                    // A fork may show what its parent brought in.
                    "WITH RECURSIVE family (no) AS
                         (SELECT ?1 UNION SELECT c.no FROM conversations c JOIN family f ON c.parent = f.no)
                     SELECT a.seq FROM assets a WHERE a.conversation = ?1 AND a.id = ?2 AND NOT EXISTS
                         (SELECT 1 FROM asset_references r JOIN family f ON r.conversation = f.no WHERE r.asset = ?2)",
                    params![conversation, asset],
                    |row| row.get(0),
                )
                .optional()?;
            if let Some(seq) = added {
                self.body(conversation, seq as u64)?;
            }
        }
        Ok(())
    }

    /// Puts the checkpoint in force that the remaining events say, and drops folds that knew another one.
    pub fn finish(&self) -> Result<(), Failure> {
        for (conversation, seq) in &self.refolded {
            self.db
                .prepare_cached(&format!(
                    "{FAMILY} DELETE FROM folds WHERE seq >= ?2 AND conversation IN (SELECT no FROM family)"
                ))?
                .execute(params![conversation, signed(*seq)])?;
        }
        for no in &self.unsummarized {
            let known = self
                .db
                .prepare_cached(&format!(
                    "SELECT {CONVERSATION_COLUMNS} FROM conversations c WHERE c.no = ?"
                ))?
                .query_row([no], |row| Ok(rows::conversation(row)?.1))?;
            let mut fresh = Conversation::new(known.id, known.tenant, known.created, Head::genesis(known.id));
            let places: Vec<u64> = self
                .db
                .prepare_cached("SELECT seq FROM summaries WHERE conversation = ? ORDER BY seq")?
                .query_map([no], |row| rows::unsigned(row, "seq"))?
                .collect::<Result<_, _>>()?;
            for seq in places {
                if let Some(event) = own_event(self.db, *no, known.id, seq)? {
                    write::fold(&mut fresh, &event, &mut Changes::default(), &Nothing)?;
                }
            }
            let checkpoint =
                fresh.checkpoint.map(|checkpoint| super::write::json(&checkpoint)).transpose()?;
            self.db.execute(
                "UPDATE conversations SET checkpoint = ?, summarized_through = ? WHERE no = ?",
                params![checkpoint, fresh.summarized_through.map(|turn| Bytes(turn.to_bytes())), no],
            )?;
        }
        Ok(())
    }
}

/// A conversation (?1) and all forks that see one of its places (?2). `UNION` ends also where rows name each other.
const FAMILY: &str = "WITH RECURSIVE family (no) AS
    (SELECT ?1 UNION SELECT c.no FROM conversations c JOIN family f ON c.parent = f.no WHERE c.parent_seq >= ?2)";

fn own_event(db: &Connection, no: i64, id: ConversationId, seq: u64) -> rusqlite::Result<Option<Event>> {
    let level = read::Level { no, id, floor: 0, cap: i64::MAX as u64 };
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
        let id: Bytes<16> = db
            .prepare_cached("SELECT id FROM conversations WHERE no = ?")?
            .query_row([no], |row| row.get(0))?;
        let event = own_event(db, no, ConversationId::from_bytes(id.0), seq as u64)?;
        events.extend(event.filter(|event| words.are_repeated_by(event)));
    }
    Ok(events)
}

/// A statement about a fact.
pub struct Statement {
    conversation: i64,
    id: ConversationId,
    seq: u64,
    fact: FactId,
}

impl Statement {
    pub fn told(&self) -> Learned {
        Learned { conversation: self.id, fact: self.fact }
    }
}

/// What was learned from a turn, in whatever conversation of the tenant (a fork may have read what it inherited), and
/// corrections of facts that then have no source left.
pub fn learned(db: &Connection, tenant: &Tenant, turn: TurnId) -> rusqlite::Result<Vec<Statement>> {
    let learned = statements(db, tenant, "f.source_turn = ?", turn.to_bytes())?;
    let facts = learned.iter().map(|statement| statement.fact).collect();
    corrections(db, tenant, facts, learned)
}

/// Adds corrections and retractions of facts to the statements that are to go, if no other statement of the fact is left.
fn corrections(
    db: &Connection,
    tenant: &Tenant,
    mut facts: Vec<FactId>,
    mut gone: Vec<Statement>,
) -> rusqlite::Result<Vec<Statement>> {
    while let Some(fact) = facts.pop() {
        let going =
            |one: &Statement| gone.iter().any(|g| (g.conversation, g.seq) == (one.conversation, one.seq));
        let stated = statements(db, tenant, "f.id = ? AND f.corrects IS NOT f.id", fact.to_bytes())?;
        if stated.iter().any(|one| !going(one)) {
            continue;
        }
        let mut corrected = statements(db, tenant, "f.corrects = ?", fact.to_bytes())?;
        corrected.retain(|one| !going(one));
        facts.extend(corrected.iter().map(|one| one.fact).filter(|id| *id != fact));
        gone.append(&mut corrected);
    }
    Ok(gone)
}

fn statements(
    db: &Connection,
    tenant: &Tenant,
    which: &str,
    id: [u8; 16],
) -> rusqlite::Result<Vec<Statement>> {
    db.prepare_cached(&format!(
        "SELECT f.conversation, c.id, f.seq, f.id AS fact FROM conversation_facts f JOIN conversations c ON c.no = f.conversation
         WHERE {which} AND c.tenant = ? ORDER BY f.conversation, f.seq"
    ))?
    .query_map(params![Bytes(id), tenant.as_str()], |row| {
        Ok(Statement {
            conversation: row.get(0)?,
            id: ConversationId::from_bytes(row.get::<_, Bytes<16>>(1)?.0),
            seq: rows::unsigned(row, "seq")?,
            fact: FactId::from_bytes(row.get::<_, Bytes<16>>("fact")?.0),
        })
    })?
    .collect()
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

/// Pieces of text of turns that are not open.
const STRAY: &str = "FROM main.chunks k WHERE typeof(k.text) IN ('text', 'blob') AND trim(k.text) <> '' AND NOT EXISTS
    (SELECT 1 FROM turns t WHERE t.conversation = k.conversation AND t.seq = k.turn_seq AND t.status = 'pending')";

/// Number of stray pieces, by conversation.
pub fn stray_pieces(db: &Connection) -> rusqlite::Result<Vec<(i64, i64)>> {
    db.prepare(&format!("SELECT k.conversation, count(*) {STRAY} GROUP BY k.conversation"))?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
}

/// Overwrites stray pieces.
pub fn wipe_stray_pieces(db: &Connection) -> rusqlite::Result<()> {
    let pieces: Vec<i64> = db
        .prepare(&format!("SELECT k.no {STRAY}"))?
        .query_map([], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    pieces.into_iter().try_for_each(|no| wipe(db, "chunks", &["text"], no, b' '))
}

/// Deletes a conversation. What living forks inherited from it stays until the last of them is gone. Gives the hashes
/// of bytes that may be unused now.
pub fn delete(
    db: &Connection,
    lineage: &Lineage,
    at: Timestamp,
    reason: &str,
) -> rusqlite::Result<Vec<Hash>> {
    let no = lineage.levels[0].no;
    wipe(db, "conversations", &["owner", "title", "participants", "metadata", "policy"], no, b' ')?;
    db.execute(
        "UPDATE conversations SET deleted = ?, deleted_reason = ?, owner = NULL, title = NULL, participants = '[]', metadata = '{}',
             policy = '{}', expires = NULL WHERE no = ?",
        params![at.0, reason, no],
    )?;
    let mut released = Vec::new();
    for level in &lineage.levels {
        let deleted = db
            .prepare_cached("SELECT 1 FROM conversations WHERE no = ? AND deleted IS NOT NULL")?
            .exists([level.no])?;
        // A deleted parent may have been kept only for this fork.
        if !deleted {
            break;
        }
        released.extend(purge(db, level.no, needed(db, level.no)?)?);
    }
    Ok(released)
}

/// How far living forks still read in a conversation; 0 if none does. A deleted fork needs only what its own forks read
/// through it. Where a row does not say how far, all is needed.
pub fn needed(db: &Connection, no: i64) -> rusqlite::Result<u64> {
    let through: i64 = db
        .prepare_cached(
            "WITH RECURSIVE fork (no, parent, reach, living) AS NOT MATERIALIZED (
                 SELECT no, parent, iif(typeof(parent_seq) = 'integer' AND parent_seq >= 0, parent_seq, ?2), deleted IS NULL
                 FROM conversations WHERE parent IS NOT NULL),
             reader (no, reach, living) AS (
                 SELECT no, reach, living FROM fork WHERE parent = ?1
                 UNION SELECT f.no, min(f.reach, r.reach), f.living FROM fork f JOIN reader r ON f.parent = r.no
                 WHERE NOT r.living)
             SELECT ifnull(max(reach), 0) FROM reader WHERE living",
        )?
        .query_row([no, i64::MAX], |row| row.get(0))?;
    Ok(through as u64)
}

/// Removes everything of a conversation after a place.
fn purge(db: &Connection, no: i64, keep: u64) -> rusqlite::Result<Vec<Hash>> {
    let keep = signed(keep);
    let events: Vec<i64> = db
        .prepare_cached(
            // A wrong place must not erase another conversation's event.
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
    db.execute("DELETE FROM conversation_facts WHERE conversation = ? AND seq > ?", params![no, keep])?;
    db.execute("DELETE FROM summaries WHERE conversation = ? AND seq > ?", params![no, keep])?;
    db.execute("DELETE FROM echoes WHERE conversation = ? AND seq > ?", params![no, keep])?;
    Ok(released)
}

/// Moves a tombstone out of every tenant's sight (no tenant's name has a slash), because its conversation comes back.
pub fn bury(db: &Connection, no: i64) -> rusqlite::Result<()> {
    db.execute("UPDATE conversations SET tenant = tenant || '/' || no WHERE no = ?", [no]).map(drop)
}
