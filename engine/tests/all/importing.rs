//! What agents leave on disk becomes conversations, once.

pub mod faults;
mod others;
mod parting;

use crate::stage::{Short, Stage, memory, refused, turns_of};
use everturn_core::id::ConversationId;
use everturn_core::message;
use everturn_core::turn::Turn;
use everturn_engine::{
    CompactOptions, ContextOptions, Error, Everturn, HistoryQuery, Imported, Lifecycle, NewTurn, Raw,
    Settings, Tenant,
};
use serde_json::{Value, json};

/// A file of Claude Code, line by line.
#[derive(Clone, Default)]
pub struct Claude {
    pub lines: Vec<String>,
}

impl Claude {
    fn push(&mut self, uuid: &str, parent: Option<&str>, rest: Value) {
        let n = self.lines.len();
        let mut line = json!({
            "parentUuid": parent, "isSidechain": false, "userType": "external", "cwd": "/work", "sessionId": "s-1",
            "version": "2.1.0", "gitBranch": "main", "uuid": uuid,
            "timestamp": format!("2026-01-01T00:{:02}:{:02}.000Z", n / 60 % 60, n % 60),
        });
        line.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        self.lines.push(line.to_string());
    }

    pub fn user(&mut self, uuid: &str, parent: Option<&str>, text: &str) {
        self.push(uuid, parent, json!({"type":"user","message":{"role":"user","content":text}}));
    }

    pub fn block(&mut self, uuid: &str, parent: Option<&str>, id: &str, block: Value, output_tokens: u64) {
        let message = json!({"id":id,"type":"message","role":"assistant","model":"claude-opus","content":[block],
            "usage":{"input_tokens":3,"cache_read_input_tokens":100,"output_tokens":output_tokens}});
        self.push(uuid, parent, json!({"type":"assistant","requestId":"r","message":message}));
    }

    pub fn say(&mut self, uuid: &str, parent: Option<&str>, text: &str) {
        self.block(uuid, parent, &format!("msg_{uuid}"), json!({"type":"text","text":text}), 5);
    }

    pub fn result(&mut self, uuid: &str, parent: Option<&str>, call: &str, text: &str) {
        let block = json!({"type":"tool_result","tool_use_id":call,"content":text});
        let rest = json!({"type":"user","message":{"role":"user","content":[block]},"toolUseResult":{"stdout":text}});
        self.push(uuid, parent, rest);
    }

    pub fn other(&mut self, line: Value) {
        self.lines.push(line.to_string());
    }

    pub fn text(&self) -> String {
        self.lines.iter().map(|line| format!("{line}\n")).collect()
    }
}

fn call(id: &str) -> Value {
    json!({"type":"tool_use","id":id,"name":"Bash","input":{"command":"ls"}})
}

fn import(scope: &Tenant, text: &str) -> Result<Imported, Error> {
    scope.import(text.as_bytes(), &mut |_| {})
}

/// The turns that stand.
fn standing(scope: &Tenant, id: ConversationId) -> Vec<Turn> {
    turns_of(
        scope.conversation(id).history(HistoryQuery { limit: 1000, ..HistoryQuery::default() }).unwrap().data,
    )
}

/// What stands, as people read it.
fn said(scope: &Tenant, id: ConversationId) -> Vec<String> {
    let read = |turn: &Turn| message::render(&turn.value().unwrap(), |_| None);
    standing(scope, id).iter().map(|turn| format!("{} {}", turn.role, read(turn))).collect()
}

/// What stands, in every detail that does not depend on when it was imported.
fn stands(scope: &Tenant, id: ConversationId) -> Vec<String> {
    let detail = |turn: &Turn| {
        let metadata = serde_json::to_string(&turn.metadata).unwrap();
        let message = turn.message.as_ref().unwrap().get();
        format!(
            "{} {message} {metadata} {:?} {:?} {:?}",
            turn.role, turn.tokens, turn.model, turn.occurred_at
        )
    };
    standing(scope, id).iter().map(detail).collect()
}

/// The lines that were kept as events.
fn kept(scope: &Tenant, id: ConversationId) -> Vec<String> {
    let mut kept = Vec::new();
    let mut after = 0;
    loop {
        let page = scope.conversation(id).log().read(after, 1000).unwrap();
        let Some(last) = page.last() else { return kept };
        after = last.seq;
        let lines = page.iter().filter(|event| event.kind == "import.line");
        kept.extend(lines.map(|event| event.text().unwrap().to_string()));
    }
}

/// Everything that a session file of Claude Code can have.
pub fn session() -> Claude {
    let mut file = Claude::default();
    file.other(json!({"type":"file-history-snapshot","messageId":"u1","snapshot":{}}));
    file.user("u1", None, "list the files, please");
    file.block("a1", Some("u1"), "msg_1", json!({"type":"thinking","thinking":"hm","signature":"sig=="}), 1);
    file.block("a2", Some("a1"), "msg_1", json!({"type":"text","text":"I look."}), 4);
    file.block("a3", Some("a2"), "msg_1", call("c1"), 9);
    file.result("r1", Some("a3"), "c1", "a.txt");
    file.block("a4", Some("a3"), "msg_1", call("c2"), 20);
    file.result("r2", Some("a4"), "c2", "b.txt");
    file.say("a5", Some("r1"), "Two files.");
    file.user("u2", Some("a5"), "delete them");
    file.say("a6", Some("u2"), "Gone.");
    // Edited: from a5 on anew.
    file.user("u3", Some("a5"), "keep them");
    file.say("a7", Some("u3"), "Kept.");
    file.other(json!({"type":"queue-operation","operation":"enqueue","sessionId":"s-1","content":"x"}));
    file
}

#[test]
fn a_session_of_claude_code_is_one_conversation_with_one_turn_a_message() {
    let (_store, scope) = memory();
    let file = session();
    let report = import(&scope, &file.text()).unwrap();
    assert_eq!((&*report.format, report.events, report.problems.len()), ("claude-code", 14, 0));
    assert_eq!((report.turns, report.added), (9, 11));
    let expected = [("file-history-snapshot".to_string(), 1), ("queue-operation".to_string(), 1)];
    assert_eq!(report.kept.into_iter().collect::<Vec<_>>(), expected);
    let id = report.conversation.id;
    assert_eq!(
        said(&scope, id),
        [
            "user list the files, please",
            "assistant I look. <tool_call:Bash> <tool_call:Bash>",
            "user <tool_result>",
            "user <tool_result>",
            "assistant Two files.",
            "user keep them",
            "assistant Kept.",
        ]
    );
    let turns = standing(&scope, id);
    // The message as the last line has it, with all blocks, and what was counted last.
    let message: Value = serde_json::from_str(turns[1].message.as_ref().unwrap().get()).unwrap();
    assert_eq!(message["content"].as_array().unwrap().len(), 4);
    assert_eq!(message["content"][0], json!({"type":"thinking","thinking":"hm","signature":"sig=="}));
    assert_eq!(message["usage"]["output_tokens"], 20);
    let tokens = turns[1].tokens.unwrap();
    assert_eq!((tokens.prompt, tokens.completion), (Some(103), Some(20)));
    assert_eq!(turns[1].model.as_deref(), Some("claude-opus"));
    assert_eq!(turns[1].adapter.as_deref(), Some("claude-code"));
    assert_eq!(turns[0].occurred_at.unwrap().to_string(), "2026-01-01T00:00:01.000000Z");
    assert!(turns[2].metadata["claude_code"].get().contains(r#""toolUseResult":{"stdout":"a.txt"}"#));
    // A message that is on one line keeps its bytes.
    let line: Value = serde_json::from_str(&file.lines[8]).unwrap();
    assert_eq!(turns[4].message.as_ref().unwrap().get(), line["message"].to_string());
    // What was edited away is there, behind what took its place.
    assert_eq!(scope.turns(id).len(), 9);
    let conversation = scope.conversation(id).get().unwrap();
    assert_eq!(conversation.title.as_deref(), Some("list the files, please"));
    let origin: Value = serde_json::from_str(conversation.metadata["import"].get()).unwrap();
    assert_eq!(
        origin,
        json!({"format":"claude-code","session":"s-1","cwd":"/work","git_branch":"main","version":"2.1.0"})
    );
    assert_eq!(kept(&scope, id), [file.lines[0].clone(), file.lines[13].clone()]);
    scope.conversation(id).log().verify(None).unwrap();

    // Again: nothing. And after something was said here: still nothing.
    assert_eq!(import(&scope, &file.text()).unwrap().added, 0);
    scope.say(id, NewTurn::user("mine"));
    let again = import(&scope, &file.text()).unwrap();
    assert_eq!((again.added, again.turns, again.conversation.id), (0, 9, id));
}

#[test]
fn a_file_that_grew_line_by_line_stands_as_the_whole_does() {
    let file = session();
    let (_whole, whole) = memory();
    let id = import(&whole, &file.text()).unwrap().conversation.id;
    for step in [1, 2, 3] {
        let (_store, scope) = memory();
        for end in (step..file.lines.len()).step_by(step).chain([file.lines.len()]) {
            let part = Claude { lines: file.lines[..end].to_vec() };
            let text = part.text();
            // Cut off in the middle of the next line.
            let torn = file.lines.get(end).map_or("", |next| &next[..next.len() / 2]);
            let report = import(&scope, &format!("{text}{torn}"));
            if end == 1 {
                refused(report, "import.no_turns", "file-history-snapshot");
                continue;
            }
            let report = report.unwrap();
            assert_eq!(report.problems.len(), usize::from(!torn.is_empty()), "{:?}", report.problems);
        }
        assert_eq!(stands(&scope, id), stands(&whole, id), "{step} lines at a time");
        assert_eq!(kept(&scope, id), kept(&whole, id));
        assert_eq!(import(&scope, &file.text()).unwrap().added, 0);
        scope.conversation(id).log().verify(None).unwrap();
    }
}

#[test]
fn what_the_program_summarized_is_a_compaction() {
    let (_store, scope) = memory();
    let mut file = Claude::default();
    file.user("u1", None, "first");
    file.say("a1", Some("u1"), "one");
    file.push(
        "b1",
        None,
        json!({"type":"system","subtype":"compact_boundary","logicalParentUuid":"a1",
        "content":"Conversation compacted","compactMetadata":{"trigger":"auto","preTokens":155000}}),
    );
    file.push(
        "u2",
        Some("b1"),
        json!({"type":"user","isCompactSummary":true,"isVisibleInTranscriptOnly":true,
        "message":{"role":"user","content":"They counted to one."}}),
    );
    file.user("u3", Some("u2"), "next");
    file.say("a3", Some("u3"), "two");
    let report = import(&scope, &file.text()).unwrap();
    let id = report.conversation.id;
    assert_eq!(said(&scope, id), ["user first", "assistant one", "user next", "assistant two"]);
    assert_eq!(scope.conversation(id).get().unwrap().checkpoint.unwrap().turns_before, 2);
    let events = scope.conversation(id).log().read(0, 100).unwrap();
    let compaction = events.iter().find(|event| event.kind == "compaction").unwrap();
    let body: Value = serde_json::from_str(compaction.text().unwrap()).unwrap();
    assert_eq!(body["checkpoint"]["handoff_md"], "They counted to one.");
    assert_eq!((&body["tokens_before"], &body["summarizer"]), (&json!(155000), &json!("claude-code")));
    // The model reads the summary and what came after it.
    let transcript: Value = serde_json::from_str(&scope.conversation(id).transcript().unwrap()).unwrap();
    assert_eq!(transcript["summary"], "They counted to one.");
    assert_eq!(import(&scope, &file.text()).unwrap().added, 0);
    // And goes on from there by itself when asked to.
    let compacted = scope
        .conversation(id)
        .compaction()
        .compact(CompactOptions { keep_last: Some(1), ..CompactOptions::default() });
    assert_eq!(compacted.unwrap().covers.turns, 1);
    // Ten compactions later, the prompt still has the words of the summary, once.
    let chat = scope.conversation(id);
    for n in 1..=10 {
        chat.append(format!("We counted to {n}, and the next number comes after a long pause for thought."))
            .wait()
            .unwrap();
        let options = CompactOptions { keep_last: Some(1), ..CompactOptions::default() };
        chat.compaction().compact(options).unwrap();
        let prompt = chat.contexts().build(&ContextOptions::new(4000)).unwrap();
        let text = json!([prompt.system, prompt.messages]).to_string();
        assert_eq!(text.matches("They counted to one.").count(), 1, "{n}: {text}");
    }
    chat.log().verify(None).unwrap();
}

/// Regression: a summary covered also the turns that the program had kept as they were.
#[test]
fn turns_that_the_program_kept_are_read_after_its_summary() {
    let (_store, scope) = memory();
    let mut claude = Claude::default();
    claude.user("u1", None, "old question");
    claude.say("a1", Some("u1"), "old answer");
    claude.user("u2", Some("a1"), "which port?");
    claude.say("a2", Some("u2"), "4711");
    let kept = json!({"headUuid":"u2","anchorUuid":"s1","tailUuid":"a2"});
    claude.push(
        "b1",
        None,
        json!({"type":"system","subtype":"compact_boundary","logicalParentUuid":"a2",
        "compactMetadata":{"trigger":"auto","preTokens":1000,"preservedSegment":kept}}),
    );
    claude.push(
        "s1",
        Some("b1"),
        json!({"type":"user","isCompactSummary":true,"message":{"role":"user","content":"The summary."}}),
    );
    claude.user("u3", Some("a2"), "and the host?");
    let line = |id: &str, parent: Option<&str>, rest: Value| {
        let mut line = json!({"id":id,"parentId":parent,"timestamp":"2026-02-05T10:00:01Z"});
        line.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        format!("{line}\n")
    };
    let message = |role: &str, text: &str| json!({"type":"message","message":{"role":role,"content":[{"type":"text","text":text}]}});
    let pi = [
        r#"{"type":"session","version":3,"id":"pi-2","timestamp":"2026-02-05T10:00:00Z","cwd":"/w/pi"}"#
            .to_string()
            + "\n",
        line("1", None, message("user", "old question")),
        line("2", Some("1"), message("assistant", "old answer")),
        line("3", Some("2"), message("user", "which port?")),
        line("4", Some("3"), message("assistant", "4711")),
        line(
            "5",
            Some("4"),
            json!({"type":"compaction","summary":"The summary.","firstKeptEntryId":"3","tokensBefore":100}),
        ),
        line("6", Some("5"), message("user", "and the host?")),
    ];
    for (format, file) in [("claude-code", claude.text()), ("pi", pi.concat())] {
        let report = import(&scope, &file).unwrap();
        assert_eq!(report.format, format);
        let chat = scope.conversation(report.conversation.id);
        let checkpoint = chat.get().unwrap().checkpoint.unwrap();
        assert_eq!(checkpoint.turns_before, 2, "{format}");
        let context = chat.contexts().build(&ContextOptions::new(4000)).unwrap();
        let prompt = serde_json::to_string(&(&context.system, &context.messages)).unwrap();
        for words in ["The summary.", "which port?", "4711", "and the host?"] {
            assert!(prompt.contains(words), "{format}: {words} is missing in {prompt}");
        }
        assert!(!prompt.contains("old answer"), "{format}: {prompt}");
        assert_eq!(import(&scope, &file).unwrap().added, 0);
        chat.log().verify(None).unwrap();
    }
}

/// Regression: a title that somebody gave was replaced by the next that the program made up.
#[test]
fn a_title_that_a_person_gave_stays() {
    let stage = Stage::new();
    let on_disk = stage.open();
    let of_disk = on_disk.tenant("acme").unwrap();
    let (_store, of_memory) = memory();
    for scope in [of_memory, of_disk] {
        let mut file = Claude::default();
        file.user("u1", None, "first words");
        let title = |text: &str| json!({"type":"ai-title","sessionId":"s-1","aiTitle":text});
        let id = import(&scope, &file.text()).unwrap().conversation.id;
        let titled = || scope.conversation(id).get().unwrap().title;
        let rename = |title: Option<&str>| {
            let settings = Settings { title: Some(title.map(str::to_string)), ..Settings::default() };
            scope.conversation(id).update(settings).wait().unwrap();
        };
        assert_eq!(titled().as_deref(), Some("first words"));
        for (given, made, expected) in [
            (None, "made up", "made up"),
            (None, "made up anew", "made up anew"),
            (Some(Some("Mine")), "made up again", "Mine"),
            (None, "and again", "Mine"),
            (Some(None), "not without", "not without"),
            (None, "still the program's", "still the program's"),
        ] {
            if let Some(title) = given {
                rename(title);
            }
            file.other(title(made));
            import(&scope, &file.text()).unwrap();
            assert_eq!(titled().as_deref(), Some(expected), "{made}");
        }
    }
}

/// Regression: an archived conversation made every later import of its session fail.
#[test]
fn a_conversation_that_is_archived_is_left_out_until_it_is_active() {
    let (_store, scope) = memory();
    let mut file = Claude::default();
    file.user("u1", None, "first");
    let id = import(&scope, &file.text()).unwrap().conversation.id;
    file.block("a1", Some("u1"), "msg_1", call("c1"), 1);
    let state = |state: Lifecycle| scope.conversation(id).update(state).wait().unwrap();
    state(Lifecycle::Archived);
    refused(import(&scope, &file.text()), "import.archived", "is archived; left out");
    state(Lifecycle::Active);
    assert_eq!(import(&scope, &file.text()).unwrap().added, 1);
    // And a call at the end of the file was not passed over: the file ends there.
    let events = scope.conversation(id).log().read(0, 100).unwrap();
    let abandoned = events.iter().find(|event| event.kind == "tool.abandoned").unwrap();
    assert!(abandoned.text().unwrap().contains("the session ends without a result"));
}

/// Regression: a broken line took the id of the prompt behind it, which then was no turn.
#[test]
fn a_line_that_is_no_turn_leaves_its_id_to_one_that_is() {
    let (_store, scope) = memory();
    let mut file = Claude::default();
    file.user("u1", None, "first");
    file.push("u2", Some("u1"), json!({"type":"user","message":"error"}));
    file.user("u2", Some("u1"), "caf\u{e9}");
    file.user("u2", Some("u1"), "a third time");
    file.say("a2", Some("u2"), "heard");
    let report = import(&scope, &file.text()).unwrap();
    let id = report.conversation.id;
    assert_eq!(said(&scope, id), ["user first", "user caf\u{e9}", "assistant heard"]);
    assert_eq!(kept(&scope, id), [file.lines[1].clone(), file.lines[3].clone()]);
    assert_eq!(import(&scope, &file.text()).unwrap().added, 0);
}

#[test]
fn subagents_are_conversations_of_their_own_that_name_the_one_they_worked_for() {
    let (_store, scope) = memory();
    let mut file = Claude::default();
    file.user("u1", None, "look into it");
    let side = json!({"isSidechain":true,"agentId":"agent-7"});
    let with = |line: &str| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        line.as_object_mut().unwrap().extend(side.as_object().unwrap().clone());
        line
    };
    let mut agent = Claude::default();
    agent.user("x1", None, "find the bug");
    agent.say("x2", Some("x1"), "found");
    agent.lines.iter().for_each(|line| file.other(with(line)));
    file.say("a1", Some("u1"), "it is here");
    let report = import(&scope, &file.text()).unwrap();
    let main = report.conversation.id;
    assert_eq!(said(&scope, main), ["user look into it", "assistant it is here"]);
    let [side] = report.linked[..] else { panic!("{:?}", report.linked) };
    assert_eq!(said(&scope, side), ["user find the bug", "assistant found"]);
    let origin: Value =
        serde_json::from_str(scope.conversation(side).get().unwrap().metadata["import"].get()).unwrap();
    assert_eq!((&origin["parent"], &origin["agent"]), (&json!(main), &json!("agent-7")));

    // The rest of the subagent's work, in a file of its own, and the rest of the session in another.
    let mut rest = Claude::default();
    rest.user("x3", Some("x2"), "fix it");
    let rest = with(&rest.lines[0]).to_string();
    let report = import(&scope, &format!("{rest}\n")).unwrap();
    assert_eq!((report.conversation.id, report.added), (side, 1));
    let mut second = Claude::default();
    second.user("u1", None, "look into it");
    second.user("u2", Some("a1"), "thanks");
    let report = import(&scope, &second.text()).unwrap();
    assert_eq!((report.conversation.id, report.added), (main, 1));
    assert_eq!(said(&scope, main), ["user look into it", "assistant it is here", "user thanks"]);
    assert_eq!(scope.list(Default::default()).unwrap().data.len(), 2);
}

/// Regression: the metadata of a subagent named a conversation that did not exist.
#[test]
fn a_subagent_names_no_parent_until_that_is_imported() {
    let (_store, scope) = memory();
    waits_for_its_parent(&scope);
    let stage = Stage::new();
    waits_for_its_parent(&stage.open().tenant("acme").unwrap());
}

fn waits_for_its_parent(scope: &Tenant) {
    let origin = |id: ConversationId| -> Value {
        scope.conversation(id).get().unwrap().metadata["import"].read().unwrap()
    };
    let line = |uuid: &str, at: &str, rest: Value| {
        let mut line = json!({"type":"user","uuid":uuid,"sessionId":"s-1","cwd":"/w","timestamp":at,
            "message":{"role":"user","content":uuid}});
        line.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        format!("{line}\n")
    };
    let side = json!({"isSidechain":true,"agentId":"agent-7"});
    let agent = line("x1", "2026-01-01T00:01:00Z", side);
    let agent_id = import(scope, &agent).unwrap().conversation.id;
    assert_eq!(origin(agent_id).get("parent"), None);
    let missing: ConversationId = origin(agent_id)["missing_parent"].as_str().unwrap().parse().unwrap();
    // Another session of that time is not its parent, and nothing changes when the file is read again.
    let other = line("o1", "2026-01-01T00:01:00Z", json!({"sessionId":"s-2"}));
    import(scope, &other).unwrap();
    let seq = scope.conversation(agent_id).get().unwrap().head.seq;
    import(scope, &agent).unwrap();
    assert_eq!(scope.conversation(agent_id).get().unwrap().head.seq, seq);
    let session = line("u1", "2026-01-01T00:00:00Z", json!({}));
    let id = import(scope, &session).unwrap().conversation.id;
    assert_eq!((id, origin(agent_id)["parent"].clone()), (missing, json!(id)));
    assert_eq!(origin(agent_id).get("missing_parent"), None);
    assert_eq!(origin(agent_id)["agent"], "agent-7");
    // A parent that is not in the store any more is named as missing by importing again.
    let gone: ConversationId = "conv_01J9ZQ3V7Y2N8Q4R5S6T7V8W9X".parse().unwrap();
    let mut settings = Settings::default();
    let import_of_old = json!({"format":"claude-code","agent":"agent-7","parent":gone});
    settings.metadata.insert("import".into(), Raw::of(&import_of_old).unwrap());
    scope.conversation(agent_id).update(settings).wait().unwrap();
    import(scope, &agent).unwrap();
    assert_eq!((origin(agent_id).get("parent"), &origin(agent_id)["missing_parent"]), (None, &json!(gone)));
}

#[test]
fn a_branch_that_was_left_and_taken_up_again_is_a_fork() {
    let (_store, scope) = memory();
    let mut file = Claude::default();
    file.user("u1", None, "one");
    file.say("a1", Some("u1"), "1");
    file.user("u2", Some("a1"), "two");
    file.say("a2", Some("u2"), "2");
    file.user("v2", Some("a1"), "zwei");
    file.say("b2", Some("v2"), "II");
    // In another window the first branch goes on.
    file.user("u3", Some("a2"), "three");
    file.say("a3", Some("u3"), "3");
    file.user("v3", Some("b2"), "drei");
    let report = import(&scope, &file.text()).unwrap();
    let main = report.conversation.id;
    assert_eq!(said(&scope, main), ["user one", "assistant 1", "user zwei", "assistant II", "user drei"]);
    let [fork] = report.linked[..] else { panic!("{:?}", report.linked) };
    assert_eq!(
        said(&scope, fork),
        ["user one", "assistant 1", "user two", "assistant 2", "user three", "assistant 3"]
    );
    assert_eq!(scope.conversation(fork).get().unwrap().parent.unwrap().conversation, main);
    scope.conversation(fork).log().verify(None).unwrap();
    let again = import(&scope, &file.text()).unwrap();
    assert_eq!((again.added, again.linked), (0, vec![fork]));
    // Only a part at a time.
    let (_store, parts) = memory();
    for end in 1..=file.lines.len() {
        import(&parts, &Claude { lines: file.lines[..end].to_vec() }.text()).unwrap();
    }
    assert_eq!(stands(&parts, main), stands(&scope, main));
    assert_eq!(stands(&parts, fork), stands(&scope, fork));
}

#[test]
fn circles_unknown_parents_and_repeated_ids_lose_nothing() {
    let (_store, scope) = memory();
    let mut file = Claude::default();
    file.user("u1", Some("a1"), "in a circle");
    file.say("a1", Some("u1"), "yes");
    file.user("u2", Some("nobody"), "from nowhere");
    file.user("u3", Some("u3"), "from myself");
    file.user("u1", Some("a1"), "with an id that was there");
    let report = import(&scope, &file.text()).unwrap();
    let id = report.conversation.id;
    assert_eq!(
        said(&scope, id),
        ["user in a circle", "assistant yes", "user from nowhere", "user from myself"]
    );
    assert_eq!(report.kept.get("duplicate uuid"), Some(&1));
    assert_eq!(kept(&scope, id), [file.lines[4].clone()]);
    assert_eq!(import(&scope, &file.text()).unwrap().added, 0);
}

/// Regression: a session of which a file has only lines about it became a conversation without turns, and a turn without
/// a readable time made an old session the newest.
#[test]
fn only_sessions_with_turns_become_conversations_and_a_turn_without_a_time_has_that_of_the_line_before() {
    let stage = crate::stage::Stage::new();
    let (store, (_memory, in_memory)) = (stage.open(), memory());
    for scope in [in_memory, store.tenant("acme").unwrap()] {
        let mut file = Claude::default();
        file.other(
            json!({"type":"system","sessionId":"elsewhere","uuid":"m1","cwd":"/x","content":"about another"}),
        );
        file.user("u1", None, "hello");
        file.other(json!({"type":"system","sessionId":"third","uuid":"m2","content":"about a third"}));
        let message = json!({"role":"user","content":"and no time"});
        for (uuid, parent, time) in [("u2", "u1", json!("soon")), ("u3", "u2", json!(null))] {
            file.other(json!({"type":"user","uuid":uuid,"parentUuid":parent,"sessionId":"s-1","timestamp":time,"message":message}));
        }
        let report = import(&scope, &file.text()).unwrap();
        assert_eq!((report.turns, report.linked.len(), report.added), (3, 0, 3), "{report:?}");
        let all = scope.list(Default::default()).unwrap().data;
        assert_eq!(all.iter().map(|it| (it.id, it.turns)).collect::<Vec<_>>(), [(report.conversation.id, 3)]);
        assert_eq!(all[0].began, all[0].last_said);
        assert_eq!(import(&scope, &file.text()).unwrap().added, 0, "again");
        // Once such a session has a turn, its other lines come with it.
        file.other(
            json!({"type":"user","uuid":"m3","sessionId":"third","message":{"role":"user","content":"hi"}}),
        );
        let report = import(&scope, &file.text()).unwrap();
        assert_eq!((report.linked.len(), report.added), (1, 2), "{report:?}");
        assert_eq!(kept(&scope, report.linked[0]).len(), 1);
    }
}

/// Regression: all but one were refused, with a conflict.
#[test]
fn imports_of_one_session_at_the_same_time_wait_for_each_other() {
    let (_store, scope) = memory();
    let mut file = Claude::default();
    file.user("u0", None, "begin");
    for n in 1..200 {
        file.user(&format!("u{n}"), Some(&format!("u{}", n - 1)), &format!("more {n}"));
    }
    let (part, whole) = (file.lines[..100].join("\n") + "\n", file.text());
    let added: Vec<u64> = std::thread::scope(|threads| {
        let texts = [&part, &whole, &part, &whole];
        let running: Vec<_> =
            texts.map(|text| threads.spawn(|| import(&scope, text).unwrap().added)).into_iter().collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(added.iter().sum::<u64>(), 200, "{added:?}");
    let id = import(&scope, &whole).unwrap().conversation.id;
    assert_eq!(standing(&scope, id).len(), 200);
}

/// Regression: calls in Gemini's `parts` were left out of prompts, but never given up: nothing said why.
#[test]
fn unanswered_calls_of_qwen_are_given_up_like_those_of_others() {
    let (_store, scope) = memory();
    let line = |n: u32, kind: &str, message: Value| {
        let parent = (n > 1).then(|| format!("q{}", n - 1));
        let time = format!("2026-08-17T12:00:0{n}.000Z");
        json!({"uuid": format!("q{n}"), "parentUuid": parent, "sessionId": "019f0000-0000-7000-8000-0000000000aa",
            "timestamp": time, "type": kind, "cwd": "/p", "version": "0.9.0", "message": message})
    };
    let say = |role: &str, part: Value| json!({"role": role, "parts": [part]});
    let call = |name: &str| json!({"functionCall": {"id": format!("call_{name}"), "name": name, "args": {}}});
    let lines = [
        line(1, "user", say("user", json!({"text": "Read the file please"}))),
        line(2, "assistant", say("model", call("ls"))),
        line(
            3,
            "tool_result",
            say(
                "user",
                json!({"functionResponse": {"id": "call_ls", "name": "ls", "response": {"output": "a"}}}),
            ),
        ),
        line(4, "assistant", say("model", call("read_file"))),
        line(5, "user", say("user", json!({"text": "Never mind"}))),
        line(6, "assistant", say("model", json!({"text": "Ok."}))),
        line(7, "user", say("user", json!({"text": "Write it then"}))),
        line(8, "assistant", say("model", call("write_file"))),
    ];
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let id = import(&scope, &text).unwrap().conversation.id;
    let events = scope.conversation(id).log().read(0, 100).unwrap();
    let bodies: Vec<Value> = events
        .iter()
        .filter(|event| event.kind == "tool.abandoned")
        .map(|event| serde_json::from_str(event.text().unwrap()).unwrap())
        .collect();
    let said: Vec<_> =
        bodies.iter().map(|body| (body["tool_name"].as_str(), body["reason"].as_str())).collect();
    assert_eq!(
        said,
        [
            (Some("read_file"), Some("the session went on without a result")),
            (Some("write_file"), Some("the session ends without a result")),
        ]
    );
    let context = scope.conversation(id).contexts().build(&ContextOptions::new(10_000)).unwrap();
    let prompt = json!(context.messages).to_string();
    assert!(prompt.contains("No result: the call was abandoned"), "{prompt}");
    assert_eq!(import(&scope, &text).unwrap().added, 0);
    assert_eq!(scope.conversation(id).log().read(0, 100).unwrap().len(), events.len());
}

/// Regression: the turn was missing in history and prompts, and its call was said to be abandoned.
#[test]
fn a_result_with_a_lone_surrogate_answers_its_call_and_is_erased_with_its_original() {
    let mut file = Claude::default();
    file.user("u1", None, "show the log");
    file.block("u2", Some("u1"), "m1", call("t1"), 5);
    file.result("u3", Some("u2"), "t1", "log of zebraquokka ends with CUT");
    file.say("u4", Some("u3"), "It was cut.");
    file.user("u5", Some("u4"), "thanks");
    let text = file.text().replace("CUT", "\\ud83d");
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("store.db").display());
    let on_disk = Everturn::open(&url).unwrap();
    let (in_memory, _) = memory();
    for store in [&in_memory, &on_disk] {
        let scope = store.tenant("acme").unwrap();
        let imported = import(&scope, &text).unwrap();
        let id = imported.conversation.id;
        assert_eq!((imported.turns, imported.problems.len()), (5, 0), "{:?}", imported.problems);
        let result = scope.turns(id).remove(2);
        let result_text = result.message.as_ref().unwrap().get();
        assert!(result_text.contains(r"log of zebraquokka ends with \ufffd"), "{result_text}");
        let line = text.lines().nth(2).unwrap();
        let is_whole = |body: &String| serde_json::from_str::<Value>(body).unwrap()["text"] == line;
        assert!(kept(&scope, id).iter().any(is_whole), "the line is kept to the last byte");
        assert!(!scope.kinds(id).contains(&"tool.abandoned".to_string()));
        assert_eq!(import(&scope, &text).unwrap().added, 0);
        scope.conversation(id).erase(result.id, None, "asked for").wait().unwrap();
        let log = scope.conversation(id).log().read(0, 1000).unwrap();
        assert!(log.iter().all(|event| !event.text().unwrap_or_default().contains("zebraquokka")));
    }
}
