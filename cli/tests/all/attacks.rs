//! A tenant that takes all it can, against a server process whose memory is measured, beside a tenant that is
//! still served. Regression: each of these stopped the server or took gigabytes.

use crate::Shell;
use crate::process::Serving;
use everturn_core::access::KeyRole;
use everturn_engine::{Everturn, NewKey, NewTurn, Options};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Maximum memory of the process, whatever is requested.
const MEMORY_KIB_MAX: u64 = 1024 * 1024;

/// A server, a key of the attacking tenant and one of another.
struct Attacked {
    _shell: Shell,
    server: Serving,
    greedy: [String; 2],
    modest: String,
    /// A conversation of the attacker with turns of 2 MiB each.
    large: String,
}

impl Attacked {
    fn new(large_turns: usize) -> Attacked {
        let shell = Shell::new();
        let options = Options { index: false, auto_compaction: false, ..Options::default() };
        let store =
            Everturn::open_with(&format!("sqlite:{}", shell.path("store.db").display()), options).unwrap();
        let key = |tenant: &str| {
            let new = NewKey::new(tenant, KeyRole::Admin);
            store.keys().create(new).unwrap().1
        };
        let (greedy, modest) = ([key("greedy"), key("greedy")], key("modest"));
        let tenant = store.tenant("greedy").unwrap();
        let large = tenant.create(everturn_engine::NewConversation::default()).wait().unwrap().id();
        for _ in 0..large_turns {
            let turn = NewTurn::user(&"x".repeat(2 * 1024 * 1024));
            tenant.conversation(large).append(turn).wait().unwrap();
        }
        drop((tenant, store));
        let server = Serving::start(&shell, &[]);
        Attacked { _shell: shell, server, greedy, modest, large: large.to_string() }
    }

    /// A connection on which a request has been sent, with as much of its body as is given.
    fn send(&self, key: &str, request: &str, length: usize, body: &[u8]) -> TcpStream {
        let mut stream = self.server.connect();
        stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
        let head = format!(
            "{request} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        // The server may not read it.
        let _ = stream.write_all(body);
        stream
    }

    /// The other tenant appends and reads during the attack. No answer within the connection's timeout is a
    /// failure.
    fn modest_is_served(&self) {
        let ask = |request: &str, body: &str| {
            let mut answer = String::new();
            let began = Instant::now();
            self.send(&self.modest, request, body.len(), body.as_bytes())
                .read_to_string(&mut answer)
                .unwrap();
            println!("{:?}: {request}", began.elapsed());
            answer
        };
        let made = ask("POST /api/v1/conversations", "{}");
        let at = made.find("conv_").unwrap_or_else(|| panic!("{made}"));
        let turns = format!("/api/v1/conversations/{}/turns", &made[at..at + 31]);
        for _ in 0..10 {
            let said = ask(&format!("POST {turns}"), r#"{"turns": [{"role": "user", "content": "hello"}]}"#);
            assert!(said.starts_with("HTTP/1.1 201"), "{said}");
            let read = ask(&format!("GET {turns}"), "");
            assert!(read.starts_with("HTTP/1.1 200") && read.contains("hello"), "{read}");
        }
    }

    /// Checks the peak memory of the process.
    fn check_memory(&self) {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.server.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
        println!("the process took at most {} MiB", kib / 1024);
        assert!(kib < MEMORY_KIB_MAX, "the process took {} MiB", kib / 1024);
    }
}

/// Reads an answer to its end on a thread of its own: its first line and its size.
fn read(mut stream: TcpStream) -> JoinHandle<(String, usize)> {
    std::thread::spawn(move || {
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let first = String::from_utf8_lossy(&bytes).lines().next().unwrap_or_default().to_string();
        (first, bytes.len())
    })
}

#[test]
fn stalled_imports_with_two_keys_leave_threads_to_others() {
    let attacked = Attacked::new(0);
    let import = |n: usize| {
        let key = &attacked.greedy[n % 2];
        attacked.send(key, "POST /api/v1/import", 100_000, b"{\"_type\":\"session_start\"")
    };
    let stalled: Vec<TcpStream> = (0..512).map(import).collect();
    attacked.modest_is_served();
    attacked.check_memory();
    drop(stalled);
}

/// Pages, transcripts and projections of large turns, requested all at once: some are read, and most are not.
#[test]
fn large_answers_do_not_fill_the_memory() {
    let attacked = Attacked::new(25);
    let id = &attacked.large;
    let requests = [
        format!("GET /api/v1/conversations/{id}/turns?limit=1000"),
        format!("GET /api/v1/conversations/{id}/events?limit=1000"),
        format!("GET /api/v1/conversations/{id}/transcript"),
        format!("GET /api/v1/conversations/{id}/export?format=anthropic"),
        format!("POST /api/v1/conversations/{id}/project"),
    ];
    let send = |n: usize| attacked.send(&attacked.greedy[n % 2], &requests[n % requests.len()], 2, b"{}");
    let unread: Vec<TcpStream> = (0..30).map(send).collect();
    let reading: Vec<_> = (0..5).map(send).map(read).collect();
    attacked.modest_is_served();
    drop(unread);
    let answers: Vec<(String, usize)> = reading.into_iter().map(|answer| answer.join().unwrap()).collect();
    let expected = ["HTTP/1.1 200 OK", "HTTP/1.1 413 Payload Too Large", "HTTP/1.1 503 Service Unavailable"];
    assert!(answers.iter().all(|(first, _)| expected.contains(&first.as_str())), "{answers:?}");
    attacked.check_memory();
}

/// Unread streams of large events.
#[test]
fn unread_streams_do_not_fill_the_memory() {
    let attacked = Attacked::new(15);
    let request = format!("GET /api/v1/conversations/{}/events", attacked.large);
    let follow = |n: usize| {
        let mut stream = attacked.server.connect();
        let head = format!(
            "{request} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\naccept: text/event-stream\r\n\r\n",
            attacked.greedy[n % 2]
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream
    };
    let unread: Vec<TcpStream> = (0..100).map(follow).collect();
    attacked.modest_is_served();
    attacked.check_memory();
    drop(unread);
}

#[test]
fn large_bodies_do_not_fill_the_memory() {
    let attacked = Attacked::new(0);
    let request = format!("POST /api/v1/conversations/{}/turns", attacked.large);
    let body = vec![b' '; 15 * 1024 * 1024];
    let sending: Vec<TcpStream> = std::thread::scope(|scope| {
        let send = |n: usize| {
            let (attacked, request, body) = (&attacked, &request, &body);
            scope.spawn(move || attacked.send(&attacked.greedy[n % 2], request, 16 * 1024 * 1024, body))
        };
        let sending: Vec<_> = (0..100).map(send).collect();
        sending.into_iter().map(|sent| sent.join().unwrap()).collect()
    });
    attacked.modest_is_served();
    attacked.check_memory();
    drop(sending);
}

#[test]
fn many_scripts_do_not_fill_the_memory() {
    let attacked = Attacked::new(0);
    let script = r#"
        let text = "x";
        while text.len() < 8388608 { text = text + text; }
        let copies = [];
        for i in 0..2 { copies.push(text + "y"); }
        let n = 0;
        while n < 20000 { n += 1; }
        messages"#;
    let body = format!(
        r#"{{"transcript": [{{"role": "user", "content": "hi"}}], "options": {{"policy": "custom", "projector": {}}}}}"#,
        everturn_core::json::quote(script)
    );
    let run = |n: usize| {
        read(attacked.send(&attacked.greedy[n % 2], "POST /api/v1/project", body.len(), body.as_bytes()))
    };
    let running: Vec<_> = (0..60).map(run).collect();
    attacked.modest_is_served();
    let answers: Vec<String> = running.into_iter().map(|answer| answer.join().unwrap().0).collect();
    assert!(answers.iter().any(|first| first == "HTTP/1.1 200 OK"), "{answers:?}");
    assert!(answers.iter().all(|first| first.contains(" 200 ") || first.contains(" 503 ")), "{answers:?}");
    attacked.check_memory();
}
