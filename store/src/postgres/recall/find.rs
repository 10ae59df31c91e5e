//! Lexical search: which entries have a word is read from the tables, and combined here.

use super::super::Postgres;
use super::super::db::{Db, Param, boxed};
use super::super::read::{self, one};
use super::super::rows::{self, signed};
use super::entries::{PRIVATE, kind_number, kind_of, scope};
use crate::recall::propose::{
    self, BEGINNING_WORDS_MAX, COUNTED_ENTRIES_MAX, Matching, SCOPE_WORDS_MAX, Words,
};
use crate::{Proposal, Proposed, WordSearch};
use everturn_core::Error;
use everturn_core::id::{ConversationId, Key, TenantName};
use everturn_core::time::Timestamp;
use everturn_core::viewer::Viewer;
use everturn_views::recall::{EntryId, EntryNo, Filter, TextQuery, Wanted};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

/// Rows of a word that are read at first: more than [`COUNTED_ENTRIES_MAX`] entries.
const ROWS_READ: i64 = 80;
/// If that is too few, so many times as many.
const ROWS_READ_FACTOR: i64 = 8;
/// Entries looked at in one query.
const PAGE_ENTRIES: usize = 1_000;
/// Maximum distance of a neighbouring turn, in events: where a filter leaves few turns, the search stops here.
const BESIDE_EVENTS_MAX: i64 = 50;

/// After every `seq`.
const END: i64 = i64::MAX;

/// The conversation under which an entry `e` of the conversation `c` is read: its own, or of a deleted one the nearest living
/// fork that inherits it.
macro_rules! reader {
    () => {
        "CASE WHEN c.deleted IS NULL THEN c.id ELSE (WITH RECURSIVE f AS (
             SELECT k.no, k.id, k.deleted, 1 AS depth FROM conversation_rows k
                 WHERE k.tenant = c.tenant AND k.parent = c.no AND k.parent_seq >= e.seq
             UNION ALL SELECT k.no, k.id, k.deleted, f.depth + 1 FROM f JOIN conversation_rows k
                 ON k.tenant = c.tenant AND k.parent = f.no AND k.parent_seq >= e.seq WHERE f.deleted IS NOT NULL AND f.depth < 1000)
             SELECT f.id FROM f WHERE f.deleted IS NULL ORDER BY f.depth, f.no LIMIT 1) END"
    };
}
pub(super) use reader;

/// Number (negative for private entries), conversation, `seq`, kind, id and time.
pub const FOUND_COLUMNS: &str = concat!(
    "CASE WHEN e.audience IS NULL THEN e.no ELSE -e.no END, coalesce(",
    reader!(),
    ", c.id), e.seq, e.kind, e.id, e.at"
);

/// The scope of a search, as a condition on `recall_entries e`: its parameters are $1 to $10.
pub const IN_SCOPE: &str =
    "($2::bigint[] IS NULL AND ($5::boolean OR e.fallen IS NULL) OR EXISTS (SELECT 1 FROM unnest($2::bigint[], $3::bigint[], $4::bigint[]) AS l (no, last, cap)
         WHERE l.no = e.conversation AND e.seq <= l.last AND ($5::boolean OR e.fallen IS NULL OR e.fallen > l.cap)))
     AND ($6::text[] IS NULL OR e.actor = ANY ($6::text[])) AND ($7::text[] IS NULL OR e.role = ANY ($7::text[]))
     AND ($8::smallint[] IS NULL OR e.kind = ANY ($8::smallint[])) AND ($9::bigint IS NULL OR e.at >= $9::bigint)
     AND ($10::bigint IS NULL OR e.at < $10::bigint)";

/// Reads a row that begins with [`FOUND_COLUMNS`].
fn found(row: &Row) -> Result<Proposal, Error> {
    Ok(Proposal {
        no: EntryNo(i64::from(rows::get::<i32>(row, 0)?)),
        conversation: ConversationId::from_bytes(rows::bytes(row, 1)?),
        seq: rows::unsigned(row, 2)?,
        id: EntryId::from_bytes(kind_of(rows::get(row, 3)?), rows::bytes(row, 4)?),
        at: Timestamp(rows::get(row, 5)?),
        score: 0.0,
    })
}

pub fn refs(params: &[Param]) -> Vec<&(dyn ToSql + Sync)> {
    params.iter().map(|value| &**value as &(dyn ToSql + Sync)).collect()
}

/// The number of an entry in the tables, unless it is private.
pub fn number(EntryNo(no): EntryNo) -> i32 {
    i32::try_from(no).unwrap_or(0)
}

/// Scope of a search.
pub struct Searched<'a> {
    tenant: &'a TenantName,
    filter: &'a Filter,
    /// Conversations, each with the last `seq` in scope, and the one as of which it is read.
    levels: Option<Vec<(i64, u64, u64)>>,
    /// The conversation in scope. For it and each ancestor: the `seq` after which its events begin, and whether it is deleted.
    lineage: Option<(ConversationId, Vec<(u64, bool)>)>,
}

impl<'a> Searched<'a> {
    /// `None` if nothing can be found there.
    pub fn new(db: &Db, tenant: &'a TenantName, filter: &'a Filter) -> Result<Option<Searched<'a>>, Error> {
        let mut line = None;
        let levels = match filter.conversation {
            None => match &filter.among {
                None => None,
                Some(among) => {
                    let ids: Vec<Vec<u8>> = among.iter().map(|id| id.to_bytes().to_vec()).collect();
                    let sql = "SELECT no FROM conversation_rows
                               WHERE tenant = $1 AND id = ANY ($2) AND NOT replaced AND deleted IS NULL";
                    let found = db.query(sql, &[&tenant.as_str(), &ids])?;
                    if found.is_empty() {
                        return Ok(None);
                    }
                    let level = |row: &Row| -> Result<_, Error> {
                        Ok((rows::get::<i64>(row, 0)?, u64::MAX, u64::MAX))
                    };
                    Some(found.iter().map(level).collect::<Result<_, Error>>()?)
                }
            },
            Some(id) => {
                let Some(lineage) = read::lineage_of(db, &Key { tenant: tenant.clone(), id })? else {
                    return Ok(None);
                };
                let through = filter.through_seq.unwrap_or(u64::MAX);
                let last = filter.before_seq.map_or(u64::MAX, |before| before.saturating_sub(1));
                let level = |level: &read::Level| {
                    let cap = level.cap.min(through);
                    (level.no, last.min(cap), cap)
                };
                line = Some((id, lineage.levels.iter().map(|level| (level.floor, level.deleted)).collect()));
                Some(lineage.levels.iter().map(level).collect())
            }
        };
        Ok(Some(Searched { tenant, filter, levels, lineage: line }))
    }

    /// Reads a row that begins with [`FOUND_COLUMNS`]. What the conversation in scope inherits from a deleted one is under it.
    pub fn found(&self, row: &Row) -> Result<Proposal, Error> {
        let mut found = found(row)?;
        if let Some((scope, levels)) = &self.lineage
            && levels.iter().find(|(floor, _)| found.seq > *floor).is_some_and(|(_, deleted)| *deleted)
        {
            found.conversation = *scope;
        }
        Ok(found)
    }

    /// The parameters of [`IN_SCOPE`].
    pub fn params(&self) -> Vec<Param> {
        fn some<T, U>(list: &[T], each: impl FnMut(&T) -> U) -> Option<Vec<U>> {
            (!list.is_empty()).then(|| list.iter().map(each).collect())
        }
        let levels = |value: fn(&(i64, u64, u64)) -> i64| {
            self.levels.as_ref().map(|levels| levels.iter().map(value).collect::<Vec<i64>>())
        };
        let filter = self.filter;
        boxed![
            self.tenant.as_str().to_string(),
            levels(|(no, ..)| *no),
            levels(|(_, last, _)| signed(*last)),
            levels(|(.., cap)| signed(*cap)),
            filter.include_superseded,
            some(&filter.actors, String::clone),
            some(&filter.index_roles(), |role| role.to_string()),
            some(&filter.kinds, |kind| kind_number(*kind)),
            filter.after.map(|at| at.0),
            filter.before.map(|at| at.0),
        ]
    }

    /// The same as words, as far as possible: an entry in scope has one of each list.
    pub fn words(&self) -> Vec<Vec<String>> {
        let levels = self.levels.iter().flatten().filter(|_| {
            self.filter.among.is_none()
                || self.levels.as_ref().is_some_and(|all| all.len() <= SCOPE_WORDS_MAX)
        });
        let conversations = levels.map(|(no, ..)| scope::conversation(*no)).collect();
        let actors = self.filter.actors.iter().map(|actor| scope::actor(actor)).collect();
        let roles = self.filter.index_roles().into_iter().map(scope::role).collect();
        let kinds = self.filter.kinds.iter().map(|kind| scope::kind(kind_number(*kind))).collect();
        [conversations, actors, roles, kinds]
            .into_iter()
            .filter(|list: &Vec<String>| !list.is_empty())
            .collect()
    }
}

/// The newest entries with a word, ascending.
#[derive(Default)]
struct List {
    entries: Vec<i32>,
    /// Number of rows that were asked for; `None` if these are all.
    rows: Option<i64>,
}

/// The words of a tenant's entries: of those for everyone, or of private ones.
pub struct Lists<'a> {
    db: &'a Db,
    scope: &'a Searched<'a>,
    /// Actors that look for private entries, `None` for all of them; the outer `None` for the others.
    private: Option<Option<Vec<String>>>,
    /// Number of entries by word; by prefix with a `*`.
    counts: HashMap<String, u64>,
    /// Words by prefix.
    beginnings: HashMap<String, Vec<String>>,
    lists: RefCell<HashMap<String, List>>,
    /// Words of entries in their order, where phrases are looked for.
    texts: RefCell<HashMap<i32, String>>,
}

impl<'a> Lists<'a> {
    pub fn new(db: &'a Db, scope: &'a Searched<'a>, private: Option<Option<Vec<String>>>) -> Lists<'a> {
        Lists {
            db,
            scope,
            private,
            counts: HashMap::new(),
            beginnings: HashMap::new(),
            lists: RefCell::default(),
            texts: RefCell::default(),
        }
    }

    fn tenant(&self) -> &str {
        self.scope.tenant.as_str()
    }

    /// A word as it is in the tables.
    fn kept(&self, word: &str) -> String {
        if self.private.is_some() { format!("{PRIVATE}{word}") } else { word.to_string() }
    }

    /// Counts words.
    pub fn count_words(&mut self, words: BTreeSet<String>) -> Result<(), Error> {
        let words: Vec<String> = words.into_iter().collect();
        let sql = "SELECT n.word, w.before + cardinality(w.entries) FROM unnest($2::text[]) AS n (word)
             CROSS JOIN LATERAL (SELECT w.before, w.entries FROM recall_words w WHERE w.tenant = $1 AND w.word = n.word
                 ORDER BY w.first DESC LIMIT 1) w";
        for row in self.db.query(sql, &[&self.tenant(), &words])? {
            self.counts.insert(rows::get(&row, 0)?, rows::get::<i32>(&row, 1)?.max(0) as u64);
        }
        Ok(())
    }

    /// Counts the entries of all words that begin so, and finds these words.
    fn count_beginning(&mut self, beginning: &str) -> Result<(), Error> {
        let from = self.kept(beginning);
        let sql = "SELECT DISTINCT ON (w.word) w.word, w.before + cardinality(w.entries) FROM recall_words w
             WHERE w.tenant = $1 AND w.word >= $2 AND w.word < $3 ORDER BY w.word, w.first DESC";
        let mut words: Vec<(u64, String)> = Vec::new();
        for row in self.db.query(sql, &[&self.tenant(), &from, &format!("{from}\u{10ffff}")])? {
            words.push((rows::get::<i32>(&row, 1)?.max(0) as u64, rows::get(&row, 0)?));
        }
        let entries: u64 = words.iter().map(|(entries, _)| entries).sum();
        if entries > COUNTED_ENTRIES_MAX && self.private.is_none() {
            words.sort_unstable_by(|a, b| b.cmp(a));
            words.truncate(BEGINNING_WORDS_MAX);
        }
        self.counts.insert(format!("{beginning}*"), entries);
        self.beginnings.insert(beginning.to_string(), words.into_iter().map(|(_, word)| word).collect());
        Ok(())
    }

    /// Counts everything that a query asks for.
    fn count_query(&mut self, query: &TextQuery) -> Result<(), Error> {
        let mut words: BTreeSet<String> = self.scope.words().into_iter().flatten().collect();
        for wanted in query.wanted() {
            words.extend(wanted.words.iter().chain(&wanted.name).chain(&wanted.stems).cloned());
        }
        self.count_words(words)?;
        self.find_beginnings(query)
    }

    fn find_beginnings(&mut self, query: &TextQuery) -> Result<(), Error> {
        for wanted in query.wanted().filter(|wanted| wanted.prefix) {
            for beginning in wanted.words.last().into_iter().chain(&wanted.name) {
                self.count_beginning(beginning)?;
            }
        }
        Ok(())
    }

    /// The words in the tables that stand for one of a term.
    fn meant(&self, word: &str, prefix: bool) -> Vec<String> {
        match self.beginnings.get(word).filter(|_| prefix) {
            Some(words) => words.clone(),
            None => vec![self.kept(word)],
        }
    }

    /// A term as lists of words: entries have one word of each list of any of these alternatives.
    fn alternatives(&self, wanted: &Wanted) -> Vec<Vec<Vec<String>>> {
        let last = wanted.words.len().saturating_sub(1);
        let word = |(at, word): (usize, &String)| self.meant(word, wanted.prefix && at == last);
        let mut all = vec![wanted.words.iter().enumerate().map(word).collect()];
        all.extend(wanted.name.iter().map(|name| vec![self.meant(name, wanted.prefix)]));
        if !wanted.stems.is_empty() {
            all.push(vec![wanted.stems.iter().map(|stem| self.kept(stem)).collect()]);
        }
        all
    }

    fn words_of(&self, matching: &Matching<'_>, words: &mut BTreeSet<String>) {
        match matching {
            Matching::Term(wanted) => words.extend(self.alternatives(wanted).into_iter().flatten().flatten()),
            Matching::Scope(scope) => words.extend(scope.iter().cloned()),
            Matching::All(all) | Matching::Any(all) => {
                all.iter().for_each(|one| self.words_of(one, words));
            }
        }
    }

    /// Reads the newest entries of all words of a condition. Returns the number of the first entry from which on
    /// these are all.
    fn load(&self, matching: &Matching<'_>, rows_read: i64) -> Result<i32, Error> {
        let mut words = BTreeSet::new();
        self.words_of(matching, &mut words);
        let mut lists = self.lists.borrow_mut();
        let is_missing = |word: &&String| {
            lists.get(*word).is_none_or(|list| list.rows.is_some_and(|rows| rows < rows_read))
        };
        let missing: Vec<&str> = words.iter().filter(is_missing).map(String::as_str).collect();
        if !missing.is_empty() {
            let sql = "SELECT n.word, w.entries FROM unnest($2::text[]) AS n (word)
                 CROSS JOIN LATERAL (SELECT w.first, w.entries FROM recall_words w WHERE w.tenant = $1 AND w.word = n.word
                     ORDER BY w.first DESC LIMIT $3) w ORDER BY n.word, w.first";
            let found = self.db.query(sql, &[&self.tenant(), &missing, &rows_read])?;
            for word in missing {
                lists.insert(word.to_string(), List::default());
            }
            let mut read: HashMap<&str, i64> = HashMap::new();
            for row in &found {
                let word: &str = rows::get(row, 0)?;
                let Some(list) = lists.get_mut(word) else { continue };
                list.entries.extend(rows::get::<Vec<i32>>(row, 1)?);
                let read = read.entry(word).or_default();
                *read += 1;
                list.rows = (*read >= rows_read).then_some(rows_read);
            }
        }
        let from = |word: &String| {
            let list = lists.get(word)?;
            list.rows.and(list.entries.first().copied())
        };
        Ok(words.iter().filter_map(from).max().unwrap_or(0))
    }

    /// All entries that match, ascending; not for phrases.
    pub fn entries(&self, matching: &Matching<'_>) -> Result<Vec<i32>, Error> {
        self.load(matching, i64::MAX)?;
        Ok(self.candidates(matching))
    }

    /// Entries that may match, ascending: of phrases, those with all the words.
    fn candidates(&self, matching: &Matching<'_>) -> Vec<i32> {
        let any_of = |words: &[String]| {
            let lists = self.lists.borrow();
            let all = words.iter().filter_map(|word| lists.get(word));
            union(all.map(|list| list.entries.clone()).collect())
        };
        match matching {
            Matching::Term(wanted) => {
                let alternatives = self.alternatives(wanted);
                let each = alternatives
                    .iter()
                    .map(|all| intersection(all.iter().map(|words| any_of(words)).collect()));
                union(each.collect())
            }
            Matching::Scope(words) => any_of(words),
            Matching::All(all) => intersection(all.iter().map(|one| self.candidates(one)).collect()),
            Matching::Any(any) => union(any.iter().map(|one| self.candidates(one)).collect()),
        }
    }

    /// Whether an entry matches, phrases included.
    fn matches(&self, matching: &Matching<'_>, no: i32) -> bool {
        match matching {
            Matching::Term(wanted) if wanted.words.len() > 1 => {
                let named = || {
                    let lists = self.lists.borrow();
                    let names = wanted.name.iter().flat_map(|name| self.meant(name, wanted.prefix));
                    let has = |word: String| {
                        lists.get(&word).is_some_and(|list| list.entries.binary_search(&no).is_ok())
                    };
                    names.into_iter().any(has)
                };
                self.texts.borrow().get(&no).is_some_and(|text| has_phrase(text, wanted)) || named()
            }
            Matching::Term(_) | Matching::Scope(_) => self.candidates_with(matching, no),
            Matching::All(all) => all.iter().all(|one| self.matches(one, no)),
            Matching::Any(any) => any.iter().any(|one| self.matches(one, no)),
        }
    }

    /// Whether one entry is among the candidates of a single word.
    fn candidates_with(&self, matching: &Matching<'_>, no: i32) -> bool {
        let mut words = BTreeSet::new();
        self.words_of(matching, &mut words);
        let lists = self.lists.borrow();
        words.iter().any(|word| lists.get(word).is_some_and(|list| list.entries.binary_search(&no).is_ok()))
    }

    /// Those of these entries that are in scope, newest first, with their length.
    fn read(&self, nos: &[i32], with_words: bool, limit: usize) -> Result<Vec<(i32, Proposal, u64)>, Error> {
        let words = if with_words { "e.words" } else { "NULL::text" };
        let who = match &self.private {
            None => "e.audience IS NULL AND $12::text[] IS NULL",
            Some(_) => "e.audience IS NOT NULL AND ($12::text[] IS NULL OR e.audience && $12::text[])",
        };
        let sql = format!(
            "SELECT {FOUND_COLUMNS}, e.length, e.no, {words} FROM recall_entries e
             JOIN conversation_rows c ON c.tenant = e.tenant AND c.no = e.conversation
             WHERE e.tenant = $1 AND e.no = ANY ($11::integer[]) AND {who} AND {IN_SCOPE} ORDER BY e.no DESC LIMIT $13"
        );
        let mut params = self.scope.params();
        params.extend(boxed![nos.to_vec(), self.private.clone().flatten(), signed(limit as u64)]);
        let mut all = Vec::new();
        for row in self.db.query(&sql, &refs(&params))? {
            let no: i32 = rows::get(&row, 7)?;
            if let Some(words) = rows::get::<Option<String>>(&row, 8)? {
                self.texts.borrow_mut().insert(no, words);
            }
            all.push((no, self.scope.found(&row)?, rows::get::<i32>(&row, 6)?.max(0) as u64));
        }
        Ok(all)
    }
}

impl Words for Lists<'_> {
    type Error = Error;

    fn count(&self, word: &str, prefix: bool) -> Result<u64, Error> {
        let counted = if prefix { self.counts.get(&format!("{word}*")) } else { self.counts.get(word) };
        Ok(counted.copied().unwrap_or(0))
    }

    fn count_in_scope(&self, word: &str) -> Result<u64, Error> {
        self.count(word, false)
    }

    fn newest(&self, matching: &Matching<'_>, limit: u64) -> Result<Vec<(Proposal, u64)>, Error> {
        let (limit, phrases) = (limit as usize, has_phrases(matching));
        let mut rows_read = ROWS_READ;
        loop {
            let first = self.load(matching, rows_read)?;
            let mut candidates = self.candidates(matching);
            candidates.retain(|no| *no >= first);
            candidates.reverse();
            let mut all = Vec::new();
            for page in candidates.chunks(PAGE_ENTRIES) {
                if all.len() >= limit {
                    break;
                }
                // Of phrases more are read than match.
                let most = if phrases { page.len() } else { limit - all.len() };
                let read = self.read(page, phrases, most)?;
                let fits = read.into_iter().filter(|(no, ..)| !phrases || self.matches(matching, *no));
                all.extend(fits.map(|(_, found, length)| (found, length)));
            }
            if all.len() >= limit || first == 0 {
                all.truncate(limit);
                return Ok(all);
            }
            rows_read = rows_read.saturating_mul(ROWS_READ_FACTOR);
        }
    }

    fn having(&self, matching: &Matching<'_>, of: &[(Proposal, u64)]) -> Result<HashSet<EntryNo>, Error> {
        self.load(matching, ROWS_READ)?;
        if has_phrases(matching) {
            let missing: Vec<i32> = {
                let texts = self.texts.borrow();
                let all = of.iter().map(|(found, _)| number(found.no));
                all.filter(|no| !texts.contains_key(no)).collect()
            };
            if !missing.is_empty() {
                self.read(&missing, true, missing.len())?;
            }
        }
        let candidates = self.candidates(matching);
        let has = |found: &Proposal| {
            let no = number(found.no);
            candidates.binary_search(&no).is_ok() && (!has_phrases(matching) || self.matches(matching, no))
        };
        Ok(of.iter().map(|(found, _)| found).filter(|found| has(found)).map(|found| found.no).collect())
    }
}

fn has_phrases(matching: &Matching<'_>) -> bool {
    match matching {
        Matching::Term(wanted) => wanted.words.len() > 1,
        Matching::Scope(_) => false,
        Matching::All(all) | Matching::Any(all) => all.iter().any(has_phrases),
    }
}

/// Whether the words of a term follow each other in a text.
fn has_phrase(text: &str, wanted: &Wanted) -> bool {
    let Some((last, rest)) = wanted.words.split_last() else { return false };
    let words: Vec<&str> = text.split(' ').collect();
    words.windows(wanted.words.len()).any(|window| {
        let end = window[rest.len()];
        let ends = if wanted.prefix { end.starts_with(last.as_str()) } else { end == last };
        ends && window.iter().zip(rest).all(|(word, wanted)| word == wanted)
    })
}

fn union(mut lists: Vec<Vec<i32>>) -> Vec<i32> {
    if lists.len() < 2 {
        return lists.pop().unwrap_or_default();
    }
    let mut all = lists.concat();
    all.sort_unstable();
    all.dedup();
    all
}

fn intersection(mut lists: Vec<Vec<i32>>) -> Vec<i32> {
    lists.sort_by_key(Vec::len);
    let mut lists = lists.into_iter();
    let mut all = lists.next().unwrap_or_default();
    for list in lists {
        all.retain(|no| list.binary_search(no).is_ok());
    }
    all
}

impl Postgres {
    fn by_words(
        &self,
        db: &Db,
        scope: &Searched<'_>,
        query: &TextQuery,
        limit: usize,
    ) -> Result<Proposed, Error> {
        let mut index = Lists::new(db, scope, None);
        index.count_query(query)?;
        let sql = "SELECT entries, words FROM recall_tenants WHERE tenant = $1";
        let size = match db.query_one(sql, &[&scope.tenant.as_str()])? {
            Some(row) => (rows::unsigned(&row, 0)?, rows::unsigned(&row, 1)?),
            None => (0, 0),
        };
        let counts = propose::counts(&index, size, query)?;
        let mut found = propose::proposed(&index, &scope.words(), query, &counts, limit)?;
        found.extend(privately(db, scope, query, limit)?);
        Ok(Proposed { counts, found })
    }
}

/// The newest entries that are not for everyone, but for the viewer. Their words are counted nowhere, so the caller
/// ranks them by the counts of the others.
fn privately(db: &Db, scope: &Searched<'_>, query: &TextQuery, limit: usize) -> Result<Vec<Proposal>, Error> {
    let viewers = match &scope.filter.viewer {
        Viewer::Owner => None,
        Viewer::Actors(names) if names.iter().next().is_none() => return Ok(Vec::new()),
        Viewer::Actors(names) => Some(names.iter().map(ToString::to_string).collect()),
    };
    let Some(matching) = propose::uncounted(query) else { return Ok(Vec::new()) };
    let mut index = Lists::new(db, scope, Some(viewers));
    index.find_beginnings(query)?;
    let found = index.newest(&matching, limit as u64)?;
    Ok(found.into_iter().map(|(found, _)| found).collect())
}

impl WordSearch for Postgres {
    fn find_text(
        &self,
        tenant: &TenantName,
        query: &TextQuery,
        filter: &Filter,
        limit: usize,
    ) -> Result<Proposed, Error> {
        let db = self.of(tenant)?;
        match Searched::new(&db, tenant, filter)? {
            Some(scope) => self.by_words(&db, &scope, query, limit),
            None => Ok(Proposed::default()),
        }
    }

    fn neighbours(
        &self,
        tenant: &TenantName,
        filter: &Filter,
        entries: &[EntryNo],
        reach: usize,
    ) -> Result<Vec<Vec<(Proposal, usize)>>, Error> {
        let db = self.of(tenant)?;
        let Some(scope) = Searched::new(&db, tenant, filter)? else { return Ok(Vec::new()) };
        // In the order in which they are read: an edit stands where the turn stood that it replaces, unless it was put there
        // after the end of what is in scope.
        let place =
            |of: &str| format!("(CASE WHEN {of}.placed_seq > l.cap THEN {of}.seq ELSE {of}.place END)");
        let side = |side: i32, first: &str, last: &str, order: &str| {
            let (place, within) = (place("t"), format!("BETWEEN m.{first} AND m.{last}"));
            // Either is in the range if the place is; for these there are indexes.
            let of = "turn_rows t WHERE t.tenant = $1 AND t.conversation = s.conversation";
            let near = format!(
                "(SELECT * FROM {of} AND t.seq {within}
                  UNION ALL SELECT * FROM {of} AND t.placed_seq IS NOT NULL AND t.place {within} AND NOT (t.seq {within})) t"
            );
            format!(
                "(SELECT {FOUND_COLUMNS}, {side} AS side, row_number() OVER (ORDER BY {place} {order}, t.seq {order}) AS away
                  FROM {near} JOIN {} ON e.conversation = t.conversation JOIN {} ON true WHERE {place} {within} AND {IN_SCOPE}
                  ORDER BY {place} {order}, t.seq {order} LIMIT $12)",
                one("recall_entries e", "e.tenant = $1 AND e.id = t.id AND e.kind = 0 AND e.audience IS NULL"),
                one("conversation_rows c", "c.tenant = $1 AND c.no = t.conversation")
            )
        };
        let (before, after) = (side(0, "first", "before", "DESC"), side(1, "after", "last", "ASC"));
        // The bounds are computed apart (`OFFSET 0`): under row-level security an index is not used for the result of an operator
        // that can fail.
        let sql = format!(
            "SELECT b.*, n.nth FROM unnest($11::integer[]) WITH ORDINALITY AS n (no, nth)
             JOIN {} ON true JOIN {} ON p.conversation = s.conversation
             CROSS JOIN LATERAL (SELECT coalesce(min(l.cap), {END}) AS cap FROM unnest($2::bigint[], $4::bigint[]) AS l (no, cap) WHERE l.no = s.conversation) l
             CROSS JOIN LATERAL (SELECT place - $13 AS first, place - 1 AS before, place + 1 AS after, place + $13 AS last
                 FROM (SELECT {} AS place) m OFFSET 0) m
             CROSS JOIN LATERAL ({before} UNION ALL {after}) b ORDER BY n.nth, b.side, b.away",
            one("recall_entries s", "s.tenant = $1 AND s.no = n.no AND s.kind = 0 AND s.audience IS NULL"),
            one("turn_rows p", "p.tenant = $1 AND p.id = s.id"),
            place("p")
        );
        let mut params = scope.params();
        let nos: Vec<i32> = entries.iter().map(|entry| number(*entry)).collect();
        params.extend(boxed![nos, signed(reach as u64), BESIDE_EVENTS_MAX]);
        let mut all = vec![Vec::new(); entries.len()];
        for row in db.query(&sql, &refs(&params))? {
            let at = rows::unsigned(&row, 8)? as usize - 1;
            all[at].push((scope.found(&row)?, rows::unsigned(&row, 7)? as usize));
        }
        Ok(all)
    }
}
