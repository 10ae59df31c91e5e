//! Makes the tables, and refuses those of another format.

use super::db::{Db, Mode, Scope};
use super::link::Link;
use super::rows;
use everturn_core::Error;

/// Format of the tables and of everything in them.
const FORMAT: i32 = 1;

const TABLES: &str = include_str!("schema.sql");
const VIEWS: &str = include_str!("views.sql");

/// Oldest version of the server: views that check the rights of the role that asks came with it.
const SERVER_MIN: i32 = 15;

/// Held while tables are made: it happens once, however many processes start together.
const LOCK: i64 = 0x6576_6572_7475_726e;

/// Refuses a database without our tables, or with those of another format.
pub fn check(link: &Link) -> Result<(), Error> {
    let db = Db::begin(link, Scope::All, Mode::Read)?;
    if !has_tables(&db)? {
        return Err(Error::invalid(
            "store.absent",
            "this database has no tables of Everturn; `everturn serve`, or any command that writes, makes them",
        ));
    }
    check_role(&db)?;
    check_encoding(&db)
}

/// Refuses a role that row-level security would show an empty store.
fn check_role(db: &Db) -> Result<(), Error> {
    let sql = "SELECT current_user::text, pg_get_userbyid(c.relowner)::text FROM pg_class c
         WHERE c.oid = 'conversation_rows'::regclass AND row_security_active(c.oid) AND NOT EXISTS (
             SELECT 1 FROM pg_policy p, unnest(p.polroles) AS r (role)
             WHERE p.polrelid = c.oid AND p.polname = 'server' AND pg_has_role(r.role, 'USAGE'))";
    let Some(row) = db.query_one(sql, &[])? else { return Ok(()) };
    let (role, owner): (String, String) = (rows::get(&row, 0)?, rows::get(&row, 1)?);
    let text = format!(
        "the role {role} would see an empty store, because row-level security shows its rows only to the role that made the \
         tables; name that role in the URL ({owner} owns them), grant it to {role}, or use a role with BYPASSRLS"
    );
    Err(Error::invalid("store.denied", text))
}

fn check_encoding(db: &Db) -> Result<(), Error> {
    let row = db.query_one("SELECT current_setting('server_encoding')", &[])?;
    match row.map(|row| rows::get::<String>(&row, 0)).transpose()? {
        Some(encoding) if encoding != "UTF8" => {
            let text = format!(
                "the encoding of this database is {encoding}, which does not have every character; create one with UTF8: \
                 createdb NAME --owner ROLE --encoding UTF8 --template template0"
            );
            Err(Error::invalid("store.encoding", text))
        }
        _ => Ok(()),
    }
}

/// Makes the tables where there are none.
pub fn make(link: &Link) -> Result<(), Error> {
    let db = Db::begin(link, Scope::All, Mode::Long)?;
    let row = db.query_one(
        "SELECT current_setting('server_version_num')::int / 10000, pg_is_in_recovery(), current_schema() IS NOT NULL,
             (SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user)",
        &[],
    )?;
    let row = row.ok_or_else(|| rows::wrong("the server says nothing about itself"))?;
    let server: i32 = rows::get(&row, 0)?;
    if server < SERVER_MIN {
        let text = format!("the server is PostgreSQL {server}; use {SERVER_MIN} or later");
        return Err(Error::invalid("store.server_version", text));
    }
    let (standby, has_schema, unbound): (bool, bool, bool) =
        (rows::get(&row, 1)?, rows::get(&row, 2)?, rows::get(&row, 3)?);
    if standby {
        let text = "this PostgreSQL server is a standby; name the primary, or target_session_attrs=read-write, in the URL, or \
                    serve it with --read-only";
        return Err(Error::busy("store.standby", text));
    }
    if !has_schema {
        let text = "the search_path of this role names no schema that exists; create one, or set search_path";
        return Err(Error::invalid("store.schema", text));
    }
    if unbound {
        tracing::warn!(
            "the role in the store's URL is a superuser or bypasses row-level security; use one that does neither"
        );
    }
    check_encoding(&db)?;
    if has_tables(&db)? {
        check_role(&db)?;
        return renumber(&db).and_then(|()| db.commit());
    }
    // In a transaction of its own: this one has looked for the tables, and would not see those that another process makes while
    // it waits for the lock.
    drop(db);
    once(link, |db| {
        if !has_tables(db)? {
            db.batch(TABLES)?;
            db.batch(VIEWS)?;
            let program = concat!("everturn ", env!("CARGO_PKG_VERSION"));
            db.execute(
                "INSERT INTO schema_versions (version, made_by) VALUES ($1, $2)",
                &[&FORMAT, &program],
            )?;
        }
        Ok(())
    })
}

/// Tables that were brought here from another server (by `pg_dump`) have its numbers of transactions, which this one has
/// not given yet: whoever looks for changes would find those rows new for as long. They are old.
fn renumber(db: &Db) -> Result<(), Error> {
    const OLD: &str = "'3'::xid8";
    let future = |column: &str| format!("{column} >= pg_snapshot_xmax(pg_current_snapshot())");
    let last = |table: &str| format!("(SELECT changed FROM {table} ORDER BY changed DESC LIMIT 1)");
    let sql = format!(
        "SELECT coalesce(greatest({}, {}) >= pg_snapshot_xmax(pg_current_snapshot()), false)",
        last("conversation_rows"),
        last("access_keys")
    );
    let row = db.query_one(&sql, &[])?;
    if !row.map_or(Ok(false), |row| rows::get(&row, 0))? {
        return Ok(());
    }
    tracing::warn!(
        "this database was brought here from another server; its numbers of transactions are made anew"
    );
    db.query("SELECT pg_advisory_xact_lock($1)", &[&LOCK])?;
    for (table, column) in [
        ("conversation_rows", "changed"),
        ("conversation_rows", "begun"),
        ("erased_bodies", "changed"),
        ("access_keys", "changed"),
        ("recall_conversations", "changed"),
    ] {
        db.batch(&format!("UPDATE {table} SET {column} = {OLD} WHERE {}", future(column)))?;
    }
    // What is indexed is not indexed again.
    db.batch("UPDATE recall_feed SET snapshot = '1:1:'")
}

/// Runs something in one transaction, in one process at a time.
pub fn once(link: &Link, work: impl FnOnce(&Db) -> Result<(), Error>) -> Result<(), Error> {
    let db = Db::begin(link, Scope::All, Mode::Long)?;
    db.query("SELECT pg_advisory_xact_lock($1)", &[&LOCK])?;
    work(&db)?;
    db.commit()
}

/// Whether our tables are there. Refuses those of another format.
fn has_tables(db: &Db) -> Result<bool, Error> {
    // Builds that were never released numbered their tables, too, and did not say who made them.
    let found = db.query_one(
        "SELECT to_regclass('schema_versions') IS NOT NULL, EXISTS (
             SELECT 1 FROM pg_attribute WHERE attrelid = to_regclass('schema_versions') AND attname = 'made_by')
         FROM pg_class LIMIT 1",
        &[],
    )?;
    let (is_there, says_maker) = match found {
        Some(row) => (rows::get(&row, 0)?, rows::get(&row, 1)?),
        None => (false, false),
    };
    if !is_there {
        return Ok(false);
    }
    if !says_maker {
        return Err(crate::unreleased(&"this database"));
    }
    let row = db.query_one("SELECT max(version) FROM schema_versions", &[])?;
    let format: Option<i32> = row.map(|row| rows::get(&row, 0)).transpose()?.flatten();
    match format {
        Some(FORMAT) => Ok(true),
        Some(other) => Err(crate::newer(&"this database", other, FORMAT)),
        None => Err(rows::wrong("schema_versions is empty")),
    }
}
