//! `/readyz`, and the end of a server, while the database takes no commits.

use super::cluster::{Database, Folder};
use super::faults::{serve, url};
use super::load::{request, said};
use super::{rounds, until};
use crate::Shell;
use crate::process::Serving;
use serde_json::{Value, json};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Longest time for an answer about readiness, whatever the database does, on a machine that is busy.
const QUICK: Duration = Duration::from_secs(10);

/// Status and code of `/readyz`, which answers quickly.
fn ready(server: &Serving) -> (u16, Option<String>) {
    let began = Instant::now();
    let answer = server.ask("GET /readyz", "");
    assert!(began.elapsed() < QUICK, "{:?} for {answer}", began.elapsed());
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let problem: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap_or_default();
    (status, problem["code"].as_str().map(str::to_string))
}

fn until_not_ready(server: &Serving, code: &str) {
    until(code, || ready(server) == (503, Some(code.to_string())));
}

fn until_ready(server: &Serving) {
    until("it is ready", || ready(server).0 == 200);
}

#[test]
fn a_server_is_ready_while_commits_succeed() {
    rounds(|_| {
        let (shell, folder) = (Shell::new(), Folder::new());
        let primary = Database::new(&folder);
        let server = serve(&shell, &url(&[primary.port]));
        let transactions =
            || -> u64 { primary.ask("SELECT pg_snapshot_xmax(pg_current_snapshot())").parse().unwrap() };
        let before = transactions();
        (0..200).for_each(|_| assert_eq!(ready(&server), (200, None)));
        assert!(transactions() - before < 100, "not one for each probe");
        let mut standby = primary.standby(&folder);
        until_ready(&server);
        standby.stop("-KILL");
        until_not_ready(&server, "store.standby_away");
        let list = request(&server.address(), "GET /api/v1/conversations", &Value::Null, "");
        assert_eq!(list.unwrap().0, 200, "reads go on");
        standby.start();
        until_ready(&server);
        for (value, code) in [("on", Some("store.read_only")), ("off", None)] {
            primary.sql(&format!("ALTER SYSTEM SET default_transaction_read_only = {value}"));
            primary.sql("SELECT pg_reload_conf()");
            match code {
                Some(code) => until_not_ready(&server, code),
                None => until_ready(&server),
            }
        }
    });
}

/// Its threads wait for answers for up to half a minute, one after the other.
#[test]
fn a_server_whose_database_hangs_says_so_and_ends_in_time() {
    rounds(|_| {
        let (shell, folder) = (Shell::new(), Folder::new());
        let database = Database::new(&folder);
        std::fs::write(shell.path("everturn.toml"), "shutdown_s = 1\n").unwrap();
        let url = url(&[database.port]);
        let start = || Serving::start(&shell, &["--config", "everturn.toml", "--store", &url]);
        let [asked, stopped, signalled] = [start(), start(), start()];
        for server in [&asked, &stopped, &signalled] {
            let address = server.address();
            let (_, made) = request(&address, "POST /api/v1/conversations", &json!({}), "").unwrap();
            let head = format!("POST /api/v1/conversations/{}/turns", made["id"].as_str().unwrap());
            assert_eq!(request(&address, &head, &said("before"), "").unwrap().0, 201);
        }
        until_ready(&asked);
        database.freeze();
        until_not_ready(&asked, "store.unanswered");
        let began = Instant::now();
        stopped.signal();
        let (code, said) = stopped.end();
        assert!(began.elapsed() < Duration::from_secs(15), "{:?}: {said}", began.elapsed());
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("did not close in time"), "{said}");
        signalled.signal();
        // Once the port is closed it has received the first one.
        while TcpStream::connect(signalled.address()).is_ok() {}
        signalled.signal();
        assert_eq!(signalled.end().0, Some(130));
        // One that still waits for an answer ends as well.
        let began = Instant::now();
        asked.signal();
        asked.end();
        assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    });
}

#[test]
fn a_server_is_ready_again_once_a_standby_is_promoted() {
    rounds(|_| {
        let (shell, folder) = (Shell::new(), Folder::new());
        let primary = Database::new(&folder);
        let standby = primary.standby(&folder);
        let server = serve(&shell, &url(&[primary.port, standby.port]));
        until_ready(&server);
        primary.freeze();
        until_not_ready(&server, "store.unanswered");
        standby.promote();
        until_ready(&server);
    });
}
