//! Recall in tables, which all processes share: whoever finds something to index does it, for all.
//!
//! ```text
//! commit ─▶ conversation_rows ─▶ look ─▶ recall_conversations ─▶ claim ─▶ (the engine computes changes) ─▶ index
//! ```
//!
//! A claim is the lock on a tenant's row in `recall_tenants`, held by an open transaction: two processes never index
//! the same events, and the claim of a process that dies is free at once. One tenant's events are indexed one after
//! another, since an erasure in one conversation removes entries of another.

mod entries;
mod find;
mod vectors;

use super::Postgres;
use super::db::{Db, Pending, Scope, boxed};
use super::read;
use super::rows::{self, EVENT_COLUMNS, signed};
use crate::{Behind, IndexChange, RecallIndex, Span, Unindexed};
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::event::Event;
use everturn_core::id::{ConversationId, Key, TenantName};
use everturn_core::write::needed;
use everturn_views::recall::TERMS_VERSION;
use std::sync::LazyLock;
pub use vectors::{Embedding, prepare};

/// Version of the index: of its tables, in thousands, and of the terms. One of an earlier version is dropped and made
/// again.
const VERSION: i32 = 1000 + TERMS_VERSION as i32;
/// Approximate maximum read at once, so that a few huge turns do not fill the memory.
const ARRIVED_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Maximum number of conversations in a claim.
const CLAIMED_CONVERSATIONS_MAX: i64 = 256;

/// Losing the last moments of the index in a crash costs only the time to make them again. Everything is looked up by an
/// index, as in other transactions of one tenant.
const SETTINGS: &str =
    "SELECT set_config('synchronous_commit', 'off', true), set_config('enable_seqscan', 'off', true)";

/// Rows that are visible now and were not in the snapshot of the feed.
const NEW: &str = "c.changed >= pg_snapshot_xmin((SELECT s FROM since)) AND NOT pg_visible_in_snapshot(c.changed, (SELECT s FROM since))";

/// Takes the conversations that changed since the snapshot $1 into the queue, and moves the snapshot. A snapshot from
/// the future is that of another server, from which the tables were copied. Tenants that are there are not inserted: even
/// to do nothing, that would wait for a process that is indexing one, and which may wait for this one.
static LOOK: LazyLock<String> = LazyLock::new(|| {
    format!(
        "WITH since AS (SELECT CASE WHEN pg_snapshot_xmax($1::text::pg_snapshot) > pg_snapshot_xmax(pg_current_snapshot())
                 THEN '1:1:'::pg_snapshot ELSE $1::text::pg_snapshot END AS s),
             new AS (SELECT c.tenant, c.no, coalesce(c.parent_seq, 0) AS floor, c.head_seq, c.deleted IS NOT NULL AS deleted, c.changed
                 FROM conversation_rows c WHERE {NEW}),
             tenants AS (INSERT INTO recall_tenants (tenant) SELECT DISTINCT tenant FROM new
                 WHERE NOT EXISTS (SELECT 1 FROM recall_tenants t WHERE t.tenant = new.tenant) ON CONFLICT DO NOTHING),
             conversations AS (INSERT INTO recall_conversations AS r (tenant, conversation, seq, head_seq, deleted, changed)
                 SELECT tenant, no, floor, head_seq, deleted, changed FROM new ORDER BY tenant, no
                 ON CONFLICT (tenant, conversation) DO UPDATE SET head_seq = excluded.head_seq, deleted = excluded.deleted, changed = excluded.changed
                 WHERE r.seq < excluded.head_seq OR excluded.deleted AND NOT r.deleted)
             UPDATE recall_feed SET version = $2, snapshot = pg_current_snapshot()::text"
    )
});

/// A tenant whose events this process is indexing.
pub struct Claim {
    db: Db,
    tenant: TenantName,
    /// Number of indexed events: before, and with those of this claim.
    after: u64,
    through: u64,
    last_entry: i32,
    /// Whether there is a table of vectors by now, also if this process does not use it.
    has_vectors: bool,
    conversations: Vec<Claimed>,
}

/// A conversation with something to index.
struct Claimed {
    no: i64,
    id: ConversationId,
    /// Indexed up to here: before, then with the events of this claim.
    seq: u64,
    head_seq: u64,
    deleted: bool,
    /// The change that is done once the head is reached.
    changed: String,
}

impl Postgres {
    /// Notes what changed. Returns `false` if the index is of a later version than this program.
    fn look(&self) -> Result<bool, Error> {
        let db = self.writing(Scope::All)?;
        // In a statement of its own, so that the next one sees everything that was committed before the lock.
        let row = db.query_one("SELECT version, snapshot FROM recall_feed FOR UPDATE", &[])?;
        let row = row.ok_or_else(|| rows::wrong("recall_feed is empty"))?;
        let (version, snapshot): (i32, String) = (rows::get(&row, 0)?, rows::get(&row, 1)?);
        if version > VERSION {
            return Ok(false);
        }
        if 0 < version && version < VERSION {
            drop(db);
            self.forget()?;
            return self.look();
        }
        let sync = Pending { sql: SETTINGS, params: boxed![] };
        db.together(&[sync, Pending { sql: &LOOK, params: boxed![snapshot, VERSION] }], true)?;
        Ok(true)
    }

    /// Claims a tenant with something to index, the one that was served least recently. If all are claimed, waits for
    /// one: when nothing is left, everything that was committed before is indexed.
    fn claim(&self) -> Result<Option<Claim>, Error> {
        let next = |locked: &str| {
            format!(
                "WITH RECURSIVE waiting AS (
                     (SELECT tenant FROM recall_conversations WHERE changed IS NOT NULL ORDER BY tenant LIMIT 1)
                     UNION ALL SELECT (SELECT r.tenant FROM recall_conversations r WHERE r.changed IS NOT NULL AND r.tenant > w.tenant
                         ORDER BY r.tenant LIMIT 1) FROM waiting w WHERE w.tenant IS NOT NULL)
                 SELECT t.tenant, t.events, t.last_entry FROM waiting w JOIN recall_tenants t ON t.tenant = w.tenant
                 ORDER BY t.tenant = ANY ($1::text[]), t.served LIMIT 1 FOR UPDATE OF t {locked}"
            )
        };
        let failed: Vec<String> = self.failed.lock().iter().cloned().collect();
        loop {
            let db = self.writing(Scope::All)?;
            let free = db.query_one(&next("SKIP LOCKED"), &[&failed])?;
            let row = match free {
                Some(row) => row,
                None => match db.query_one(&next(""), &[&failed])? {
                    Some(row) => row,
                    None => return Ok(None),
                },
            };
            let tenant = TenantName::new(rows::get::<String>(&row, 0)?)?;
            let after = rows::unsigned(&row, 1)?;
            let last_entry = rows::get(&row, 2)?;
            let only = "SELECT set_config('everturn.tenants', $1, true)";
            let waiting = "SELECT r.conversation, c.id, r.seq, c.head_seq, c.deleted IS NOT NULL, r.changed::text
                 FROM recall_conversations r JOIN conversation_rows c ON c.tenant = r.tenant AND c.no = r.conversation
                 WHERE r.tenant = $1 AND r.changed IS NOT NULL ORDER BY r.changed, r.conversation LIMIT $2";
            let name = tenant.as_str().to_string();
            let statements = [
                Pending { sql: only, params: boxed![name.clone()] },
                Pending { sql: SETTINGS, params: boxed![] },
                Pending { sql: waiting, params: boxed![name, CLAIMED_CONVERSATIONS_MAX] },
            ];
            let found = db.together(&statements, false)?.pop().unwrap_or_default();
            let has_vectors = vectors::has_table(&db)?;
            let mut conversations: Vec<Claimed> = Vec::with_capacity(found.len());
            for row in &found {
                let id = ConversationId::from_bytes(rows::bytes(row, 1)?);
                // Changes name conversations by id, and that of a deleted one may be in use again: one at a time.
                if conversations.iter().any(|other| other.id == id) {
                    continue;
                }
                conversations.push(Claimed {
                    no: rows::get(row, 0)?,
                    id,
                    seq: rows::unsigned(row, 2)?,
                    head_seq: rows::unsigned(row, 3)?,
                    deleted: rows::get(row, 4)?,
                    changed: rows::get(row, 5)?,
                });
            }
            if !conversations.is_empty() {
                return Ok(Some(Claim {
                    db,
                    tenant,
                    after,
                    through: after,
                    last_entry,
                    has_vectors,
                    conversations,
                }));
            }
            // Somebody else was done with it meanwhile.
        }
    }
}

impl Claim {
    /// Removes the entries of deleted conversations, except what their forks still read.
    fn cut_deleted(&mut self) -> Result<(), Error> {
        let deleted = self.conversations.iter().filter(|one| one.deleted);
        for Claimed { no, .. } in deleted {
            // A deleted ancestor may have been kept for this one.
            let Some(lineage) = read::lineage_at(&self.db, &self.tenant, *no)? else { continue };
            for level in lineage.levels.iter().filter(|level| level.deleted) {
                let through = needed(level.no as u64, |fork| read::forks(&self.db, &self.tenant, fork))?;
                entries::cut(&self.db, &self.tenant, self.has_vectors, level.no, through)?;
            }
        }
        Ok(())
    }

    /// The next events, at most `limit`. The claim is narrowed to them.
    fn read(&mut self, limit: usize) -> Result<Vec<(TenantName, Event)>, Error> {
        let tenant = self.tenant.as_str();
        let nos: Vec<i64> = self.conversations.iter().map(|one| one.no).collect();
        let seqs: Vec<i64> = self.conversations.iter().map(|one| signed(one.seq)).collect();
        let heads: Vec<i64> = self.conversations.iter().map(|one| signed(one.head_seq)).collect();
        let sql = "SELECT n.nth, e.seq, e.bytes FROM unnest($2::bigint[], $3::bigint[], $4::bigint[]) WITH ORDINALITY AS n (no, after, head, nth)
             CROSS JOIN LATERAL (SELECT e.seq, coalesce(octet_length(e.body), 0) AS bytes FROM events e
                 WHERE e.tenant = $1 AND e.conversation = n.no AND e.seq > n.after AND e.seq <= n.head ORDER BY e.seq LIMIT $5) e
             ORDER BY n.nth, e.seq LIMIT $5";
        let found = self.db.query(sql, &[&tenant, &nos, &seqs, &heads, &signed(limit as u64)])?;
        let (mut places, mut bytes, mut whole): (Vec<(usize, u64)>, u64, bool) =
            (Vec::new(), 0, found.len() < limit);
        for row in &found {
            if bytes >= ARRIVED_BYTES_MAX {
                whole = false;
                break;
            }
            places.push((rows::unsigned(row, 0)? as usize - 1, rows::unsigned(row, 1)?));
            bytes += rows::get::<i32>(row, 2)?.max(0) as u64;
        }
        if let Some((last, seq)) = places.last().copied().filter(|_| !whole) {
            self.conversations.truncate(last + 1);
            let (before, last) = self.conversations.split_at_mut(last);
            before.iter_mut().for_each(|one| one.seq = one.head_seq);
            last[0].seq = seq;
        } else {
            self.conversations.iter_mut().for_each(|one| one.seq = one.head_seq);
        }
        self.through = self.after + places.len() as u64;
        if places.is_empty() {
            return Ok(Vec::new());
        }
        let nos: Vec<i64> = places.iter().map(|(at, _)| nos[*at]).collect();
        let seqs: Vec<i64> = places.iter().map(|(_, seq)| signed(*seq)).collect();
        let sql = format!(
            "SELECT {EVENT_COLUMNS}, n.nth FROM unnest($2::bigint[], $3::bigint[]) WITH ORDINALITY AS n (conversation, seq, nth)
             JOIN {} ON true ORDER BY n.nth",
            read::one("events e", "e.tenant = $1 AND e.conversation = n.conversation AND e.seq = n.seq")
        );
        let mut events = Vec::with_capacity(places.len());
        for row in self.db.query(&sql, &[&tenant, &nos, &seqs])? {
            let (at, _) = places[rows::unsigned(&row, 14)? as usize - 1];
            let event = rows::event(&row, self.conversations[at].id, Hash([0; 32]))?;
            events.push((self.tenant.clone(), event));
        }
        Ok(events)
    }

    /// Applies changes, and notes how far every conversation is indexed.
    fn finish(self, changes: Vec<IndexChange>) -> Result<(), Error> {
        let mut statements = entries::apply(&self, changes)?;
        let all = &self.conversations;
        // In the order in which `LOOK` takes them: else the two could wait for each other.
        let lock = "SELECT 1 FROM recall_conversations WHERE tenant = $1 AND conversation = ANY ($2) ORDER BY conversation FOR UPDATE";
        let nos: Vec<i64> = all.iter().map(|one| one.no).collect();
        let tenant = self.tenant.as_str().to_string();
        statements.push(Pending { sql: lock, params: boxed![tenant, nos.clone()] });
        let done = "UPDATE recall_conversations r SET seq = n.seq, changed = CASE WHEN n.done AND r.changed = n.changed::xid8 THEN NULL ELSE r.changed END
             FROM unnest($2::bigint[], $3::bigint[], $4::text[], $5::boolean[]) AS n (no, seq, changed, done)
             WHERE r.tenant = $1 AND r.conversation = n.no";
        statements.push(Pending {
            sql: done,
            params: boxed![
                self.tenant.as_str().to_string(),
                nos,
                all.iter().map(|one| signed(one.seq)).collect::<Vec<_>>(),
                all.iter().map(|one| one.changed.clone()).collect::<Vec<_>>(),
                all.iter().map(|one| one.seq == one.head_seq).collect::<Vec<_>>(),
            ],
        });
        let served = "UPDATE recall_tenants SET served = clock_timestamp(), events = $2 WHERE tenant = $1";
        let params = boxed![self.tenant.as_str().to_string(), signed(self.through)];
        statements.push(Pending { sql: served, params });
        self.db.together(&statements, true).map(drop)
    }
}

impl RecallIndex for Postgres {
    fn unindexed(&self, limit: usize) -> Result<Unindexed, Error> {
        // One that nobody went on with: other tenants come first.
        let left = self.claim.lock().take().map(|claim| claim.tenant);
        self.failed.lock().extend(left.map(|tenant| tenant.as_str().to_string()));
        let nothing = Unindexed { events: Vec::new(), span: Span { tenant: None, after: 0, through: 0 } };
        // Who may only read leaves it to the others.
        if self.node.is_none() || !self.look()? {
            return Ok(nothing);
        }
        while let Some(mut claim) = self.claim()? {
            claim.cut_deleted()?;
            let events = claim.read(limit)?;
            if events.is_empty() {
                claim.finish(Vec::new())?;
                continue;
            }
            let span =
                Span { tenant: Some(claim.tenant.clone()), after: claim.after, through: claim.through };
            claim.db.rest()?;
            *self.claim.lock() = Some(claim);
            return Ok(Unindexed { events, span });
        }
        Ok(nothing)
    }

    fn index(&self, changes: Vec<IndexChange>, span: Span) -> Result<(), Error> {
        let is_ours = |claim: &mut Claim| {
            Some(&claim.tenant) == span.tenant.as_ref()
                && (claim.after, claim.through) == (span.after, span.through)
        };
        let claim = self.claim.lock().take_if(is_ours);
        // Without a claim, somebody else has indexed it or will.
        let Some(claim) = claim else { return Ok(()) };
        let tenant = claim.tenant.as_str().to_string();
        let finished = claim.finish(changes);
        match &finished {
            Ok(()) => self.failed.lock().remove(&tenant),
            Err(_) => self.failed.lock().insert(tenant),
        };
        finished
    }

    fn behind(&self, tenant: Option<&TenantName>, model: Option<&str>) -> Result<Behind, Error> {
        let of = |column: &str| match tenant {
            Some(_) => format!("{column} = $1"),
            None => "$1::text IS NULL".to_string(),
        };
        let events = format!(
            "WITH since AS (SELECT snapshot::pg_snapshot AS s FROM recall_feed),
             waiting AS (SELECT r.tenant, r.conversation AS no FROM recall_conversations r WHERE {} AND r.changed IS NOT NULL
                 UNION SELECT c.tenant, c.no FROM conversation_rows c WHERE {} AND {NEW})
             SELECT coalesce(sum(c.head_seq - coalesce(r.seq, c.parent_seq, 0)), 0)::bigint FROM waiting w
             JOIN conversation_rows c ON c.tenant = w.tenant AND c.no = w.no
             LEFT JOIN recall_conversations r ON r.tenant = c.tenant AND r.conversation = c.no WHERE c.deleted IS NULL",
            of("r.tenant"),
            of("c.tenant"),
        );
        let name = tenant.map(TenantName::as_str);
        let db = match tenant {
            Some(tenant) => self.of(tenant)?,
            None => self.of_all()?,
        };
        let number = |row: Option<tokio_postgres::Row>| row.map_or(Ok(0), |row| rows::unsigned(&row, 0));
        let events = number(db.query_one(&events, &[&name])?)?;
        let vectors = match model.filter(|_| self.without_vectors.is_none()) {
            Some(model) => {
                let sql = format!(
                    "SELECT coalesce(sum(coalesce(m.waiting, t.entries)), 0)::bigint FROM recall_tenants t
                     LEFT JOIN recall_models m ON m.tenant = t.tenant AND m.name = $2 WHERE {}",
                    of("t.tenant")
                );
                number(db.query_one(&sql, &[&name, &model])?)?
            }
            None => 0,
        };
        Ok(Behind { events, vectors })
    }

    /// Removed text is in no row any more when its removal is indexed, and in no old version of one after a vacuum,
    /// which is of the whole table: a tenant's own is left to the background.
    fn scrub(&self, tenant: Option<&TenantName>, _bytes_max: Option<u64>) -> Result<bool, Error> {
        if tenant.is_some() {
            return Ok(true);
        }
        let db = self.writing(Scope::All)?;
        let sql = "UPDATE recall_tenants SET removed = false WHERE tenant IN (SELECT tenant FROM recall_tenants WHERE removed FOR UPDATE SKIP LOCKED)";
        let freed = db.execute(sql, &[])?;
        let left = db.query_one("SELECT 1 FROM recall_tenants WHERE removed LIMIT 1", &[])?.is_some();
        if freed > 0 {
            db.commit()?;
            let vectors = if self.without_vectors.is_none() { ", recall_vectors" } else { "" };
            self.link.outside(&format!("VACUUM recall_entries, recall_words{vectors}"))?;
        }
        Ok(!left)
    }

    fn forget(&self) -> Result<(), Error> {
        drop((self.claim.lock().take(), self.embedding.lock().take()));
        *self.indexes_looked_after.lock() = None;
        let db = self.whole()?;
        db.query("SELECT 1 FROM recall_feed FOR UPDATE", &[])?;
        let vectors = if vectors::has_table(&db)? { ", recall_vectors" } else { "" };
        // Numbers of entries go on, so that somebody who still holds one does not mean another entry.
        db.batch(&format!(
            "TRUNCATE recall_conversations, recall_entries, recall_words, recall_models, recall_waiting{vectors};
             UPDATE recall_tenants SET served = DEFAULT, events = 0, entries = 0, words = 0;
             UPDATE recall_feed SET version = {VERSION}, snapshot = '1:1:'"
        ))?;
        db.commit()
    }

    fn reader(&self, key: &Key, seq: u64) -> Result<Option<ConversationId>, Error> {
        let db = self.of(&key.tenant)?;
        let sql = concat!(
            "SELECT ",
            find::reader!(),
            " FROM conversation_rows c, (SELECT $3::bigint AS seq) e WHERE c.tenant = $1 AND c.id = $2 AND NOT c.replaced"
        );
        let row = db.query_one(sql, &[&key.tenant.as_str(), &&key.id.to_bytes()[..], &signed(seq)])?;
        let id: Option<Option<Vec<u8>>> = row.map(|row| rows::get(&row, 0)).transpose()?;
        let id = id
            .flatten()
            .map(|id| <[u8; 16]>::try_from(id).map_err(|_| rows::wrong("an id of another length")));
        Ok(id.transpose()?.map(ConversationId::from_bytes))
    }
}
