//! A session as a conversation: nothing is dropped, calls and results belong together.

use crate::session::raw;
use everturn_core::message::{MessagePart, parts};
use everturn_core::time::Timestamp;
use everturn_core::turn::Role;
use everturn_formats::jsonl::Header;
use everturn_formats::session::{Item, Mapped, Mapper, Reader, Recorded, conversation_id};
use proptest::prelude::*;
use serde_json::{Value, json};

const SESSION: &str = r#"{"type":"session_start","session_id":"u-1","image_id":"img_1","started_at":"2026-04-27T14:30:00Z","agent_provider":"claude-sonnet-4-7","agent_temperature":1.0,"context_loaded":["taste.md"],"starting_snapshot_hash":"abc"}
{"type":"photographer_message","timestamp":"2026-04-27T14:30:01Z","text":"warmer, please"}
{"type":"agent_thinking","timestamp":"2026-04-27T14:30:02.5Z","text":"they like it warm"}
{"type":"agent_tool_call","timestamp":"2026-04-27T14:30:03Z","tool":"temperature","parameters":{"kelvin":1.50}}
{"type":"agent_tool_call","timestamp":"2026-04-27T14:30:03Z","tool":"crop","parameters":{}}
{"type":"tool_result","timestamp":"2026-04-27T14:30:04Z","tool":"crop","result":{"ok":true}}
{"type":"tool_result","timestamp":"2026-04-27T14:30:04Z","result":12345678901234567890}
{"type":"snapshot_created","timestamp":"2026-04-27T14:30:05Z","hash":"h","label":"v1"}
{"type":"session_end","timestamp":"2026-04-27T14:31:00Z","entries":7}
"#;

fn header(text: &str) -> Header {
    match Reader::new(text.as_bytes()).next() {
        Some(Ok(Item::Start(header))) => header,
        other => panic!("{other:?}"),
    }
}

fn steps(text: &str) -> Vec<Mapped> {
    let mut mapper = Mapper::new(&header(text));
    let step = |item| match item {
        Item::Start(header) => Mapper::start(&header).unwrap(),
        Item::Entry(recorded) => mapper.step(&recorded).unwrap(),
        Item::End(end) => Mapper::end(&end).unwrap(),
        other => panic!("{other:?}"),
    };
    Reader::new(text.as_bytes()).map(Result::unwrap).map(step).collect()
}

/// One line in a session of its own.
fn step(line: &str) -> Mapped {
    Mapper::new(&header(SESSION)).step(&Recorded::new(2, line.to_string())).unwrap()
}

fn message(step: &Mapped) -> Value {
    let Mapped::Turn { message, .. } = step else { panic!("{step:?}") };
    serde_json::from_str(message.get()).unwrap()
}

fn time(text: &str) -> Option<Timestamp> {
    Some(text.parse().unwrap())
}

#[test]
fn every_line_of_a_session_becomes_one_step() {
    let steps = steps(SESSION);
    assert_eq!(steps.len(), 9);
    let Mapped::Event { kind, body, occurred_at } = &steps[0] else { panic!("{:?}", steps[0]) };
    assert_eq!((kind.as_str(), body.get()), ("session_start", SESSION.lines().next().unwrap()));
    assert_eq!(*occurred_at, time("2026-04-27T14:30:00Z"));
    let Mapped::Turn { role, message: said, actor, model, metadata, occurred_at } = &steps[1] else {
        panic!()
    };
    assert_eq!((*role, actor.as_deref(), model), (Role::User, Some("photographer"), &None));
    assert_eq!(said.get(), r#"{"role":"user","content":"warmer, please"}"#);
    assert_eq!((metadata.len(), *occurred_at), (0, time("2026-04-27T14:30:01Z")));
    assert_eq!(
        message(&steps[2]),
        json!({"role":"assistant","content":[{"type":"thinking","thinking":"they like it warm"}]})
    );
    let Mapped::Turn { role, model, actor, .. } = &steps[2] else { panic!() };
    assert_eq!(
        (*role, model.as_deref(), actor.as_deref()),
        (Role::Assistant, Some("claude-sonnet-4-7"), Some("agent"))
    );
    // Arguments and results are the bytes that were there.
    let Mapped::Turn { message: call, .. } = &steps[3] else { panic!() };
    assert_eq!(
        call.get(),
        r#"{"role":"assistant","content":[{"type":"tool_call","id":"call_4","name":"temperature","arguments":{"kelvin":1.50}}]}"#
    );
    // A result that names its tool answers that tool's call, one that names nothing the oldest that waits.
    let Mapped::Turn { message: crop, actor, role, .. } = &steps[5] else { panic!() };
    assert_eq!((actor.as_deref(), *role), (Some("crop"), Role::Tool));
    assert_eq!(
        crop.get(),
        r#"{"role":"tool","content":[{"type":"tool_result","tool_use_id":"call_5","name":"crop","content":{"ok":true}}]}"#
    );
    let Mapped::Turn { message: kelvin, .. } = &steps[6] else { panic!() };
    assert_eq!(
        kelvin.get(),
        r#"{"role":"tool","content":[{"type":"tool_result","tool_use_id":"call_4","name":"temperature","content":12345678901234567890}]}"#
    );
    for (at, name) in [(7, "snapshot_created"), (8, "session_end")] {
        let Mapped::Event { kind, body, .. } = &steps[at] else { panic!("{:?}", steps[at]) };
        assert_eq!((kind.as_str(), body.get()), (name, SESSION.lines().nth(at).unwrap()));
    }
    // The lens of the house sees what was meant.
    assert!(matches!(
        parts(&message(&steps[2]))[..],
        [MessagePart::Thinking { signed: false, text: Some("they like it warm") }]
    ));
    assert!(matches!(
        parts(&message(&steps[3]))[..],
        [MessagePart::Call { id: Some("call_4"), name: "temperature", .. }]
    ));
    assert!(matches!(parts(&message(&steps[5]))[..], [MessagePart::Result { id: Some("call_5"), .. }]));
}

#[test]
fn a_session_is_the_same_conversation_whenever_it_is_imported() {
    let first = conversation_id(&header(SESSION));
    assert_eq!(conversation_id(&header(SESSION)), first);
    assert_eq!(first.0.timestamp_ms(), time("2026-04-27T14:30:00Z").unwrap().millis());
    assert_ne!(conversation_id(&header(&SESSION.replace("u-1", "u-2"))), first);
    let settings = Mapper::settings(&header(SESSION)).unwrap().normalise().unwrap();
    assert_eq!(settings.metadata["session"].get(), SESSION.lines().next().unwrap());
    assert_eq!(settings.title, None);
    // A header that is too large for metadata is in the first event all the same.
    let huge = SESSION.replace("taste.md", &"x".repeat(100_000));
    assert_eq!(Mapper::settings(&header(&huge)).unwrap().metadata.len(), 0);
    assert!(matches!(&steps(&huge)[0], Mapped::Event { body, .. } if body.get().len() > 100_000));
}

#[test]
fn other_spellings_mean_the_same() {
    for (line, expected) in [
        (r#"{"type":"user_message","content":"hi"}"#, json!({"role":"user","content":"hi"})),
        (
            r#"{"type":"agent_message","message":[{"type":"text","text":"hi"}]}"#,
            json!({"role":"assistant","content":[{"type":"text","text":"hi"}]}),
        ),
        (
            r#"{"type":"agent_tool_call","name":"ls","args":[1],"id":7}"#,
            json!({"role":"assistant","content":[{"type":"tool_call","id":"7","name":"ls","arguments":[1]}]}),
        ),
        (
            r#"{"type":"tool_result","tool_use_id":"7","output":"x","is_error":true}"#,
            json!({"role":"tool","content":[{"type":"tool_result","tool_use_id":"7","content":"x","is_error":true}]}),
        ),
        (
            r#"{"type":"tool_result","stdout":"x","code":0}"#,
            json!({"role":"tool","content":[{"type":"tool_result","content":{"stdout":"x","code":0}}]}),
        ),
        (
            r#"{"type":"message","role":"user","content":"hi","n":1}"#,
            json!({"type":"message","role":"user","content":"hi","n":1}),
        ),
    ] {
        assert_eq!(message(&step(line)), expected, "{line}");
    }
}

#[test]
fn what_a_turn_has_no_place_for_goes_along() {
    let line = r#"{"type":"photographer_message","timestamp":"2026-04-27T16:30:01.123456789+02:00","text":"hi","mood":1.50}"#;
    let Mapped::Turn { metadata, occurred_at, .. } = step(line) else { panic!() };
    assert_eq!(
        metadata["session"].get(),
        r#"{"timestamp":"2026-04-27T16:30:01.123456789+02:00","mood":1.50}"#
    );
    assert_eq!(occurred_at, time("2026-04-27T14:30:01.123456Z"));
    let Mapped::Turn { metadata, occurred_at, .. } =
        step(r#"{"type":"photographer_message","timestamp":"noon","text":"hi"}"#)
    else {
        panic!()
    };
    assert_eq!((metadata["session"].get(), occurred_at), (r#"{"timestamp":"noon"}"#, None));
}

#[test]
fn a_line_cannot_do_what_only_everturn_does() {
    for (kind, stored) in [
        ("turn.erased", "imported.turn.erased"),
        ("conversation.state", "imported.conversation.state"),
        ("asset.added", "imported.asset.added"),
        ("message", "imported.message"),
        ("system_prompt", "imported.system_prompt"),
        ("weather", "weather"),
        ("", "imported.entry"),
    ] {
        let line =
            json!({"type": kind, "timestamp": "2026-04-27T14:30:00Z", "turns": ["turn_x"]}).to_string();
        let Mapped::Event { kind, body, .. } = step(&line) else { panic!("{line}") };
        assert_eq!((kind.as_str(), body.get()), (stored, line.as_str()));
    }
    for line in [
        "[1]",
        "7",
        "{}",
        r#"{"type":5}"#,
        r#"{"type":"photographer_message"}"#,
        r#"{"type":"agent_thinking","text":5}"#,
    ] {
        assert!(matches!(step(line), Mapped::Event { body, .. } if body == raw(line)), "{line}");
    }
}

/// A message is nested deeper than the line that it is made of.
#[test]
fn a_line_that_is_as_deep_as_can_be_is_kept_as_an_event() {
    let deep = |levels| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    let line = |levels| format!(r#"{{"type":"tool_result","result":{}}}"#, deep(levels));
    assert!(matches!(step(&line(90)), Mapped::Turn { .. }));
    let Mapped::Event { kind, body, .. } = step(&line(99)) else { panic!() };
    assert_eq!((kind.as_str(), body.get()), ("imported.tool_result", line(99).as_str()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Whatever the fields are: each of them is in the step, and a number keeps its spelling.
    #[test]
    fn nothing_of_a_line_is_dropped(
        kind in prop::sample::select(vec!["photographer_message", "agent_thinking", "agent_tool_call", "tool_result", "user_message", "x"]),
        fields in prop::collection::btree_map(
            prop::sample::select(vec!["text", "content", "tool", "name", "parameters", "input", "result", "value", "id", "call_id", "is_error", "role", "extra"]),
            prop::sample::select(vec!["\"words one\"", "\"words two\"", "17.250", "{\"k\":17.50}", "[17.750]", "true", "null", "\"\""]),
            0..7,
        ),
    ) {
        let line: Vec<String> = fields.iter().map(|(name, value)| format!(",\"{name}\":{value}")).collect();
        let line = format!("{{\"type\":\"{kind}\"{}}}", line.concat());
        let shown = match step(&line) {
            Mapped::Event { body, .. } => body.get().to_string(),
            Mapped::Turn { message, metadata, .. } => {
                format!("{} {}", message.get(), metadata.get("session").map_or("", |raw| raw.get()))
            }
        };
        for value in fields.values().filter(|value| value.len() > 4) {
            let times = |text: &str| text.matches(value.trim_matches('"')).count();
            prop_assert!(times(&shown) >= times(&line), "{value} of {line} is not in {shown}");
        }
    }
}
