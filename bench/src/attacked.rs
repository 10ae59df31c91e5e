//! The appends and pages of one tenant while another one attacks the server, against the same on a quiet
//! server, and the memory of the server meanwhile.
//!
//! The server is a process of its own with its default settings. The attacker is another process, so that the
//! measuring threads do nothing else.

use crate::corpus::Words;
use crate::figures::{Samples, bytes, time};
use crate::place::Scratch;
use crate::programs::{Client, Program};
use crate::report::Row;
use crate::{Result, Scale};
use everturn_core::access::KeyRole;
use everturn_engine::{Everturn, NewConversation, NewKey, NewTurn, Options};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const TURN_BYTES: usize = 1024;
/// Number of turns of the attacker's conversation, and bytes of each.
const LARGE_TURNS: usize = 25;
const LARGE_BYTES: usize = 2 * 1024 * 1024;
const BAR: f64 = 5.0;
const MEMORY_MAX: u64 = 1024 * 1024 * 1024;

const ATTACKS: [(&str, &str); 6] = [
    ("imports", "512 imports that stall"),
    ("headers", "1,100 half-sent headers"),
    ("answers", "large pages and transcripts, most of them unread"),
    ("streams", "200 streams of large events, unread"),
    ("bodies", "100 bodies of 16 MiB that stall"),
    ("scripts", "60 projector scripts at a time"),
];

pub fn run(place: &Scratch, scale: Scale) -> Result<Vec<Row>> {
    let time_each = Duration::from_millis(scale.slice_ms * scale.rounds as u64);
    eprintln!("serve, attacked: {:.0} s for each of {} attacks", time_each.as_secs_f64(), ATTACKS.len());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut rows = Vec::new();
    for (attack, what) in ATTACKS {
        let name = format!("attacked-{attack}.db");
        let [modest, greedy, conversation] = fill(place, &name)?;
        let server = Program::everturn(place, &name)?;
        let quiet = runtime.block_on(modestly(&server, &modest, time_each))?;
        let attacker = Attacker::start(attack, server.address, &greedy, &conversation)?;
        let attacked = runtime.block_on(modestly(&server, &modest, time_each))?;
        let most = server.most_resident_bytes()?;
        drop(attacker);
        for (part, name) in [(0.5, "median"), (0.99, "99 of 100 within")] {
            let (attacked, quiet) = (attacked.at(part), quiet.at(part));
            let row = Row::new(
                format!("requests of a tenant beside {what}, {name}, against a quiet server"),
                time(attacked),
                time(quiet),
            )
            .ratio(attacked / quiet);
            rows.push(if part > 0.5 { row.at_most(BAR) } else { row });
        }
        rows.push(
            Row::new("the same, most memory of the server", bytes(most), "")
                .bar("< 1 GiB", most < MEMORY_MAX),
        );
    }
    Ok(rows)
}

/// A store with a key of each of two tenants, and a conversation of the attacker.
fn fill(place: &Scratch, name: &str) -> Result<[String; 3]> {
    let options = Options { index: false, auto_compaction: false, ..Options::default() };
    let store = Everturn::open_with(&format!("sqlite:{}", place.file(name).display()), options)?;
    let key = |tenant: &str| {
        let new = NewKey::new(tenant, KeyRole::Admin);
        store.keys().create(new).map(|(_, key)| key)
    };
    let (modest, greedy) = (key("modest")?, key("greedy")?);
    let scope = store.tenant("greedy")?;
    let conversation = scope.create(NewConversation::default()).wait()?.id();
    for _ in 0..LARGE_TURNS {
        let turn = NewTurn::user(&"x".repeat(LARGE_BYTES));
        scope.conversation(conversation).append(turn).wait()?;
    }
    Ok([modest, greedy, conversation.to_string()])
}

/// Times of appends and pages, one after the other.
async fn modestly(server: &Program, key: &str, time: Duration) -> Result<Samples> {
    let mut client = Client::connect(server.address).await?;
    let ask = |method: &str, path: &str, body: &str| authorized(server.address, key, method, path, body);
    let made: Value =
        serde_json::from_slice(client.http(&ask("POST", "/api/v1/conversations", "{}")).await?)?;
    let path =
        format!("/api/v1/conversations/{}/turns", made["id"].as_str().ok_or("a conversation has an id")?);
    let mut words = Words::default();
    let mut times = Samples::default();
    let began = Instant::now();
    while began.elapsed() < time {
        let turn = json!({"role": "user", "content": words.text(TURN_BYTES)});
        let append = ask("POST", &path, &json!({"turns": [turn]}).to_string());
        for request in [append, ask("GET", &format!("{path}?limit=20&order=desc"), "")] {
            let sent = Instant::now();
            client.http(&request).await?;
            times.push_time(sent.elapsed());
        }
        // A pause, so that the attacked period has as many samples as the quiet one.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(times)
}

fn authorized(address: SocketAddr, key: &str, method: &str, path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {key}\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// The process of the attacker.
struct Attacker(Child);

impl Attacker {
    /// Returns when the attack is under way.
    fn start(attack: &str, address: SocketAddr, key: &str, conversation: &str) -> Result<Attacker> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["attacker", attack, &address.to_string(), key, conversation])
            .stdout(Stdio::piped())
            .spawn()?;
        let out = child.stdout.take().ok_or("the attacker has no output")?;
        let attacker = Attacker(child);
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line)?;
        if line.trim() != "begun" {
            return Err(format!("the attacker said {line:?}").into());
        }
        Ok(attacker)
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The attack itself, until the process is killed.
pub fn attack(attack: &str, address: SocketAddr, key: &str, conversation: &str) -> Result<()> {
    let in_conversation = |rest: &str| format!("/api/v1/conversations/{conversation}/{rest}");
    let head = |method: &str, path: &str, more: &str| {
        format!(
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {key}\r\n{more}\r\n\r\n"
        )
        .into_bytes()
    };
    // It stands for a remote machine: its own cost must not reduce the server's share of this one.
    // SAFETY: takes three numbers and touches no memory of ours.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) };
    let mut held = Vec::new();
    match attack {
        "imports" => {
            let mut request = head("POST", "/api/v1/import", "Content-Length: 100000");
            request.extend(b"{\"_type\":\"session_start\"");
            hold(&mut held, 512, address, &request);
        }
        "headers" => hold(&mut held, 1100, address, b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: "),
        "answers" => {
            for path in ["turns?limit=1000", "events?limit=1000", "transcript", "export?format=anthropic"] {
                hold(&mut held, 8, address, &head("GET", &in_conversation(path), "Accept: application/json"));
            }
            let request = head("GET", &in_conversation("turns?limit=1000"), "Connection: close");
            again_and_again(4, address, request);
        }
        "streams" => {
            let request = head("GET", &in_conversation("events"), "Accept: text/event-stream");
            hold(&mut held, 200, address, &request);
        }
        "bodies" => {
            let request = head(
                "POST",
                &in_conversation("turns"),
                &format!("Content-Type: application/json\r\nContent-Length: {}", 16 * 1024 * 1024),
            );
            hold(&mut held, 100, address, &request);
            let piece = vec![b' '; 15 * 1024 * 1024];
            for mut stream in std::mem::take(&mut held) {
                let piece = piece.clone();
                std::thread::spawn(move || {
                    // As much as the server accepts.
                    let _ = stream.write_all(&piece);
                    let _ = stream.read(&mut [0; 1]);
                });
            }
        }
        "scripts" => {
            let script = "let text = \"x\"; while text.len() < 8388608 { text = text + text; } let n = 0; \
                          while n < 20000 { n += 1; } messages";
            let body = json!({
                "transcript": [{"role": "user", "content": "hi"}],
                "options": {"policy": "custom", "projector": script},
            })
            .to_string();
            let more = format!(
                "Connection: close\r\nContent-Type: application/json\r\nContent-Length: {}",
                body.len()
            );
            let mut request = head("POST", "/api/v1/project", &more);
            request.extend(body.as_bytes());
            again_and_again(60, address, request);
        }
        other => return Err(format!("there is no attack {other:?}").into()),
    }
    println!("begun");
    loop {
        std::thread::park();
    }
}

/// Opens connections, sends the same on each, and reads nothing. The server may close some of them.
fn hold(held: &mut Vec<TcpStream>, count: usize, address: SocketAddr, request: &[u8]) {
    for _ in 0..count {
        if let Ok(mut stream) = TcpStream::connect(address) {
            let _ = stream.write_all(request);
            held.push(stream);
        }
    }
}

/// Threads that each send a request, read the answer to its end, and repeat.
fn again_and_again(threads: usize, address: SocketAddr, request: Vec<u8>) {
    for _ in 0..threads {
        let request = request.clone();
        std::thread::spawn(move || {
            loop {
                if let Ok(mut stream) = TcpStream::connect(address) {
                    let _ = stream.write_all(&request);
                    let _ = std::io::copy(&mut stream, &mut std::io::sink());
                }
            }
        });
    }
}
