//! `everturn acp` with an agent that asks for permission.

use crate::Shell;
use crate::process::Serving;
use serde_json::{Value, json};
use std::io::Write;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

const AGENT: &str = r#"while read -r line; do case "$line" in
*'"initialize"'*) printf '{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":1,"agentInfo":{"name":"bot","version":"1"}}}\n';;
*'"session/new"'*) printf '{"jsonrpc":"2.0","id":1,"result":{"sessionId":"s1"}}\n';;
*'"session/load"'*) printf '{"jsonrpc":"2.0","id":1,"result":{}}\n';;
*'"session/prompt"'*) printf '{"jsonrpc":"2.0","id":"p1","method":"session/request_permission","params":{"sessionId":"s1","toolCall":{"toolCallId":"tc","title":"Delete","kind":"delete"},"options":[{"optionId":"ok","name":"OK","kind":"allow_once"}]}}\n';;
esac; done"#;

struct Editor {
    child: Child,
}

impl Editor {
    /// Starts the agent behind the recorder, and prompts it in a session.
    fn prompt(shell: &Shell, method: &str) -> Editor {
        let mut command = shell.command(&["acp", "--", "sh", "-c", AGENT]);
        let mut editor = Editor { child: command.stdin(Stdio::piped()).spawn().unwrap() };
        editor.begin(method);
        editor
    }

    fn begin(&mut self, method: &str) {
        self.send(json!({"id": 0, "method": "initialize", "params": {"protocolVersion": 1}}));
        self.send(
            json!({"id": 1, "method": method, "params": {"sessionId": "s1", "cwd": "/", "mcpServers": []}}),
        );
        let prompt = json!([{"type": "text", "text": "Tidy up."}]);
        self.send(
            json!({"id": 2, "method": "session/prompt", "params": {"sessionId": "s1", "prompt": prompt}}),
        );
    }

    fn send(&mut self, mut message: Value) {
        message["jsonrpc"] = "2.0".into();
        writeln!(self.child.stdin.as_mut().unwrap(), "{message}").unwrap();
    }
}

impl Drop for Editor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until these are the pending approvals of the session.
fn pending(shell: &Shell, is_it: impl Fn(&[String]) -> bool) -> Vec<String> {
    let patience = Instant::now();
    loop {
        let state = shell.run(&["state", "@last", "--json"]);
        let state: Value = serde_json::from_str(&state.out).unwrap_or_default();
        let waiting = state["pending_approvals"].as_array();
        let waiting: Option<Vec<String>> =
            waiting.map(|all| all.iter().map(|it| it["approval_id"].as_str().unwrap().into()).collect());
        if let Some(waiting) = waiting.as_ref().filter(|waiting| is_it(waiting)) {
            return waiting.clone();
        }
        assert!(patience.elapsed() < Duration::from_secs(60), "{state}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Regression: the permission that a killed run waited for was pending for ever, and the next one collided with it.
#[test]
fn a_session_goes_on_after_its_recorder_was_killed_while_it_asked() {
    let shell = Shell::new();
    let first = Editor::prompt(&shell, "session/new");
    let old = pending(&shell, |waiting| waiting.len() == 1);
    drop(first);
    let mut second = Editor::prompt(&shell, "session/load");
    let new = pending(&shell, |waiting| waiting.len() == 1 && waiting != old);
    assert!(new[0].starts_with("tc#"), "{new:?}");
    second.send(json!({"id": "p1", "result": {"outcome": {"outcome": "selected", "optionId": "ok"}}}));
    pending(&shell, |waiting| waiting.is_empty());
    let events = shell.ok(&["history", "@last", "--events", "--json", "--limit", "200"]);
    assert_eq!(
        events.matches("the agent was started anew").count(),
        2,
        "the permission and the call: {events}"
    );
}

/// An agent that says a half, and the whole once there is a file.
const HALVES: &str = r#"while read -r line; do case "$line" in
*'"initialize"'*) printf '{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":1,"agentInfo":{"name":"bot","version":"1"}}}\n';;
*'"session/new"'*) printf '{"jsonrpc":"2.0","id":1,"result":{"sessionId":"s1"}}\n';;
*'"session/prompt"'*)
    say() { printf '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s1","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"%s"}}}}\n' "$1"; }
    say 'The first half, '
    while [ ! -e "$GO_ON" ]; do sleep 0.02; done
    say 'and the second.'
    printf '{"jsonrpc":"2.0","id":2,"result":{"stopReason":"end_turn"}}\n';;
esac; done"#;

/// Regression: the half that the owner had when it was killed stood beside the whole message.
#[test]
fn a_message_is_there_once_although_the_owner_of_the_store_was_killed_in_the_middle() {
    let shell = Shell::new();
    let go_on = shell.path("go-on");
    let owner = Serving::start(&shell, &[]);
    let wait_for = |what: &str, is_there: &dyn Fn() -> bool| {
        let patience = Instant::now();
        while !is_there() {
            assert!(patience.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let mut command = shell.command(&["acp", "--", "sh", "-c", HALVES]);
    let mut editor = Editor { child: command.env("GO_ON", &go_on).stdin(Stdio::piped()).spawn().unwrap() };
    editor.begin("session/new");
    wait_for("the first half", &|| shell.run(&["history", "@last", "--json"]).out.contains("first half"));
    owner.kill();
    std::fs::write(&go_on, "").unwrap();
    wait_for("the second half", &|| shell.run(&["history", "@last", "--json"]).out.contains("second"));
    drop(editor);
    let history = shell.ok(&["history", "@last", "--json"]);
    assert_eq!(history.matches("first half").count(), 1, "{history}");
    assert!(history.contains("The first half, and the second."), "{history}");
}
