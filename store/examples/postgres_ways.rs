//! Ways to reach PostgreSQL from sync traits, measured with the same statements and the same rows of 1 KiB:
//! `EVERTURN_TEST_POSTGRES=postgresql://… cargo run --release --example postgres_ways --features postgres-ways,conformance`
#![allow(clippy::unwrap_used, reason = "a measurement that cannot go on should stop where it stands")]

use everturn_core::write::{Action, Write};
use everturn_store::Log;
use everturn_store::conformance::Maker;
use everturn_store::postgres::Postgres;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, NoTls, Statement};

const SQL: [&str; 5] = [
    "SELECT pg_advisory_xact_lock(name) FROM unnest($1::bigint[]) AS l (name)",
    "SELECT no, row FROM conversation_rows WHERE no = ANY ($1::bigint[])",
    "INSERT INTO events (conversation, seq, id, at, kind, visibility, body_hash, hash, salt, body)
     SELECT no, $2::bigint, $3::bytea, $2, 'message', 'public', $3, $3, $3, $4::text FROM unnest($1::bigint[]) AS c (no)",
    "INSERT INTO turn_rows (conversation, seq, id, role, status, created)
     SELECT no, $2::bigint, $3::bytea, 'user', 'complete', $2 FROM unnest($1::bigint[]) AS c (no)",
    "UPDATE conversation_rows SET updated = $2::bigint, row = $3::text WHERE no = ANY ($1::bigint[])",
];
const WARM: usize = 30;
const FOR: Duration = Duration::from_secs(3);

/// One batch: one event in each of these conversations.
struct Batch {
    nos: Vec<i64>,
    seq: i64,
    hash: Vec<u8>,
    body: String,
    row: String,
}

impl Batch {
    fn params(&self) -> [Vec<&(dyn ToSql + Sync)>; 5] {
        let Batch { nos, seq, hash, body, row } = self;
        [vec![nos], vec![nos], vec![nos, seq, hash, body], vec![nos, seq, hash], vec![nos, seq, row]]
    }
}

static SEQ: AtomicI64 = AtomicI64::new(1_000_000);

fn batch(from: i64, group: usize) -> Batch {
    Batch {
        nos: (from..from + group as i64).collect(),
        seq: SEQ.fetch_add(1, Ordering::SeqCst),
        hash: vec![7; 32],
        body: "x".repeat(1024),
        row: "y".repeat(500),
    }
}

fn measure(name: &str, group: usize, mut commit: impl FnMut(usize)) {
    (0..WARM).for_each(&mut commit);
    let (begun, mut times) = (Instant::now(), Vec::new());
    while begun.elapsed() < FOR {
        let one = Instant::now();
        commit(times.len());
        times.push(one.elapsed());
    }
    report(name, group, times, begun.elapsed());
}

fn report(name: &str, group: usize, mut times: Vec<Duration>, whole: Duration) {
    times.sort();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_micros();
    let rate = (times.len() * group) as f64 / whole.as_secs_f64();
    println!("{name:<44} {group:>3}  {:>7} µs  {:>7} µs  {rate:>9.0} writes/s", at(0.5), at(0.99));
}

/// (a) The sync client: a round trip for each statement.
fn sync_client(url: &str, from: i64, group: usize) -> impl FnMut(usize) + use<> {
    let mut client = postgres::Client::connect(url, postgres::NoTls).unwrap();
    let statements = SQL.map(|sql| client.prepare(sql).unwrap());
    move |_| {
        let batch = batch(from, group);
        let mut transaction = client.transaction().unwrap();
        for (statement, params) in statements.iter().zip(batch.params()) {
            transaction.query(statement, &params).unwrap();
        }
        transaction.commit().unwrap();
    }
}

async fn connect(url: &str) -> (Client, Vec<Statement>) {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    let mut statements = Vec::new();
    for sql in SQL {
        statements.push(client.prepare(sql).await.unwrap());
    }
    (client, statements)
}

/// Sends one statement after the other.
async fn one_by_one(client: &Client, statements: &[Statement], batch: Batch) {
    client.batch_execute("BEGIN").await.unwrap();
    for (statement, params) in statements.iter().zip(batch.params()) {
        client.query(statement, &params).await.unwrap();
    }
    client.batch_execute("COMMIT").await.unwrap();
}

/// Two round trips: begin, lock and read; then write and commit.
async fn pipelined(client: &Client, statements: &[Statement], batch: Batch) {
    let [lock, read, events, turns, rows] = batch.params();
    let (begun, locked, found) = futures_util::join!(
        client.batch_execute("BEGIN"),
        client.query(&statements[0], &lock),
        client.query(&statements[1], &read)
    );
    begun.unwrap();
    locked.unwrap();
    found.unwrap();
    let (events, turns, rows, committed) = futures_util::join!(
        client.query(&statements[2], &events),
        client.query(&statements[3], &turns),
        client.query(&statements[4], &rows),
        client.batch_execute("COMMIT")
    );
    events.unwrap();
    turns.unwrap();
    rows.unwrap();
    committed.unwrap();
}

/// A thread with a runtime, as a backend would own it.
fn runtime() -> tokio::runtime::Handle {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let handle = runtime.handle().clone();
    std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
    handle
}

/// Runs a future as a task of the runtime and waits for its result on a channel.
fn by_channel<T: Send + 'static>(
    handle: &tokio::runtime::Handle,
    future: impl Future<Output = T> + Send + 'static,
) -> T {
    let (send, receive) = std::sync::mpsc::sync_channel(1);
    handle.spawn(async move {
        let _ = send.send(future.await);
    });
    receive.recv().unwrap()
}

/// Runs all ways in turn, a little at a time, so that other load on the machine affects them all.
fn in_turn(url: &str, group: usize) {
    let handle = runtime();
    let open = || {
        let (client, statements) = by_channel(&handle, {
            let url = url.to_string();
            async move { connect(&url).await }
        });
        (Arc::new(client), Arc::new(statements))
    };
    let new = move || batch(100_000, group);
    let mut ways: Vec<(&str, Box<dyn FnMut(usize) + '_>, Vec<Duration>)> = Vec::new();
    ways.push((
        "(a) sync client, a trip a statement",
        Box::new(sync_client(url, 100_000, group)),
        Vec::new(),
    ));
    let (client, statements) = open();
    ways.push((
        "(b1) task and channel, a trip a statement",
        Box::new({
            let (client, statements, handle) = (client.clone(), statements.clone(), handle.clone());
            move |_| {
                let (client, statements) = (client.clone(), statements.clone());
                by_channel(&handle, async move { one_by_one(&client, &statements, new()).await });
            }
        }),
        Vec::new(),
    ));
    ways.push((
        "(b1) task and channel, two trips",
        Box::new({
            let (client, statements, handle) = (client.clone(), statements.clone(), handle.clone());
            move |_| {
                let (client, statements) = (client.clone(), statements.clone());
                by_channel(&handle, async move { pipelined(&client, &statements, new()).await });
            }
        }),
        Vec::new(),
    ));
    ways.push((
        "(b2) caller drives, a trip a statement",
        Box::new({
            let (client, statements) = (client.clone(), statements.clone());
            move |_| {
                everturn_store::postgres::drive(one_by_one(&client, &statements, new()));
            }
        }),
        Vec::new(),
    ));
    ways.push((
        "(b2) caller drives, two trips",
        Box::new(move |_| {
            everturn_store::postgres::drive(pipelined(&client, &statements, new()));
        }),
        Vec::new(),
    ));
    let inside = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (client, statements) = inside.block_on(connect(url));
    ways.push((
        "(c) async to the top, two trips",
        Box::new(move |_| inside.block_on(pipelined(&client, &statements, new()))),
        Vec::new(),
    ));
    for round in 0..12 {
        for (_, commit, times) in &mut ways {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(150) {
                let one = Instant::now();
                commit(0);
                // The first round warms up.
                if round > 0 {
                    times.push(one.elapsed());
                }
            }
        }
    }
    for (name, _, times) in ways {
        let whole = times.iter().sum();
        report(name, group, times, whole);
    }
}

/// The same server behind a proxy that delays every packet by half a millisecond.
fn delayed(url: &str) -> String {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    let address = url.split('@').nth(1).unwrap().split('/').next().unwrap().to_string();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = listener.local_addr().unwrap().to_string();
    let there = address.clone();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (client, server) = (client.unwrap(), TcpStream::connect(&there).unwrap());
            client.set_nodelay(true).unwrap();
            server.set_nodelay(true).unwrap();
            let both = [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)];
            for (mut from, mut to) in both {
                let (send, receive) = std::sync::mpsc::channel::<(Instant, Vec<u8>)>();
                std::thread::spawn(move || {
                    let mut bytes = vec![0; 1 << 18];
                    while let Ok(count @ 1..) = from.read(&mut bytes) {
                        if send
                            .send((Instant::now() + Duration::from_micros(500), bytes[..count].to_vec()))
                            .is_err()
                        {
                            break;
                        }
                    }
                });
                std::thread::spawn(move || {
                    for (due, bytes) in receive {
                        std::thread::sleep(due.saturating_duration_since(Instant::now()));
                        if to.write_all(&bytes).is_err() {
                            break;
                        }
                    }
                });
            }
        }
    });
    url.replace(&address, &near)
}

fn main() {
    let url = std::env::var("EVERTURN_TEST_POSTGRES").expect("EVERTURN_TEST_POSTGRES names a server");
    let schema = format!("ways_{}", std::process::id());
    everturn_store::postgres::run(&url, &format!("CREATE SCHEMA {schema}")).unwrap();
    let url = format!("{url}?options=-csearch_path%3D{schema}");
    let store = Postgres::open(&url).unwrap();
    everturn_store::postgres::run(
        &url,
        "INSERT INTO conversation_rows (no, tenant, id, state, updated, row)
         SELECT no, 'bench', decode(lpad(to_hex(no), 32, '0'), 'hex'), 'active', 0, '' FROM generate_series(100000, 101000) AS g (no)",
    )
    .unwrap();
    println!("one connection, {:<28} {:>3}  {:>10}  {:>10}", "loopback", "in", "median", "99 %");
    [1, 16, 64].into_iter().for_each(|group| in_turn(&url, group));
    println!("\none connection, a millisecond there and back");
    let far = delayed(&url);
    [1, 16, 64].into_iter().for_each(|group| in_turn(&far, group));
    println!("\n8 writers at once, each with a connection and conversations of its own");
    for group in [1, 16] {
        let all = |name: &str, start: &(dyn Fn(i64) -> Box<dyn FnMut(usize) + Send> + Sync)| {
            let begun = Instant::now();
            let times: Vec<Duration> = std::thread::scope(|scope| {
                let writers: Vec<_> = (0..8)
                    .map(|writer| {
                        scope.spawn(move || {
                            let mut commit = start(100_000 + writer * 64);
                            let (begun, mut times) = (Instant::now(), Vec::new());
                            while begun.elapsed() < FOR {
                                let one = Instant::now();
                                commit(0);
                                times.push(one.elapsed());
                            }
                            times
                        })
                    })
                    .collect();
                writers.into_iter().flat_map(|one| one.join().unwrap()).collect()
            });
            report(name, group, times, begun.elapsed());
        };
        all("(a) sync client, a trip a statement", &|from| Box::new(sync_client(&url, from, group)));
        let handle = runtime();
        let open = || {
            let (client, statements) = by_channel(&handle, {
                let url = url.clone();
                async move { connect(&url).await }
            });
            (Arc::new(client), Arc::new(statements))
        };
        all("(b1) task and channel, two trips", &|from| {
            let (handle, (client, statements)) = (handle.clone(), open());
            Box::new(move |_| {
                let (client, statements) = (client.clone(), statements.clone());
                by_channel(&handle, async move { pipelined(&client, &statements, batch(from, group)).await });
            })
        });
        all("(b2) caller drives, two trips", &|from| {
            let (client, statements) = open();
            Box::new(move |_| {
                everturn_store::postgres::drive(pipelined(&client, &statements, batch(from, group)))
            })
        });
    }
    println!("\nthe store itself: Log::commit, one thread, core plans, hashes and rows included");
    let m = Maker::default();
    let keys: Vec<_> = (0..64).map(|_| m.key()).collect();
    for key in &keys {
        everturn_store::conformance::create(&store, key, vec![m.created()]);
    }
    let text = "x".repeat(1024);
    for group in [1, 16, 64] {
        measure("Postgres, one write a conversation", group, |_| {
            let write = |key: &everturn_core::id::Key| Write {
                key: key.clone(),
                action: Action::Append { drafts: vec![m.say(&text)], expected_seq: None, idempotency: None },
            };
            for answer in store.commit(keys.iter().take(group).map(write).collect()) {
                answer.unwrap();
            }
        });
    }
    // A request is served by a task: shows what happens to a sync client inside a runtime.
    let inside = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        inside.block_on(async { drop(postgres::Client::connect(&url, postgres::NoTls).map(drop)) })
    }));
    println!("\nsync client inside a runtime: {}", if panicked.is_err() { "panics" } else { "works" });
    let works = inside.block_on(async { store.ready().is_ok() });
    println!("the store inside a runtime: {}", if works { "works" } else { "fails" });
    drop(store);
    everturn_store::postgres::run(url.split('?').next().unwrap(), &format!("DROP SCHEMA {schema} CASCADE"))
        .unwrap();
}
