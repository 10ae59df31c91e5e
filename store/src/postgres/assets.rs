//! Bytes of assets in the database, so that every process has them without another place.

use super::Postgres;
use super::db::Scope;
use super::rows::{self, signed};
use crate::Assets;
use crate::assets::{absent, damaged};
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::id::TenantName;
use everturn_core::time::Timestamp;
use std::ops::Range;

impl Assets for Postgres {
    fn put(&self, tenant: &TenantName, sha256: Hash, bytes: Vec<u8>) -> Result<(), Error> {
        let db = self.writing(Scope::Tenant(tenant))?;
        // The time is renewed, so that no sweep takes bytes that are about to be referred to. Bytes that are there are not
        // written again, unless they were damaged.
        let sql = "INSERT INTO asset_bytes (tenant, sha256, bytes) VALUES ($1, $2, $3)
             ON CONFLICT (tenant, sha256) DO UPDATE SET written = now(),
                 bytes = CASE WHEN asset_bytes.bytes = excluded.bytes THEN asset_bytes.bytes ELSE excluded.bytes END";
        db.execute(sql, &[&tenant.as_str(), &&sha256.0[..], &bytes])?;
        db.commit()
    }

    fn get(&self, tenant: &TenantName, sha256: Hash) -> Result<Vec<u8>, Error> {
        let sql = "SELECT bytes FROM asset_bytes WHERE tenant = $1 AND sha256 = $2";
        let row = self.of(tenant)?.query_one(sql, &[&tenant.as_str(), &&sha256.0[..]])?;
        let bytes: Vec<u8> = rows::get(&row.ok_or_else(|| absent(sha256))?, 0)?;
        if Hash::of(&bytes) != sha256 {
            return Err(damaged(sha256));
        }
        Ok(bytes)
    }

    fn get_range(&self, tenant: &TenantName, sha256: Hash, range: Range<u64>) -> Result<Vec<u8>, Error> {
        let sql = "SELECT substring(bytes FROM least($3::bigint + 1, 2147483647)::int FOR least($4::bigint, 1073741824)::int)
             FROM asset_bytes WHERE tenant = $1 AND sha256 = $2";
        let length = range.end.saturating_sub(range.start);
        let row = self.of(tenant)?.query_one(
            sql,
            &[&tenant.as_str(), &&sha256.0[..], &signed(range.start.min(i32::MAX as u64)), &signed(length)],
        )?;
        rows::get(&row.ok_or_else(|| absent(sha256))?, 0)
    }

    fn delete(&self, tenant: &TenantName, sha256: Hash) -> Result<(), Error> {
        let db = self.writing(Scope::Tenant(tenant))?;
        let sql = "DELETE FROM asset_bytes WHERE tenant = $1 AND sha256 = $2";
        db.execute(sql, &[&tenant.as_str(), &&sha256.0[..]])?;
        db.commit()
    }

    fn list(&self) -> Result<Vec<(TenantName, Hash, Timestamp)>, Error> {
        let sql = "SELECT tenant, sha256, (extract(epoch FROM written) * 1000000)::bigint FROM asset_bytes";
        let listed = |row: &tokio_postgres::Row| {
            let tenant = TenantName::new(rows::get::<String>(row, 0)?)?;
            Ok((tenant, Hash(rows::bytes(row, 1)?), Timestamp(rows::get(row, 2)?)))
        };
        self.of_all()?.query(sql, &[])?.iter().map(listed).collect()
    }
}
