//! Connections that break, and conversations that go while they are written to.

use super::open;
use everturn_core::id::Key;
use everturn_core::write::Write;
use everturn_store::conformance::{Database, Maker, addition, create, done, log};
use everturn_store::postgres::Postgres;
use everturn_store::{CheckedLog, Log};
use std::io::{Read, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use tokio_postgres::{AsyncMessage, NoTls};

/// Payloads of the notifications that a connection of its own hears.
fn listen(url: String) -> mpsc::Receiver<String> {
    let ((tell, told), (begin, began)) = (mpsc::channel(), mpsc::channel());
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (client, mut connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
            let heard = async {
                while let Some(Ok(message)) =
                    std::future::poll_fn(|context| connection.poll_message(context)).await
                {
                    if let AsyncMessage::Notification(notification) = message {
                        let _ = tell.send(notification.payload().to_string());
                    }
                }
            };
            let listening = async {
                client.batch_execute("LISTEN everturn").await.unwrap();
                begin.send(()).unwrap();
                std::future::pending::<()>().await;
            };
            tokio::select! { () = heard => {}, () = listening => {} }
        });
    });
    began.recv().unwrap();
    told
}

/// However many appends to however many conversations a batch has, the others are told once.
#[test]
fn a_batch_is_notified_once() {
    let Some(database) = Database::new() else { return };
    let store = open(&database);
    let m = Maker::default();
    let keys: Vec<Key> = (0..50).map(|_| m.key()).collect();
    let told = listen(database.url());
    let next = || told.recv_timeout(Duration::from_secs(60)).unwrap();
    let mut heard = Vec::new();
    for key in &keys {
        create(&store, key, vec![m.created()]);
        heard.push(next());
    }
    for _ in 0..10 {
        let batch: Vec<Write> =
            (0..200).map(|nth| addition(&keys[nth % keys.len()], vec![m.say("word")])).collect();
        assert!(store.commit(batch).iter().all(Result::is_ok));
        heard.push(next());
    }
    assert_eq!(log(&store, &keys[0]).len(), 1 + 10 * 4);
    drop(store);
    // Everything that the store has told comes before.
    database.run("NOTIFY everturn, 'the end'").unwrap();
    let more: Vec<String> = std::iter::repeat_with(next).take_while(|payload| payload != "the end").collect();
    assert_eq!(more, [""; 0]);
    assert!(heard.windows(2).all(|two| two[0] == two[1] && two[0].parse::<u64>().is_ok()), "{heard:?}");
}

/// A connection that the server ends, in the pool or under a transaction, costs no write: as long as the database can
/// be reached again, every answer is a definite one.
#[test]
fn a_restart_of_the_connections_loses_nothing_and_repeats_nothing() {
    let Some(database) = Database::new() else { return };
    let store = open(&database);
    let m = Maker::default();
    let key = m.key();
    create(&store, &key, vec![m.created()]);
    std::thread::scope(|scope| {
        let (begin, begun) = mpsc::sync_channel::<u64>(0);
        let database = &database;
        scope.spawn(move || {
            for nth in begun {
                // Somewhere in the commit.
                std::thread::sleep(Duration::from_micros(nth % 20 * 200));
                database.cut();
            }
        });
        for nth in 0..100 {
            begin.send(nth).unwrap();
            done(&store, addition(&key, vec![m.say(&format!("word {nth}"))]));
        }
    });
    let events = loop {
        // The last cut may have come after the last write.
        match store.events(&key, 0, 1000) {
            Ok(events) => break events,
            Err(error) => assert_eq!(error.code(), "store.unreachable"),
        }
    };
    assert_eq!(events.len(), 101);
    for (nth, event) in events.iter().skip(1).enumerate() {
        assert!(event.text().unwrap().contains(&format!("word {nth}\"")), "{event:?}");
    }
}

/// A way to the server that loses the answer of one commit: the server has done it, then something happens, and then the
/// connection breaks. Returns its URL.
fn losing_an_answer(
    url: &str,
    armed: Arc<AtomicBool>,
    meanwhile: impl Fn() + Send + Sync + 'static,
) -> String {
    let (front, rest) = url.split_once("@").unwrap();
    let (server, rest) = rest.split_once('/').unwrap();
    let (server, meanwhile) = (server.to_string(), Arc::new(meanwhile));
    let door = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = door.local_addr().unwrap();
    std::thread::spawn(move || {
        for client in door.incoming() {
            let (client, server) = (client.unwrap(), TcpStream::connect(&server).unwrap());
            let (armed, meanwhile) = (armed.clone(), meanwhile.clone());
            let loses = Arc::new(Mutex::new(false));
            let (mut from, mut to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            let losing = loses.clone();
            std::thread::spawn(move || {
                let mut bytes = [0; 65536];
                while let Ok(read @ 1..) = from.read(&mut bytes) {
                    let is_lost = *losing.lock().unwrap();
                    if !is_lost {
                        let _ = to.write_all(&bytes[..read]);
                    } else if bytes[..read].windows(7).any(|part| part == b"COMMIT\0") {
                        meanwhile();
                        break;
                    }
                }
                let _ = to.shutdown(Shutdown::Both);
                let _ = from.shutdown(Shutdown::Both);
            });
            let (mut from, mut to) = (client, server);
            std::thread::spawn(move || {
                let (mut bytes, mut writes) = ([0; 65536], false);
                let has = |bytes: &[u8], text: &[u8]| bytes.windows(text.len()).any(|part| part == text);
                while let Ok(read @ 1..) = from.read(&mut bytes) {
                    let sent = &bytes[..read];
                    // Statements are prepared once, so their text comes before or with the first commit.
                    writes |= has(sent, b"INSERT INTO events");
                    if writes && has(sent, b"COMMIT\0") && armed.swap(false, Ordering::SeqCst) {
                        *loses.lock().unwrap() = true;
                    }
                    if to.write_all(sent).is_err() {
                        break;
                    }
                }
                let _ = to.shutdown(Shutdown::Both);
            });
        }
    });
    format!("{front}@{here}/{rest}")
}

/// The answer of a commit to two conversations is lost, and another process deletes one of them before the batch can be
/// looked up. It used to be taken for unwritten then, and the other conversation had its turn twice.
#[test]
fn a_commit_whose_answer_is_lost_is_found_though_a_part_of_it_was_deleted() {
    let Some(database) = Database::new() else { return };
    let m = Maker::default();
    let (gone, kept) = (m.key(), m.key());
    let other = open(&database);
    create(&other, &gone, vec![m.created()]);
    create(&other, &kept, vec![m.created()]);
    let (armed, deletion) = (Arc::new(AtomicBool::new(false)), m.delete(&gone));
    let url = losing_an_answer(&database.url(), armed.clone(), move || drop(done(&other, deletion.clone())));
    let store = Postgres::open(&url).unwrap();
    armed.store(true, Ordering::SeqCst);
    let word = |key: &Key| addition(key, vec![m.say("word")]);
    let answers = store.commit(vec![word(&gone), word(&kept)]);
    assert!(!armed.load(Ordering::SeqCst), "no answer was lost");
    assert_eq!(answers[1].as_ref().unwrap().events[0].seq, 2);
    assert_eq!(log(&store, &kept).len(), 2);
    assert_eq!(store.events(&gone, 0, 9).unwrap_err().code(), "conversation.absent");
}
