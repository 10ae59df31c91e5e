//! Sessions that part, and what was taken back, over several imports.

use super::{import, said};
use crate::stage::memory;
use everturn_core::id::ConversationId;
use serde_json::{Value, json};

fn line(uuid: &str, parent: Option<&str>, session: &str) -> String {
    let line = json!({"type":"user","uuid":uuid,"parentUuid":parent,"sessionId":session,"cwd":"/w",
        "timestamp":format!("2026-01-01T00:00:0{}Z", &uuid[1..]),"message":{"role":"user","content":uuid}});
    format!("{line}\n")
}

/// Regression: of two sessions that went on from the same message of a third, the later one superseded the earlier one. They
/// are the same two conversations whatever was imported first.
#[test]
fn sessions_that_part_are_two_conversations_in_any_order_of_imports() {
    let base = line("f1", None, "F0") + line("f2", Some("f1"), "F0").as_str();
    let one = line("f3", Some("f2"), "F1") + line("f4", Some("f3"), "F1").as_str();
    let two = line("f5", Some("f2"), "F2") + line("f6", Some("f5"), "F2").as_str();
    let all = format!("{base}{one}{two}");
    let part = |part: &str| format!("{base}{part}");
    for imports in [
        vec![all.clone()],
        vec![base.clone(), all.clone()],
        vec![part(&one), all.clone()],
        vec![part(&two), all.clone()],
        vec![part(&one), part(&two), all.clone()],
        vec![part(&two), part(&one), all.clone()],
    ] {
        let (_store, scope) = memory();
        let reports: Vec<_> = imports.iter().map(|file| import(&scope, file).unwrap()).collect();
        let last = reports.last().unwrap();
        let (id, fork) = (last.conversation.id, last.linked[0]);
        assert_eq!(last.linked.len(), 1);
        let expect = |id: ConversationId, turns: [&str; 4]| {
            assert_eq!(said(&scope, id), turns.map(|turn| format!("user {turn}")), "{imports:?}");
        };
        let check = || {
            expect(id, ["f1", "f2", "f3", "f4"]);
            expect(fork, ["f1", "f2", "f5", "f6"]);
        };
        check();
        let again = import(&scope, &all).unwrap();
        assert_eq!((again.added, again.turns, again.conversation.id), (0, 6, id));
        check();
        // Each goes on.
        let more = format!("{all}{}{}", line("f7", Some("f6"), "F2"), line("f8", Some("f4"), "F1"));
        assert_eq!(import(&scope, &more).unwrap().added, 2);
        assert_eq!(said(&scope, id).last().map(String::as_str), Some("user f8"));
        assert_eq!(said(&scope, fork).last().map(String::as_str), Some("user f7"));
    }
}

/// Regression: prompts that a person rolled back in Codex stood for ever, also as the title.
#[test]
fn a_rollback_takes_effect_with_the_next_turn_also_of_a_later_import() {
    let event = |kind: &str, payload: Value| json!({"timestamp":"2026-01-01T00:00:00Z","type":kind,"payload":payload});
    let prompt = |text: &str| {
        event(
            "response_item",
            json!({"type":"message","role":"user","content":[{"type":"input_text","text":text}]}),
        )
    };
    let (_store, scope) = memory();
    let mut file = String::new();
    let mut grow = |line: Value| {
        file += &format!("{line}\n");
        import(&scope, &file)
    };
    grow(event("session_meta", json!({"id":"s"}))).unwrap_err();
    grow(prompt("withdrawn")).unwrap();
    let rollback = event("event_msg", json!({"type":"thread_rolled_back","num_turns":1}));
    let id = grow(rollback).unwrap().conversation.id;
    assert_eq!(said(&scope, id), ["user withdrawn"]);
    grow(prompt("kept")).unwrap();
    assert_eq!(said(&scope, id), ["user kept"]);
    assert_eq!(scope.conversation(id).get().unwrap().title.as_deref(), Some("kept"));
    grow(prompt("more")).unwrap();
    assert_eq!(said(&scope, id), ["user kept", "user more"]);
    assert_eq!(scope.conversation(id).get().unwrap().title.as_deref(), Some("kept"));
}
