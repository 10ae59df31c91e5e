//! Bytes of assets in the database, so that every process has them without another place; or the place that the
//! database names.

use super::Postgres;
use super::db::{Db, Mode, Scope};
use super::link::Link;
use super::rows::{self, signed};
use crate::Assets;
use crate::assets::{Place, absent, damaged};
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::id::TenantName;
use everturn_core::time::Timestamp;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Held while the mark of the place is renewed, by one process at a time.
const MARKING: i64 = 0x6576_6572_6d61_726b;
/// Time for which a renewed mark is known to be ours.
const MARK_VALID: Duration = Duration::from_secs(10);

/// A place that is opened when it is first used: whoever only reads words needs no credentials for it.
#[derive(Default)]
pub struct LazyPlace(OnceLock<Place>);

impl From<Place> for LazyPlace {
    fn from(place: Place) -> LazyPlace {
        LazyPlace(place.into())
    }
}

impl LazyPlace {
    fn get(&self, link: &Link) -> Result<&Place, Error> {
        if self.0.get().is_none()
            && let Some(place) = open(link, true)?
        {
            // Another thread may have been faster.
            let _ = self.0.set(place);
        }
        self.0.get().ok_or_else(|| Error::internal("assets.place", "the assets are in the database"))
    }
}

/// Opens the place of the bytes; `None` if that is the database. The URL of the store may name it; the database
/// remembers it, so that all processes use the same.
pub fn place(link: &Link) -> Result<Option<Place>, Error> {
    open(link, false)
}

/// The place for a process that only reads. One that the URL names is opened now, since it may be a wrong one.
pub fn place_to_read(link: &Link) -> Result<Option<LazyPlace>, Error> {
    if link.assets.is_some() {
        return Ok(open(link, true)?.map(LazyPlace::from));
    }
    let db = Db::begin(link, Scope::All, Mode::Read)?;
    let row = db.query_one("SELECT 1 FROM store_identity WHERE assets IS NOT NULL", &[])?;
    Ok(row.map(|_| LazyPlace::default()))
}

fn open(link: &Link, read_only: bool) -> Result<Option<Place>, Error> {
    let db = Db::begin(link, Scope::All, if read_only { Mode::Read } else { Mode::Write })?;
    let sql = "SELECT id::text, assets, EXISTS (SELECT 1 FROM asset_bytes) FROM store_identity";
    // Held while a place is chosen, so that processes that start together agree.
    let held = if read_only || link.assets.is_none() { "" } else { " FOR UPDATE OF store_identity" };
    let row = db.query_one(&format!("{sql}{held}"), &[])?;
    let row = row.ok_or_else(|| rows::wrong("the store has no identity"))?;
    let (store, known, in_database): (String, Option<String>, bool) =
        (rows::get(&row, 0)?, rows::get(&row, 1)?, rows::get(&row, 2)?);
    let Some(url) = link.assets.clone().or_else(|| known.clone()) else { return Ok(None) };
    let environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let moved = |text: String| Err(Error::conflict("assets.moved", text));
    if known.is_none() && in_database {
        let advice = "use `everturn copy` to a new database";
        return moved(format!(
            "the assets of this store are in the database, and cannot move to {url}; {advice}"
        ));
    }
    let place = Place::new(&url, environment)?;
    match (place.owner()?, &known) {
        (Some(owner), _) if owner == store => {}
        (Some(_), _) => return Err(place.taken()),
        (None, None) if read_only => return moved(format!("{url} has no assets of this store")),
        (None, None) => place.give(&store)?,
        (None, Some(known)) if *known == url => {
            return moved(format!(
                "{url} has lost the object .everturn-store, which names its store; restore it, or mount the right folder"
            ));
        }
        (None, Some(known)) => {
            return moved(format!(
                "the assets of this store are in {known} and not in {url}; copy them first, with the object .everturn-store, or \
                 leave `assets` out"
            ));
        }
    }
    if read_only {
        return Ok(Some(place));
    }
    place.check_writable()?;
    if known.as_ref() != Some(&url) {
        db.execute("UPDATE store_identity SET assets = $1", &[&url])?;
        db.commit()?;
    } else {
        drop(db);
    }
    match renew_mark(link, &place) {
        // The rest of the store is not in danger.
        Err(error) if error.is("assets.copied") => tracing::warn!(%error, "unused assets are not deleted"),
        renewed => renewed?,
    }
    Ok(Some(place))
}

/// Writes another mark into the place, if the one there is known to this database: a copy of it does not know what was
/// written after it was copied. The next mark is in the database before it is in the place, so a crash between the two
/// is harmless.
fn renew_mark(link: &Link, place: &Place) -> Result<(), Error> {
    let alone = Db::begin(link, Scope::All, Mode::Long)?;
    alone.query("SELECT pg_advisory_xact_lock($1)", &[&MARKING])?;
    let found = place.mark()?;
    let db = Db::begin(link, Scope::All, Mode::Write)?;
    let row = db.query_one("SELECT mark, next_mark, gen_random_uuid()::text FROM store_identity", &[])?;
    let row = row.ok_or_else(|| rows::wrong("the store has no identity"))?;
    let known: [Option<String>; 2] = [rows::get(&row, 0)?, rows::get(&row, 1)?];
    if found.is_some() && !known.contains(&found) {
        return Err(place.copied());
    }
    let next: String = rows::get(&row, 2)?;
    db.execute("UPDATE store_identity SET mark = $1, next_mark = $2", &[&found, &next])?;
    db.commit()?;
    place.set_mark(&next)?;
    alone.commit()
}

/// Assets in a place, for the database that may delete there.
struct Placed(Arc<Postgres>);

impl Placed {
    fn place(&self) -> Result<&Place, Error> {
        let none = || Error::internal("assets.place", "the assets are in the database");
        self.0.place.as_ref().ok_or_else(none)?.get(&self.0.link)
    }
}

impl Assets for Placed {
    fn put(&self, tenant: &TenantName, sha256: Hash, bytes: Vec<u8>) -> Result<(), Error> {
        self.place()?.assets().put(tenant, sha256, bytes)
    }

    fn get(&self, tenant: &TenantName, sha256: Hash) -> Result<Vec<u8>, Error> {
        self.place()?.assets().get(tenant, sha256)
    }

    fn get_range(&self, tenant: &TenantName, sha256: Hash, range: Range<u64>) -> Result<Vec<u8>, Error> {
        self.place()?.assets().get_range(tenant, sha256, range)
    }

    fn delete(&self, tenant: &TenantName, sha256: Hash) -> Result<(), Error> {
        if self.0.marked.lock().is_none_or(|at| at.elapsed() > MARK_VALID) {
            self.claim()?;
        }
        self.place()?.assets().delete(tenant, sha256)
    }

    fn list(&self) -> Result<Vec<(TenantName, Hash, Timestamp)>, Error> {
        self.place()?.assets().list()
    }

    fn claim(&self) -> Result<(), Error> {
        let mut marked = self.0.marked.lock();
        *marked = None;
        let began = Instant::now();
        renew_mark(&self.0.link, self.place()?)?;
        *marked = Some(began);
        Ok(())
    }
}

impl Postgres {
    /// The bytes of assets: in the database, or in the place that it names.
    pub fn assets(self: &Arc<Self>) -> Arc<dyn Assets> {
        match &self.place {
            Some(_) => Arc::new(Placed(self.clone())),
            None => self.clone(),
        }
    }
}

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
