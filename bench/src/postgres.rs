//! The store in PostgreSQL: appends against plain inserts of the same rows, and pages and contexts of a long
//! conversation against those of a short one.
//!
//! Server, nodes and writers share the processor, as they would not in earnest: what the plain inserts leave of it is all
//! that a second node can use. So the share of the processor is reported beside each rate.

use crate::append::{TURN_BYTES, WRITERS, append, compare, on_threads, repeat};
use crate::corpus::{self, Corpus, Words};
use crate::figures::{Samples, count};
use crate::report::Row;
use crate::{Result, Scale, context, read};
use everturn::Tenant;
use everturn_core::id::ConversationId;
use std::sync::Barrier;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls, Statement};

/// Columns of the rows that one append inserts, as plain tables. The bytes are those of the store.
const PLAIN: &str = "
    CREATE TABLE plain_events (tenant text, conversation bigint, seq bigint, id bytea, at bigint, kind text, actor text, role text,
        visibility text, body_hash bytea, hash bytea, salt bytea, body text, PRIMARY KEY (tenant, conversation, seq));
    CREATE TABLE plain_turns (tenant text, conversation bigint, seq bigint, id bytea, role text, status text, created bigint,
        place bigint, PRIMARY KEY (tenant, conversation, seq))";
const INSERT_EVENTS: &str = "INSERT INTO plain_events
    SELECT 'bench', c, s, $4, $5, 'message', NULL, 'user', 'public', $6, $6, $4, $3 FROM unnest($1::bigint[], $2::bigint[]) n (c, s)";
const INSERT_TURNS: &str = "INSERT INTO plain_turns
    SELECT 'bench', c, s, $3, 'user', 'complete', $4, s FROM unnest($1::bigint[], $2::bigint[]) n (c, s)";

pub fn run(server: &str, scale: Scale) -> Result<Vec<Row>> {
    let runtime = Runtime::new()?;
    let database = Database::create(&runtime, server)?;
    let mut rows = appends(&runtime, &database.url, scale)?;
    let [short, long] =
        [scale.short, scale.long].map(|turns| corpus::fill(&database.url, &Corpus::one(turns, 200)));
    let (short, long) = (short?, long?);
    runtime.block_on(async {
        Ok::<_, crate::Fault>(connect(&database.url).await?.batch_execute("VACUUM ANALYZE").await?)
    })?;
    rows.extend(read::run(&short, &long, scale)?);
    rows.extend(context::run(&short, &long, scale)?);
    Ok(rows)
}

fn appends(runtime: &Runtime, url: &str, scale: Scale) -> Result<Vec<Row>> {
    eprintln!("appends: {} rounds", scale.rounds);
    let nodes = [corpus::open(url)?, corpus::open(url)?];
    let tenants = [nodes[0].tenant("bench")?, nodes[1].tenant("bench")?];
    let one = corpus::begin(&tenants[0], 1)?[0];
    let many = corpus::begin(&tenants[0], WRITERS)?;
    let text = Words::default().text(TURN_BYTES);
    let slice = Duration::from_millis(scale.slice_ms);
    // How many appends a commit has with this many writers; the plain inserts get the same.
    on_threads(&tenants[0], &many, &text, slice)?;
    let client = runtime.block_on(connect(url))?;
    let mut plain = Plain::new(runtime, client)?;
    let batch = plain.batch_of_the_store()?;

    let (mut single, mut together, mut two, mut ignored): (Samples, Samples, Samples, Samples) =
        Default::default();
    let (mut floor_one, mut floor): (Samples, Samples) = Default::default();
    let (mut busy_floor, mut busy_one, mut busy_two): (Samples, Samples, Samples) = Default::default();
    for _ in 0..scale.rounds {
        floor_one.push(repeat(slice, &mut ignored, || plain.insert(1))?);
        single.push(repeat(slice, &mut ignored, || append(&tenants[0], one, &text))?);
        floor.push(
            batch as f64 * busy(&mut busy_floor, || repeat(slice, &mut ignored, || plain.insert(batch)))?,
        );
        together.push(busy(&mut busy_one, || on_threads(&tenants[0], &many, &text, slice))?);
        two.push(busy(&mut busy_two, || on_both(&tenants, &many, &text, slice))?);
    }
    let share = |of: &Samples| format!("{:.0} % of the processor", of.median() * 100.0);
    let name = format!("plain inserts, {batch} of a commit");
    Ok(vec![
        compare("durable append, 1 writer, 1 KiB", &single, &floor_one, "plain inserts, one of a commit"),
        compare("durable append, one node, 64 writers on 64 conversations", &together, &floor, &name)
            .at_least(0.7),
        compare("two nodes, 32 writers on 32 conversations each", &two, &together, "one node").at_least(1.5),
        Row::new(
            "share of the processor, one node",
            share(&busy_one),
            format!("{} plain inserts", share(&busy_floor)),
        ),
        Row::new("share of the processor, two nodes", share(&busy_two), ""),
        Row::new("appends of one commit, 64 writers", count(batch as f64), ""),
    ])
}

/// The same number of writers, half of them on each node, each with its own conversations.
fn on_both(nodes: &[Tenant; 2], ids: &[ConversationId], text: &str, slice: Duration) -> Result<f64> {
    let (here, there) = ids.split_at(ids.len() / 2);
    let ready = Barrier::new(2);
    std::thread::scope(|threads| {
        let other = threads.spawn(|| {
            ready.wait();
            on_threads(&nodes[1], there, text, slice)
        });
        ready.wait();
        let rate = on_threads(&nodes[0], here, text, slice)?;
        Ok(rate + other.join().map_err(|_| "a writer panicked")??)
    })
}

/// Notes the share of all processors that was used meanwhile, by anybody.
fn busy<T>(shares: &mut Samples, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let (started, before) = (Instant::now(), used_by_all());
    let done = work()?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    if let (Some(before), Some(after)) = (before, used_by_all()) {
        shares.push((after - before) / started.elapsed().as_secs_f64() / cores);
    }
    Ok(done)
}

/// Processor time of the whole machine in seconds, if known.
fn used_by_all() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let ticks: Vec<f64> =
        stat.lines().next()?.split_whitespace().skip(1).map_while(|field| field.parse().ok()).collect();
    let idle = ticks.get(3)? + ticks.get(4)?;
    // Of the first eight; the others are part of these. A tick is 10 ms.
    Some((ticks.iter().take(8).sum::<f64>() - idle) / 100.0)
}

/// Inserts without any rule, chain or index beyond the primary keys: events and turns in one transaction.
struct Plain<'a> {
    runtime: &'a Runtime,
    client: Client,
    events: Statement,
    turns: Statement,
    body: String,
    seq: i64,
}

impl Plain<'_> {
    fn new(runtime: &Runtime, client: Client) -> Result<Plain<'_>> {
        let made = runtime.block_on(async {
            client.batch_execute(PLAIN).await?;
            client.batch_execute("SET everturn.tenants = '*'").await?;
            let body =
                client.query_one("SELECT body FROM events WHERE kind = 'message' LIMIT 1", &[]).await?.get(0);
            Ok::<_, tokio_postgres::Error>((
                client.prepare(INSERT_EVENTS).await?,
                client.prepare(INSERT_TURNS).await?,
                body,
            ))
        });
        let (events, turns, body) = made?;
        Ok(Plain { runtime, client, events, turns, body, seq: 0 })
    }

    /// The mean number of events in a commit of the store.
    fn batch_of_the_store(&self) -> Result<usize> {
        let sql = "SELECT (count(*) / count(DISTINCT xmin::text))::bigint FROM events WHERE kind = 'message'";
        let row = self.runtime.block_on(self.client.query_one(sql, &[]))?;
        Ok(usize::try_from(row.get::<_, i64>(0))?.max(1))
    }

    /// One commit of this many turns, each in another conversation.
    fn insert(&mut self, count: usize) -> Result<()> {
        self.seq += 1;
        let conversations: Vec<i64> = (0..count as i64).collect();
        let seqs = vec![self.seq; count];
        let (id, hash, at) = ([7u8; 16].to_vec(), [7u8; 32].to_vec(), self.seq);
        let events: [&(dyn tokio_postgres::types::ToSql + Sync); 6] =
            [&conversations, &seqs, &self.body, &id, &at, &hash];
        let turns: [&(dyn tokio_postgres::types::ToSql + Sync); 4] = [&conversations, &seqs, &id, &at];
        self.runtime.block_on(async {
            // Sent without waiting in between.
            let (begun, events, turns, done) = tokio::join!(
                self.client.batch_execute("BEGIN"),
                self.client.execute(&self.events, &events),
                self.client.execute(&self.turns, &turns),
                self.client.batch_execute("COMMIT"),
            );
            begun.and(events.map(drop)).and(turns.map(drop)).and(done)
        })?;
        Ok(())
    }
}

/// A database of its own, dropped at the end.
struct Database<'a> {
    runtime: &'a Runtime,
    server: String,
    name: String,
    url: String,
}

impl Database<'_> {
    fn create<'a>(runtime: &'a Runtime, server: &str) -> Result<Database<'a>> {
        let name = format!("everturn_bench_{}", std::process::id());
        let (front, options) =
            server.split_once('?').map_or((server, ""), |(front, options)| (front, options));
        let (host, _) = front
            .rsplit_once('/')
            .filter(|(host, _)| host.contains("//") && !host.ends_with('/'))
            .ok_or("the URL names no database: postgres://USER@HOST/DATABASE")?;
        let url = format!("{host}/{name}?{options}");
        let client = runtime.block_on(connect(server))?;
        runtime.block_on(client.batch_execute(&format!("CREATE DATABASE {name}")))?;
        Ok(Database { runtime, server: server.to_string(), name, url })
    }
}

impl Drop for Database<'_> {
    fn drop(&mut self) {
        let dropped = self.runtime.block_on(async {
            let client = connect(&self.server).await?;
            Ok::<_, crate::Fault>(
                client.batch_execute(&format!("DROP DATABASE {} WITH (FORCE)", self.name)).await?,
            )
        });
        if let Err(error) = dropped {
            eprintln!("the database {} is left over: {error}", self.name);
        }
    }
}

async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}
