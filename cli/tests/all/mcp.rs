//! `everturn mcp`: what cannot be read is answered, and calls keep their order.

use crate::Shell;
use crate::process::Mcp;
use serde_json::{Value, json};
use std::collections::BTreeMap;

fn call(id: u64, tool: &str, arguments: Value) -> Vec<u8> {
    let params = json!({"name": tool, "arguments": arguments});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).to_string().into_bytes()
}

/// Regression: such a line was dropped, and the client waited for ever.
#[test]
fn what_cannot_be_read_is_answered_with_the_id_of_the_request() {
    let shell = Shell::new();
    let mut mcp = Mcp::start(&shell, &[]);
    let half = r#"{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"create_conversation","arguments":{"title":"\ud800"}}}"#;
    let long = format!(r#"{{"jsonrpc":"2.0","id":9,"method":"ping","x":"{}"}}"#, "x".repeat(17 << 20));
    let table: [(&[u8], i64, Value); 10] = [
        (b"not json", -32700, Value::Null),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,", -32700, Value::Null),
        (b"{\"id\":\"\xff\"}", -32700, Value::Null),
        (b"[1]", -32600, Value::Null),
        (b"{\"id\":7}", -32600, json!(7)),
        (b"{\"id\":\"a\",\"method\":\"ping\"}", -32600, json!("a")),
        (half.as_bytes(), -32602, json!(8)),
        (b"{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"tools/call\"}", -32602, json!(9)),
        (b"{\"jsonrpc\":\"2.0\",\"id\":10,\"method\":\"nope/nope\"}", -32601, json!(10)),
        (long.as_bytes(), -32600, Value::Null),
    ];
    for (line, code, id) in table {
        mcp.send_line(line);
        let answer = mcp.answer();
        let about = String::from_utf8_lossy(&line[..line.len().min(200)]).into_owned();
        assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(code), &id), "{about}: {answer}");
        assert_eq!(answer["jsonrpc"], "2.0");
    }
    // Nobody waits for an answer to these.
    for line in [
        &b""[..],
        b"\r",
        b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/other\"}",
        b"{\"id\":3,\"result\":5}",
    ] {
        mcp.send_line(line);
    }
    let made = mcp.call("create_conversation", &json!({"title": "still there"})).unwrap();
    assert_eq!(made["title"], "still there");
}

/// Regression: ten appends that were sent at once were stored in another order.
#[test]
fn calls_that_are_sent_at_once_are_stored_in_their_order() {
    let shell = Shell::new();
    for store in ["memory:", "sqlite:ordered.db"] {
        let mut mcp = Mcp::start(&shell, &["--store", store]);
        let mut lines = vec![call(100, "create_conversation", json!({"title": "in order"}))];
        for n in 0..40 {
            let turns = json!([{"role": "user", "content": format!("m{n}")}]);
            lines.push(call(101 + n, "append_turns", json!({"conversation": "@last", "turns": turns})));
        }
        lines.push(call(200, "list_turns", json!({"conversation": "@last", "limit": 100})));
        mcp.send_line(&lines.join(&b'\n'));
        let answers: BTreeMap<u64, Value> = (0..lines.len())
            .map(|_| mcp.answer())
            .map(|answer| (answer["id"].as_u64().unwrap(), answer["result"]["structuredContent"].clone()))
            .collect();
        let seqs: Vec<u64> = (101..141).map(|id| answers[&id]["turns"][0]["seq"].as_u64().unwrap()).collect();
        assert!(seqs.is_sorted(), "{store}: {seqs:?}");
        assert_eq!(
            answers[&200]["data"].as_array().unwrap().len(),
            40,
            "a call that reads sees what was written before"
        );
    }
}

/// A call that waits for an approval must not hold up the one that answers it.
#[test]
fn a_call_that_waits_lets_the_next_one_pass() {
    let url = crate::changing::fake_model("To Lisbon, then.");
    let shell = Shell::new();
    std::fs::write(
        shell.path("model.toml"),
        format!("[models.fake]\nbase_url = \"{url}\"\nmodel = \"fake\"\n"),
    )
    .unwrap();
    let id = shell.new_conversation();
    shell.ok(&["request-approval", &id, "a1", "--question", "Go?"]);
    let mut mcp = Mcp::start(&shell, &["--toolsets", "all", "--config", "model.toml"]);
    let input = json!([{"role": "user", "content": "Where to?"}]);
    mcp.send_line(&call(100, "generate", json!({"conversation": id, "input": input})));
    mcp.send_line(&call(
        101,
        "resolve_approval",
        json!({"conversation": id, "approval": "a1", "state": "approved"}),
    ));
    let answers = [mcp.answer(), mcp.answer()];
    assert_eq!(answers.each_ref().map(|answer| answer["id"].as_u64()), [Some(101), Some(100)], "{answers:?}");
    assert_eq!(answers[1]["result"]["structuredContent"]["text"], "To Lisbon, then.");
}
