//! AcpChange an editor and an agent say, as steps of a conversation.

use everturn_core::approval::Approval;
use everturn_core::turn::Role;
use everturn_formats::acp::{
    AcpChange, AcpListener, AcpStart, AcpStep, AcpTurn, Side, approvals_of, conversation_id,
};
use proptest::prelude::*;
use serde_json::{Value, json};

struct Wire {
    listener: AcpListener,
    id: u64,
}

impl Wire {
    fn new() -> Wire {
        let mut wire = Wire { listener: AcpListener::new("agent"), id: 0 };
        wire.ask(
            Side::Editor,
            "initialize",
            json!({"clientInfo": {"name": "ed"}}),
            json!({"agentInfo": {"name": "bot"}}),
        );
        wire
    }

    fn hear(&mut self, side: Side, message: Value) -> Vec<AcpChange> {
        let steps = self.listener.hear(side, message.to_string().as_bytes());
        steps.into_iter().map(|AcpStep { what, .. }| what).collect()
    }

    /// A request of one side and its answer by the other.
    fn ask(&mut self, side: Side, method: &str, params: Value, result: Value) -> Vec<AcpChange> {
        let mut steps = self.asked(side, method, params);
        steps.extend(self.answered(side, result));
        steps
    }

    fn asked(&mut self, side: Side, method: &str, params: Value) -> Vec<AcpChange> {
        self.id += 1;
        self.hear(side, json!({"jsonrpc": "2.0", "id": self.id, "method": method, "params": params}))
    }

    fn answered(&mut self, asker: Side, result: Value) -> Vec<AcpChange> {
        let side = if asker == Side::Editor { Side::Agent } else { Side::Editor };
        self.hear(side, json!({"jsonrpc": "2.0", "id": self.id, "result": result}))
    }

    fn update(&mut self, update: Value) -> Vec<AcpChange> {
        let params = json!({"sessionId": "s", "update": update});
        self.hear(Side::Agent, json!({"jsonrpc": "2.0", "method": "session/update", "params": params}))
    }

    fn prompt(&mut self, text: &str) -> Vec<AcpChange> {
        self.asked(
            Side::Editor,
            "session/prompt",
            json!({"sessionId": "s", "prompt": [{"type": "text", "text": text}]}),
        )
    }
}

fn turn(what: &AcpChange) -> &AcpTurn {
    match what {
        AcpChange::Turn(said) => said,
        other => panic!("not a turn: {other:?}"),
    }
}

fn chunk(kind: &str, text: &str) -> Value {
    json!({"sessionUpdate": kind, "content": {"type": "text", "text": text}})
}

#[test]
fn the_agent_names_itself_the_session_and_the_model() {
    let mut wire = Wire::new();
    let options = json!([{"id": "m", "category": "model", "type": "select", "currentValue": "opus"}]);
    let params =
        json!({"cwd": "/w", "mcpServers": [{"name": "x", "env": [{"name": "KEY", "value": "secret"}]}]});
    let steps =
        wire.ask(Side::Editor, "session/new", params, json!({"sessionId": "s", "configOptions": options}));
    let about = json!({"method": "session/new", "session_id": "s", "agent": {"name": "bot"}, "editor": {"name": "ed"}, "cwd": "/w"});
    assert_eq!(
        steps,
        [AcpChange::AcpStart(AcpStart { is_new: true, agent: "bot".into(), about, replay: vec![] })]
    );
    wire.prompt("hi");
    wire.update(chunk("agent_message_chunk", "hello"));
    let steps = wire.answered(Side::Editor, json!({"stopReason": "end_turn"}));
    let said = turn(&steps[0]);
    assert_eq!((said.actor.as_deref(), said.model.as_deref()), (Some("bot"), Some("opus")));
}

/// AcpChange an agent says of a session before it has answered the request for it belongs to that session, not to an older
/// one with the same id.
#[test]
fn what_comes_before_the_answer_comes_after_the_beginning() {
    let mut wire = Wire::new();
    assert_eq!(wire.asked(Side::Editor, "session/new", json!({"cwd": "/", "mcpServers": []})), []);
    let id = wire.id;
    assert_eq!(wire.update(json!({"sessionUpdate": "plan", "entries": []})), []);
    wire.id = id;
    let steps = wire.answered(Side::Editor, json!({"sessionId": "s"}));
    assert!(
        matches!(&steps[..], [AcpChange::AcpStart(_), AcpChange::Event { kind, .. }] if kind == "acp.plan"),
        "{steps:?}"
    );
}

#[test]
fn a_call_is_written_when_its_input_is_known_and_its_result_once() {
    let mut wire = Wire::new();
    wire.prompt("go");
    let announced = wire.update(json!({"sessionUpdate": "tool_call", "toolCallId": "c", "title": "Read", "kind": "read", "status": "pending", "rawInput": {}}));
    assert_eq!(announced, [], "the input is not known yet");
    let called = wire.update(json!({"sessionUpdate": "tool_call_update", "toolCallId": "c", "name": "read_file", "rawInput": {"path": "a"}}));
    assert_eq!(
        turn(&called[0]).message["content"][0],
        json!({"type": "tool_call", "id": "c", "name": "read_file", "arguments": {"path": "a"}})
    );
    assert_eq!(
        wire.update(json!({"sessionUpdate": "tool_call_update", "toolCallId": "c", "status": "in_progress"})),
        []
    );
    // A terminal's output is known from the agent's own questions.
    wire.ask(
        Side::Agent,
        "terminal/output",
        json!({"sessionId": "s", "terminalId": "t"}),
        json!({"output": "from the terminal", "truncated": false}),
    );
    let content = json!([
        {"type": "diff", "path": "/a", "oldText": "x\n", "newText": "y\n"},
        {"type": "terminal", "terminalId": "t"},
    ]);
    let done = wire.update(json!({"sessionUpdate": "tool_call_update", "toolCallId": "c", "status": "failed", "content": content, "rawOutput": {"code": 1}}));
    let result = turn(&done[0]);
    assert_eq!((result.role, result.actor.as_deref()), (Role::Tool, Some("read_file")));
    let block = &result.message["content"][0];
    assert_eq!((&block["tool_use_id"], &block["is_error"]), (&json!("c"), &json!(true)));
    assert_eq!(block["content"][0]["text"], "--- /a\n+++ /a\n-x\n+y\n");
    assert_eq!(block["content"][1]["text"], "from the terminal");
    assert_eq!(
        (&result.metadata["title"], &result.metadata["raw_output"]),
        (&json!("Read"), &json!({"code": 1}))
    );
    let late =
        wire.update(json!({"sessionUpdate": "tool_call_update", "toolCallId": "c", "status": "completed"}));
    assert!(matches!(&late[0], AcpChange::Event { kind, .. } if kind == "acp.tool_call_update"), "{late:?}");
}

#[test]
fn a_call_without_a_result_is_given_up_when_the_prompt_ends() {
    let mut wire = Wire::new();
    wire.prompt("go");
    wire.update(
        json!({"sessionUpdate": "tool_call", "toolCallId": "c", "title": "Run", "status": "in_progress"}),
    );
    let steps = wire.answered(Side::Editor, json!({"stopReason": "cancelled"}));
    let given_up = |call: &str, reason: &str| AcpChange::Abandon { call: call.into(), reason: reason.into() };
    assert_eq!(steps[0], given_up("c", "no result was reported"));
    // Output that came before is its result.
    wire.prompt("once more");
    wire.update(
        json!({"sessionUpdate": "tool_call", "toolCallId": "b", "title": "Run", "status": "in_progress",
        "content": [{"type": "content", "content": {"type": "text", "text": "half"}}]}),
    );
    let steps = wire.answered(Side::Editor, json!({"stopReason": "cancelled"}));
    let result = &turn(&steps[0]).message["content"][0];
    assert_eq!((&result["content"][0]["text"], &result["is_error"]), (&json!("half"), &json!(true)));
    // The agent dies in the middle.
    wire.prompt("again");
    wire.update(chunk("agent_message_chunk", "half a sen"));
    wire.update(
        json!({"sessionUpdate": "tool_call", "toolCallId": "d", "title": "Run", "status": "in_progress"}),
    );
    wire.update(chunk("agent_message_chunk", "more"));
    let steps: Vec<AcpChange> = wire.listener.finish().into_iter().map(|step| step.what).collect();
    assert_eq!(turn(&steps[0]).message["content"][0]["text"], "more");
    assert_eq!(steps[1..], [given_up("d", "the agent ended before the tool did")]);
}

#[test]
fn permissions_are_approvals() {
    let options = json!([{"optionId": "y", "name": "Yes", "kind": "allow_always"}, {"optionId": "n", "name": "No", "kind": "reject_once"}]);
    let cases = [
        (json!({"outcome": {"outcome": "selected", "optionId": "y"}}), Approval::Approved),
        (json!({"outcome": {"outcome": "selected", "optionId": "n"}}), Approval::Denied),
        (json!({"outcome": {"outcome": "selected", "optionId": "?"}}), Approval::Cancelled),
        (json!({"outcome": {"outcome": "cancelled"}}), Approval::Cancelled),
        (json!(null), Approval::Cancelled),
    ];
    for (answer, expected) in cases {
        let mut wire = Wire::new();
        wire.prompt("go");
        wire.update(
            json!({"sessionUpdate": "tool_call", "toolCallId": "c", "title": "Delete all", "kind": "delete"}),
        );
        let params = json!({"sessionId": "s", "toolCall": {"toolCallId": "c"}, "options": options});
        let asked = wire.asked(Side::Agent, "session/request_permission", params);
        assert_eq!(
            turn(&asked[0]).message["content"][0]["name"],
            "delete",
            "the call comes before the question"
        );
        let [_, AcpChange::Ask { approval, question, tool, .. }] = &asked[..] else { panic!("{asked:?}") };
        assert_eq!((question.as_str(), tool.as_str()), ("Delete all", "delete"));
        let answered = wire.answered(Side::Agent, answer);
        assert_eq!(answered[0], AcpChange::Answer { approval: approval.clone(), outcome: expected });
    }
}

/// Regression: a run that was killed left its permission pending, and the next run asked under the same id.
#[test]
fn permissions_of_two_runs_have_two_ids_and_none_outlives_its_run() {
    let ask = |run: &str| {
        let mut wire = Wire::new();
        wire.listener = std::mem::replace(&mut wire.listener, AcpListener::new("x")).in_run(run);
        wire.ask(Side::Editor, "session/load", json!({"sessionId": "s", "cwd": "/"}), json!({}));
        wire.update(json!({"sessionUpdate": "tool_call", "toolCallId": "c", "title": "é".repeat(5000)}));
        let params = json!({"sessionId": "s", "toolCall": {"toolCallId": "c"}, "options": []});
        let asked = wire.asked(Side::Agent, "session/request_permission", params);
        let [.., AcpChange::Ask { approval, question, .. }] = &asked[..] else { panic!("{asked:?}") };
        assert_eq!(question.len(), 4096);
        let ended = wire.listener.finish();
        let cancelled = AcpChange::Answer { approval: approval.clone(), outcome: Approval::Cancelled };
        assert!(ended.iter().any(|step| step.what == cancelled), "{ended:?}");
        approval.clone()
    };
    let ids = [ask("one-"), ask("two-")];
    assert_eq!(ids, ["c#one-1", "c#two-1"]);
    assert!(ids.iter().all(|id| id.starts_with(&approvals_of("c"))));
    let long = approvals_of(&format!("a\n{}", "é".repeat(500)));
    assert!(long.len() <= 200 - 40 && long.starts_with("a é") && long.ends_with('#'), "{long}");
}

#[test]
fn loading_collects_what_the_agent_repeats() {
    let mut wire = Wire::new();
    assert_eq!(
        wire.asked(Side::Editor, "session/load", json!({"sessionId": "s", "cwd": "/", "mcpServers": []})),
        []
    );
    let id = wire.id;
    for update in [
        chunk("user_message_chunk", "first"),
        chunk("agent_thought_chunk", "hm"),
        chunk("agent_message_chunk", "answer"),
        json!({"sessionUpdate": "tool_call", "toolCallId": "c", "title": "T", "status": "completed", "content": []}),
        json!({"sessionUpdate": "plan", "entries": []}),
        chunk("user_message_chunk", "second"),
    ] {
        assert_eq!(wire.update(update), []);
    }
    wire.id = id;
    let steps = wire.answered(Side::Editor, json!({}));
    let [AcpChange::AcpStart(began)] = &steps[..] else { panic!("{steps:?}") };
    let roles: Vec<Role> = began.replay.iter().map(|said| said.role).collect();
    assert_eq!(roles, [Role::User, Role::Assistant, Role::Assistant, Role::Tool, Role::User]);
    assert!(!began.is_new);
    // Afterwards everything is new, except an echo of the prompt.
    assert_eq!(wire.prompt("third").len(), 1);
    assert_eq!(wire.update(chunk("user_message_chunk", "third")), []);
    // A session that cannot be loaded is none.
    wire.asked(Side::Editor, "session/load", json!({"sessionId": "t"}));
    let failed = json!({"jsonrpc": "2.0", "id": wire.id, "error": {"code": -32002, "message": "no"}});
    assert_eq!(wire.hear(Side::Agent, failed), []);
}

#[test]
fn resources_become_text_and_pictures_stay() {
    let mut wire = Wire::new();
    let picture = json!({"type": "image", "mimeType": "image/png", "data": "aGk="});
    let prompt = json!([
        {"type": "resource_link", "uri": "file:///a", "name": "a", "size": 3},
        {"type": "resource", "resource": {"uri": "file:///b", "text": "words"}},
        {"type": "resource", "resource": {"uri": "file:///c", "blob": "aGk=", "mimeType": "application/pdf"}},
        picture,
    ]);
    let steps = wire.asked(Side::Editor, "session/prompt", json!({"sessionId": "s", "prompt": prompt}));
    let said = turn(&steps[0]);
    let expected = json!([
        {"type": "text", "text": "[a](file:///a)"},
        {"type": "text", "text": "<context ref=\"file:///b\">\nwords\n</context>"},
        {"type": "file", "name": "file:///c", "mime_type": "application/pdf", "data": "aGk="},
        picture,
    ]);
    assert_eq!(said.message["content"], expected);
    assert_eq!(said.metadata["resource_links"][0]["size"], 3);
}

#[test]
fn a_session_finds_its_conversation_again() {
    assert_eq!(conversation_id("a", "s", 0), conversation_id("a", "s", 0));
    let others = [conversation_id("b", "s", 0), conversation_id("a", "t", 0), conversation_id("a", "s", 1)];
    assert!(others.iter().all(|other| *other != conversation_id("a", "s", 0)));
    assert_ne!(conversation_id("a", "b c", 0), conversation_id("a b", "c", 0));
}

proptest! {
    /// Whatever passes, in whatever order, is heard without a fault, and every call that is written down has one result.
    #[test]
    fn anything_may_pass(messages in prop::collection::vec((any::<bool>(), message()), 0..40)) {
        let mut listener = AcpListener::new("agent");
        let mut steps = Vec::new();
        for (editor, message) in &messages {
            let side = if *editor { Side::Editor } else { Side::Agent };
            steps.extend(listener.hear(side, message.to_string().as_bytes()));
        }
        steps.extend(listener.finish());
        let ids = |kind: &str, field: &str| -> Vec<String> {
            let said = steps.iter().flat_map(|step| match &step.what {
                AcpChange::Turn(said) => vec![said],
                AcpChange::AcpStart(began) => began.replay.iter().collect(),
                _ => Vec::new(),
            });
            let blocks = said.flat_map(|said| said.message["content"].as_array().cloned().unwrap_or_default());
            blocks.filter(|block| block["type"] == kind).map(|block| block[field].to_string()).collect()
        };
        let given_up = steps.iter().filter(|step| matches!(step.what, AcpChange::Abandon { .. })).count();
        prop_assert_eq!(ids("tool_call", "id").len(), ids("tool_result", "tool_use_id").len() + given_up);
    }
}

fn message() -> impl Strategy<Value = Value> {
    let session = prop::sample::select(vec!["s", "t"]);
    let update = prop_oneof![
        prop::sample::select(vec!["user_message_chunk", "agent_message_chunk", "agent_thought_chunk"]).prop_map(|kind| chunk(kind, "x")),
        (prop::sample::select(vec!["tool_call", "tool_call_update"]), 0..3u8, prop::sample::select(vec!["pending", "in_progress", "completed", "failed", "odd"]))
            .prop_map(|(kind, id, status)| json!({"sessionUpdate": kind, "toolCallId": id.to_string(), "status": status})),
        prop::sample::select(vec![json!(null), json!({}), json!({"sessionUpdate": 5}), json!({"sessionUpdate": "tool_call"}), json!([1])]),
    ];
    let method = prop::sample::select(vec![
        "session/new",
        "session/load",
        "session/prompt",
        "session/request_permission",
        "session/cancel",
        "terminal/output",
        "x",
        "session/fork",
    ]);
    prop_oneof![
        (session.clone(), update).prop_map(|(session, update)| json!({"method": "session/update", "params": {"sessionId": session, "update": update}})),
        (session.clone(), method, prop::option::of(0..4u8)).prop_map(|(session, method, id)| {
            json!({"id": id, "method": method, "params": {"sessionId": session, "prompt": [{"type": "text", "text": "p"}], "toolCall": {"toolCallId": "1"}}})
        }),
        (session, 0..4u8, any::<bool>()).prop_map(|(session, id, fails)| match fails {
            true => json!({"id": id, "error": {"code": 1}}),
            false => json!({"id": id, "result": {"sessionId": session, "outcome": {"optionId": "y"}}}),
        }),
        Just(json!([1, null])),
        Just(json!({"id": {}, "method": 5})),
    ]
}
