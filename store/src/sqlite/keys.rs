//! Keys, in their own table.

use super::Sqlite;
use super::rows::{self, Bytes, Parsed};
use crate::{AccessKeys, absent_key, key_exists};
use everturn_core::Error;
use everturn_core::access::AccessKey;
use everturn_core::chain::Hash;
use everturn_core::id::{KeyId, TenantName};
use everturn_core::time::Timestamp;
use rusqlite::types::FromSqlError;
use rusqlite::{Connection, OptionalExtension, Row, params};

const COLUMNS: &str = "id, tenant, role, label, created, expires, revoked, last_used, secret, actors";

impl AccessKeys for Sqlite {
    fn put_key(&self, key: &AccessKey) -> Result<(), Error> {
        self.changing(|db| {
            let kept = db.execute(
                &format!(
                    "INSERT INTO keys ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
                ),
                params![
                    Bytes(key.id.to_bytes()),
                    key.tenant.as_str(),
                    key.role.as_str(),
                    key.label,
                    key.created.0,
                    key.expires.map(|at| at.0),
                    key.revoked.map(|at| at.0),
                    key.last_used.map(|at| at.0),
                    Bytes(key.secret.0),
                    super::write::json(&key.actors)?
                ],
            )?;
            if kept == 0 { Err(key_exists(key.id).into()) } else { Ok(()) }
        })
    }

    fn key(&self, id: KeyId) -> Result<Option<AccessKey>, Error> {
        self.reading(|db| Ok(find(db, id)?))
    }

    fn keys(&self, tenant: &TenantName) -> Result<Vec<AccessKey>, Error> {
        self.reading(|db| {
            let found = db
                .prepare_cached(&format!("SELECT {COLUMNS} FROM keys WHERE tenant = ? ORDER BY id"))?
                .query_map([tenant.as_str()], read)?
                .collect::<Result<_, _>>()?;
            Ok(found)
        })
    }

    fn any_key(&self, valid_at: Option<Timestamp>) -> Result<bool, Error> {
        self.reading(|db| {
            let sql = "SELECT 1 FROM keys WHERE ?1 IS NULL OR revoked IS NULL AND ifnull(expires > ?1, 1)";
            Ok(db.prepare_cached(sql)?.exists([valid_at.map(|at| at.0)])?)
        })
    }

    fn revoke_key(&self, tenant: &TenantName, id: KeyId, at: Timestamp) -> Result<AccessKey, Error> {
        self.changing(|db| {
            let sql = "UPDATE keys SET revoked = ifnull(revoked, ?) WHERE id = ? AND tenant = ?";
            db.execute(sql, params![at.0, Bytes(id.to_bytes()), tenant.as_str()])?;
            Ok(find(db, id)?.filter(|key| key.tenant == *tenant).ok_or_else(|| absent_key(id))?)
        })
    }

    fn touch_key(&self, id: KeyId, at: Timestamp) -> Result<(), Error> {
        self.writing(|db| {
            db.execute(
                "UPDATE keys SET last_used = max(ifnull(last_used, ?1), ?1) WHERE id = ?2",
                params![at.0, Bytes(id.to_bytes())],
            )?;
            Ok(())
        })
    }
}

fn find(db: &Connection, id: KeyId) -> rusqlite::Result<Option<AccessKey>> {
    db.prepare_cached(&format!("SELECT {COLUMNS} FROM keys WHERE id = ?"))?
        .query_row([Bytes(id.to_bytes())], read)
        .optional()
}

/// Every key of every tenant.
pub(super) fn all(db: &Connection) -> rusqlite::Result<Vec<AccessKey>> {
    db.prepare_cached(&format!("SELECT {COLUMNS} FROM keys ORDER BY id"))?.query_map([], read)?.collect()
}

fn read(row: &Row<'_>) -> rusqlite::Result<AccessKey> {
    let time = |column| Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(column)?.map(Timestamp));
    let tenant: String = row.get("tenant")?;
    Ok(AccessKey {
        id: KeyId::from_bytes(row.get::<_, Bytes<16>>("id")?.0),
        tenant: TenantName::new(tenant).map_err(|e| FromSqlError::Other(Box::new(e)))?,
        role: row.get::<_, Parsed<_>>("role")?.0,
        actors: rows::json(row, "actors")?,
        label: row.get("label")?,
        created: Timestamp(row.get("created")?),
        expires: time("expires")?,
        revoked: time("revoked")?,
        last_used: time("last_used")?,
        secret: Hash(row.get::<_, Bytes<32>>("secret")?.0),
    })
}
