//! Shared by several processes: places of assets, background work, encrypted connections.

use super::open;
use crate::places;
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::time::Timestamp;
use everturn_store::conformance::{Database, Maker, create, tenant};
use everturn_store::postgres::{self, Postgres};
use everturn_store::{Assets, CheckedLog, Leases, Work, WorkDone};
use std::sync::Arc;

mod assets {
    everturn_store::conformance!(assets |promise: fn(&dyn everturn_store::Assets)| {
        let Some(database) = super::Database::new() else { return };
        promise(&super::open(&database));
    });
}

/// Any id.
const ID: &str = "7e8dd9a5-3f6e-4a52-a9a0-5a35ed2d4e9b";

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
    let none = "SELECT 1 / (CASE WHEN EXISTS (SELECT 1 FROM asset_bytes) THEN 0 ELSE 1 END)";
    database.run(&format!("BEGIN; SET LOCAL everturn.tenants = '*'; {none}; COMMIT")).unwrap();
    refused(&at(&second), "assets.moved");
    // Another store may not use it.
    if let Some(other) = Database::new() {
        refused(&format!("{}&assets={first}", other.url()), "assets.taken");
        // Nor move there with assets in its database.
        let store = open(&other);
        store.put(&acme, sha256, b"bytes".to_vec()).unwrap();
        refused(&format!("{}&assets={second}", other.url()), "assets.moved");
    }
    // Copied with whatever tool, the place may change.
    let mark = there.path().join(".everturn-store");
    database.run(&format!("UPDATE store_identity SET id = '{ID}'")).unwrap();
    std::fs::write(mark, ID).unwrap();
    opened(&at(&second)).unwrap();
    opened(&database.url()).unwrap();
    drop(here);
}

/// Two processes and their work: one does it, the other once it is done or the first has left.
#[test]
fn work_is_done_by_one_process_and_taken_over() {
    let Some(database) = Database::new() else { return };
    let (one, other) = (open(&database), open(&database));
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
    assert_eq!(other.due_work(Timestamp(70), 10).unwrap(), std::slice::from_ref(&key));
    assert_eq!(other.take_work(&key).unwrap(), Some(5));
    other.end_work(&key, None).unwrap();
    assert_eq!(one.take_work(&key).unwrap(), Some(5));
    one.end_work(&key, done(2, None)).unwrap();
    assert_eq!(other.due_work(Timestamp(70), 10).unwrap(), []);
    one.forget_work().unwrap();
    assert_eq!(one.take_work(&key).unwrap(), Some(5), "not forgotten yet");
    // A process that leaves gives all back at once; one that dies, after some seconds (tested with a real one, in `engine`).
    assert!(other.take_work(&key).unwrap().is_none());
    drop(one);
    assert!(other.take_work(&key).unwrap().is_some() && other.leads("sweep").unwrap());
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
    let name = format!("tls_{}", std::process::id());
    postgres::run(&server, &format!("CREATE DATABASE {name}")).unwrap();
    let whole = server.replace("/postgres?", &format!("/{name}?"));
    let store = Postgres::open(&format!("{whole}&sslmode=verify-full&sslrootcert={right}")).unwrap();
    let m = Maker::default();
    let key = m.key();
    create(&store, &key, vec![m.created(), m.say("hello")]);
    assert_eq!(store.events(&key, 0, 10).unwrap().len(), 2);
    drop(store);
    postgres::run(&server, &format!("DROP DATABASE {name} WITH (FORCE)")).unwrap();
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
