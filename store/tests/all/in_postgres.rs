//! The promises, on the PostgreSQL server at the URL in `EVERTURN_TEST_POSTGRES`. Each has a schema of its own
//! there.

use everturn_store::conformance::Backend;
use everturn_store::postgres::Postgres;
use std::sync::atomic::{AtomicU32, Ordering};

static SCHEMAS: AtomicU32 = AtomicU32::new(0);

/// Runs a promise, or reports that it is skipped.
fn kept(promise: fn(&dyn Backend)) {
    let Ok(url) = std::env::var("EVERTURN_TEST_POSTGRES") else {
        eprintln!("skipped: EVERTURN_TEST_POSTGRES names no PostgreSQL server");
        return;
    };
    let schema = format!("promise_{}_{}", std::process::id(), SCHEMAS.fetch_add(1, Ordering::SeqCst));
    let admin = |sql: String| everturn_store::postgres::run(&url, &sql).unwrap();
    admin(format!("CREATE SCHEMA {schema}"));
    let and = if url.contains('?') { '&' } else { '?' };
    let store = Postgres::open(&format!("{url}{and}options=-csearch_path%3D{schema}")).unwrap();
    promise(&store);
    drop(store);
    admin(format!("DROP SCHEMA {schema} CASCADE"));
}

// Recall is not there yet.
everturn_store::conformance!(log kept);

/// Two processes (here: two stores with connections of their own) append to one conversation at once: one
/// order, no gap, nothing lost, and a key that both send is answered once.
#[test]
fn two_writers_give_one_order() {
    use everturn_core::chain::Hash;
    use everturn_core::write::{Action, Idempotency, Write};
    use everturn_store::conformance::{Maker, create};
    use everturn_store::{CheckedLog, Log};
    let Ok(url) = std::env::var("EVERTURN_TEST_POSTGRES") else {
        eprintln!("skipped: EVERTURN_TEST_POSTGRES names no PostgreSQL server");
        return;
    };
    let schema = format!("writers_{}", std::process::id());
    let admin = |sql: String| everturn_store::postgres::run(&url, &sql).unwrap();
    admin(format!("CREATE SCHEMA {schema}"));
    let and = if url.contains('?') { '&' } else { '?' };
    let url_of_schema = format!("{url}{and}options=-csearch_path%3D{schema}");
    // Opened at once: one of them creates the tables.
    let stores: Vec<Postgres> = std::thread::scope(|scope| {
        let opening: Vec<_> =
            (0..4).map(|_| scope.spawn(|| Postgres::open(&url_of_schema).unwrap())).collect();
        opening.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let m = Maker::default();
    let (one, other) = (m.key(), m.key());
    create(&stores[0], &one, vec![m.created()]);
    create(&stores[1], &other, vec![m.created()]);
    let batches: Vec<Vec<Vec<Write>>> = (0..4)
        .map(|writer| {
            (0..25)
                .map(|round| {
                    // In both orders of conversations, so that locks taken in that order would deadlock.
                    let mut keys = vec![&one, &other];
                    if writer % 2 == 0 {
                        keys.reverse();
                    }
                    let write = |key: &everturn_core::id::Key| {
                        let name = format!("round {round}");
                        let idempotency =
                            Idempotency { request: Hash::of(name.as_bytes()), key: name, only_repeat: None };
                        let action = |idempotency| Action::Append {
                            drafts: vec![m.say("hello")],
                            expected_seq: None,
                            idempotency,
                        };
                        [None, Some(idempotency)]
                            .map(|asked| Write { key: key.clone(), action: action(asked) })
                    };
                    keys.into_iter().flat_map(write).collect()
                })
                .collect()
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
    drop(stores);
    admin(format!("DROP SCHEMA {schema} CASCADE"));
}
