//! A session file of another program becomes a conversation, once.

use crate::stage::{Short, memory, words};
use everturn_core::turn::Role;
use everturn_engine::{Error, Imported, NewTurn, Tenant};

const HEADER: &str = r#"{"type":"session_start","session_id":"u-1","image_id":"img_1","started_at":"2026-04-27T14:30:00Z","agent_provider":"claude-sonnet-4-7","agent_temperature":1.0,"context_loaded":["taste.md"],"starting_snapshot_hash":"abc"}"#;
const LINES: [&str; 7] = [
    r#"{"type":"photographer_message","timestamp":"2026-04-27T14:30:01Z","text":"warmer, please"}"#,
    r#"{"type":"agent_thinking","timestamp":"2026-04-27T14:30:02Z","text":"they like it warm"}"#,
    r#"{"type":"agent_tool_call","timestamp":"2026-04-27T14:30:03Z","tool":"temperature","parameters":{"kelvin":1.50}}"#,
    r#"{"type":"tool_result","timestamp":"2026-04-27T14:30:04Z","result":{"ok":true}}"#,
    r#"{"type":"snapshot_created","timestamp":"2026-04-27T14:30:05Z","hash":"h","label":"v1"}"#,
    r#"{"type":"turn.erased","timestamp":"2026-04-27T14:30:06Z","turns":[]}"#,
    r#"{"type":"session_end","timestamp":"2026-04-27T14:31:00Z","entries":6}"#,
];

fn import(scope: &Tenant, lines: &[&str]) -> Result<Imported, Error> {
    scope.import(format!("{HEADER}\n{}\n", lines.join("\n")).as_bytes(), &mut |_| {})
}

#[test]
fn a_session_becomes_a_conversation_and_importing_it_again_adds_what_is_new() {
    let (_store, scope) = memory();
    let first = import(&scope, &LINES[..2]).unwrap();
    assert_eq!((&*first.format, first.events, first.added, first.problems.len()), ("session", 3, 3, 0));
    let id = first.conversation.id;
    assert_eq!(import(&scope, &LINES[..2]).unwrap().added, 0);
    let all = import(&scope, &LINES).unwrap();
    assert_eq!((all.conversation.id, all.events, all.added), (id, 8, 5));
    assert_eq!(import(&scope, &LINES).unwrap().added, 0);

    let kinds: Vec<String> = scope.kinds(id).into_iter().filter(|kind| kind != "import.finished").collect();
    let expected = [
        "conversation.created",
        "session_start",
        "message",
        "message",
        "message",
        "tool_result",
        "snapshot_created",
        "imported.turn.erased",
        "session_end",
    ];
    assert_eq!(kinds, expected);
    let turns = scope.turns(id);
    assert_eq!(words(&turns[0]).unwrap(), "warmer, please");
    let roles: Vec<Role> = turns.iter().map(|turn| turn.role).collect();
    assert_eq!(roles, [Role::User, Role::Assistant, Role::Assistant, Role::Tool]);
    assert_eq!(turns[1].model.as_deref(), Some("claude-sonnet-4-7"));
    assert_eq!(turns[0].occurred_at.unwrap().to_string(), "2026-04-27T14:30:01.000000Z");
    assert_eq!(scope.conversation(id).get().unwrap().metadata["session"].get(), HEADER);
    let events = scope.conversation(id).log().read(0, 100).unwrap();
    let snapshot = events.iter().find(|event| event.kind == "snapshot_created").unwrap();
    assert_eq!(snapshot.text(), Some(LINES[4]));
    scope.conversation(id).log().verify(None).unwrap();
    // What is said in it later is not in the way.
    let (_store, scope) = memory();
    import(&scope, &LINES[..3]).unwrap();
    (0..150).for_each(|n| drop(scope.say(id, NewTurn::user(&format!("mine {n}")))));
    assert_eq!(import(&scope, &LINES).unwrap().added, 4);
    assert_eq!(scope.turns(id).len(), 154);
}

#[test]
fn a_damaged_session_gives_what_it_has() {
    let (_store, scope) = memory();
    let huge = format!(
        r#"{{"type":"note","timestamp":"2026-04-27T14:30:01Z","text":"{}"}}"#,
        "x".repeat(17 * 1024 * 1024)
    );
    let lines = [LINES[0], "{broken", &huge, "[1]", LINES[4], "{\"type\":\"cut"];
    let text = format!("{HEADER}\n{}", lines.join("\n"));
    let imported = scope.import(text.as_bytes(), &mut |_| {}).unwrap();
    assert_eq!(imported.added, 4);
    let problems = imported.problems.join("\n");
    for says in ["line 3: not JSON", "line 4: BODY_BYTES_MAX", "the last line is cut off"] {
        assert!(problems.contains(says), "{problems}");
    }
    assert_eq!(imported.problems.len(), 3);
}

#[test]
fn a_long_session_is_taken_over_in_batches() {
    let (_store, scope) = memory();
    let lines: Vec<String> = (0..1234).map(|n| LINES[0].replace("warmer", &n.to_string())).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let id = import(&scope, &lines[..700]).unwrap().conversation.id;
    assert_eq!(import(&scope, &lines).unwrap().added, 534);
    assert_eq!(scope.conversation(id).get().unwrap().turns, 1234);
}
