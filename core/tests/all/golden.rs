//! The encodings of format 1.
//!
//! `EVERTURN_WRITE_GOLDEN=1 cargo test -p everturn-core golden` writes the files. Do that until 0.1.0 is released, and
//! never after: then logs in this encoding are on disks that nobody can migrate, and another encoding needs another name.

use crate::sample::{conversation_id, draft, event_id, head_of, link, turn_id};
use everturn_core::chain::{Head, Verifier, envelope_bytes};
use everturn_core::encoding::{from_line, to_line};
use everturn_core::event::{Draft, Event, Visibility};
use everturn_core::time::Timestamp;
use everturn_core::turn::Role;
use serde_json::{Value, json};
use std::path::PathBuf;

/// A parent with every optional field present and absent, and a fork that continues after its third event.
fn events() -> Vec<Event> {
    let parent = conversation_id(0x0123_4567_89ab_cdef);
    let child = conversation_id(0xfedc_ba98_7654_3210);
    let mut events = link(
        parent,
        Head::genesis(parent),
        vec![
            draft(1, "conversation.created", "{}"),
            Draft {
                occurred_at: Some(Timestamp(-1)),
                actor: Some("Zoë 🦀 王".into()),
                role: Some(Role::User),
                visibility: Visibility::Internal,
                turn: Some(turn_id(2)),
                ..draft(
                    2,
                    "message",
                    r#"{"message":{"role":"user","content":"caf\u00e9","n":1.0,"big":18446744073709551615}}"#,
                )
            },
            Draft {
                role: Some(Role::Tool),
                visibility: Visibility::Private,
                ..draft(3, "mask_generated", "{\n  \"lines\": [1,\r\n 2]\n}")
            },
        ],
    );
    events.extend(link(
        child,
        head_of(&events),
        vec![
            draft(
                4,
                "conversation.forked",
                format!(r#"{{"parent":{{"conversation":"{parent}","at_seq":3}}}}"#),
            ),
            Draft { actor: Some("agent".into()), ..draft(5, "note", "null") },
            draft(6, "note", r#""soon gone""#),
            draft(7, "note", " [ 1e5 , -0 ] "),
        ],
    ));
    events[5].body = None;
    events
}

/// Events that name the access key that wrote them, and one that does not.
fn events_with_keys() -> Vec<Event> {
    let id = conversation_id(7);
    let key = |key: &str, draft: Draft| Draft { key: Some(key.into()), ..draft };
    let drafts = vec![
        key("key_01J00000000000000000000000", draft(1, "conversation.created", "{}")),
        draft(2, "note", "1"),
        key("jwt:acme/Zoë", Draft { actor: Some("Zoë".into()), ..draft(3, "note", "2") }),
    ];
    link(id, Head::genesis(id), drafts)
}

fn described(event: &Event) -> Value {
    json!({
        "event": {
            "id": event.id,
            "conversation": event.conversation,
            "seq": event.seq,
            "at_us": event.at.0,
            "occurred_at_us": event.occurred_at.map(|at| at.0),
            "kind": event.kind,
            "actor": event.actor,
            "role": event.role,
            "visibility": event.visibility,
            "turn": event.turn,
            "salt": event.body.as_ref().map(|body| hex::encode(body.salt)),
            "body": event.text(),
            "prev": event.prev,
            "key": event.key,
        },
        "envelope": hex::encode(envelope_bytes(event)),
        "body_hash": event.body_hash,
        "hash": event.hash,
    })
}

/// The committed file; with the environment variable set, it is written first.
fn golden(name: &str, now: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("EVERTURN_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, now).unwrap();
    }
    std::fs::read_to_string(&path).unwrap()
}

#[test]
fn the_chain_encoding_is_frozen() {
    let now: Vec<Value> = events().iter().chain(&events_with_keys()).map(described).collect();
    let now = serde_json::to_string_pretty(&now).unwrap() + "\n";
    assert!(
        golden("format1_chain.json", &now) == now,
        "the hashed bytes of an event changed. Format 1 is frozen: every log ever written would stop verifying. \
         Undo the change, or add another encoding beside it. Now it would be:\n{now}"
    );
}

#[test]
fn the_line_encoding_is_frozen() {
    let (events, events_with_keys) = (events(), events_with_keys());
    let line = |event: &Event| to_line(event).unwrap() + "\n";
    let now: String = events.iter().chain(&events_with_keys).map(line).collect();
    let file = golden("format1_events.jsonl", &now);
    assert!(
        file == now,
        "the line of an event changed. Format 1 is frozen: exported files are compared and mirrored by their bytes. \
         Undo the change, or add another encoding beside it. Now it would be:\n{now}"
    );
    let mut lines = file.lines();
    for events in [&events, &events_with_keys] {
        let mut verifier = Verifier::new(events[events.len() - 1].conversation, None);
        for (event, line) in events.iter().zip(lines.by_ref()) {
            let read = from_line(line).unwrap();
            assert_eq!(&read, event, "a line must read as what was written");
            assert_eq!(to_line(&read).unwrap(), line, "and be written again with the same bytes");
            verifier.push(&read).unwrap();
        }
        let erased = events.iter().filter(|event| event.body.is_none()).count() as u64;
        assert_eq!(verifier.finish().erased, erased);
    }
    assert_eq!(event_id(1), events[0].id);
}

#[test]
fn another_key_or_none_is_another_event() {
    for event in events_with_keys() {
        everturn_core::chain::check(&event).unwrap();
        for key in [None, Some("key_01J00000000000000000000001".to_string())] {
            if key != event.key {
                assert!(everturn_core::chain::check(&Event { key, ..event.clone() }).is_err());
            }
        }
    }
}
