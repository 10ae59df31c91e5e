//! Embeddings of entries: stored in the file, with their sign bits in memory once there is a query.
//!
//! A model is known from its first use. Then every entry waits for an embedding of it, and so does every later
//! entry.

use super::find::{self, Resolved, Searched};
use super::sign_bits::{self, SignBits};
use crate::sqlite::rows::signed;
use crate::{Proposal, Unembedded};
use everturn_core::id::{Key, TenantName};
use everturn_views::recall::{Embedded, EntryNo};
use everturn_views::vectors::{RESCORED, code, normalized, pack, rank, similarity};
use rusqlite::{Connection, OptionalExtension, params};

/// If a filter leaves no more entries than this, all of them are compared.
const EXACT_ENTRIES_MAX: usize = 2_000;
/// Number of removals that are recorded; beyond this, sign bits in memory are read again from the start.
const GONE_MAX: i64 = 10_000;

/// Records that a new entry needs an embedding of every model, except the one that it comes with.
pub fn added(db: &Connection, entry: i64, vector: Option<&Embedded>) -> rusqlite::Result<()> {
    let made = match vector {
        Some(Embedded { model, numbers }) => {
            let mut model = Model::known(db, model)?;
            model.keep(db, entry, numbers)?;
            Some(model.no)
        }
        None => None,
    };
    db.prepare_cached(
        "INSERT INTO waiting (model, prose, entry)
         SELECT m.no, e.prose, e.no FROM entries e, models m WHERE e.no = ? AND m.no IS NOT ?",
    )?
    .execute(params![entry, made])
    .map(drop)
}

/// Removes the embeddings of an entry.
pub fn remove(db: &Connection, entry: i64) -> rusqlite::Result<()> {
    db.prepare_cached(
        "DELETE FROM waiting WHERE model IN (SELECT no FROM models) AND prose IN (0, 1) AND entry = ?",
    )?
    .execute([entry])?;
    let codes: Vec<i64> = db
        .prepare_cached("SELECT no FROM codes WHERE model IN (SELECT no FROM models) AND entry = ?")?
        .query_map([entry], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    codes.into_iter().try_for_each(|code| forget(db, code))
}

fn forget(db: &Connection, code: i64) -> rusqlite::Result<()> {
    sign_bits::drop_block(db, code)?;
    db.prepare_cached("DELETE FROM vectors WHERE no = ?")?.execute([code])?;
    db.prepare_cached("DELETE FROM codes WHERE no = ?")?.execute([code])?;
    db.prepare_cached("INSERT INTO codes_gone (code) VALUES (?)")?.execute([code])?;
    let last = db.last_insert_rowid();
    if last % GONE_MAX == 0 {
        db.prepare_cached("DELETE FROM codes_gone WHERE no <= ?")?.execute([last - GONE_MAX])?;
    }
    Ok(())
}

fn model_number(db: &Connection, model: &str) -> rusqlite::Result<Option<i64>> {
    db.prepare_cached("SELECT no FROM models WHERE name = ?")?.query_row([model], |row| row.get(0)).optional()
}

/// Whether a model is known.
pub fn knows(db: &Connection, model: &str) -> rusqlite::Result<bool> {
    Ok(model_number(db, model)?.is_some())
}

/// Makes a model known: every entry waits for its embedding.
pub fn know(db: &Connection, model: &str) -> rusqlite::Result<()> {
    if model_number(db, model)?.is_none() {
        db.execute("INSERT INTO models (name) VALUES (?)", [model])?;
        let number = db.last_insert_rowid();
        db.execute("INSERT INTO waiting (model, prose, entry) SELECT ?, prose, no FROM entries", [number])?;
    }
    Ok(())
}

/// Number of entries without an embedding of a model.
pub fn missing(db: &Connection, model: &str) -> rusqlite::Result<u64> {
    let known = db
        .prepare_cached("SELECT waiting FROM models WHERE name = ?")?
        .query_row([model], |row| row.get(0))
        .optional()?;
    let count: i64 = match known {
        Some(waiting) => waiting,
        None => db.prepare_cached("SELECT entries FROM position")?.query_row([], |row| row.get(0))?,
    };
    Ok(count as u64)
}

/// Models that have embeddings.
pub fn models(db: &Connection) -> rusqlite::Result<Vec<String>> {
    db.prepare_cached(
        "SELECT name FROM models WHERE EXISTS (SELECT 1 FROM codes WHERE model = models.no) ORDER BY no",
    )?
    .query_map([], |row| row.get(0))?
    .collect()
}

/// Entries without an embedding of a model: those among `first` in their order, then prose, then the rest, each
/// newest first.
pub fn unembedded(
    db: &Connection,
    tenant: &TenantName,
    model: &str,
    first: &[EntryNo],
    limit: usize,
) -> rusqlite::Result<Vec<Unembedded>> {
    let Some(model) = model_number(db, model)? else { return Ok(Vec::new()) };
    let mut waits =
        db.prepare_cached("SELECT 1 FROM waiting WHERE model = ? AND prose IN (0, 1) AND entry = ?")?;
    let mut entries = Vec::new();
    for EntryNo(no) in first {
        if entries.len() < limit && waits.exists([model, *no])? {
            entries.push(*no);
        }
    }
    let asked_for = entries.len();
    let mut others = db.prepare_cached(
        "SELECT entry FROM waiting WHERE model = ? ORDER BY prose DESC, entry DESC LIMIT ?",
    )?;
    for no in others.query_map([model, signed(limit as u64)], |row| row.get(0))? {
        let no = no?;
        if entries.len() < limit && !entries[..asked_for].contains(&no) {
            entries.push(no);
        }
    }
    let mut look = db.prepare_cached(
        "SELECT e.no, c.id, e.seq, e.kind, e.id, e.at FROM entries e JOIN conversations c ON c.no = e.conversation WHERE e.no = ?",
    )?;
    let look = |no: i64| {
        let Proposal { no, conversation, seq, id, .. } = look.query_row([no], find::found)?;
        Ok(Unembedded { no, key: Key { tenant: tenant.clone(), id: conversation }, seq, id })
    };
    entries.into_iter().map(look).collect()
}

/// Stores embeddings, except for entries that were removed meanwhile or already have one.
pub fn put(db: &Connection, model: &str, vectors: &[(EntryNo, Vec<f32>)]) -> rusqlite::Result<()> {
    let mut model = Model::known(db, model)?;
    vectors.iter().try_for_each(|(EntryNo(entry), vector)| model.keep(db, *entry, vector))?;
    sign_bits::gather(db)
}

/// A known model, and the length of its embeddings once there is one.
struct Model {
    no: i64,
    dimensions: Option<usize>,
}

impl Model {
    fn known(db: &Connection, name: &str) -> rusqlite::Result<Model> {
        know(db, name)?;
        db.prepare_cached("SELECT no, dimensions FROM models WHERE name = ?")?.query_row([name], |row| {
            let dimensions = row.get::<_, Option<i64>>(1)?.map(|dimensions| dimensions as usize);
            Ok(Model { no: row.get(0)?, dimensions })
        })
    }

    fn keep(&mut self, db: &Connection, entry: i64, vector: &[f32]) -> rusqlite::Result<()> {
        let mut packed = pack(vector);
        if packed.is_some() && self.dimensions.is_none() {
            self.dimensions = Some(vector.len());
            db.execute(
                "UPDATE models SET dimensions = ? WHERE no = ?",
                params![vector.len() as i64, self.no],
            )?;
        }
        if self.dimensions != Some(vector.len()) {
            packed = None;
        }
        db.prepare_cached("DELETE FROM waiting WHERE model = ? AND prose IN (0, 1) AND entry = ?")?
            .execute([self.no, entry])?;
        let kept = db
            .prepare_cached(
                "INSERT OR IGNORE INTO codes (model, entry, conversation, kind, role, actor, at, code)
                 SELECT ?, no, conversation, kind, role, actor, at, ? FROM entries WHERE no = ?",
            )?
            .execute(params![self.no, packed.as_ref().map(|_| code(vector)), entry])?;
        if let (1, Some(packed)) = (kept, packed) {
            db.prepare_cached("INSERT INTO vectors (no, packed) VALUES (?, ?)")?
                .execute(params![db.last_insert_rowid(), packed])?;
        }
        Ok(())
    }
}

/// Similarity of entries to a query; `None` for one that waits for its embedding or has nothing to embed.
pub fn nearness(
    db: &Connection,
    model: &str,
    vector: &[f32],
    entries: &[EntryNo],
) -> rusqlite::Result<Vec<Option<f64>>> {
    let (model, query) = (model_number(db, model)?, normalized(vector).unwrap_or_default());
    let mut packed = db.prepare_cached(
        "SELECT v.packed FROM codes k CROSS JOIN vectors v ON v.no = k.no WHERE k.model = ? AND k.entry = ?",
    )?;
    let mut near = |entry: &EntryNo| {
        let packed: Option<Vec<u8>> =
            packed.query_row(params![model, entry.0], |row| row.get(0)).optional()?;
        Ok(packed.and_then(|packed| similarity(&query, &packed)).map(f64::from))
    };
    entries.iter().map(&mut near).collect()
}

/// Drops embeddings of all models but one, up to a limit. Returns their number.
pub fn keep_only(db: &Connection, model: &str, limit: usize) -> rusqlite::Result<usize> {
    let other = "(SELECT no FROM models WHERE name <> ?)";
    let codes: Vec<i64> = db
        .prepare_cached(&format!("SELECT no FROM codes WHERE model IN {other} LIMIT ?"))?
        .query_map(params![model, signed(limit as u64)], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    codes.iter().try_for_each(|code| forget(db, *code))?;
    if codes.len() < limit {
        db.execute(&format!("DELETE FROM waiting WHERE model IN {other}"), [model])?;
        db.execute(&format!("DELETE FROM blocks WHERE model IN {other}"), [model])?;
        db.execute("DELETE FROM models WHERE name <> ?", [model])?;
    }
    Ok(codes.len())
}

/// The nearest entries, best first.
pub fn near(
    db: &Connection,
    signs: &SignBits,
    scope: &Searched,
    model: &str,
    vector: &[f32],
    limit: usize,
) -> rusqlite::Result<Vec<Proposal>> {
    let (Some(resolved), Some(query)) = (scope.resolve(db)?, normalized(vector)) else {
        return Ok(Vec::new());
    };
    let known = db
        .prepare_cached("SELECT no, dimensions FROM models WHERE name = ?")?
        .query_row([model], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, Option<i64>>(1)?)))
        .optional()?;
    let Some((model, Some(dimensions))) = known else { return Ok(Vec::new()) };
    if dimensions as usize != query.len() {
        return Ok(Vec::new());
    }
    let signs = signs.of(db, model, query.len())?;
    let signs = signs.read();
    let mut most = RESCORED;
    loop {
        let few = signs.few(&resolved.rows, EXACT_ENTRIES_MAX);
        let (candidates, all) = match few {
            Some(all) => (all, true),
            None => {
                let nearest = signs.nearest(&query, most, &resolved.rows);
                let all = nearest.len() < most;
                (nearest, all)
            }
        };
        let found = ranked(db, &resolved, &query, candidates, limit)?;
        // Only the file knows which entries are superseded and where forks end. If that leaves too few, more
        // are examined.
        if found.len() >= limit || all {
            return Ok(found);
        }
        most = most.saturating_mul(4);
    }
}

/// The best of these codes that are in scope.
fn ranked(
    db: &Connection,
    scope: &Resolved,
    query: &[f32],
    mut candidates: Vec<i64>,
    limit: usize,
) -> rusqlite::Result<Vec<Proposal>> {
    // In the order of the file.
    candidates.sort_unstable();
    let mut read = db.prepare_cached("SELECT packed FROM vectors WHERE no = ?")?;
    let mut packed = Vec::with_capacity(candidates.len());
    for code in candidates {
        packed.extend(
            read.query_row([code], |row| row.get::<_, Vec<u8>>(0)).optional()?.map(|packed| (code, packed)),
        );
    }
    let mut look = db.prepare(&format!(
        "SELECT e.no, c.id, e.seq, e.kind, e.id, e.at FROM codes k CROSS JOIN entries e ON e.no = k.entry
         CROSS JOIN conversations c ON c.no = e.conversation WHERE k.no = ? AND {}",
        scope.condition
    ))?;
    let mut all = Vec::new();
    for (code, score) in rank(query, packed) {
        if all.len() == limit {
            break;
        }
        let found = look.query_row([code], find::found).optional()?;
        all.extend(found.map(|found| Proposal { score: f64::from(score), ..found }));
    }
    Ok(all)
}
