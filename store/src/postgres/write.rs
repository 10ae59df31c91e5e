//! Writing, inside one transaction. The first round trip begins it, takes the locks and reads what plans need;
//! the last one writes everything and commits. Only requests that depend on more than their own conversation
//! need others in between. Appends to conversations that this process wrote last need the last one only: see `recent`.

use super::Locks;
use super::db::{Broken, Db, Pending, boxed, held_error};
use super::lookup::InDatabase;
use super::read::{self, FAMILY};
use super::recent::{Known, Recent};
use super::rows::{self, json, signed};
use crate::Committed;
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::conversation::Conversation;
use everturn_core::event::Event;
use everturn_core::id::{ConversationId, EventId, Key, TenantName};
use everturn_core::time::Timestamp;
use everturn_core::turn::{Status, TurnRow};
use everturn_core::write::{
    self, Action, Answered, AnsweredRequest, Changes, Deletion, Erasure, EventAddress, EventRef, Existing,
    Plan, PlannedAppend, Write,
};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

type At = (i64, i64);
/// Tenant, scope and key.
type RequestName = (String, i64, Vec<u8>);

/// Pending rows, the last version of each.
#[derive(Default)]
pub struct Buffer {
    /// This process; 0 where derived rows are rebuilt.
    pub node: i64,
    /// Statements that go before all others: the locks, where nothing had to be read under them.
    first: Vec<Pending>,
    /// Rows of conversations that were not read, as this process knows them. If one has changed, the transaction fails.
    assumed: HashMap<i64, String>,
    /// Texts of the rows of conversations that were sent.
    sent: HashMap<i64, String>,
    /// Tenants of the conversations in it.
    tenants: HashMap<i64, TenantName>,
    rows: BTreeMap<i64, Arc<Conversation>>,
    new: BTreeMap<i64, (Option<i64>, Option<i64>)>,
    events: Vec<(i64, Event)>,
    turns: BTreeMap<At, TurnRow>,
    assets: BTreeMap<(i64, String), (i64, Option<Hash>)>,
    references: BTreeSet<(i64, i64, String)>,
    facts: BTreeMap<At, write::FactRow>,
    summaries: BTreeMap<At, i64>,
    echoes: BTreeSet<(i64, i64, i32)>,
    requests: BTreeMap<RequestName, (Hash, i64, i64, i64)>,
    chunks: BTreeMap<(i64, i64, i64), String>,
    ended: BTreeSet<At>,
}

fn column<T, R, V>(rows: &[R], value: impl Fn(&R) -> V) -> Vec<T>
where
    V: Into<T>,
{
    rows.iter().map(|row| value(row).into()).collect()
}

macro_rules! insert_turns {
    ($conflict:literal) => {
        concat!(
            "INSERT INTO turn_rows (conversation, seq, id, actor, role, status, created, content_seq, superseded_by, superseded_seq, place, placed_seq, tenant, node)
             SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::bigint[],
                 $9::text[], $10::bigint[], $11::bigint[], $12::bigint[], $13::text[], $14::bigint[])",
            $conflict
        )
    };
}

const INSERT_TURNS: &str = insert_turns!("");
const REPLACE_TURNS: &str = insert_turns!(
    " ON CONFLICT (tenant, conversation, seq) DO UPDATE SET status = excluded.status, content_seq = excluded.content_seq,
         superseded_by = excluded.superseded_by, superseded_seq = excluded.superseded_seq,
         place = excluded.place, placed_seq = excluded.placed_seq, node = excluded.node"
);

/// Updates conversations that were not read. It fails, and the transaction with it, unless each is as this process knows it.
/// (With `deleted IS NULL`, an index of all conversations that are not deleted could be taken for the one by number.)
const UPDATE_ASSUMED: &str = "WITH done AS (UPDATE conversation_rows c SET title = n.title, state = n.state, updated = n.updated,
         expires = n.expires, row = n.row, head_seq = n.head_seq, said = n.said, changed = pg_current_xact_id()
     FROM unnest($1::bigint[], $2::bytea[], $3::text[], $4::bigint[], $5::bigint[], $6::text[], $7::text[], $8::bigint[], $9::bigint[], $10::text[])
         AS n (no, title, state, updated, expires, row, tenant, head_seq, said, known)
     WHERE c.tenant = n.tenant AND c.no = n.no AND c.row = n.known AND coalesce(c.deleted, 0) = 0 RETURNING 1)
     SELECT 1 / (count(*) = $11)::integer FROM done";

macro_rules! insert_requests {
    ($conflict:literal) => {
        concat!(
            "INSERT INTO answered_requests
             SELECT * FROM unnest($1::text[], $2::bigint[], $3::bytea[], $4::bytea[], $5::bigint[], $6::bigint[], $7::bigint[])",
            $conflict
        )
    };
}

/// Fails if one of them was answered before, which has not been looked up.
const INSERT_REQUESTS: &str = insert_requests!("");
const REPLACE_REQUESTS: &str = insert_requests!(
    " ON CONFLICT (tenant, scope, key) DO UPDATE SET fingerprint = excluded.fingerprint,
         conversation = excluded.conversation, first_seq = excluded.first_seq, last_seq = excluded.last_seq"
);

impl Buffer {
    pub fn changes(&mut self, tenant: &TenantName, no: i64, changes: Changes) {
        self.of(tenant, no);
        for row in changes.turns {
            self.turns.insert((no, signed(row.seq)), row);
        }
        for asset in changes.assets {
            self.assets.insert((no, asset.id), (signed(asset.seq), asset.sha256));
        }
        self.references.extend(changes.references.into_iter().map(|r| (no, signed(r.turn_seq), r.asset)));
        for fact in changes.facts {
            self.facts.insert((no, signed(fact.seq)), fact);
        }
        self.summaries.extend(changes.summaries.iter().map(|s| ((no, signed(s.seq)), signed(s.through_seq))));
        self.echoes.extend(changes.echoes.iter().map(|e| (no, signed(e.seq), i32::from(e.bucket))));
        for turn in changes.ended {
            let turn = signed(turn);
            self.chunks.retain(|(of, at, _), _| (*of, *at) != (no, turn));
            self.ended.insert((no, turn));
        }
    }

    fn of(&mut self, tenant: &TenantName, no: i64) {
        self.tenants.entry(no).or_insert_with(|| tenant.clone());
    }

    fn remember(&mut self, key: &Key, no: i64, request: AnsweredRequest) {
        let scope = if request.creation { 0 } else { no };
        self.requests.insert(
            (key.tenant.to_string(), scope, request.key.into_bytes()),
            (request.fingerprint, no, signed(request.first_seq), signed(request.last_seq)),
        );
    }

    /// Sends all pending rows in one round trip, with the end of the transaction if they are the last.
    pub fn flush(&mut self, db: &Db, commit: bool) -> Result<(), Error> {
        let all = self.statements()?;
        if all.is_empty() && !commit {
            return Ok(());
        }
        db.together(&all, commit).map(drop)
    }

    /// The statements that write all pending rows.
    fn statements(&mut self) -> Result<Vec<Pending>, Error> {
        let Buffer {
            node,
            first,
            assumed,
            mut sent,
            tenants,
            rows,
            new,
            events,
            turns,
            assets,
            references,
            facts,
            summaries,
            echoes,
            requests,
            chunks,
            ended,
        } = std::mem::replace(self, Buffer { node: self.node, ..Buffer::default() });
        let of = |no: i64| tenants.get(&no).map(ToString::to_string).unwrap_or_default();
        let assumes = !assumed.is_empty();
        let mut all: Vec<Pending> = first;
        let (fresh, known): (Vec<_>, Vec<_>) = rows.into_iter().partition(|(no, _)| new.contains_key(no));
        for (is_new, rows) in [(true, fresh), (false, known)] {
            if rows.is_empty() {
                continue;
            }
            let texts = rows.iter().map(|(_, c)| json(&**c)).collect::<Result<Vec<String>, _>>()?;
            sent.extend(rows.iter().zip(&texts).map(|((no, _), text)| (*no, text.clone())));
            let mut params = boxed![
                column::<i64, _, _>(&rows, |(no, _)| *no),
                column::<Option<Vec<u8>>, _, _>(&rows, |(_, c)| c.title.clone().map(String::into_bytes)),
                column::<String, _, _>(&rows, |(_, c)| c.state.as_str()),
                column::<i64, _, _>(&rows, |(_, c)| c.updated.0),
                column::<Option<i64>, _, _>(&rows, |(_, c)| c.expires().map(|at| at.0)),
                texts,
                column::<String, _, _>(&rows, |(_, c)| c.tenant.to_string()),
                column::<i64, _, _>(&rows, |(_, c)| signed(c.head.seq)),
                column::<i64, _, _>(&rows, |(_, c)| c.said().0),
            ];
            if is_new {
                params.extend(boxed![
                    column::<Vec<u8>, _, _>(&rows, |(_, c)| c.id.to_bytes()),
                    column::<Option<i64>, _, _>(&rows, |(no, _)| new[no].0),
                    column::<Option<i64>, _, _>(&rows, |(no, _)| new[no].1),
                ]);
            } else if assumes {
                params.extend(boxed![
                    column::<Option<String>, _, _>(&rows, |(no, _)| assumed.get(no).cloned()),
                    rows.len() as i64,
                ]);
            }
            let sql = match is_new {
                false if assumes => UPDATE_ASSUMED,
                true => "INSERT INTO conversation_rows (no, title, state, updated, expires, row, tenant, head_seq, said, id, parent, parent_seq)
                     SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::text[], $4::bigint[], $5::bigint[], $6::text[], $7::text[],
                         $8::bigint[], $9::bigint[], $10::bytea[], $11::bigint[], $12::bigint[])",
                false => "UPDATE conversation_rows c SET title = n.title, state = n.state, updated = n.updated, expires = n.expires, row = n.row,
                         head_seq = n.head_seq, said = n.said, changed = pg_current_xact_id()
                     FROM unnest($1::bigint[], $2::bytea[], $3::text[], $4::bigint[], $5::bigint[], $6::text[], $7::text[], $8::bigint[], $9::bigint[])
                         AS n (no, title, state, updated, expires, row, tenant, head_seq, said) WHERE c.tenant = n.tenant AND c.no = n.no",
            };
            all.push(Pending { sql, params });
        }
        if !events.is_empty() {
            let e = &events;
            all.push(Pending {
                sql: "INSERT INTO events (conversation, seq, id, at, occurred_at, kind, actor, role, visibility, turn, body_hash, hash, salt, body, written_by, tenant)
                     SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::bigint[], $5::bigint[], $6::text[], $7::text[], $8::text[],
                         $9::text[], $10::bytea[], $11::bytea[], $12::bytea[], $13::bytea[], $14::text[], $15::text[], $16::text[])",
                params: boxed![
                    column::<i64, _, _>(e, |(no, _)| *no),
                    column::<i64, _, _>(e, |(_, e)| signed(e.seq)),
                    column::<Vec<u8>, _, _>(e, |(_, e)| e.id.to_bytes()),
                    column::<i64, _, _>(e, |(_, e)| e.at.0),
                    column::<Option<i64>, _, _>(e, |(_, e)| e.occurred_at.map(|at| at.0)),
                    column::<String, _, _>(e, |(_, e)| e.kind.clone()),
                    column::<Option<String>, _, _>(e, |(_, e)| e.actor.clone()),
                    column::<Option<String>, _, _>(e, |(_, e)| e.role.map(|role| role.as_str().to_string())),
                    column::<String, _, _>(e, |(_, e)| e.visibility.as_str()),
                    column::<Option<Vec<u8>>, _, _>(e, |(_, e)| e.turn.map(|turn| turn.to_bytes().to_vec())),
                    column::<Vec<u8>, _, _>(e, |(_, e)| e.body_hash.0),
                    column::<Vec<u8>, _, _>(e, |(_, e)| e.hash.0),
                    column::<Option<Vec<u8>>, _, _>(e, |(_, e)| e.body.as_ref().map(|body| body.salt.to_vec())),
                    column::<Option<String>, _, _>(e, |(_, e)| e.body.as_ref().map(|body| body.text.clone())),
                    column::<Option<String>, _, _>(e, |(_, e)| e.key.clone()),
                    column::<String, _, _>(e, |(no, _)| of(*no)),
                ],
            });
        }
        // A turn that begins with one of these events is new: there is no row to look for.
        let begun: HashSet<At> = events.iter().map(|(no, event)| (*no, signed(event.seq))).collect();
        let (fresh, known): (Vec<_>, Vec<_>) = turns.into_iter().partition(|(at, _)| begun.contains(at));
        for (t, sql) in [(fresh, INSERT_TURNS), (known, REPLACE_TURNS)] {
            if t.is_empty() {
                continue;
            }
            all.push(Pending {
                sql,
                params: boxed![
                    column::<i64, _, _>(&t, |(at, _)| at.0),
                    column::<i64, _, _>(&t, |(at, _)| at.1),
                    column::<Vec<u8>, _, _>(&t, |(_, t)| t.id.to_bytes()),
                    column::<Option<String>, _, _>(&t, |(_, t)| t.actor.clone()),
                    column::<String, _, _>(&t, |(_, t)| t.role.as_str()),
                    column::<String, _, _>(&t, |(_, t)| t.status.as_str()),
                    column::<i64, _, _>(&t, |(_, t)| t.created.0),
                    column::<Option<i64>, _, _>(&t, |(_, t)| t.content_seq.map(signed)),
                    column::<Option<String>, _, _>(&t, |(_, t)| t.superseded_by.map(|by| by.to_string())),
                    column::<Option<i64>, _, _>(&t, |(_, t)| t.superseded_seq.map(signed)),
                    column::<i64, _, _>(&t, |(_, t)| signed(t.place)),
                    column::<Option<i64>, _, _>(&t, |(_, t)| t.placed_seq.map(signed)),
                    column::<String, _, _>(&t, |(at, _)| of(at.0)),
                    column::<Option<i64>, _, _>(&t, |(_, t)| (t.status == Status::Pending).then_some(node)),
                ],
            });
        }
        if !assets.is_empty() {
            let a: Vec<_> = assets.into_iter().collect();
            all.push(Pending {
                sql: "INSERT INTO asset_rows (conversation, id, seq, sha256, tenant)
                     SELECT * FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bytea[], $5::text[])
                     ON CONFLICT (tenant, conversation, id) DO UPDATE SET seq = excluded.seq, sha256 = excluded.sha256",
                params: boxed![
                    column::<i64, _, _>(&a, |a| a.0.0),
                    column::<String, _, _>(&a, |a| a.0.1.clone()),
                    column::<i64, _, _>(&a, |a| a.1.0),
                    column::<Option<Vec<u8>>, _, _>(&a, |a| a.1.1.map(|hash| hash.0.to_vec())),
                    column::<String, _, _>(&a, |a| of(a.0.0)),
                ],
            });
        }
        if !references.is_empty() {
            let r: Vec<_> = references.into_iter().collect();
            all.push(Pending {
                sql: "INSERT INTO asset_references (conversation, turn_seq, asset, tenant)
                     SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[]) ON CONFLICT DO NOTHING",
                params: boxed![
                    column::<i64, _, _>(&r, |r| r.0),
                    column::<i64, _, _>(&r, |r| r.1),
                    column::<String, _, _>(&r, |r| r.2.clone()),
                    column::<String, _, _>(&r, |r| of(r.0)),
                ],
            });
        }
        if !facts.is_empty() {
            let f: Vec<_> = facts.into_iter().collect();
            all.push(Pending {
                sql: "INSERT INTO fact_statements (conversation, seq, id, source_turn, corrects, tenant)
                     SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::bytea[], $5::bytea[], $6::text[])
                     ON CONFLICT DO NOTHING",
                params: boxed![
                    column::<i64, _, _>(&f, |f| f.0.0),
                    column::<i64, _, _>(&f, |f| f.0.1),
                    column::<Vec<u8>, _, _>(&f, |f| f.1.id.to_bytes()),
                    column::<Option<Vec<u8>>, _, _>(&f, |f| f.1.source_turn.map(|turn| turn.to_bytes().to_vec())),
                    column::<Option<Vec<u8>>, _, _>(&f, |f| f.1.corrects.map(|fact| fact.to_bytes().to_vec())),
                    column::<String, _, _>(&f, |f| of(f.0.0)),
                ],
            });
        }
        if !summaries.is_empty() {
            let s: Vec<_> = summaries.into_iter().collect();
            all.push(Pending {
                sql: "INSERT INTO summary_rows (conversation, seq, through_seq, tenant)
                     SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[]) ON CONFLICT DO NOTHING",
                params: boxed![
                    column::<i64, _, _>(&s, |s| s.0.0),
                    column::<i64, _, _>(&s, |s| s.0.1),
                    column::<i64, _, _>(&s, |s| s.1),
                    column::<String, _, _>(&s, |s| of(s.0.0)),
                ],
            });
        }
        if !echoes.is_empty() {
            let e: Vec<_> = echoes.into_iter().collect();
            all.push(Pending {
                sql: "INSERT INTO echo_rows (conversation, seq, bucket, tenant)
                     SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::integer[], $4::text[]) ON CONFLICT DO NOTHING",
                params: boxed![
                    column::<i64, _, _>(&e, |e| e.0),
                    column::<i64, _, _>(&e, |e| e.1),
                    column::<i32, _, _>(&e, |e| e.2),
                    column::<String, _, _>(&e, |e| of(e.0)),
                ],
            });
        }
        if !requests.is_empty() {
            let r: Vec<_> = requests.into_iter().collect();
            all.push(Pending {
                sql: if assumes { INSERT_REQUESTS } else { REPLACE_REQUESTS },
                params: boxed![
                    column::<String, _, _>(&r, |r| r.0.0.clone()),
                    column::<i64, _, _>(&r, |r| r.0.1),
                    column::<Vec<u8>, _, _>(&r, |r| r.0.2.clone()),
                    column::<Vec<u8>, _, _>(&r, |r| r.1.0.0),
                    column::<i64, _, _>(&r, |r| r.1.1),
                    column::<i64, _, _>(&r, |r| r.1.2),
                    column::<i64, _, _>(&r, |r| r.1.3),
                ],
            });
        }
        if !chunks.is_empty() {
            let c: Vec<_> = chunks.into_iter().collect();
            all.push(Pending {
                sql: "INSERT INTO turn_chunks (conversation, turn_seq, start, text, tenant)
                     SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[], $5::text[])
                     ON CONFLICT (tenant, conversation, turn_seq, start) DO UPDATE SET text = excluded.text",
                params: boxed![
                    column::<i64, _, _>(&c, |c| c.0.0),
                    column::<i64, _, _>(&c, |c| c.0.1),
                    column::<i64, _, _>(&c, |c| c.0.2),
                    column::<Vec<u8>, _, _>(&c, |c| c.1.clone().into_bytes()),
                    column::<String, _, _>(&c, |c| of(c.0.0)),
                ],
            });
        }
        if !ended.is_empty() {
            let e: Vec<_> = ended.into_iter().collect();
            all.push(Pending {
                sql: "DELETE FROM turn_chunks c USING unnest($1::bigint[], $2::bigint[], $3::text[]) AS n (conversation, seq, tenant)
                     WHERE c.tenant = n.tenant AND c.conversation = n.conversation AND c.turn_seq = n.seq",
                params: boxed![
                    column::<i64, _, _>(&e, |e| e.0),
                    column::<i64, _, _>(&e, |e| e.1),
                    column::<String, _, _>(&e, |e| of(e.0)),
                ],
            });
        }
        self.sent = sent;
        Ok(all)
    }
}

/// Traces of a batch: one of them is there if and only if the batch was committed.
pub enum Proof {
    /// The first event in each conversation. Another process may have deleted some of them since. If it deleted all, the
    /// requests are refused when they are repeated. None if the batch only has what may be written again: chunks, answered
    /// requests.
    Events(Vec<(Key, u64, EventId)>),
    Deletion {
        key: Key,
        at: Timestamp,
    },
}

impl Proof {
    pub fn is_written(&self, db: &Db) -> Result<bool, Error> {
        let found = match self {
            Proof::Events(all) if all.is_empty() => None,
            Proof::Events(all) => {
                let sql = "SELECT 1 FROM unnest($1::text[], $2::bytea[], $3::bigint[], $4::bytea[]) AS n (tenant, id, seq, event)
                     JOIN conversation_rows c ON c.tenant = n.tenant AND c.id = n.id
                     JOIN events e ON e.tenant = c.tenant AND e.conversation = c.no AND e.seq = n.seq AND e.id = n.event LIMIT 1";
                let tenants: Vec<String> = column(all, |(key, ..)| key.tenant.to_string());
                let ids: Vec<Vec<u8>> = column(all, |(key, ..)| key.id.to_bytes());
                let seqs: Vec<i64> = column(all, |(_, seq, _)| signed(*seq));
                let events: Vec<Vec<u8>> = column(all, |(.., event)| event.to_bytes());
                db.query_one(sql, &[&tenants, &ids, &seqs, &events])?
            }
            Proof::Deletion { key, at } => {
                let sql = "SELECT 1 FROM conversation_rows WHERE tenant = $1 AND id = $2 AND deleted = $3";
                db.query_one(sql, &[&key.tenant.as_str(), &&key.id.to_bytes()[..], &at.0])?
            }
        };
        Ok(found.is_some())
    }
}

/// An earlier request: the number of its conversation, its fingerprint, first and last `seq`.
type EarlierRequest = (i64, Hash, u64, u64);

/// A batch being written.
pub struct Batch<'a> {
    db: &'a Db,
    buffer: RefCell<Buffer>,
    known: HashMap<Key, Option<(i64, Arc<Conversation>)>>,
    requests: HashMap<RequestName, EarlierRequest>,
    numbers: Vec<i64>,
    tombstones: BTreeSet<Key>,
    deletion: Option<(Key, Timestamp)>,
    /// Conversations that are left out, because a lock is not free.
    held: BTreeSet<Key>,
    /// Conversations that somebody else has written since this process did.
    overtaken: HashSet<Key>,
}

/// Number of a lock: the first bytes of a hash. A collision only makes two requests wait for each other.
fn lock(parts: [&[u8]; 3]) -> i64 {
    let Hash(hash) = Hash::of(&parts.join(&0xff));
    i64::from_be_bytes(std::array::from_fn(|at| hash[at]))
}

/// Conversations whose rows somebody else has locked, by hand.
fn rows_held(db: &Db, keys: &[&Key]) -> Result<Vec<Key>, Error> {
    let tenants: Vec<&str> = keys.iter().map(|key| key.tenant.as_str()).collect();
    let ids: Vec<Vec<u8>> = keys.iter().map(|key| key.id.to_bytes().to_vec()).collect();
    // Both parts see the same rows; the second leaves out those that are locked.
    let sql = "WITH free AS (SELECT c.no FROM conversation_rows c JOIN unnest($1::text[], $2::bytea[]) AS k (tenant, id)
             ON c.tenant = k.tenant AND c.id = k.id AND NOT c.replaced FOR NO KEY UPDATE OF c SKIP LOCKED)
         SELECT c.tenant, c.id FROM unnest($1::text[], $2::bytea[]) AS k (tenant, id)
         JOIN conversation_rows c ON c.tenant = k.tenant AND c.id = k.id AND NOT c.replaced
         WHERE c.no NOT IN (SELECT no FROM free)";
    let found = db.query(sql, &[&tenants, &ids])?;
    let key = |row| {
        let tenant = TenantName::new(rows::get::<String>(row, 0)?)?;
        Ok(Key { tenant, id: ConversationId::from_bytes(rows::bytes(row, 1)?) })
    };
    found.iter().map(key).collect()
}

/// What a batch locks and looks for.
struct Needs<'b> {
    /// Locks of tenants, and whether a removal needs them alone.
    of_tenants: Vec<(i64, bool)>,
    /// Locks of conversations and of the names of creations.
    alone: Vec<i64>,
    /// Locks that a conversation needs, and whether a removal needs the first, of its tenant, for itself.
    needed: Vec<(i64, bool, i64, &'b Key)>,
    keys: Vec<&'b Key>,
    /// Idempotency keys, with their tenant, whether they are of a creation, and their conversation.
    asked: Vec<(String, Vec<u8>, bool, Key)>,
}

impl<'b> Needs<'b> {
    /// An append holds the lock of the conversation, and that of its tenant shared; a removal holds the tenant's
    /// exclusively. All in one order, so that there is no deadlock.
    fn of(batch: &'b [Write]) -> Needs<'b> {
        let mut tenants: BTreeMap<i64, bool> = BTreeMap::new();
        let mut alone: BTreeSet<i64> = BTreeSet::new();
        let mut needed = Vec::new();
        let mut keys: BTreeSet<&Key> = BTreeSet::new();
        let mut asked = Vec::new();
        for write in batch {
            let tenant = write.key.tenant.as_str();
            let of_tenant = lock([b"tenant", tenant.as_bytes(), b""]);
            *tenants.entry(of_tenant).or_default() |= write.action.removes();
            let own = lock([b"conversation", tenant.as_bytes(), &write.key.id.to_bytes()]);
            alone.insert(own);
            needed.push((of_tenant, write.action.removes(), own, &write.key));
            keys.insert(&write.key);
            if let Some((creation, asks)) = write.action.idempotency() {
                if creation {
                    let name = lock([b"creation", tenant.as_bytes(), asks.key.as_bytes()]);
                    alone.insert(name);
                    needed.push((of_tenant, false, name, &write.key));
                }
                asked.push((tenant.to_string(), asks.key.clone().into_bytes(), creation, write.key.clone()));
            }
        }
        Needs {
            of_tenants: tenants.into_iter().collect(),
            alone: alone.into_iter().collect(),
            needed,
            keys: keys.into_iter().collect(),
            asked,
        }
    }

    /// Statements that take the locks, or only those that are `free`.
    fn take(&self, free: bool) -> Vec<Pending> {
        vec![
            Pending {
                // 2: alone, 1: with others, 0: not.
                sql: match free {
                    true => {
                        "SELECT CASE WHEN l.alone AND pg_try_advisory_xact_lock(l.name) THEN 2
                             WHEN pg_try_advisory_xact_lock_shared(l.name) THEN 1 ELSE 0 END
                         FROM unnest($1::bigint[], $2::boolean[]) AS l (name, alone)"
                    }
                    // One row for all locks.
                    false => {
                        "SELECT count(*) FROM (SELECT CASE WHEN l.alone THEN pg_advisory_xact_lock(l.name)
                             ELSE pg_advisory_xact_lock_shared(l.name) END
                         FROM unnest($1::bigint[], $2::boolean[]) AS l (name, alone) OFFSET 0) AS taken"
                    }
                },
                params: boxed![
                    column::<i64, _, _>(&self.of_tenants, |l| l.0),
                    column::<bool, _, _>(&self.of_tenants, |l| l.1)
                ],
            },
            Pending {
                sql: match free {
                    true => "SELECT pg_try_advisory_xact_lock(name) FROM unnest($1::bigint[]) AS l (name)",
                    false => {
                        "SELECT count(*) FROM (SELECT pg_advisory_xact_lock(name) FROM unnest($1::bigint[]) AS l (name) OFFSET 0) AS taken"
                    }
                },
                params: boxed![self.alone.clone()],
            },
        ]
    }
}

impl<'a> Batch<'a> {
    /// Appends to conversations that are planned for what is known of them. Nothing is sent before the end.
    pub fn assuming(db: &'a Db, batch: &[Write], node: i64, all: HashMap<Key, Known>) -> Batch<'a> {
        let mut buffer = Buffer { node, first: Needs::of(batch).take(false), ..Buffer::default() };
        let mut known = HashMap::new();
        for (key, Known { no, conversation, row, .. }) in all {
            buffer.assumed.insert(no, row);
            known.insert(key, Some((no, conversation)));
        }
        Batch { known, ..Batch::empty(db, buffer) }
    }

    fn empty(db: &'a Db, buffer: Buffer) -> Batch<'a> {
        let (known, requests, numbers, tombstones, deletion, held, overtaken) = Default::default();
        Batch {
            db,
            buffer: RefCell::new(buffer),
            known,
            requests,
            numbers,
            tombstones,
            deletion,
            held,
            overtaken,
        }
    }

    /// Begins the transaction: takes the locks, and reads what plans need.
    pub fn begin(
        db: &'a Db,
        batch: &[Write],
        node: i64,
        locks: Locks,
        recent: &Recent,
    ) -> Result<Batch<'a>, Error> {
        let needs = Needs::of(batch);
        let free = locks == Locks::Free;
        let begins = batch.iter().filter(|write| {
            matches!(
                write.action,
                Action::Create { .. } | Action::Branch { .. } | Action::Begin { .. } | Action::Restore { .. }
            )
        });
        let mut all = needs.take(free);
        let Needs { of_tenants, alone, needed, keys, asked } = needs;
        all.extend([
            // A statement sees what was committed before it began, so what is read under the lock is current.
            Pending {
                sql: "SELECT c.deleted IS NOT NULL, c.no, c.row FROM unnest($1::text[], $2::bytea[]) AS k (tenant, id)
                     JOIN LATERAL (SELECT * FROM conversation_rows c WHERE c.tenant = k.tenant AND c.id = k.id AND NOT c.replaced OFFSET 0) c ON true",
                params: boxed![
                    column::<String, _, _>(&keys, |key| key.tenant.to_string()),
                    column::<Vec<u8>, _, _>(&keys, |key| key.id.to_bytes())
                ],
            },
            Pending {
                sql: "SELECT nextval('conversation_numbers') FROM generate_series(1, $1::bigint)",
                params: boxed![begins.count() as i64],
            },
        ]);
        if !asked.is_empty() {
            all.push(Pending {
                sql: "SELECT r.tenant, r.scope, r.key, r.conversation, r.fingerprint, r.first_seq, r.last_seq
                     FROM unnest($1::text[], $2::bytea[], $3::boolean[], $4::bytea[]) AS k (tenant, key, creation, id)
                     LEFT JOIN conversation_rows c ON c.tenant = k.tenant AND c.id = k.id AND NOT c.replaced
                     JOIN answered_requests r ON r.tenant = k.tenant AND r.key = k.key
                         AND r.scope = CASE WHEN k.creation THEN 0 ELSE c.no END",
                params: boxed![
                    column::<String, _, _>(&asked, |a| a.0.clone()),
                    column::<Vec<u8>, _, _>(&asked, |a| a.1.clone()),
                    column::<bool, _, _>(&asked, |a| a.2),
                    column::<Vec<u8>, _, _>(&asked, |a| a.3.id.to_bytes()),
                ],
            });
        }
        let answers = db.together(&all, false)?;
        let mut held = BTreeSet::new();
        if free {
            let mut levels: HashMap<i64, i32> = HashMap::new();
            for ((name, _), row) in of_tenants.iter().zip(&answers[0]) {
                levels.insert(*name, rows::get(row, 0)?);
            }
            let mut taken: BTreeSet<i64> = BTreeSet::new();
            for (name, row) in alone.iter().zip(&answers[1]) {
                if rows::get(row, 0)? {
                    taken.insert(*name);
                }
            }
            for (of_tenant, removes, own, key) in needed {
                let level = levels.get(&of_tenant).copied().unwrap_or(0);
                if level < 1 + i32::from(removes) || !taken.contains(&own) {
                    held.insert(key.clone());
                }
            }
            held.extend(rows_held(db, &keys)?);
        }
        let mut known: HashMap<Key, Option<(i64, Arc<Conversation>)>> =
            keys.iter().map(|key| ((*key).clone(), None)).collect();
        let (mut tombstones, mut overtaken) = (BTreeSet::new(), HashSet::new());
        for row in &answers[2] {
            let text: &str = rows::get(row, 2)?;
            let conversation = rows::conversation(text)?;
            let key = Key { tenant: conversation.tenant.clone(), id: conversation.id };
            if recent.is_overtaken(&key, text) {
                overtaken.insert(key.clone());
            }
            if rows::get(row, 0)? {
                tombstones.insert(key);
            } else {
                known.insert(key, Some((rows::get(row, 1)?, Arc::new(conversation))));
            }
        }
        let numbers = answers[3].iter().map(|row| rows::get(row, 0)).collect::<Result<_, _>>()?;
        let mut requests = HashMap::new();
        for row in answers.get(4).into_iter().flatten() {
            let name = (rows::get(row, 0)?, rows::get(row, 1)?, rows::get(row, 2)?);
            let request = (
                rows::get(row, 3)?,
                Hash(rows::bytes(row, 4)?),
                rows::unsigned(row, 5)?,
                rows::unsigned(row, 6)?,
            );
            requests.insert(name, request);
        }
        let batch = Batch::empty(db, Buffer { node, ..Buffer::default() });
        Ok(Batch { known, tombstones, requests, numbers, held, overtaken, ..batch })
    }

    /// Conversations that are left out.
    pub fn held(&self) -> impl Iterator<Item = &Key> {
        self.held.iter()
    }

    /// Whether it has the locks of a conversation.
    pub fn has_locked(&self, key: &Key) -> bool {
        self.known.contains_key(key) && !self.held.contains(key)
    }

    /// The proof that this batch was committed. Preferably a deletion: it may have removed the batch's own events.
    pub fn proof(&self, answers: &[Result<Committed, Error>]) -> Proof {
        if let Some((key, at)) = self.deletion.clone() {
            return Proof::Deletion { key, at };
        }
        let written = answers.iter().flatten().filter(|committed| !committed.repeated);
        let mut first: BTreeMap<Key, (u64, EventId)> = BTreeMap::new();
        for (committed, event) in written.filter_map(|one| Some((one, one.events.first()?))) {
            let key = Key { tenant: committed.conversation.tenant.clone(), id: event.conversation };
            first.entry(key).or_insert((event.seq, event.id));
        }
        Proof::Events(first.into_iter().map(|(key, (seq, id))| (key, seq, id)).collect())
    }

    /// Writes the rest and commits, in one round trip, and remembers what was written.
    pub fn commit(self, recent: &Recent) -> Result<(), Error> {
        self.buffer.borrow_mut().flush(self.db, true)?;
        self.remember(recent);
        Ok(())
    }

    /// The statements of a whole batch, which is remembered as if it were written.
    pub fn into_statements(self, recent: &Recent) -> Result<Vec<Pending>, Error> {
        let all = self.buffer.borrow_mut().statements()?;
        self.remember(recent);
        Ok(all)
    }

    /// Remembers what was written.
    fn remember(self, recent: &Recent) {
        let mut buffer = self.buffer.into_inner();
        for (key, found) in self.known {
            let written =
                found.and_then(|(no, conversation)| Some((no, conversation, buffer.sent.remove(&no)?)));
            match written {
                Some((no, conversation, row)) => {
                    let ours = !self.overtaken.contains(&key);
                    recent.remember(key, Known { no, conversation, row, ours });
                }
                None => recent.forget(&key),
            }
        }
    }

    /// Whether nothing has been sent yet.
    pub fn is_unsent(&self) -> bool {
        self.db.trips.get() == 0
    }

    fn flush(&self) -> Result<(), Error> {
        self.buffer.borrow_mut().flush(self.db, false)
    }

    fn get(&mut self, key: &Key) -> Result<Option<(i64, Arc<Conversation>)>, Error> {
        if let Some(known) = self.known.get(key) {
            return Ok(known.clone());
        }
        self.flush()?;
        let found = read::conversation(self.db, key)?.map(|(no, conversation)| (no, Arc::new(conversation)));
        self.known.insert(key.clone(), found.clone());
        Ok(found)
    }

    /// One request. The outer error is one of the database: the whole batch fails.
    pub fn write(&mut self, request: Write) -> Result<Result<Committed, Error>, Broken> {
        if self.held.contains(&request.key) {
            return Ok(Err(held_error()));
        }
        let answer = self.write_once(request);
        match self.db.broken() {
            Some(broken) => Err(broken),
            None => Ok(answer),
        }
    }

    fn write_once(&mut self, request: Write) -> Result<Committed, Error> {
        let Write { key, action } = request;
        let existing = self.get(&key)?;
        let answered = match action.idempotency() {
            Some((creation, asked)) => {
                let scope = if creation { Some(0) } else { existing.as_ref().map(|(no, _)| *no) };
                self.answered(&key, scope, asked.key.as_bytes())?
            }
            None => None,
        };
        let plan = {
            let conversation = existing.as_ref().map(|(_, conversation)| &**conversation);
            let head = conversation.map_or(0, |conversation| conversation.head.seq);
            let lookup = InDatabase::planning(self.db, &self.buffer, &key, &action, head)?;
            write::plan(&key, action, Existing { conversation, answered }, &lookup)?
        };
        let there = |existing: Option<(i64, Arc<Conversation>)>| existing.ok_or_else(|| write::absent(&key));
        match plan {
            Plan::Repeat(Answered { conversation, events, .. }) => {
                Ok(Committed { repeated: true, ..Committed::new(conversation, events) })
            }
            Plan::Append(append) => self.append(&key, existing.map(|(no, _)| no), *append),
            Plan::Chunk(chunk) => {
                let (no, conversation) = there(existing)?;
                let at = (no, signed(chunk.turn_seq), signed(chunk.offset));
                let mut buffer = self.buffer.borrow_mut();
                buffer.of(&key.tenant, no);
                buffer.chunks.insert(at, chunk.text);
                Ok(Committed::new(conversation, Vec::new()))
            }
            Plan::Remember(requests) => {
                let (no, conversation) = there(existing)?;
                requests.into_iter().for_each(|request| self.remember_request(&key, no, request));
                Ok(Committed::new(conversation, Vec::new()))
            }
            Plan::Delete(deletion) => {
                let (no, conversation) = there(existing)?;
                self.delete(&key, no, &conversation, &deletion)?;
                self.known.insert(key.clone(), None);
                self.deletion = Some((key.clone(), deletion.tombstone.deleted));
                self.tombstones.insert(key);
                self.requests
                    .retain(|_, request| deletion.purges.iter().all(|p| signed(p.conversation) != request.0));
                Ok(Committed { released: deletion.released, ..Committed::new(conversation, Vec::new()) })
            }
        }
    }

    fn remember_request(&mut self, key: &Key, no: i64, request: AnsweredRequest) {
        let scope = if request.creation { 0 } else { no };
        let name = (key.tenant.to_string(), scope, request.key.clone().into_bytes());
        self.requests.insert(name, (no, request.fingerprint, request.first_seq, request.last_seq));
        self.buffer.borrow_mut().remember(key, no, request);
    }

    fn answered(&mut self, key: &Key, scope: Option<i64>, name: &[u8]) -> Result<Option<Answered>, Error> {
        let Some(scope) = scope else { return Ok(None) };
        let asked = (key.tenant.to_string(), scope, name.to_vec());
        let Some((no, fingerprint, first, last)) = self.requests.get(&asked).copied() else {
            return Ok(None);
        };
        self.flush()?;
        let lineage = read::lineage_at(self.db, &key.tenant, no)?.ok_or_else(|| write::absent(key))?;
        let key = Key { tenant: key.tenant.clone(), id: lineage.levels[0].id };
        let (_, conversation) = self.get(&key)?.ok_or_else(|| write::absent(&key))?;
        let count = (last + 1).saturating_sub(first) as usize;
        let events = read::events(self.db, &lineage, first.saturating_sub(1), count)?;
        Ok(Some(Answered { fingerprint, conversation, events }))
    }

    fn append(&mut self, key: &Key, no: Option<i64>, append: PlannedAppend) -> Result<Committed, Error> {
        let PlannedAppend { conversation, events, changes, request, erasure } = append;
        let conversation = Arc::new(conversation);
        let no = match no {
            Some(no) => no,
            None => self.insert(key, &conversation)?,
        };
        {
            let mut buffer = self.buffer.borrow_mut();
            buffer.rows.insert(no, conversation.clone());
            buffer.events.extend(events.iter().map(|event| (no, event.clone())));
            buffer.changes(&key.tenant, no, changes);
        }
        self.known.insert(key.clone(), Some((no, conversation.clone())));
        if let Some(request) = request {
            self.remember_request(key, no, request);
        }
        let mut committed = Committed::new(conversation, events);
        if let Some(erasure) = erasure {
            committed.erased = self.erase(key, &erasure)?;
            committed.released = erasure.released;
            // Any conversation of the tenant may have another checkpoint now.
            self.known.clear();
        }
        Ok(committed)
    }

    /// Inserts a new row, replacing a tombstone if there is one.
    fn insert(&mut self, key: &Key, conversation: &Conversation) -> Result<i64, Error> {
        let no = self.numbers.pop().ok_or_else(|| Error::internal("store.numbers", "no number was taken"))?;
        let mut parent = None;
        if let Some(above) = conversation.parent {
            let found = self.get(&Key { tenant: key.tenant.clone(), id: above.conversation })?;
            parent = Some(found.ok_or_else(|| write::absent(key))?.0);
        }
        if self.tombstones.remove(key) {
            self.db.execute(
                "UPDATE conversation_rows SET replaced = true WHERE tenant = $1 AND id = $2 AND NOT replaced",
                &[&key.tenant.as_str(), &&key.id.to_bytes()[..]],
            )?;
        }
        let at = conversation.parent.map(|parent| signed(parent.at_seq));
        self.buffer.borrow_mut().new.insert(no, (parent, at));
        Ok(no)
    }

    fn erase(&mut self, key: &Key, erasure: &Erasure) -> Result<Vec<EventAddress>, Error> {
        self.flush()?;
        let arrays = |places: &[EventRef]| -> (Vec<i64>, Vec<i64>) {
            places.iter().map(|at| (signed(at.conversation), signed(at.seq))).unzip()
        };
        let (nos, seqs) = arrays(&erasure.bodies);
        let tenant = key.tenant.as_str();
        let at = "unnest($1::bigint[], $2::bigint[]) AS n (conversation, seq)";
        let places = self.db.query(
            "WITH gone AS (UPDATE events e SET body = NULL, salt = NULL, erased = true
                 FROM unnest($1::bigint[], $2::bigint[]) AS n (conversation, seq)
                 WHERE e.tenant = $3 AND e.conversation = n.conversation AND e.seq = n.seq)
             SELECT c.id, n.seq FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS n (conversation, seq, nth)
             JOIN conversation_rows c ON c.tenant = $3 AND c.no = n.conversation ORDER BY n.nth",
            &[&nos, &seqs, &tenant],
        )?;
        self.db.execute(
            "INSERT INTO erased_bodies (tenant, no, conversation, seq) SELECT $3, n.nth + (SELECT coalesce(max(no), 0) FROM erased_bodies WHERE tenant = $3), n.conversation, n.seq
             FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS n (conversation, seq, nth)",
            &[&nos, &seqs, &tenant],
        )?;
        self.db.execute(
            "UPDATE conversation_rows SET changed = pg_current_xact_id() WHERE tenant = $2 AND no = ANY ($1)",
            &[&nos, &tenant],
        )?;
        let tables = [
            ("asset_rows", "seq", &erasure.assets),
            ("fact_statements", "seq", &erasure.facts),
            ("summary_rows", "seq", &erasure.bodies),
            ("echo_rows", "seq", &erasure.bodies),
            ("asset_references", "turn_seq", &erasure.references),
        ];
        for (table, column, places) in tables {
            let (nos, seqs) = arrays(places);
            let sql = format!(
                "DELETE FROM {table} t USING {at} WHERE t.tenant = $3 AND t.conversation = n.conversation AND t.{column} = n.seq"
            );
            self.db.execute(&sql, &[&nos, &seqs, &tenant])?;
        }
        for at in &erasure.folds {
            let sql = format!(
                "{FAMILY} DELETE FROM kept_folds WHERE tenant = $3 AND seq >= $2 AND conversation IN (SELECT no FROM family)"
            );
            self.db.execute(&sql, &[&signed(at.conversation), &signed(at.seq), &tenant])?;
        }
        for (no, checkpoint) in &erasure.checkpoints {
            let no = signed(*no);
            let row = self.db.query_one(
                "SELECT row FROM conversation_rows WHERE tenant = $2 AND no = $1",
                &[&no, &tenant],
            )?;
            let Some(row) = row else { continue };
            let mut conversation = rows::conversation(rows::get(&row, 0)?)?;
            conversation.set_checkpoint(*checkpoint);
            self.db.execute(
                "UPDATE conversation_rows SET row = $2, changed = pg_current_xact_id() WHERE tenant = $3 AND no = $1",
                &[&no, &json(&conversation)?, &tenant],
            )?;
        }
        let place = |row| {
            Ok(EventAddress {
                conversation: ConversationId::from_bytes(rows::bytes(row, 0)?),
                seq: rows::unsigned(row, 1)?,
            })
        };
        places.iter().map(place).collect()
    }

    fn delete(
        &mut self,
        key: &Key,
        no: i64,
        conversation: &Conversation,
        deletion: &Deletion,
    ) -> Result<(), Error> {
        self.flush()?;
        let mut buried = Conversation::new(
            conversation.id,
            conversation.tenant.clone(),
            conversation.created,
            deletion.tombstone.head,
        );
        buried.parent = conversation.parent;
        let (tombstone, tenant) = (&deletion.tombstone, key.tenant.as_str());
        // Text of the database has no zero character.
        let reason = tombstone.reason.replace('\0', "\u{fffd}");
        self.db.execute(
            "UPDATE conversation_rows SET deleted = $2, deleted_reason = $3, row = $4, title = NULL, expires = NULL,
                 changed = pg_current_xact_id() WHERE tenant = $5 AND no = $1",
            &[&no, &tombstone.deleted.0, &reason, &json(&buried)?, &tenant],
        )?;
        for purge in &deletion.purges {
            let (no, keep) = (signed(purge.conversation), signed(purge.keep));
            for (table, column) in [
                ("events", "seq"),
                ("turn_rows", "seq"),
                ("asset_rows", "seq"),
                ("asset_references", "turn_seq"),
                ("fact_statements", "seq"),
                ("summary_rows", "seq"),
                ("echo_rows", "seq"),
                ("kept_folds", "seq"),
            ] {
                let sql =
                    format!("DELETE FROM {table} WHERE tenant = $3 AND conversation = $1 AND {column} > $2");
                self.db.execute(&sql, &[&no, &keep, &tenant])?;
            }
            for table in ["turn_chunks", "answered_requests"] {
                let sql = format!("DELETE FROM {table} WHERE tenant = $2 AND conversation = $1");
                self.db.execute(&sql, &[&no, &tenant])?;
            }
        }
        Ok(())
    }
}
