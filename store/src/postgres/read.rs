//! Queries, on any connection. Each function is one round trip, whatever the number of rows and ancestors.

use super::db::Db;
use super::rows::{self, EVENT_COLUMNS, TURN_COLUMNS, signed};
use crate::{StoredTurn, TurnQuery};
use everturn_core::Error;
use everturn_core::chain::{Hash, Head};
use everturn_core::conversation::Conversation;
use everturn_core::event::Event;
use everturn_core::id::{ConversationId, FactId, Key, TenantName, TurnId};
use everturn_core::limits::PAGE_BYTES_MAX;
use everturn_core::turn::TurnRow;
use everturn_core::write::{EventRef, FactRow, Fork, Statement, StatementsOf};
use std::collections::HashMap;
use tokio_postgres::types::ToSql;

#[derive(Clone, Copy, Debug)]
pub struct Level {
    pub no: i64,
    pub id: ConversationId,
    pub floor: u64,
    pub cap: u64,
    pub deleted: bool,
}

/// A conversation, its parent, the parent's parent, …
#[derive(Clone)]
pub struct Lineage {
    pub tenant: TenantName,
    pub levels: Vec<Level>,
}

impl Lineage {
    pub fn owner(&self, seq: u64) -> Option<&Level> {
        self.levels.iter().find(|level| seq > level.floor && seq <= level.cap)
    }

    fn seen(&self, depth: usize, row: TurnRow) -> TurnRow {
        if depth == 0 { row } else { row.as_of(self.levels[depth].cap) }
    }

    fn arrays(&self) -> (Vec<i64>, Vec<i64>, Vec<i64>) {
        let of = |value: fn(&Level) -> i64| self.levels.iter().map(value).collect();
        (of(|l| l.no), of(|l| signed(l.floor)), of(|l| signed(l.cap)))
    }
}

pub fn conversation(db: &Db, key: &Key) -> Result<Option<(i64, Conversation)>, Error> {
    let sql = "SELECT no, row FROM conversation_rows WHERE tenant = $1 AND id = $2 AND NOT replaced AND deleted IS NULL";
    let row = db.query_one(sql, &[&key.tenant.as_str(), &&key.id.to_bytes()[..]])?;
    row.map(|row| Ok((rows::get(&row, 0)?, rows::conversation(rows::get(&row, 1)?)?))).transpose()
}

/// Rows to join, found by a key for each row before them. As a plain join of tables without statistics, they would be found by
/// reading all rows of the tenant. The key is that of one index and nothing more: else another one may be taken.
pub fn one(table: &str, key: &str) -> String {
    let name = table.rsplit(' ').next().unwrap_or(table);
    format!("LATERAL (SELECT {name}.* FROM {table} WHERE {key} OFFSET 0) {name}")
}

/// Living conversations.
pub fn conversations(db: &Db, keys: &[&Key]) -> Result<HashMap<Key, Conversation>, Error> {
    let sql = format!(
        "SELECT c.row FROM unnest($1::text[], $2::bytea[]) AS k (tenant, id) JOIN {} ON true",
        one(
            "conversation_rows c",
            "c.tenant = k.tenant AND c.id = k.id AND NOT c.replaced AND c.deleted IS NULL"
        )
    );
    let tenants: Vec<&str> = keys.iter().map(|key| key.tenant.as_str()).collect();
    let ids: Vec<Vec<u8>> = keys.iter().map(|key| key.id.to_bytes().to_vec()).collect();
    let found = db.query(&sql, &[&tenants, &ids])?;
    let found = found.iter().map(|row| rows::conversation(rows::get(row, 0)?));
    found.map(|found| found.map(|c| (Key { tenant: c.tenant.clone(), id: c.id }, c))).collect()
}

/// A living conversation with its ancestors.
pub fn lineage_of(db: &Db, key: &Key) -> Result<Option<Lineage>, Error> {
    let start = "tenant = $1 AND id = $2 AND NOT replaced AND deleted IS NULL";
    lineage_where(db, &key.tenant, start, &&key.id.to_bytes()[..])
}

/// The same for any conversation, by its number.
pub fn lineage_at(db: &Db, tenant: &TenantName, no: i64) -> Result<Option<Lineage>, Error> {
    lineage_where(db, tenant, "tenant = $1 AND no = $2", &no)
}

fn lineage_where(
    db: &Db,
    tenant: &TenantName,
    start: &str,
    name: &(dyn ToSql + Sync),
) -> Result<Option<Lineage>, Error> {
    let sql = format!(
        "WITH RECURSIVE line AS (
             SELECT no, id, parent, parent_seq, deleted, 0 AS depth FROM conversation_rows WHERE {start}
             UNION ALL SELECT c.no, c.id, c.parent, c.parent_seq, c.deleted, l.depth + 1
             FROM line l JOIN conversation_rows c ON c.tenant = $1 AND c.no = l.parent WHERE l.depth < 1000)
         SELECT no, id, coalesce(parent_seq, 0), deleted IS NOT NULL FROM line ORDER BY depth"
    );
    let mut cap = i64::MAX as u64;
    let mut levels = Vec::new();
    for row in db.query(&sql, &[&tenant.as_str(), name])? {
        let floor = rows::unsigned(&row, 2)?;
        let id = ConversationId::from_bytes(rows::bytes(&row, 1)?);
        levels.push(Level { no: rows::get(&row, 0)?, id, floor, cap, deleted: rows::get(&row, 3)? });
        cap = cap.min(floor);
    }
    Ok((!levels.is_empty()).then(|| Lineage { tenant: tenant.clone(), levels }))
}

pub fn hash_at(db: &Db, lineage: &Lineage, seq: u64) -> Result<Option<Hash>, Error> {
    if seq == 0 {
        return Ok(lineage.levels.last().map(|oldest| Head::genesis(oldest.id).hash));
    }
    let Some(level) = lineage.owner(seq) else { return Ok(None) };
    let row = db.query_one(
        "SELECT hash FROM events WHERE tenant = $3 AND conversation = $1 AND seq = $2",
        &[&level.no, &signed(seq), &lineage.tenant.as_str()],
    )?;
    row.map(|row| rows::bytes(&row, 0).map(Hash)).transpose()
}

/// The hashes of several events, in one statement.
pub fn hashes_at(db: &Db, lineage: &Lineage, seqs: &[u64]) -> Result<HashMap<u64, Option<Hash>>, Error> {
    let owned = seqs.iter().filter_map(|seq| Some((lineage.owner(*seq)?.no, signed(*seq))));
    let (nos, places): (Vec<i64>, Vec<i64>) = owned.unzip();
    let sql = format!(
        "SELECT e.seq, e.hash FROM unnest($1::bigint[], $2::bigint[]) AS n (conversation, seq) JOIN {} ON true",
        one("events e", "e.tenant = $3 AND e.conversation = n.conversation AND e.seq = n.seq")
    );
    let mut found: HashMap<u64, Option<Hash>> = seqs.iter().map(|seq| (*seq, None)).collect();
    for row in &db.query(&sql, &[&nos, &places, &lineage.tenant.as_str()])? {
        found.insert(rows::unsigned(row, 0)?, Some(Hash(rows::bytes(row, 1)?)));
    }
    Ok(found)
}

/// A page of events. The event before it is read as well, for the hash before the first.
pub fn events(db: &Db, lineage: &Lineage, after: u64, limit: usize) -> Result<Vec<Event>, Error> {
    let (nos, floors, caps) = lineage.arrays();
    let sql = format!(
        "SELECT {EVENT_COLUMNS}, l.depth FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) WITH ORDINALITY AS l (no, floor, cap, depth)
         CROSS JOIN LATERAL (SELECT * FROM events e WHERE e.tenant = $6 AND e.conversation = l.no AND e.seq > greatest($4, l.floor) AND e.seq <= l.cap
             ORDER BY e.seq LIMIT $5) e ORDER BY e.seq LIMIT $5"
    );
    let from = after.saturating_sub(1);
    let wanted = signed(limit as u64).saturating_add(signed(after - from));
    let (mut out, mut bytes, mut prev): (Vec<Event>, usize, Option<(u64, Hash)>) = (Vec::new(), 0, None);
    for row in db.query(&sql, &[&nos, &floors, &caps, &signed(from), &wanted, &lineage.tenant.as_str()])? {
        let depth = rows::get::<i64>(&row, 14)? as usize - 1;
        let seq = rows::unsigned(&row, 0)?;
        let before = match prev {
            Some((at, hash)) if at + 1 == seq => hash,
            _ if seq == 1 => Head::genesis(lineage.levels[depth].id).hash,
            _ => Hash([0; 32]),
        };
        let event = rows::event(&row, lineage.levels[depth].id, before)?;
        prev = Some((seq, event.hash));
        if seq <= after || out.len() >= limit {
            continue;
        }
        bytes += event.text().map_or(0, str::len);
        out.push(event);
        if bytes >= PAGE_BYTES_MAX {
            break;
        }
    }
    Ok(out)
}

/// The places before these. Computed here: under row-level security an index is not used for the result of an operator that can
/// fail, such as `-`, and the whole conversation would be read.
fn previous(places: &[i64]) -> Vec<i64> {
    places.iter().map(|place| place - 1).collect()
}

/// The events with these `seq` numbers, with their `prev`.
pub fn events_at(db: &Db, lineage: &Lineage, seqs: &[u64]) -> Result<HashMap<u64, Event>, Error> {
    let mut found = HashMap::new();
    let owned: Vec<(u64, &Level)> =
        seqs.iter().filter_map(|seq| Some((*seq, lineage.owner(*seq)?))).collect();
    if owned.is_empty() {
        return Ok(found);
    }
    let nos: Vec<i64> = owned.iter().map(|(_, level)| level.no).collect();
    let before: Vec<Option<i64>> =
        owned.iter().map(|(seq, _)| lineage.owner(seq - 1).map(|level| level.no)).collect();
    let places: Vec<i64> = owned.iter().map(|(seq, _)| signed(*seq)).collect();
    let previous = previous(&places);
    let sql = format!(
        "SELECT {EVENT_COLUMNS}, p.hash FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $5::bigint[]) AS w (conversation, seq, before, previous)
         JOIN {} ON true LEFT JOIN {} ON true",
        one("events e", "e.tenant = $4 AND e.conversation = w.conversation AND e.seq = w.seq"),
        one("events p", "p.tenant = $4 AND p.conversation = w.before AND p.seq = w.previous")
    );
    for row in db.query(&sql, &[&nos, &places, &before, &lineage.tenant.as_str(), &previous])? {
        let seq = rows::unsigned(&row, 0)?;
        let Some(level) = lineage.owner(seq) else { continue };
        let prev = match rows::optional_bytes(&row, 14)? {
            Some(hash) => Hash(hash),
            None if seq == 1 => Head::genesis(level.id).hash,
            None => Hash([0; 32]),
        };
        found.insert(seq, rows::event(&row, level.id, prev)?);
    }
    Ok(found)
}

pub fn turn_row(db: &Db, lineage: &Lineage, id: TurnId) -> Result<Option<TurnRow>, Error> {
    Ok(turn_rows(db, lineage, &[id])?.remove(&id).flatten())
}

/// Several turns as a conversation sees them, in one statement.
pub fn turn_rows(
    db: &Db,
    lineage: &Lineage,
    ids: &[TurnId],
) -> Result<HashMap<TurnId, Option<TurnRow>>, Error> {
    let (nos, _, _) = lineage.arrays();
    let sql = format!(
        "SELECT {TURN_COLUMNS}, t.conversation FROM turn_rows t WHERE t.tenant = $3 AND t.conversation = ANY ($1) AND t.id = ANY ($2)"
    );
    let bytes: Vec<Vec<u8>> = ids.iter().map(|id| id.to_bytes().to_vec()).collect();
    let mut by_level: HashMap<i64, Vec<TurnRow>> = HashMap::new();
    for row in &db.query(&sql, &[&nos, &bytes, &lineage.tenant.as_str()])? {
        by_level.entry(rows::get(row, 11)?).or_default().push(rows::turn(row)?);
    }
    let mut found: HashMap<TurnId, Option<TurnRow>> = ids.iter().map(|id| (*id, None)).collect();
    // From the oldest on: where several levels have a turn, the row of the youngest counts.
    for (depth, level) in lineage.levels.iter().enumerate().rev() {
        for row in by_level.remove(&level.no).unwrap_or_default() {
            found.insert(row.id, (row.seq <= level.cap).then(|| lineage.seen(depth, row)));
        }
    }
    Ok(found)
}

/// Turns of a level `l` as far as it is read. Where several levels have one, that of the youngest.
fn of_level(lineage: &Lineage) -> String {
    let youngest = match lineage.levels.len() {
        1 => "",
        _ => {
            "AND NOT EXISTS (SELECT 1 FROM turn_rows y WHERE y.tenant = $3 AND y.conversation = ANY (($1::bigint[])[1:(l.depth - 1)::int]) AND y.seq = t.seq)"
        }
    };
    format!("turn_rows t WHERE t.tenant = $3 AND t.conversation = l.no AND t.seq <= l.cap {youngest}")
}

/// The levels, as parameters $1 and $2; the tenant is $3.
const LEVELS: &str = "unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS l (no, cap, depth)";

/// Rows in a range of positions, of all levels. Every part of it reads a range of an index, and no more than it returns.
fn turn_page(
    db: &Db,
    lineage: &Lineage,
    low: u64,
    high: u64,
    query: &TurnQuery,
) -> Result<Vec<TurnRow>, Error> {
    let (nos, _, mut caps) = lineage.arrays();
    if let Some(seq) = query.as_of {
        caps.iter_mut().for_each(|cap| *cap = (*cap).min(signed(seq)));
    }
    let order = if query.descending { "DESC" } else { "ASC" };
    let of = of_level(lineage);
    let moved = if query.moved_after.is_some() { "AND t.placed_seq > $7" } else { "" };
    // No place is greater than its turn's `seq`.
    let page = |position: &str, which: &str| {
        format!(
            "(SELECT t.* FROM {of} AND {position} BETWEEN $4 AND least($5, l.cap) {which} {moved} ORDER BY {position} {order} LIMIT $6)"
        )
    };
    // Only the places of turns that were moved are in an index: the others stand at their `seq`.
    let placed = |which: &str| {
        let moved = page("t.place", &format!("AND t.placed_seq <= l.cap {which}"));
        match query.moved_after {
            Some(_) => moved,
            None => {
                format!("{} UNION ALL {moved}", page("t.seq", &format!("AND t.placed_seq IS NULL {which}")))
            }
        }
    };
    // Superseded turns share the places of others, and a page must not end between them.
    let rows = match query.whole_log {
        true => page("t.seq", ""),
        false if lineage.levels.len() == 1 && query.as_of.is_none() => placed("AND t.superseded_seq IS NULL"),
        false => {
            let stands = "AND coalesce(t.superseded_seq > l.cap, true)";
            // Edits that came to their places later stand where they were said: few, so all of them are read.
            let not_yet =
                format!("SELECT t.* FROM {of} AND t.placed_seq > l.cap AND t.seq BETWEEN $4 AND $5 {stands}");
            let placed = placed(stands);
            if query.moved_after.is_some() { placed } else { format!("{placed} UNION ALL {not_yet}") }
        }
    };
    let sql = format!(
        "SELECT {TURN_COLUMNS}, l.depth FROM {LEVELS} CROSS JOIN LATERAL ({rows}) t ORDER BY l.depth"
    );
    let (tenant, low, high, limit) =
        (lineage.tenant.as_str(), signed(low), signed(high), signed(query.limit as u64));
    let mut params: Vec<&(dyn ToSql + Sync)> = vec![&nos, &caps, &tenant, &low, &high, &limit];
    let after = query.moved_after.map(signed);
    params.extend(after.as_ref().map(|after| after as &(dyn ToSql + Sync)));
    let mut rows = Vec::new();
    for row in db.query(&sql, &params)? {
        let depth = rows::get::<i64>(&row, 11)? as usize - 1;
        rows.push(query.seen(lineage.seen(depth, rows::turn(&row)?)));
    }
    rows.sort_by_key(|row| query.position(row));
    if query.descending {
        rows.reverse();
    }
    rows.truncate(query.limit);
    Ok(rows)
}

pub fn turns(db: &Db, lineage: &Lineage, query: &TurnQuery) -> Result<Vec<StoredTurn>, Error> {
    let (mut low, mut high) = query.range();
    let mut rows: Vec<TurnRow> = Vec::new();
    while low <= high && rows.len() < query.limit {
        let page = turn_page(db, lineage, low, high, query)?;
        let Some(last) = page.last().map(|row| query.position(row)) else { break };
        if query.descending {
            high = last - 1
        } else {
            low = last + 1
        }
        let wanted = page.into_iter().filter(|row| query.takes(row));
        rows.extend(wanted.take(query.limit - rows.len()));
    }
    let (mut turns, mut bytes) = (Vec::new(), 0);
    for group in rows.chunks(64) {
        let mut events = events_at(db, lineage, &group.iter().flat_map(TurnRow::places).collect::<Vec<_>>())?;
        for row in group {
            turns.push(stored_from(lineage, row.clone(), &mut events));
            if query.is_full(&turns, &mut bytes) {
                return Ok(turns);
            }
        }
    }
    Ok(turns)
}

fn stored_from(lineage: &Lineage, row: TurnRow, events: &mut HashMap<u64, Event>) -> StoredTurn {
    let events = row.places().filter_map(|seq| events.get(&seq).cloned()).collect();
    StoredTurn { conversation: lineage.levels[0].id, row, events }
}

pub fn stored(db: &Db, lineage: &Lineage, row: TurnRow) -> Result<StoredTurn, Error> {
    let mut events = events_at(db, lineage, &row.places().collect::<Vec<_>>())?;
    Ok(stored_from(lineage, row, &mut events))
}

/// Turns that were written in these living conversations; `None` for others. Two round trips for all.
pub fn own_turns(
    db: &Db,
    tenant: &TenantName,
    turns: &[(ConversationId, TurnId)],
) -> Result<Vec<Option<StoredTurn>>, Error> {
    let mut found: Vec<Option<StoredTurn>> = turns.iter().map(|_| None).collect();
    let conversations: Vec<Vec<u8>> = turns.iter().map(|(id, _)| id.to_bytes().to_vec()).collect();
    let ids: Vec<Vec<u8>> = turns.iter().map(|(_, id)| id.to_bytes().to_vec()).collect();
    let sql = format!(
        "SELECT {TURN_COLUMNS}, c.no, coalesce(c.parent_seq, 0), n.nth FROM unnest($2::bytea[], $3::bytea[]) WITH ORDINALITY AS n (conversation, id, nth)
         JOIN {} ON true JOIN {} ON t.conversation = c.no",
        one("conversation_rows c", "c.tenant = $1 AND c.id = n.conversation AND NOT c.replaced AND c.deleted IS NULL"),
        one("turn_rows t", "t.tenant = $1 AND t.id = n.id")
    );
    let (mut nos, mut seqs, mut nths) = (Vec::new(), Vec::new(), Vec::new());
    for row in db.query(&sql, &[&tenant.as_str(), &conversations, &ids])? {
        let (no, floor): (i64, u64) = (rows::get(&row, 11)?, rows::unsigned(&row, 12)?);
        let nth = rows::unsigned(&row, 13)? as usize - 1;
        let row = rows::turn(&row)?;
        // The hash before the first event of a fork is the parent's.
        if row.places().any(|seq| seq <= floor + 1 && floor > 0) {
            continue;
        }
        for seq in row.places() {
            nos.push(no);
            seqs.push(signed(seq));
            nths.push(nth as i64);
        }
        found[nth] = Some(StoredTurn { conversation: turns[nth].0, row, events: Vec::new() });
    }
    if nos.is_empty() {
        return Ok(found);
    }
    let sql = format!(
        "SELECT {EVENT_COLUMNS}, p.hash, w.nth FROM unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[]) WITH ORDINALITY AS w (conversation, seq, nth, previous, place)
         JOIN {} ON true LEFT JOIN {} ON true ORDER BY w.place",
        one("events e", "e.tenant = $1 AND e.conversation = w.conversation AND e.seq = w.seq"),
        one("events p", "p.tenant = $1 AND p.conversation = w.conversation AND p.seq = w.previous")
    );
    for row in db.query(&sql, &[&tenant.as_str(), &nos, &seqs, &nths, &previous(&seqs)])? {
        let nth = rows::unsigned(&row, 15)? as usize;
        let Some(turn) = &mut found[nth] else { continue };
        let prev = match rows::optional_bytes(&row, 14)? {
            Some(hash) => Hash(hash),
            None if rows::unsigned(&row, 0)? == 1 => Head::genesis(turn.conversation).hash,
            None => Hash([0; 32]),
        };
        turn.events.push(rows::event(&row, turn.conversation, prev)?);
    }
    Ok(found)
}

pub fn fallen_after(db: &Db, lineage: &Lineage, after: u64) -> Result<u64, Error> {
    let (nos, _, caps) = lineage.arrays();
    let of = of_level(lineage);
    let sql = format!(
        "SELECT count(*) FROM {LEVELS} CROSS JOIN LATERAL (
             SELECT t.seq FROM {of} AND t.superseded_seq <= l.cap AND t.seq > $4
             UNION SELECT t.seq FROM {of} AND t.placed_seq <= l.cap AND t.place <= $4 AND t.seq > $4) t"
    );
    let row = db.query_one(&sql, &[&nos, &caps, &lineage.tenant.as_str(), &signed(after)])?;
    row.map_or(Ok(0), |row| rows::unsigned(&row, 0))
}

pub fn count_turns(db: &Db, lineage: &Lineage, through: u64) -> Result<u64, Error> {
    let (nos, floors, caps) = lineage.arrays();
    let sql = "SELECT count(*) FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS l (no, floor, cap)
         JOIN turn_rows t ON t.tenant = $5 AND t.conversation = l.no AND t.seq > l.floor AND t.seq <= least(l.cap, $4)";
    let row = db.query_one(sql, &[&nos, &floors, &caps, &signed(through), &lineage.tenant.as_str()])?;
    row.map_or(Ok(0), |row| rows::unsigned(&row, 0))
}

pub fn forks(db: &Db, tenant: &TenantName, conversation: u64) -> Result<Vec<Fork>, Error> {
    let sql = "SELECT no, parent_seq, deleted IS NOT NULL FROM conversation_rows WHERE tenant = $2 AND parent = $1 ORDER BY no";
    let found = db.query(sql, &[&signed(conversation), &tenant.as_str()])?;
    let fork = |row| {
        Ok(Fork {
            conversation: rows::unsigned(row, 0)?,
            at_seq: rows::unsigned(row, 1)?,
            deleted: rows::get(row, 2)?,
        })
    };
    found.iter().map(fork).collect()
}

pub fn statements(db: &Db, tenant: &TenantName, of: StatementsOf) -> Result<Vec<Statement>, Error> {
    let read = |which: &str, params: &[&(dyn ToSql + Sync)]| {
        db.query(
            &format!(
                "SELECT f.conversation, c.id, f.seq, f.id, f.source_turn, f.corrects FROM fact_statements f
                 JOIN conversation_rows c ON c.tenant = $1 AND c.no = f.conversation WHERE f.tenant = $1 AND {which} ORDER BY f.conversation, f.seq"
            ),
            params,
        )
    };
    let tenant = tenant.as_str();
    let found = match of {
        StatementsOf::Source(turn) => read("f.source_turn = $2", &[&tenant, &&turn.to_bytes()[..]])?,
        StatementsOf::Fact(fact) => {
            read("(f.id = $2 OR f.corrects = $2)", &[&tenant, &&fact.to_bytes()[..]])?
        }
        StatementsOf::Event(at) => {
            read("f.conversation = $2 AND f.seq = $3", &[&tenant, &signed(at.conversation), &signed(at.seq)])?
        }
    };
    let statement = |row| {
        let seq = rows::unsigned(row, 2)?;
        Ok(Statement {
            conversation: ConversationId::from_bytes(rows::bytes(row, 1)?),
            at: EventRef { conversation: rows::unsigned(row, 0)?, seq },
            row: FactRow {
                id: FactId::from_bytes(rows::bytes(row, 3)?),
                seq,
                source_turn: rows::optional_bytes(row, 4)?.map(TurnId::from_bytes),
                corrects: rows::optional_bytes(row, 5)?.map(FactId::from_bytes),
            },
        })
    };
    found.iter().map(statement).collect()
}

pub fn asset_count(db: &Db, tenant: &TenantName, sha256: Hash) -> Result<u64, Error> {
    let sql = "SELECT count(*) FROM asset_rows WHERE sha256 = $1 AND tenant = $2";
    let row = db.query_one(sql, &[&&sha256.0[..], &tenant.as_str()])?;
    row.map_or(Ok(0), |row| rows::unsigned(&row, 0))
}

/// A conversation ($1) and all forks that see one of its events ($2), of a tenant ($3).
pub const FAMILY: &str = "WITH RECURSIVE family (no) AS
    (SELECT $1::bigint UNION SELECT c.no FROM conversation_rows c JOIN family f ON c.parent = f.no WHERE c.tenant = $3 AND c.parent_seq >= $2)";
