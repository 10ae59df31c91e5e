//! Several programs on one store: one owns it, the others ask through its socket, and the next one takes over.

use crate::process::{Mcp, Serving};
use crate::{Said, Shell};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn texts(shell: &Shell, id: &str) -> Vec<String> {
    let turns = shell.json(&["history", id, "--json", "--limit", "1000"]);
    turns["data"].as_array().unwrap().iter().map(|turn| turn["content"].as_str().unwrap().into()).collect()
}

fn kill(signal: &str, process: u32) {
    assert!(Command::new("kill").args([signal, &process.to_string()]).status().unwrap().success());
}

fn turn(id: &str, text: &str) -> Value {
    json!({"conversation": id, "turns": [{"role": "user", "content": text}]})
}

/// Regression: every verb that writes was refused while a server ran.
#[test]
fn verbs_that_write_go_through_a_server_that_owns_the_store() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    let server = Serving::start(&shell, &[]);
    let first = shell.json(&["append", &id, "To Faro.", "--json"]);
    let first = first["id"].as_str().unwrap();
    shell.ok(&["supersede", first, "To Porto."]);
    shell.ok(&["update", &id, "--title", "Portugal"]);
    shell.ok(&["pin", &id, "budget", "300"]);
    shell.ok(&["facts", &id, "add", "ana", "lives_in", "Lisbon"]);
    let fork = shell.json(&["fork", &id, "--json"])["id"].as_str().unwrap().to_string();
    shell.ok(&["erase", first, "--reason", "asked", "--yes"]);
    shell.ok(&["delete", &fork, "--reason", "done"]);
    let other = shell.json(&["new", "--tenant", "acme", "--json"]);
    assert_eq!(other["tenant"], "acme");
    std::fs::write(shell.path("old.jsonl"), "{\"role\": \"user\", \"content\": \"From a file.\"}\n").unwrap();
    shell.ok(&["import", "old.jsonl"]);
    shell.ok(&["context", &id, "--budget", "1000", "--record"]);
    // The server has seen all of it.
    let answer = server.ask(&format!("GET /api/v1/conversations/{id}"), "");
    assert!(answer.contains("Portugal"), "{answer}");
    let answer = server.ask(&format!("GET /api/v1/conversations/{id}/turns"), "");
    assert!(answer.contains("To Porto.") && !answer.contains("To Faro."), "{answer}");
    // A key made through the socket closes the server; the socket stays open to the user.
    let secret = shell.ok(&["keys", "create", "--role", "reader"]);
    assert!(server.ask("GET /api/v1/conversations", "").contains(" 401 "));
    shell.ok(&["append", &id, "Still here."]);
    let said = shell.run(&["append", &id, "x", "--url", &server.url]);
    assert!(said.code == 1 && said.err.contains("key"), "{}", said.err);
    assert!(secret.starts_with("et_"));
    shell.ok(&["new", "--ttl", "1"]);
    // The server's own sweep may come first.
    assert!(shell.json(&["sweep", "--json"])["expired"].is_u64());
    // Verbs that need the file itself name its owner.
    let said = shell.refused(&["doctor", "--rebuild"]);
    assert!(said.contains(&format!("process {}", server.id())), "{said}");
    server.signal();
    assert_eq!(server.end().0, Some(0));
    assert!(!shell.path("store.db-owner").exists(), "a clean end leaves nothing behind");
    shell.ok(&["append", &id, "And without it."]);
    shell.ok(&["verify", &id]);
}

#[test]
fn mcp_works_beside_a_server_and_takes_over_when_that_is_killed() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    let server = Serving::start(&shell, &[]);
    let mut mcp = Mcp::start(&shell, &[]);
    mcp.call("append_turns", &turn(&id, "one")).unwrap();
    mcp.call("append_turns", &turn("@last", "two")).unwrap();
    assert!(server.ask(&format!("GET /api/v1/conversations/{id}/turns"), "").contains("two"));
    let read = mcp.call("list_turns", &json!({"conversation": id})).unwrap();
    assert_eq!(read["data"].as_array().unwrap().len(), 2, "{read}");
    let refused = mcp.call("append_turns", &json!({"conversation": id, "turns": 1})).unwrap_err();
    assert!(refused.starts_with("arguments.shape"), "{refused}");
    server.kill();
    assert!(shell.path("store.db-owner/socket").exists(), "a killed owner leaves its socket");
    mcp.call("append_turns", &turn(&id, "three")).unwrap();
    // Now it is the owner, and is asked by others.
    shell.ok(&["append", &id, "four"]);
    let mut second = Mcp::start(&shell, &[]);
    second.call("append_turns", &turn(&id, "five")).unwrap();
    mcp.call("append_turns", &turn(&id, "six")).unwrap();
    mcp.kill();
    second.call("append_turns", &turn(&id, "seven")).unwrap();
    shell.ok(&["append", &id, "eight"]);
    second.kill();
    shell.ok(&["append", &id, "nine"]);
    let expected = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];
    assert_eq!(texts(&shell, &id), expected);
    shell.ok(&["verify", &id]);
}

/// Regression: beside an owner, clients heard nothing of new and deleted conversations, nor after it took over.
#[test]
fn mcp_beside_an_owner_reports_what_others_create_and_delete() {
    const LIST: &str = "notifications/resources/list_changed";
    let shell = Shell::new();
    let id = shell.new_conversation();
    let server = Serving::start(&shell, &[]);
    let mut mcp = Mcp::start(&shell, &[]);
    let other = shell.new_conversation();
    mcp.notified(LIST);
    shell.ok(&["delete", &other, "--reason", "done"]);
    mcp.notified(LIST);
    let uri = format!("everturn://conversations/{id}");
    mcp.request("resources/subscribe", &json!({"uri": uri}));
    shell.ok(&["append", &id, "one"]);
    assert_eq!(mcp.notified("notifications/resources/updated")["params"]["uri"], uri);
    mcp.request("resources/unsubscribe", &json!({"uri": uri}));
    // Now it takes over; the first report may repeat the last one of before.
    server.kill();
    mcp.call("append_turns", &turn(&id, "two")).unwrap();
    for _ in 0..2 {
        shell.new_conversation();
        mcp.notified(LIST);
    }
    mcp.request("resources/subscribe", &json!({"uri": uri}));
    shell.ok(&["append", &id, "three"]);
    assert_eq!(mcp.notified("notifications/resources/updated")["params"]["uri"], uri);
    assert_eq!(mcp.close(), Some(0));
}

/// Regression: beside an owner it ended with a panic, since its connection was dropped on a thread that must not block.
#[test]
fn mcp_ends_in_order_as_an_owner_and_beside_one() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    let mut owner = Mcp::start(&shell, &[]);
    let mut beside = Mcp::start(&shell, &[]);
    beside.call("append_turns", &turn(&id, "one")).unwrap();
    owner.call("append_turns", &turn(&id, "two")).unwrap();
    assert_eq!(beside.close(), Some(0));
    assert_eq!(owner.close(), Some(0));
    assert_eq!(texts(&shell, &id), ["one", "two"]);
}

/// Regression: the recorder of an editor or of an MCP server owned the store, and everybody else was refused for as
/// long as it ran.
#[test]
fn a_recorder_that_owns_the_store_is_asked_by_others() {
    let acp: (&[&str], _) = (
        &["acp"],
        [
            json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1}}),
            json!({"jsonrpc": "2.0", "id": 1, "method": "session/new", "params": {"cwd": "/", "mcpServers": []}}),
        ],
    );
    let record: (&[&str], _) = (
        &["record"],
        [
            json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}}),
            json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "look"}}),
        ],
    );
    let agent = r#"while read -r line; do case "$line" in
*'"initialize"'*) printf '{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":1}}\n';;
*) printf '{"jsonrpc":"2.0","id":1,"result":{"sessionId":"s1","content":[]}}\n';;
esac; done"#;
    for ((verb, messages), number) in [(acp, "/head/seq"), (record, "/turns")] {
        let shell = Shell::new();
        let start = || {
            let mut command = shell.command(&[verb, &["--", "sh", "-c", agent]].concat());
            let mut recorder = command.stdin(Stdio::piped()).spawn().unwrap();
            let mut input = recorder.stdin.take().unwrap();
            for message in &messages {
                writeln!(input, "{message}").unwrap();
            }
            (recorder, input)
        };
        // All of what a recorder has heard is in the store: the request in which an owner is killed may be lost.
        let recorded = |count: usize| loop {
            let list = shell.run(&["list", "--json"]).out;
            let list: Value = serde_json::from_str(&list).unwrap_or_default();
            let all = list["data"].as_array().cloned().unwrap_or_default();
            let is_whole = |one: &Value| one.pointer(number).and_then(Value::as_u64) >= Some(2);
            if all.len() == count && all.iter().all(is_whole) {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let (mut first, _input) = start();
        recorded(1);
        let id = shell.new_conversation();
        shell.ok(&["append", &id, "one"]);
        let mut mcp = Mcp::start(&shell, &[]);
        mcp.call("append_turns", &turn(&id, "two")).unwrap();
        // A second one is recorded through the first, and takes over when that is killed.
        let (second, input) = start();
        recorded(3);
        // An entry without an answer may be in the log or not; of those that have one, none is lost.
        let turns = if verb == ["record"] { 6 } else { 2 };
        let count = || {
            let listed = shell.json(&["list", "--json"]);
            listed["data"].as_array().unwrap().iter().filter_map(|chat| chat["turns"].as_u64()).sum::<u64>()
        };
        while count() < turns {
            std::thread::sleep(Duration::from_millis(20));
        }
        first.kill().unwrap();
        first.wait().unwrap();
        shell.ok(&["append", &id, "three"]);
        mcp.call("append_turns", &turn(&id, "four")).unwrap();
        drop(input);
        let said = Said::from(second.wait_with_output().unwrap());
        assert!(said.code == 0 && !said.err.contains("not recorded"), "{verb:?}: {}", said.err);
        assert_eq!(mcp.close(), Some(0));
        assert_eq!(texts(&shell, &id), ["one", "two", "three", "four"], "{verb:?}");
    }
}

/// Waits until the command that runs lets others use the store.
fn wait_for_door(shell: &Shell) {
    let socket = shell.path("store.db-owner/passing");
    while std::os::unix::net::UnixStream::connect(&socket).is_err() {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A command that owns the store until its standard input ends.
fn long_command(shell: &Shell, id: &str) -> std::process::Child {
    let mut command = shell.command(&["append", id, "--stream", "-"]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.as_mut().unwrap().write_all(b"slowly").unwrap();
    wait_for_door(shell);
    child
}

/// Regression: a long import or stream held the store without a socket. Others were refused after three seconds, and
/// `mcp` ended with 1.
#[test]
fn a_command_that_runs_for_long_is_asked_by_others_until_it_ends() {
    let shell = Shell::new();
    let (slow, id) = (shell.new_conversation(), shell.new_conversation());
    assert!(!shell.path("store.db-owner").exists(), "a short command has no socket");
    let mut long = long_command(&shell, &slow);
    shell.ok(&["append", &id, "one"]);
    let mut mcp = Mcp::start(&shell, &[]);
    mcp.call("append_turns", &turn(&id, "two")).unwrap();
    std::fs::write(shell.path("old.jsonl"), "{\"role\": \"user\", \"content\": \"From a file.\"}\n").unwrap();
    shell.ok(&["import", "old.jsonl"]);
    shell.ok(&["update", &id, "--title", "Beside"]);
    assert!(long.try_wait().unwrap().is_none());
    drop(long.stdin.take());
    let said = Said::from(long.wait_with_output().unwrap());
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(!shell.path("store.db-owner").exists(), "a clean end leaves nothing behind");
    // Those that used it go on by themselves.
    mcp.call("append_turns", &turn(&id, "three")).unwrap();
    shell.ok(&["append", &id, "four"]);
    assert_eq!(mcp.close(), Some(0));
    assert_eq!(texts(&shell, &id), ["one", "two", "three", "four"]);
    assert_eq!(texts(&shell, &slow), ["slowly"]);
    shell.ok(&["verify", &id]);
}

/// Starts a server on a store that is held, which `release` ends once the server waits for it.
fn start_a_server_and(shell: &Shell, release: impl FnOnce()) {
    let mut command = shell.command(&["serve", "--listen", "127.0.0.1:0"]);
    let mut server = command.stdout(Stdio::null()).spawn().unwrap();
    let mut err = BufReader::new(server.stderr.take().unwrap());
    let mut said = String::new();
    let mut says = |text: &str| {
        while !said.contains(text) {
            assert!(err.read_line(&mut said).unwrap() > 0, "it ended: {said}");
        }
    };
    says("for it to end");
    release();
    says("Ctrl-C");
    server.kill().unwrap();
    server.wait().unwrap();
}

/// Regression: a server ended at once if a command happened to write at that moment.
#[test]
fn a_server_waits_for_a_command_that_ends_soon() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    // As a short command does, which has no socket.
    let lock = std::fs::File::open(shell.path("store.db.lock")).unwrap();
    lock.try_lock().unwrap();
    start_a_server_and(&shell, || drop(lock));
    let mut long = long_command(&shell, &id);
    start_a_server_and(&shell, || {
        drop(long.stdin.take());
        assert!(long.wait().unwrap().success());
    });
    assert_eq!(texts(&shell, &id), ["slowly"]);
}

/// Regression: the error spoke of servers only, and did not say that the order of the starts matters.
#[test]
fn a_server_that_is_started_after_mcp_says_to_start_it_first() {
    let shell = Shell::new();
    shell.new_conversation();
    let mcp = Mcp::start(&shell, &[]);
    let said = shell.refused(&["serve", "--listen", "127.0.0.1:0"]);
    assert!(said.contains("is open for writing by process"), "{said}");
    assert!(said.contains("`everturn mcp`") && said.contains("started before them"), "{said}");
    assert!(!said.contains("for it to end"), "an owner that lasts is not waited for: {said}");
    assert_eq!(mcp.close(), Some(0));
}

/// An import reads its file again where the owner that it went through has ended.
#[test]
fn an_import_through_an_owner_that_dies_is_done_by_the_next() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    let mut long = long_command(&shell, &id);
    kill("-STOP", long.id());
    let file = "{\"role\": \"user\", \"content\": \"From a file.\"}\n";
    std::fs::write(shell.path("old.jsonl"), file).unwrap();
    let import = shell.command(&["import", "old.jsonl", "--json"]).spawn().unwrap();
    let socket = format!("{}", shell.path("store.db-owner/passing").display());
    let connected = || {
        let all = std::fs::read_to_string("/proc/net/unix").unwrap_or_else(|_| format!("{socket}\n{socket}"));
        all.lines().filter(|line| line.ends_with(&socket)).count() > 1
    };
    while !connected() {}
    kill("-KILL", long.id());
    long.wait().unwrap();
    let said = Said::from(import.wait_with_output().unwrap());
    assert_eq!(said.code, 0, "{}", said.err);
    let report: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(report["data"][0]["turns"], 1, "{report}");
    let imported = report["data"][0]["conversation"]["id"].as_str().unwrap();
    assert_eq!(texts(&shell, imported), ["From a file."]);
}

/// A stream does not go through an owner that is about to end, which would interrupt it.
#[test]
fn a_stream_waits_for_a_command_that_ends_soon() {
    let shell = Shell::new();
    let (first, second) = (shell.new_conversation(), shell.new_conversation());
    let mut long = long_command(&shell, &first);
    let mut command = shell.command(&["append", &second, "--stream", "-"]);
    let mut waiting = command.stdin(Stdio::piped()).spawn().unwrap();
    waiting.stdin.as_mut().unwrap().write_all(b"one ").unwrap();
    drop(long.stdin.take());
    assert!(long.wait().unwrap().success());
    wait_for_door(&shell);
    waiting.stdin.take().unwrap().write_all(b"two").unwrap();
    let said = Said::from(waiting.wait_with_output().unwrap());
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!(texts(&shell, &second), ["one two"]);
}

/// Owners are killed and replaced while others write. Nothing is refused, nothing is lost, nothing is there twice.
#[test]
fn every_append_happens_once_however_often_the_owner_is_killed() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    let done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let killer = threads.spawn(|| {
            let mut kills = 0;
            while !done.load(Ordering::SeqCst) || kills < 3 {
                // The writers may hold the store for longer than a server waits; then the next one tries.
                let mut command = shell.command(&["serve", "--listen", "127.0.0.1:0"]);
                let mut server = command.spawn().unwrap();
                let socket = shell.path("store.db-owner/socket");
                while server.try_wait().unwrap().is_none() {
                    if std::os::unix::net::UnixStream::connect(&socket).is_ok() {
                        kills += 1;
                        break;
                    }
                }
                let _ = server.kill();
                server.wait().unwrap();
            }
        });
        let writers: Vec<_> = (0..2)
            .map(|writer| {
                let (shell, id) = (&shell, &id);
                threads.spawn(move || {
                    for n in 0..15 {
                        let said = shell.run(&["append", id, &format!("{writer}-{n}")]);
                        assert_eq!(said.code, 0, "{writer}-{n}: {}", said.err);
                    }
                })
            })
            .collect();
        let written: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        done.store(true, Ordering::SeqCst);
        killer.join().unwrap();
        assert!(written.iter().all(Result::is_ok));
    });
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    texts(&shell, &id).into_iter().for_each(|text| *counts.entry(text).or_default() += 1);
    assert_eq!((counts.len(), counts.values().max()), (30, Some(&1)), "{counts:?}");
    shell.ok(&["verify", &id]);
}

/// The owner is stopped with the request in its queue, and killed.
#[test]
fn a_request_to_an_owner_that_dies_before_it_answers_is_done_by_the_next() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    let server = Serving::start(&shell, &[]);
    kill("-STOP", server.id());
    let append = shell.command(&["append", &id, "once"]).spawn().unwrap();
    let socket = format!("{}", shell.path("store.db-owner/socket").display());
    // Its connection is in the list of sockets: one that listens, and one that waits to be accepted.
    let connected = || {
        let all = std::fs::read_to_string("/proc/net/unix").unwrap_or_else(|_| format!("{socket}\n{socket}"));
        all.lines().filter(|line| line.ends_with(&socket)).count() > 1
    };
    while !connected() {}
    kill("-KILL", server.id());
    let said = Said::from(append.wait_with_output().unwrap());
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!(texts(&shell, &id), ["once"]);
}

/// What a recorder was about to write when the owner was killed is written by the next one, once.
#[test]
fn a_recorder_neither_loses_nor_doubles_an_entry_when_the_owner_is_killed() {
    const CALLS: usize = 60;
    let shell = Shell::new();
    shell.new_conversation();
    let server = Serving::start(&shell, &[]);
    let answers = r#"while read -r line; do id=${line#*\"id\":}; printf '{"jsonrpc":"2.0","id":%s,"result":{"content":[]}}\n' "${id%%,*}"; done"#;
    let mut command = shell.command(&["record", "--", "sh", "-c", answers]);
    let mut recorder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = recorder.stdin.take().unwrap();
    for n in 0..CALLS {
        let call = json!({"name": "look", "arguments": {"n": n}});
        let call = json!({"jsonrpc": "2.0", "id": n, "method": "tools/call", "params": call});
        writeln!(input, "{call}").unwrap();
    }
    // The session has begun, and most of it is still to be written.
    let listed = || shell.json(&["list", "--json"])["data"].as_array().unwrap().clone();
    let session = loop {
        if let Some(session) = listed().iter().find(|chat| chat["turns"].as_u64() > Some(0)) {
            break session["id"].as_str().unwrap().to_string();
        }
    };
    server.kill();
    drop(input);
    let said = Said::from(recorder.wait_with_output().unwrap());
    assert!(said.code == 0 && !said.err.contains("not recorded"), "{}", said.err);
    assert_eq!(listed().len(), 2);
    let exported = shell.ok(&["export", &session, "--format", "session"]);
    let lines: Vec<Value> = exported.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let count = |kind: &str| lines.iter().filter(|line| line["type"] == kind).count();
    assert_eq!((count("agent_tool_call"), count("tool_result"), count("session_end")), (CALLS, CALLS, 1));
    let numbers: Vec<&Value> = lines.iter().filter_map(|line| line.pointer("/parameters/n")).collect();
    assert_eq!(numbers, (0..CALLS).map(Value::from).collect::<Vec<_>>().iter().collect::<Vec<_>>());
}

/// The folder of the socket belongs to the user alone. A link in its place leads nowhere, and is not followed.
#[test]
fn a_socket_that_others_could_reach_or_replace_is_not_used() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    let folder = shell.path("store.db-owner");
    let mode = |path: &Path| path.symlink_metadata().unwrap().permissions().mode() & 0o777;
    let server = Serving::start(&shell, &[]);
    assert_eq!(mode(&folder), 0o700);
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).unwrap();
    let said = shell.refused(&["append", &id, "x"]);
    assert!(said.contains(&format!("process {}", server.id())), "{said}");
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o700)).unwrap();
    shell.ok(&["append", &id, "x"]);
    server.kill();
    // Somebody else's folder, by a link.
    std::fs::remove_dir_all(&folder).unwrap();
    let elsewhere = shell.path("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::set_permissions(&elsewhere, PermissionsExt::from_mode(0o700)).unwrap();
    symlink(&elsewhere, &folder).unwrap();
    let server = Serving::start(&shell, &[]);
    assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 0, "nothing is written through the link");
    shell.ok(&["append", &id, "y"]);
    server.signal();
    assert_eq!(server.end().0, Some(0));
    // A file of the same name is nobody's socket, and stays.
    std::fs::remove_file(&folder).unwrap();
    std::fs::write(&folder, "mine").unwrap();
    let server = Serving::start(&shell, &[]);
    shell.ok(&["append", &id, "z"]);
    drop(server);
    assert_eq!(std::fs::read_to_string(&folder).unwrap(), "mine");
    assert_eq!(texts(&shell, &id), ["x", "y", "z"]);
}

/// The address of a socket has about a hundred bytes.
#[test]
fn a_store_with_a_long_path_is_shared_too() {
    let shell = Shell::new();
    let folder = shell.path(&"deep/".repeat(40));
    std::fs::create_dir_all(&folder).unwrap();
    let store = format!("sqlite:{}", folder.join("store.db").display());
    let id = shell.json(&["new", "--json", "--store", &store])["id"].as_str().unwrap().to_string();
    let server = Serving::start(&shell, &["--store", &store]);
    shell.ok(&["append", &id, "hello", "--store", &store]);
    // The same file by another way.
    symlink(folder.join("store.db"), shell.path("link.db")).unwrap();
    shell.ok(&["append", &id, "again", "--store", "sqlite:link.db"]);
    assert!(server.ask(&format!("GET /api/v1/conversations/{id}/turns"), "").contains("again"));
    server.signal();
    assert_eq!(server.end().0, Some(0));
}

/// Another process reads an open turn, and follows it as it grows.
#[test]
fn an_open_turn_of_a_server_is_read_and_followed_by_others() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    let server = Serving::start(&shell, &[]);
    let answer = server.ask(&format!("POST /api/v1/conversations/{id}/turns/open"), r#"{"actor": "bot"}"#);
    let turn = answer.split("\"id\":\"").nth(1).unwrap().split('"').next().unwrap().to_string();
    let say = |text: &str| {
        let chunk = json!({"delta": text}).to_string();
        assert!(server.ask(&format!("POST /api/v1/turns/{turn}/chunks"), &chunk).contains(" 200 "));
    };
    let mut tail = shell.command(&["tail", &id]).spawn().unwrap();
    let mut out = tail.stdout.take().unwrap();
    let mut said = String::new();
    let mut shows = |text: &str| {
        while !said.contains(text) {
            let mut bytes = [0; 256];
            let read = out.read(&mut bytes).unwrap();
            assert!(read > 0, "it ended: {said}");
            said.push_str(std::str::from_utf8(&bytes[..read]).unwrap());
        }
        said.clone()
    };
    say("To Lisbon, ");
    shows("To Lisbon, ");
    assert!(shell.ok(&["history", &id]).contains("To Lisbon, "));
    let mut mcp = Mcp::start(&shell, &["--toolsets", "all"]);
    let read = mcp.call("get_turn", &json!({"turn": turn})).unwrap();
    assert_eq!(read["partial"], json!({"text": "To Lisbon, ", "offset": 11}));
    let read = mcp.request("resources/read", &json!({"uri": format!("everturn://conversations/{id}")}));
    assert!(read.to_string().contains("To Lisbon,"), "{read}");
    say("then.");
    shows("To Lisbon, then.");
    server.ask(&format!("POST /api/v1/turns/{turn}/commit"), "{}");
    shell.ok(&["append", &id, "Good."]);
    let all = shows("Good.");
    assert_eq!(all.matches("To Lisbon").count(), 1, "what was shown is not repeated: {all}");
    tail.kill().unwrap();
    tail.wait().unwrap();
}
