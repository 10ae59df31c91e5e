//! What a person took back, and sessions that part.

use crate::agents::{Read, read};
use everturn_formats::agents::{AgentEntry, EntryContent, Opened, open};
use serde_json::{Value, json};

/// Turns that stand, and the last title.
fn standing(read: &Read) -> (Vec<String>, Option<&str>) {
    let mut turns: Vec<(u64, String)> = Vec::new();
    for entry in &read.entries {
        if let EntryContent::Turn(said) = &entry.step {
            turns.retain(|(name, _)| !said.supersedes.contains(name));
            let message: Value = serde_json::from_str(&said.message).unwrap();
            let content = &message["content"];
            let text = content.as_str().or(content[0]["text"].as_str()).or(message["call_id"].as_str());
            turns.push((entry.name, text.unwrap_or("?").to_string()));
        }
    }
    let title = read.entries.iter().rev().find_map(|entry| entry.title.as_deref());
    (turns.into_iter().map(|(_, text)| text).collect(), title)
}

fn lines(lines: &[Value]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn codex(kind: &str, payload: Value) -> Value {
    json!({"timestamp":"2026-01-01T00:00:00Z","type":kind,"payload":payload})
}

fn item(role: &str, text: &str) -> Value {
    codex(
        "response_item",
        json!({"type":"message","role":role,"content":[{"type":"input_text","text":text}]}),
    )
}

fn rolled_back(turns: u64) -> Value {
    codex("event_msg", json!({"type":"thread_rolled_back","num_turns":turns}))
}

/// Regression: prompts that a person rolled back in Codex stood in history, titles and prompts for a model.
#[test]
fn what_codex_rolled_back_is_superseded() {
    let call =
        codex("response_item", json!({"type":"function_call","name":"sh","arguments":"{}","call_id":"c"}));
    let file = |rollback: u64| {
        let all = [
            codex("session_meta", json!({"id":"s"})),
            item("developer", "rules"),
            item("user", "<environment_context>x</environment_context>"),
            item("user", "one"),
            item("assistant", "ans one"),
            item("user", "two"),
            call.clone(),
            item("user", "<turn_aborted>by the user</turn_aborted>"),
            item("user", "three"),
            item("assistant", "ans three"),
            rolled_back(rollback),
            item("user", "instead"),
        ];
        read(lines(&all).as_bytes()).unwrap()
    };
    let beginning = ["rules", "<environment_context>x</environment_context>"];
    let left = |rollback: u64| {
        let read = file(rollback);
        let (turns, title) = standing(&read);
        assert_eq!(turns[..2], beginning);
        (turns[2..].join(", "), title.map(str::to_string))
    };
    let one = || Some("one".to_string());
    // The note that the program wrote before the prompt goes with it.
    assert_eq!(left(1), ("one, ans one, two, c, instead".into(), one()));
    assert_eq!(left(2), ("one, ans one, instead".into(), one()));
    // The prompt that gave the title is gone, and what stood before it stays.
    for all in [3, 4, u64::MAX] {
        assert_eq!(left(all), ("instead".into(), Some("instead".into())));
    }
    assert_eq!(
        left(0).0,
        "one, ans one, two, c, <turn_aborted>by the user</turn_aborted>, three, ans three, instead"
    );
}

#[test]
fn codex_rolls_back_several_times_and_keeps_a_given_name() {
    let renamed = codex("event_msg", json!({"type":"thread_name_updated","thread_name":"Named"}));
    let all = [
        codex("session_meta", json!({"id":"s"})),
        item("user", "one"),
        item("assistant", "ans one"),
        renamed,
        item("user", "two"),
        item("assistant", "ans two"),
        rolled_back(1),
        rolled_back(1),
        item("user", "three"),
        rolled_back(1),
        item("user", "four"),
    ];
    let read = read(lines(&all).as_bytes()).unwrap();
    assert_eq!(standing(&read), (vec!["four".to_string()], Some("Named")));
}

#[test]
fn a_codex_file_without_items_is_rolled_back_too() {
    let event = |kind: &str, text: &str| codex("event_msg", json!({"type":kind,"message":text}));
    let all = [
        codex("session_meta", json!({"id":"s"})),
        event("user_message", "one"),
        event("agent_message", "ans one"),
        rolled_back(1),
        event("user_message", "two"),
        event("agent_message", "ans two"),
    ];
    let read = read(lines(&all).as_bytes()).unwrap();
    assert_eq!(standing(&read), (vec!["two".to_string(), "ans two".into()], Some("two")));
}

/// Regression: the events that a person rewound in Copilot CLI stood, and their prompt was the title.
#[test]
fn what_copilot_cli_rewound_is_superseded() {
    let event = |id: &str, kind: &str, data: Value| json!({"type":kind,"data":data,"id":id,"timestamp":"2026-01-02T03:04:05.000Z","parentId":null});
    let said = |id: &str, kind: &str| event(id, kind, json!({"content":id,"toolRequests":[]}));
    let file = |rewind: Value| {
        let all = [
            event("s", "session.start", json!({"sessionId":"co-1"})),
            said("u1", "user.message"),
            said("a1", "assistant.message"),
            event("t", "assistant.turn_start", json!({})),
            said("u2", "user.message"),
            said("a2", "assistant.message"),
            event("r", "session.snapshot_rewind", rewind),
            said("u3", "user.message"),
            said("a3", "assistant.message"),
        ];
        read(lines(&all).as_bytes()).unwrap()
    };
    let left = |rewind: Value| {
        let read = file(rewind);
        let (turns, title) = standing(&read);
        (turns.join(" "), title.unwrap().to_string())
    };
    let expected = |turns: &str, title: &str| (turns.to_string(), title.to_string());
    // The event is the first of those that are removed.
    assert_eq!(left(json!({"upToEventId":"u2","eventsRemoved":2})), expected("u1 a1 u3 a3", "u1"));
    assert_eq!(left(json!({"upToEventId":"t","eventsRemoved":3})), expected("u1 a1 u3 a3", "u1"));
    assert_eq!(left(json!({"upToEventId":"u1","eventsRemoved":5})), expected("u3 a3", "u3"));
    // Newer versions list them, because others came in between.
    assert_eq!(
        left(json!({"upToEventId":"u1","eventIds":["u1","a2"],"eventsRemoved":2})),
        expected("a1 u2 u3 a3", "u3")
    );
    assert_eq!(left(json!({"upToEventId":"nosuch"})), expected("u1 a1 u2 a2 u3 a3", "u1"));
}

/// Regression: two sessions of Claude Code that both go on from one message of a third: the earlier one was superseded by
/// the later one, and found nowhere.
#[test]
fn two_sessions_that_go_on_from_one_message_both_stand() {
    let line = |uuid: &str, parent: Option<&str>, session: &str| {
        json!({"type":"user","uuid":uuid,"parentUuid":parent,"sessionId":session,"cwd":"/w",
            "message":{"role":"user","content":uuid}})
    };
    let file = lines(&[
        line("f1", None, "F0"),
        line("f2", Some("f1"), "F0"),
        line("f3", Some("f2"), "F1"),
        line("f4", Some("f3"), "F1"),
        line("f5", Some("f2"), "F2"),
        json!({"type":"custom-title","customTitle":"Other","sessionId":"F2"}),
        line("f6", Some("f5"), "F2"),
        // An edit, as within any session.
        line("f7", Some("f5"), "F2"),
        line("f8", Some("f3"), "F1"),
    ]);
    let read = read(file.as_bytes()).unwrap();
    assert_eq!(
        read.entries.iter().map(|entry| entry.thread).collect::<Vec<_>>(),
        [0, 0, 0, 0, 1, 1, 1, 1, 0]
    );
    // Also in the file of the first, which is named after it.
    let Opened::Agent(named) = open(file.as_bytes(), Some("/w/F0.jsonl")).unwrap() else { panic!() };
    let named: Vec<AgentEntry> = named.map(Result::unwrap).collect();
    assert_eq!(named, read.entries);
    let supersedes: Vec<usize> = read
        .entries
        .iter()
        .filter_map(|entry| match &entry.step {
            EntryContent::Turn(said) => Some(said.supersedes.len()),
            _ => None,
        })
        .collect();
    assert_eq!(supersedes, [0, 0, 0, 0, 0, 0, 1, 1]);
    // Back to where it began: an edit, too. Before that: again a fork, because the other session goes on from there as well.
    let more =
        lines(&[line("f9", Some("f2"), "F2"), line("fa", Some("f9"), "F2"), line("fb", Some("f1"), "F2")]);
    let longer = crate::agents::read((file + &more).as_bytes()).unwrap();
    let (places, left): (Vec<usize>, Vec<usize>) = longer.entries[9..]
        .iter()
        .map(|entry| match &entry.step {
            EntryContent::Turn(said) => (entry.thread, said.supersedes.len()),
            _ => unreachable!("these are turns"),
        })
        .unzip();
    assert_eq!((places, left), (vec![1, 1, 2], vec![2, 0, 0]));
    let origin = &read.threads[1].1;
    assert_eq!((origin.session.as_deref(), origin.parent), (Some("F2"), Some(read.threads[0].0)));
}
