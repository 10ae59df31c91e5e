//! A database of a real server, for the tests that need one.

use crate::postgres;
use everturn_core::Error;
use std::sync::atomic::{AtomicU32, Ordering};

static DATABASES: AtomicU32 = AtomicU32::new(0);

/// An empty database, dropped at the end. `./test postgres` starts the server.
pub struct Database {
    /// Its name.
    pub name: String,
    server: String,
    admin: String,
}

impl Database {
    /// `None`, and a note, if `EVERTURN_TEST_POSTGRES` names no server.
    pub fn new() -> Option<Database> {
        Database::like("template1")
    }

    /// The same without extensions.
    pub fn without_extensions() -> Option<Database> {
        Database::like("template0")
    }

    fn like(template: &str) -> Option<Database> {
        let Ok(server) = std::env::var("EVERTURN_TEST_POSTGRES") else {
            eprintln!("skipped: EVERTURN_TEST_POSTGRES names no PostgreSQL server; use ./test postgres");
            return None;
        };
        let admin = std::env::var("EVERTURN_TEST_POSTGRES_ADMIN").expect("the URL for a superuser");
        let nth = DATABASES.fetch_add(1, Ordering::SeqCst);
        let name = format!("test_{}_{nth}", std::process::id());
        postgres::run(&server, &format!("CREATE DATABASE {name} TEMPLATE {template}")).expect("a database");
        Some(Database { name, server, admin })
    }

    /// Another database of the server, which the caller makes. It is dropped at the end as well.
    pub fn beside(&self, suffix: &str) -> Database {
        let (server, admin) = (self.server.clone(), self.admin.clone());
        Database { name: format!("{}_{suffix}", self.name), server, admin }
    }

    /// Its URL.
    pub fn url(&self) -> String {
        self.server.replace("/everturn?", &format!("/{}?", self.name))
    }

    /// Its URL for a superuser.
    pub fn admin(&self) -> String {
        self.admin.replace("/postgres?", &format!("/{}?", self.name))
    }

    /// Runs commands in it.
    pub fn run(&self, sql: &str) -> Result<(), Error> {
        postgres::run(&self.url(), sql)
    }

    /// Fails unless a query over all tenants counts this many rows.
    #[track_caller]
    pub fn counts(&self, rows: u64, of: &str) {
        let counted =
            format!("SELECT 1 / (CASE WHEN (SELECT count(*) FROM {of}) = {rows} THEN 1 ELSE 0 END)");
        let all = format!("BEGIN; SET LOCAL everturn.tenants = '*'; {counted}; COMMIT");
        self.run(&all).unwrap_or_else(|error| panic!("not {rows} of {of}: {error}"));
    }

    /// Ends every connection to it, as a restart does.
    pub fn cut(&self) {
        let cut =
            format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}'", self.name);
        postgres::run(&self.admin, &cut).expect("the connections end");
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // Only a superuser may end an automatic vacuum.
        let _ = postgres::run(&self.admin, &format!("DROP DATABASE {} WITH (FORCE)", self.name));
    }
}
