//! Derived rows: rebuilding them, and comparing them with the stored ones.
//!
//! The same code does both. To compare, it runs over empty temporary tables that shadow the stored ones;
//! afterwards the two sets of rows are compared.

use super::erase;
use super::lookup::InDatabase;
use super::parents;
use super::read;
use super::rows::{self, Bytes, CONVERSATION_COLUMNS, Failure, TURN_COLUMNS, signed};
use super::write;
use crate::{ProblemKind, StoreProblem};
use everturn_core::Error;
use everturn_core::conversation::{Conversation, Parent};
use everturn_core::id::{ConversationId, Key, TenantName};
use everturn_core::write::{Changes, checkpoint, fold, new_conversation};
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::BTreeSet;

/// Number of events folded at a time, so that memory does not grow with the log.
const PAGE: usize = 500;

/// Tables that are derived from `events`, entirely or except for a few columns.
const TABLES: &[&str] = &[
    "conversation_rows",
    "places",
    "turn_rows",
    "assets",
    "asset_references",
    "fact_rows",
    "summaries",
    "echoes",
    "folds",
    "settled",
    "idempotency",
];

/// The part of a conversation's row that is not derived from its events.
struct Given {
    no: i64,
    key: Key,
    parent: Option<Parent>,
}

/// Living conversations, parents before their forks. `None` for an invalid row.
fn living(db: &Connection) -> rusqlite::Result<Vec<(i64, Option<Given>)>> {
    db.prepare(
        "SELECT c.no, c.tenant, c.id, c.parent_seq, (SELECT p.id FROM conversation_rows p WHERE p.no = c.parent)
         FROM conversation_rows c WHERE c.deleted IS NULL ORDER BY c.no",
    )?
    .query_map([], |row| Ok((row.get(0)?, given(row).ok())))?
    .collect()
}

fn given(row: &rusqlite::Row<'_>) -> rusqlite::Result<Given> {
    let tenant: String = row.get(1)?;
    let tenant = TenantName::new(tenant).map_err(|e| rusqlite::types::FromSqlError::Other(Box::new(e)))?;
    let id = ConversationId::from_bytes(row.get::<_, Bytes<16>>(2)?.0);
    let parent: Option<(Bytes<16>, i64)> = row.get::<_, Option<_>>(4)?.zip(row.get(3)?);
    let parent = parent.map(|(conversation, at_seq)| Parent {
        conversation: ConversationId::from_bytes(conversation.0),
        at_seq: at_seq as u64,
    });
    Ok(Given { no: row.get(0)?, key: Key { tenant, id }, parent })
}

/// Rebuilds every derived row. Deleted conversations stay deleted, and asset bytes are not touched. A
/// conversation whose events cannot be read keeps its rows.
pub fn rebuild(db: &Connection) -> Result<(), Failure> {
    let last: i64 = db.query_row("SELECT coalesce(max(no), 0) FROM events", [], |row| row.get(0))?;
    derive_all(db, last)?;
    db.execute("DELETE FROM folds", [])?;
    // Rows of conversations that do not exist.
    for table in ["turn_rows", "assets", "asset_references", "fact_rows", "summaries", "echoes"] {
        db.execute(
            &format!("DELETE FROM {table} WHERE conversation NOT IN (SELECT no FROM conversation_rows)"),
            [],
        )?;
    }
    erase::wipe_stray_pieces(db)?;
    db.execute_batch("DELETE FROM settled; INSERT INTO settled SELECT coalesce(max(no), 0) FROM events")?;
    Ok(())
}

/// Derives rows from the events up to a number. Returns the conversations whose events cannot be read.
fn derive_all(db: &Connection, through: i64) -> Result<Vec<(i64, Error)>, Failure> {
    db.execute(
        "DELETE FROM places WHERE conversation IN (SELECT no FROM conversation_rows WHERE deleted IS NULL)
            OR conversation NOT IN (SELECT no FROM conversation_rows)",
        [],
    )?;
    db.execute(
        "INSERT OR IGNORE INTO places SELECT e.conversation, e.seq, e.no FROM events e JOIN conversation_rows c ON c.no = e.conversation
         WHERE c.deleted IS NULL AND e.no <= ? ORDER BY e.conversation, e.seq, e.no",
        [through],
    )?;
    // Parents come before their forks.
    let numbers: Vec<i64> = db
        .prepare("SELECT no FROM conversation_rows ORDER BY no")?
        .query_map([], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    numbers.into_iter().try_for_each(|no| mend_parent(db, no))?;
    for no in unhide(db)? {
        place(db, no, through)?;
        mend_parent(db, no)?;
    }
    let mut failed = Vec::new();
    for (no, given) in living(db)? {
        let derived = match given {
            None => Err(Error::corrupt("store.corrupt", "its tenant, id or parent is invalid").into()),
            Some(given) => atomically(db, || derive(db, &given)),
        };
        match derived {
            Ok(()) => {}
            Err(Failure::Refused(error)) => failed.push((no, error)),
            Err(Failure::Broken(error)) => {
                failed.push((no, super::explain(std::path::Path::new("its row"), &error)))
            }
        }
    }
    // The other columns of repeated requests cannot be derived: the requests themselves are not stored. Their
    // events may be after the `settled` mark.
    db.execute(
        "DELETE FROM idempotency WHERE NOT EXISTS (SELECT 1 FROM conversation_rows c WHERE c.no = idempotency.conversation
             AND c.deleted IS NULL AND typeof(fingerprint) = 'blob' AND length(fingerprint) = 32
             AND typeof(first_seq) = 'integer' AND first_seq > ifnull(c.parent_seq, 0)
             AND typeof(last_seq) = 'integer' AND last_seq >= first_seq
             AND last_seq <= max(c.head_seq, ifnull((SELECT max(e.seq) FROM events e WHERE e.no > ?1 AND e.conversation = c.no), 0))
             AND scope IN ('tenant:' || c.tenant, 'conversation:' || c.no))",
        [through],
    )?;
    Ok(failed)
}

/// Rebuilds the rows of one conversation from all of its events. Leaves them as they are if those cannot be
/// read.
pub fn mend(db: &Connection, no: i64) -> Result<(), Failure> {
    atomically(db, || {
        place(db, no, i64::MAX)?;
        mend_parent(db, no)?;
        let given = db.query_row(
            "SELECT c.no, c.tenant, c.id, c.parent_seq, (SELECT p.id FROM conversation_rows p WHERE p.no = c.parent)
             FROM conversation_rows c WHERE c.no = ?",
            [no],
            given,
        )?;
        derive(db, &given)
    })
}

/// Indexes the events of a conversation by `seq`. Of several with one `seq`, the first wins.
pub fn place(db: &Connection, no: i64, through: i64) -> rusqlite::Result<()> {
    db.execute("DELETE FROM places WHERE conversation = ?", [no])?;
    db.execute(
        "INSERT OR IGNORE INTO places SELECT conversation, seq, no FROM events WHERE conversation = ? AND no <= ? ORDER BY seq, no",
        [no, through],
    )
    .map(drop)
}

/// Sets the parent of a conversation to what its log proves. If nothing is proven, the row stays as it is.
fn mend_parent(db: &Connection, no: i64) -> Result<(), Failure> {
    let Some(parent) = parents::proven(db, no)? else { return Ok(()) };
    let (parent, at_seq) = parent.map(|(no, parent)| (no, signed(parent.at_seq))).unzip();
    db.prepare_cached(
        "UPDATE conversation_rows SET parent = ?1, parent_seq = ?2 WHERE no = ?3 AND (parent IS NOT ?1 OR parent_seq IS NOT ?2)",
    )?
    .execute(params![parent, at_seq, no])?;
    Ok(())
}

/// Runs a closure in a savepoint of the current transaction.
pub fn atomically<T>(db: &Connection, body: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    db.execute_batch("SAVEPOINT conversation")?;
    let done = body();
    db.execute_batch(match done {
        Ok(_) => "RELEASE conversation",
        Err(_) => "ROLLBACK TO conversation; RELEASE conversation",
    })?;
    done
}

/// Rebuilds the rows of a conversation and of its ancestors. A deleted one keeps what the deletion left.
pub fn mend_lineage(db: &Connection, no: i64) -> Result<(), Failure> {
    let mut line = vec![no];
    let mut above = parents::number(db, no)?;
    while let Some(parent) = above.filter(|parent| !line.contains(parent)) {
        line.push(parent);
        above = parents::number(db, parent)?;
    }
    for no in line.into_iter().rev() {
        let living = db
            .prepare_cached("SELECT 1 FROM conversation_rows WHERE no = ? AND deleted IS NULL")?
            .exists([no])?;
        if living { mend(db, no)? } else { mend_parent(db, no)? }
    }
    Ok(())
}

/// Conditions under which a row cannot be read, by table.
const MALFORMED: &[(&str, &str)] = &[
    ("places", "typeof(seq) <> 'integer' OR typeof(event) <> 'integer'"),
    (
        "assets",
        "typeof(id) <> 'text' OR typeof(seq) <> 'integer' OR sha256 IS NOT NULL AND (typeof(sha256) <> 'blob' OR length(sha256) <> 32)",
    ),
    ("asset_references", "typeof(turn_seq) <> 'integer' OR typeof(asset) <> 'text'"),
    (
        "fact_rows",
        "typeof(seq) <> 'integer' OR typeof(id) <> 'blob' OR length(id) <> 16
             OR source_turn IS NOT NULL AND (typeof(source_turn) <> 'blob' OR length(source_turn) <> 16)
             OR corrects IS NOT NULL AND (typeof(corrects) <> 'blob' OR length(corrects) <> 16)",
    ),
    ("summaries", "typeof(seq) <> 'integer' OR typeof(through_seq) <> 'integer'"),
    ("echoes", "typeof(seq) <> 'integer' OR typeof(bucket) <> 'integer'"),
];

/// Rebuilds the rows of every living conversation that has an unreadable one.
pub fn mend_malformed(db: &Connection) -> Result<(), Failure> {
    malformed(db)?.into_iter().try_for_each(|no| mend_lineage(db, no))
}

fn malformed(db: &Connection) -> rusqlite::Result<BTreeSet<i64>> {
    let mut found = BTreeSet::new();
    let mut statement = db.prepare(&format!(
        "SELECT {CONVERSATION_COLUMNS} FROM conversation_rows c WHERE c.deleted IS NULL"
    ))?;
    let mut conversations = statement.query([])?;
    while let Some(row) = conversations.next()? {
        if rows::conversation(row).is_err() {
            found.insert(row.get("no")?);
        }
    }
    let mut statement = db.prepare(&format!(
        "SELECT {TURN_COLUMNS}, c.no FROM turn_rows t JOIN conversation_rows c ON c.no = t.conversation WHERE c.deleted IS NULL"
    ))?;
    let mut turns = statement.query([])?;
    while let Some(row) = turns.next()? {
        if rows::turn(row).is_err() {
            found.insert(row.get("no")?);
        }
    }
    for (table, wrong) in MALFORMED {
        let numbers: Vec<i64> = db
            .prepare(&format!(
                "SELECT no FROM conversation_rows WHERE deleted IS NULL AND no IN (SELECT conversation FROM {table} WHERE {wrong})"
            ))?
            .query_map([], |row| row.get(0))?
            .collect::<Result<_, _>>()?;
        found.extend(numbers);
    }
    Ok(found)
}

/// The rows of one conversation, from its indexed events.
fn derive(db: &Connection, given: &Given) -> Result<(), Failure> {
    let no = given.no;
    db.execute("DELETE FROM turn_rows WHERE conversation = ?", [no])?;
    db.execute("DELETE FROM assets WHERE conversation = ?", [no])?;
    db.execute("DELETE FROM asset_references WHERE conversation = ?", [no])?;
    db.execute("DELETE FROM fact_rows WHERE conversation = ?", [no])?;
    db.execute("DELETE FROM summaries WHERE conversation = ?", [no])?;
    db.execute("DELETE FROM echoes WHERE conversation = ?", [no])?;
    let lookup = InDatabase::new(db, &given.key, Some(no), None);
    let lineage = read::lineage(db, no, given.key.id)?;
    let floor = given.parent.map_or(0, |parent| parent.at_seq);
    let Some(first) = read::events(db, &lineage, floor, 1)?.pop() else {
        return Err(Error::corrupt("store.corrupt", format!("{} has no events", given.key.id)).into());
    };
    let fork = match given.parent {
        Some(parent) => Some((parent, lookup.fork_point(parent)?)),
        None => None,
    };
    let mut fresh = new_conversation(&given.key, first.at, fork);
    loop {
        let page = read::events(db, &lineage, fresh.head.seq, PAGE)?;
        if page.is_empty() {
            break;
        }
        for event in &page {
            let mut changes = Changes::default();
            fold(&mut fresh, event, &mut changes, &lookup)?;
            write::insert_changes(db, no, &changes)?;
        }
    }
    if fresh.parent.is_some() && fresh.checkpoint.is_some() {
        fresh.set_checkpoint(checkpoint(no as u64, &lookup)?);
    }
    db.execute("UPDATE conversation_rows SET created = ? WHERE no = ?", params![fresh.created.0, no])?;
    write::update_all(db, no, &fresh)?;
    Ok(())
}

/// A deleted conversation has no text left except what its forks read. One that has more is only marked as
/// deleted: it is shown again. Returns the numbers of those.
fn unhide(db: &Connection) -> rusqlite::Result<Vec<i64>> {
    let speaking: Vec<(i64, i64)> = db
        .prepare(
            "SELECT e.conversation, max(e.seq) FROM events e JOIN conversation_rows c ON c.no = e.conversation
             WHERE c.deleted IS NOT NULL AND e.salt <> zeroblob(16) GROUP BY e.conversation",
        )?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    let mut hidden = Vec::new();
    for (no, through) in speaking {
        if through > signed(read::needed(db, no)?) {
            db.execute(
                "UPDATE conversation_rows SET deleted = NULL, deleted_reason = NULL WHERE no = ?",
                [no],
            )?;
            hidden.push(no);
        }
    }
    Ok(hidden)
}

/// Compares the log with what is known about it, and every derived row with the log. The connection must not be
/// used afterwards: its tables are shadowed by temporary ones.
pub fn check(db: &Connection) -> Result<Vec<StoreProblem>, Failure> {
    let (through, wrong) = settled_through(db)?;
    shadow(db)?;
    let failed = derive_all(db, through)?;
    let mut problems = missing(db)?;
    problems.extend(repeated(db)?);
    problems.extend(wrong);
    for (no, error) in &failed {
        problems.push(about(db, *no, ProblemKind::Damaged, error.text().to_string())?);
    }
    let failed: Vec<i64> = failed.into_iter().map(|(no, _)| no).collect();
    problems.extend(compare_conversations(db, &failed)?);
    problems.extend(wrong_tombstones(db)?);
    for (table, noun) in [
        ("places", "places of events"),
        ("turn_rows", "turns"),
        ("assets", "assets"),
        ("asset_references", "references to assets"),
        ("fact_rows", "facts"),
        ("summaries", "summaries"),
        ("echoes", "repeated words"),
        ("idempotency", "repeated requests"),
    ] {
        let what = format!("about {noun} differ from the log");
        problems.extend(wrong_rows(db, differences(db, table)?, &failed, &what)?);
    }
    problems.extend(wrong_rows(db, wrong_folds(db)?, &failed, "about folds differ from the log")?);
    let what = "with text of turns that are not open";
    problems.extend(wrong_rows(db, erase::stray_pieces(db)?, &failed, what)?);
    Ok(problems)
}

/// Problems for wrong rows, from their number in each conversation.
fn wrong_rows(
    db: &Connection,
    counts: Vec<(i64, i64)>,
    failed: &[i64],
    what: &str,
) -> rusqlite::Result<Vec<StoreProblem>> {
    let counts = counts.into_iter().filter(|(no, _)| !failed.contains(no));
    counts
        .map(|(no, count)| {
            let rows = if count == 1 { "row" } else { "rows" };
            about(db, no, ProblemKind::Derived, format!("{count} {rows} {what}"))
        })
        .collect()
}

/// Deleted conversations whose rows name another parent than their logs.
fn wrong_tombstones(db: &Connection) -> rusqlite::Result<Vec<StoreProblem>> {
    let numbers: Vec<i64> = db
        .prepare(
            "SELECT stored.no FROM main.conversation_rows stored JOIN temp.conversation_rows derived ON derived.no = stored.no
             WHERE derived.deleted IS NOT NULL
               AND (stored.parent IS NOT derived.parent OR stored.parent_seq IS NOT derived.parent_seq)",
        )?
        .query_map([], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    let text = "its tombstone differs from the log in parent";
    numbers.into_iter().map(|no| about(db, no, ProblemKind::Derived, text.into())).collect()
}

/// Number of folds, by conversation, that cannot be read, are beyond the end of the log, or have a wrong count
/// of turns. The content of folds is compared where they are made.
fn wrong_folds(db: &Connection) -> rusqlite::Result<Vec<(i64, i64)>> {
    db.prepare(
        "WITH counted AS (
             SELECT f.conversation, f.seq, f.turns, typeof(f.seq) = 'integer' AND f.seq <= c.head_seq
                     AND typeof(f.fold) = 'text' AND json_valid(f.fold) AS sound,
                 sum((SELECT count(*) FROM temp.turn_rows t WHERE t.conversation = f.conversation
                      AND t.seq > max(f.before, ifnull(c.parent_seq, 0)) AND t.seq <= f.seq))
                     OVER (PARTITION BY f.conversation ORDER BY f.seq) AS own
             FROM (SELECT *, lag(seq, 1, 0) OVER (PARTITION BY conversation ORDER BY seq) AS before FROM main.folds) f
             JOIN temp.conversation_rows c ON c.no = f.conversation AND c.deleted IS NULL)
         SELECT conversation, count(*) FROM counted
         WHERE NOT sound OR turns IS NOT NULL AND turns IS NOT own GROUP BY conversation",
    )?
    .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
    .collect()
}

/// Creates empty tables with the names of the derived ones, except for columns that are not derived.
fn shadow(db: &Connection) -> rusqlite::Result<()> {
    for table in TABLES {
        let made: Vec<String> = db
            .prepare("SELECT sql FROM main.sqlite_schema WHERE tbl_name = ? AND sql IS NOT NULL ORDER BY type DESC")?
            .query_map([table], |row| row.get(0))?
            .collect::<Result<_, _>>()?;
        for sql in made {
            let sql =
                sql.replacen("CREATE TABLE ", "CREATE TEMP TABLE ", 1).replacen(" INDEX ", " INDEX temp.", 1);
            db.execute_batch(&sql)?;
        }
    }
    db.execute_batch(
        "INSERT INTO temp.conversation_rows SELECT * FROM main.conversation_rows;
         INSERT INTO temp.idempotency SELECT * FROM main.idempotency;",
    )?;
    // Rows of a deleted conversation, which forks still read, stay as the deletion left them.
    for table in ["places", "turn_rows", "assets", "asset_references", "fact_rows", "summaries", "echoes"] {
        db.execute(
            &format!(
                "INSERT INTO temp.{table} SELECT * FROM main.{table}
                 WHERE conversation IN (SELECT no FROM main.conversation_rows WHERE deleted IS NOT NULL)"
            ),
            [],
        )?;
    }
    Ok(())
}

/// Number of rows of a table that differ, by conversation.
fn differences(db: &Connection, table: &str) -> rusqlite::Result<Vec<(i64, i64)>> {
    let one_way = |from: &str, to: &str| {
        format!(
            "SELECT conversation AS no, count(*) AS rows FROM
                 (SELECT * FROM {from}.{table} EXCEPT SELECT * FROM {to}.{table}) GROUP BY conversation"
        )
    };
    db.prepare(&format!(
        "SELECT CAST(no AS INTEGER), max(rows) FROM ({} UNION ALL {}) GROUP BY no",
        one_way("main", "temp"),
        one_way("temp", "main")
    ))?
    .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
    .collect()
}

/// Names the differing fields of conversations' rows.
fn compare_conversations(db: &Connection, failed: &[i64]) -> Result<Vec<StoreProblem>, Failure> {
    let row = |schema: &str, no: i64| {
        let sql = format!(
            "SELECT {CONVERSATION_COLUMNS}, c.expires FROM {schema}.conversation_rows c WHERE c.no = ?"
        );
        db.prepare_cached(&sql)?.query_row([no], |row| Ok((rows::conversation(row)?.1, row.get("expires")?)))
    };
    let mut problems = Vec::new();
    for (no, _) in living(db)? {
        if failed.contains(&no) {
            continue;
        }
        let hidden: bool = db.query_row(
            "SELECT deleted IS NOT NULL FROM main.conversation_rows WHERE no = ?",
            [no],
            |row| row.get(0),
        )?;
        let derived: (Conversation, Option<i64>) = row("temp", no)?;
        let differing = match row("main", no) {
            _ if hidden => vec!["deleted".to_string()],
            Ok(stored) => fields(&stored, &derived),
            Err(_) => columns(db, no)?,
        };
        if !differing.is_empty() {
            let text = format!("its row differs from the log in {}", differing.join(", "));
            problems.push(about(db, no, ProblemKind::Derived, text)?);
        }
    }
    Ok(problems)
}

/// The differing columns of a conversation's row that cannot be read.
fn columns(db: &Connection, no: i64) -> rusqlite::Result<Vec<String>> {
    let names: Vec<String> = db
        .prepare("SELECT name FROM pragma_table_info('conversation_rows')")?
        .query_map([], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    let mut differing = Vec::new();
    for name in names {
        let differs = db.query_row(
            &format!(
                "SELECT stored.{name} IS NOT derived.{name} FROM main.conversation_rows stored JOIN temp.conversation_rows derived
                 ON derived.no = stored.no WHERE stored.no = ?"
            ),
            [no],
            |row| row.get(0),
        )?;
        if differs {
            differing.push(name);
        }
    }
    Ok(differing)
}

fn fields(stored: &(Conversation, Option<i64>), derived: &(Conversation, Option<i64>)) -> Vec<String> {
    if stored == derived {
        return Vec::new();
    }
    let value = |one: &Conversation| serde_json::to_value(one).unwrap_or_default();
    let (was, is) = (value(&stored.0), value(&derived.0));
    let names = was.as_object().into_iter().chain(is.as_object()).flat_map(|fields| fields.keys());
    let mut names: Vec<String> = names.filter(|name| was.get(name) != is.get(name)).cloned().collect();
    names.sort();
    names.dedup();
    if names.is_empty() {
        names.push("expires".into());
    }
    names
}

/// Events that are known to have been written and are not in the log: gaps, and missing ends of conversations
/// whose row knows of more, see [`known_end`]. For a deleted one only what its forks read counts: a restored
/// tombstone has no envelopes.
fn missing(db: &Connection) -> Result<Vec<StoreProblem>, Failure> {
    db.execute_batch("CREATE TEMP TABLE logged (conversation INTEGER, seq INTEGER, PRIMARY KEY (conversation, seq)) WITHOUT ROWID")?;
    db.execute(
        "INSERT OR IGNORE INTO logged SELECT conversation, seq FROM events ORDER BY conversation, seq",
        [],
    )?;
    let known: Vec<(i64, i64, bool)> = db
        .prepare(
            // After the parents according to the log.
            "SELECT no, ifnull(iif(parent_seq >= 0, parent_seq, 0), 0), deleted IS NOT NULL FROM temp.conversation_rows",
        )?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
        .collect::<Result<_, _>>()?;
    let mut problems = Vec::new();
    for (no, floor, deleted) in known {
        let through = if deleted { signed(read::needed(db, no)?) } else { known_end(db, no)? };
        let mut gaps = Vec::new();
        let mut expected = floor.saturating_add(1);
        let mut statement =
            db.prepare_cached("SELECT seq FROM logged WHERE conversation = ? AND seq > ? ORDER BY seq")?;
        let mut found = statement.query(params![no, floor])?;
        while let Some(row) = found.next()? {
            let seq: i64 = row.get(0)?;
            if deleted && seq > through {
                break;
            }
            if seq > expected {
                gaps.push((expected, seq - 1));
            }
            expected = seq.saturating_add(1);
        }
        if expected <= through {
            gaps.push((expected, through));
        }
        for (from, to) in gaps {
            let text = if from == to {
                format!("seq {from} is missing")
            } else {
                format!("seq {from} to {to} are missing")
            };
            problems.push(about(db, no, ProblemKind::Missing, text)?);
        }
    }
    db.execute_batch("DROP TABLE temp.logged")?;
    Ok(problems)
}

/// The end of a conversation's log according to its row, if plausible: the event is in `places`, or its hash is
/// not that of another event. If the row has no number, the last entry in `places`.
fn known_end(db: &Connection, no: i64) -> rusqlite::Result<i64> {
    let through = db
        .prepare_cached(
            "SELECT iif(typeof(c.head_seq) = 'integer', iif(
                 EXISTS (SELECT 1 FROM logged l WHERE l.conversation = c.no AND l.seq >= c.head_seq)
                 OR EXISTS (SELECT 1 FROM main.places p WHERE p.conversation = c.no AND p.seq = c.head_seq)
                 OR NOT EXISTS (SELECT 1 FROM events e WHERE e.conversation = c.no AND e.hash = c.head_hash), c.head_seq, 0),
                 (SELECT max(seq) FROM main.places p WHERE p.conversation = c.no AND typeof(seq) = 'integer'))
             FROM main.conversation_rows c WHERE c.no = ?",
        )?
        .query_row([no], |row| row.get::<_, Option<i64>>(0))?;
    Ok(through.unwrap_or(0))
}

/// Living conversations in which a `seq` was assigned more than once. No writer does that.
fn repeated(db: &Connection) -> Result<Vec<StoreProblem>, Failure> {
    let found: Vec<(i64, i64, i64)> = db
        .prepare(
            "SELECT conversation, min(seq), sum(times - 1) FROM (
                 SELECT e.conversation, e.seq, count(*) AS times FROM events e JOIN conversation_rows c ON c.no = e.conversation
                 WHERE c.deleted IS NULL GROUP BY e.conversation, e.seq HAVING count(*) > 1)
             GROUP BY conversation",
        )?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
        .collect::<Result<_, _>>()?;
    let mut problems = Vec::new();
    for (no, first, count) in found {
        let text =
            format!("from seq {first} on, {count} event(s) stand beside the log: something else wrote them");
        problems.push(about(db, no, ProblemKind::Damaged, text)?);
    }
    Ok(problems)
}

/// The last settled event, and the problem with its mark, if any.
fn settled_through(db: &Connection) -> rusqlite::Result<(i64, Option<StoreProblem>)> {
    let last: i64 = db.query_row("SELECT coalesce(max(no), 0) FROM events", [], |row| row.get(0))?;
    let placed: i64 = db.query_row(
        "SELECT coalesce(max(event), 0) FROM places WHERE typeof(event) = 'integer'",
        [],
        |row| row.get(0),
    )?;
    let mark: Option<i64> = db
        .query_row(
            "SELECT max(event) FROM settled WHERE typeof(event) = 'integer' HAVING count(*) = 1",
            [],
            |row| row.get(0),
        )
        .optional()?;
    match mark.filter(|mark| (placed..=last).contains(mark)) {
        Some(mark) => Ok((mark, None)),
        None => {
            let text = "the mark of settled events is wrong".to_string();
            Ok((placed.min(last), Some(StoreProblem { key: None, kind: ProblemKind::Derived, text })))
        }
    }
}

/// A problem with a conversation, with its id if that can be read.
fn about(db: &Connection, no: i64, kind: ProblemKind, text: String) -> rusqlite::Result<StoreProblem> {
    let key = db
        .query_row(
            "SELECT c.no, c.tenant, c.id, c.parent_seq, NULL FROM conversation_rows c WHERE c.no = ?",
            [no],
            |row| Ok(given(row).ok().map(|given| given.key)),
        )
        .optional()?
        .flatten();
    let text = if key.is_some() { text } else { format!("conversation number {no}: {text}") };
    Ok(StoreProblem { key, kind, text })
}
