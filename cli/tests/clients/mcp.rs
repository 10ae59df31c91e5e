//! `everturn mcp`, as an MCP client starts it.

use crate::{EVERTURN, store, told};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The lines of every session file below a folder.
fn recorded(folder: &Path) -> Vec<Vec<Value>> {
    let files = std::fs::read_dir(folder.join("default/sessions")).unwrap();
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    let lines = |path: &PathBuf| {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    files.iter().map(lines).collect()
}

/// The official client for Python, which `./test` installs.
#[test]
fn the_python_client_works_over_stdio() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("record");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../server/tests/clients/python/mcp_client.py");
    let output = Command::new(told("EVERTURN_TEST_PYTHON"))
        .arg("-Wignore")
        .arg(script)
        .args(["stdio", EVERTURN, "mcp", "--store", &store(&folder)])
        .arg("--record")
        .arg(&record)
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    assert_eq!(out, "with a session: 2025-11-25\nas it likes: 2026-07-28\n");
    let sessions = recorded(&record);
    assert_eq!(sessions.len(), 2);
    for session in sessions {
        assert_eq!(session[0]["transport"], "stdio");
        assert!(
            session.iter().any(|line| line["type"] == "agent_tool_call" && line["tool"] == "append_turns")
        );
        assert_eq!(session.last().unwrap()["type"], "session_end", "the file is ended with the session");
    }
}

/// A client that writes and reads lines.
struct Client {
    child: Child,
    answers: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Client {
    fn start(store: &str, arguments: &[&str]) -> Client {
        let mut child = Command::new(EVERTURN)
            .args(["mcp", "--store", store])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut client = Client { child, answers };
        let hello = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        });
        client.ask("initialize", hello);
        client.say(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        client
    }

    fn say(&mut self, message: &Value) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{message}").unwrap();
    }

    /// Begins a conversation with a turn.
    fn converse(&mut self, text: &str) -> Value {
        let new = json!({"name": "create_conversation", "arguments": {}});
        let id = self.ask("tools/call", new)["structuredContent"]["id"].clone();
        let turns = json!([{"role": "user", "content": text}]);
        let said = json!({"name": "append_turns", "arguments": {"conversation": id, "turns": turns}});
        self.ask("tools/call", said)
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        self.say(&json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}));
        loop {
            let line = self.answers.next().unwrap().unwrap();
            let message: Value =
                serde_json::from_str(&line).expect("standard output has nothing but messages");
            if message.get("id").is_some() {
                return message["result"].clone();
            }
        }
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
        for line in self.answers {
            let message: Value = serde_json::from_str(&line.unwrap()).unwrap();
            assert!(message.get("id").is_none(), "only notifications may still come: {message}");
        }
    }
}

#[test]
fn read_only_offers_what_reads_beside_one_that_writes() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder);
    let mut writer = Client::start(&store, &["-vv"]);
    let said = writer.converse("hello");
    assert_eq!(said["isError"], false, "{said}");

    let mut reader = Client::start(&store, &["--read-only"]);
    let tools = reader.ask("tools/list", json!({}));
    assert_eq!(tools["tools"].as_array().unwrap().len(), 11);
    let found =
        reader.ask("tools/call", json!({"name": "list_turns", "arguments": {"conversation": "@last"}}));
    assert_eq!(found["structuredContent"]["data"][0]["content"], "hello");
    let refused = reader.ask("tools/call", json!({"name": "create_conversation", "arguments": {}}));
    assert!(refused["content"][0]["text"].as_str().unwrap().starts_with("access.role: "), "{refused}");
    reader.end();
    writer.end();
}

/// A store that was restored or copied has no index, and a read-only process creates none: "nothing found"
/// alone would suggest that it was never said.
#[test]
fn read_only_says_that_what_is_not_indexed_is_not_searched() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder);
    let mut writer = Client::start(&store, &[]);
    writer.converse("the lighthouse");
    writer.end();
    std::fs::remove_dir_all(folder.path().join("store.db-index")).unwrap();
    let mut reader = Client::start(&store, &["--read-only"]);
    let found = reader.ask("tools/call", json!({"name": "recall", "arguments": {"query": "lighthouse"}}));
    let found = &found["structuredContent"];
    assert_eq!(found["data"], json!([]));
    assert!(found["note"].as_str().unwrap().contains("run `everturn recall --index`"), "{found}");
    reader.end();
}

/// `everturn erase` is not told the folders of recorded MCP sessions; the store knows them.
#[test]
fn erasing_reaches_sessions_that_were_recorded_and_mirrors() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder);
    let path = |name: &str| folder.path().join(name).display().to_string();
    let mut writer = Client::start(&store, &["--record", &path("records"), "--mirror", &path("mirror")]);
    writer.converse("call it the quetzalcoatlus");
    writer.end();
    let mut reader = Client::start(&store, &["--read-only", "--record", &path("others")]);
    let read = json!({"name": "list_turns", "arguments": {"conversation": "@last"}});
    let said = reader.ask("tools/call", read)["structuredContent"].to_string();
    reader.end();
    let turn = said.split("\"turn_").nth(1).unwrap().split('"').next().unwrap();
    let holding = || {
        let found = Command::new("grep").args(["-rl", "quetzalcoatlus"]).arg(folder.path()).output().unwrap();
        String::from_utf8(found.stdout).unwrap()
    };
    for place in ["records/default", "others/default", "mirror/default", "store.db"] {
        assert!(holding().contains(place), "{place} is not in {}", holding());
    }
    let erased = Command::new(EVERTURN)
        .args(["erase", "--store", &store, &format!("turn_{turn}"), "--reason", "asked for"])
        .output()
        .unwrap();
    assert!(erased.status.success(), "{}", String::from_utf8_lossy(&erased.stderr));
    assert_eq!(holding(), "");
    assert_eq!(recorded(&folder.path().join("records")).len(), 1, "the file itself stays, and can be read");
}

#[test]
fn a_client_that_goes_away_at_once_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new(EVERTURN)
        .args(["mcp", "--store", &store(&folder)])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdin.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stdout.is_empty());
}
