//! Two servers on a PostgreSQL with a synchronous standby, under load: a server is killed, the primary is killed, the
//! standby is promoted. Nothing that was acknowledged is lost, nothing is there twice, and every chain verifies.
//!
//! `./test postgres` names the programs of PostgreSQL in `EVERTURN_TEST_POSTGRES_BIN`; without it the test says that it is
//! skipped. `EVERTURN_TEST_ROUNDS` repeats it.

use crate::Shell;
use crate::process::{Serving, send};
use serde_json::Value;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const CLIENTS: usize = 6;
/// The user that PostgreSQL runs as where the test is root, which it refuses.
const NOBODY: u32 = 65534;

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A program of PostgreSQL, as a user that it accepts.
fn program(name: &str) -> Command {
    let bin = PathBuf::from(std::env::var("EVERTURN_TEST_POSTGRES_BIN").unwrap());
    let mut command = Command::new(bin.join(name));
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null());
    command
}

fn run(mut command: Command) {
    let out = command.stderr(Stdio::piped()).output().unwrap();
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
}

/// A running server. A shell beside it ends it when this process is gone, however that ends.
struct Database {
    port: u16,
    data: PathBuf,
    guard: Child,
    _stdin: ChildStdin,
    pid: String,
}

impl Database {
    fn start(data: &Path, port: u16) -> Database {
        let postgres = program("postgres");
        let script = "\"$@\" </dev/null & echo $!; read _; kill -INT $!; wait";
        let mut guard = Command::new("sh");
        guard.args(["-c", script, "sh"]).arg(postgres.get_program()).arg("-D").arg(data);
        guard.args([
            "-p",
            &port.to_string(),
            "-c",
            "listen_addresses=127.0.0.1",
            "-c",
            "max_connections=100",
        ]);
        guard.args(["-c", "unix_socket_directories="]).current_dir("/");
        if is_root() {
            guard.uid(NOBODY).gid(NOBODY);
        }
        let log = std::fs::File::create(data.with_extension(format!("{port}.log"))).unwrap();
        let mut guard = guard.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut pid = String::new();
        BufReader::new(guard.stdout.take().unwrap()).read_line(&mut pid).unwrap();
        let database = Database {
            port,
            data: data.into(),
            _stdin: guard.stdin.take().unwrap(),
            guard,
            pid: pid.trim().into(),
        };
        let began = Instant::now();
        while !database.answers("SELECT 1") {
            assert!(began.elapsed() < PATIENCE, "PostgreSQL did not start");
            std::thread::sleep(Duration::from_millis(50));
        }
        database
    }

    fn psql(&self, sql: &str) -> Command {
        let mut psql = program("psql");
        psql.args([
            "-qtA",
            "-v",
            "ON_ERROR_STOP=1",
            &format!("postgres://postgres@127.0.0.1:{}/postgres", self.port),
            "-c",
            sql,
        ]);
        psql
    }

    fn answers(&self, sql: &str) -> bool {
        self.psql(sql).stderr(Stdio::null()).status().unwrap().success()
    }

    fn sql(&self, sql: &str) {
        run(self.psql(sql));
    }

    fn ask(&self, sql: &str) -> String {
        let out = self.psql(sql).stdout(Stdio::piped()).output().unwrap();
        String::from_utf8(out.stdout).unwrap().trim().to_string()
    }

    /// `kill -9` of the server; its children notice.
    fn kill(&self) {
        assert!(Command::new("kill").args(["-9", &self.pid]).status().unwrap().success());
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-9", &self.pid]).stderr(Stdio::null()).status();
        let _ = self.guard.kill();
        let _ = self.guard.wait();
    }
}

/// A primary with a synchronous standby.
fn cluster(folder: &Path) -> (Database, Database) {
    if is_root() {
        std::os::unix::fs::chown(folder, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let (one, two) = (folder.join("one"), folder.join("two"));
    let mut init = program("initdb");
    init.arg("-D").arg(&one).args([
        "-U",
        "postgres",
        "--auth=trust",
        "-E",
        "UTF8",
        "--locale=C.UTF-8",
        "--no-sync",
    ]);
    run(init);
    let primary = Database::start(&one, free_port());
    primary.sql("CREATE ROLE everturn LOGIN");
    primary.sql("CREATE DATABASE everturn OWNER everturn");
    let mut copy = program("pg_basebackup");
    copy.arg("-D").arg(&two).args(["-R", "-X", "stream", "-c", "fast", "--no-sync", "-d"]);
    copy.arg(format!("postgres://postgres@127.0.0.1:{}/", primary.port));
    run(copy);
    let standby = Database::start(&two, free_port());
    // In the file of the primary only: the standby, once promoted, waits for nobody.
    let settings = one.join("postgresql.conf");
    let text = std::fs::read_to_string(&settings).unwrap();
    std::fs::write(&settings, format!("{text}\nsynchronous_standby_names = '*'\n")).unwrap();
    primary.sql("SELECT pg_reload_conf()");
    let began = Instant::now();
    while primary.ask("SELECT sync_state FROM pg_stat_replication") != "sync" {
        assert!(began.elapsed() < PATIENCE, "the standby is not synchronous");
        std::thread::sleep(Duration::from_millis(50));
    }
    (primary, standby)
}

/// One request: the status and the body. `None` if the connection broke.
fn request(address: &str, head: &str, body: &str, headers: &str) -> Option<(u16, Value)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
    // The server may be killed at any moment.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        send(&mut stream, head, body, &format!("{headers}connection: close\r\n"));
    }))
    .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let status = answer.split(' ').nth(1)?.parse().ok()?;
    Some((status, serde_json::from_str(answer.split("\r\n\r\n").nth(1)?).ok()?))
}

#[test]
fn failover_loses_nothing_that_was_acknowledged() {
    if std::env::var("EVERTURN_TEST_POSTGRES_BIN").is_err() {
        eprintln!("skipped: EVERTURN_TEST_POSTGRES_BIN names no PostgreSQL; use ./test postgres");
        return;
    }
    let rounds = std::env::var("EVERTURN_TEST_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    (0..rounds).for_each(|_| round());
}

fn round() {
    let shell = Shell::new();
    let folder = std::env::temp_dir().join(format!("everturn-failover-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let (primary, standby) = cluster(&folder);
    let url = format!(
        "postgres://everturn@127.0.0.1:{},127.0.0.1:{}/everturn?target_session_attrs=read-write&connect_timeout=2",
        primary.port, standby.port
    );
    let serve = || Serving::start(&shell, &["--store", &url]);
    let (one, two) = (serve(), serve());
    let addresses = [one.address(), two.address()];
    let conversations: Vec<String> = (0..3)
        .map(|_| {
            let (status, made) = request(&addresses[0], "POST /api/v1/conversations", "{}", "").unwrap();
            assert_eq!(status, 201, "{made}");
            made["id"].as_str().unwrap().to_string()
        })
        .collect();
    let (done, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let acknowledged: Vec<(String, u64, String)> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (done, count, addresses, conversations) = (&done, &count, &addresses, &conversations);
                scope.spawn(move || {
                    let mut acknowledged = Vec::new();
                    for nth in 0.. {
                        if done.load(Ordering::SeqCst) {
                            break;
                        }
                        let conversation = &conversations[(client + nth) % conversations.len()];
                        let text = format!("client {client} word {nth}.");
                        let body = format!(r#"{{"turns": [{{"role": "user", "content": "{text}"}}]}}"#);
                        let head = format!("POST /api/v1/conversations/{conversation}/turns");
                        let key = format!("idempotency-key: c{client}-{nth}\r\n");
                        // The same request with the same key, to the other server, until one acknowledges it.
                        let began = Instant::now();
                        let mut server = client;
                        let seq = loop {
                            assert!(began.elapsed() < PATIENCE, "{text} was not taken in time");
                            server += 1;
                            match request(&addresses[server % 2], &head, &body, &key) {
                                Some((200 | 201, answer)) => {
                                    break answer["turns"][0]["seq"].as_u64().unwrap();
                                }
                                // Unavailable for now.
                                Some((503, _)) | None => std::thread::sleep(Duration::from_millis(20)),
                                Some((status, answer)) => panic!("{status}: {answer}"),
                            }
                        };
                        acknowledged.push((conversation.clone(), seq, text));
                        count.fetch_add(1, Ordering::SeqCst);
                    }
                    acknowledged
                })
            })
            .collect();
        let more = |wanted: u64| {
            let (from, began) = (count.load(Ordering::SeqCst), Instant::now());
            while count.load(Ordering::SeqCst) < from + wanted {
                assert!(began.elapsed() < PATIENCE, "the clients are stuck");
                std::thread::sleep(Duration::from_millis(10));
            }
        };
        more(200);
        one.kill();
        more(200);
        primary.kill();
        let mut promote = program("pg_ctl");
        promote.arg("promote").arg("-D").arg(&standby.data);
        run(promote);
        more(200);
        done.store(true, Ordering::SeqCst);
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    assert!(acknowledged.len() >= 600);
    for conversation in &conversations {
        let mut there: HashMap<String, Vec<u64>> = HashMap::new();
        let mut after = 0;
        loop {
            let head =
                format!("GET /api/v1/conversations/{conversation}/events?from={}&limit=500", after + 1);
            let (status, page) = request(&addresses[1], &head, "", "").unwrap();
            assert_eq!(status, 200, "{page}");
            let events = page["data"].as_array().unwrap();
            let Some(last) = events.last() else { break };
            for event in events {
                let seq = event["seq"].as_u64().unwrap();
                assert_eq!(seq, after + 1, "no gap");
                after = seq;
                if let Some(text) = event["body"]["message"]["content"].as_str() {
                    there.entry(text.to_string()).or_default().push(seq);
                }
            }
            after = last["seq"].as_u64().unwrap();
        }
        for (_, seq, text) in acknowledged.iter().filter(|(of, ..)| of == conversation) {
            assert_eq!(there.get(text), Some(&vec![*seq]), "{text}");
        }
        shell.ok(&["verify", conversation, "--store", &url]);
    }
    drop((two, standby, primary));
    let _ = std::fs::remove_dir_all(&folder);
}
