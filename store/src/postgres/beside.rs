//! Keys and backup. Recall is not part of the spike.

use super::index::tombstone;
use super::rows::{self, signed};
use super::{Postgres, read};
use crate::{
    Backup, Behind, EVENT_BYTES, ErasedPage, IndexChange, Keys, Member, Proposal, Proposed, RecallIndex,
    Span, Unembedded, Unindexed, VectorSearch, WordSearch, absent_key, absent_member, key_exists,
};
use everturn_core::Error;
use everturn_core::access::AccessKey;
use everturn_core::chain::Hash;
use everturn_core::event::Event;
use everturn_core::id::{Key, KeyId, TenantName};
use everturn_core::time::Timestamp;
use everturn_core::write::AnsweredRequest;
use everturn_views::recall::{EntryNo, Filter, TextQuery};
use tokio_postgres::Row;

const KEY_COLUMNS: &str = "id, tenant, role, label, created, expires, revoked, last_used, secret, actors";

fn access_key(row: &Row) -> Result<AccessKey, Error> {
    let time = |column| Ok::<_, Error>(rows::get::<Option<i64>>(row, column)?.map(Timestamp));
    Ok(AccessKey {
        id: KeyId::from_bytes(rows::bytes(row, 0)?),
        tenant: TenantName::new(rows::get::<String>(row, 1)?)?,
        role: rows::parsed(row, 2)?,
        actors: serde_json::from_str(&rows::get::<String>(row, 9)?)
            .map_err(|e| Error::corrupt("store.json", e.to_string()))?,
        label: rows::get(row, 3)?,
        created: Timestamp(rows::get(row, 4)?),
        expires: time(5)?,
        revoked: time(6)?,
        last_used: time(7)?,
        secret: Hash(rows::bytes(row, 8)?),
    })
}

impl Keys for Postgres {
    fn put_key(&self, key: &AccessKey) -> Result<(), Error> {
        let sql = format!(
            "INSERT INTO access_keys ({KEY_COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT DO NOTHING"
        );
        let time = |at: Option<Timestamp>| at.map(|at| at.0);
        let kept = self.db()?.execute(
            &sql,
            &[
                &&key.id.to_bytes()[..],
                &key.tenant.as_str(),
                &key.role.as_str(),
                &key.label,
                &key.created.0,
                &time(key.expires),
                &time(key.revoked),
                &time(key.last_used),
                &&key.secret.0[..],
                &rows::json(&key.actors)?,
            ],
        )?;
        if kept == 0 { Err(key_exists(key.id)) } else { Ok(()) }
    }

    fn key(&self, id: KeyId) -> Result<Option<AccessKey>, Error> {
        let sql = format!("SELECT {KEY_COLUMNS} FROM access_keys WHERE id = $1");
        self.db()?.query_one(&sql, &[&&id.to_bytes()[..]])?.map(|row| access_key(&row)).transpose()
    }

    fn keys(&self, tenant: &TenantName) -> Result<Vec<AccessKey>, Error> {
        let sql = format!("SELECT {KEY_COLUMNS} FROM access_keys WHERE tenant = $1 ORDER BY id");
        self.db()?.query(&sql, &[&tenant.as_str()])?.iter().map(access_key).collect()
    }

    fn any_key(&self, valid_at: Option<Timestamp>) -> Result<bool, Error> {
        let sql = "SELECT 1 FROM access_keys WHERE $1::bigint IS NULL OR revoked IS NULL AND coalesce(expires > $1, true) LIMIT 1";
        Ok(self.db()?.query_one(sql, &[&valid_at.map(|at| at.0)])?.is_some())
    }

    fn revoke_key(&self, tenant: &TenantName, id: KeyId, at: Timestamp) -> Result<AccessKey, Error> {
        let sql = format!(
            "UPDATE access_keys SET revoked = coalesce(revoked, $1) WHERE id = $2 AND tenant = $3 RETURNING {KEY_COLUMNS}"
        );
        let row = self.db()?.query_one(&sql, &[&at.0, &&id.to_bytes()[..], &tenant.as_str()])?;
        access_key(&row.ok_or_else(|| absent_key(id))?)
    }

    fn touch_key(&self, id: KeyId, at: Timestamp) -> Result<(), Error> {
        let sql = "UPDATE access_keys SET last_used = greatest(last_used, $1) WHERE id = $2";
        self.db()?.execute(sql, &[&at.0, &&id.to_bytes()[..]]).map(drop)
    }
}

const MEMBERS: &str = "SELECT c.row, c.deleted, c.deleted_reason, c.no, c.parent, c.parent_seq,
    coalesce((SELECT max(e.seq) FROM events e WHERE e.conversation = c.no), 0) FROM conversation_rows c";

fn member(row: &Row) -> Result<Member, Error> {
    let conversation = rows::conversation(rows::get(row, 0)?)?;
    let deleted: Option<i64> = rows::get(row, 1)?;
    Ok(Member {
        no: rows::unsigned(row, 3)?,
        key: Key { tenant: conversation.tenant.clone(), id: conversation.id },
        created: conversation.created,
        parent: rows::optional_unsigned(row, 4)?.zip(rows::optional_unsigned(row, 5)?),
        through: rows::unsigned(row, 6)?,
        hash: deleted.is_none().then_some(conversation.head.hash),
        deleted: deleted.map(|_| tombstone(row)).transpose()?,
    })
}

impl Backup for Postgres {
    fn members(&self) -> Result<Vec<Member>, Error> {
        self.db()?.query(&format!("{MEMBERS} ORDER BY c.no"), &[])?.iter().map(member).collect()
    }

    fn member(&self, no: u64) -> Result<Member, Error> {
        let row = self.db()?.query_one(&format!("{MEMBERS} WHERE c.no = $1"), &[&signed(no)])?;
        member(&row.ok_or_else(|| absent_member(no))?)
    }

    fn member_events(
        &self,
        no: u64,
        after: u64,
        through: u64,
        bytes_max: usize,
    ) -> Result<Vec<Event>, Error> {
        let db = self.db()?;
        let lineage = read::lineage_at(&db, signed(no))?.ok_or_else(|| absent_member(no))?;
        let (mut out, mut bytes, mut from) = (Vec::new(), 0, after.max(lineage.0[0].floor));
        loop {
            let page = read::events(&db, &lineage, from, 500)?;
            let Some(last) = page.last().map(|event| event.seq) else { return Ok(out) };
            from = last;
            for event in page {
                if event.seq > through || (bytes > 0 && bytes >= bytes_max) {
                    return Ok(out);
                }
                bytes += EVENT_BYTES + event.text().map_or(0, str::len);
                out.push(event);
            }
        }
    }

    fn requests(
        &self,
        no: u64,
        after: u64,
        through: u64,
        limit: usize,
    ) -> Result<Vec<AnsweredRequest>, Error> {
        let sql = "SELECT scope = 0, key, fingerprint, first_seq, last_seq FROM (SELECT *, rank() OVER (ORDER BY last_seq) AS place
                 FROM answered_requests WHERE conversation = $1 AND last_seq > $2 AND last_seq <= $3) r
             WHERE place <= $4 ORDER BY last_seq, scope, key";
        let found = self
            .db()?
            .query(sql, &[&signed(no), &signed(after), &signed(through), &signed(limit.max(1) as u64)])?;
        let request = |row| {
            Ok(AnsweredRequest {
                creation: rows::get(row, 0)?,
                key: String::from_utf8(rows::get(row, 1)?).map_err(rows::wrong)?,
                fingerprint: Hash(rows::bytes(row, 2)?),
                first_seq: rows::unsigned(row, 3)?,
                last_seq: rows::unsigned(row, 4)?,
            })
        };
        found.iter().map(request).collect()
    }

    fn erased(&self, from: u64) -> Result<ErasedPage, Error> {
        let sql = "SELECT conversation, seq FROM events WHERE body IS NULL AND conversation > $1 AND conversation <= $1::bigint + 1000";
        let db = self.db()?;
        let mut page = ErasedPage::default();
        for row in db.query(sql, &[&signed(from)])? {
            page.erased.push((rows::unsigned(&row, 0)?, rows::unsigned(&row, 1)?));
        }
        let more = db.query_one(
            "SELECT 1 FROM conversation_rows WHERE no > $1::bigint + 1000 LIMIT 1",
            &[&signed(from)],
        )?;
        page.next = more.map(|_| from + 1000);
        Ok(page)
    }

    fn all_keys(&self) -> Result<Vec<AccessKey>, Error> {
        let sql = format!("SELECT {KEY_COLUMNS} FROM access_keys ORDER BY id");
        self.db()?.query(&sql, &[])?.iter().map(access_key).collect()
    }
}

fn no_recall<T>() -> Result<T, Error> {
    Err(Error::internal("recall.absent", "the PostgreSQL store cannot recall yet"))
}

impl RecallIndex for Postgres {
    fn unindexed(&self, _: usize) -> Result<Unindexed, Error> {
        no_recall()
    }

    fn index(&self, _: Vec<IndexChange>, _: Span) -> Result<(), Error> {
        no_recall()
    }

    fn behind(&self, _: Option<&TenantName>, _: Option<&str>) -> Result<Behind, Error> {
        no_recall()
    }

    fn scrub(&self, _: Option<&TenantName>, _: Option<u64>) -> Result<bool, Error> {
        no_recall()
    }

    fn forget(&self) -> Result<(), Error> {
        no_recall()
    }
}

impl WordSearch for Postgres {
    fn find_text(&self, _: &TenantName, _: &TextQuery, _: &Filter, _: usize) -> Result<Proposed, Error> {
        no_recall()
    }

    fn neighbours(
        &self,
        _: &TenantName,
        _: &Filter,
        _: &[EntryNo],
        _: usize,
    ) -> Result<Vec<Vec<(Proposal, usize)>>, Error> {
        no_recall()
    }
}

impl VectorSearch for Postgres {
    fn find_near(
        &self,
        _: &TenantName,
        _: &str,
        _: &[f32],
        _: &Filter,
        _: usize,
    ) -> Result<Vec<Proposal>, Error> {
        no_recall()
    }

    fn nearness(&self, _: &TenantName, _: &str, _: &[f32], _: &[EntryNo]) -> Result<Vec<Option<f64>>, Error> {
        no_recall()
    }

    fn unembedded(
        &self,
        _: &str,
        _: Option<(&TenantName, &[EntryNo])>,
        _: usize,
    ) -> Result<Vec<Unembedded>, Error> {
        no_recall()
    }

    fn put_vectors(&self, _: &TenantName, _: &str, _: Vec<(EntryNo, Vec<f32>)>) -> Result<(), Error> {
        no_recall()
    }

    fn vector_models(&self, _: Option<&TenantName>) -> Result<Vec<String>, Error> {
        no_recall()
    }

    fn keep_vectors_of(&self, _: &str, _: usize) -> Result<usize, Error> {
        no_recall()
    }
}
