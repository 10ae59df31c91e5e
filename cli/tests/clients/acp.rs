//! `everturn acp` between an editor and an agent, both with the official SDK.

use crate::{EVERTURN, everturn, lines, script, store, told};
use serde_json::{Value, json};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// A folder in which an agent and an editor run.
struct Desk {
    folder: TempDir,
}

struct Seen {
    lines: Vec<Value>,
    err: String,
}

impl Seen {
    fn all(&self, key: &str) -> Vec<&Value> {
        self.lines.iter().filter_map(|line| line.get(key)).collect()
    }
}

impl Desk {
    fn new() -> Desk {
        Desk { folder: tempfile::tempdir().unwrap() }
    }

    fn store(&self) -> String {
        store(&self.folder)
    }

    /// Runs the editor through these steps. `between` is the command in front of the agent's, if any.
    fn edit(&self, between: &[&str], steps: Value, env: &[(&str, &str)]) -> Seen {
        let node = told("EVERTURN_TEST_NODE");
        let (editor, agent) = (script("acp_editor.mjs", &self.folder), script("acp_agent.mjs", &self.folder));
        let output = Command::new(&node)
            .arg(editor)
            .args(between)
            .arg(&node)
            .arg(agent)
            .env("STEPS", steps.to_string())
            .env("AGENT_HOME", self.folder.path())
            .env("EVERTURN_RECALL_EMBEDDER", "none")
            .env_remove("EVERTURN_URL")
            .envs(env.iter().copied())
            .output()
            .unwrap();
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{}{err}", String::from_utf8_lossy(&output.stdout));
        let lines = lines(&output.stdout);
        assert_eq!(lines.last().unwrap()["ended"], json!({"code": 0, "signal": null}), "{lines:?}");
        Seen { lines, err }
    }

    fn recorded(&self, steps: Value, env: &[(&str, &str)]) -> Seen {
        self.edit(&[EVERTURN, "acp", "--store", &self.store(), "--"], steps, env)
    }

    /// The turns of a conversation: role, and content of its message.
    fn turns(&self, conversation: &str) -> Vec<(String, Value)> {
        let turns = everturn(&self.store(), &["history", conversation]);
        let turns = turns["data"].as_array().unwrap();
        turns.iter().map(|turn| (turn["role"].as_str().unwrap().into(), turn["content"].clone())).collect()
    }

    fn events(&self, conversation: &str) -> Vec<Value> {
        let events = everturn(&self.store(), &["history", conversation, "--events", "--limit", "500"]);
        events["data"].as_array().unwrap().clone()
    }

    fn conversations(&self) -> Vec<Value> {
        everturn(&self.store(), &["list"])["data"].as_array().unwrap().clone()
    }

    fn forget(&self) {
        let _ = std::fs::remove_file(self.folder.path().join("history.json"));
    }
}

fn text(words: &str) -> Value {
    json!([{"type": "text", "text": words}])
}

#[test]
fn a_session_passes_unchanged_and_becomes_a_conversation() {
    let desk = Desk::new();
    let link = json!({"type": "resource_link", "uri": "file:///work/a.rs", "name": "a.rs"});
    let steps = json!([{"new": true}, {"prompt": "list the files"}, {"prompt": [{"type": "text", "text": "see "}, link]}]);
    let alone = desk.edit(&[], steps.clone(), &[]);
    desk.forget();
    let through = desk.recorded(steps, &[]);
    assert_eq!(through.lines, alone.lines, "the editor cannot tell the difference");
    assert_eq!(through.err, "");

    let conversations = desk.conversations();
    assert_eq!(conversations.len(), 1);
    let about = &conversations[0]["metadata"]["acp"];
    assert_eq!((&about["session_id"], &about["cwd"]), (&json!("s0"), &json!("/work")));
    assert_eq!((&about["agent"]["name"], &about["editor"]["name"]), (&json!("scripted"), &json!("editor")));

    let call =
        json!([{"type": "tool_call", "id": "ls-1", "name": "execute", "arguments": {"command": "ls"}}]);
    let result = json!([{"type": "tool_result", "tool_use_id": "ls-1", "name": "execute",
        "content": [{"type": "text", "text": "README.md"}], "is_error": false}]);
    let thought = json!([
        {"type": "thinking", "thinking": "They want a listing."},
        {"type": "text", "text": "Let me look."},
    ]);
    let seen =
        json!([{"type": "text", "text": "see "}, {"type": "text", "text": "[a.rs](file:///work/a.rs)"}]);
    let expected: Vec<(String, Value)> = [
        ("user", text("list the files")),
        ("assistant", thought),
        ("assistant", call),
        ("tool", result),
        ("assistant", text("There is one file.")),
        ("user", seen),
        ("assistant", text("You said: see file:///work/a.rs")),
    ]
    .map(|(role, content)| (role.to_string(), content))
    .into();
    assert_eq!(desk.turns("@last"), expected);

    let events = desk.events("@last");
    let kinds: Vec<&str> = events.iter().filter_map(|event| event["kind"].as_str()).collect();
    for kind in ["acp.session", "acp.plan", "approval.requested", "approval.resolved", "acp.prompt_finished"]
    {
        assert!(kinds.contains(&kind), "{kind} is not in {kinds:?}");
    }
    let resolved = events.iter().find(|event| event["kind"] == "approval.resolved").unwrap();
    assert_eq!(resolved["body"]["state"], "approved");
    let state = everturn(&desk.store(), &["state", "@last"]);
    assert_eq!((&state["pending_approvals"], &state["pending_tools"]), (&json!([]), &json!([])));
    assert!(everturn(&desk.store(), &["verify", "@last"])["ok"] != false);
    let found = Command::new("grep").args(["-rl", "sk-secret"]).arg(desk.folder.path()).output().unwrap();
    let found = String::from_utf8(found.stdout).unwrap();
    assert!(!found.contains("store.db"), "settings of MCP servers hold keys: {found}");
}

#[test]
fn a_refusal_and_a_cancellation_are_kept() {
    let desk = Desk::new();
    let steps = json!([{"new": true}, {"prompt": "list"}, {"prompt": "wait", "cancel_after": "slow"}, {"prompt": "and now?"}]);
    let seen = desk.recorded(steps, &[("ANSWER", "no")]);
    assert_eq!(seen.all("stopped")[1]["stopReason"], "cancelled");
    let events = desk.events("@last");
    let resolved = events.iter().find(|event| event["kind"] == "approval.resolved").unwrap();
    assert_eq!(resolved["body"]["state"], "denied");
    assert!(events.iter().any(|event| event["kind"] == "acp.cancel"));
    let turns = desk.turns("@last");
    let results: Vec<&Value> =
        turns.iter().filter(|(role, _)| role == "tool").map(|(_, content)| &content[0]["is_error"]).collect();
    assert_eq!(results, [true], "{turns:?}");
    let given_up = events.iter().find(|event| event["kind"] == "tool.abandoned").unwrap();
    assert_eq!(given_up["body"]["tool_call_id"], "slow");
    assert!(turns.contains(&("assistant".into(), text("I will wait"))));
    // The prompt is one that a provider accepts: no call waits.
    let state = everturn(&desk.store(), &["state", "@last"]);
    assert_eq!(state["pending_tools"], json!([]));
}

#[test]
fn a_session_that_is_loaded_or_resumed_goes_on_in_the_same_conversation() {
    let desk = Desk::new();
    desk.recorded(json!([{"new": true}, {"prompt": "one"}]), &[]);
    desk.recorded(json!([{"load": "s0"}, {"prompt": "two"}]), &[]);
    desk.recorded(json!([{"resume": "s0"}, {"prompt": "three"}]), &[]);
    // Somebody goes on without us; the agent repeats it when we are there again.
    desk.edit(&[], json!([{"resume": "s0"}, {"prompt": "four"}]), &[]);
    desk.recorded(json!([{"load": "s0"}, {"prompt": "five"}]), &[]);
    desk.recorded(json!([{"load": "s0"}]), &[]);
    assert_eq!(desk.conversations().len(), 1);
    let said = |words: &str| {
        [("user".to_string(), text(words)), ("assistant".into(), text(&format!("You said: {words}")))]
    };
    let expected: Vec<(String, Value)> =
        ["one", "two", "three", "four", "five"].into_iter().flat_map(said).collect();
    assert_eq!(desk.turns("@last"), expected);

    // The agent forgot, and gives the same id to another session.
    desk.forget();
    desk.recorded(json!([{"new": true}, {"prompt": "other"}]), &[]);
    assert_eq!(desk.conversations().len(), 2);
    assert_eq!(desk.turns("@last"), said("other"));
    // Loading it means the newer one.
    desk.recorded(json!([{"load": "s0"}, {"prompt": "more"}]), &[]);
    assert_eq!((desk.conversations().len(), desk.turns("@last").len()), (2, 4));

    // A session that began without us is recorded from its beginning.
    desk.edit(&[], json!([{"new": true}, {"prompt": "before"}]), &[]);
    desk.recorded(json!([{"load": "s1"}, {"prompt": "after"}]), &[]);
    assert_eq!(desk.turns("@last"), said("before").into_iter().chain(said("after")).collect::<Vec<_>>());
}

#[test]
fn a_store_that_cannot_be_written_is_reported_once_and_disturbs_nothing() {
    let desk = Desk::new();
    let steps = json!([{"new": true}, {"prompt": "list the files"}, {"prompt": "more"}]);
    let alone = desk.edit(&[], steps.clone(), &[]);
    for store in ["sqlite:/dev/null/x.db", "nonsense:x", "sqlite:/proc/self/mem"] {
        desk.forget();
        let through = desk.edit(&[EVERTURN, "acp", "--store", store, "--"], steps.clone(), &[]);
        assert_eq!(through.lines, alone.lines);
        assert_eq!(through.err.matches("everturn: the session goes on").count(), 1, "{}", through.err);
    }
    // A server that is not there.
    desk.forget();
    let through = desk.edit(&[EVERTURN, "acp", "--url", "http://127.0.0.1:9", "--"], steps.clone(), &[]);
    assert_eq!(through.lines, alone.lines);
    assert_eq!(through.err.lines().count(), 1, "{}", through.err);
}

/// A server on a free port; it ends with the test.
struct Serving {
    child: Child,
    url: String,
}

impl Serving {
    fn start(store: &str) -> Serving {
        use std::io::{BufRead, BufReader};
        let mut child = Command::new(EVERTURN)
            .args(["serve", "--listen", "127.0.0.1:0", "--store", store])
            .env("EVERTURN_RECALL_EMBEDDER", "none")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let url = loop {
            let line = lines.next().unwrap().unwrap();
            if let Some((_, url)) = line.split_once("everturn listens on ") {
                break url.to_string();
            }
        };
        std::thread::spawn(move || lines.for_each(drop));
        Serving { child, url }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_editor_is_told_of_projections_compactions_and_budgets() {
    let desk = Desk::new();
    let serving = Serving::start(&desk.store());
    let budget = json!({"policy": {"budget": {"max_messages": 3, "recovery": {"trim": {"keep_last": 2}}}}});
    let steps = json!([
        {"new": true}, {"prompt": "one"}, {"prompt": "two"}, {"prompt": "three"},
        {"find": serving.url, "turns": 6, "requests": [
            {"path": "/projections", "body": {"policy": "clean_tool_repair"}},
            {"path": "/compact", "body": {"keep_last": 2}},
            {"path": "", "method": "PATCH", "body": budget},
        ]},
        {"until": "transcript_compacted"},
        {"prompt": "four"},
        {"until": "transcript_budget"},
    ]);
    let between = [EVERTURN, "acp", "--url", &serving.url, "--"];
    // Whatever an editor says that it takes: the SDK refuses a `session/update` of a kind that the protocol has not.
    let seen =
        desk.edit(&between, steps, &[("CAPABILITIES", r#"{"_meta": {"everturn": true, "harn": true}}"#)]);
    assert_eq!(seen.all("complaint"), Vec::<&Value>::new(), "a strict editor is not disturbed");
    let told = seen.all("extension");
    let names: Vec<&str> = told.iter().filter_map(|told| told["update"]["sessionUpdate"].as_str()).collect();
    assert_eq!(names[..2], ["transcript_projected", "transcript_compacted"]);
    assert!(names[2..].iter().all(|name| *name == "transcript_budget") && names.len() > 2, "{names:?}");
    let projected = &told[0]["update"]["_meta"]["harn"];
    assert_eq!((&projected["policy"], &projected["keptCount"]), (&json!("clean_tool_repair"), &json!(6)));
    assert!(projected["prefixHash"].as_str().unwrap().starts_with("sha256:"), "{projected}");
    assert_eq!(projected.get("redactedCount"), None, "only where something was reclaimed");
    assert_eq!(told[0]["sessionId"], "s0");
}

#[test]
fn the_agents_end_and_what_it_says_beside_the_protocol_pass() {
    let desk = Desk::new();
    let run = |command: &[&str], input: &[u8]| {
        use std::io::Write;
        let mut child = Command::new(EVERTURN)
            .args(["acp", "--store", &desk.store(), "--"])
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let _ = child.stdin.take().unwrap().write_all(input);
        child.wait_with_output().unwrap()
    };
    // Whatever it is: not JSON, not UTF-8, no line break at the end, deeply nested.
    let mut odd = b"hello\n{\"jsonrpc\":\"2.0\"}\n[1]\n\xff\xfe\n\0\n".to_vec();
    odd.extend("[".repeat(100_000).bytes());
    let output = run(&["cat"], &odd);
    assert_eq!((output.stdout, output.status.code()), (odd, Some(0)));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let output = run(&["sh", "-c", "echo complaint >&2; exit 7"], b"");
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(7), b"complaint\n".as_slice()));
    assert_eq!(run(&["sh", "-c", "kill -9 $$"], b"").status.code(), Some(137));
    let output = run(&["/no/such/agent"], b"");
    assert!(
        output.status.code() == Some(1) && String::from_utf8_lossy(&output.stderr).contains("cannot run")
    );
}

/// The words of an agent so far survive a process that is killed in the middle of it.
#[test]
fn half_a_sentence_survives_the_recorder() {
    use std::io::{BufRead, BufReader, Write};
    let desk = Desk::new();
    let mut child = Command::new(EVERTURN)
        .args(["acp", "--store", &desk.store(), "--", &told("EVERTURN_TEST_NODE")])
        .arg(script("acp_agent.mjs", &desk.folder))
        .env("AGENT_HOME", desk.folder.path())
        .env("EVERTURN_RECALL_EMBEDDER", "none")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut editor = child.stdin.take().unwrap();
    let mut answers = BufReader::new(child.stdout.take().unwrap()).lines();
    let prompt = json!([{"type": "text", "text": "ponder"}]);
    for (id, method, params) in [
        (1, "initialize", json!({"protocolVersion": 1})),
        (2, "session/new", json!({"cwd": "/work", "mcpServers": []})),
        (3, "session/prompt", json!({"sessionId": "s0", "prompt": prompt})),
    ] {
        writeln!(editor, "{}", json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
            .unwrap();
        while !answers.next().unwrap().unwrap().contains(&format!("\"id\":{id}")) && id < 3 {}
    }
    while !std::fs::read_dir(desk.folder.path()).unwrap().any(|file| {
        let file = file.unwrap();
        let is_store = file.file_name().to_string_lossy().starts_with("store.db");
        is_store && file.file_type().unwrap().is_file() && {
            let bytes = std::fs::read(file.path()).unwrap_or_default();
            String::from_utf8_lossy(&bytes).contains("half a sen")
        }
    }) {}
    child.kill().unwrap();
    child.wait().unwrap();
    // The next writer finds the open turn and ends it.
    everturn(&desk.store(), &["sweep"]);
    let turns = desk.turns("@last");
    assert!(
        turns.iter().any(|(role, content)| role == "assistant" && content.to_string().contains("half a sen")),
        "{turns:?}"
    );
    assert_eq!(turns[0], ("user".into(), text("ponder")));
}
