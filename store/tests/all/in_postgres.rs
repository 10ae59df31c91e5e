//! The promises on a real PostgreSQL server, and what only a store with several writers has. `./test postgres`
//! starts the server and names it in `EVERTURN_TEST_POSTGRES`; without it the tests say that they are skipped.

use crate::places;
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::id::Key;
use everturn_core::time::Timestamp;
use everturn_core::write::{Action, Idempotency, Write};
use everturn_store::conformance::{Backend, Maker, create, tenant};
use everturn_store::postgres::{self, Postgres};
use everturn_store::{Assets, CheckedLog, ConversationIndex, Elsewhere, Leases, Log, Work, WorkDone};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

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

    fn run(&self, sql: &str) -> Result<(), Error> {
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
    everturn_store::conformance!(assets |promise: fn(&dyn everturn_store::Assets)| {
        let Some(database) = super::Database::new() else { return };
        promise(&database.open());
    });
}

/// The database remembers the place of its assets, so that all processes use the same; it changes only to a place that
/// has them.
#[test]
fn assets_stay_in_the_place_that_was_chosen_first() {
    let Some(database) = Database::new() else { return };
    let acme = tenant("acme");
    let at = |place: &str| format!("{}&assets={place}", database.url());
    let opened = |url: &str| Postgres::open(url).map(|store| Arc::new(store).assets());
    let refused = |url: &str, code: &str| {
        let error = opened(url).err().unwrap();
        assert_eq!(error.code(), code, "{error}");
    };
    let ((here, first), (there, second)) = (places::folder(), places::folder());
    let first = places::s3().unwrap_or(first);
    // Started together: both agree.
    let stores: Vec<_> = std::thread::scope(|scope| {
        let opening: Vec<_> = (0..2).map(|_| scope.spawn(|| opened(&at(&first)).unwrap())).collect();
        opening.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let sha256 = Hash::of(b"bytes");
    stores[0].put(&acme, sha256, b"bytes".to_vec()).unwrap();
    assert_eq!(stores[1].get(&acme, sha256).unwrap(), b"bytes");
    // Without naming it, and for reading only.
    assert_eq!(opened(&database.url()).unwrap().get(&acme, sha256).unwrap(), b"bytes");
    let reader = Arc::new(Postgres::open_read_only(&database.url()).unwrap()).assets();
    assert_eq!(reader.get(&acme, sha256).unwrap(), b"bytes");
    database.run("SELECT 1 / (CASE WHEN EXISTS (SELECT 1 FROM asset_bytes) THEN 0 ELSE 1 END)").unwrap();
    refused(&at(&second), "assets.moved");
    // Another store may not use it.
    if let Some(other) = Database::new() {
        refused(&format!("{}&assets={first}", other.url()), "assets.taken");
        // Nor move there with assets in its database.
        let store = other.open();
        store.put(&acme, sha256, b"bytes".to_vec()).unwrap();
        refused(&format!("{}&assets={second}", other.url()), "assets.moved");
    }
    // Copied with whatever tool, the place may change.
    let mark = there.path().join("everturn-store");
    database.run(&format!("UPDATE store_identity SET id = '{ID}'")).unwrap();
    std::fs::write(mark, ID).unwrap();
    opened(&at(&second)).unwrap();
    opened(&database.url()).unwrap();
    drop(here);
}

const ID: &str = "7e8dd9a5-3f6e-4a52-a9a0-5a35ed2d4e9b";

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
    let admin = std::env::var("EVERTURN_TEST_POSTGRES_ADMIN").unwrap();
    let admin = admin.replace("/postgres?", &format!("/{}?", database.name));
    postgres::run(&admin, &format!("CREATE ROLE {reader} LOGIN")).unwrap();
    database.run(&format!("SELECT let_read('{name}', '{reader}')")).unwrap();
    let as_reader =
        |sql: &str| postgres::run(&database.url().replace("//everturn@", &format!("//{reader}@")), sql);
    let checked = (|| {
        as_reader(&expect(2, "events"))?;
        // The server's setting has no effect for others.
        as_reader(&format!("{} {} COMMIT", set("*"), expect(2, "events")))?;
        as_reader(&format!("{} {} COMMIT", set("other"), expect(0, "events WHERE tenant = 'other'")))?;
        as_reader(&expect(1, "conversation_rows"))
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

/// Two processes and their work: one does it, the other once it is done, or the first has left or is dead.
#[test]
fn work_is_done_by_one_process_and_taken_over() {
    let Some(database) = Database::new() else { return };
    let (one, other) = (database.open(), database.open());
    let m = Maker::default();
    let key = m.key();
    assert!(one.leads("sweep").unwrap() && one.leads("sweep").unwrap() && !other.leads("sweep").unwrap());
    assert!(other.leads("index").unwrap(), "each job by itself");
    assert_eq!(one.take_work(&key).unwrap(), Some(0));
    assert_eq!(other.take_work(&key).unwrap(), None);
    let left = || other.work_left(&[(key.clone(), 5), (m.key(), 1)]).unwrap();
    assert_eq!(left(), [Work::Taken, Work::Free]);
    let done = |through, due: Option<i64>| Some(WorkDone { through, due: due.map(Timestamp) });
    // Ending what another has changes nothing.
    other.end_work(&key, done(9, None)).unwrap();
    one.end_work(&key, done(5, Some(70))).unwrap();
    assert_eq!(left(), [Work::Done, Work::Free]);
    assert_eq!(other.work_left(&[(key.clone(), 6)]).unwrap(), [Work::Free]);
    assert_eq!(other.due_work(Timestamp(69), 10).unwrap(), []);
    assert_eq!(other.due_work(Timestamp(70), 10).unwrap(), [key.clone()]);
    assert_eq!(other.take_work(&key).unwrap(), Some(5));
    other.end_work(&key, None).unwrap();
    assert_eq!(one.take_work(&key).unwrap(), Some(5));
    one.end_work(&key, done(2, None)).unwrap();
    assert_eq!(other.due_work(Timestamp(70), 10).unwrap(), []);
    one.forget_work().unwrap();
    assert_eq!(one.take_work(&key).unwrap(), Some(5), "not forgotten yet");
    // The first gives no sign any more. The other does, for long enough to judge.
    let began = Instant::now();
    while other.take_work(&key).unwrap().is_none() {
        other.news().unwrap();
        assert!(began.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(began.elapsed() >= Duration::from_secs(4), "a process is not taken for dead at once");
    assert!(other.leads("sweep").unwrap());
    // It may come back, but what was taken over stays so; a process that leaves gives all back at once.
    one.news().unwrap();
    assert!(one.take_work(&key).unwrap().is_none() && !one.leads("sweep").unwrap());
    drop(other);
    assert!(one.take_work(&key).unwrap().is_some() && one.leads("sweep").unwrap());
}

/// A server whose certificate is known, and one that is not the right one.
#[test]
fn connections_are_encrypted_and_certificates_are_checked() {
    let Ok(server) = std::env::var("EVERTURN_TEST_POSTGRES_TLS") else {
        eprintln!(
            "skipped: EVERTURN_TEST_POSTGRES_TLS names no PostgreSQL server with TLS; use ./test postgres"
        );
        return;
    };
    let (right, wrong) = (
        std::env::var("EVERTURN_TEST_CERTIFICATE").unwrap(),
        std::env::var("EVERTURN_TEST_OTHER_CERTIFICATE").unwrap(),
    );
    let encrypted =
        "SELECT 1 / (CASE WHEN ssl THEN 1 ELSE 0 END) FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    let with = |parameters: &str| postgres::run(&format!("{server}{parameters}"), encrypted);
    let by_address = |parameters: &str| {
        postgres::run(&format!("{}{parameters}", server.replace("localhost", "127.0.0.1")), encrypted)
    };
    let refused = |answer: Result<(), Error>, code: &str, says: &str| {
        let error = answer.unwrap_err();
        assert_eq!(error.code(), code, "{error}");
        assert!(error.to_string().contains(says), "{error}");
    };
    for parameters in ["", "&sslmode=prefer", "&sslmode=require", "&sslmode=require&channel_binding=require"]
    {
        with(parameters).unwrap();
    }
    for mode in ["require", "verify-ca", "verify-full"] {
        with(&format!("&sslmode={mode}&sslrootcert={right}")).unwrap();
        let other = with(&format!("&sslmode={mode}&sslrootcert={wrong}"));
        refused(other, "store.certificate", "is not trusted");
    }
    by_address(&format!("&sslmode=verify-ca&sslrootcert={right}")).unwrap();
    refused(
        by_address(&format!("&sslmode=verify-full&sslrootcert={right}")),
        "store.certificate",
        "the host as it is in the certificate",
    );
    refused(with("&sslmode=verify-full"), "store.certificate", "sslrootcert=FILE");
    refused(with("&sslmode=disable"), "store.query", "division by zero");
    refused(with("&sslmode=verify-ca"), "store.url", "sslrootcert=FILE");
    refused(with("&sslmode=always"), "store.url", "verify-full");
    refused(with("&sslmode=verify-full&sslrootcert=/nowhere"), "store.certificate", "/nowhere");
    // The whole store over an encrypted connection, with the one that listens.
    let store = Postgres::open(&format!("{server}&sslmode=verify-full&sslrootcert={right}")).unwrap();
    let m = Maker::default();
    let key = m.key();
    create(&store, &key, vec![m.created(), m.say("hello")]);
    assert_eq!(store.events(&key, 0, 10).unwrap().len(), 2);
    // A server without TLS.
    if let Ok(plain) = std::env::var("EVERTURN_TEST_POSTGRES") {
        refused(
            postgres::run(&plain.replace("sslmode=disable", "sslmode=require"), "SELECT 1"),
            "store.unreachable",
            "TLS",
        );
        postgres::run(&plain.replace("sslmode=disable", "sslmode=prefer"), "SELECT 1").unwrap();
    }
}
