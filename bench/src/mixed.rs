//! Many clients that append, read and recall at the same time, against a single one that does the same; and the
//! memory of the server.
//!
//! The server is a process of its own with its default settings: it embeds, indexes and compacts meanwhile.

use crate::corpus::Words;
use crate::figures::{Samples, bytes, time};
use crate::place::Scratch;
use crate::programs::{Client, Program, request};
use crate::report::Row;
use crate::{Result, Scale};
use futures_util::future::try_join_all;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const TURN_BYTES: usize = 1024;
/// Number of conversations shared by all clients, and of initial turns of each.
const CONVERSATIONS: usize = 64;
const TURNS: usize = 200;
const TURNS_AT_ONCE: usize = 50;
/// Numbers of clients; the first is the baseline.
const CLIENTS: [usize; 3] = [1, 64, 256];
/// Length of a cycle of requests: five append, four read a page of 50 turns and one recalls.
const CYCLE: usize = 10;
/// Memory allowed for an open connection with a request, beside twice the idle memory.
const OPEN_BYTES: u64 = 256 * 1024;
/// Time without requests after which the server's memory counts as idle.
const IDLE_AFTER: Duration = Duration::from_secs(5);

const KINDS: [&str; 3] = ["appends of 1 KiB", "pages of 50 turns", "recalls"];

pub fn run(place: &Scratch, scale: Scale) -> Result<Vec<Row>> {
    let time_each = Duration::from_millis(scale.slice_ms * scale.rounds as u64);
    eprintln!("serve, mixed: {:.0} s for each number of clients", time_each.as_secs_f64());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let server = Program::everturn(place, "mixed.db")?;
    let conversations = runtime.block_on(begin(&server))?;
    let mut rows = Vec::new();
    let mut alone: Option<[Samples; 3]> = None;
    let mut idle = 0;
    for clients in CLIENTS {
        let (latencies, most) = runtime.block_on(mix(&server, &conversations, clients, time_each))?;
        let Some(alone) = &alone else {
            alone = Some(latencies);
            std::thread::sleep(IDLE_AFTER);
            idle = server.resident_bytes()?;
            continue;
        };
        for ((kind, many), one) in KINDS.iter().zip(&latencies).zip(alone) {
            for (what, part) in [("median", 0.5), ("99 of 100 within", 0.99)] {
                let (many, one) = (many.at(part), one.at(part));
                let what = format!("{kind}, {clients} clients, {what}, against 1 client");
                rows.push(Row::new(what, time(many), time(one)).ratio(many / one));
            }
        }
        let allowed = 2 * idle + clients as u64 * OPEN_BYTES;
        rows.push(
            Row::new(
                format!("memory of the server, {clients} clients, against idle"),
                bytes(most),
                bytes(idle),
            )
            .ratio(most as f64 / idle as f64)
            .bar(&format!("≤ 2 × and {} a client", bytes(OPEN_BYTES)), most <= allowed),
        );
    }
    Ok(rows)
}

async fn begin(server: &Program) -> Result<Vec<String>> {
    let mut client = Client::connect(server.address).await?;
    let mut words = Words::default();
    let mut conversations = Vec::new();
    for _ in 0..CONVERSATIONS {
        let create = request("POST", server.address, "/api/v1/conversations", "{}");
        let made: Value = serde_json::from_slice(client.http(&create).await?)?;
        let id = made["id"].as_str().ok_or("a conversation has an id")?.to_string();
        for _ in 0..TURNS / TURNS_AT_ONCE {
            let turns: Vec<Value> = (0..TURNS_AT_ONCE)
                .map(|_| json!({"role": "user", "content": words.text(TURN_BYTES)}))
                .collect();
            let path = format!("/api/v1/conversations/{id}/turns");
            client
                .http(&request("POST", server.address, &path, &json!({"turns": turns}).to_string()))
                .await?;
        }
        conversations.push(id);
    }
    Ok(conversations)
}

/// Latencies of each kind of request, and the peak memory meanwhile.
async fn mix(
    server: &Program,
    conversations: &[String],
    clients: usize,
    time: Duration,
) -> Result<([Samples; 3], u64)> {
    let began = Instant::now();
    let each = (0..clients).map(async |number| {
        let mut client = Client::connect(server.address).await?;
        let id = &conversations[number % conversations.len()];
        let path = format!("/api/v1/conversations/{id}/turns");
        let mut words = Words::from(number as u64);
        let mut latencies: [Samples; 3] = Default::default();
        // Clients start at different steps of the cycle.
        for step in number.. {
            if began.elapsed() >= time {
                break;
            }
            let (kind, request) = match step % CYCLE {
                0 => {
                    let body = json!({"query": words.text(40), "limit": 10}).to_string();
                    (2, request("POST", server.address, "/api/v1/recall", &body))
                }
                odd if odd % 2 == 1 => {
                    let turn = json!({"role": "user", "content": words.text(TURN_BYTES)});
                    (0, request("POST", server.address, &path, &json!({"turns": [turn]}).to_string()))
                }
                _ => (1, request("GET", server.address, &format!("{path}?limit=50&order=desc"), "")),
            };
            let sent = Instant::now();
            client.http(&request).await?;
            latencies[kind].push_time(sent.elapsed());
        }
        Ok::<_, crate::Fault>(latencies)
    });
    let watch = async {
        let mut most = 0;
        while began.elapsed() < time {
            most = most.max(server.resident_bytes()?);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok::<_, crate::Fault>(most)
    };
    let (each, most) = futures_util::future::try_join(try_join_all(each), watch).await?;
    let mut all: [Samples; 3] = Default::default();
    for latencies in &each {
        all.iter_mut().zip(latencies).for_each(|(all, some)| all.extend(some));
    }
    Ok((all, most))
}
