//! The overhead of the network: appends, live events and contexts over HTTP against the same through the
//! engine, and ten thousand subscribers.
//!
//! Clients and server share the machine and, except for the subscribers, the process: the cost of a client is
//! in the numbers.

use crate::corpus::{self, Words};
use crate::figures::{Samples, bytes, count, rate, time};
use crate::place::Scratch;
use crate::report::Row;
use crate::{Result, Scale};
use everturn_core::id::ConversationId;
use everturn_engine::{ContextOptions, Everturn, NewTurn, Tenant, Update};
use everturn_server::{App, Config, Server, serve};
use futures_util::future::try_join_all;
use serde_json::json;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;

const TURN_BYTES: usize = 1024;
const CLIENTS: [usize; 3] = [1, 16, 64];
const CONTEXT_TOKENS: u64 = 8000;
/// Number of events that are timed to their subscriber.
const FOLLOWED: usize = 500;
const SUBSCRIBERS: usize = 10_000;
/// Number of events that each of them must receive.
const SHOWN: usize = 20;
/// The bar in docs/BENCHMARKS.md for each.
const SUBSCRIBER_BYTES_MAX: u64 = 64 * 1024;

pub fn run(place: &Scratch, scale: Scale) -> Result<Vec<Row>> {
    eprintln!("serve: {} rounds", scale.rounds);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let store = corpus::open(&place.store("serve.db"))?;
    let scope = store.tenant("default")?;
    let server = Listening::start(&runtime, store)?;
    let mut rows = appends(&runtime, &server, &scope, scale)?;
    rows.extend(contexts(&runtime, &server, &scope, scale)?);
    rows.extend(events(&server, &scope)?);
    rows.push(subscribers(&server, &scope)?);
    Ok(rows)
}

/// A server in this process.
struct Listening {
    address: SocketAddr,
    http: reqwest::Client,
}

impl Listening {
    fn start(runtime: &Runtime, store: Everturn) -> Result<Listening> {
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let server =
            runtime.block_on(Server::bind(App::new(store, Config { listen, ..Config::default() })))?;
        let address = server.address;
        runtime.spawn(serve(server, std::future::pending()));
        // A client of the engine may have installed another one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Ok(Listening { address, http: reqwest::Client::builder().no_proxy().build()? })
    }

    async fn post(&self, path: String, body: String) -> Result<()> {
        let url = format!("http://{}/api/v1/conversations/{path}", self.address);
        let request = self.http.post(url).header("content-type", "application/json").body(body);
        let response = request.send().await?.error_for_status()?;
        response.bytes().await?;
        Ok(())
    }
}

/// Repeats a step for a while, concurrently for each conversation.
async fn meanwhile<F: Future<Output = Result<()>>>(
    conversations: &[ConversationId],
    slice: Duration,
    latency: &mut Samples,
    one: impl Fn(ConversationId) -> F,
) -> Result<f64> {
    let started = Instant::now();
    let each = conversations.iter().map(async |id| {
        let mut times = Samples::default();
        let mut done = 0_u32;
        while started.elapsed() < slice {
            let begun = Instant::now();
            one(*id).await?;
            times.push_time(begun.elapsed());
            done += 1;
        }
        Ok::<_, crate::Fault>((times, done))
    });
    let all = try_join_all(each).await?;
    let took = started.elapsed().as_secs_f64();
    all.iter().for_each(|(times, _)| latency.extend(times));
    Ok(f64::from(all.iter().map(|(_, done)| done).sum::<u32>()) / took)
}

fn appends(runtime: &Runtime, server: &Listening, scope: &Tenant, scale: Scale) -> Result<Vec<Row>> {
    let text = Words::default().text(TURN_BYTES);
    let body = json!({"turns": [{"role": "user", "content": text}]}).to_string();
    let slice = Duration::from_millis(scale.slice_ms);
    let mut rows = Vec::new();
    for clients in CLIENTS {
        let conversations = corpus::begin(scope, clients)?;
        let (mut direct, mut over) = (Samples::default(), Samples::default());
        let (mut direct_latency, mut over_latency) = (Samples::default(), Samples::default());
        for _ in 0..scale.rounds {
            direct.push(runtime.block_on(meanwhile(
                &conversations,
                slice,
                &mut direct_latency,
                async |id| {
                    scope.conversation(id).append(NewTurn::user(&text)).await?;
                    Ok(())
                },
            ))?);
            over.push(runtime.block_on(meanwhile(&conversations, slice, &mut over_latency, async |id| {
                server.post(format!("{id}/turns"), body.clone()).await
            }))?);
        }
        let name = if clients == 1 { "1 client".to_string() } else { format!("{clients} clients") };
        rows.push(
            Row::new(
                format!("appends over HTTP, {name}, against the engine"),
                rate(over.median()),
                rate(direct.median()),
            )
            .ratios(&over.over(&direct)),
        );
        for (what, part) in [("median", 0.5), ("99 of 100 within", 0.99)] {
            let (over, direct) = (over_latency.at(part), direct_latency.at(part));
            rows.push(
                Row::new(format!("the same, time of one, {what}"), time(over), time(direct))
                    .ratio(over / direct),
            );
        }
    }
    Ok(rows)
}

fn contexts(runtime: &Runtime, server: &Listening, scope: &Tenant, scale: Scale) -> Result<Vec<Row>> {
    let id = corpus::begin(scope, 1)?[0];
    let mut words = Words::default();
    for _ in 0..10 {
        let turns = (0..100).map(|_| NewTurn::user(&words.text(200)));
        scope.conversation(id).append_all(turns).wait()?;
    }
    let slice = Duration::from_millis(scale.slice_ms);
    let body = json!({"token_budget": CONTEXT_TOKENS}).to_string();
    let (mut direct, mut over) = (Samples::default(), Samples::default());
    let (mut direct_latency, mut over_latency) = (Samples::default(), Samples::default());
    for _ in 0..scale.rounds {
        direct.push(runtime.block_on(meanwhile(&[id], slice, &mut direct_latency, async |id| {
            scope.conversation(id).contexts().build(&ContextOptions::new(CONTEXT_TOKENS))?;
            Ok(())
        }))?);
        over.push(runtime.block_on(meanwhile(&[id], slice, &mut over_latency, async |id| {
            server.post(format!("{id}/context"), body.clone()).await
        }))?);
    }
    let row = |what: &str, part: f64| {
        let (over, direct) = (over_latency.at(part), direct_latency.at(part));
        Row::new(
            format!("a context of 8,000 tokens over HTTP, {what}, against the engine"),
            time(over),
            time(direct),
        )
        .ratio(over / direct)
    };
    Ok(vec![row("median", 0.5), row("99 of 100 within", 0.99)])
}

/// The time from the start of an append until its event reaches a subscriber.
fn events(server: &Listening, scope: &Tenant) -> Result<Vec<Row>> {
    let id = corpus::begin(scope, 1)?[0];
    let text = Words::default().text(TURN_BYTES);
    let append = || scope.conversation(id).append(NewTurn::user(&text)).wait();
    let (mut direct, mut over) = (Samples::default(), Samples::default());
    let mut lines = subscribe(server.address, id)?.lines();
    let mut subscription = scope.conversation(id).subscribe(1)?;
    for _ in 0..FOLLOWED {
        let begun = Instant::now();
        append()?;
        while let Some(update) = subscription.recv()? {
            if let Update::Event(_) = update {
                break;
            }
        }
        direct.push_time(begun.elapsed());
        until_event(&mut lines)?;
        let begun = Instant::now();
        append()?;
        until_event(&mut lines)?;
        over.push_time(begun.elapsed());
        while let Some(update) = subscription.recv()? {
            if let Update::Event(_) = update {
                break;
            }
        }
    }
    let row = |what: &str, part: f64| {
        let (over, direct) = (over.at(part), direct.at(part));
        Row::new(
            format!("from an append to its event at an SSE reader, {what}, against the engine's"),
            time(over),
            time(direct),
        )
        .ratio(over / direct)
    };
    Ok(vec![row("median", 0.5), row("99 of 100 within", 0.99)])
}

/// A reader of the events after the first.
fn subscribe(address: SocketAddr, id: ConversationId) -> Result<BufReader<TcpStream>> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(request(address, &id.to_string()).as_bytes())?;
    Ok(BufReader::new(stream))
}

fn request(address: SocketAddr, id: &str) -> String {
    format!(
        "GET /api/v1/conversations/{id}/events?from=2 HTTP/1.1\r\nHost: {address}\r\nAccept: text/event-stream\r\n\r\n"
    )
}

fn until_event(lines: &mut impl Iterator<Item = std::io::Result<String>>) -> Result<()> {
    for line in lines {
        if line?.starts_with("event: event") {
            return Ok(());
        }
    }
    Err("the stream of events ended".into())
}

/// Memory of the server for each of many subscribers, which are in a process of their own; each must receive
/// every event.
fn subscribers(server: &Listening, scope: &Tenant) -> Result<Row> {
    let id = corpus::begin(scope, 1)?[0];
    let before = resident_bytes()?;
    let mut readers = Readers::start(server.address, id)?;
    readers.expect("connected")?;
    let text = Words::default().text(TURN_BYTES);
    let begun = Instant::now();
    for _ in 0..SHOWN {
        scope.conversation(id).append(NewTurn::user(&text)).wait()?;
    }
    readers.expect("all")?;
    let took = begun.elapsed();
    let each = resident_bytes()?.saturating_sub(before) / SUBSCRIBERS as u64;
    let delivered = (SUBSCRIBERS * SHOWN) as f64 / took.as_secs_f64();
    let what = format!(
        "{} SSE readers of one conversation each got {SHOWN} of {SHOWN} events: memory for each",
        count(SUBSCRIBERS as f64)
    );
    Ok(Row::new(what, bytes(each), format!("{} events in all", rate(delivered)))
        .bar("≤ 64 KiB", each <= SUBSCRIBER_BYTES_MAX))
}

/// The process of the subscribers.
struct Readers(Child, BufReader<std::process::ChildStdout>);

impl Readers {
    fn start(address: SocketAddr, id: ConversationId) -> Result<Readers> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["readers", &address.to_string(), &id.to_string()])
            .stdout(Stdio::piped())
            .spawn()?;
        let out = child.stdout.take().ok_or("the readers have no output")?;
        Ok(Readers(child, BufReader::new(out)))
    }

    fn expect(&mut self, word: &str) -> Result<()> {
        let mut line = String::new();
        self.1.read_line(&mut line)?;
        if line.trim() != word {
            Err(format!("the readers said {line:?} instead of {word:?}").into())
        } else {
            Ok(())
        }
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The process of the subscribers: connects them all, then reads until each has every event.
pub fn read(address: SocketAddr, id: &str) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut streams = Vec::new();
        for _ in 0..SUBSCRIBERS {
            let mut stream = tokio::net::TcpStream::connect(address).await?;
            stream.write_all(request(address, id).as_bytes()).await?;
            streams.push(stream);
        }
        // With the first bytes of an answer, the reader is subscribed.
        let mut buffer = vec![0; 16 * 1024];
        for stream in &mut streams {
            if stream.read(&mut buffer).await? == 0 {
                return Err("a reader was refused".into());
            }
        }
        println!("connected");
        try_join_all(streams.into_iter().map(every_event)).await?;
        println!("all");
        Ok(())
    })
}

async fn every_event(mut stream: tokio::net::TcpStream) -> Result<()> {
    let (mut seen, mut rest) = (0, Vec::new());
    let mut buffer = [0; 4096];
    while seen < SHOWN {
        let read = stream.read(&mut buffer).await?;
        if read == 0 {
            return Err("a reader was let go".into());
        }
        rest.extend_from_slice(&buffer[..read]);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            seen += usize::from(rest.starts_with(b"event: event"));
            rest.drain(..=end);
        }
    }
    Ok(())
}

fn resident_bytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("the system does not tell")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse::<u64>()? * 1024)
}
