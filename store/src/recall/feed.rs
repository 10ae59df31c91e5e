//! Positions of the indexes of all tenants, and the work left for each. In a file of its own, so that this is
//! known without opening every tenant's.
//!
//! A tenant's index is written first and the feed after it. So the feed may be behind an index, which then
//! processes the same events twice without effect; and if a power loss leaves an index behind the feed, `last`
//! reveals it.

use crate::sqlite::rows::{Bytes, signed};
use everturn_core::id::{EventId, TenantName};
use rusqlite::{Connection, OptionalExtension, params};

/// The feed's record of one tenant's index.
#[derive(Default)]
pub struct Summary {
    pub entries: u64,
    pub removed: bool,
    /// Name, number of entries without an embedding, and whether there are embeddings.
    pub models: Vec<(String, u64, bool)>,
}

/// The last event that was handed out: its number and id.
pub fn position(db: &Connection) -> rusqlite::Result<(u64, Option<EventId>)> {
    db.prepare_cached("SELECT event, anchor FROM position")?.query_row([], |row| {
        let anchor: Option<Bytes<16>> = row.get(1)?;
        Ok((row.get::<_, i64>(0)? as u64, anchor.map(|bytes| EventId::from_bytes(bytes.0))))
    })
}

/// Moves the position. `false` if it is no longer at `after`.
pub fn advance(db: &Connection, after: u64, through: u64, anchor: Option<EventId>) -> rusqlite::Result<bool> {
    let anchor = anchor.map(|id| Bytes(id.to_bytes()));
    let moved = db
        .prepare_cached("UPDATE position SET event = ?, anchor = ? WHERE event = ?")?
        .execute(params![signed(through), anchor, signed(after)])?;
    Ok(moved == 1)
}

/// The last event that was handed to a tenant's index; 0 if none was.
pub fn last(db: &Connection, tenant: &TenantName) -> rusqlite::Result<u64> {
    let last: Option<i64> = db
        .prepare_cached("SELECT last FROM tenants WHERE name = ?")?
        .query_row([tenant.as_str()], |row| row.get(0))
        .optional()?;
    Ok(last.unwrap_or(0) as u64)
}

/// Tenants that were handed events.
pub fn tenants(db: &Connection) -> rusqlite::Result<Vec<TenantName>> {
    named(db, "SELECT name FROM tenants WHERE last > 0", [])
}

/// Tenants with removed text in their file.
pub fn to_scrub(db: &Connection) -> rusqlite::Result<Vec<TenantName>> {
    named(db, "SELECT name FROM tenants WHERE removed", [])
}

/// Tenants with entries that wait for an embedding of a model, and their number. A model that was never used is
/// missing everywhere.
pub fn waiting(db: &Connection, model: &str) -> rusqlite::Result<Vec<(TenantName, u64)>> {
    db.prepare_cached(
        "SELECT t.name, coalesce(m.waiting, t.entries) FROM tenants t
         LEFT JOIN models m ON m.tenant = t.name AND m.model = ?
         WHERE coalesce(m.waiting, t.entries) > 0 ORDER BY t.name",
    )?
    .query_map([model], |row| Ok((tenant(row)?, row.get::<_, i64>(1)? as u64)))?
    .collect()
}

/// Models with embeddings of any tenant.
pub fn models(db: &Connection) -> rusqlite::Result<Vec<String>> {
    db.prepare_cached("SELECT DISTINCT model FROM models WHERE vectors ORDER BY model")?
        .query_map([], |row| row.get(0))?
        .collect()
}

/// Tenants with another model.
pub fn with_other_models(db: &Connection, model: &str) -> rusqlite::Result<Vec<TenantName>> {
    named(db, "SELECT DISTINCT tenant FROM models WHERE model <> ?", [model])
}

/// Records that events up to `last` were handed to a tenant's index.
pub fn hand(db: &Connection, tenant: &TenantName, last: u64) -> rusqlite::Result<()> {
    db.prepare_cached(
        "INSERT INTO tenants VALUES (?, ?, 0, 0) ON CONFLICT DO UPDATE SET last = max(last, excluded.last)",
    )?
    .execute(params![tenant.as_str(), signed(last)])
    .map(drop)
}

/// Records the content of an index, unless nothing was handed to it.
pub fn note(db: &Connection, tenant: &TenantName, summary: &Summary) -> rusqlite::Result<()> {
    let Summary { entries, removed, models } = summary;
    let known = db
        .prepare_cached("UPDATE tenants SET entries = ?, removed = ? WHERE name = ?")?
        .execute(params![signed(*entries), removed, tenant.as_str()])?;
    db.prepare_cached("DELETE FROM models WHERE tenant = ?")?.execute([tenant.as_str()])?;
    for (model, waiting, vectors) in models.iter().filter(|_| known == 1) {
        db.prepare_cached("INSERT INTO models VALUES (?, ?, ?, ?)")?.execute(params![
            tenant.as_str(),
            model,
            signed(*waiting),
            vectors
        ])?;
    }
    Ok(())
}

/// Forgets a tenant.
pub fn forget(db: &Connection, tenant: &TenantName) -> rusqlite::Result<()> {
    db.prepare_cached("DELETE FROM tenants WHERE name = ?")?.execute([tenant.as_str()])?;
    db.prepare_cached("DELETE FROM models WHERE tenant = ?")?.execute([tenant.as_str()]).map(drop)
}

fn named(db: &Connection, sql: &str, parameters: impl rusqlite::Params) -> rusqlite::Result<Vec<TenantName>> {
    db.prepare_cached(sql)?.query_map(parameters, tenant)?.collect()
}

fn tenant(row: &rusqlite::Row<'_>) -> rusqlite::Result<TenantName> {
    TenantName::new(row.get::<_, String>(0)?).map_err(|_| rusqlite::Error::InvalidQuery)
}
