//! What is serialised for a caller can be read back, and serialised again to the same bytes.

use everturn_core::chain::Hash;
use everturn_core::event::{Body, Event, Visibility, kind};
use everturn_core::id::{ConversationId, EventId, TurnId};
use everturn_core::json::Raw;
use everturn_core::time::Timestamp;
use everturn_core::turn::{Partial, Role, Spoken, Status, Successor, Tokens, Turn};
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select;
use std::collections::BTreeMap;

/// Messages as people and providers write them, with various spacing, spellings and key orders.
const MESSAGES: &[&str] = &[
    r#"{"role":"user","content":"hé\u00e9 \u2028"}"#,
    r#"{ "content" : null, "role":"assistant", "tool_calls":[ {"id":"1","function":{"arguments":"{}"}} ] }"#,
    r#"{"role":"tool","tool_results":[1.0,1e2,-0]}"#,
    r#"{"role":"assistant","content":[{"type":"thinking","signature":"s=="}, {"type":"text","text":"x"}]}"#,
    r#"{"type":"function_call","call_id":"c","name":"f","arguments":"{}","role":"assistant"}"#,
    r#"{"role":"user"}"#,
    "{\n\t\"role\": \"user\",\n\t\"content\": [\n{}]}",
];

fn message() -> impl Strategy<Value = String> {
    prop_oneof![
        select(MESSAGES).prop_map(str::to_string),
        any::<String>().prop_map(|text| serde_json::json!({"role": "user", "content": text}).to_string()),
    ]
}

fn raw(text: &str) -> Raw {
    Raw::new(text.to_string()).unwrap()
}

prop_compose! {
    fn turn()(
        message in of(message()), actor in of(".*"), erased: bool, seq: u64, occurred: bool,
        role in select(vec![Role::User, Role::Assistant, Role::System, Role::Tool]),
        status in select(vec![Status::Pending, Status::Complete, Status::Aborted, Status::Interrupted]),
        tokens in of((of(any::<u64>()), of(any::<u64>()))), reason in of(".*"),
        successor in select(vec![
            None,
            Some(Successor::Turn(TurnId::from_bytes([7; 16]))),
            Some(Successor::Event(EventId::from_bytes([7; 16]))),
        ]),
        metadata in proptest::collection::btree_map(".*", select(vec!["1.0", "null", "[ 1]", "\"\\u00e9\""]), 0..3),
    ) -> Turn {
        let at: Timestamp = "2026-11-15T05:30:12.345Z".parse().unwrap();
        Turn {
            id: TurnId::from_bytes([7; 16]), conversation: ConversationId::from_bytes([7; 16]), seq, place: seq / 2, actor, role, speaker: reason.clone().map(Into::into),
            spoken: reason.iter().map(|text| Spoken { notice: occurred.then_some("reminder".into()), text: text.clone() }).collect(),
            message: message.filter(|_| !erased).map(|text| raw(&text)), status,
            partial: (status == Status::Pending).then(|| Partial::new("half".into())),
            tokens: tokens.map(|(prompt, completion)| Tokens { prompt, completion }),
            model: reason.clone(), adapter: None,
            metadata: metadata.into_iter().map(|(name, text)| (name, raw(text))).collect::<BTreeMap<_, _>>(),
            reason, created: at, occurred_at: occurred.then_some(at), visibility: Visibility::Internal,
            audience: Vec::new(), hidden: false, superseded_by: successor, erased,
        }
    }
}

prop_compose! {
    fn event()(body in of(message()), actor in of(".*"), kind in ".*", seq: u64, role: bool) -> Event {
        let hash = Hash::of(kind.as_bytes());
        Event {
            id: EventId::from_bytes([7; 16]), conversation: ConversationId::from_bytes([7; 16]), seq,
            at: "2026-11-15T05:30:12Z".parse().unwrap(), occurred_at: None, kind, actor,
            role: role.then_some(Role::User), visibility: Visibility::Public, turn: role.then_some(TurnId::from_bytes([7; 16])),
            key: None, hidden: false, body: body.map(|text| Body { salt: [7; 16], text }), body_hash: hash, prev: hash, hash,
        }
    }
}

proptest! {
    #[test]
    fn a_turn_is_read_back(turn in turn()) {
        let told = serde_json::to_string(&turn).unwrap();
        let read: Turn = serde_json::from_str(&told).unwrap();
        prop_assert_eq!(serde_json::to_string(&read).unwrap(), told);
    }

    #[test]
    fn an_event_is_read_back(event in event()) {
        let told = serde_json::to_string(&event).unwrap();
        let read: Event = serde_json::from_str(&told).unwrap();
        prop_assert_eq!(serde_json::to_string(&read).unwrap(), told);
        prop_assert_eq!(read.text(), event.text().map(str::trim));
    }
}

/// A null body is not an erased one.
#[test]
fn null_is_not_absent() {
    let event = Event {
        id: EventId::from_bytes([7; 16]),
        conversation: ConversationId::from_bytes([7; 16]),
        seq: 1,
        at: "2026-11-15T05:30:12Z".parse().unwrap(),
        occurred_at: None,
        kind: kind::MESSAGE.into(),
        actor: None,
        role: None,
        visibility: Visibility::Public,
        turn: None,
        key: None,
        hidden: false,
        body: Some(Body { salt: [0; 16], text: "null".into() }),
        body_hash: Hash::of(b""),
        prev: Hash::of(b""),
        hash: Hash::of(b""),
    };
    let read: Event = serde_json::from_str(&serde_json::to_string(&event).unwrap()).unwrap();
    assert_eq!(read, event);
}
