//! The promises on a real PostgreSQL server, and what only a store with several writers has. `./test postgres`
//! starts the server and names it in `EVERTURN_TEST_POSTGRES`; without it the tests say that they are skipped.

mod sharing;

use crate::sql;
use everturn_core::chain::Hash;
use everturn_core::id::Key;
use everturn_core::write::{Action, Idempotency, Write};
use everturn_store::conformance::{Backend, Maker, create, tenant};
use everturn_store::postgres::{self, Postgres};
use everturn_store::{CheckedLog, ConversationIndex, Log};
use serde_json::json;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

static DATABASES: AtomicU32 = AtomicU32::new(0);

/// An empty database, dropped at the end.
struct Database {
    server: String,
    name: String,
}

impl Database {
    /// `None`, and a note, if there is no server.
    fn new() -> Option<Database> {
        let Ok(server) = std::env::var("EVERTURN_TEST_POSTGRES") else {
            eprintln!("skipped: EVERTURN_TEST_POSTGRES names no PostgreSQL server; use ./test postgres");
            return None;
        };
        let nth = DATABASES.fetch_add(1, Ordering::SeqCst);
        let name = format!("test_{}_{nth}", std::process::id());
        postgres::run(&server, &format!("CREATE DATABASE {name}")).unwrap();
        Some(Database { server, name })
    }

    fn url(&self) -> String {
        self.server.replace("/everturn?", &format!("/{}?", self.name))
    }

    fn open(&self) -> Postgres {
        Postgres::open(&self.url()).unwrap()
    }

    /// Its URL for a superuser.
    fn admin(&self) -> String {
        let server = std::env::var("EVERTURN_TEST_POSTGRES_ADMIN").unwrap();
        server.replace("/postgres?", &format!("/{}?", self.name))
    }

    fn run(&self, sql: &str) -> Result<(), everturn_core::Error> {
        postgres::run(&self.url(), sql)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let _ = postgres::run(&self.server, &format!("DROP DATABASE {} WITH (FORCE)", self.name));
    }
}

/// Runs a promise, or reports that it is skipped.
fn kept(promise: fn(&dyn Backend)) {
    let Some(database) = Database::new() else { return };
    promise(&database.open());
}

mod promises {
    everturn_store::conformance!(log super::kept);
    everturn_store::conformance!(recall super::kept);
}

/// Runs a scenario of the views for people, read by the program `psql`.
fn in_sql(scenario: fn(&sql::Store<'_>)) {
    let Some(database) = Database::new() else { return };
    let store = database.open();
    let url = database.admin();
    let ask = |sql: &str| {
        let rows = format!("SELECT coalesce(json_agg(found), '[]') FROM ({sql}) found");
        let psql =
            std::env::var("EVERTURN_TEST_POSTGRES_BIN").map_or("psql".into(), |bin| format!("{bin}/psql"));
        let said = Command::new(psql).args(["-At", &url, "-c", &rows]).output().unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        serde_json::from_slice(&said.stdout).unwrap()
    };
    scenario(&sql::Store { m: Maker::default(), store: &store, ask: &ask, lags: false });
}

#[test]
fn turns_of_every_kind_are_in_the_view() {
    in_sql(sql::turns_of_every_kind);
}

#[test]
fn a_private_turn_says_so() {
    in_sql(sql::a_private_turn);
}

#[test]
fn a_fork_has_the_turns_that_it_inherited_as_they_were() {
    in_sql(sql::forks);
}

#[test]
fn facts_are_in_the_view_with_their_words() {
    in_sql(sql::facts);
}

/// A character that PostgreSQL cannot hold is replaced, and the rest of the view is shown.
#[test]
fn a_zero_character_does_not_fail_the_view() {
    in_sql(|s| {
        let key = s.m.key();
        create(s.store, &key, vec![s.m.created(), s.m.say("nu\0ll"), s.m.say("plain")]);
        let found = (s.ask)("select content from turns order by seq");
        assert_eq!(found, [json!({"content": "nu\u{fffd}ll"}), json!({"content": "plain"})]);
    });
}

/// Four processes (here: four stores with connections of their own) append to two conversations at once, in both
/// orders: one order, no gap, nothing lost, and a key that all send is answered once.
#[test]
fn several_writers_give_one_order() {
    let Some(database) = Database::new() else { return };
    // Opened at once: one of them creates the tables.
    let stores: Vec<Postgres> = std::thread::scope(|scope| {
        let opening: Vec<_> = (0..4).map(|_| scope.spawn(|| database.open())).collect();
        opening.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let m = Maker::default();
    let (one, other) = (m.key(), m.key());
    create(&stores[0], &one, vec![m.created()]);
    create(&stores[1], &other, vec![m.created()]);
    let write = |key: &Key, round: usize| {
        let name = format!("round {round}");
        let idempotency = Idempotency { request: Hash::of(name.as_bytes()), key: name, only_repeat: None };
        let action =
            |idempotency| Action::Append { drafts: vec![m.say("hello")], expected_seq: None, idempotency };
        [None, Some(idempotency)].map(|asked| Write { key: key.clone(), action: action(asked) })
    };
    let batches: Vec<Vec<Vec<Write>>> = (0..4)
        .map(|writer| {
            let keys = if writer % 2 == 0 { [&one, &other] } else { [&other, &one] };
            (0..25).map(|round| keys.iter().flat_map(|key| write(key, round)).collect()).collect()
        })
        .collect();
    let repeated: usize = std::thread::scope(|scope| {
        let writing: Vec<_> = stores
            .iter()
            .zip(batches)
            .map(|(store, batches)| {
                scope.spawn(move || {
                    let answers = batches.into_iter().flat_map(|batch| store.commit(batch));
                    answers.filter(|answer| answer.as_ref().unwrap().repeated).count()
                })
            })
            .collect();
        writing.into_iter().map(|one| one.join().unwrap()).sum()
    });
    assert_eq!(repeated, 3 * 25 * 2);
    for key in [&one, &other] {
        let events = stores[3].events(key, 0, 1000).unwrap();
        assert_eq!(events.len(), 1 + 4 * 25 + 25);
        assert!(events.windows(2).all(|two| two[1].prev == two[0].hash && two[1].seq == two[0].seq + 1));
    }
}

/// SQL that tries to reach another tenant: as the server without or with the wrong tenant, and as a role that may
/// read one of them, through tables, partitions and settings.
#[test]
fn row_level_security_keeps_tenants_apart() {
    let Some(database) = Database::new() else { return };
    let store = database.open();
    let m = Maker::default();
    let mine = m.key();
    let other = Key { tenant: tenant("other"), ..m.key() };
    create(&store, &mine, vec![m.created(), m.say("mine")]);
    create(&store, &other, vec![m.created(), m.say("theirs")]);
    let reader = format!("reader_{}", database.name);
    let set = |tenants: &str| format!("BEGIN; SET LOCAL everturn.tenants = '{tenants}';");
    let name = mine.tenant.as_str();
    // A failing assertion of SQL: division by zero unless the count is as expected.
    let expect = |count: u32, of: &str| {
        format!("SELECT 1 / (CASE WHEN (SELECT count(*) FROM {of}) = {count} THEN 1 ELSE 0 END);")
    };
    let tables = ["events", "turn_rows", "conversation_rows"];
    for table in tables {
        database.run(&expect(0, table)).unwrap();
        database
            .run(&format!(
                "{} {} COMMIT",
                set("other"),
                expect(0, &format!("{table} WHERE tenant = '{name}'"))
            ))
            .unwrap();
        database.run(&format!("{} UPDATE {table} SET tenant = tenant WHERE tenant = '{name}'; DELETE FROM {table} WHERE tenant <> 'other'; COMMIT", set("other"))).unwrap();
        let stolen = format!("{} UPDATE {table} SET tenant = '{name}'; COMMIT", set("other"));
        assert!(database.run(&stolen).unwrap_err().to_string().contains("row-level security"), "{table}");
        // What was there is still there, and a tenant sees its own.
        database
            .run(&format!("{} {} COMMIT", set(name), expect(if table == "events" { 2 } else { 1 }, table)))
            .unwrap();
    }
    let parts = (0..16)
        .map(|part| format!("SELECT tenant FROM events_{part}"))
        .collect::<Vec<_>>()
        .join(" UNION ALL ");
    database.run(&format!("{} {} COMMIT", set("other"), expect(2, &format!("({parts}) p")))).unwrap();
    let admin = database.admin();
    postgres::run(&admin, &format!("CREATE ROLE {reader} LOGIN")).unwrap();
    database.run(&format!("SELECT let_read('{name}', '{reader}')")).unwrap();
    let as_reader =
        |sql: &str| postgres::run(&database.url().replace("//everturn@", &format!("//{reader}@")), sql);
    let checked = (|| {
        as_reader(&expect(2, "events"))?;
        // The server's setting has no effect for others.
        as_reader(&format!("{} {} COMMIT", set("*"), expect(2, "events")))?;
        as_reader(&format!("{} {} COMMIT", set("other"), expect(0, "events WHERE tenant = 'other'")))?;
        as_reader(&expect(1, "conversation_rows"))?;
        as_reader(&expect(1, "conversations"))?;
        as_reader(&expect(1, "turns WHERE content = 'mine'"))?;
        as_reader(&expect(0, "turns WHERE content = 'theirs'"))
    })();
    let refused = [
        "SELECT let_read('other', current_user)",
        "SELECT * FROM events_3",
        "SELECT * FROM access_keys",
        "CREATE POLICY mine ON events TO PUBLIC USING (true)",
        "UPDATE events SET body = ''",
        "DELETE FROM events",
        "ALTER TABLE events DISABLE ROW LEVEL SECURITY",
        "SET ROLE everturn",
        "TRUNCATE events",
    ]
    .map(|sql| (sql, as_reader(sql).is_err()));
    postgres::run(&admin, &format!("DROP OWNED BY {reader}; DROP ROLE {reader}")).unwrap();
    checked.unwrap();
    for (sql, refused) in refused {
        assert!(refused, "{sql}");
    }
    assert_eq!(store.conversation(&mine).unwrap().head.seq, 2);
    assert_eq!(store.conversation(&other).unwrap().head.seq, 2);
}

/// A connection that the server ends, in the pool or under a transaction, costs no write.
#[test]
fn a_restart_of_the_connections_loses_nothing_and_repeats_nothing() {
    let Some(database) = Database::new() else { return };
    let store = database.open();
    let m = Maker::default();
    let key = m.key();
    create(&store, &key, vec![m.created()]);
    let admin = std::env::var("EVERTURN_TEST_POSTGRES_ADMIN").unwrap();
    let cut =
        format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}'", database.name);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                postgres::run(&admin, &cut).unwrap();
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        });
        for nth in 0..100 {
            let action = Action::Append {
                drafts: vec![m.say(&format!("word {nth}"))],
                expected_seq: None,
                idempotency: None,
            };
            store.commit(vec![Write { key: key.clone(), action }]).remove(0).unwrap();
        }
        done.store(true, Ordering::SeqCst);
    });
    let events = loop {
        // The last cut may have come after the last write.
        match store.events(&key, 0, 1000) {
            Ok(events) => break events,
            Err(error) => assert_eq!(error.code(), "store.unreachable"),
        }
    };
    assert_eq!(events.len(), 101);
    assert!(
        events
            .iter()
            .skip(1)
            .enumerate()
            .all(|(nth, event)| event.text().unwrap().contains(&format!("word {nth}\"")))
    );
}

/// Each error says what to do.
#[test]
fn errors_of_opening_say_what_to_do() {
    let Some(database) = Database::new() else { return };
    let url = database.url();
    let said = |url: &str| {
        Postgres::open(url).err().map(|error| (error.code().to_string(), error.to_string())).unwrap()
    };
    let (code, text) = said(&url.replace(&database.name, "nothing_here"));
    assert_eq!(code, "store.absent", "{text}");
    let (code, text) = said(&url.replace("//everturn@", "//nobody_here@"));
    assert_eq!(code, "store.denied", "{text}");
    let (code, text) = said(&format!("{url}&connections_max=none"));
    assert!(code == "store.url" && text.contains("2 to 1000"), "{text}");
    let (code, text) = said(&format!("{url}&colour=blue"));
    assert!(code == "store.url" && text.contains("postgres://"), "{text}");
    let unmade = Postgres::open_read_only(&url).err().unwrap();
    assert_eq!(unmade.code(), "store.absent", "{unmade}");
    drop(database.open());
    Postgres::open_read_only(&url).unwrap();
    database.run("INSERT INTO schema_versions (version) VALUES (99)").unwrap();
    let (code, text) = said(&url);
    assert!(code == "store.version" && text.contains("99"), "{text}");
}
