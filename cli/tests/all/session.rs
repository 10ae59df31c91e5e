//! Session files by hand: start, append, end, check; no store is touched.

use crate::changing::read_request;
use crate::{Shell, assert_shows};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;

fn start(shell: &Shell) -> String {
    let out = shell.ok(&["session", "start", "photos/img_1", "--subject-key", "image_id"]);
    out.trim_end().to_string()
}

fn lines(shell: &Shell, file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(shell.path(file)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_session_is_written_by_hand_from_start_to_end() {
    let shell = Shell::new();
    let file = shell.ok(&[
        "session",
        "start",
        "photos/img_1",
        "--subject-key",
        "image_id",
        "--agent-provider",
        "claude-sonnet",
        "--agent-temperature",
        "1",
        "--context",
        "taste.md,brief.md",
        "--starting-snapshot-hash",
        "abc",
        "--session-id",
        "u-1",
        "--at",
        "2026-04-27T16:30:00+02:00",
        "--data",
        "{\"camera\":\n\"X\"}",
    ]);
    assert_eq!(file, "photos/img_1/sessions/2026-04-27T14-30-00_session_001.jsonl\n");
    let file = file.trim_end();
    let at = ["--at", "2026-04-27T14:30:05Z"];
    let appended = shell.ok(&[
        &["session", "append", file, "photographer_message", "--text", "warmer"],
        &at[..],
    ]
    .concat());
    assert_eq!(appended, "appended 1 entry\n");
    shell.ok(&[
        &["session", "append", file, "snapshot_created", "--data", r#"{"hash":"h","label":null}"#],
        &at[..],
    ]
    .concat());
    let input = b"{\"tool\":\"crop\",\"type\":\"agent_tool_call\",\"timestamp\":\"2026-04-27T14:30:06Z\",\"parameters\":{}}\n\n{\"type\":\"weather\"}\n";
    let said = shell.run_with(&["session", "append", file, "-", "--json"], input);
    assert_eq!((said.code, said.out.as_str()), (0, "{\"appended\":2}\n"), "{}", said.err);
    assert_eq!(shell.ok(&["session", "check", file]), format!("ok  {file}  4 entries, not ended\n"));
    let ended =
        shell.ok(&["session", "end", file, "--data", r#"{"kept":1}"#, "--at", "2026-04-27T14:31:00Z"]);
    assert_eq!(ended, "ended after 4 entries and 60 s\n");

    let text = std::fs::read_to_string(shell.path(file)).unwrap();
    let expected = [
        r#"{"type":"session_start","timestamp":"2026-04-27T14:30:00.000000Z","session_id":"u-1","image_id":"img_1","started_at":"2026-04-27T14:30:00.000000Z","agent_provider":"claude-sonnet","agent_temperature":1.0,"context_loaded":["taste.md","brief.md"],"starting_snapshot_hash":"abc","camera":"X"}"#,
        r#"{"type":"photographer_message","timestamp":"2026-04-27T14:30:05.000000Z","text":"warmer"}"#,
        r#"{"type":"snapshot_created","timestamp":"2026-04-27T14:30:05.000000Z","hash":"h","label":null}"#,
        r#"{"type":"agent_tool_call","timestamp":"2026-04-27T14:30:06.000000Z","tool":"crop","parameters":{}}"#,
    ];
    assert_eq!(text.lines().take(4).collect::<Vec<_>>(), expected);
    assert!(text.ends_with(
        "\"entries\":4,\"by_type\":{\"agent_tool_call\":1,\"photographer_message\":1,\"snapshot_created\":1,\"weather\":1},\"kept\":1}\n"
    ));
    // Ending it again changes nothing; nothing follows the end.
    let again = shell.run(&["session", "end", file]);
    assert_eq!((again.code, again.out.as_str()), (0, ""));
    assert!(again.err.contains("was ended already; nothing was written"));
    let late = shell.refused(&["session", "append", file, "x"]);
    assert!(late.contains("the session was ended; start another one"), "{late}");
    assert_eq!(std::fs::read_to_string(shell.path(file)).unwrap(), text);
    assert!(!shell.path("store.db").exists(), "no store was needed");
}

#[test]
fn a_session_gets_an_id_a_number_and_the_time() {
    let shell = Shell::new();
    let (first, second) = (start(&shell), start(&shell));
    assert!(
        first.ends_with("_session_001.jsonl") && second.ends_with("_session_002.jsonl"),
        "{first} {second}"
    );
    let id = |file: &str| lines(&shell, file)[0]["session_id"].as_str().unwrap().to_string();
    assert_ne!(id(&first), id(&second));
    let shape: Vec<usize> = id(&first).split('-').map(str::len).collect();
    assert_eq!((shape, &id(&first)[14..15]), (vec![8, 4, 4, 4, 12], "4"));
    let json = shell.json(&["session", "start", "photos/img_1", "--json"]);
    assert!(json["path"].as_str().unwrap().ends_with("_session_003.jsonl"), "{json}");
    assert_eq!(json["session_id"], id(json["path"].as_str().unwrap()));
}

#[test]
fn starts_at_the_same_moment_get_different_files() {
    let shell = Shell::new();
    let children: Vec<_> = (0..16)
        .map(|_| {
            shell.command(&["session", "start", "here", "--at", "2026-04-27T14:30:00Z"]).spawn().unwrap()
        })
        .collect();
    let mut files: Vec<String> =
        children.into_iter().map(|child| crate::Said::from(child.wait_with_output().unwrap()).out).collect();
    files.sort();
    let expected: Vec<String> =
        (1..=16).map(|n| format!("here/sessions/2026-04-27T14-30-00_session_{n:03}.jsonl\n")).collect();
    assert_eq!(files, expected);
}

#[test]
fn a_torn_file_is_found_mended_and_goes_on() {
    let shell = Shell::new();
    let file = start(&shell);
    shell.ok(&["session", "append", &file, "photographer_message", "--text", "one"]);
    let mut text = std::fs::read_to_string(shell.path(&file)).unwrap();
    text += "{\"type\":\"agent_thin";
    std::fs::write(shell.path(&file), &text).unwrap();
    let said = shell.run(&["session", "check", &file]);
    assert_eq!(said.code, 1);
    let at = text.rfind('\n').unwrap() + 1;
    assert_eq!(
        said.out,
        format!(
            "BROKEN  {file}  1 entry, not ended\n  the last line is incomplete: 19 bytes from byte {at}; `session append` repairs it\n"
        )
    );
    let said = shell.run(&["session", "append", &file, "photographer_message", "--text", "two"]);
    assert_eq!(said.code, 0);
    assert_eq!(said.err, format!("the last line is incomplete; its 19 bytes are in {file}.torn\n"));
    assert_eq!(
        std::fs::read_to_string(shell.path(&format!("{file}.torn"))).unwrap(),
        "{\"type\":\"agent_thin"
    );
    assert_eq!(lines(&shell, &file)[2]["text"], "two");
    assert_eq!(shell.run(&["session", "check", &file]).code, 0);
}

#[test]
fn a_check_tells_files_that_are_whole_from_those_that_are_not() {
    let shell = Shell::new();
    let good = start(&shell);
    shell.ok(&["session", "append", &good, "x"]);
    shell.ok(&["session", "end", &good]);
    let text = std::fs::read_to_string(shell.path(&good)).unwrap();
    let damaged = text.replacen("{\"type\":\"x\"", "{\"type\":x\"", 1);
    std::fs::write(shell.path("damaged.jsonl"), damaged).unwrap();
    std::fs::write(shell.path("foreign.jsonl"), "{\"type\":\"session_start\",\"session_id\":\"x\"}\n[1]\n")
        .unwrap();
    std::fs::write(shell.path("empty.jsonl"), "").unwrap();
    assert_eq!(shell.ok(&["session", "check", &good]), format!("ok  {good}  1 entry\n"));
    let said = shell.run(&[
        "session",
        "check",
        &good,
        "damaged.jsonl",
        "foreign.jsonl",
        "empty.jsonl",
        "absent.jsonl",
    ]);
    assert_eq!((said.code, said.err.as_str()), (1, ""));
    let rest = said.out.split_once('\n').unwrap().1.to_string();
    assert_shows!(rest, @r#"
    BROKEN  damaged.jsonl  0 entries
      line 2: not JSON at byte 8: expected a JSON value
      line 3: session_end counts 1 entries, the file has 0 before it; lines are missing or were added
      line 3: session_end counts the entries of type "x" otherwise than the file
    BROKEN  foreign.jsonl  1 entry, not ended
      line 1: the header has no started_at time
      line 2: it is no object with a type
      note: line 1: the header has no agent_provider
      note: line 1: the header has no agent_temperature
      note: line 1: the header has no context_loaded
      note: line 1: the header has no starting_snapshot_hash
    BROKEN  empty.jsonl: the file is empty; there is nothing to check
    BROKEN  absent.jsonl: cannot open it: No such file or directory (os error 2)
    "#);
    let json: Value =
        serde_json::from_str(&shell.run(&["session", "check", &good, "damaged.jsonl", "--json"]).out)
            .unwrap();
    assert_eq!((&json["data"][0]["ok"], &json["data"][0]["by_type"]["x"]), (&true.into(), &1.into()));
    assert_eq!(json["data"][1]["corrupt_lines"][0]["line"], 2);
}

#[test]
fn an_exported_conversation_can_be_checked_and_is_not_appended_to_by_hand() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    shell.ok(&["append", &id, "hello"]);
    shell.ok(&["export", &id, "-o", "session.jsonl"]);
    assert_shows!(shell.ok(&["session", "check", "session.jsonl"]), @r"
    ok  session.jsonl  2 entries
      note: this is the file of a conversation; `everturn verify` checks its chain
    ");
    let error = shell.refused(&["session", "append", "session.jsonl", "x"]);
    assert!(error.contains("is the file of a conversation; append to it in its store"), "{error}");
}

#[test]
fn what_cannot_be_written_is_refused_with_what_to_do() {
    let shell = Shell::new();
    let file = start(&shell);
    for (args, says) in [
        (&["session", "start", ".."][..], ".. names no folder; write it as photos/img_1"),
        (&["session", "start", "a:b"], "leave out / \\ :"),
        (&["session", "start", "x", "--data", "[1]"], "--data: this must be a JSON object, not [1]"),
        (&["session", "start", "x", "--subject-key", "type"], "duplicate key \"type\""),
        (&["session", "append", "absent.jsonl", "x"], "cannot open absent.jsonl: it is not there"),
        (&["session", "append", &file, "session_end"], "end the session instead"),
        (&["session", "append", &file, "x", "--data", "{"], "--data: not JSON at byte 1"),
        (&["session", "append", &file, "-", "--text", "x"], "leave out --text"),
        (
            &["session", "append", &file, "x", "--text", "a", "--data", r#"{"text":1}"#],
            "duplicate key \"text\"",
        ),
    ] {
        let error = shell.refused(args);
        assert!(error.contains(says), "{args:?}: {error}");
    }
    let input = b"{\"type\":\"good\"}\n{\"text\":\"no type\"}\n{\"type\":\"never read\"}\n";
    let said = shell.run_with(&["session", "append", &file, "-"], input);
    assert_eq!((said.code, said.out.as_str()), (1, ""));
    assert!(
        said.err.contains("entry 2 of standard input (those before it are kept): it has no type"),
        "{}",
        said.err
    );
    assert_eq!(lines(&shell, &file).len(), 2);
    assert_eq!(shell.run(&["session"]).code, 2);
}

#[test]
fn a_session_that_is_being_written_is_refused() {
    use std::io::{BufRead, Write};
    let shell = Shell::new();
    let file = start(&shell);
    let mut first = shell
        .command(&["session", "append", &file, "-"])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = first.stdin.take().unwrap();
    stdin.write_all(b"{\"type\":\"x\"}\n").unwrap();
    // The line is there once the first process holds the file.
    let reader = || std::io::BufReader::new(std::fs::File::open(shell.path(&file)).unwrap());
    while reader().lines().count() < 2 {}
    let error = shell.refused(&["session", "append", &file, "y"]);
    assert!(error.contains("is being written by somebody else; wait until they are done"), "{error}");
    drop(stdin);
    assert!(first.wait().unwrap().success());
    shell.ok(&["session", "append", &file, "y"]);
    assert_eq!(lines(&shell, &file).len(), 3);
}

/// A server that ends, or answers with too much, after its first call.
const FAILS: [&str; 2] = [
    "read line; exit 3",
    "read line; printf '{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"x\":\"'; head -c 17000000 /dev/zero | tr '\\0' x; printf '\"}}\\n'",
];

/// Regression: the call waited for its result for ever, in a conversation that was closed.
#[test]
fn a_recorded_call_without_a_result_is_given_up_at_the_end() {
    let call = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"look\",\"arguments\":{}}}\n";
    for fails in FAILS {
        let shell = Shell::new();
        let other = shell.new_conversation();
        for target in [&["--conversation", &other][..], &[]] {
            shell.run_with(&[&["record"], target, &["--", "sh", "-c", fails]].concat(), call);
            let state = shell.json(&["state", "@last", "--json"]);
            assert_eq!(state["pending_tools"], serde_json::json!([]), "{state}");
            let history = shell.ok(&["history", "@last", "--json"]);
            assert!(history.contains("ended before a result was recorded"), "{history}");
        }
        shell.ok(&["verify", "@last"]);
        let exported = shell.ok(&["export", "@last", "--format", "session"]);
        std::fs::write(shell.path("exported.jsonl"), exported).unwrap();
        assert!(shell.ok(&["session", "check", "exported.jsonl"]).starts_with("ok"));
    }
}

/// Regression: the file began later than its first entry, and the check complained about it.
#[test]
fn a_recorded_session_begins_with_its_first_entry() {
    let shell = Shell::new();
    let hello = b"{\"jsonrpc\":\"2.0\",\"id\":0,\"method\":\"initialize\",\"params\":{}}\n{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"look\"}}\n";
    let answers = "read line; printf '{\"jsonrpc\":\"2.0\",\"id\":0,\"result\":{}}\\n'; read line; exit 0";
    shell.run_with(&["record", "--session", "photos/img_1", "--", "sh", "-c", answers], hello);
    let folder = std::fs::read_dir(shell.path("photos/img_1/sessions")).unwrap();
    let file = folder.map(|file| file.unwrap().file_name().into_string().unwrap()).next().unwrap();
    let file = format!("photos/img_1/sessions/{file}");
    let checked = shell.ok(&["session", "check", &file]);
    assert_eq!(checked, format!("ok  {file}  3 entries\n"));
    let lines = lines(&shell, &file);
    assert!(lines[0]["timestamp"].as_str() <= lines[1]["timestamp"].as_str(), "{lines:?}");
    let mut types: Vec<&str> = lines.iter().map(|line| line["type"].as_str().unwrap()).collect();
    // The client does not wait for the first answer before it calls.
    types[1..3].sort();
    assert_eq!(types, ["session_start", "agent_tool_call", "mcp_dispatch", "tool_result", "session_end"]);
}

/// Regression: a call with half of a surrogate pair was not recorded, although its result was.
#[test]
fn half_a_character_is_recorded_as_a_replacement_and_passes_as_it_is() {
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"look","arguments":{"at":"a\ud83d"}}}"#;
    let answer = r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"\ude00b"}]}}"#;
    let server = format!("read -r line; printf '%s\\n' \"$line\" > heard; printf '%s\\n' '{answer}'");
    let call = format!("{call}\n");
    for target in [&["--session", "work"][..], &[]] {
        let shell = Shell::new();
        let args = [&["record"], target, &["--", "sh", "-c", &server]].concat();
        let said = shell.run_with(&args, call.as_bytes());
        assert!(said.code == 0 && !said.err.contains("not recorded"), "{}", said.err);
        assert_eq!(said.out, format!("{answer}\n"));
        assert_eq!(std::fs::read_to_string(shell.path("heard")).unwrap(), call);
        if target.is_empty() {
            let exported = shell.ok(&["export", "@last", "--format", "session"]);
            std::fs::write(shell.path("file"), exported).unwrap();
        } else {
            let written = std::fs::read_dir(shell.path("work/sessions")).unwrap().next().unwrap().unwrap();
            std::fs::rename(written.path(), shell.path("file")).unwrap();
        }
        let entries = lines(&shell, "file");
        let of = |kind: &str| entries.iter().find(|entry| entry["type"] == kind).unwrap();
        assert_eq!(of("agent_tool_call")["parameters"]["at"], "a\u{fffd}");
        assert_eq!(of("tool_result")["result"]["content"][0]["text"], "\u{fffd}b");
    }
}

/// `{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"RESULTWORD"}]}}`, compressed.
const GZIP: &[u8] = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xab\x56\xca\x2a\xce\xcf\x2b\x2a\x48\x56\xb2\x52\x32\xd2\x33\x50\xd2\x51\xca\x4c\x51\xb2\x32\xd4\x51\x2a\x4a\x2d\x2e\xcd\x29\x51\xb2\xaa\x56\x4a\xce\xcf\
  \x2b\x49\xcd\x03\x32\xa3\xab\x95\x4a\x2a\x0b\x52\x81\x2a\x4b\x52\x2b\x4a\x80\x4a\xc1\x94\x95\x52\x90\x6b\x70\xa8\x4f\x48\xb8\x7f\x90\x8b\x52\x6d\x6c\x6d\x2d\x00\xa4\x47\xfb\xac\x53\x00\x00\x00";

/// Regression: the record held the key in the server's URL, and of a compressed answer only that there was none.
#[test]
fn a_recorded_server_keeps_its_keys_and_its_compressed_answers_are_read() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = format!("http://user:PWSECRET@{}/mcp?api_key=URLSECRET", listener.local_addr().unwrap());
    let asked = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let head = read_request(&stream).0;
        let (kind, length) = ("content-type: application/json\r\ncontent-encoding: gzip", GZIP.len());
        write!(stream, "HTTP/1.1 200 OK\r\n{kind}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n")
            .unwrap();
        stream.write_all(GZIP).unwrap();
        head
    });
    let shell = Shell::new();
    let mut child = shell.command(&["record", "--to", &to, "--listen", "127.0.0.1:0"]).spawn().unwrap();
    let mut err = BufReader::new(child.stderr.take().unwrap());
    let mut greeting = String::new();
    while !greeting.contains("Ctrl-C") {
        assert!(err.read_line(&mut greeting).unwrap() > 0, "it ended: {greeting}");
    }
    let address = greeting.split("http://").nth(1).unwrap().split(' ').next().unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"look","arguments":{}}}"#;
    let headers = "accept-encoding: gzip, deflate\r\nconnection: close\r\n";
    crate::process::send(&mut stream, "POST /mcp", call, headers);
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(answer.ends_with(GZIP), "the client gets the bytes of the server");
    let head = asked.join().unwrap().to_ascii_lowercase();
    assert!(head.contains("accept-encoding: identity") && head.contains("api_key=urlsecret"), "{head}");
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    child.wait().unwrap();
    let history = shell.ok(&["history", "@last", "--json"]);
    assert!(history.contains("RESULTWORD") && !history.contains("ended before"), "{history}");
    let mut said = greeting;
    for format in ["jsonl", "session", "transcript"] {
        said += &shell.ok(&["export", "@last", "--format", format]);
    }
    assert!(said.contains("/mcp") && !said.contains("SECRET"), "{said}");
}
