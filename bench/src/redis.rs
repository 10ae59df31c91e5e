//! Durable appends over the network against Redis Streams, which syncs each of them as well (`appendfsync
//! always`).
//!
//! Both servers are processes of their own with otherwise default settings; the clients are the same and
//! alternate.

use crate::corpus::Words;
use crate::figures::{Samples, rate, time};
use crate::place::Scratch;
use crate::programs::{Client, Program, command, request};
use crate::report::Row;
use crate::{Result, Scale};
use futures_util::future::try_join_all;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const TURN_BYTES: usize = 1024;
const CLIENTS: [usize; 2] = [1, 64];
const BAR: f64 = 0.4;

pub fn run(place: &Scratch, scale: Scale) -> Result<Vec<Row>> {
    eprintln!("serve against Redis Streams: {} rounds", scale.rounds);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let redis = Program::redis(place)?;
    let ours = Program::everturn(place, "redis.db")?;
    let text = Words::default().text(TURN_BYTES);
    let slice = Duration::from_millis(scale.slice_ms);
    let mut rows = Vec::new();
    for clients in CLIENTS {
        let mut sides = [
            Side::new(runtime.block_on(ours_of(&ours, clients, &text))?),
            Side::new(runtime.block_on(redis_of(&redis, clients, &text))?),
        ];
        for _ in 0..scale.rounds {
            for (side, program) in sides.iter_mut().zip([&ours, &redis]) {
                runtime.block_on(side.round(program, slice))?;
            }
        }
        let [ours, redis] = sides;
        let name = if clients == 1 { "1 client".to_string() } else { format!("{clients} clients") };
        let what = format!("appends of 1 KiB over HTTP, {name}, against XADD");
        rows.push(
            Row::new(what, rate(ours.rate.median()), rate(redis.rate.median()))
                .ratios(&ours.rate.over(&redis.rate))
                .at_least(BAR),
        );
        let (own, theirs) = (ours.processor.median(), redis.processor.median());
        let what = "the same, processor time of the server for one";
        rows.push(Row::new(what, time(own), time(theirs)).ratios(&ours.processor.over(&redis.processor)));
    }
    Ok(rows)
}

/// One side: its clients, each with its request, and the measurements.
struct Side {
    clients: Vec<(Client, Vec<u8>, Protocol)>,
    rate: Samples,
    processor: Samples,
}

#[derive(Clone, Copy)]
enum Protocol {
    Http,
    Redis,
}

impl Side {
    fn new(clients: Vec<(Client, Vec<u8>, Protocol)>) -> Side {
        Side { clients, rate: Samples::default(), processor: Samples::default() }
    }

    async fn round(&mut self, program: &Program, slice: Duration) -> Result<()> {
        let (began, before) = (Instant::now(), program.processor_seconds()?);
        let each = self.clients.iter_mut().map(async |(client, bytes, protocol)| {
            let mut done = 0_u32;
            while began.elapsed() < slice {
                match protocol {
                    Protocol::Http => drop(client.http(bytes).await?),
                    Protocol::Redis => client.redis(bytes).await?,
                }
                done += 1;
            }
            Ok::<_, crate::Fault>(done)
        });
        let done = f64::from(try_join_all(each).await?.into_iter().sum::<u32>());
        self.rate.push(done / began.elapsed().as_secs_f64());
        self.processor.push((program.processor_seconds()? - before) / done);
        Ok(())
    }
}

async fn ours_of(program: &Program, clients: usize, text: &str) -> Result<Vec<(Client, Vec<u8>, Protocol)>> {
    let body = json!({"turns": [{"role": "user", "content": text}]}).to_string();
    let mut all = Vec::new();
    for _ in 0..clients {
        let mut client = Client::connect(program.address).await?;
        let create = request("POST", program.address, "/api/v1/conversations", "{}");
        let made: Value = serde_json::from_slice(client.http(&create).await?)?;
        let id = made["id"].as_str().ok_or("a conversation has an id")?;
        let append = request("POST", program.address, &format!("/api/v1/conversations/{id}/turns"), &body);
        all.push((client, append, Protocol::Http));
    }
    Ok(all)
}

async fn redis_of(program: &Program, clients: usize, text: &str) -> Result<Vec<(Client, Vec<u8>, Protocol)>> {
    let mut all = Vec::new();
    for number in 0..clients {
        let stream = format!("conversation:{clients}:{number}");
        let append = command(&["XADD", &stream, "*", "role", "user", "content", text]);
        all.push((Client::connect(program.address).await?, append, Protocol::Redis));
    }
    Ok(all)
}
