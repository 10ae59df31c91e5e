//! Adding entries to a tenant's index and removing them, under the lock of the tenant.

use super::super::db::{Db, Pending, boxed};
use super::super::read;
use super::super::rows::{self, signed};
use super::Claim;
use super::vectors::{self, Models};
use crate::IndexChange;
use everturn_core::Error;
use everturn_core::id::{ConversationId, TenantName};
use everturn_core::write::EventAddress;
use everturn_views::recall::{EntryId, IndexEntry, RecallKind, terms};
use std::collections::{BTreeSet, HashMap};
use tokio_postgres::Row;

/// Begins the words of private entries, which are counted and found apart from the others.
pub const PRIVATE: char = '!';
/// Longer names of actors are cut in the words of the scope; the condition on entries compares them whole.
const ACTOR_BYTES_MAX: usize = 200;
/// Entries of a deleted conversation that are removed at once.
const CUT_AT_ONCE: i64 = 1000;

/// Adds entries to the rows of their words. A row that has 256 or more is followed by another.
const PUT_WORDS: &str =
    "WITH added AS (SELECT n.word, array_agg(n.no ORDER BY n.no) AS entries FROM unnest($2::text[], $3::integer[]) AS n (word, no) GROUP BY n.word)
     INSERT INTO recall_words AS w (tenant, word, first, before, entries)
     SELECT $1, a.word, CASE WHEN cardinality(l.entries) < 256 THEN l.first ELSE a.entries[1] END,
         CASE WHEN cardinality(l.entries) < 256 THEN l.before ELSE coalesce(l.before + cardinality(l.entries), 0) END, a.entries
     FROM added a LEFT JOIN LATERAL (SELECT l.first, l.before, l.entries FROM recall_words l
         WHERE l.tenant = $1 AND l.word = a.word ORDER BY l.first DESC LIMIT 1) l ON true
     ON CONFLICT (tenant, word, first) DO UPDATE SET entries = w.entries || excluded.entries";

/// Removes entries from the rows of their words, and counts them out of the last row.
const REMOVE_WORDS: &str =
    "WITH gone AS (SELECT n.word, r.first, array_agg(n.no) AS nos FROM unnest($2::text[], $3::integer[]) AS n (word, no)
         CROSS JOIN LATERAL (SELECT r.first FROM recall_words r WHERE r.tenant = $1 AND r.word = n.word AND r.first <= n.no
             ORDER BY r.first DESC LIMIT 1) r GROUP BY n.word, r.first),
     last AS (SELECT g.word, l.first, sum(cardinality(g.nos)) FILTER (WHERE g.first <> l.first) AS before FROM gone g
         CROSS JOIN LATERAL (SELECT l.first FROM recall_words l WHERE l.tenant = $1 AND l.word = g.word ORDER BY l.first DESC LIMIT 1) l
         GROUP BY g.word, l.first),
     touched AS (SELECT word, first FROM gone UNION SELECT word, first FROM last)
     UPDATE recall_words w SET before = w.before - coalesce(l.before, 0),
         entries = CASE WHEN g.nos IS NULL THEN w.entries ELSE ARRAY(SELECT e FROM unnest(w.entries) AS e WHERE e <> ALL (g.nos) ORDER BY e) END
     FROM touched t LEFT JOIN gone g ON g.word = t.word AND g.first = t.first LEFT JOIN last l ON l.word = t.word AND l.first = t.first
     WHERE w.tenant = $1 AND w.word = t.word AND w.first = t.first";

/// Drops rows without entries, except the last one of a word that has others: it counts them.
const DROP_EMPTY: &str =
    "DELETE FROM recall_words w USING (SELECT DISTINCT n.word, r.first FROM unnest($2::text[], $3::integer[]) AS n (word, no)
         CROSS JOIN LATERAL ((SELECT r.first FROM recall_words r WHERE r.tenant = $1 AND r.word = n.word AND r.first <= n.no
             ORDER BY r.first DESC LIMIT 1) UNION ALL (SELECT r.first FROM recall_words r WHERE r.tenant = $1 AND r.word = n.word
             ORDER BY r.first DESC LIMIT 1)) r) t
     WHERE w.tenant = $1 AND w.word = t.word AND w.first = t.first AND cardinality(w.entries) = 0
         AND (w.before = 0 OR EXISTS (SELECT 1 FROM recall_words l WHERE l.tenant = $1 AND l.word = w.word AND l.first > w.first))";

const REMOVED_COLUMNS: &str =
    "e.no, e.conversation, e.kind, e.role, e.actor, e.audience IS NOT NULL, e.length, e.words, e.others";

pub fn kind_number(kind: RecallKind) -> i16 {
    match kind {
        RecallKind::Turn => 0,
        RecallKind::Fact => 1,
    }
}

pub fn kind_of(number: i16) -> RecallKind {
    if number == 1 { RecallKind::Fact } else { RecallKind::Turn }
}

/// Words of what filters ask for.
pub mod scope {
    use super::ACTOR_BYTES_MAX;

    pub fn conversation(no: i64) -> String {
        format!(" c{no}")
    }

    pub fn kind(number: i16) -> String {
        format!(" k{number}")
    }

    pub fn actor(name: &str) -> String {
        format!(" a{}", &name[..name.floor_char_boundary(ACTOR_BYTES_MAX)])
    }

    pub fn role(role: &str) -> String {
        format!(" r{role}")
    }
}

/// The words under which an entry is found, each once.
fn found_by(
    (conversation, kind): (i64, i16),
    (role, actor): (Option<&str>, Option<&str>),
    private: bool,
    texts: [&str; 2],
) -> BTreeSet<String> {
    let own = texts.into_iter().flat_map(|text| text.split(' ')).filter(|word| !word.is_empty());
    if private {
        return own.map(|word| format!("{PRIVATE}{word}")).collect();
    }
    let mut words: BTreeSet<String> = own.map(str::to_string).collect();
    words.extend([scope::conversation(conversation), scope::kind(kind)]);
    words.extend(role.map(scope::role));
    words.extend(actor.map(scope::actor));
    words
}

/// Entries that were removed.
#[derive(Default)]
struct Removed {
    nos: Vec<i32>,
    /// Pairs.
    words: Vec<String>,
    words_of: Vec<i32>,
    /// Number of those that everyone could find, and of their words.
    entries: i64,
    length: i64,
}

impl Removed {
    fn read(rows: &[Row]) -> Result<Removed, Error> {
        let mut removed = Removed::default();
        for row in rows {
            let no: i32 = rows::get(row, 0)?;
            let private: bool = rows::get(row, 5)?;
            let (role, actor): (Option<&str>, Option<&str>) = (rows::get(row, 3)?, rows::get(row, 4)?);
            let place = (rows::get(row, 1)?, rows::get(row, 2)?);
            let words = found_by(place, (role, actor), private, [rows::get(row, 7)?, rows::get(row, 8)?]);
            removed.nos.push(no);
            removed.words_of.extend(words.iter().map(|_| no));
            removed.words.extend(words);
            if !private {
                removed.entries += 1;
                removed.length += i64::from(rows::get::<i32>(row, 6)?);
            }
        }
        Ok(removed)
    }

    /// Removes everything else that belongs to these entries.
    fn statements(self, tenant: &str, has_vectors: bool) -> Vec<Pending> {
        if self.nos.is_empty() {
            return Vec::new();
        }
        let tenant = || tenant.to_string();
        let counts = "UPDATE recall_tenants SET removed = true, entries = entries - $2, words = words - $3 WHERE tenant = $1";
        let mut statements = vec![
            Pending {
                sql: REMOVE_WORDS,
                params: boxed![tenant(), self.words.clone(), self.words_of.clone()],
            },
            Pending { sql: DROP_EMPTY, params: boxed![tenant(), self.words, self.words_of] },
            Pending { sql: counts, params: boxed![tenant(), self.entries, self.length] },
        ];
        if has_vectors {
            statements.extend(vectors::removed(tenant(), self.nos));
        }
        statements
    }
}

/// Removes the entries of a conversation after a `seq`.
pub fn cut(
    db: &Db,
    tenant: &TenantName,
    has_vectors: bool,
    conversation: i64,
    through: u64,
) -> Result<(), Error> {
    let sql = format!(
        "DELETE FROM recall_entries e WHERE e.tenant = $1 AND e.no IN (SELECT no FROM recall_entries
             WHERE tenant = $1 AND conversation = $2 AND seq > $3 LIMIT $4) RETURNING {REMOVED_COLUMNS}"
    );
    loop {
        let rows = db.query(&sql, &[&tenant.as_str(), &conversation, &signed(through), &CUT_AT_ONCE])?;
        if rows.is_empty() {
            return Ok(());
        }
        db.together(&Removed::read(&rows)?.statements(tenant.as_str(), has_vectors), false)?;
    }
}

/// Numbers of conversations by id.
struct Numbers<'a> {
    claim: &'a Claim,
    known: HashMap<ConversationId, Option<i64>>,
    lines: HashMap<i64, Vec<i64>>,
}

impl Numbers<'_> {
    fn of(&mut self, id: ConversationId) -> Result<Option<i64>, Error> {
        if let Some(claimed) = self.claim.conversations.iter().find(|claimed| claimed.id == id) {
            return Ok(Some(claimed.no));
        }
        if let Some(known) = self.known.get(&id) {
            return Ok(*known);
        }
        let sql = "SELECT no FROM conversation_rows WHERE tenant = $1 AND id = $2 AND NOT replaced";
        let row = self.claim.db.query_one(sql, &[&self.claim.tenant.as_str(), &&id.to_bytes()[..]])?;
        let no = row.map(|row| rows::get(&row, 0)).transpose()?;
        self.known.insert(id, no);
        Ok(no)
    }

    /// A conversation and its ancestors.
    fn line(&mut self, id: ConversationId) -> Result<Vec<i64>, Error> {
        let Some(no) = self.of(id)? else { return Ok(Vec::new()) };
        if !self.lines.contains_key(&no) {
            let lineage = read::lineage_at(&self.claim.db, &self.claim.tenant, no)?;
            let levels = lineage.into_iter().flat_map(|lineage| lineage.levels);
            self.lines.insert(no, levels.map(|level| level.no).collect());
        }
        Ok(self.lines[&no].clone())
    }
}

/// Entries in the tables that changes are about.
#[derive(Default)]
struct Old {
    gone: Vec<(i64, EntryId, Option<bool>)>,
    gone_at: Vec<EventAddress>,
    fell: Vec<(i64, EntryId, u64)>,
}

/// Applies changes, up to the statements that this returns: they belong to the end of the transaction.
pub fn apply(claim: &Claim, changes: Vec<IndexChange>) -> Result<Vec<Pending>, Error> {
    if changes.is_empty() {
        return Ok(Vec::new());
    }
    let mut numbers = Numbers { claim, known: HashMap::new(), lines: HashMap::new() };
    let mut old = Old::default();
    let mut new: Vec<(i64, IndexEntry)> = Vec::new();
    for change in changes {
        match change {
            IndexChange::Put(entry) => {
                let Some(no) = numbers.of(entry.conversation)? else { continue };
                let private = entry.audience.is_some();
                new.retain(|(of, other)| {
                    (*of, other.id, other.audience.is_some()) != (no, entry.id, private)
                });
                old.gone.push((no, entry.id, Some(private)));
                new.push((no, *entry));
            }
            IndexChange::Fell { key, id, seq } => {
                let Some(no) = numbers.of(key.id)? else { continue };
                let fell = new.iter_mut().filter(|(of, entry)| (*of, entry.id) == (no, id));
                fell.for_each(|(_, entry)| entry.fallen = Some(seq));
                old.fell.push((no, id, seq));
            }
            IndexChange::Remove { key, id } => {
                let line = numbers.line(key.id)?;
                new.retain(|(of, entry)| entry.id != id || !line.contains(of));
                old.gone.extend(line.into_iter().map(|no| (no, id, None)));
            }
            IndexChange::RemoveAt { at, .. } => {
                new.retain(|(_, entry)| (entry.conversation, entry.seq) != (at.conversation, at.seq));
                old.gone_at.push(at);
            }
        }
    }
    let tenant = claim.tenant.as_str();
    let (removed, models) = old.removed(&claim.db, tenant, claim.has_vectors)?;
    let mut statements = removed.statements(tenant, claim.has_vectors);
    put(claim, new, models, &mut statements);
    Ok(statements)
}

impl Old {
    /// Removes rows of entries and marks superseded ones. Returns the removed, and the models that are known.
    fn removed(self, db: &Db, tenant: &str, has_vectors: bool) -> Result<(Removed, Option<Models>), Error> {
        let tenant = || tenant.to_string();
        let id = |id: &EntryId| id.to_bytes().to_vec();
        let kind = |id: &EntryId| kind_number(id.kind());
        let fell = "UPDATE recall_entries e SET fallen = f.seq FROM unnest($2::bigint[], $3::smallint[], $4::bytea[], $5::bigint[]) AS f (conversation, kind, id, seq)
             WHERE e.tenant = $1 AND e.id = f.id AND e.conversation = f.conversation AND e.kind = f.kind";
        let gone = concat!(
            "DELETE FROM recall_entries e USING unnest($2::bigint[], $3::smallint[], $4::bytea[], $5::boolean[]) AS g (conversation, kind, id, private)
             WHERE e.tenant = $1 AND e.id = g.id AND e.conversation = g.conversation AND e.kind = g.kind
                 AND coalesce(g.private = (e.audience IS NOT NULL), true) RETURNING ",
            "e.no, e.conversation, e.kind, e.role, e.actor, e.audience IS NOT NULL, e.length, e.words, e.others"
        );
        let gone_at = concat!(
            "DELETE FROM recall_entries e USING unnest($2::bytea[], $3::bigint[]) AS g (id, seq), conversation_rows c
             WHERE c.tenant = $1 AND c.id = g.id AND e.tenant = $1 AND e.conversation = c.no AND e.seq = g.seq RETURNING ",
            "e.no, e.conversation, e.kind, e.role, e.actor, e.audience IS NOT NULL, e.length, e.words, e.others"
        );
        let mut statements = Vec::new();
        if !self.fell.is_empty() {
            let params = boxed![
                tenant(),
                self.fell.iter().map(|(no, ..)| *no).collect::<Vec<_>>(),
                self.fell.iter().map(|(_, of, _)| kind(of)).collect::<Vec<_>>(),
                self.fell.iter().map(|(_, of, _)| id(of)).collect::<Vec<_>>(),
                self.fell.iter().map(|(.., seq)| signed(*seq)).collect::<Vec<_>>(),
            ];
            statements.push(Pending { sql: fell, params });
        }
        let params = boxed![
            tenant(),
            self.gone.iter().map(|(no, ..)| *no).collect::<Vec<_>>(),
            self.gone.iter().map(|(_, of, _)| kind(of)).collect::<Vec<_>>(),
            self.gone.iter().map(|(_, of, _)| id(of)).collect::<Vec<_>>(),
            self.gone.iter().map(|(.., private)| *private).collect::<Vec<_>>(),
        ];
        let first = statements.len();
        statements.push(Pending { sql: gone, params });
        if !self.gone_at.is_empty() {
            let params = boxed![
                tenant(),
                self.gone_at.iter().map(|at| at.conversation.to_bytes().to_vec()).collect::<Vec<_>>(),
                self.gone_at.iter().map(|at| signed(at.seq)).collect::<Vec<_>>(),
            ];
            statements.push(Pending { sql: gone_at, params });
        }
        if has_vectors {
            statements.push(vectors::known(tenant()));
        }
        let mut answers = db.together(&statements, false)?;
        let models = if has_vectors { answers.pop() } else { None };
        let models = models.map(|rows| Models::read(&rows)).transpose()?;
        let rows: Vec<Row> = answers.into_iter().skip(first).flatten().collect();
        Ok((Removed::read(&rows)?, models))
    }
}

/// Adds entries, in this order.
fn put(claim: &Claim, new: Vec<(i64, IndexEntry)>, models: Option<Models>, statements: &mut Vec<Pending>) {
    if new.is_empty() {
        return;
    }
    let tenant = || claim.tenant.as_str().to_string();
    let nos: Vec<i32> = (claim.last_entry + 1..).take(new.len()).collect();
    let (mut words, mut words_of) = (Vec::new(), Vec::new());
    let (mut lengths, mut texts, mut others) = (Vec::new(), Vec::new(), Vec::new());
    let (mut entries, mut length) = (0_i64, 0_i64);
    for ((conversation, entry), no) in new.iter().zip(&nos) {
        let terms = terms(&entry.text);
        let (text, other) = (terms.words_text(), format!("{} {}", terms.names_text(), terms.stems_text()));
        let place = (*conversation, kind_number(entry.id.kind()));
        let by = (entry.index_role(), entry.actor.as_deref());
        let found_by = found_by(place, by, entry.audience.is_some(), [&text, &other]);
        words_of.extend(found_by.iter().map(|_| *no));
        words.extend(found_by);
        lengths.push(terms.words.len() as i32);
        if entry.audience.is_none() {
            entries += 1;
            length += terms.words.len() as i64;
        }
        texts.push(text);
        others.push(other);
    }
    let insert = "INSERT INTO recall_entries (tenant, no, conversation, seq, kind, id, role, actor, at, fallen, prose, audience, length, words, others)
         SELECT $1, n.no, n.conversation, n.seq, n.kind, n.id, n.role, n.actor, n.at, n.fallen, n.prose,
             CASE WHEN n.audience IS NOT NULL THEN ARRAY(SELECT jsonb_array_elements_text(n.audience::jsonb)) END, n.length, n.words, n.others
         FROM unnest($2::integer[], $3::bigint[], $4::bigint[], $5::smallint[], $6::bytea[], $7::text[], $8::text[], $9::bigint[], $10::bigint[],
             $11::boolean[], $12::text[], $13::integer[], $14::text[], $15::text[])
             AS n (no, conversation, seq, kind, id, role, actor, at, fallen, prose, audience, length, words, others)";
    let of = |entry: fn(&IndexEntry) -> i64| new.iter().map(|(_, one)| entry(one)).collect::<Vec<i64>>();
    let audience =
        |entry: &IndexEntry| entry.audience.as_ref().map(|names| serde_json::json!(names).to_string());
    let params = boxed![
        tenant(),
        nos.clone(),
        new.iter().map(|(no, _)| *no).collect::<Vec<_>>(),
        of(|entry| signed(entry.seq)),
        new.iter().map(|(_, entry)| kind_number(entry.id.kind())).collect::<Vec<_>>(),
        new.iter().map(|(_, entry)| entry.id.to_bytes().to_vec()).collect::<Vec<_>>(),
        new.iter().map(|(_, entry)| entry.index_role().map(String::from)).collect::<Vec<_>>(),
        new.iter().map(|(_, entry)| entry.actor.clone()).collect::<Vec<_>>(),
        of(|entry| entry.at.0),
        new.iter().map(|(_, entry)| entry.fallen.map(signed)).collect::<Vec<_>>(),
        new.iter().map(|(_, entry)| entry.prose).collect::<Vec<_>>(),
        new.iter().map(|(_, entry)| audience(entry)).collect::<Vec<_>>(),
        lengths,
        texts,
        others,
    ];
    if let Some(models) = models {
        let public = new.iter().zip(&nos).filter(|((_, entry), _)| entry.audience.is_none());
        let added: Vec<vectors::Added<'_>> =
            public.map(|((_, entry), no)| (*no, entry.prose, entry.vector.as_ref())).collect();
        statements.extend(models.added(claim.tenant.as_str(), &added));
    }
    statements.push(Pending { sql: insert, params });
    statements.push(Pending { sql: PUT_WORDS, params: boxed![tenant(), words, words_of] });
    let counts = "UPDATE recall_tenants SET last_entry = $2, entries = entries + $3, words = words + $4 WHERE tenant = $1";
    let last = nos.last().copied().unwrap_or(claim.last_entry);
    statements.push(Pending { sql: counts, params: boxed![tenant(), last, entries, length] });
}
