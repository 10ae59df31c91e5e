//! Servers, databases and networks that fail under load. Nothing that was acknowledged is lost, nothing is there twice,
//! what was refused is not there, and every chain verifies.

use super::cluster::{Database, Folder};
use super::load::{Load, request, said};
use super::proxy::{Network, Proxy};
use super::{PATIENCE, rounds, until};
use crate::Shell;
use crate::process::Serving;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

pub fn url(ports: &[u16]) -> String {
    let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let attributes = if ports.len() > 1 { "target_session_attrs=read-write&" } else { "" };
    format!("postgres://everturn@{}/everturn?{attributes}connect_timeout=2", hosts.join(","))
}

pub fn serve(shell: &Shell, url: &str) -> Serving {
    Serving::start(shell, &["--store", url])
}

/// Opens a turn on a server and gives it some text: the turn's id.
fn open_turn(server: &Serving, conversation: &str) -> String {
    let head = format!("POST /api/v1/conversations/{conversation}/turns/open");
    let (status, turn) = request(&server.address(), &head, &json!({"actor": "planner"}), "").unwrap();
    assert_eq!(status, 201, "{turn}");
    let turn = turn["id"].as_str().unwrap().to_string();
    let head = format!("POST /api/v1/turns/{turn}/chunks");
    let (status, length) = request(&server.address(), &head, &json!({"delta": "half a thou"}), "").unwrap();
    assert_eq!(status, 200, "{length}");
    turn
}

/// Waits until a turn is as wanted, and says how long that took.
fn until_turn(server: &Serving, turn: &str, what: &str, is: impl Fn(&Value) -> bool) -> Duration {
    let began = Instant::now();
    loop {
        let head = format!("GET /api/v1/turns/{turn}");
        if let Some((200, turn)) = request(&server.address(), &head, &Value::Null, "")
            && is(&turn)
        {
            return began.elapsed();
        }
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn failover_to_a_synchronous_standby_loses_nothing() {
    rounds(|_| {
        let (shell, folder) = (Shell::new(), Folder::new());
        let mut primary = Database::new(&folder);
        let standby = primary.standby(&folder);
        let url = url(&[primary.port, standby.port]);
        let (one, two) = (serve(&shell, &url), serve(&shell, &url));
        let load = Load::on(&[&one, &two]);
        let turn = open_turn(&one, &load.conversations[0]);
        load.run(&shell, &url, |load| {
            load.more(60);
            until_turn(&two, &turn, "the text is durable", |turn| turn["partial"]["text"] == "half a thou");
            one.kill();
            let ended = |turn: &Value| turn["status"] == "interrupted" && turn["content"] == "half a thou";
            let took = until_turn(&two, &turn, "the turn of the dead server ends", ended);
            eprintln!("the turn of the dead server was interrupted after {:.1} s", took.as_secs_f64());
            load.more(60);
            let three = serve(&shell, &url);
            load.replace(0, &three);
            load.more(40);
            primary.stop("-KILL");
            standby.promote();
            load.more(60);
            drop(three);
        });
    });
}

/// The primary hangs: it takes connections and does not answer, as with a disk that is gone.
#[test]
fn a_primary_that_hangs_is_left_for_the_promoted_standby() {
    rounds(|_| {
        let (shell, folder) = (Shell::new(), Folder::new());
        let primary = Database::new(&folder);
        let standby = primary.standby(&folder);
        let url = url(&[primary.port, standby.port]);
        let (one, two) = (serve(&shell, &url), serve(&shell, &url));
        let load = Load::on(&[&one, &two]);
        load.run(&shell, &url, |load| {
            load.more(40);
            primary.freeze();
            standby.promote();
            load.more(40);
        });
    });
}

#[test]
fn a_database_that_restarts_under_load_loses_nothing() {
    rounds(|_| {
        let (shell, folder) = (Shell::new(), Folder::new());
        let mut database = Database::new(&folder);
        let url = url(&[database.port]);
        let (one, two) = (serve(&shell, &url), serve(&shell, &url));
        let load = Load::on(&[&one, &two]);
        load.run(&shell, &url, |load| {
            for signal in ["-INT", "-QUIT", "-KILL"] {
                load.more(40);
                database.stop(signal);
                database.start();
            }
            load.more(40);
        });
    });
}

#[test]
fn a_bad_network_to_the_database_loses_nothing() {
    rounds(|_| {
        let (shell, folder) = (Shell::new(), Folder::new());
        let database = Database::new(&folder);
        let proxies = [Proxy::to(database.port), Proxy::to(database.port)];
        let [one, two] = [0, 1].map(|nth: usize| serve(&shell, &url(&[proxies[nth].port])));
        let load = Load::on(&[&one, &two]);
        load.run(&shell, &url(&[database.port]), |load| {
            let bad = [
                (Network::Slow(Duration::from_millis(20)), 500),
                (Network::Down, 1000),
                (Network::LosesAnswers, 500),
                (Network::HalfClosed, 500),
                (Network::LosesRequests, 500),
            ];
            for (nth, (network, ms)) in bad.into_iter().enumerate() {
                for proxy in [&proxies[nth % 2], &proxies[(nth + 1) % 2]] {
                    load.more(30);
                    proxy.set(network);
                    if network == Network::Down {
                        proxy.cut();
                    }
                    std::thread::sleep(Duration::from_millis(ms));
                    proxy.set(Network::Up);
                    proxy.cut();
                }
            }
            // Both at once.
            load.more(30);
            proxies.iter().for_each(|proxy| proxy.set(Network::LosesAnswers));
            std::thread::sleep(Duration::from_millis(500));
            proxies.iter().for_each(Proxy::cut);
            proxies.iter().for_each(|proxy| proxy.set(Network::Up));
            load.more(40);
        });
    });
}

/// Notifications are a hint only: a server that hears none looks once a second.
#[test]
fn lost_notifications_are_repaired_by_looking() {
    rounds(|_| {
        let (shell, folder) = (Shell::new(), Folder::new());
        let database = Database::new(&folder);
        let proxies = [Proxy::to(database.port), Proxy::to(database.port)];
        proxies.iter().for_each(|proxy| proxy.set(Network::Deaf));
        let [one, two] = [0, 1].map(|nth: usize| serve(&shell, &url(&[proxies[nth].port])));
        let load = Load::on(&[&one, &two]);
        load.run(&shell, &url(&[database.port]), |load| load.more(40));
    });
}

/// A promoted standby gives the numbers of transactions that it has not heard of to others. A server that had seen the
/// first ones took an append under such a number for an old one, and did not tell its followers.
#[test]
fn an_append_under_a_number_that_was_seen_before_a_failover_reaches_followers() {
    rounds(|_| {
        let (shell, folder) = (Shell::new(), Folder::new());
        let mut primary = Database::new(&folder);
        let standby = primary.standby(&folder);
        // The standby gets nothing but what is committed with a wait.
        primary.sql("ALTER SYSTEM SET wal_writer_delay = '10s'");
        primary.sql("ALTER SYSTEM SET wal_writer_flush_after = '1GB'");
        primary.sql("SELECT pg_reload_conf()");
        let url = url(&[primary.port, standby.port]);
        let (one, two) = (serve(&shell, &url), serve(&shell, &url));
        let load = Load::on(&[&one, &two]);
        load.run(&shell, &url, |load| {
            load.more(20);
            load.last(0);
            let numbers =
                "DO $$ BEGIN FOR n IN 1..500 LOOP PERFORM pg_current_xact_id(); ROLLBACK; END LOOP; END $$";
            (0..10).for_each(|_| primary.sql(numbers));
            // Both servers look, and see them.
            primary.sql("SET synchronous_commit = off; NOTIFY everturn, 'test'");
            std::thread::sleep(Duration::from_millis(1500));
            primary.stop("-KILL");
            standby.promote();
            // Through the server that its follower does not use.
            let head = format!("POST /api/v1/conversations/{}/turns", load.conversations[0]);
            until("the append is taken", || {
                let key = "idempotency-key: after\r\n";
                let answer = request(&one.address(), &head, &said("after the failover"), key);
                answer.is_some_and(|(status, _)| status < 300)
            });
        });
    });
}

#[test]
fn a_standby_answers_with_what_the_client_has_seen_or_says_that_it_is_behind() {
    rounds(|_| {
        let (shell, folder) = (Shell::new(), Folder::new());
        let primary = Database::new(&folder);
        let standby = primary.standby(&folder);
        let writer = serve(&shell, &url(&[primary.port]));
        let (_, made) = request(&writer.address(), "POST /api/v1/conversations", &json!({}), "").unwrap();
        let id = made["id"].as_str().unwrap();
        let written = primary.ask("SELECT pg_current_wal_lsn()");
        let has_it = format!("SELECT pg_last_wal_replay_lsn() >= '{written}'");
        until("the standby has the tables", || standby.ask(&has_it) == "t");
        let reader = Serving::start(&shell, &["--read-only", "--store", &url(&[standby.port])]);
        let append = |server: &Serving| {
            let head = format!("POST /api/v1/conversations/{id}/turns");
            request(&server.address(), &head, &said("one more"), "").unwrap()
        };
        let read = |seen: u64| {
            let head = format!("GET /api/v1/conversations/{id}/turns");
            request(&reader.address(), &head, &Value::Null, &format!("everturn-seq: {seen}\r\n")).unwrap()
        };
        let (status, refused) = append(&reader);
        assert_eq!((status, refused["code"].as_str()), (403, Some("store.opened_read_only")));
        assert!(refused["detail"].as_str().unwrap().starts_with("this server only reads"), "{refused}");
        assert!(reader.greeting.contains("for reading only"), "{}", reader.greeting);
        assert_eq!(append(&writer).0, 201);
        let (status, page) = read(2);
        assert_eq!((status, page["data"].as_array().unwrap().len()), (200, 1), "{page}");
        standby.sql("SELECT pg_wal_replay_pause()");
        until("replay is paused", || standby.ask("SELECT pg_get_wal_replay_pause_state()") == "paused");
        assert_eq!(append(&writer).0, 201);
        let (status, behind) = read(3);
        assert_eq!((status, behind["code"].as_str()), (503, Some("store.behind")), "{behind}");
        assert_eq!(read(2).0, 200);
        assert!(behind["detail"].as_str().unwrap().contains("ask a server that writes"), "{behind}");
        // The servers of the primary write every second, so the last transaction here gets old.
        until("it is reported how old the data is", || {
            let metrics = reader.ask("GET /metrics", "");
            let age =
                metrics.split("\neverturn_replay_age_seconds ").nth(1).and_then(|rest| rest.lines().next());
            age.is_some_and(|age| age.parse::<f64>().unwrap() > 3.0)
        });
        standby.sql("SELECT pg_wal_replay_resume()");
        let (status, page) = read(3);
        assert_eq!((status, page["data"].as_array().unwrap().len()), (200, 2), "{page}");
    });
}
