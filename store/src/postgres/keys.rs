//! Access keys.

use super::Postgres;
use super::db::Scope;
use super::rows;
use crate::{AccessKeys, absent_key, key_exists};
use everturn_core::Error;
use everturn_core::access::AccessKey;
use everturn_core::chain::Hash;
use everturn_core::id::{KeyId, TenantName};
use everturn_core::time::Timestamp;
use tokio_postgres::Row;

pub(super) const KEY_COLUMNS: &str =
    "id, tenant, role, label, created, expires, revoked, last_used, secret, actors";

pub(super) fn access_key(row: &Row) -> Result<AccessKey, Error> {
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

impl AccessKeys for Postgres {
    fn put_key(&self, key: &AccessKey) -> Result<(), Error> {
        let sql = format!(
            "INSERT INTO access_keys ({KEY_COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT DO NOTHING"
        );
        let time = |at: Option<Timestamp>| at.map(|at| at.0);
        let db = self.writing(Scope::Tenant(&key.tenant))?;
        let kept = db.execute(
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
        if kept == 0 { Err(key_exists(key.id)) } else { db.commit() }
    }

    fn key(&self, id: KeyId) -> Result<Option<AccessKey>, Error> {
        let sql = format!("SELECT {KEY_COLUMNS} FROM access_keys WHERE id = $1");
        self.of_all()?.query_one(&sql, &[&&id.to_bytes()[..]])?.map(|row| access_key(&row)).transpose()
    }

    fn keys(&self, tenant: &TenantName) -> Result<Vec<AccessKey>, Error> {
        let sql = format!("SELECT {KEY_COLUMNS} FROM access_keys WHERE tenant = $1 ORDER BY id");
        self.of(tenant)?.query(&sql, &[&tenant.as_str()])?.iter().map(access_key).collect()
    }

    fn any_key(&self, valid_at: Option<Timestamp>) -> Result<bool, Error> {
        let sql = "SELECT 1 FROM access_keys WHERE $1::bigint IS NULL OR revoked IS NULL AND coalesce(expires > $1, true) LIMIT 1";
        Ok(self.of_all()?.query_one(sql, &[&valid_at.map(|at| at.0)])?.is_some())
    }

    fn revoke_key(&self, tenant: &TenantName, id: KeyId, at: Timestamp) -> Result<AccessKey, Error> {
        let sql = format!(
            "UPDATE access_keys SET revoked = coalesce(revoked, $1), changed = pg_current_xact_id() WHERE id = $2 AND tenant = $3 RETURNING {KEY_COLUMNS}"
        );
        let db = self.writing(Scope::Tenant(tenant))?;
        let row = db.query_one(&sql, &[&at.0, &&id.to_bytes()[..], &tenant.as_str()])?;
        let key = access_key(&row.ok_or_else(|| absent_key(id))?)?;
        db.commit().map(|()| key)
    }

    fn touch_key(&self, id: KeyId, at: Timestamp) -> Result<(), Error> {
        let sql = "UPDATE access_keys SET last_used = greatest(last_used, $1) WHERE id = $2";
        let db = self.writing(Scope::All)?;
        db.execute(sql, &[&at.0, &&id.to_bytes()[..]])?;
        db.commit()
    }
}
