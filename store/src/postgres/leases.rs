//! Leases of background work. One is valid while its process gives signs (`nodes`), however long the work takes, so
//! nothing has to be renewed, and the work of a process that dies is free after some seconds.

use super::Postgres;
use super::db::{Db, Scope};
use super::feed::SILENT_S;
use super::rows;
use crate::{Leases, WorkDone, WorkState};
use everturn_core::Error;
use everturn_core::id::{ConversationId, Key, TenantName};
use everturn_core::time::Timestamp;

/// Condition that process `$node` gave a sign lately.
macro_rules! lives {
    ($node:literal, $silent_s:literal) => {
        concat!(
            "EXISTS (SELECT 1 FROM nodes n WHERE n.no = ",
            $node,
            " AND n.seen > clock_timestamp() - ",
            $silent_s,
            " * interval '1 s')"
        )
    };
}

/// Age after which rows that nobody needs are deleted.
const KEPT: &str = "interval '1 hour'";

impl Postgres {
    /// Takes a lease, and returns how far its work was done before. `None` if another, living process has it.
    fn take(&self, db: Db, tenant: &str, name: &str) -> Result<Option<u64>, Error> {
        const SQL: &str = concat!(
            "INSERT INTO leases AS l (tenant, name, node) VALUES ($1, $2, $3)
             ON CONFLICT (tenant, name) DO UPDATE SET node = excluded.node, changed = clock_timestamp()
                 WHERE l.node IS NULL OR l.node = excluded.node
                     OR NOT EXISTS (SELECT 1 FROM nodes n WHERE n.no = l.node) OR ($4 AND NOT ",
            lives!("l.node", "$5"),
            ") RETURNING l.through"
        );
        let node = self.node()?;
        // A process that leaves takes its row of `nodes` along. Whether another is dead is not for a process to judge that had
        // an outage itself.
        let taken = db.query_one(SQL, &[&tenant, &name, &node.no, &node.is_steady(), &SILENT_S])?;
        db.commit()?;
        taken.map(|row| rows::unsigned(&row, 0)).transpose()
    }
}

impl Leases for Postgres {
    fn leads(&self, job: &str) -> Result<bool, Error> {
        Ok(self.take(self.writing(Scope::All)?, "", job)?.is_some())
    }

    fn take_work(&self, key: &Key) -> Result<Option<u64>, Error> {
        let db = self.writing(Scope::Tenant(&key.tenant))?;
        self.take(db, key.tenant.as_str(), &key.id.to_string())
    }

    fn end_work(&self, key: &Key, done: Option<WorkDone>) -> Result<(), Error> {
        let db = self.writing(Scope::Tenant(&key.tenant))?;
        let sql =
            "UPDATE leases SET node = NULL, changed = clock_timestamp(), through = greatest(through, $4),
                 due = CASE WHEN $4 IS NULL THEN due ELSE $5 END
             WHERE tenant = $1 AND name = $2 AND node = $3";
        let no = self.node()?.no;
        let through = done.map(|done| rows::signed(done.through));
        let due = done.and_then(|done| done.due).map(|due| due.0);
        db.execute(sql, &[&key.tenant.as_str(), &key.id.to_string(), &no, &through, &due])?;
        db.commit()
    }

    fn due_work(&self, now: Timestamp, limit: usize) -> Result<Vec<Key>, Error> {
        let sql = "SELECT tenant, name FROM leases WHERE due <= $1 ORDER BY due LIMIT $2";
        let found = self.of_all()?.query(sql, &[&now.0, &rows::signed(limit as u64)])?;
        let key = |row| {
            let tenant = TenantName::new(rows::get::<String>(row, 0)?)?;
            Ok(Key { tenant, id: rows::get::<String>(row, 1)?.parse()? })
        };
        found.iter().map(key).collect()
    }

    fn work_left(&self, heads: &[(Key, u64)]) -> Result<Vec<WorkState>, Error> {
        const SQL: &str = concat!(
            "SELECT CASE WHEN l.through >= a.head THEN 'done' WHEN ",
            lives!("l.node", "$4"),
            " THEN 'taken' ELSE 'free' END
             FROM unnest($1::text[], $2::text[], $3::bigint[]) WITH ORDINALITY AS a (tenant, name, head, nth)
             LEFT JOIN leases l ON l.tenant = a.tenant AND l.name = a.name ORDER BY a.nth"
        );
        let tenants: Vec<&str> = heads.iter().map(|(key, _)| key.tenant.as_str()).collect();
        let names: Vec<String> = heads.iter().map(|(key, _)| key.id.to_string()).collect();
        let seqs: Vec<i64> = heads.iter().map(|(_, head)| rows::signed(*head)).collect();
        let found = self.of_all()?.query(SQL, &[&tenants, &names, &seqs, &SILENT_S])?;
        let work = |row| {
            Ok(match rows::get::<String>(row, 0)?.as_str() {
                "done" => WorkState::Done,
                "taken" => WorkState::Taken,
                _ => WorkState::Free,
            })
        };
        found.iter().map(work).collect()
    }

    fn changed_since(&self, since: Timestamp, limit: usize) -> Result<Vec<(Key, u64)>, Error> {
        let sql = "SELECT tenant, id, head_seq FROM conversation_rows
             WHERE updated > $1 AND deleted IS NULL AND NOT replaced ORDER BY updated DESC LIMIT $2";
        let changed = |row| {
            let tenant = TenantName::new(rows::get::<String>(row, 0)?)?;
            let id = ConversationId::from_bytes(rows::bytes(row, 1)?);
            Ok((Key { tenant, id }, rows::unsigned(row, 2)?))
        };
        let found = self.of_all()?.query(sql, &[&since.0, &rows::signed(limit as u64)])?;
        found.iter().map(changed).collect()
    }

    fn forget_work(&self) -> Result<(), Error> {
        let db = self.writing(Scope::All)?;
        for sql in [
            format!(
                "DELETE FROM leases WHERE node IS NULL AND due IS NULL AND changed < clock_timestamp() - {KEPT}"
            ),
            // A process that lives after all makes its row again with its next sign.
            format!("DELETE FROM nodes WHERE seen < clock_timestamp() - {KEPT}"),
        ] {
            db.execute(&sql, &[])?;
        }
        db.commit()
    }
}
