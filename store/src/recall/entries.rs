//! Adding entries to a tenant's index and removing them.

use super::feed::Summary;
use super::propose::COUNTED_ENTRIES_MAX;
use super::{kind_number, sign_bits, vectors};
use crate::IndexChange;
use crate::sqlite::rows::{Bytes, signed};
use everturn_core::id::{ConversationId, EventId};
use everturn_core::write::EventAddress;
use everturn_views::recall::{EntryId, IndexEntry, terms};
use rusqlite::{Connection, OptionalExtension, params};

/// With fewer entries, counting is fast.
const COUNTED_MIN: i64 = 2 * COUNTED_ENTRIES_MAX as i64;
/// Number of removals after which common words are counted again.
const GONE_MAX: i64 = 1_000;

/// Whether an entry exists already.
const FIND: &str = "SELECT no FROM entries WHERE id = ? AND conversation = ? AND kind = ?";
/// The same among entries that are not for everyone.
const FIND_PRIVATE: &str = "SELECT no FROM private_entries WHERE id = ? AND conversation = ? AND kind = ?";
/// The same by the id of the conversation.
const FIND_IN: &str = "SELECT e.no FROM conversations c CROSS JOIN entries e ON e.conversation = c.no
    WHERE c.id = ? AND e.id = ? AND e.kind = ?";
const FIND_PRIVATE_IN: &str =
    "SELECT -e.no FROM conversations c CROSS JOIN private_entries e ON e.conversation = c.no
    WHERE c.id = ? AND e.id = ? AND e.kind = ?";

/// A change, and for a removal the conversations that the entry may be in.
pub type Change = (IndexChange, Vec<ConversationId>);

/// The last indexed event: its number and id.
pub fn position(db: &Connection) -> rusqlite::Result<(u64, Option<EventId>)> {
    db.prepare_cached("SELECT event, anchor FROM position")?.query_row([], |row| {
        let anchor: Option<Bytes<16>> = row.get(1)?;
        Ok((row.get::<_, i64>(0)? as u64, anchor.map(|bytes| EventId::from_bytes(bytes.0))))
    })
}

/// Applies changes, up to an event.
pub fn take_in(
    db: &Connection,
    changes: &[Change],
    through: u64,
    anchor: Option<EventId>,
) -> rusqlite::Result<()> {
    for (change, places) in changes {
        match change {
            IndexChange::Put(entry) => put(db, entry)?,
            IndexChange::Fell { key, id, seq } => {
                for no in with_id(db, &[key.id], *id)? {
                    let sql = match no < 0 {
                        true => "UPDATE private_entries SET fallen = ? WHERE no = ?",
                        false => "UPDATE entries SET fallen = ? WHERE no = ?",
                    };
                    db.prepare_cached(sql)?.execute(params![signed(*seq), no.abs()])?;
                }
            }
            IndexChange::Remove { id, .. } => {
                with_id(db, places, *id)?.into_iter().try_for_each(|no| remove(db, no))?;
            }
            IndexChange::RemoveAt { at, .. } => {
                of_event(db, at)?.into_iter().try_for_each(|no| remove(db, no))?;
            }
        }
    }
    sign_bits::gather(db)?;
    count_common(db)?;
    let anchor = anchor.map(|id| Bytes(id.to_bytes()));
    db.prepare_cached("UPDATE position SET event = ?, anchor = ?")?
        .execute(params![signed(through), anchor])
        .map(drop)
}

fn put(db: &Connection, entry: &IndexEntry) -> rusqlite::Result<()> {
    let conversation = Bytes(entry.conversation.to_bytes());
    db.prepare_cached("INSERT OR IGNORE INTO conversations (id) VALUES (?)")?.execute([&conversation])?;
    let conversation: i64 = db
        .prepare_cached("SELECT no FROM conversations WHERE id = ?")?
        .query_row([&conversation], |row| row.get(0))?;
    let kind = kind_number(entry.id.kind());
    let private = entry.audience.is_some();
    let old: Option<i64> = db
        .prepare_cached(if private { FIND_PRIVATE } else { FIND })?
        .query_row(params![Bytes(entry.id.to_bytes()), conversation, kind], |row| row.get(0))
        .optional()?;
    if let Some(no) = old {
        remove(db, if private { -no } else { no })?;
    }
    let actor = entry.actor.as_ref().map(|actor| actor_number(db, actor)).transpose()?;
    let role = entry.index_role();
    let terms = terms(&entry.text);
    let words = signed(terms.words.len() as u64);
    db.prepare_cached(match private {
        true => {
            "INSERT INTO private_entries (conversation, seq, kind, id, role, actor, at, fallen, length)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?10)"
        }
        false => {
            "INSERT INTO entries (conversation, seq, kind, id, role, actor, at, fallen, prose, length)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)"
        }
    })?
    .execute(params![
        conversation,
        signed(entry.seq),
        kind,
        Bytes(entry.id.to_bytes()),
        role,
        actor,
        entry.at.0,
        entry.fallen.map(signed),
        entry.prose,
        words
    ])?;
    let no = db.last_insert_rowid();
    match &entry.audience {
        Some(audience) => {
            for actor in audience {
                let actor = actor_number(db, actor)?;
                db.prepare_cached("INSERT OR IGNORE INTO audience VALUES (?, ?)")?.execute([no, actor])?;
            }
        }
        None => {
            db.prepare_cached("UPDATE position SET entries = entries + 1, words = words + ?")?
                .execute([words])?;
            vectors::added(db, no, entry.vector.as_ref())?;
        }
    }
    let mut scope = format!("c{conversation} k{kind}");
    if let Some(actor) = actor {
        scope.push_str(&format!(" a{actor}"));
    }
    if let Some(role) = role {
        scope.push_str(&format!(" r{role}"));
    }
    let table = if private { "private_words" } else { "words" };
    db.prepare_cached(&format!(
        "INSERT INTO {table} (rowid, scope, names, text, stems) VALUES (?, ?, ?, ?, ?)"
    ))?
    .execute(params![no, scope, terms.names_text(), terms.words_text(), terms.stems_text()])
    .map(drop)
}

/// Removes an entry; one that is not for everyone has a negative number.
fn remove(db: &Connection, no: i64) -> rusqlite::Result<()> {
    if no < 0 {
        for sql in [
            "DELETE FROM private_words WHERE rowid = ?",
            "DELETE FROM audience WHERE entry = ?",
            "DELETE FROM private_entries WHERE no = ?",
        ] {
            db.prepare_cached(sql)?.execute([-no])?;
        }
        return db.prepare_cached("UPDATE position SET removed = 1")?.execute([]).map(drop);
    }
    db.prepare_cached("DELETE FROM words WHERE rowid = ?")?.execute([no])?;
    db.prepare_cached(
        "UPDATE position SET removed = 1, entries = entries - 1, gone = gone + 1,
             words = words - (SELECT length FROM entries WHERE no = ?)",
    )?
    .execute([no])?;
    db.prepare_cached("DELETE FROM entries WHERE no = ?")?.execute([no])?;
    vectors::remove(db, no)
}

/// The entries with an id in any of these conversations.
fn with_id(db: &Connection, conversations: &[ConversationId], id: EntryId) -> rusqlite::Result<Vec<i64>> {
    let mut found = Vec::new();
    for sql in [FIND_IN, FIND_PRIVATE_IN] {
        let mut statement = db.prepare_cached(sql)?;
        for conversation in conversations {
            let parameters =
                params![Bytes(conversation.to_bytes()), Bytes(id.to_bytes()), kind_number(id.kind())];
            found.extend(statement.query_row(parameters, |row| row.get::<_, i64>(0)).optional()?);
        }
    }
    Ok(found)
}

/// The entries of an event.
fn of_event(db: &Connection, at: &EventAddress) -> rusqlite::Result<Vec<i64>> {
    let sql = "SELECT e.no FROM entries e JOIN conversations c ON c.no = e.conversation WHERE c.id = ?1 AND e.seq = ?2
        UNION ALL SELECT -e.no FROM private_entries e JOIN conversations c ON c.no = e.conversation
            WHERE c.id = ?1 AND e.seq = ?2";
    let parameters = params![Bytes(at.conversation.to_bytes()), signed(at.seq)];
    db.prepare_cached(sql)?.query_map(parameters, |row| row.get(0))?.collect()
}

fn actor_number(db: &Connection, name: &str) -> rusqlite::Result<i64> {
    let known = db
        .prepare_cached("SELECT no FROM actors WHERE name = ?")?
        .query_row([name], |row| row.get(0))
        .optional()?;
    match known {
        Some(no) => Ok(no),
        None => {
            db.prepare_cached("INSERT INTO actors (name) VALUES (?)")?.execute([name])?;
            Ok(db.last_insert_rowid())
        }
    }
}

/// Conversations that have entries.
pub fn conversations(db: &Connection) -> rusqlite::Result<Vec<(i64, ConversationId)>> {
    db.prepare("SELECT no, id FROM conversations")?
        .query_map([], |row| Ok((row.get(0)?, ConversationId::from_bytes(row.get::<_, Bytes<16>>(1)?.0))))?
        .collect()
}

/// Whether there is something to [`cut`].
pub fn reaches(db: &Connection, conversation: i64, through: u64) -> rusqlite::Result<bool> {
    let sql = "SELECT 1 FROM entries WHERE conversation = ?1 AND seq > ?2
        UNION ALL SELECT 1 FROM private_entries WHERE conversation = ?1 AND seq > ?2";
    Ok(through == 0 || db.prepare_cached(sql)?.exists(params![conversation, signed(through)])?)
}

/// Removes the entries of a conversation after a `seq`.
pub fn cut(db: &Connection, conversation: i64, through: u64) -> rusqlite::Result<()> {
    let gone: Vec<i64> = db
        .prepare_cached(
            "SELECT no FROM entries WHERE conversation = ?1 AND seq > ?2
             UNION ALL SELECT -no FROM private_entries WHERE conversation = ?1 AND seq > ?2",
        )?
        .query_map(params![conversation, signed(through)], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    gone.into_iter().try_for_each(|no| remove(db, no))?;
    if through == 0 {
        db.prepare_cached("DELETE FROM conversations WHERE no = ?")?.execute([conversation])?;
    }
    Ok(())
}

/// Number of entries and of their words.
pub fn size(db: &Connection) -> rusqlite::Result<(u64, u64)> {
    db.prepare_cached("SELECT entries, words FROM position")?
        .query_row([], |row| Ok((row.get::<_, i64>(0)? as u64, row.get::<_, i64>(1)? as u64)))
}

/// Counts the entries of very common words, which visits all words. Repeated once there are twice as many
/// entries as the last time, or enough were removed to matter. In between, counts are slightly off, which
/// matters little for words so common.
fn count_common(db: &Connection) -> rusqlite::Result<()> {
    let (entries, counted, gone): (i64, i64, i64) = db
        .prepare_cached("SELECT entries, counted, gone FROM position")?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let is_off = counted > 0 && gone >= GONE_MAX;
    if is_off {
        db.execute("DELETE FROM common", [])?;
        db.execute("UPDATE position SET counted = 0, gone = 0", [])?;
    }
    if entries >= COUNTED_MIN && (is_off || entries >= counted.saturating_mul(2)) {
        db.execute("DELETE FROM common", [])?;
        db.execute(
            "INSERT INTO common (word, entries) SELECT term, doc FROM temp.vocabulary WHERE doc > ?",
            [signed(COUNTED_ENTRIES_MAX)],
        )?;
        db.execute("UPDATE position SET counted = entries, gone = 0", [])?;
    }
    Ok(())
}

/// The value of `removed` once the full-text index is merged, until the file is written anew. A removal in between sets
/// it to 1 again, as its text would stay.
const MERGED: i64 = 2;

/// Whether the file still contains removed text.
pub fn has_removed(db: &Connection) -> rusqlite::Result<bool> {
    db.prepare_cached("SELECT removed FROM position")?.query_row([], |row| row.get(0))
}

/// The summary for the feed.
pub fn summary(db: &Connection) -> rusqlite::Result<Summary> {
    let (entries, _) = size(db)?;
    let models = db
        .prepare_cached(
            "SELECT name, waiting, EXISTS (SELECT 1 FROM codes WHERE model = models.no) FROM models",
        )?
        .query_map([], |row| Ok((row.get(0)?, row.get::<_, i64>(1)? as u64, row.get(2)?)))?
        .collect::<Result<_, _>>()?;
    Ok(Summary { entries, removed: has_removed(db)?, models })
}

/// Merges the full-text index into one segment: until then FTS5 keeps removed text and only filters it from
/// results.
pub fn merge(db: &Connection) -> rusqlite::Result<()> {
    db.execute("INSERT INTO words (words) VALUES ('optimize')", [])?;
    db.execute("INSERT INTO private_words (private_words) VALUES ('optimize')", [])?;
    // Words that no entry has any more are removed here too.
    let silent = "DELETE FROM common WHERE NOT EXISTS
        (SELECT 1 FROM words WHERE words MATCH '\"' || common.word || '\"')";
    db.execute(silent, [])?;
    let unused = "DELETE FROM actors WHERE no NOT IN (SELECT actor FROM entries WHERE actor IS NOT NULL
        UNION SELECT actor FROM private_entries WHERE actor IS NOT NULL UNION SELECT actor FROM audience)";
    db.execute(unused, [])?;
    db.execute("UPDATE position SET removed = ? WHERE removed", [MERGED]).map(drop)
}

/// Rewrites the file, including the space that it freed and what SQLite left behind when it moved rows. Returns
/// whether no reader kept copies of it, and nothing was removed since it was merged.
pub fn write_anew(db: &Connection, in_file: bool) -> rusqlite::Result<bool> {
    if in_file {
        db.execute_batch("VACUUM")?;
        let busy: i64 = db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
        if busy != 0 {
            return Ok(false);
        }
    }
    let written = db.execute("UPDATE position SET removed = 0 WHERE removed = ?", [MERGED])?;
    Ok(written == 1)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on should stop here")]
mod tests {
    use super::*;
    use crate::recall::open::{Derived, open_derived};
    use everturn_core::id::{Key, TenantName, TurnId};
    use everturn_core::time::Timestamp;
    use everturn_core::turn::Role;
    use rusqlite::StatementStatus;

    fn entry(number: u8, of: u8) -> IndexEntry {
        IndexEntry {
            tenant: TenantName::new("acme").unwrap(),
            conversation: ConversationId::from_bytes([1; 16]),
            seq: u64::from(number) + 256 * u64::from(of),
            id: EntryId::Turn(TurnId::from_bytes([number, of, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
            role: Some(Role::User),
            actor: Some("ada".into()),
            at: Timestamp(1),
            fallen: None,
            prose: true,
            text: "a word".into(),
            persons: None,
            audience: None,
            vector: None,
        }
    }

    /// Regression: a conversation of 30,000 turns was indexed at a tenth of the speed of many short ones,
    /// because an existing entry was searched among all entries of its conversation.
    #[test]
    fn taking_in_does_not_grow_with_the_conversation() {
        let db = open_derived(None, Derived::Index).unwrap();
        // SQLite counts the steps of each statement as long as the statement is cached.
        let steps = || -> i64 {
            let count = |sql| i64::from(db.prepare_cached(sql).unwrap().get_status(StatementStatus::VmStep));
            count(FIND) + count(FIND_IN) + count(FIND_PRIVATE_IN)
        };
        let mut took = Vec::new();
        for of in 0..20 {
            let before = steps();
            let changes: Vec<Change> = (0..100)
                .flat_map(|number| {
                    let entry = entry(number, of);
                    let (key, id) = (Key { tenant: entry.tenant.clone(), id: entry.conversation }, entry.id);
                    let fell = IndexChange::Fell { key: key.clone(), id, seq: 1 };
                    [(IndexChange::Put(Box::new(entry)), Vec::new()), (fell, Vec::new())]
                })
                .collect();
            take_in(&db, &changes, 1, None).unwrap();
            took.push(steps() - before);
        }
        assert!(took[0] > 0, "nothing was counted");
        assert!(took[19] <= took[0] + took[0] / 10, "{took:?}");
    }
}
