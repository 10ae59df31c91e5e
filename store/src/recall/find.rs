//! Lexical search in a tenant's file: `propose` selects candidates, this runs its queries.

use super::propose::{self, BEGINNING_WORDS_MAX, COUNTED_ENTRIES_MAX, Matching, SCOPE_WORDS_MAX, Words};
use super::sign_bits::Rows;
use super::{Ground, entries, kind_number, kind_of};
use crate::sqlite::rows::{Bytes, signed};
use crate::{Proposal, Proposed};
use everturn_core::Error;
use everturn_core::id::{ConversationId, Key, TenantName, TurnId};
use everturn_core::time::Timestamp;
use everturn_core::viewer::Viewer;
use everturn_views::recall::{EntryId, EntryNo, Filter, TextQuery, Wanted};
use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension};
use std::collections::{HashMap, HashSet};

/// Number of entries above which a word's count is cached, since counting takes a moment.
const COMMON_ENTRIES_MIN: u64 = 500;

/// Maximum distance of a neighbouring turn, in events: where a filter leaves few turns, the search stops here.
const BESIDE_EVENTS_MAX: u64 = 50;
/// The same in turns, where these are read in another order than that of the log.
pub const BESIDE_TURNS_MAX: usize = 16;

/// Cached counts of common words.
#[derive(Default)]
pub struct Common {
    entries: HashMap<String, u64>,
    /// For very common prefixes, the commonest words with the prefix.
    /// FTS5 sorts all entries of a prefix before it returns the first, but those of whole words one by one, on
    /// demand.
    beginnings: HashMap<String, Vec<String>>,
    /// Number of entries when counting began.
    total: u64,
}

const CONVERSATION: &str = "SELECT no FROM conversations WHERE id = ?";

/// Scope of a search.
pub struct Searched {
    levels: Option<Vec<(ConversationId, u64)>>,
    filter: Filter,
}

impl Searched {
    /// `None` if nothing can be found there.
    pub fn new(ground: &dyn Ground, tenant: &TenantName, filter: &Filter) -> Result<Option<Searched>, Error> {
        let levels = match filter.conversation {
            None => None,
            Some(id) => {
                let key = Key { tenant: tenant.clone(), id };
                let through = filter.through_seq.unwrap_or(u64::MAX);
                let levels = ground.levels(&key)?;
                if levels.is_empty() {
                    return Ok(None);
                }
                Some(levels.into_iter().map(|(id, cap)| (id, cap.min(through))).collect())
            }
        };
        Ok(Some(Searched { levels, filter: filter.clone() }))
    }

    /// The scope in numbers of this file; `None` if it knows neither the conversation nor any of the actors.
    pub fn resolve(&self, db: &Connection) -> rusqlite::Result<Option<Resolved>> {
        let number = |sql: &str, parameters: &[&dyn rusqlite::ToSql]| {
            db.prepare_cached(sql)?.query_row(parameters, |row| row.get::<_, i64>(0)).optional()
        };
        let (mut all, mut words) = (Vec::new(), Vec::new());
        let mut rows = Rows {
            roles: self.filter.index_roles().into_iter().map(String::from).collect(),
            kinds: self.filter.kinds.iter().map(|kind| kind_number(*kind)).collect(),
            after: self.filter.after.map(|at| at.0),
            before: self.filter.before.map(|at| at.0),
            ..Rows::default()
        };
        let stands = |cap: u64| match self.filter.include_superseded {
            true => String::new(),
            false => format!(" AND (e.fallen IS NULL OR e.fallen > {})", signed(cap)),
        };
        match &self.levels {
            None if self.filter.among.is_some() => {
                let mut named = Vec::new();
                for id in self.filter.among.iter().flatten() {
                    named.extend(number(CONVERSATION, &[&Bytes(id.to_bytes())])?);
                }
                if named.is_empty() {
                    return Ok(None);
                }
                named.sort_unstable();
                let list: Vec<String> = named.iter().map(i64::to_string).collect();
                all.push(format!("e.conversation IN ({}){}", list.join(", "), stands(u64::MAX)));
                if named.len() <= SCOPE_WORDS_MAX {
                    words.push(list.iter().map(|no| format!("c{no}")).collect());
                }
                rows.conversations = Some(named);
            }
            None => all.push(format!("1{}", stands(u64::MAX))),
            Some(levels) => {
                let (mut any, mut named) = (Vec::new(), Vec::new());
                let last = self.filter.before_seq.map_or(u64::MAX, |before| before.saturating_sub(1));
                for (id, cap) in levels {
                    if let Some(no) = number(CONVERSATION, &[&Bytes(id.to_bytes())])? {
                        any.push(format!(
                            "(e.conversation = {no} AND e.seq <= {}{})",
                            signed(last.min(*cap)),
                            stands(*cap)
                        ));
                        named.push(no);
                    }
                }
                if any.is_empty() {
                    return Ok(None);
                }
                all.push(format!("({})", any.join(" OR ")));
                words.push(named.iter().map(|no| format!("c{no}")).collect());
                named.sort_unstable();
                rows.conversations = Some(named);
            }
        }
        if !self.filter.actors.is_empty() {
            let mut numbers = Vec::new();
            for actor in &self.filter.actors {
                numbers.extend(number("SELECT no FROM actors WHERE name = ?", &[actor])?);
            }
            if numbers.is_empty() {
                return Ok(None);
            }
            let list: Vec<String> = numbers.iter().map(i64::to_string).collect();
            rows.actors = numbers;
            all.push(format!("e.actor IN ({})", list.join(", ")));
            words.push(list.iter().map(|no| format!("a{no}")).collect());
        }
        if !self.filter.roles.is_empty() {
            let roles = self.filter.index_roles();
            let list: Vec<String> = roles.iter().map(|role| format!("'{role}'")).collect();
            all.push(format!("e.role IN ({})", list.join(", ")));
            words.push(roles.iter().map(|role| format!("r{role}")).collect());
        }
        if !self.filter.kinds.is_empty() {
            let numbers = self.filter.kinds.iter().map(|kind| kind_number(*kind));
            let list: Vec<String> = numbers.map(|no| no.to_string()).collect();
            all.push(format!("e.kind IN ({})", list.join(", ")));
            words.push(list.iter().map(|no| format!("k{no}")).collect());
        }
        all.extend(self.filter.after.map(|at| format!("e.at >= {}", at.0)));
        all.extend(self.filter.before.map(|at| format!("e.at < {}", at.0)));
        let private = match &self.filter.viewer {
            Viewer::Owner => Some(String::new()),
            Viewer::Actors(names) => {
                let mut numbers = Vec::new();
                for actor in names.iter() {
                    numbers.extend(number("SELECT no FROM actors WHERE name = ?", &[actor])?);
                }
                let list: Vec<String> = numbers.iter().map(i64::to_string).collect();
                let exists = "EXISTS (SELECT 1 FROM audience a WHERE a.entry = e.no AND a.actor";
                (!list.is_empty()).then(|| format!(" AND {exists} IN ({}))", list.join(", ")))
            }
        };
        Ok(Some(Resolved { condition: all.join(" AND "), private, words, rows }))
    }
}

/// A scope as SQL and as index terms.
pub struct Resolved {
    /// Condition on `entries e` and `conversations c`.
    pub condition: String,
    /// Further condition on `private_entries e`; `None` if the viewer may find none of them.
    private: Option<String>,
    /// The same as terms of the column `scope`, as far as possible: one of each list.
    words: Vec<Vec<String>>,
    /// The same for sign bits in memory, as far as possible.
    pub rows: Rows,
}

/// Runs a lexical query.
pub fn by_words(
    db: &Connection,
    common: &Mutex<Common>,
    scope: &Searched,
    query: &TextQuery,
    limit: usize,
) -> rusqlite::Result<Proposed> {
    let (entries, words) = entries::size(db)?;
    {
        let mut common = common.lock();
        if entries < common.total || entries > common.total + common.total / 10 + 1000 {
            *common = Common { total: entries, ..Common::default() };
        }
    }
    let resolved = scope.resolve(db)?;
    let condition = resolved.as_ref().map_or("0", |scope| scope.condition.as_str());
    let index = InFile { db, common, condition };
    let counts = propose::counts(&index, (entries, words), query)?;
    let found = match &resolved {
        Some(scope) if !query.is_empty() => {
            let mut found = propose::proposed(&index, &scope.words, query, &counts, limit)?;
            found.extend(proposed_privately(db, scope, query, limit)?);
            found
        }
        _ => Vec::new(),
    };
    Ok(Proposed { counts, found })
}

/// The words of a file, for a search with a condition on `entries e`.
struct InFile<'a> {
    db: &'a Connection,
    common: &'a Mutex<Common>,
    condition: &'a str,
}

impl InFile<'_> {
    /// The FTS5 expression of a condition.
    fn expression(&self, matching: &Matching<'_>) -> String {
        let joined = |all: &[Matching<'_>], by: &str| {
            let each: Vec<String> = all.iter().map(|one| self.expression(one)).collect();
            format!("({})", each.join(by))
        };
        match matching {
            Matching::Term(wanted) => loosely(self.common, wanted),
            Matching::Scope(words) => format!("scope : ({})", quoted(words).join(" OR ")),
            Matching::All(all) => joined(all, " AND "),
            Matching::Any(any) => joined(any, " OR "),
        }
    }
}

impl Words for InFile<'_> {
    type Error = rusqlite::Error;

    fn count(&self, word: &str, prefix: bool) -> rusqlite::Result<u64> {
        count(self.db, self.common, word, prefix)
    }

    fn count_in_scope(&self, word: &str) -> rusqlite::Result<u64> {
        count(self.db, self.common, word, false)
    }

    fn newest(&self, matching: &Matching<'_>, limit: u64) -> rusqlite::Result<Vec<(Proposal, u64)>> {
        let mut statement = self.db.prepare(&format!(
            "SELECT e.no, c.id, e.seq, e.kind, e.id, e.at, e.length
             FROM words CROSS JOIN entries e ON e.no = words.rowid CROSS JOIN conversations c ON c.no = e.conversation
             WHERE words MATCH ? AND {} ORDER BY words.rowid DESC LIMIT {limit}",
            self.condition
        ))?;
        let found = statement
            .query_map([self.expression(matching)], |row| Ok((found(row)?, row.get::<_, i64>(6)? as u64)))?;
        found.collect()
    }

    fn having(&self, matching: &Matching<'_>, of: &[(Proposal, u64)]) -> rusqlite::Result<HashSet<EntryNo>> {
        let first = of.iter().map(|(found, _)| found.no.0).min();
        self.db
            .prepare_cached(
                "SELECT rowid FROM words WHERE words MATCH ? AND rowid >= ? ORDER BY rowid DESC LIMIT ?",
            )?
            .query_map((self.expression(matching), first, signed(COUNTED_ENTRIES_MAX)), |row| {
                row.get(0).map(EntryNo)
            })?
            .collect()
    }
}

/// The newest entries that are not for everyone, but for the viewer. Their words are counted nowhere, so the caller
/// ranks them by the counts of the others.
fn proposed_privately(
    db: &Connection,
    scope: &Resolved,
    query: &TextQuery,
    limit: usize,
) -> rusqlite::Result<Vec<Proposal>> {
    let Some(audience) = &scope.private else { return Ok(Vec::new()) };
    let Some(matching) = propose::uncounted(query) else { return Ok(Vec::new()) };
    // Prefixes are not cut short by the commonest words of the others.
    let index = InFile { db, common: &Mutex::default(), condition: &scope.condition };
    let mut statement = db.prepare(&format!(
        "SELECT -e.no, c.id, e.seq, e.kind, e.id, e.at
         FROM private_words CROSS JOIN private_entries e ON e.no = private_words.rowid
             CROSS JOIN conversations c ON c.no = e.conversation
         WHERE private_words MATCH ? AND {}{audience} ORDER BY private_words.rowid DESC LIMIT {limit}",
        scope.condition
    ))?;
    statement.query_map([index.expression(&matching)], found)?.collect()
}

/// Reads a row of number, conversation, `seq`, kind, id and time.
pub fn found(row: &rusqlite::Row<'_>) -> rusqlite::Result<Proposal> {
    Ok(Proposal {
        no: EntryNo(row.get(0)?),
        conversation: ConversationId::from_bytes(row.get::<_, Bytes<16>>(1)?.0),
        seq: row.get::<_, i64>(2)? as u64,
        id: EntryId::from_bytes(kind_of(row.get(3)?), row.get::<_, Bytes<16>>(4)?.0),
        at: Timestamp(row.get(5)?),
        score: 0.0,
    })
}

fn quoted(words: &[String]) -> Vec<String> {
    // Words have letters and digits only, so they cannot end the quotation.
    words.iter().map(|word| format!("\"{word}\"")).collect()
}

/// The FTS5 expression of a term.
fn expression(wanted: &Wanted) -> String {
    let star = if wanted.prefix { " *" } else { "" };
    let phrase = format!("\"{}\"{star}", wanted.words.join(" "));
    match &wanted.name {
        Some(name) => format!("(names : \"{name}\"{star} OR text : {phrase})"),
        None if wanted.words.len() == 1 && wanted.stems.is_empty() => format!("{{names text}} : {phrase}"),
        None if wanted.words.len() == 1 => {
            let stems = quoted(&wanted.stems).join(" OR ");
            format!("({{names text}} : {phrase} OR {{text stems}} : ({stems}))")
        }
        None => format!("text : {phrase}"),
    }
}

/// The same, without a very common prefix.
fn loosely(common: &Mutex<Common>, wanted: &Wanted) -> String {
    if let ([word], None, true) = (&wanted.words[..], &wanted.name, wanted.prefix)
        && let Some(words) = common.lock().beginnings.get(word)
    {
        return format!("{{names text}} : ({})", quoted(words).join(" OR "));
    }
    expression(wanted)
}

fn count(db: &Connection, common: &Mutex<Common>, word: &str, prefix: bool) -> rusqlite::Result<u64> {
    // Words have no spaces, so one distinguishes a prefix from a word.
    let remembered = if prefix { format!("{word} *") } else { word.to_string() };
    if let Some(entries) = common.lock().entries.get(&remembered) {
        return Ok(*entries);
    }
    let entries = if prefix {
        let mut words: Vec<(u64, String)> = db
            .prepare_cached(
                "SELECT doc, term FROM temp.vocabulary WHERE term >= ?1 AND term < ?1 || char(0x10ffff)",
            )?
            .query_map([word], |row| Ok((row.get::<_, i64>(0)? as u64, row.get(1)?)))?
            .collect::<Result<_, _>>()?;
        let entries: u64 = words.iter().map(|(entries, _)| entries).sum();
        if entries > COUNTED_ENTRIES_MAX {
            words.sort_unstable_by(|a, b| b.cmp(a));
            let commonest = words.into_iter().take(BEGINNING_WORDS_MAX).map(|(_, word)| word).collect();
            common.lock().beginnings.insert(word.to_string(), commonest);
        }
        entries
    } else {
        let counted =
            |sql: &str| db.prepare_cached(sql)?.query_row([word], |row| row.get::<_, i64>(0)).optional();
        let known = counted("SELECT entries FROM common WHERE word = ?")?;
        let entries = match known {
            Some(entries) => entries,
            None => counted("SELECT doc FROM temp.vocabulary WHERE term = ?")?.unwrap_or(0),
        };
        entries as u64
    };
    if entries >= COMMON_ENTRIES_MIN {
        common.lock().entries.insert(remembered, entries);
    }
    Ok(entries)
}

/// The turns before and after each of these entries in its conversation, as far as they are in scope, each with
/// its distance in turns.
pub fn neighbours(
    db: &Connection,
    scope: &Resolved,
    entries: &[EntryNo],
    reach: usize,
) -> rusqlite::Result<Vec<Vec<(Proposal, usize)>>> {
    let side = |within: &str, order: &str| {
        db.prepare(&format!(
            "SELECT e.no, c.id, e.seq, e.kind, e.id, e.at FROM entries s
             CROSS JOIN entries e ON e.conversation = s.conversation AND e.seq {within}
             CROSS JOIN conversations c ON c.no = e.conversation
             WHERE s.no = ? AND s.kind = 0 AND e.kind = 0 AND {} ORDER BY e.seq {order} LIMIT {reach}",
            scope.condition
        ))
    };
    let mut before = side(&format!("BETWEEN s.seq - {BESIDE_EVENTS_MAX} AND s.seq - 1"), "DESC")?;
    let mut after = side(&format!("BETWEEN s.seq + 1 AND s.seq + {BESIDE_EVENTS_MAX}"), "ASC")?;
    let mut all = Vec::with_capacity(entries.len());
    for EntryNo(no) in entries {
        let mut beside = Vec::new();
        for side in [&mut before, &mut after] {
            for (away, turn) in side.query_map([no], found)?.enumerate() {
                beside.push((turn?, away + 1));
            }
        }
        all.push(beside);
    }
    Ok(all)
}

/// The conversation and turn of each of these entries; `None` for a fact.
pub fn turns_of(
    db: &Connection,
    entries: &[EntryNo],
) -> rusqlite::Result<Vec<Option<(ConversationId, TurnId)>>> {
    let mut turn = db.prepare_cached(
        "SELECT c.id, e.id FROM entries e CROSS JOIN conversations c ON c.no = e.conversation
         WHERE e.no = ? AND e.kind = 0",
    )?;
    let mut turn = |EntryNo(no): &EntryNo| {
        let ids =
            |row: &rusqlite::Row<'_>| Ok((row.get::<_, Bytes<16>>(0)?.0, row.get::<_, Bytes<16>>(1)?.0));
        let found = turn.query_row([no], ids).optional()?;
        Ok(found.map(|(chat, turn)| (ConversationId::from_bytes(chat), TurnId::from_bytes(turn))))
    };
    entries.iter().map(&mut turn).collect()
}

/// The nearest turns of each side that are in scope, each with its distance in turns.
pub fn beside(
    db: &Connection,
    scope: &Resolved,
    sides: &[Vec<TurnId>],
    reach: usize,
) -> rusqlite::Result<Vec<(Proposal, usize)>> {
    let mut entry = db.prepare(&format!(
        "SELECT e.no, c.id, e.seq, e.kind, e.id, e.at FROM entries e CROSS JOIN conversations c ON c.no = e.conversation
         WHERE e.id = ? AND e.kind = 0 AND {}",
        scope.condition
    ))?;
    let mut beside = Vec::new();
    for side in sides {
        let mut away = 0;
        for turn in side {
            let in_scope = entry.query_row([Bytes(turn.to_bytes())], found).optional()?;
            if let Some(turn) = in_scope.filter(|_| away < reach) {
                away += 1;
                beside.push((turn, away));
            }
        }
    }
    Ok(beside)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on should stop here")]
mod tests {
    use super::*;
    use crate::recall::open;

    /// An index in which every entry has one of two words with the same beginning, and every tenth another.
    fn index(entries: u64) -> Connection {
        let db = open::open_derived(None, open::Derived::Index).unwrap();
        db.execute_batch(&format!(
            "INSERT INTO conversations VALUES (1, zeroblob(16));
             WITH RECURSIVE n (no) AS (SELECT 1 UNION ALL SELECT no + 1 FROM n WHERE no < {entries})
             INSERT INTO entries (no, conversation, seq, kind, id, at, prose, length)
             SELECT no, 1, no, 0, CAST(printf('%016d', no) AS BLOB), no, 1, 1 FROM n;
             UPDATE position SET entries = {entries}, words = {entries};
             INSERT INTO words (rowid, scope, names, text)
             SELECT no, 'c1 k0', '', iif(no % 10 = 0, 'other', iif(no % 2, 'contract', 'context')) FROM entries;"
        ))
        .unwrap();
        db
    }

    /// Counting is slow in large indexes, so the file caches it; words that no entry has any more are removed.
    #[test]
    fn common_words_are_counted_once() {
        let db = index(60_000);
        let counted = |word: &str, prefix: bool| count(&db, &Mutex::default(), word, prefix).unwrap();
        let remembered = |word: &str| -> Option<i64> {
            db.query_row("SELECT entries FROM common WHERE word = ?", [word], |row| row.get(0))
                .optional()
                .unwrap()
        };
        let all = || [counted("other", false), counted("contract", false), counted("cont", true)];
        assert_eq!(all(), [6_000, 30_000, 54_000]);
        entries::take_in(&db, &[], 1, None).unwrap();
        assert_eq!((remembered("other"), remembered("contract")), (None, Some(30_000)), "rare ones are not");
        assert_eq!(all(), [6_000, 30_000, 54_000]);
        // Words of a deleted conversation no longer count.
        let gone = "DELETE FROM words WHERE rowid % 2 AND rowid < 40_000;
            UPDATE position SET entries = entries - 20000, gone = 20000";
        db.execute_batch(gone).unwrap();
        entries::take_in(&db, &[], 2, None).unwrap();
        assert_eq!((all(), remembered("contract")), ([6_000, 10_000, 34_000], None));
        // Nor are there words in the file that no entry has any more.
        db.execute_batch("DELETE FROM words WHERE rowid % 2 = 0 AND rowid % 10").unwrap();
        entries::merge(&db).unwrap();
        assert_eq!(remembered("context"), None);
    }

    #[test]
    fn a_beginning_finds_the_same_however_many_have_it() {
        let scope = Searched { levels: None, filter: Filter::default() };
        for entries in [200, COUNTED_ENTRIES_MAX * 10 / 9 + 200] {
            let (db, common) = (index(entries), Mutex::default());
            let found = by_words(&db, &common, &scope, &TextQuery::parse("cont*"), 20).unwrap();
            let mut found: Vec<u64> = found.found.into_iter().map(|found| found.seq).collect();
            found.sort_unstable_by(|a, b| b.cmp(a));
            let newest: Vec<u64> = (1..=entries).rev().filter(|no| no % 10 != 0).take(20).collect();
            assert_eq!(found, newest, "of {entries}");
            assert_eq!(common.lock().beginnings.contains_key("cont"), entries > 200, "{entries}");
        }
    }
}
