//! The store in PostgreSQL: appends against plain inserts of the same rows, pages and contexts of a long conversation
//! against those of a short one, recall, and the bytes of all this.
//!
//! Server, nodes and writers share the processor, as they would not in earnest: what one node and the server leave of it
//! is all that a second node can use. So the processor time of an append is reported beside its rate.

use crate::append::{TURN_BYTES, WRITERS, append, as_tasks, compare, on_threads, repeat};
use crate::corpus::{self, Corpus, Words};
use crate::figures::{Samples, bytes, count, time};
use crate::place::processor_time;
use crate::report::Row;
use crate::{Result, Scale, context, nodes, read, recall};
use everturn_core::id::ConversationId;
use everturn_engine::model::BuiltinEmbedder;
use everturn_engine::{Everturn, Options, RecallMode, Tenant};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, NoTls, Statement};

/// Number of turns that recall searches.
const RECALLED_TURNS: u64 = 100_000;
/// Number of appends that are timed to a subscriber on the other node.
const FOLLOWED: usize = 200;
const PATIENCE: Duration = Duration::from_secs(600);

/// Tables with the columns of the store's, and nothing beyond the primary keys.
const BARE: &str = "
    CREATE TABLE bare_events (LIKE events INCLUDING DEFAULTS, PRIMARY KEY (tenant, conversation, seq));
    CREATE TABLE bare_turn_rows (LIKE turn_rows INCLUDING DEFAULTS, PRIMARY KEY (tenant, conversation, seq));
    CREATE TABLE bare_conversation_rows (LIKE conversation_rows INCLUDING DEFAULTS, PRIMARY KEY (tenant, no)) WITH (fillfactor = 70)";

pub fn run(server: &str, scale: Scale, only_appends: bool) -> Result<Vec<Row>> {
    let runtime = Runtime::new()?;
    let mut rows = {
        let database = Database::create(&runtime, server, "log")?;
        let mut rows = vec![database.settings()?];
        rows.extend(appends(&database, &Database::create(&runtime, server, "plain")?, scale)?);
        if only_appends {
            return Ok(rows);
        }
        rows.extend(lengths(&database, scale)?);
        rows
    };
    let database = Database::create(&runtime, server, "recall")?;
    rows.extend(recalls(&database, RECALLED_TURNS.min(scale.long / 2))?);
    Ok(rows)
}

/// Two servers, each in a process of its own.
pub fn servers(server: &str, scale: Scale) -> Result<Vec<Row>> {
    let runtime = Runtime::new()?;
    let database = Database::create(&runtime, server, "servers")?;
    // Makes the tables, and leaves.
    drop(corpus::open(&database.url)?);
    Ok(vec![database.settings()?, nodes::run(&database.url, scale)?])
}

fn appends(database: &Database<'_>, for_plain: &Database<'_>, scale: Scale) -> Result<Vec<Row>> {
    eprintln!("appends: {} rounds", scale.rounds);
    let node = node_for_appends(&database.url)?;
    let tenant = node.tenant("bench")?;
    let one = corpus::begin(&tenant, 1)?[0];
    let many = corpus::begin(&tenant, WRITERS)?;
    let text = Words::default().text(TURN_BYTES);
    let slice = Duration::from_millis(scale.slice_ms);
    // How many appends a commit has with this many writers; the plain inserts get the same.
    on_threads(&tenant, &many, &text, slice)?;
    let batch = database.batch()?;
    // Makes the tables, and leaves.
    drop(corpus::open(&for_plain.url)?);
    for_plain.run(BARE)?;
    let written = database.written()?;
    let mut bare = Plain::new(for_plain, "bare_", written.clone())?;
    let mut same = Plain::new(for_plain, "", written)?;

    let [mut single, mut threads, mut tasks, mut two, mut latency]: [Samples; 5] = Default::default();
    let [mut floor_one, mut floor, mut floor_bare, mut ignored]: [Samples; 4] = Default::default();
    let [mut cost_floor, mut cost_bare, mut cost_threads, mut cost_tasks, mut cost_two]: [Cost; 5] =
        Default::default();
    let (mut log_bytes, mut logged) = (0, 0.0);
    for _ in 0..scale.rounds {
        floor_one.push(repeat(slice, &mut ignored, || same.write(1))?);
        single.push(repeat(slice, &mut latency, || append(&tenant, one, &text))?);
        let mut batches =
            |plain: &mut Plain<'_>| Ok(batch as f64 * repeat(slice, &mut ignored, || plain.write(batch))?);
        floor_bare.push(cost_bare.of(|| batches(&mut bare))?);
        floor.push(cost_floor.of(|| batches(&mut same))?);
        let (began, position) = (Instant::now(), database.log_position()?);
        let rate = cost_threads.of(|| on_threads(&tenant, &many, &text, slice))?;
        logged += rate * began.elapsed().as_secs_f64();
        log_bytes += database.log_position()? - position;
        threads.push(rate);
        tasks.push(cost_tasks.of(|| as_tasks(&tenant, &many, &text, slice))?);
    }
    // A node hears of every commit, so the second one comes only now.
    let second = node_for_appends(&database.url)?;
    let nodes = [tenant, second.tenant("bench")?];
    for _ in 0..scale.rounds {
        two.push(cost_two.of(|| on_both(&nodes, &many, &text, slice))?);
    }
    let batches = |tables: &str| format!("plain inserts into {tables}, {batch} of a commit");
    let cost = |what: &str, cost: &Cost| {
        let Cost { here, elsewhere, share } = cost;
        let parts = format!("{} in clients, {} in PostgreSQL", time(here.median()), time(elsewhere.median()));
        Row::new(
            format!("processor time of an append, {what}"),
            time(here.median() + elsewhere.median()),
            format!("{parts}; {:.0} % of the processor in use", share.median() * 100.0),
        )
    };
    // As on SQLite, the faster way counts.
    let is_faster = threads.median() > tasks.median();
    let (together, cost_one) = if is_faster { (&threads, &cost_threads) } else { (&tasks, &cost_tasks) };
    let mut rows = vec![
        compare("durable append, 1 writer, 1 KiB", &single, &floor_one, "plain inserts, one of a commit"),
        Row::new(
            "time of one, 1 writer",
            format!("p50 {}, p99 {}", time(latency.median()), time(latency.at(0.99))),
            "",
        ),
        compare(
            "durable append, one node, 64 writers on 64 conversations",
            together,
            &floor,
            &batches("the same tables"),
        )
        .at_least(0.7),
        compare("64 threads", &threads, &floor, &batches("the same tables")),
        compare("64 async tasks on one thread", &tasks, &floor, &batches("the same tables")),
        compare(
            "the same against tables with primary keys only",
            together,
            &floor_bare,
            &batches("bare tables"),
        ),
        compare("two nodes, 32 writers on 32 conversations each", &two, &threads, "one node, 64 threads")
            .at_least(1.5),
        cost("plain, bare tables", &cost_bare),
        cost("plain, the same tables", &cost_floor),
        cost("one node, 64 threads", &cost_threads),
        cost("one node, 64 async tasks", &cost_tasks),
        cost("two nodes", &cost_two),
        // On a machine of its own, the database does as many appends as its processor allows.
        Row::new(
            "processor time of an append in PostgreSQL alone, one node, 64 writers",
            time(cost_one.elsewhere.median()),
            format!("{} plain, the same tables", time(cost_floor.elsewhere.median())),
        )
        .ratios(&cost_one.elsewhere.over(&cost_floor.elsewhere))
        .at_most(1.4),
        Row::new("appends of one commit, 64 writers", count(batch as f64), ""),
        Row::new(
            "write-ahead log of an append of 1 KiB, 64 writers",
            bytes((log_bytes as f64 / logged) as u64),
            "",
        ),
    ];
    rows.push(followed(&nodes, one, &text)?);
    Ok(rows)
}

/// Its appends are not compacted: that would be done while the plain inserts are timed, and slow them.
fn node_for_appends(url: &str) -> Result<Everturn> {
    Ok(Everturn::open_with(url, Options { auto_compaction: false, ..corpus::options() })?)
}

/// From an append on one node to its event at a subscriber of the other.
fn followed(nodes: &[Tenant; 2], id: ConversationId, text: &str) -> Result<Row> {
    let (mut appended, mut arrived) = (Samples::default(), Samples::default());
    let head = nodes[0].conversation(id).get()?.head.seq;
    let mut subscription = nodes[1].conversation(id).subscribe(head)?;
    for _ in 0..FOLLOWED {
        let began = Instant::now();
        append(&nodes[0], id, text)?;
        appended.push_time(began.elapsed());
        if subscription.recv_timeout(PATIENCE)?.is_none() {
            return Err("an event did not reach the other node".into());
        }
        arrived.push_time(began.elapsed());
    }
    let show = |of: &Samples| format!("p50 {}, p99 {}", time(of.median()), time(of.at(0.99)));
    let row = Row::new(
        "from an append to its event at a subscriber of the other node",
        show(&arrived),
        format!("{} until the append is answered", show(&appended)),
    );
    Ok(row.ratio(arrived.median() / appended.median()))
}

/// A long conversation against a short one.
fn lengths(database: &Database<'_>, scale: Scale) -> Result<Vec<Row>> {
    let before = database.bytes()?;
    let [short, long] =
        [scale.short, scale.long].map(|turns| corpus::fill(&database.url, &Corpus::one(turns, 200)));
    let (short, long) = (short?, long?);
    database.run("VACUUM ANALYZE")?;
    let each = database.bytes()?.saturating_sub(before) / (short.turns + long.turns);
    let json = short.json_bytes()? / short.turns;
    let size = Row::new("a turn of 200 B in the database", bytes(each), format!("{} as JSON", bytes(json)));
    let mut rows = vec![size.ratio(each as f64 / json as f64)];
    rows.extend(read::run(&short, &long, scale)?);
    rows.extend(context::run(&short, &long, scale)?);
    Ok(rows)
}

/// Indexing and asking, by words and by both.
fn recalls(database: &Database<'_>, turns: u64) -> Result<Vec<Row>> {
    let of = count(turns as f64);
    eprintln!("recall: filling {of} turns");
    let (filled, sampled) = recall::fill(&database.url, turns, recall::CONVERSATION_TURNS)?;
    database.run("VACUUM ANALYZE")?;
    let log = database.bytes()?;
    let json = filled.json_bytes()?;
    let store = recall::open(&database.url, false, Some(Arc::new(BuiltinEmbedder::new())))?;
    let mut rows = vec![recall::indexed(&store, turns)?];
    let began = Instant::now();
    // Everything has its vector, so this only makes the index of vectors.
    store.embed_now(PATIENCE)?;
    rows.push(Row::new(
        format!("making the index of vectors of {of} turns"),
        format!("{:.1} s", began.elapsed().as_secs_f64()),
        "",
    ));
    database.run("VACUUM ANALYZE")?;
    let whole = database.bytes()?;
    let show = |total: u64| format!("{}, {} a turn", bytes(total), bytes(total / turns));
    for (what, total) in [("store", log), ("store, words and vectors", whole)] {
        let row = Row::new(format!("{what} of {of} turns"), show(total), format!("{} as JSON", show(json)));
        rows.push(row.ratio(total as f64 / json as f64));
    }
    for mode in [RecallMode::Lexical, RecallMode::Hybrid] {
        for kind in recall::kinds(&sampled) {
            rows.push(recall::asked(&store, &of, mode, &kind)?);
        }
    }
    Ok(rows)
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

/// Processor time of one append, in each round.
#[derive(Default)]
struct Cost {
    /// In this process: nodes and writers.
    here: Samples,
    /// In all others: on a quiet machine, in PostgreSQL.
    elsewhere: Samples,
    /// Share of all processors in use.
    share: Samples,
}

impl Cost {
    /// Notes the cost of appends, whose rate is returned.
    fn of(&mut self, appends: impl FnOnce() -> Result<f64>) -> Result<f64> {
        let (started, here, all) = (Instant::now(), processor_time(), used_by_all());
        let rate = appends()?;
        let (took, here) = (started.elapsed().as_secs_f64(), (processor_time() - here).as_secs_f64());
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        if let (Some(before), Some(after)) = (all, used_by_all()) {
            self.here.push(here / (rate * took));
            self.elsewhere.push((after - before - here).max(0.0) / (rate * took));
            self.share.push((after - before) / took / cores);
        }
        Ok(rate)
    }
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

/// Texts as the store writes them.
#[derive(Clone)]
struct Written {
    /// Of an event,
    body: String,
    /// and of a conversation.
    row: String,
}

/// Writes the rows of appends as a program without any rule would: all of a batch in one transaction and one round trip.
struct Plain<'a> {
    runtime: &'a Runtime,
    client: &'a Client,
    events: Statement,
    turns: Statement,
    conversations: Statement,
    written: Written,
    seq: i64,
}

impl Plain<'_> {
    /// Into the store's own tables, or with `bare_` into others.
    fn new<'a>(database: &'a Database<'_>, prefix: &str, written: Written) -> Result<Plain<'a>> {
        let Database { runtime, client, .. } = database;
        let begin = format!(
            "INSERT INTO {prefix}conversation_rows (tenant, no, id, state, updated, said, head_seq, row)
             SELECT 'plain', -n, decode(md5(n::text), 'hex'), 'active', 0, 0, 0, '' FROM generate_series(1, {WRITERS}) n"
        );
        let events = format!(
            "INSERT INTO {prefix}events (tenant, conversation, seq, id, at, kind, role, visibility, body_hash, hash, salt, body)
             SELECT 'plain', no, seq, id, $7, 'message', 'user', 'public', hash, hash, id, body
             FROM unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::bytea[], $5::text[], $6::bytea[]) n (no, seq, id, hash, body, salt)"
        );
        let turns = format!(
            "INSERT INTO {prefix}turn_rows (tenant, conversation, seq, id, role, status, created, place)
             SELECT 'plain', no, seq, id, 'user', 'complete', $4, seq FROM unnest($1::bigint[], $2::bigint[], $3::bytea[]) n (no, seq, id)"
        );
        let conversations = format!(
            "UPDATE {prefix}conversation_rows c SET updated = $4, said = $4, head_seq = n.seq, row = n.row, changed = pg_current_xact_id()
             FROM unnest($1::bigint[], $2::bigint[], $3::text[]) n (no, seq, row) WHERE c.tenant = 'plain' AND c.no = n.no"
        );
        let made = runtime.block_on(async {
            client.batch_execute(&begin).await?;
            Ok::<_, tokio_postgres::Error>(Plain {
                runtime,
                client,
                events: client.prepare(&events).await?,
                turns: client.prepare(&turns).await?,
                conversations: client.prepare(&conversations).await?,
                written,
                seq: 0,
            })
        });
        Ok(made?)
    }

    /// One commit of this many turns, each in another conversation.
    fn write(&mut self, count: usize) -> Result<()> {
        self.seq += 1;
        let numbers: Vec<i64> = (1..=count as i64).map(|no| -no).collect();
        let seqs = vec![self.seq; count];
        let bytes = |no: &i64| [self.seq.to_be_bytes(), no.to_be_bytes()].concat();
        let ids: Vec<Vec<u8>> = numbers.iter().map(bytes).collect();
        let hashes: Vec<Vec<u8>> = ids.iter().map(|id| id.repeat(2)).collect();
        let (bodies, rows) = (vec![&self.written.body; count], vec![&self.written.row; count]);
        let events: [&(dyn ToSql + Sync); 7] = [&numbers, &seqs, &ids, &hashes, &bodies, &ids, &self.seq];
        let turns: [&(dyn ToSql + Sync); 4] = [&numbers, &seqs, &ids, &self.seq];
        let conversations: [&(dyn ToSql + Sync); 4] = [&numbers, &seqs, &rows, &self.seq];
        self.runtime.block_on(async {
            // Sent without waiting in between.
            let (begun, events, turns, rewritten, done) = tokio::join!(
                self.client.batch_execute("BEGIN"),
                self.client.execute(&self.events, &events),
                self.client.execute(&self.turns, &turns),
                self.client.execute(&self.conversations, &conversations),
                self.client.batch_execute("COMMIT"),
            );
            begun.and(events.map(drop)).and(turns.map(drop)).and(rewritten.map(drop)).and(done)
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
    client: Client,
}

impl Database<'_> {
    fn create<'a>(runtime: &'a Runtime, server: &str, name: &str) -> Result<Database<'a>> {
        let name = format!("everturn_bench_{}_{name}", std::process::id());
        let (front, options) =
            server.split_once('?').map_or((server, ""), |(front, options)| (front, options));
        let (host, _) = front
            .rsplit_once('/')
            .filter(|(host, _)| host.contains("//") && !host.ends_with('/'))
            .ok_or("the URL names no database: postgres://USER@HOST/DATABASE")?;
        let url = format!("{host}/{name}?{options}");
        let client = runtime.block_on(async {
            connect(server).await?.batch_execute(&format!("CREATE DATABASE {name}")).await?;
            let client = connect(&url).await?;
            client.batch_execute("SET everturn.tenants = '*'").await?;
            Ok::<_, crate::Fault>(client)
        })?;
        Ok(Database { runtime, server: server.to_string(), name, url, client })
    }

    fn run(&self, sql: &str) -> Result<()> {
        Ok(self.runtime.block_on(self.client.batch_execute(sql))?)
    }

    fn number(&self, sql: &str) -> Result<u64> {
        Ok(u64::try_from(self.runtime.block_on(self.client.query_one(sql, &[]))?.get::<_, i64>(0))?)
    }

    /// Settings on which the numbers depend most.
    fn settings(&self) -> Result<Row> {
        let sql = "SELECT string_agg(name || ' ' || current_setting(name), ', ' ORDER BY name) FROM pg_settings
             WHERE name IN ('fsync', 'server_version', 'shared_buffers', 'synchronous_commit', 'synchronous_standby_names')";
        let row = self.runtime.block_on(self.client.query_one(sql, &[]))?;
        Ok(Row::new("PostgreSQL", row.get::<_, String>(0), ""))
    }

    fn written(&self) -> Result<Written> {
        let body = "SELECT body FROM events WHERE kind = 'message' LIMIT 1";
        let row = "SELECT row FROM conversation_rows ORDER BY no DESC LIMIT 1";
        let read = |sql| self.runtime.block_on(self.client.query_one(sql, &[]));
        Ok(Written { body: read(body)?.get(0), row: read(row)?.get(0) })
    }

    /// The mean number of events in a commit of the store.
    fn batch(&self) -> Result<usize> {
        let sql = "SELECT (count(*) / count(DISTINCT xmin::text))::bigint FROM events WHERE kind = 'message'";
        Ok(usize::try_from(self.number(sql)?)?.max(1))
    }

    /// Bytes on disk.
    fn bytes(&self) -> Result<u64> {
        self.number("SELECT pg_database_size(current_database())")
    }

    /// Bytes of the write-ahead log so far.
    fn log_position(&self) -> Result<u64> {
        self.number("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint")
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
