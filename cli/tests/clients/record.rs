//! `everturn record` between the official client and a real MCP server.

use crate::{EVERTURN, everturn, lines, script, store, told};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

/// The reference server, which has a tool of every kind.
fn server() -> String {
    let path = "@modelcontextprotocol/server-everything/dist/index.js";
    Path::new(&told("EVERTURN_TEST_NODE_MODULES")).join(path).display().to_string()
}

fn client(folder: &TempDir, args: &[&str]) -> Output {
    let output = Command::new(told("EVERTURN_TEST_NODE"))
        .arg(script("mcp_client.mjs", folder))
        .args(args)
        .env("EVERTURN_RECALL_EMBEDDER", "none")
        .env_remove("EVERTURN_URL")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

/// What the client gets, with these words in front of the server's command.
fn over_stdio(folder: &TempDir, between: &[&str]) -> Output {
    let (node, server) = (told("EVERTURN_TEST_NODE"), server());
    client(folder, &[&["stdio"], between, &[node.as_str(), server.as_str()]].concat())
}

fn session_files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder.join("sessions")).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    files
}

/// The entries that every recording of the client has.
fn check_entries(entries: &[Value]) {
    let of = |kind: &str| -> Vec<&Value> { entries.iter().filter(|entry| entry["type"] == kind).collect() };
    let (calls, results) = (of("agent_tool_call"), of("tool_result"));
    assert_eq!(calls.len(), 4, "{entries:?}");
    assert_eq!(calls[0]["parameters"], json!({"message": "häl\n\"lo\""}));
    let pairs =
        |entries: &[&Value]| -> Vec<Value> { entries.iter().map(|entry| entry["call_id"].clone()).collect() };
    assert_eq!(pairs(&calls), pairs(&results));
    assert_eq!(results[0]["result"]["content"][0]["text"], "Echo: häl\n\"lo\"");
    let failed: Vec<&Value> = results.iter().map(|entry| &entry["is_error"]).collect();
    assert_eq!(failed, [false, false, true, true]);
    assert!(results.iter().all(|entry| entry["duration_ms"].as_f64().unwrap() > 0.0));
    let methods: Vec<&Value> = of("mcp_dispatch").iter().map(|entry| &entry["method"]).collect();
    for method in ["initialize", "tools/list", "prompts/list"] {
        assert!(methods.contains(&&json!(method)), "{method} is not in {methods:?}");
    }
}

#[test]
fn a_session_file_has_every_dispatch_over_stdio() {
    let folder = tempfile::tempdir().unwrap();
    let alone = over_stdio(&folder, &[]);
    let work = folder.path().join("photos/img_1");
    let through = over_stdio(&folder, &[EVERTURN, "record", "--session", work.to_str().unwrap(), "--"]);
    assert_eq!(lines(&through.stdout), lines(&alone.stdout), "the client cannot tell the difference");
    let files = session_files(&work);
    assert_eq!(files.len(), 1);
    let entries = lines(&std::fs::read(&files[0]).unwrap());
    assert_eq!(
        (&entries[0]["agent_provider"], &entries[0]["transport"]),
        (&json!("tester 3.1"), &json!("stdio"))
    );
    assert_eq!(entries.last().unwrap()["type"], "session_end");
    check_entries(&entries);
    let checked = Command::new(EVERTURN).args(["session", "check"]).arg(&files[0]).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
}

#[test]
fn a_conversation_has_every_dispatch_and_exports_as_a_session() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder);
    over_stdio(&folder, &[EVERTURN, "record", "--store", &store, "--"]);
    let listed = everturn(&store, &["list"]);
    assert_eq!(listed["data"].as_array().unwrap().len(), 1);
    assert_eq!(listed["data"][0]["state"], "closed", "it ended with the server");
    let exported = folder.path().join("session.jsonl");
    let export = Command::new(EVERTURN)
        .args(["export", "@last", "--format", "session", "--store", &store, "-o"])
        .arg(&exported)
        .output()
        .unwrap();
    assert!(export.status.success(), "{}", String::from_utf8_lossy(&export.stderr));
    let entries = lines(&std::fs::read(&exported).unwrap());
    assert_eq!(entries.last().unwrap()["type"], "session_end");
    check_entries(&entries);
    let checked = Command::new(EVERTURN).args(["session", "check"]).arg(&exported).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
    // Into one that is there: what it had stays.
    let other = everturn(&store, &["new"])["id"].as_str().unwrap().to_string();
    over_stdio(&folder, &[EVERTURN, "record", "--store", &store, "--conversation", &other, "--"]);
    let turns = everturn(&store, &["history", &other]);
    assert_eq!(turns["data"].as_array().unwrap().len(), 8, "four calls and their results: {turns}");
    assert_eq!(everturn(&store, &["list"])["data"].as_array().unwrap().len(), 2);
}

#[test]
fn a_call_never_fails_because_it_cannot_be_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let alone = lines(&over_stdio(&folder, &[]).stdout);
    for target in
        [["--session", "/proc/none/x"], ["--store", "sqlite:/dev/null/x.db"], ["--conversation", "conv_none"]]
    {
        let through = over_stdio(&folder, &[&[EVERTURN, "record"], &target[..], &["--"]].concat());
        assert_eq!(lines(&through.stdout), alone);
        let err = String::from_utf8_lossy(&through.stderr).into_owned();
        assert_eq!(err.matches("everturn: calls go on").count(), 1, "{target:?}: {err}");
    }
}

/// The answer of a fast server was heard before the question: a few of a hundred results were missing.
#[test]
fn an_answer_is_never_heard_before_its_question() {
    let folder = tempfile::tempdir().unwrap();
    let work = folder.path().join("work");
    let echo = "let rest = ''; process.stdin.on('data', (data) => { const lines = (rest + data).split('\\n'); rest = lines.pop(); \
        for (const line of lines) process.stdout.write(JSON.stringify({jsonrpc: '2.0', id: JSON.parse(line).id, result: {}}) + '\\n'); })";
    let mut child = Command::new(EVERTURN)
        .args(["record", "--session"])
        .arg(&work)
        .args(["--", &told("EVERTURN_TEST_NODE"), "-e", echo])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut answers = BufReader::new(child.stdout.take().unwrap()).lines();
    const CALLS: usize = 1000;
    for id in 0..CALLS {
        let call = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "echo"}});
        writeln!(input, "{call}").unwrap();
        assert!(answers.next().unwrap().unwrap().contains(&format!("\"id\":{id}")));
    }
    drop(input);
    assert!(child.wait().unwrap().success());
    let end = lines(&std::fs::read(&session_files(&work)[0]).unwrap()).pop().unwrap();
    assert_eq!(end["by_type"], json!({"agent_tool_call": CALLS, "tool_result": CALLS}));
}

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn streams_over_http_pass_and_are_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut server = Command::new(told("EVERTURN_TEST_NODE"))
        .args([&server(), "streamableHttp"])
        .env("PORT", free.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(server.stderr.take().unwrap()).lines();
    let _server = Running(server);
    while !said.next().unwrap().unwrap().contains("listening") {}
    std::thread::spawn(move || said.for_each(drop));
    let upstream = format!("http://127.0.0.1:{free}/mcp");
    let alone = lines(&client(&folder, &["http", &upstream]).stdout);

    let work = folder.path().join("work");
    let mut proxy = Command::new(EVERTURN)
        .args(["record", "--to", &upstream, "--listen", "127.0.0.1:0", "--session"])
        .arg(&work)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(proxy.stderr.take().unwrap()).lines();
    let greeting = said.next().unwrap().unwrap();
    std::thread::spawn(move || said.for_each(drop));
    let mut proxy = Running(proxy);
    let url = greeting.split("passes on ").nth(1).unwrap().split(' ').next().unwrap();
    // With the path of the server and without it.
    for url in [format!("{url}/mcp"), url.to_string()] {
        assert_eq!(lines(&client(&folder, &["http", &url]).stdout), alone);
    }
    // A page of another site gets nothing.
    let mut stream = TcpStream::connect(url.rsplit('/').next().unwrap()).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n").unwrap();
    let mut refused = String::new();
    stream.read_to_string(&mut refused).unwrap();
    assert!(refused.starts_with("HTTP/1.1 403") && refused.contains("access.host"), "{refused}");
    assert!(Command::new("kill").arg(proxy.0.id().to_string()).status().unwrap().success());
    assert!(proxy.0.wait().unwrap().success());
    let files = session_files(&work);
    assert_eq!(files.len(), 1, "one run, one file");
    let entries = lines(&std::fs::read(&files[0]).unwrap());
    let calls = entries.iter().filter(|entry| entry["type"] == "agent_tool_call").count();
    assert_eq!((calls, &entries.last().unwrap()["type"]), (8, &json!("session_end")));
}
