//! Queries, on any connection: inside a write as well as beside it.

use super::parents;
use super::rows::{self, Bytes, CONVERSATION_COLUMNS, EVENT_COLUMNS, TURN_COLUMNS, signed};
use crate::{StoredTurn, TurnQuery, Written, WrittenPage};
use everturn_core::chain::{Hash, Head};
use everturn_core::conversation::{Conversation, Parent};
use everturn_core::event::Event;
use everturn_core::id::{ConversationId, FactId, Key, TenantName, TurnId};
use everturn_core::limits::{FORK_DEPTH_MAX, PAGE_BYTES_MAX};
use everturn_core::turn::TurnRow;
use everturn_core::write::{self, EventAddress, EventRef, FactRow, Fork, Statement, StatementsOf};
use rusqlite::{Connection, OptionalExtension, Row, ToSql, params};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A conversation and its number in this file.
pub fn conversation(db: &Connection, key: &Key) -> rusqlite::Result<Option<(i64, Conversation)>> {
    db.prepare_cached(&format!(
        "SELECT {CONVERSATION_COLUMNS} FROM conversation_rows c WHERE c.tenant = ? AND c.id = ? AND c.deleted IS NULL"
    ))?
    .query_row(params![key.tenant.as_str(), Bytes(key.id.to_bytes())], rows::conversation)
    .optional()
}

/// The number of a conversation in this file.
pub fn number(db: &Connection, key: &Key) -> rusqlite::Result<Option<i64>> {
    db.prepare_cached("SELECT no FROM conversation_rows WHERE tenant = ? AND id = ? AND deleted IS NULL")?
        .query_row(params![key.tenant.as_str(), Bytes(key.id.to_bytes())], |row| row.get(0))
        .optional()
}

/// The id of a conversation, also of a deleted one.
pub fn id(db: &Connection, no: i64) -> rusqlite::Result<ConversationId> {
    db.prepare_cached("SELECT id FROM conversation_rows WHERE no = ?")?
        .query_row([no], |row| Ok(ConversationId::from_bytes(row.get::<_, Bytes<16>>(0)?.0)))
}

/// A conversation or one of its ancestors, as far as the conversation sees it.
#[derive(Clone, Copy, Debug)]
pub struct Level {
    /// Its number in this file.
    pub no: i64,
    /// Its id.
    pub id: ConversationId,
    /// `seq` after which its own events begin.
    pub floor: u64,
    /// `seq` of the last visible event.
    pub cap: u64,
}

/// A conversation with its ancestors: the location of its events.
pub struct Lineage {
    /// The conversation itself, its parent, the parent's parent, …
    pub levels: Vec<Level>,
    /// Its own last events that are not settled yet. Those of ancestors do not matter: a fork begins at a
    /// settled one.
    pub recent: Vec<Arc<Event>>,
}

impl Lineage {
    /// Adds events that are not settled yet.
    pub fn with(mut self, recent: Vec<Arc<Event>>) -> Lineage {
        self.recent = recent;
        self
    }

    /// The level that has its own event at this `seq`.
    pub fn owner(&self, seq: u64) -> Option<&Level> {
        self.levels.iter().find(|level| seq > level.floor && seq <= level.cap)
    }

    /// The event at this `seq`, if it is not settled yet.
    fn recent_at(&self, seq: u64) -> Option<&Arc<Event>> {
        let first = self.recent.first()?.seq;
        self.recent.get(usize::try_from(seq.checked_sub(first)?).ok()?)
    }

    /// The conversation's id.
    fn id(&self) -> ConversationId {
        self.levels[0].id
    }

    /// A row of this level as the conversation sees it.
    pub fn seen(&self, level: &Level, row: TurnRow) -> TurnRow {
        if level.no == self.levels[0].no { row } else { row.as_of(level.cap) }
    }
}

/// Finds a conversation's ancestors. A row that names another parent than the log is malformed.
pub fn lineage(db: &Connection, no: i64, id: ConversationId) -> rusqlite::Result<Lineage> {
    let lineage = ancestors(db, no, id)?;
    for (at, level) in lineage.levels.iter().enumerate() {
        let above = lineage.levels.get(at + 1);
        let named = above.map(|parent| Parent { conversation: parent.id, at_seq: level.floor });
        if parents::is_wrong(db, level.no, named)? {
            let error = rusqlite::types::FromSqlError::Other("its log names another parent".into());
            return Err(rows::malformed(&format!("the row of {}", level.id), &error.into()));
        }
    }
    Ok(lineage)
}

/// Finds a conversation's ancestors by their rows.
pub fn ancestors(db: &Connection, no: i64, id: ConversationId) -> rusqlite::Result<Lineage> {
    let mut parent_of = db.prepare_cached(
        "SELECT p.no, p.id, c.parent_seq FROM conversation_rows c JOIN conversation_rows p ON p.no = c.parent WHERE c.no = ?",
    )?;
    let malformed =
        |error: &rusqlite::Error| rows::malformed(&format!("the row of {id} or of an ancestor"), error);
    let mut levels = vec![Level { no, id, floor: 0, cap: i64::MAX as u64 }];
    loop {
        let youngest = levels.len() - 1;
        let above = parent_of
            .query_row([levels[youngest].no], |row| {
                let id = row.get::<_, Bytes<16>>(1).map(|id| ConversationId::from_bytes(id.0));
                let above = id.and_then(|id| Ok((row.get(0)?, id, rows::unsigned(row, "parent_seq")?)));
                above.map_err(|error| malformed(&error))
            })
            .optional()?;
        let Some((no, id, seq)) = above else { return Ok(Lineage { levels, recent: Vec::new() }) };
        if levels.len() > FORK_DEPTH_MAX {
            // A row that names itself as an ancestor would be followed forever.
            let error = rusqlite::types::FromSqlError::Other("its ancestors form a cycle".into());
            return Err(malformed(&error.into()));
        }
        levels[youngest].floor = seq;
        let cap = seq.min(levels[youngest].cap);
        levels.push(Level { no, id, floor: 0, cap });
    }
}

/// The hash of the event at this `seq`; at 0, the start of the oldest ancestor's chain.
pub fn hash_at(db: &Connection, lineage: &Lineage, seq: u64) -> rusqlite::Result<Option<Hash>> {
    if seq == 0 {
        return Ok(lineage.levels.last().map(|oldest| Head::genesis(oldest.id).hash));
    }
    if let Some(event) = lineage.recent_at(seq) {
        return Ok(Some(event.hash));
    }
    let Some(level) = lineage.owner(seq) else { return Ok(None) };
    db.prepare_cached("SELECT events.hash FROM places p JOIN events ON events.no = p.event WHERE p.conversation = ? AND p.seq = ?")?
        .query_row(params![level.no, signed(seq)], |row| Ok(Hash(row.get::<_, Bytes<32>>(0)?.0)))
        .optional()
}

/// Events after a `seq`, ascending.
pub fn events(db: &Connection, lineage: &Lineage, after: u64, limit: usize) -> rusqlite::Result<Vec<Event>> {
    let mut out: Vec<Event> = Vec::new();
    let mut prev = None;
    let mut bytes = 0;
    for level in lineage.levels.iter().rev() {
        let from = after.max(level.floor);
        if from >= level.cap || out.len() == limit {
            continue;
        }
        let mut statement = db.prepare_cached(&format!(
            "SELECT {EVENT_COLUMNS} FROM places p JOIN events ON events.no = p.event
             WHERE p.conversation = ? AND p.seq > ? AND p.seq <= ? ORDER BY p.seq LIMIT ?"
        ))?;
        let left = signed((limit - out.len()) as u64);
        let mut found = statement.query(params![level.no, signed(from), signed(level.cap), left])?;
        while let Some(row) = found.next()? {
            // A gap in the chain appears as a wrong `prev`, which verification then reports.
            let before = match prev {
                Some(hash) => hash,
                None => hash_at(db, lineage, rows::unsigned(row, "seq")? - 1)?.unwrap_or(Hash([0; 32])),
            };
            let event = rows::event(row, level.id, before)?;
            prev = Some(event.hash);
            bytes += event.text().map_or(0, str::len);
            out.push(event);
            if bytes >= PAGE_BYTES_MAX {
                return Ok(out);
            }
        }
    }
    let settled = out.last().map_or(after, |event| event.seq);
    let rest = lineage.recent.iter().filter(|event| event.seq > settled).take(limit - out.len());
    for event in rest {
        bytes += event.text().map_or(0, str::len);
        out.push(Event::clone(event));
        if bytes >= PAGE_BYTES_MAX {
            break;
        }
    }
    Ok(out)
}

/// The event at a `seq`.
pub fn event_at(db: &Connection, lineage: &Lineage, seq: u64) -> rusqlite::Result<Option<Event>> {
    if let Some(event) = lineage.recent_at(seq) {
        return Ok(Some(Event::clone(event)));
    }
    let before = hash_at(db, lineage, seq.saturating_sub(1))?.unwrap_or(Hash([0; 32]));
    event_after(db, lineage, seq, before)
}

/// The event at a `seq`, given the hash of the one before it.
fn event_after(
    db: &Connection,
    lineage: &Lineage,
    seq: u64,
    before: Hash,
) -> rusqlite::Result<Option<Event>> {
    let Some(level) = lineage.owner(seq) else { return Ok(None) };
    db.prepare_cached(&format!(
        "SELECT {EVENT_COLUMNS} FROM places p JOIN events ON events.no = p.event WHERE p.conversation = ? AND p.seq = ?"
    ))?
    .query_row(params![level.no, signed(seq)], |row| rows::event(row, level.id, before))
    .optional()
}

/// Whether the body was overwritten, which preserves its length, as opposed to written without one.
pub fn had_body(db: &Connection, lineage: &Lineage, seq: u64) -> rusqlite::Result<bool> {
    let Some(level) = lineage.owner(seq) else { return Ok(false) };
    let found = db
        .prepare_cached(
            "SELECT length(e.body) > 0 FROM places p JOIN events e ON e.no = p.event
             WHERE p.conversation = ? AND p.seq = ?",
        )?
        .query_row(params![level.no, signed(seq)], |row| row.get(0))
        .optional()?;
    Ok(found.unwrap_or(false))
}

/// Number of turns up to a `seq`. Counts from the nearest cached fold.
pub fn count_turns(db: &Connection, lineage: &Lineage, through: u64) -> rusqlite::Result<u64> {
    let mut count = 0;
    for level in &lineage.levels {
        let cap = level.cap.min(through);
        let known: Option<(i64, i64)> = db
            .prepare_cached(
                "SELECT seq, turns FROM folds WHERE conversation = ? AND seq > ? AND seq <= ? AND turns BETWEEN 0 AND seq
                 AND typeof(turns) = 'integer' ORDER BY seq DESC LIMIT 1",
            )?
            .query_row(params![level.no, signed(level.floor), signed(cap)], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        let (from, turns) = known.unwrap_or((signed(level.floor), 0));
        let own: i64 = db
            .prepare_cached("SELECT count(*) FROM turn_rows WHERE conversation = ? AND seq > ? AND seq <= ?")?
            .query_row(params![level.no, from, signed(cap)], |row| row.get(0))?;
        count += (turns + own) as u64;
    }
    Ok(count)
}

/// Number of own turns of a conversation up to a `seq`; `floor` is its fork point.
pub fn own_turns(db: &Connection, no: i64, through: u64) -> rusqlite::Result<u64> {
    let floor: Option<i64> =
        db.query_row("SELECT parent_seq FROM conversation_rows WHERE no = ?", [no], |row| row.get(0))?;
    let level =
        Level { no, id: ConversationId::from_bytes([0; 16]), floor: floor.unwrap_or(0) as u64, cap: through };
    count_turns(db, &Lineage { levels: vec![level], recent: Vec::new() }, through)
}

/// A turn as the conversation sees it: its own row if it has one, else the nearest ancestor's as of the fork
/// point.
pub fn turn_row(db: &Connection, lineage: &Lineage, id: TurnId) -> rusqlite::Result<Option<TurnRow>> {
    if let Some(event) = lineage.recent.iter().find(|event| event.id.0 == id.0) {
        return Ok(TurnRow::begun(event));
    }
    for level in &lineage.levels {
        let row = db
            .prepare_cached(&format!(
                "SELECT {TURN_COLUMNS} FROM turn_rows t WHERE t.id = ? AND t.conversation = ?"
            ))?
            .query_row(params![Bytes(id.to_bytes()), level.no], rows::turn)
            .optional()?;
        if let Some(row) = row {
            return Ok((row.seq <= level.cap).then(|| lineage.seen(level, row)));
        }
    }
    Ok(None)
}

/// A page of turns.
pub fn turns(db: &Connection, lineage: &Lineage, query: &TurnQuery) -> rusqlite::Result<Vec<StoredTurn>> {
    let (mut low, mut high) = query.range();
    let mut rows: Vec<TurnRow> = Vec::new();
    while low <= high && rows.len() < query.limit {
        let page = match query.whole_log {
            true => turn_page(db, lineage, low, high, query.descending, query.limit)?,
            false => placed_page(db, lineage, low, high, query)?,
        };
        let Some(last) = page.last().map(|row| query.position(row)) else { break };
        if query.descending {
            high = last - 1
        } else {
            low = last + 1
        }
        let wanted = page.into_iter().map(|row| query.seen(row)).filter(|row| query.takes(row));
        rows.extend(wanted.take(query.limit - rows.len()));
    }
    let (mut turns, mut last, mut bytes) = (Vec::new(), None, 0);
    // Each group is read in ascending order, since the hash of one turn is usually the `prev` of the next.
    for group in rows.chunks_mut(READ_TOGETHER) {
        if query.descending {
            group.reverse();
        }
        let read = group.iter().map(|row| stored(db, lineage, row.clone(), &mut last));
        let mut read = read.collect::<rusqlite::Result<Vec<StoredTurn>>>()?;
        if query.descending {
            read.reverse();
        }
        for turn in read {
            turns.push(turn);
            if query.is_full(&turns, &mut bytes) {
                return Ok(turns);
            }
        }
    }
    Ok(turns)
}

/// Number of turns to read before checking whether the page is full: few, since each may be large.
const READ_TOGETHER: usize = 8;

/// Rows in a range of `seq`, of all levels; where several have one, that of the youngest first.
fn turn_page(
    db: &Connection,
    lineage: &Lineage,
    low: u64,
    high: u64,
    descending: bool,
    limit: usize,
) -> rusqlite::Result<Vec<TurnRow>> {
    let order = if descending { "DESC" } else { "ASC" };
    let mut statement = db.prepare_cached(&format!(
        "SELECT {TURN_COLUMNS} FROM turn_rows t WHERE t.conversation = ? AND t.seq >= ? AND t.seq <= ? ORDER BY t.seq {order} LIMIT ?"
    ))?;
    let recent = lineage.recent.iter().filter(|event| (low..=high).contains(&event.seq));
    let recent = recent.filter_map(|event| TurnRow::begun(event)).map(|row| (row.seq, row));
    let mut merged: BTreeMap<u64, TurnRow> =
        if descending { recent.rev().take(limit).collect() } else { recent.take(limit).collect() };
    for level in &lineage.levels {
        let parameters = params![level.no, signed(low), signed(high.min(level.cap)), signed(limit as u64)];
        for row in statement.query_map(parameters, rows::turn)? {
            let row = row?;
            merged.entry(row.seq).or_insert_with(|| lineage.seen(level, row));
        }
    }
    let in_order = merged.into_values();
    Ok(if descending { in_order.rev().take(limit).collect() } else { in_order.take(limit).collect() })
}

/// Rows in a range of places, of all levels, as of the `seq` asked for; where several have one, that of the youngest.
/// Few rows have a place that is not their `seq`, and an index has only these.
fn placed_page(
    db: &Connection,
    lineage: &Lineage,
    low: u64,
    high: u64,
    query: &TurnQuery,
) -> rusqlite::Result<Vec<TurnRow>> {
    let now = i64::MAX as u64;
    let order = if query.descending { "DESC" } else { "ASC" };
    // Without superseded turns, which share the places of others: a page must not end between them.
    let select = format!(
        "SELECT {TURN_COLUMNS} FROM turn_rows t
         WHERE t.conversation = ?1 AND NOT ifnull(t.superseded_seq BETWEEN 1 AND ?5, 0) AND"
    );
    let mut at_seq = db.prepare_cached(&format!(
        "{select} t.seq >= ?2 AND t.seq <= ?3 AND (t.place IS NULL OR typeof(t.place) <> 'integer' OR t.place < 1)
         ORDER BY t.seq {order} LIMIT ?4"
    ))?;
    let mut moved = db.prepare_cached(&format!(
        "{select} t.place >= ?2 AND t.place <= ?3 AND t.place IS NOT NULL AND t.seq <= ?5
           AND (t.placed_seq <= ?5 OR ?5 = {now}) ORDER BY t.place {order} LIMIT ?4"
    ))?;
    // Moved by a later event than those asked for: these are read at their `seq`.
    let mut not_yet = db.prepare_cached(&format!(
        "{select} t.place IS NOT NULL AND t.place <= ?3 AND t.seq >= ?2 AND t.seq <= min(?3, ?5) AND t.placed_seq > ?5
         ORDER BY t.seq {order} LIMIT ?4"
    ))?;
    let mut inherited =
        db.prepare_cached("SELECT seq FROM turn_rows WHERE conversation = ?1 AND seq <= ?2")?;
    // Turns that are not settled yet replace nothing.
    let recent = lineage.recent.iter().filter(|_| query.moved_after.is_none());
    let recent = recent.filter(|event| (low..=high).contains(&event.seq));
    let recent = recent.filter_map(|event| TurnRow::begun(event)).map(|row| ((row.seq, row.seq), row));
    let mut merged: BTreeMap<(u64, u64), TurnRow> = match query.descending {
        true => recent.rev().take(query.limit).collect(),
        false => recent.take(query.limit).collect(),
    };
    // Inherited turns that a younger level changed: their older rows do not count.
    let mut hidden: BTreeSet<u64> = BTreeSet::new();
    for level in &lineage.levels {
        let through = level.cap.min(query.as_of.unwrap_or(now));
        let limit = signed(query.limit.saturating_add(hidden.len()) as u64);
        let mut rows = Vec::new();
        let last = signed(high.min(through));
        if query.moved_after.is_none() {
            let parameters = params![level.no, signed(low), last, limit, signed(through)];
            rows.extend(at_seq.query_map(parameters, rows::turn)?);
        }
        let parameters = params![level.no, signed(low), signed(high), limit, signed(through)];
        rows.extend(moved.query_map(parameters, rows::turn)?);
        if through < now {
            rows.extend(not_yet.query_map(parameters, rows::turn)?);
        }
        for row in rows {
            let row = query.seen(lineage.seen(level, row?));
            if !hidden.contains(&row.seq) {
                merged.entry((row.place, row.seq)).or_insert(row);
            }
        }
        if level.floor > 0 {
            let changed =
                inherited.query_map(params![level.no, signed(level.floor)], |row| rows::unsigned(row, 0))?;
            for seq in changed {
                hidden.insert(seq?);
            }
        }
    }
    let in_order = merged.into_values();
    let limit = query.limit;
    Ok(if query.descending { in_order.rev().take(limit).collect() } else { in_order.take(limit).collect() })
}

/// Number of turns after a `seq` that a view from there on does not show. Superseding is settled at once, so the rows are
/// complete.
pub fn fallen_after(db: &Connection, lineage: &Lineage, after: u64) -> rusqlite::Result<u64> {
    let mut fallen = BTreeMap::new();
    for level in &lineage.levels {
        // An ancestor's rows of inherited turns hide those further up, even if those are current.
        let mut rows = db.prepare_cached(&format!(
            "SELECT {TURN_COLUMNS} FROM turn_rows t
             WHERE t.conversation = ?1 AND t.superseded_by IS NOT NULL AND t.seq > ?2 AND t.seq <= ?3
             UNION ALL SELECT {TURN_COLUMNS} FROM turn_rows t WHERE t.conversation = ?1 AND t.seq > ?2 AND t.seq <= min(?3, ?4)
             UNION ALL SELECT {TURN_COLUMNS} FROM turn_rows t
             WHERE t.conversation = ?1 AND t.place IS NOT NULL AND t.place <= ?2 AND t.seq > ?2 AND t.seq <= ?3"
        ))?;
        let is_own = lineage.levels.first().is_some_and(|own| own.no == level.no);
        let inherited = if is_own { 0 } else { level.floor };
        let parameters = params![level.no, signed(after), signed(level.cap), signed(inherited)];
        for row in rows.query_map(parameters, rows::turn)? {
            let row = row?;
            fallen.entry(row.seq).or_insert_with(|| {
                let row = lineage.seen(level, row);
                row.superseded_by.is_some() || row.place <= after
            });
        }
    }
    Ok(fallen.into_values().filter(|fallen| *fallen).count() as u64)
}

/// A row with the events that it depends on. `last` is the event read before, if any: its hash need not be
/// looked up again.
pub fn stored(
    db: &Connection,
    lineage: &Lineage,
    row: TurnRow,
    last: &mut Option<Head>,
) -> rusqlite::Result<StoredTurn> {
    let mut events = Vec::with_capacity(1);
    for seq in row.places() {
        let known = last.filter(|head| head.seq + 1 == seq && lineage.recent_at(seq).is_none());
        let event = match known {
            Some(before) => event_after(db, lineage, seq, before.hash)?,
            None => event_at(db, lineage, seq)?,
        };
        if seq == row.seq {
            *last = event.as_ref().map(|event| Head { seq, hash: event.hash });
        }
        events.extend(event);
    }
    Ok(StoredTurn { conversation: lineage.id(), row, events })
}

/// The durable text of an open turn.
pub fn open_text(db: &Connection, no: i64, turn_seq: u64) -> rusqlite::Result<String> {
    let pieces: Vec<(u64, String)> = db
        .prepare_cached(
            "SELECT offset, text FROM chunks WHERE conversation = ? AND turn_seq = ? ORDER BY offset, no",
        )?
        .query_map(params![no, signed(turn_seq)], |row| Ok((rows::unsigned(row, "offset")?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    Ok(everturn_core::turn::join_chunks(pieces))
}

/// Number of assets of the tenant with these bytes, including those that only the forks of a deleted
/// conversation show. The tenant of a buried tombstone has a slash and a suffix.
pub fn asset_count(db: &Connection, tenant: &TenantName, sha256: Hash) -> rusqlite::Result<u64> {
    db.prepare_cached(
        "SELECT count(*) FROM assets a JOIN conversation_rows c ON c.no = a.conversation
         WHERE a.sha256 = ?1 AND (c.tenant = ?2 OR substr(c.tenant, 1, length(?2) + 1) = ?2 || '/')",
    )?
    .query_row(params![Bytes(sha256.0), tenant.as_str()], |row| rows::unsigned(row, 0))
}

/// Direct forks of a conversation. If a row does not say how much a fork inherited, it is everything.
pub fn forks(db: &Connection, conversation: u64) -> rusqlite::Result<Vec<Fork>> {
    db.prepare_cached(
        "SELECT no, iif(typeof(parent_seq) = 'integer' AND parent_seq >= 0, parent_seq, ?2), deleted IS NOT NULL
         FROM conversation_rows WHERE parent = ?1",
    )?
    .query_map([signed(conversation), i64::MAX], |row| {
        Ok(Fork {
            conversation: rows::unsigned(row, 0)?,
            at_seq: rows::unsigned(row, 1)?,
            deleted: row.get(2)?,
        })
    })?
    .collect()
}

/// `seq` of the last event of a conversation that living forks read.
pub fn needed(db: &Connection, no: i64) -> rusqlite::Result<u64> {
    write::needed(no as u64, |conversation| forks(db, conversation))
}

/// A living fork that reads an event of a deleted conversation.
pub fn reader(db: &Connection, no: i64, seq: u64) -> rusqlite::Result<Option<ConversationId>> {
    let Some(reader) = write::reader(no as u64, seq, |conversation| forks(db, conversation))? else {
        return Ok(None);
    };
    let mut id = db.prepare_cached("SELECT id FROM conversation_rows WHERE no = ?")?;
    let id: Bytes<16> = id.query_row([signed(reader)], |row| row.get(0))?;
    Ok(Some(ConversationId::from_bytes(id.0)))
}

/// Statements of facts in the conversations of a tenant.
pub fn statements(
    db: &Connection,
    tenant: &TenantName,
    of: StatementsOf,
) -> rusqlite::Result<Vec<Statement>> {
    let all = "SELECT f.conversation, c.id AS conversation_id, f.seq, f.id, f.source_turn, f.corrects
         FROM fact_rows f JOIN conversation_rows c ON c.no = f.conversation WHERE c.tenant = ?1";
    let order = "ORDER BY f.conversation, f.seq";
    let read = |which: &str, values: &[&dyn ToSql]| {
        db.prepare_cached(&format!("{all} AND {which} {order}"))?.query_map(values, statement)?.collect()
    };
    let tenant = tenant.as_str();
    match of {
        StatementsOf::Source(turn) => read("f.source_turn = ?2", &[&tenant, &Bytes(turn.to_bytes())]),
        StatementsOf::Fact(fact) => {
            read("(f.id = ?2 OR f.corrects = ?2)", &[&tenant, &Bytes(fact.to_bytes())])
        }
        StatementsOf::Event(at) => {
            read("f.conversation = ?2 AND f.seq = ?3", &[&tenant, &signed(at.conversation), &signed(at.seq)])
        }
    }
}

fn statement(row: &Row<'_>) -> rusqlite::Result<Statement> {
    let seq = rows::unsigned(row, "seq")?;
    let source_turn: Option<Bytes<16>> = row.get("source_turn")?;
    let corrects: Option<Bytes<16>> = row.get("corrects")?;
    Ok(Statement {
        conversation: ConversationId::from_bytes(row.get::<_, Bytes<16>>("conversation_id")?.0),
        at: EventRef { conversation: rows::unsigned(row, "conversation")?, seq },
        row: FactRow {
            id: FactId::from_bytes(row.get::<_, Bytes<16>>("id")?.0),
            seq,
            source_turn: source_turn.map(|turn| TurnId::from_bytes(turn.0)),
            corrects: corrects.map(|fact| FactId::from_bytes(fact.0)),
        },
    })
}

/// Number of events examined in one call of [`written_by`].
const WRITTEN_WINDOW: u64 = 10_000;

/// A page of an actor's turns and events.
pub fn written_by(
    db: &Connection,
    tenant: &TenantName,
    actor: &str,
    after: u64,
) -> rusqlite::Result<Option<WrittenPage>> {
    let last: i64 = db.query_row("SELECT coalesce(max(no), 0) FROM events", [], |row| row.get(0))?;
    if after >= last as u64 {
        return Ok(None);
    }
    let through = after.saturating_add(WRITTEN_WINDOW).min(last as u64);
    let found = db
        .prepare_cached(
            // The tenant of a tombstone whose id was reused has a slash and a suffix.
            "SELECT c.no, c.id, c.deleted IS NOT NULL AS deleted, e.seq, e.kind, e.turn
             FROM events e JOIN conversation_rows c ON c.no = e.conversation
             WHERE e.no > ?1 AND e.no <= ?2 AND e.actor = ?3 AND (e.salt <> zeroblob(16) OR trim(e.body) <> '')
               AND (c.tenant = ?4 OR substr(c.tenant, 1, length(?4) + 1) = ?4 || '/') ORDER BY e.no",
        )?
        .query_map(params![signed(after), signed(through), actor, tenant.as_str()], |row| {
            let conversation = ConversationId::from_bytes(row.get::<_, Bytes<16>>("id")?.0);
            let turn = row.get::<_, Option<Bytes<16>>>("turn")?.map(|turn| TurnId::from_bytes(turn.0));
            let place = EventAddress { conversation, seq: rows::unsigned(row, "seq")? };
            let written = Written { place, seen_in: conversation, kind: row.get("kind")?, turn };
            Ok((row.get::<_, i64>("no")?, row.get::<_, bool>("deleted")?, written))
        })?
        .collect::<Result<Vec<_>, _>>()?;
    let mut events = Vec::with_capacity(found.len());
    for (no, deleted, mut written) in found {
        if deleted {
            let fork: Option<Bytes<16>> = db
                .prepare_cached(
                    "WITH RECURSIVE family (no) AS (SELECT ?1 UNION
                         SELECT c.no FROM conversation_rows c JOIN family f ON c.parent = f.no WHERE c.parent_seq >= ?2)
                     SELECT c.id FROM family f JOIN conversation_rows c ON c.no = f.no WHERE c.deleted IS NULL LIMIT 1",
                )?
                .query_row(params![no, signed(written.place.seq)], |row| row.get(0))
                .optional()?;
            let Some(fork) = fork else { continue };
            written.seen_in = ConversationId::from_bytes(fork.0);
        }
        events.push(written);
    }
    Ok(Some(WrittenPage { events, through }))
}
