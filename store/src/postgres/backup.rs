//! Reading everything, for a backup.

use super::index::tombstone;
use super::keys::{KEY_COLUMNS, access_key};
use super::rows::{self, signed};
use super::{Postgres, read};
use crate::{Backup, EVENT_BYTES, ErasedPage, Member, absent_member};
use everturn_core::Error;
use everturn_core::access::AccessKey;
use everturn_core::chain::Hash;
use everturn_core::event::Event;
use everturn_core::id::{Key, TenantName};
use everturn_core::write::AnsweredRequest;
use tokio_postgres::Row;

const MEMBERS: &str = "SELECT c.row, c.deleted, c.deleted_reason, c.no, c.parent, c.parent_seq,
    coalesce((SELECT max(e.seq) FROM events e WHERE e.tenant = c.tenant AND e.conversation = c.no), 0) FROM conversation_rows c";

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
        self.of_all()?.query(&format!("{MEMBERS} ORDER BY c.no"), &[])?.iter().map(member).collect()
    }

    fn member(&self, no: u64) -> Result<Member, Error> {
        let row = self.of_all()?.query_one(&format!("{MEMBERS} WHERE c.no = $1"), &[&signed(no)])?;
        member(&row.ok_or_else(|| absent_member(no))?)
    }

    fn member_events(
        &self,
        no: u64,
        after: u64,
        through: u64,
        bytes_max: usize,
    ) -> Result<Vec<Event>, Error> {
        let db = self.of_all()?;
        let row = db.query_one("SELECT tenant FROM conversation_rows WHERE no = $1", &[&signed(no)])?;
        let row = row.ok_or_else(|| absent_member(no))?;
        let tenant = TenantName::new(rows::get::<String>(&row, 0)?)?;
        let lineage = read::lineage_at(&db, &tenant, signed(no))?.ok_or_else(|| absent_member(no))?;
        let (mut out, mut bytes, mut from) = (Vec::new(), 0, after.max(lineage.levels[0].floor));
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
                 FROM answered_requests
                 WHERE tenant = (SELECT tenant FROM conversation_rows WHERE no = $1) AND conversation = $1 AND last_seq > $2 AND last_seq <= $3) r
             WHERE place <= $4 ORDER BY last_seq, scope, key";
        let found = self
            .of_all()?
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
        let sql = "SELECT e.conversation, e.seq FROM conversation_rows c JOIN events e ON e.tenant = c.tenant AND e.conversation = c.no
             WHERE c.no > $1 AND c.no <= $1::bigint + 1000 AND e.body IS NULL";
        let db = self.of_all()?;
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
        self.of_all()?.query(&sql, &[])?.iter().map(access_key).collect()
    }
}
