//! Reading and rebuilding derived rows.

use super::Postgres;
use super::db::{Db, Mode, Scope};
use super::lookup::InDatabase;
use super::read::{self, FAMILY, Level, Lineage};
use super::rows::{self, json, signed};
use super::write::Buffer;
use crate::index::id_range;
use crate::{
    AssetIndex, ConversationIndex, ConversationQuery, FoldCache, ListOrder, Maintenance, ProblemKind,
    Provenance, RecallIndex, StoreProblem, StoredTurn, StoredTurns, TenantUsage, TurnIndex, TurnQuery,
    Written, WrittenPage,
};
use everturn_core::Error;
use everturn_core::chain::{Hash, Head};
use everturn_core::conversation::{Conversation, Tombstone};
use everturn_core::echo::Words;
use everturn_core::event::Event;
use everturn_core::id::{ConversationId, FactId, Key, TenantName, TurnId};
use everturn_core::json::Raw;
use everturn_core::time::Timestamp;
use everturn_core::write::{self, Changes, EventAddress, ForkPoint, Learned, absent_turn, copies, learned};
use std::cell::RefCell;

impl ConversationIndex for Postgres {
    fn conversation(&self, key: &Key) -> Result<Conversation, Error> {
        let found = self.together.read(key, |keys| {
            let mut tenants: Vec<&TenantName> = keys.iter().map(|key| &key.tenant).collect();
            tenants.dedup();
            read::conversations(&Db::begin(&self.link, Scope::Tenants(&tenants), Mode::Read)?, keys)
        })?;
        found.ok_or_else(|| write::absent(key))
    }

    fn conversations(
        &self,
        tenant: &TenantName,
        query: &ConversationQuery,
    ) -> Result<Vec<Conversation>, Error> {
        let position = match query.order {
            ListOrder::Said => "said",
            ListOrder::Changed => "updated",
        };
        let sql = format!(
            "SELECT row FROM conversation_rows c WHERE tenant = $1 AND deleted IS NULL AND ({position}, id) < ($2, $3) AND {position} >= $4
             AND ($5::text IS NULL OR CASE WHEN position('\\x00'::bytea IN title) > 0 THEN true
                 ELSE position(lower($5 COLLATE \"C\") IN lower(convert_from(title, 'UTF8') COLLATE \"C\")) > 0 END)
             AND ($6::text IS NULL OR state = $6)
             AND ($7::bytea IS NULL OR parent IN (SELECT p.no FROM conversation_rows p WHERE p.tenant = $1 AND p.id = $7))
             ORDER BY {position} DESC, id DESC LIMIT $8"
        );
        let db = self.of(tenant)?;
        let mut after = query.after.unwrap_or((Timestamp(i64::MAX), ConversationId::from_bytes([0xff; 16])));
        let since = query.since.map_or(i64::MIN, |since| since.0);
        let state = query.state.map(|state| state.as_str());
        let parent = query.parent.map(|parent| parent.to_bytes().to_vec());
        let page = query.limit.max(100);
        // Text of the database has no zero character: titles and queries with one are compared here.
        let text = query.text.as_ref().filter(|text| !text.contains('\0'));
        let has_title = |conversation: &Conversation| match (&query.text, &conversation.title) {
            (Some(text), Some(title)) if text.contains('\0') || title.contains('\0') => {
                title.to_ascii_lowercase().contains(&text.to_ascii_lowercase())
            }
            (Some(text), None) => !text.contains('\0'),
            _ => true,
        };
        let mut found = Vec::new();
        // What a filter on JSON leaves out of a page is filled up from the next.
        loop {
            let (at, id) = (after.0.0, after.1.to_bytes());
            let rows = db.query(
                &sql,
                &[&tenant.as_str(), &at, &&id[..], &since, &text, &state, &parent, &signed(page as u64)],
            )?;
            for row in &rows {
                let conversation = rows::conversation(rows::get(row, 0)?)?;
                after = query.order.position(&conversation);
                if query.takes(&conversation) && has_title(&conversation) {
                    found.push(conversation);
                }
            }
            if rows.len() < page || found.len() >= query.limit {
                found.truncate(query.limit);
                return Ok(found);
            }
        }
    }

    fn starting_with(
        &self,
        tenant: &TenantName,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<ConversationId>, Error> {
        let Some((first, last)) = id_range(prefix) else { return Ok(Vec::new()) };
        let sql = "SELECT id FROM conversation_rows WHERE tenant = $1 AND NOT replaced AND deleted IS NULL AND id BETWEEN $2 AND $3
             ORDER BY id LIMIT $4";
        let found = self
            .of(tenant)?
            .query(sql, &[&tenant.as_str(), &&first[..], &&last[..], &signed(limit as u64)])?;
        found.iter().map(|row| Ok(ConversationId::from_bytes(rows::bytes(row, 0)?))).collect()
    }

    fn expired(&self, now: Timestamp, limit: usize) -> Result<Vec<Key>, Error> {
        let sql = "SELECT tenant, id FROM conversation_rows WHERE expires <= $1 AND deleted IS NULL ORDER BY expires LIMIT $2";
        self.of_all()?.query(sql, &[&now.0, &signed(limit as u64)])?.iter().map(key).collect()
    }

    fn tombstones(&self, tenant: &TenantName) -> Result<Vec<Tombstone>, Error> {
        let sql = "SELECT row, deleted, deleted_reason FROM conversation_rows
             WHERE tenant = $1 AND deleted IS NOT NULL AND NOT replaced ORDER BY deleted DESC";
        self.of(tenant)?.query(sql, &[&tenant.as_str()])?.iter().map(tombstone).collect()
    }

    fn tenants(&self) -> Result<Vec<TenantName>, Error> {
        let sql = "SELECT tenant FROM conversation_rows GROUP BY tenant ORDER BY tenant COLLATE \"C\"";
        let found = self.of_all()?.query(sql, &[])?;
        found.iter().map(|row| TenantName::new(rows::get::<String>(row, 0)?)).collect()
    }

    fn usage(&self, tenant: &TenantName) -> Result<TenantUsage, Error> {
        let sql = "WITH own AS (SELECT no, parent_seq FROM conversation_rows WHERE tenant = $1 AND deleted IS NULL)
             SELECT (SELECT count(*) FROM own),
                 (SELECT count(*) FROM own JOIN turn_rows t ON t.tenant = $1 AND t.conversation = own.no AND t.seq > coalesce(own.parent_seq, 0)),
                 (SELECT coalesce(sum(octet_length(e.body)), 0)::bigint FROM own JOIN events e ON e.tenant = $1 AND e.conversation = own.no),
                 (SELECT count(*) FROM own JOIN asset_rows a ON a.tenant = $1 AND a.conversation = own.no WHERE a.sha256 IS NOT NULL),
                 (SELECT coalesce(sum((e.body::json ->> 'bytes')::bigint), 0)::bigint FROM own JOIN asset_rows a ON a.tenant = $1 AND a.conversation = own.no
                  JOIN events e ON e.tenant = $1 AND e.conversation = own.no AND e.seq = a.seq WHERE a.sha256 IS NOT NULL)";
        let Some(row) = self.of(tenant)?.query_one(sql, &[&tenant.as_str()])? else {
            return Ok(TenantUsage::default());
        };
        let number = |column| rows::unsigned(&row, column);
        Ok(TenantUsage {
            conversations: number(0)?,
            turns: number(1)?,
            bytes: number(2)?,
            assets: number(3)?,
            asset_bytes: number(4)?,
        })
    }
}

impl TurnIndex for Postgres {
    fn stored_turns(&self, key: &Key, query: &TurnQuery) -> Result<Vec<StoredTurn>, Error> {
        let (db, lineage) = self.reading(key)?;
        read::turns(&db, &lineage, query)
    }

    fn stored_turn(&self, tenant: &TenantName, id: TurnId) -> Result<StoredTurn, Error> {
        let sql =
            "SELECT c.no FROM turn_rows t JOIN conversation_rows c ON c.tenant = $2 AND c.no = t.conversation
             WHERE t.id = $1 AND t.tenant = $2 AND c.deleted IS NULL AND t.seq > coalesce(c.parent_seq, 0)";
        let db = self.of(tenant)?;
        let row =
            db.query_one(sql, &[&&id.to_bytes()[..], &tenant.as_str()])?.ok_or_else(|| absent_turn(id))?;
        let lineage = read::lineage_at(&db, tenant, rows::get(&row, 0)?)?.ok_or_else(|| absent_turn(id))?;
        let row = read::turn_row(&db, &lineage, id)?.ok_or_else(|| absent_turn(id))?;
        read::stored(&db, &lineage, row)
    }

    fn stored_turn_in(&self, key: &Key, id: TurnId) -> Result<StoredTurn, Error> {
        let (db, lineage) = self.reading(key)?;
        let row = read::turn_row(&db, &lineage, id)?.ok_or_else(|| absent_turn(id))?;
        read::stored(&db, &lineage, row)
    }

    fn stored_turns_in(&self, tenant: &TenantName, turns: &[(ConversationId, TurnId)]) -> StoredTurns {
        let mut found = read::own_turns(&self.of(tenant)?, tenant, turns)?;
        let one = |(nth, (conversation, id)): (usize, &(ConversationId, TurnId))| match found[nth].take() {
            Some(turn) => Ok(turn),
            // Inherited, or not there.
            None => self.stored_turn_in(&Key { tenant: tenant.clone(), id: *conversation }, *id),
        };
        Ok(turns.iter().enumerate().map(one).collect())
    }

    fn fallen_after(&self, key: &Key, seq: u64) -> Result<u64, Error> {
        let (db, lineage) = self.reading(key)?;
        read::fallen_after(&db, &lineage, seq)
    }

    fn open_turns(&self) -> Result<Vec<(Key, TurnId)>, Error> {
        let sql =
            "SELECT c.tenant, c.id, t.id FROM turn_rows t JOIN conversation_rows c ON c.tenant = t.tenant AND c.no = t.conversation
             WHERE t.status = 'pending' AND c.deleted IS NULL";
        let found = self.of_all()?.query(sql, &[])?;
        found.iter().map(|row| Ok((key(row)?, TurnId::from_bytes(rows::bytes(row, 2)?)))).collect()
    }
}

impl AssetIndex for Postgres {
    fn stored_assets(&self, key: &Key) -> Result<Vec<Event>, Error> {
        let (db, lineage) = self.reading(key)?;
        let nos: Vec<i64> = lineage.levels.iter().map(|level| level.no).collect();
        let sql = "SELECT conversation, seq FROM asset_rows WHERE tenant = $2 AND conversation = ANY ($1) ORDER BY seq";
        let mut seqs = Vec::new();
        for row in db.query(sql, &[&nos, &key.tenant.as_str()])? {
            let seq = rows::unsigned(&row, 1)?;
            let no: i64 = rows::get(&row, 0)?;
            seqs.extend(lineage.owner(seq).filter(|level| level.no == no).map(|_| seq));
        }
        let mut events = read::events_at(&db, &lineage, &seqs)?;
        Ok(seqs.iter().filter_map(|seq| events.remove(seq)).collect())
    }

    fn stored_asset(&self, key: &Key, id: &str) -> Result<Option<Event>, Error> {
        let (db, lineage) = self.reading(key)?;
        let nos: Vec<i64> = lineage.levels.iter().map(|level| level.no).collect();
        let found = db.query(
            "SELECT conversation, seq FROM asset_rows WHERE tenant = $3 AND conversation = ANY ($1) AND id = $2",
            &[&nos, &id, &key.tenant.as_str()],
        )?;
        for level in &lineage.levels {
            for row in &found {
                let seq = rows::unsigned(row, 1)?;
                if rows::get::<i64>(row, 0)? == level.no && seq <= level.cap {
                    return Ok(read::events_at(&db, &lineage, &[seq])?.remove(&seq));
                }
            }
        }
        Ok(None)
    }

    fn stored_assets_with_id(
        &self,
        tenant: &TenantName,
        id: &str,
        limit: usize,
    ) -> Result<Vec<(ConversationId, Event)>, Error> {
        let db = self.of(tenant)?;
        let sql = "SELECT * FROM (SELECT DISTINCT ON (a.sha256) c.no, c.id, a.seq FROM asset_rows a
                 JOIN conversation_rows c ON c.tenant = $2 AND c.no = a.conversation
                 WHERE a.id = $1 AND a.tenant = $2 AND c.deleted IS NULL ORDER BY a.sha256, c.id) f ORDER BY f.id LIMIT $3";
        let mut found = Vec::new();
        for row in db.query(sql, &[&id, &tenant.as_str(), &signed(limit as u64)])? {
            let seq = rows::unsigned(&row, 2)?;
            let Some(lineage) = read::lineage_at(&db, tenant, rows::get(&row, 0)?)? else { continue };
            let event = read::events_at(&db, &lineage, &[seq])?.remove(&seq);
            found.extend(event.map(|event| (lineage.levels[0].id, event)));
        }
        Ok(found)
    }

    fn asset_in_use(&self, tenant: &TenantName, sha256: Hash) -> Result<bool, Error> {
        Ok(read::asset_count(&self.of(tenant)?, tenant, sha256)? > 0)
    }
}

impl Provenance for Postgres {
    fn fact(&self, tenant: &TenantName, id: FactId) -> Result<Option<ConversationId>, Error> {
        let sql = "SELECT c.id FROM fact_statements f JOIN conversation_rows c ON c.tenant = $2 AND c.no = f.conversation
             WHERE f.id = $1 AND f.corrects IS DISTINCT FROM f.id AND f.tenant = $2 AND c.deleted IS NULL ORDER BY c.no LIMIT 1";
        let row = self.of(tenant)?.query_one(sql, &[&&id.to_bytes()[..], &tenant.as_str()])?;
        row.map(|row| rows::bytes(&row, 0).map(ConversationId::from_bytes)).transpose()
    }

    fn learned_from(&self, tenant: &TenantName, turn: TurnId) -> Result<Vec<Learned>, Error> {
        let db = self.of(tenant)?;
        learned(turn, |of| read::statements(&db, tenant, of))
    }

    fn echoes(&self, key: &Key, turn: TurnId) -> Result<Vec<Event>, Error> {
        let (db, lineage) = self.reading(key)?;
        let row = read::turn_row(&db, &lineage, turn)?.ok_or_else(|| absent_turn(turn))?;
        let message = read::stored(&db, &lineage, row.clone())?.message();
        let mut events = copies(turn, &InDatabase::new(&db, &RefCell::default(), key))?;
        let (Some(message), Some(level)) = (message, lineage.owner(row.seq)) else { return Ok(events) };
        let words = Words::of(&message);
        let buckets: Vec<i32> = words.buckets().into_iter().map(i32::from).collect();
        let sql = format!(
            "{FAMILY} SELECT DISTINCT e.conversation, e.seq FROM family f JOIN echo_rows e ON e.tenant = $3 AND e.conversation = f.no
             WHERE e.bucket = ANY ($4) ORDER BY 1, 2"
        );
        for row in db.query(&sql, &[&level.no, &signed(row.seq), &key.tenant.as_str(), &buckets])? {
            let seq = rows::unsigned(&row, 1)?;
            let Some(lineage) = read::lineage_at(&db, &key.tenant, rows::get(&row, 0)?)? else { continue };
            let event = read::events_at(&db, &lineage, &[seq])?.remove(&seq);
            events.extend(event.filter(|event| words.are_repeated_by(event)));
        }
        Ok(events)
    }

    /// A position is a conversation, not a position in the order of arrival: see the decision.
    fn written_by(&self, tenant: &TenantName, actor: &str, after: u64) -> Result<Option<WrittenPage>, Error> {
        let db = self.of(tenant)?;
        let sql = "SELECT max(no) FROM (SELECT no FROM conversation_rows WHERE no > $1 AND tenant = $2 ORDER BY no LIMIT 100) c";
        let Some(row) = db.query_one(sql, &[&signed(after), &tenant.as_str()])? else { return Ok(None) };
        let Some(through) = rows::get::<Option<i64>>(&row, 0)? else { return Ok(None) };
        let sql = "SELECT c.no, c.id, c.deleted IS NOT NULL, e.seq, e.kind, e.turn FROM conversation_rows c
             JOIN events e ON e.tenant = $4 AND e.conversation = c.no
             WHERE c.no > $1 AND c.no <= $2 AND c.tenant = $4 AND e.actor = $3 AND e.body IS NOT NULL ORDER BY c.no, e.seq";
        let mut events = Vec::new();
        for row in db.query(sql, &[&signed(after), &through, &actor, &tenant.as_str()])? {
            let conversation = ConversationId::from_bytes(rows::bytes(&row, 1)?);
            let place = EventAddress { conversation, seq: rows::unsigned(&row, 3)? };
            let mut seen_in = conversation;
            if rows::get(&row, 2)? {
                let sql = format!(
                    "{FAMILY} SELECT c.id FROM family f JOIN conversation_rows c ON c.tenant = $3 AND c.no = f.no WHERE c.deleted IS NULL LIMIT 1"
                );
                let fork =
                    db.query_one(&sql, &[&rows::get::<i64>(&row, 0)?, &signed(place.seq), &tenant.as_str()])?;
                let Some(fork) = fork else { continue };
                seen_in = ConversationId::from_bytes(rows::bytes(&fork, 0)?);
            }
            let turn = rows::optional_bytes(&row, 5)?.map(TurnId::from_bytes);
            events.push(Written { place, seen_in, kind: rows::get(&row, 4)?, turn });
        }
        Ok(Some(WrittenPage { events, through: through as u64 }))
    }

    fn erasures(&self, tenant: &TenantName) -> Result<u64, Error> {
        let sql = "SELECT coalesce(max(no), 0) FROM erased_bodies WHERE tenant = $1";
        let row = self.of(tenant)?.query_one(sql, &[&tenant.as_str()])?;
        row.map_or(Ok(0), |row| rows::unsigned(&row, 0))
    }
}

impl FoldCache for Postgres {
    fn fold(&self, key: &Key, at_or_before: u64) -> Result<Option<(u64, Raw)>, Error> {
        let (db, lineage) = self.reading(key)?;
        for Level { no, cap, .. } in &lineage.levels {
            let sql = "SELECT seq, fold FROM kept_folds WHERE tenant = $3 AND conversation = $1 AND seq <= $2 ORDER BY seq DESC LIMIT 1";
            if let Some(row) =
                db.query_one(sql, &[no, &signed(at_or_before.min(*cap)), &key.tenant.as_str()])?
            {
                let fold = Raw::new(rows::get::<String>(&row, 1)?).ok();
                return Ok(fold.zip(Some(rows::unsigned(&row, 0)?)).map(|(fold, seq)| (seq, fold)));
            }
        }
        Ok(None)
    }

    fn keep_fold(&self, key: &Key, seq: u64, fold: &Raw) -> Result<(), Error> {
        let db = self.writing(Scope::Tenant(&key.tenant))?;
        let (no, _) = read::conversation(&db, key)?.ok_or_else(|| write::absent(key))?;
        let sql = "INSERT INTO kept_folds VALUES ($1, $2, $3, $4) ON CONFLICT (tenant, conversation, seq) DO UPDATE SET fold = excluded.fold";
        db.execute(sql, &[&key.tenant.as_str(), &no, &signed(seq), &fold.get()])?;
        db.commit()
    }
}

impl Maintenance for Postgres {
    fn check(&self) -> Result<Vec<StoreProblem>, Error> {
        let db = self.whole()?;
        let sql = "SELECT c.tenant, c.id, c.head_seq, count(e.seq) FROM conversation_rows c
             LEFT JOIN events e ON e.tenant = c.tenant AND e.conversation = c.no AND e.seq <= c.head_seq
             WHERE c.deleted IS NULL GROUP BY c.tenant, c.no
             HAVING count(e.seq) <> c.head_seq - coalesce(c.parent_seq, 0) ORDER BY c.no";
        let missing = |row: &tokio_postgres::Row| {
            let (head, found) = (rows::unsigned(row, 2)?, rows::unsigned(row, 3)?);
            let text = format!("its last event is {head}, but only {found} of its own events are in the log");
            Ok(StoreProblem { key: Some(key(row)?), kind: ProblemKind::Missing, text })
        };
        db.query(sql, &[])?.iter().map(missing).collect()
    }

    fn rebuild(&self) -> Result<(), Error> {
        let db = self.whole()?;
        db.batch("LOCK TABLE conversation_rows IN EXCLUSIVE MODE")?;
        db.batch("DELETE FROM turn_rows; DELETE FROM asset_rows; DELETE FROM asset_references; DELETE FROM fact_statements;
                DELETE FROM summary_rows; DELETE FROM echo_rows; DELETE FROM kept_folds")?;
        // Parents have smaller numbers than their forks. Also deleted ones, whose turns forks still read.
        for row in db.query("SELECT no, row, deleted IS NOT NULL FROM conversation_rows ORDER BY no", &[])? {
            let (no, old): (i64, _) = (rows::get(&row, 0)?, rows::conversation(rows::get(&row, 1)?)?);
            let deleted: bool = rows::get(&row, 2)?;
            let Some(lineage) = read::lineage_at(&db, &old.tenant, no)? else { continue };
            let key = Key { tenant: old.tenant.clone(), id: old.id };
            let fork = match old.parent {
                None => None,
                Some(parent) => {
                    let above = Lineage { tenant: old.tenant.clone(), levels: lineage.levels[1..].to_vec() };
                    let hash = match read::hash_at(&db, &above, parent.at_seq)? {
                        Some(hash) => hash,
                        // Neither is read any more.
                        None if deleted => continue,
                        None => return Err(rows::wrong("a parent is damaged")),
                    };
                    let turns = read::count_turns(&db, &above, parent.at_seq)?;
                    Some((parent, ForkPoint { head: Head { seq: parent.at_seq, hash }, turns }))
                }
            };
            let mut fresh = write::new_conversation(&key, old.created, fork);
            let buffer = RefCell::new(Buffer::default());
            let lookup = InDatabase::along(&db, &buffer, &key, lineage.clone());
            let mut after = lineage.levels[0].floor;
            loop {
                let page = read::events(&db, &lineage, after, 1000)?;
                let Some(last) = page.last().map(|event| event.seq) else { break };
                after = last;
                for event in &page {
                    let mut changes = Changes::default();
                    write::fold(&mut fresh, event, &mut changes, &lookup)?;
                    buffer.borrow_mut().changes(&key.tenant, no, changes);
                }
            }
            buffer.borrow_mut().flush(&db, false)?;
            if fresh.parent.is_some() && fresh.checkpoint.is_some() {
                fresh.set_checkpoint(write::checkpoint(no as u64, &lookup)?);
            }
            if !deleted {
                let sql = "UPDATE conversation_rows SET row = $2, updated = $3, state = $4, expires = $5, title = $6, said = $8,
                         changed = pg_current_xact_id() WHERE tenant = $7 AND no = $1";
                let expires = fresh.expires().map(|at| at.0);
                let title = fresh.title.clone().map(String::into_bytes);
                db.execute(
                    sql,
                    &[
                        &no,
                        &json(&fresh)?,
                        &fresh.updated.0,
                        &fresh.state.as_str(),
                        &expires,
                        &title,
                        &key.tenant.as_str(),
                        &fresh.said().0,
                    ],
                )?;
            }
        }
        db.commit()?;
        self.forget()
    }

    fn compact(&self) -> Result<(), Error> {
        // Erased content remains in old versions of rows until they are vacuumed.
        self.link.outside("VACUUM events")
    }
}

fn key(row: &tokio_postgres::Row) -> Result<Key, Error> {
    let tenant = TenantName::new(rows::get::<String>(row, 0)?)?;
    Ok(Key { tenant, id: ConversationId::from_bytes(rows::bytes(row, 1)?) })
}

/// A tombstone from its row, the time and the reason.
pub(super) fn tombstone(row: &tokio_postgres::Row) -> Result<Tombstone, Error> {
    let buried = rows::conversation(rows::get(row, 0)?)?;
    Ok(Tombstone {
        id: buried.id,
        head: buried.head,
        deleted: Timestamp(rows::get(row, 1)?),
        reason: rows::get(row, 2)?,
    })
}
