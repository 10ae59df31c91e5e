//! Verbs that change a conversation, generate replies, or clean up.

use crate::{Said, Shell};
use everturn_core::approval::ApprovalBody;
use everturn_engine::Everturn;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// More than any step takes, also on a busy machine. Only a failing test waits this long.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn settings_are_changed_and_taken_away() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    let set = [
        "update",
        &id,
        "--title",
        "Lisbon",
        "--metadata",
        r#"{"a": 1, "b": 2}"#,
        "--ttl",
        "60",
        "--retention",
        "ephemeral",
        "--system-prompt",
        "Be brief.",
        "--json",
    ];
    let now = shell.json(&set);
    assert_eq!(
        (&now["title"], &now["ttl"], &now["retention"]),
        (&json!("Lisbon"), &json!(60), &json!("ephemeral"))
    );
    assert_eq!(now["metadata"]["system_prompt"]["content"], "Be brief.");
    let less = ["update", &id, "--title", "", "--metadata", r#"{"a": null}"#, "--ttl", "none", "--json"];
    let now = shell.json(&less);
    assert_eq!((now.get("title"), now.get("ttl")), (None, None), "{now}");
    assert_eq!((now["metadata"].get("a"), &now["metadata"]["b"]), (None, &json!(2)));
    assert_eq!(now["retention"], "ephemeral", "what is not named stays");
    let said = shell.refused(&["update", &id, "--policy", "redaction=mask"]);
    assert!(
        said.contains("--policy must be a JSON object such as '{\"a\": 1}': not JSON at byte 0"),
        "{said}"
    );
}

#[test]
fn a_turn_is_replaced_in_its_role_and_by_its_actor() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    let old = shell.json(&["append", &id, "To Faro.", "--role", "assistant", "--actor", "planner", "--json"]);
    let new = shell.json(&["supersede", old["id"].as_str().unwrap(), "To Porto.", "--json"]);
    assert_eq!((&new["role"], &new["actor"]), (&json!("assistant"), &json!("planner")));
    let turns = shell.json(&["history", &id, "--json"]);
    let words: Vec<&Value> = turns["data"].as_array().unwrap().iter().map(|turn| &turn["content"]).collect();
    assert_eq!(words, ["To Porto."]);
}

/// The result of a tool used to stand beside a call that was said to wait for it.
#[test]
fn a_tools_text_answers_the_only_call_that_waits() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    let call = |ids: &[&str]| {
        let call = |id: &&str| json!({"type": "tool_use", "id": id, "name": "look", "input": {}});
        let message = json!({"role": "assistant", "content": ids.iter().map(call).collect::<Vec<_>>()});
        shell.ok(&["append", &id, "--message", &message.to_string()]);
    };
    let pending = || shell.json(&["state", &id, "--json"])["pending_tools"].as_array().unwrap().len();
    call(&["c1"]);
    assert_eq!(pending(), 1);
    let turn = shell.json(&["append", &id, "--role", "tool", "seen", "--json"]);
    assert_eq!((&turn["message"]["tool_call_id"], pending()), (&json!("c1"), 0), "{turn}");
    call(&["c2", "c3"]);
    let said = shell.refused(&["append", &id, "--role", "tool", "whose?"]);
    assert!(said.contains("2 calls wait for a result: c2 (look), c3 (look)"), "{said}");
    shell.ok(&["append", &id, "--role", "tool", "--tool-call-id", "c3", "seen"]);
    assert_eq!(pending(), 1);
    assert!(!shell.ok(&["history", &id]).contains("given up"));
    assert!(shell.ok(&["abandon-call", &id]).starts_with("abandoned c2 at #"));
    let history = shell.ok(&["history", &id]);
    assert_eq!(history.matches("✗ given up").count(), 1, "{history}");
    assert_eq!(pending(), 0);
    // An agent may use an id again: the calls before and after it, which were answered, are none that were given up.
    call(&["c1"]);
    shell.ok(&["abandon-call", &id]);
    call(&["c1"]);
    shell.ok(&["append", &id, "--role", "tool", "--tool-call-id", "c1", "seen"]);
    let history = shell.ok(&["history", &id]);
    assert_eq!(history.matches("✗ given up").count(), 2, "{history}");
}

#[test]
fn what_waits_is_approved_once() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    let ask = |approval: &str| {
        let store = Everturn::open(&format!("sqlite:{}", shell.path("store.db").display())).unwrap();
        let request = ApprovalBody { approval_id: approval.into(), ..ApprovalBody::default() };
        store
            .tenant("default")
            .unwrap()
            .conversation(id.parse().unwrap())
            .state()
            .request_approval(request, Some("agent".into()))
            .wait()
            .unwrap();
    };
    ask("a1");
    ask("a2");
    let event = shell.json(&["approve", &id, "a1", "--actor", "ana", "--reason", "checked", "--json"]);
    assert_eq!((&event["body"]["approval_id"], &event["body"]["state"]), (&json!("a1"), &json!("approved")));
    assert_eq!((&event["actor"], &event["body"]["reason"]), (&json!("ana"), &json!("checked")));
    let late = shell.refused(&["deny", &id, "a1"]);
    assert!(late.contains("approval \"a1\" was approved by ana at ") && late.contains("(checked)"), "{late}");
    shell.ok(&["request-approval", &id, "a3", "--question", "Send?", "--deadline", "2999-01-01T00:00:00Z"]);
    assert_eq!(
        shell.json(&["state", &id, "--json"])["pending_approvals"][1]["deadline"],
        "2999-01-01T00:00:00.000000Z"
    );
    shell.ok(&["approve", &id, "a3"]);
    assert!(shell.ok(&["deny", &id, "a2"]).starts_with("denied at #"));
    assert_eq!(shell.json(&["state", &id, "--json"])["pending_approvals"], json!([]));
}

/// Regression: without a server, the command was refused and its words were lost.
#[test]
fn words_for_a_model_that_waits_for_an_approval_are_kept_and_answered_after_it() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    shell.ok(&["request-approval", &id, "a1"]);
    let url = fake_model("To Lisbon, then.");
    let asked = ["generate", &id, "Where to?", "--base-url", &url, "--model", "fake"];
    let waiting = shell.command(&asked).spawn().unwrap();
    let patience = Instant::now();
    while !shell.ok(&["history", &id, "--json"]).contains("Where to?") {
        assert!(patience.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(10));
    }
    shell.ok(&["approve", &id, "a1"]);
    let said = Said::from(waiting.wait_with_output().unwrap());
    assert_eq!((said.out.as_str(), said.code), ("To Lisbon, then.\n", 0), "{}", said.err);
    assert_eq!(said.err, "the model is asked once a1 is resolved\n");
}

#[test]
fn what_has_expired_is_swept() {
    let shell = Shell::new();
    let kept = shell.new_conversation();
    shell.ok(&["new", "--ttl", "1"]);
    let end = Instant::now() + PATIENCE;
    while shell.json(&["sweep", "--json"])["expired"] != 1 {
        assert!(Instant::now() < end);
    }
    let left = shell.json(&["list", "--json"]);
    assert_eq!((left["data"].as_array().unwrap().len(), &left["data"][0]["id"]), (1, &json!(kept)));
    assert_eq!(shell.ok(&["sweep"]), "nothing to sweep\n");
    assert!(shell.refused(&["sweep", "--url", "http://127.0.0.1:9"]).contains("sweeps by itself"));
}

/// Where every command only reads, nobody used to sweep.
#[test]
fn a_command_that_only_reads_sweeps_what_has_expired() {
    let shell = Shell::new();
    let kept = shell.new_conversation();
    shell.ok(&["new", "--title", "A zebra for a moment", "--ttl", "1"]);
    let end = Instant::now() + PATIENCE;
    while shell.json(&["list", "--json"])["data"].as_array().unwrap().len() > 1 {
        assert!(Instant::now() < end);
    }
    assert_eq!(shell.json(&["list", "--json"])["data"][0]["id"], kept);
    for entry in std::fs::read_dir(shell.folder.path()).unwrap() {
        let path = entry.unwrap().path();
        let bytes = if path.is_file() { std::fs::read(&path).unwrap() } else { Vec::new() };
        assert!(!String::from_utf8_lossy(&bytes).contains("A zebra for"), "{}", path.display());
    }
}

/// Answers each request for chat completions with the same text.
pub fn fake_model(answer: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    std::thread::spawn(move || listener.incoming().flatten().for_each(|stream| reply(stream, answer)));
    url
}

/// The body of the request that a fake server was sent.
pub fn read_body(stream: &TcpStream) -> Vec<u8> {
    read_request(stream).1
}

/// Head and body of the request that a fake server was sent.
pub fn read_request(stream: &TcpStream) -> (String, Vec<u8>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if line.trim().is_empty() {
            break;
        }
        if let Some(bytes) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = bytes.trim().parse().unwrap();
        }
        head += &line;
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    (head, body)
}

fn reply(stream: TcpStream, answer: &str) {
    read_body(&stream);
    write_reply(stream, answer);
}

/// Answers a request for chat completions.
pub fn write_reply(mut stream: TcpStream, answer: &str) {
    let chunk = |delta: Value, finish: Value| {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
        format!("data: {}\n\n", json!({"id": "c1", "model": "fake", "choices": [choice]}))
    };
    let words = chunk(json!({"role": "assistant", "content": answer}), Value::Null);
    let end = chunk(json!({}), json!("stop"));
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    stream.write_all(format!("{head}{words}{end}data: [DONE]\n\n").as_bytes()).unwrap();
}

#[test]
fn a_model_answers_and_the_answer_is_kept() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    let url = fake_model("To Lisbon, then.");
    let asked = ["generate", &id, "Where to?", "--actor", "ana", "--base-url", &url, "--model", "fake"];
    assert_eq!(shell.ok(&asked), "To Lisbon, then.\n");
    let turns = shell.json(&["history", &id, "--json"]);
    let said: Vec<(&Value, &Value)> =
        turns["data"].as_array().unwrap().iter().map(|turn| (&turn["role"], &turn["content"])).collect();
    assert_eq!(
        said,
        [(&json!("user"), &json!("Where to?")), (&json!("assistant"), &json!("To Lisbon, then."))]
    );
    assert!(shell.refused(&["generate", &id, "And?"]).contains("--base-url and --model"));
    // Another answer, in the place that history shows.
    let url = fake_model("To Porto.");
    let seq = turns["data"][1]["seq"].as_u64().unwrap();
    let anew = format!("--regenerate=@last#{seq}");
    assert_eq!(shell.ok(&["generate", &id, &anew, "--base-url", &url, "--model", "fake"]), "To Porto.\n");
    let turns = shell.json(&["history", &id, "--json"]);
    assert_eq!(turns["data"].as_array().unwrap().len(), 2, "{turns}");
}

#[test]
fn info_tells_of_budgets() {
    let shell = Shell::new();
    let policy = r#"{"budget": {"max_messages": 1, "recovery": "reject"}}"#;
    let id = shell.json(&["new", "--json", "--policy", policy])["id"].as_str().unwrap().to_string();
    shell.ok(&["append", &id, "one"]);
    assert!(!shell.ok(&["info", &id]).contains("reject"));
    shell.refused(&["append", &id, "two"]);
    let info = shell.ok(&["info", &id]);
    assert!(info.contains("1 of 1 messages, last: reject"), "{info}");
}
