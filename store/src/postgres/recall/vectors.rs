//! Search by embedding, with the extension pgvector: exact among few vectors, by an HNSW index of the tenant's own
//! among many. Without the extension there are no vectors, and recall is lexical.
//!
//! A model is known from its first use. Then every entry waits for an embedding of it, and so does every later
//! entry.

use super::super::Postgres;
use super::super::db::{Db, Mode, Pending, Scope, boxed};
use super::super::link::Link;
use super::super::rows::{self, signed};
use super::super::schema;
use super::SETTINGS;
use super::entries::kind_of;
use super::find::{FOUND_COLUMNS, IN_SCOPE, Lists, Searched, number, reader, refs};
use crate::recall::propose::{COUNTED_ENTRIES_MAX, Matching, Words};
use crate::{Proposal, Unembedded, VectorSearch};
use everturn_core::Error;
use everturn_core::id::{ConversationId, Key, TenantName};
use everturn_views::recall::{Embedded, EntryId, EntryNo, Filter};
use everturn_views::vectors::normalized;
use std::collections::HashMap;
use std::fmt::Write;
use std::time::{Duration, Instant};
use tokio_postgres::Row;

/// Among more vectors of a tenant than this, an index proposes the nearest.
const EXACT_VECTORS_MAX: u64 = 20_000;
/// Number of nearest vectors that are looked at first where filters may leave some out.
const NEAREST: i64 = 600;
/// Tenants that are looked through for waiting entries at once.
const TENANTS: i64 = 16;
/// Time between two looks for tenants that need an index.
const INDEXES_EVERY: Duration = Duration::from_secs(60);
/// First key of the locks of those who embed a tenant's entries.
const EMBEDDING_LOCK: i32 = 0x6576_7472;

const WITHOUT: &str = "the database has no extension pgvector, so only words are compared; install it, have a superuser run \
     `CREATE EXTENSION vector` in this database, and restart the server to find by meaning";

/// The column of vectors. Dropping the extension drops it, and leaves the table.
const TABLE: &str = "(SELECT attname FROM pg_attribute WHERE attrelid = to_regclass('recall_vectors') AND attname = 'embedding' AND NOT attisdropped)";

/// Whether a catalog has something. Asked from a table, since only a lock on one makes a session learn what others have
/// created.
fn has(db: &Db, name: &str) -> Result<bool, Error> {
    let row = db.query_one(&format!("SELECT {name} IS NOT NULL FROM pg_class LIMIT 1"), &[])?;
    row.map_or(Ok(false), |row| rows::get(&row, 0))
}

/// Whether there is a table of vectors.
pub fn has_table(db: &Db) -> Result<bool, Error> {
    has(db, TABLE)
}

/// Makes the table of vectors, if the extension is there or can be created. Returns why there is none, and what to do.
pub fn prepare(link: &Link, read_only: bool) -> Result<Option<String>, Error> {
    let now = |name: &str| has(&Db::begin(link, Scope::All, Mode::Read)?, name);
    if now(TABLE)? {
        return Ok(None);
    }
    if read_only {
        return Ok(Some(WITHOUT.into()));
    }
    let extension = "to_regtype('halfvec')";
    if !now(extension)? {
        // Allowed for superusers, and for owners of the database where it is a trusted extension.
        if let Err(error) = link.outside("CREATE EXTENSION IF NOT EXISTS vector") {
            tracing::debug!(%error, "the extension pgvector cannot be created");
        }
        if !now(extension)? {
            return Ok(Some(unusable(&Db::begin(link, Scope::All, Mode::Read)?)?));
        }
    }
    schema::once(link, |db| match has_table(db)? {
        true => Ok(()),
        // After the extension was dropped, every entry waits for its vectors again.
        false => {
            db.batch(
                "DROP TABLE IF EXISTS recall_vectors; DELETE FROM recall_waiting; DELETE FROM recall_models",
            )?;
            db.batch(include_str!("../vectors.sql"))
        }
    })?;
    Ok(None)
}

/// Why the types of the extension are not found.
fn unusable(db: &Db) -> Result<String, Error> {
    let sql = "SELECT n.nspname::text, n.nspname = ANY (current_schemas(true)), e.extversion::text, current_user::text, current_schema()::text
         FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'vector'";
    let Some(row) = db.query_one(sql, &[])? else { return Ok(WITHOUT.into()) };
    let text = |column| rows::get::<String>(&row, column);
    let (schema, version, role, own) = (text(0)?, text(2)?, text(3)?, text(4)?);
    Ok(match rows::get(&row, 1)? {
        true => format!(
            "the extension pgvector is of version {version}, so only words are compared; install 0.8 or later, and run \
             `ALTER EXTENSION vector UPDATE`"
        ),
        false => format!(
            "the extension pgvector is in the schema {schema}, where the role {role} does not look, so only words are compared; \
             run `ALTER ROLE {role} SET search_path = {own}, {schema}`, and restart the server"
        ),
    })
}

/// A model of a tenant.
#[derive(Clone)]
struct Model {
    no: i32,
    name: String,
    dimensions: Option<usize>,
    vectors: u64,
}

/// The models that a tenant's index knows.
#[derive(Default)]
pub struct Models {
    all: Vec<Model>,
    /// The last number: none is used twice, since an index may be left from its first use.
    last: i32,
}

/// Number of a new entry, whether it is prose, and its embedding.
pub type Added<'a> = (i32, bool, Option<&'a Embedded>);

/// Reads the models of a tenant.
pub fn known(tenant: String) -> Pending {
    let sql = "SELECT m.no, m.name, m.dimensions, m.vectors, t.last_model FROM recall_tenants t LEFT JOIN recall_models m ON m.tenant = t.tenant
         WHERE t.tenant = $1 ORDER BY m.no";
    Pending { sql, params: boxed![tenant] }
}

/// Removes the embeddings of entries.
pub fn removed(tenant: String, nos: Vec<i32>) -> Vec<Pending> {
    let waiting = "WITH gone AS (DELETE FROM recall_waiting WHERE tenant = $1 AND model = ANY (ARRAY(SELECT no FROM recall_models WHERE tenant = $1))
             AND prose = ANY ('{t,f}') AND entry = ANY ($2::integer[]) RETURNING model)
         UPDATE recall_models m SET waiting = m.waiting - g.count FROM (SELECT model, count(*) FROM gone GROUP BY model) g
         WHERE m.tenant = $1 AND m.no = g.model";
    let vectors = "WITH gone AS (DELETE FROM recall_vectors WHERE tenant = $1 AND model = ANY (ARRAY(SELECT no FROM recall_models WHERE tenant = $1))
             AND entry = ANY ($2::integer[]) RETURNING model)
         UPDATE recall_models m SET vectors = m.vectors - g.count FROM (SELECT model, count(*) FROM gone GROUP BY model) g
         WHERE m.tenant = $1 AND m.no = g.model";
    let statement = |sql| Pending { sql, params: boxed![tenant.clone(), nos.clone()] };
    vec![statement(waiting), statement(vectors)]
}

/// A vector of length 1, as pgvector reads it. `None` for one without a direction, or of another length.
fn written(vector: &[f32], dimensions: Option<usize>) -> Option<String> {
    let vector = normalized(vector).filter(|vector| dimensions.is_none_or(|all| all == vector.len()))?;
    let mut text = String::with_capacity(vector.len() * 12);
    for number in vector {
        let _ = write!(text, "{}{number}", if text.is_empty() { '[' } else { ',' });
    }
    text.push(']');
    Some(text)
}

impl Models {
    pub fn read(found: &[Row]) -> Result<Models, Error> {
        let mut models = Models::default();
        for row in found {
            models.last = rows::get(row, 4)?;
            let Some(no) = rows::get(row, 0)? else { continue };
            models.all.push(Model {
                no,
                name: rows::get(row, 1)?,
                dimensions: rows::get::<Option<i32>>(row, 2)?.map(|dimensions| dimensions as usize),
                vectors: rows::unsigned(row, 3)?,
            });
        }
        Ok(models)
    }

    fn of(db: &Db, tenant: &TenantName) -> Result<Models, Error> {
        let asked = known(tenant.as_str().to_string());
        Models::read(&db.query(asked.sql, &refs(&asked.params))?)
    }

    fn named(&self, name: &str) -> Option<&Model> {
        self.all.iter().find(|model| model.name == name)
    }

    /// Makes a model known: every entry waits for its embedding.
    fn know(&mut self, tenant: &str, name: &str, statements: &mut Vec<Pending>) -> i32 {
        if let Some(model) = self.named(name) {
            return model.no;
        }
        let no = self.last + 1;
        self.last = no;
        let insert = "WITH counted AS (UPDATE recall_tenants SET last_model = $2 WHERE tenant = $1)
             INSERT INTO recall_models (tenant, no, name, waiting, vectors) VALUES ($1, $2, $3, 0, 0)";
        let wait = "WITH waiting AS (INSERT INTO recall_waiting (tenant, model, prose, entry)
                 SELECT $1, $2, prose, no FROM recall_entries WHERE tenant = $1 AND audience IS NULL RETURNING 1)
             UPDATE recall_models SET waiting = (SELECT count(*) FROM waiting) WHERE tenant = $1 AND no = $2";
        statements.push(Pending { sql: insert, params: boxed![tenant.to_string(), no, name.to_string()] });
        statements.push(Pending { sql: wait, params: boxed![tenant.to_string(), no] });
        self.all.push(Model { no, name: name.to_string(), dimensions: None, vectors: 0 });
        no
    }

    /// Stores the embeddings that new entries come with, and has them wait for those of all other models.
    pub fn added(mut self, tenant: &str, new: &[Added<'_>]) -> Vec<Pending> {
        let mut statements = Vec::new();
        for (.., vector) in new {
            if let Some(vector) = vector {
                self.know(tenant, &vector.model, &mut statements);
            }
        }
        let (mut models, mut proses, mut entries) = (Vec::new(), Vec::new(), Vec::new());
        for model in &self.all {
            let (mut nos, mut texts, mut dimensions) = (Vec::new(), Vec::new(), model.dimensions);
            for (no, prose, vector) in new {
                match vector.filter(|vector| *vector.model == *model.name) {
                    Some(vector) => {
                        let text = written(&vector.numbers, dimensions);
                        dimensions = dimensions.or(text.is_some().then_some(vector.numbers.len()));
                        nos.push(*no);
                        texts.push(text);
                    }
                    None => {
                        models.push(model.no);
                        proses.push(*prose);
                        entries.push(*no);
                    }
                }
            }
            if !nos.is_empty() {
                let sql = "WITH made AS (INSERT INTO recall_vectors (tenant, model, entry, embedding)
                         SELECT $1, $2, n.entry, n.embedding::halfvec FROM unnest($3::integer[], $4::text[]) AS n (entry, embedding) RETURNING 1)
                     UPDATE recall_models SET vectors = vectors + (SELECT count(*) FROM made), dimensions = $5 WHERE tenant = $1 AND no = $2";
                let dimensions = dimensions.map(|dimensions| dimensions as i32);
                let params = boxed![tenant.to_string(), model.no, nos, texts, dimensions];
                statements.push(Pending { sql, params });
            }
        }
        if !models.is_empty() {
            let sql = "WITH waiting AS (INSERT INTO recall_waiting (tenant, model, prose, entry)
                     SELECT $1, n.model, n.prose, n.entry FROM unnest($2::integer[], $3::boolean[], $4::integer[]) AS n (model, prose, entry) RETURNING model)
                 UPDATE recall_models m SET waiting = m.waiting + w.count FROM (SELECT model, count(*) FROM waiting GROUP BY model) w
                 WHERE m.tenant = $1 AND m.no = w.model";
            statements.push(Pending { sql, params: boxed![tenant.to_string(), models, proses, entries] });
        }
        statements
    }
}

/// Entries that this process is embedding: nobody else does meanwhile. The lock is that of a transaction, so it ends
/// with the process.
pub struct Embedding {
    tenant: TenantName,
    _lock: Db,
}

impl Postgres {
    /// A transaction that may change the index of a tenant; `None` if there is no index.
    fn changing(&self, tenant: &TenantName) -> Result<Option<Db>, Error> {
        let db = self.writing(Scope::Tenant(tenant))?;
        let sql = "SELECT 1 FROM recall_tenants WHERE tenant = $1 FOR UPDATE";
        let is_there = db.query_one(sql, &[&tenant.as_str()])?.is_some();
        db.query(SETTINGS, &[])?;
        Ok(is_there.then_some(db))
    }

    /// Makes a model known to a tenant's index.
    fn know(&self, tenant: &TenantName, model: &str) -> Result<(), Error> {
        if Models::of(&self.of(tenant)?, tenant)?.named(model).is_some() {
            return Ok(());
        }
        let Some(db) = self.changing(tenant)? else { return Ok(()) };
        let mut statements = Vec::new();
        Models::of(&db, tenant)?.know(tenant.as_str(), model, &mut statements);
        db.together(&statements, true).map(drop)
    }

    /// Entries of a tenant without an embedding of a model, those named first.
    fn waiting(
        &self,
        tenant: &TenantName,
        model: &str,
        first: &[EntryNo],
        limit: usize,
    ) -> Result<Vec<Unembedded>, Error> {
        self.know(tenant, model)?;
        let db = self.of(tenant)?;
        let models = Models::of(&db, tenant)?;
        let Some(Model { no: model, .. }) = models.named(model) else { return Ok(Vec::new()) };
        let first: Vec<i32> = first.iter().map(|entry| number(*entry)).collect();
        let sql = concat!(
            "WITH named AS (SELECT w.entry, n.nth FROM unnest($3::integer[]) WITH ORDINALITY AS n (entry, nth)
                 JOIN recall_waiting w ON w.tenant = $1 AND w.model = $2 AND w.prose = ANY ('{t,f}') AND w.entry = n.entry ORDER BY n.nth LIMIT $4),
             others AS (SELECT w.entry, w.prose FROM recall_waiting w WHERE w.tenant = $1 AND w.model = $2
                 ORDER BY w.prose DESC, w.entry DESC LIMIT $4),
             chosen AS (SELECT entry, nth, true AS prose FROM named
                 UNION ALL SELECT o.entry, NULL, o.prose FROM others o WHERE NOT EXISTS (SELECT 1 FROM named n WHERE n.entry = o.entry))
             SELECT e.no, coalesce(",
            reader!(),
            ", c.id), e.seq, e.kind, e.id FROM chosen w JOIN recall_entries e ON e.tenant = $1 AND e.no = w.entry
             JOIN conversation_rows c ON c.tenant = $1 AND c.no = e.conversation
             ORDER BY w.nth NULLS LAST, w.prose DESC, w.entry DESC LIMIT $4"
        );
        let found = db.query(sql, &[&tenant.as_str(), model, &first, &signed(limit as u64)])?;
        let entry = |row: &Row| {
            let conversation = ConversationId::from_bytes(rows::bytes(row, 1)?);
            Ok(Unembedded {
                no: EntryNo(i64::from(rows::get::<i32>(row, 0)?)),
                key: Key { tenant: tenant.clone(), id: conversation },
                seq: rows::unsigned(row, 2)?,
                id: EntryId::from_bytes(kind_of(rows::get(row, 3)?), rows::bytes(row, 4)?),
            })
        };
        found.iter().map(entry).collect()
    }

    /// Takes the right to embed a tenant's entries, unless somebody else has it.
    fn embedding(&self, tenant: &TenantName) -> Result<Option<Embedding>, Error> {
        let lock = Db::begin(&self.link, Scope::Tenant(tenant), Mode::Long)?;
        let sql = "SELECT pg_try_advisory_xact_lock($1, hashtext($2))";
        let row = lock.query_one(sql, &[&EMBEDDING_LOCK, &tenant.as_str()])?;
        let taken = row.map_or(Ok(false), |row| rows::get(&row, 0))?;
        lock.rest()?;
        Ok(taken.then(|| Embedding { tenant: tenant.clone(), _lock: lock }))
    }

    /// Entries that a filter leaves, if they are few.
    fn few(&self, db: &Db, scope: &Searched<'_>) -> Result<Option<Vec<i32>>, Error> {
        let words = scope.words();
        if words.is_empty() {
            return Ok(None);
        }
        let mut lists = Lists::new(db, scope, None);
        lists.count_words(words.iter().flatten().cloned().collect())?;
        let mut narrow = Vec::new();
        for list in &words {
            let mut entries = 0;
            for word in list {
                entries += lists.count_in_scope(word)?;
            }
            if entries <= COUNTED_ENTRIES_MAX / 2 {
                narrow.push(Matching::Scope(list));
            }
        }
        if narrow.is_empty() {
            return Ok(None);
        }
        lists.entries(&Matching::All(narrow)).map(Some)
    }
}

impl VectorSearch for Postgres {
    fn without_vectors(&self) -> Option<&str> {
        self.without_vectors.as_deref()
    }

    fn find_near(
        &self,
        tenant: &TenantName,
        model: &str,
        vector: &[f32],
        filter: &Filter,
        limit: usize,
    ) -> Result<Vec<Proposal>, Error> {
        if self.without_vectors.is_some() {
            return Ok(Vec::new());
        }
        let db = self.of(tenant)?;
        let Some(scope) = Searched::new(&db, tenant, filter)? else { return Ok(Vec::new()) };
        let models = Models::of(&db, tenant)?;
        let Some(model) = models.named(model) else { return Ok(Vec::new()) };
        let Some(dimensions) = model.dimensions else { return Ok(Vec::new()) };
        let Some(question) = written(vector, Some(dimensions)) else { return Ok(Vec::new()) };
        let few = self.few(&db, &scope)?;
        let ask = |nearest: &str, last: Option<&(dyn tokio_postgres::types::ToSql + Sync)>| {
            let sql = format!(
                "WITH near AS MATERIALIZED ({nearest})
                 SELECT {FOUND_COLUMNS}, n.away, (SELECT count(*) FROM near) FROM near n
                 JOIN recall_entries e ON e.tenant = $1 AND e.no = n.entry
                 JOIN conversation_rows c ON c.tenant = $1 AND c.no = e.conversation
                 WHERE {IN_SCOPE} ORDER BY n.away, e.no LIMIT $13"
            );
            let mut params = scope.params();
            params.extend(boxed![model.no, question.clone(), signed(limit as u64)]);
            let mut params = refs(&params);
            params.extend(last);
            db.query(&sql, &params)
        };
        let proposal = |row: &Row| Ok(Proposal { score: -rows::get::<f64>(row, 6)?, ..scope.found(row)? });
        // Read once, and not again for each vector, as a plan for any parameters would.
        let away = "v.embedding <#> (SELECT $12::text::halfvec) AS away";
        let of = "recall_vectors v WHERE v.tenant = $1 AND v.model = $11 AND v.embedding IS NOT NULL";
        if let Some(few) = few {
            let nearest = format!("SELECT v.entry, {away} FROM {of} AND v.entry = ANY ($14::integer[])");
            return ask(&nearest, Some(&few))?.iter().map(proposal).collect();
        }
        let is_exact = model.vectors <= EXACT_VECTORS_MAX;
        let is_timed = filter.after.or(filter.before).is_some();
        // A period may leave few, and all are compared anyway.
        let mut most = if is_exact && is_timed { i64::MAX } else { NEAREST.max(signed(limit as u64)) };
        if !is_exact {
            // The index is that of one tenant and model, which only a plan for these values uses. A filter leaves some
            // of its results out: it goes on until there are enough.
            db.batch(
                "SET LOCAL plan_cache_mode = force_custom_plan; SET LOCAL hnsw.iterative_scan = strict_order; SET LOCAL hnsw.ef_search = 200; \
                 SET LOCAL hnsw.max_scan_tuples = 200000",
            )?;
        }
        loop {
            let nearest = match is_exact {
                false => format!(
                    "SELECT v.entry, v.embedding::halfvec({dimensions}) <#> $12::text::halfvec({dimensions}) AS away FROM {of} ORDER BY 2 LIMIT $14"
                ),
                true => format!("SELECT v.entry, {away} FROM {of} ORDER BY 2 LIMIT $14"),
            };
            let found = ask(&nearest, Some(&most))?;
            // If the filter leaves too few, more are examined.
            let examined = found.first().map_or(Ok(0), |row| rows::get::<i64>(row, 7))?;
            let all = if found.is_empty() { most >= signed(model.vectors) } else { examined < most };
            if found.len() >= limit || all {
                return found.iter().map(proposal).collect();
            }
            most = most.saturating_mul(4);
        }
    }

    fn nearness(
        &self,
        tenant: &TenantName,
        model: &str,
        vector: &[f32],
        entries: &[EntryNo],
    ) -> Result<Vec<Option<f64>>, Error> {
        let mut near = vec![None; entries.len()];
        if self.without_vectors.is_some() || entries.is_empty() {
            return Ok(near);
        }
        let db = self.of(tenant)?;
        let sql = "SELECT n.nth, -(v.embedding <#> (SELECT $4::text::halfvec)) FROM unnest($3::integer[]) WITH ORDINALITY AS n (no, nth)
             JOIN recall_models m ON m.tenant = $1 AND m.name = $2 AND m.dimensions = $5
             JOIN recall_vectors v ON v.tenant = $1 AND v.model = m.no AND v.entry = n.no AND v.embedding IS NOT NULL";
        let Some(question) = written(vector, None) else { return Ok(near) };
        let nos: Vec<i32> = entries.iter().map(|entry| number(*entry)).collect();
        for row in db.query(sql, &[&tenant.as_str(), &model, &nos, &question, &(vector.len() as i32)])? {
            near[rows::unsigned(&row, 0)? as usize - 1] = Some(rows::get(&row, 1)?);
        }
        Ok(near)
    }

    fn unembedded(
        &self,
        model: &str,
        wanted: Option<(&TenantName, &[EntryNo])>,
        limit: usize,
    ) -> Result<Vec<Unembedded>, Error> {
        if self.without_vectors.is_some() || self.node.is_none() {
            return Ok(Vec::new());
        }
        if let Some((tenant, first)) = wanted {
            return self.waiting(tenant, model, first, limit);
        }
        // Tenants take turns, so that a large import does not keep the others waiting.
        let last = self.embedding.lock().take().map(|embedding| embedding.tenant);
        let sql = "SELECT t.tenant FROM recall_tenants t LEFT JOIN recall_models m ON m.tenant = t.tenant AND m.name = $1
             WHERE coalesce(m.waiting, t.entries) > 0 ORDER BY t.tenant <= coalesce($2, ''), t.tenant LIMIT $3";
        let tenants =
            self.of_all()?.query(sql, &[&model, &last.as_ref().map(TenantName::as_str), &TENANTS])?;
        for row in &tenants {
            let tenant = TenantName::new(rows::get::<String>(row, 0)?)?;
            let Some(embedding) = self.embedding(&tenant)? else { continue };
            let waiting = self.waiting(&tenant, model, &[], limit)?;
            if !waiting.is_empty() {
                *self.embedding.lock() = Some(embedding);
                return Ok(waiting);
            }
        }
        let is_due = |last: Instant| last.elapsed() >= INDEXES_EVERY;
        let due = self.indexes_looked_after.lock().is_none_or(is_due);
        if due {
            self.index_many()?;
            *self.indexes_looked_after.lock() = Some(Instant::now());
        }
        Ok(Vec::new())
    }

    fn put_vectors(
        &self,
        tenant: &TenantName,
        model: &str,
        vectors: Vec<(EntryNo, Vec<f32>)>,
    ) -> Result<(), Error> {
        if self.without_vectors.is_some() {
            return Ok(());
        }
        let Some(db) = self.changing(tenant)? else { return Ok(()) };
        let mut statements = Vec::new();
        let mut models = Models::of(&db, tenant)?;
        let no = models.know(tenant.as_str(), model, &mut statements);
        let mut dimensions = models.named(model).and_then(|model| model.dimensions);
        let (mut nos, mut texts) = (Vec::new(), Vec::new());
        for (entry, vector) in vectors {
            let text = written(&vector, dimensions);
            dimensions = dimensions.or(text.is_some().then_some(vector.len()));
            nos.push(number(entry));
            texts.push(text);
        }
        let sql = "WITH made AS (INSERT INTO recall_vectors (tenant, model, entry, embedding)
                 SELECT $1, $2, e.no, n.embedding::halfvec FROM unnest($3::integer[], $4::text[]) AS n (entry, embedding)
                 JOIN recall_entries e ON e.tenant = $1 AND e.no = n.entry AND e.audience IS NULL ON CONFLICT DO NOTHING RETURNING 1),
             gone AS (DELETE FROM recall_waiting WHERE tenant = $1 AND model = $2 AND prose = ANY ('{t,f}') AND entry = ANY ($3::integer[]) RETURNING 1)
             UPDATE recall_models SET vectors = vectors + (SELECT count(*) FROM made), waiting = waiting - (SELECT count(*) FROM gone),
                 dimensions = $5 WHERE tenant = $1 AND no = $2";
        let dimensions = dimensions.map(|dimensions| dimensions as i32);
        let params = boxed![tenant.as_str().to_string(), no, nos, texts, dimensions];
        statements.push(Pending { sql, params });
        db.together(&statements, true).map(drop)
    }

    fn vector_models(&self, tenant: Option<&TenantName>) -> Result<Vec<String>, Error> {
        let found = match tenant {
            Some(tenant) => self.of(tenant)?.query(
                "SELECT name FROM recall_models WHERE tenant = $1 AND vectors > 0 ORDER BY no",
                &[&tenant.as_str()],
            )?,
            None => self
                .of_all()?
                .query("SELECT DISTINCT name FROM recall_models WHERE vectors > 0 ORDER BY name", &[])?,
        };
        found.iter().map(|row| rows::get(row, 0)).collect()
    }

    fn keep_vectors_of(&self, model: &str, limit: usize) -> Result<usize, Error> {
        let mut dropped = 0;
        if self.without_vectors.is_some() {
            return Ok(dropped);
        }
        let sql = "SELECT DISTINCT tenant FROM recall_models WHERE name <> $1";
        for row in self.of_all()?.query(sql, &[&model])? {
            if dropped == limit {
                break;
            }
            let tenant = TenantName::new(rows::get::<String>(&row, 0)?)?;
            let Some(db) = self.changing(&tenant)? else { continue };
            let others: Vec<i32> = Models::of(&db, &tenant)?
                .all
                .iter()
                .filter(|one| one.name != model)
                .map(|one| one.no)
                .collect();
            let sql = "WITH gone AS (DELETE FROM recall_vectors WHERE tenant = $1 AND (model, entry) IN
                     (SELECT model, entry FROM recall_vectors WHERE tenant = $1 AND model = ANY ($2::integer[]) LIMIT $3) RETURNING model),
                 counted AS (UPDATE recall_models m SET vectors = m.vectors - g.count FROM (SELECT model, count(*) FROM gone GROUP BY model) g
                     WHERE m.tenant = $1 AND m.no = g.model)
                 SELECT count(*) FROM gone";
            let left = limit - dropped;
            let row = db.query_one(sql, &[&tenant.as_str(), &others, &signed(left as u64)])?;
            let gone = row.map_or(Ok(0), |row| rows::unsigned(&row, 0))? as usize;
            if gone < left {
                let params: [&(dyn tokio_postgres::types::ToSql + Sync); 2] = [&tenant.as_str(), &others];
                db.execute(
                    "DELETE FROM recall_waiting WHERE tenant = $1 AND model = ANY ($2::integer[])",
                    &params,
                )?;
                db.execute(
                    "DELETE FROM recall_models WHERE tenant = $1 AND no = ANY ($2::integer[])",
                    &params,
                )?;
            }
            db.commit()?;
            dropped += gone;
        }
        Ok(dropped)
    }
}

impl Postgres {
    /// Makes an HNSW index for each tenant with many vectors, one at a time, and drops those that are not used any
    /// more. A process that is making one has a lock named like it.
    fn index_many(&self) -> Result<(), Error> {
        let many = "SELECT m.tenant, m.no, m.dimensions, m.vectors > $1,
                 (SELECT v.tableoid::regclass::text FROM recall_vectors v WHERE v.tenant = m.tenant LIMIT 1)
             FROM recall_models m WHERE m.vectors > $1 / 2 AND m.dimensions IS NOT NULL";
        let there =
            "SELECT c.relname::text, i.indisvalid FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid
             WHERE c.relnamespace = current_schema()::regnamespace AND c.relname LIKE 'recall\\_near\\_%'";
        let db = self.of_all()?;
        let (many, there) = (db.query(many, &[&signed(EXACT_VECTORS_MAX)])?, db.query(there, &[])?);
        drop(db);
        let mut unused: HashMap<String, bool> = HashMap::new();
        for row in &there {
            unused.insert(rows::get(row, 0)?, rows::get(row, 1)?);
        }
        for row in &many {
            let (tenant, no, dimensions): (&str, i32, i32) =
                (rows::get(row, 0)?, rows::get(row, 1)?, rows::get(row, 2)?);
            let Some(table) = rows::get::<Option<&str>>(row, 4)? else { continue };
            let name = format!("recall_near_{no}_{:x}", fnv(tenant));
            let valid = unused.remove(&name);
            if valid == Some(true) || !rows::get::<bool>(row, 3)? {
                continue;
            }
            let lock = Db::begin(&self.link, Scope::All, Mode::Long)?;
            let sql = "SELECT pg_try_advisory_xact_lock($1, hashtext($2))";
            let ours = lock.query_one(sql, &[&EMBEDDING_LOCK, &name])?;
            if !ours.map_or(Ok(false), |row| rows::get(&row, 0))? {
                continue;
            }
            lock.rest()?;
            if valid == Some(false) {
                // Left by a process that ended while it made it.
                self.link.outside(&format!("DROP INDEX CONCURRENTLY IF EXISTS {name}"))?;
            }
            // A tenant's name has no quotes: see `TenantName`.
            self.link.outside(&format!(
                "CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON {table} USING hnsw ((embedding::halfvec({dimensions})) halfvec_ip_ops)
                 WHERE tenant = '{tenant}' AND model = {no} AND embedding IS NOT NULL"
            ))?;
        }
        unused
            .keys()
            .try_for_each(|name| self.link.outside(&format!("DROP INDEX CONCURRENTLY IF EXISTS {name}")))
    }
}

/// A short name of a tenant, for a name of an index.
fn fnv(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
