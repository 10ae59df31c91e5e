//! Finding entries by words.
//!
//! FTS5's `bm25` goes through every entry that has a word before it ranks the first, once for each word of the question.
//! For "the" in a million turns that takes longer than anybody waits, and says little. So the rare words choose and rank,
//! and the common ones only lift what the rare ones found.

use super::signs::Rows;
use super::{Ground, kind_number, kind_of};
use crate::Found;
use crate::sqlite::rows::{Bytes, signed};
use everturn_core::Error;
use everturn_core::id::{ConversationId, Key, Tenant};
use everturn_core::recall::{EntryId, EntryNo, Filter, TextQuery, Wanted};
use rusqlite::{Connection, OptionalExtension};
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A word in more entries than this is not ranked by: what has it is as good as anything else that has it.
const COUNTED_ENTRIES_MAX: u64 = 20_000;
/// So many entries are ranked for one question: all that have its rare words, else the newest that have its rarest.
const RANKED_ENTRIES_MAX: u64 = 1_000;
/// So many common words lift what the others found.
const LIFTING_WORDS_MAX: usize = 3;
/// So many entries may be lifted past others.
const LIFTED_ENTRIES: usize = 200;
/// A word in more entries than this is remembered to be common, since counting them takes a moment.
const COMMON_ENTRIES_MIN: u64 = 500;

/// Of a beginning in more entries than can be counted, so many words are looked for, the commonest. FTS5 sorts all entries of
/// a beginning before it gives the first, but those of whole words one by one, as they are needed.
const BEGINNING_WORDS_MAX: usize = 100;

/// A name in a conversation's identity weighs more than the same word in its text.
const NAMES_WEIGHT: f64 = 2.0;

/// In how many entries common words are.
#[derive(Default)]
pub struct Common {
    entries: HashMap<String, u64>,
    /// The commonest words that begin so, for beginnings in very many entries.
    beginnings: HashMap<String, Vec<String>>,
    /// How many entries there were when counting began.
    total: u64,
}

/// Where to look, as this index knows it.
pub struct Scope {
    tenant: Tenant,
    levels: Option<Vec<(ConversationId, u64)>>,
    filter: Filter,
}

impl Scope {
    /// `None` if nothing can be found there.
    pub fn new(ground: &dyn Ground, tenant: &Tenant, filter: &Filter) -> Result<Option<Scope>, Error> {
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
        Ok(Some(Scope { tenant: tenant.clone(), levels, filter: filter.clone() }))
    }

    /// The scope in numbers of this file; `None` if it knows the tenant, the conversation or every actor not.
    pub fn resolve(&self, db: &Connection) -> rusqlite::Result<Option<Resolved>> {
        let number = |sql: &str, parameters: &[&dyn rusqlite::ToSql]| {
            db.prepare_cached(sql)?.query_row(parameters, |row| row.get::<_, i64>(0)).optional()
        };
        let Some(tenant) = number("SELECT no FROM tenants WHERE name = ?", &[&self.tenant.as_str()])? else {
            return Ok(None);
        };
        let mut all = vec![format!("c.tenant = {tenant}")];
        let mut words = vec![vec![format!("t{tenant}")]];
        let mut rows = Rows {
            tenant,
            roles: self.filter.roles.iter().map(|role| role.to_string()).collect(),
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
            None => all.push(format!("1{}", stands(u64::MAX))),
            Some(levels) => {
                let (mut any, mut named) = (Vec::new(), Vec::new());
                let last = self.filter.before_seq.map_or(u64::MAX, |before| before.saturating_sub(1));
                for (id, cap) in levels {
                    let find = "SELECT no FROM conversations WHERE tenant = ? AND id = ?";
                    if let Some(no) = number(find, &[&tenant, &Bytes(id.to_bytes())])? {
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
            let list: Vec<String> = self.filter.roles.iter().map(|role| format!("'{role}'")).collect();
            all.push(format!("e.role IN ({})", list.join(", ")));
            words.push(self.filter.roles.iter().map(|role| format!("r{role}")).collect());
        }
        if !self.filter.kinds.is_empty() {
            let numbers = self.filter.kinds.iter().map(|kind| kind_number(*kind));
            let list: Vec<String> = numbers.map(|no| no.to_string()).collect();
            all.push(format!("e.kind IN ({})", list.join(", ")));
            words.push(list.iter().map(|no| format!("k{no}")).collect());
        }
        all.extend(self.filter.after.map(|at| format!("e.at >= {}", at.0)));
        all.extend(self.filter.before.map(|at| format!("e.at < {}", at.0)));
        Ok(Some(Resolved { condition: all.join(" AND "), words, rows }))
    }
}

/// A scope in SQL and in words.
pub struct Resolved {
    /// About `entries e` and `conversations c`.
    pub condition: String,
    /// The same as words of the column `scope`, as far as they can say it: one of each list.
    words: Vec<Vec<String>>,
    /// The same for signs in memory, as far as they can tell.
    pub rows: Rows,
}

/// What a question finds.
pub fn by_words(
    db: &Connection,
    common: &Mutex<Common>,
    scope: &Scope,
    query: &TextQuery,
    limit: usize,
) -> rusqlite::Result<Vec<Found>> {
    let Some(scope) = scope.resolve(db)? else { return Ok(Vec::new()) };
    let total: u64 = db
        .prepare_cached("SELECT coalesce(max(no), 0) FROM entries")?
        .query_row([], |r| r.get::<_, i64>(0))? as u64;
    {
        let mut common = locked(common);
        if total > common.total * 3 / 2 + 1000 {
            *common = Common { total, ..Common::default() };
        }
    }
    let mut any = Vec::new();
    for wanted in &query.any {
        let entries = wanted_in(db, common, wanted)?;
        if entries > 0 {
            any.push((entries, loosely(common, wanted)));
        }
    }
    let mut commonest_phrase = 0;
    for wanted in &query.all {
        commonest_phrase = commonest_phrase.max(wanted_in(db, common, wanted)?);
    }
    let mut narrow = Vec::new();
    for list in &scope.words {
        let mut entries = 0;
        for word in list {
            entries += count(db, common, word, false)?;
        }
        // Where nearly everything is in scope, looking at each entry is quicker than looking for the word.
        if entries <= COUNTED_ENTRIES_MAX / 2 && entries < total / 2 {
            narrow.push(format!("scope : ({})", quoted(list).join(" OR ")));
        }
    }
    if any.is_empty() && query.all.is_empty() {
        return Ok(Vec::new());
    }
    any.sort_by_key(|(entries, _)| *entries);
    // As many words as can be ranked by in full; where the rarest is too common for that, it and the next ones.
    let most = match any.first() {
        Some((entries, _)) if *entries > RANKED_ENTRIES_MAX => COUNTED_ENTRIES_MAX,
        _ => RANKED_ENTRIES_MAX,
    };
    let mut counted = 0;
    let ranking = any.iter().take_while(|(entries, _)| {
        counted += entries;
        counted <= most
    });
    let ranking = ranking.count().max(1).min(any.len());
    let ranked = any.first().is_none_or(|(entries, _)| *entries <= COUNTED_ENTRIES_MAX)
        && commonest_phrase <= COUNTED_ENTRIES_MAX;
    let words: Vec<&str> = any[..ranking].iter().map(|(_, word)| word.as_str()).collect();
    let matches: u64 = any[..ranking].iter().map(|(entries, _)| entries).sum();
    let mut must: Vec<String> = narrow;
    must.extend(query.all.iter().map(expression));

    let enough = if any.len() > ranking { limit.max(LIFTED_ENTRIES) } else { limit };
    let search = Search { db, condition: &scope.condition, ranked, enough };
    let mut found = Vec::new();
    if words.len() > 1 && matches > RANKED_ENTRIES_MAX && query.all.is_empty() {
        // The best of very many have all the words, and need not be among the newest.
        found = search.run(&all_of(&must, &words.join(" AND ")))?;
    }
    let either = words.join(" OR ");
    let broad = match (query.all.is_empty(), words.is_empty()) {
        (true, _) => all_of(&must, &either),
        (false, true) => must.join(" AND "),
        // What stood in quotation marks chooses, the other words only rank.
        (false, false) => {
            let must = must.join(" AND ");
            format!("({must}) OR (({must}) AND ({either}))")
        }
    };
    if found.len() < limit {
        let known: HashSet<EntryNo> = found.iter().map(|found| found.no).collect();
        let more = search.run(&broad)?;
        found.extend(more.into_iter().filter(|found| !known.contains(&found.no)));
    }
    for (entries, word) in any[ranking..].iter().take(LIFTING_WORDS_MAX) {
        let with: HashSet<i64> = db
            .prepare_cached("SELECT rowid FROM words WHERE words MATCH ? ORDER BY rowid DESC LIMIT ?")?
            .query_map((format!("({broad}) AND {word}"), RANKED_ENTRIES_MAX as i64), |row| row.get(0))?
            .collect::<Result<_, _>>()?;
        let weight =
            (((total.saturating_sub(*entries)) as f64 + 0.5) / (*entries as f64 + 0.5)).ln().max(1e-6);
        found.iter_mut().filter(|found| with.contains(&found.no.0)).for_each(|found| found.score += weight);
    }
    found.sort_by(|a, b| b.score.total_cmp(&a.score).then(b.no.cmp(&a.no)));
    found.truncate(limit);
    Ok(found)
}

struct Search<'a> {
    db: &'a Connection,
    condition: &'a str,
    ranked: bool,
    enough: usize,
}

impl Search<'_> {
    fn run(&self, expression: &str) -> rusqlite::Result<Vec<Found>> {
        let rank =
            if self.ranked { format!("bm25(words, 0.0, {NAMES_WEIGHT}, 1.0)") } else { "0.0".to_string() };
        // Without ranks the newest are the best, and none of the others need be found.
        let most = if self.ranked { RANKED_ENTRIES_MAX } else { RANKED_ENTRIES_MAX.min(self.enough as u64) };
        let sql = format!(
            "SELECT no, conversation, seq, kind, id, rank FROM
                 (SELECT e.no AS no, c.id AS conversation, e.seq AS seq, e.kind AS kind, e.id AS id, {rank} AS rank
                  FROM words CROSS JOIN entries e ON e.no = words.rowid CROSS JOIN conversations c ON c.no = e.conversation
                  WHERE words MATCH ?1 AND {} ORDER BY words.rowid DESC LIMIT {most})
             ORDER BY rank, no DESC LIMIT ?2",
            self.condition
        );
        let mut statement = self.db.prepare(&sql)?;
        let found = statement.query_map((expression, signed(self.enough as u64)), |row| {
            let rank: f64 = row.get(5)?;
            Ok(Found { score: -rank, ..found(row)? })
        })?;
        found.collect()
    }
}

/// A row of number, conversation, place, kind and id.
pub fn found(row: &rusqlite::Row<'_>) -> rusqlite::Result<Found> {
    Ok(Found {
        no: EntryNo(row.get(0)?),
        conversation: ConversationId::from_bytes(row.get::<_, Bytes<16>>(1)?.0),
        seq: row.get::<_, i64>(2)? as u64,
        id: EntryId::from_bytes(kind_of(row.get(3)?), row.get::<_, Bytes<16>>(4)?.0),
        score: 0.0,
    })
}

fn all_of(must: &[String], words: &str) -> String {
    if must.is_empty() { format!("({words})") } else { format!("{} AND ({words})", must.join(" AND ")) }
}

fn quoted(words: &[String]) -> Vec<String> {
    // Words have letters and digits only, so nothing in them can end the quotation.
    words.iter().map(|word| format!("\"{word}\"")).collect()
}

/// What is wanted, as FTS5 reads it.
fn expression(wanted: &Wanted) -> String {
    let star = if wanted.prefix { " *" } else { "" };
    let phrase = format!("\"{}\"{star}", wanted.words.join(" "));
    match &wanted.name {
        Some(name) => format!("(names : \"{name}\"{star} OR text : {phrase})"),
        None if wanted.words.len() == 1 => format!("{{names text}} : {phrase}"),
        None => format!("text : {phrase}"),
    }
}

/// The same, without a beginning of too many words.
fn loosely(common: &Mutex<Common>, wanted: &Wanted) -> String {
    if let ([word], None, true) = (&wanted.words[..], &wanted.name, wanted.prefix)
        && let Some(words) = locked(common).beginnings.get(word)
    {
        return format!("{{names text}} : ({})", quoted(words).join(" OR "));
    }
    expression(wanted)
}

fn locked(common: &Mutex<Common>) -> MutexGuard<'_, Common> {
    common.lock().unwrap_or_else(PoisonError::into_inner)
}

/// In about how many entries something wanted is: never fewer than it really is in.
fn wanted_in(db: &Connection, common: &Mutex<Common>, wanted: &Wanted) -> rusqlite::Result<u64> {
    let mut fewest = u64::MAX;
    for (index, word) in wanted.words.iter().enumerate() {
        let prefix = wanted.prefix && index + 1 == wanted.words.len();
        fewest = fewest.min(count(db, common, word, prefix)?);
    }
    match &wanted.name {
        Some(name) => Ok(fewest + count(db, common, name, wanted.prefix)?),
        None => Ok(fewest),
    }
}

fn count(db: &Connection, common: &Mutex<Common>, word: &str, prefix: bool) -> rusqlite::Result<u64> {
    // A beginning has no spaces either, so it is told from a word by one.
    let remembered = if prefix { format!("{word} *") } else { word.to_string() };
    if let Some(entries) = locked(common).entries.get(&remembered) {
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
            locked(common).beginnings.insert(word.to_string(), commonest);
        }
        entries
    } else {
        db.prepare_cached("SELECT doc FROM temp.vocabulary WHERE term = ?")?
            .query_row([word], |row| row.get::<_, i64>(0))
            .optional()?
            .unwrap_or(0) as u64
    };
    if entries >= COMMON_ENTRIES_MIN {
        locked(common).entries.insert(remembered, entries);
    }
    Ok(entries)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on should stop here")]
mod tests {
    use super::*;
    use crate::sqlite::door;

    /// An index in which every entry says one of two words that begin alike, and every tenth another.
    fn index(entries: u64) -> Connection {
        let db = door::open_recall(None).unwrap();
        db.execute_batch(&format!(
            "INSERT INTO tenants VALUES (1, 'default');
             INSERT INTO conversations VALUES (1, 1, zeroblob(16));
             WITH RECURSIVE n (no) AS (SELECT 1 UNION ALL SELECT no + 1 FROM n WHERE no < {entries})
             INSERT INTO entries (no, conversation, seq, kind, id, at, prose)
             SELECT no, 1, no, 0, zeroblob(16), no, 1 FROM n;
             INSERT INTO words (rowid, scope, names, text)
             SELECT no, 't1 c1 k0', '', iif(no % 10 = 0, 'other', iif(no % 2, 'contract', 'context')) FROM entries;"
        ))
        .unwrap();
        db
    }

    #[test]
    fn a_beginning_finds_the_same_however_many_have_it() {
        let scope =
            Scope { tenant: Tenant::new("default").unwrap(), levels: None, filter: Filter::default() };
        for entries in [200, COUNTED_ENTRIES_MAX * 10 / 9 + 200] {
            let (db, common) = (index(entries), Mutex::default());
            let found = by_words(&db, &common, &scope, &TextQuery::parse("cont*"), 20).unwrap();
            let mut found: Vec<u64> = found.into_iter().map(|found| found.seq).collect();
            found.sort_unstable_by(|a, b| b.cmp(a));
            let newest: Vec<u64> = (1..=entries).rev().filter(|no| no % 10 != 0).take(20).collect();
            assert_eq!(found, newest, "of {entries}");
            assert_eq!(locked(&common).beginnings.contains_key("cont"), entries > 200, "{entries}");
        }
    }
}
