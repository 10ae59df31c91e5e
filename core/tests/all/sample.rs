//! Small ids, drafts and chains for tests. Nothing here is random: the number determines everything.

use everturn_core::chain::{Head, next_event};
use everturn_core::event::{Body, Draft, Event, Visibility};
use everturn_core::id::{ConversationId, EventId, TurnId};
use everturn_core::time::Timestamp;
use std::borrow::Cow;

/// 2026-01-01T00:00:00Z.
pub const START: Timestamp = Timestamp(1_767_225_600_000_000);

pub fn event_id(n: u64) -> EventId {
    EventId::from_bytes(u128::from(n).to_be_bytes())
}

pub fn turn_id(n: u64) -> TurnId {
    TurnId(event_id(n).0)
}

pub fn conversation_id(n: u64) -> ConversationId {
    ConversationId(event_id(n).0)
}

/// An event with arbitrary content.
pub fn draft(n: u64, kind: impl Into<Cow<'static, str>>, body: impl Into<String>) -> Draft {
    Draft {
        id: event_id(n),
        at: START.plus_s(n),
        occurred_at: None,
        kind: kind.into(),
        actor: None,
        role: None,
        visibility: Visibility::Public,
        turn: None,
        key: None,
        body: Body { salt: [n as u8; 16], text: body.into() },
    }
}

/// Chains the drafts after `head`.
pub fn link(conversation: ConversationId, mut head: Head, drafts: Vec<Draft>) -> Vec<Event> {
    drafts
        .into_iter()
        .map(|draft| {
            draft.check().unwrap();
            let event = next_event(conversation, head, draft);
            head = Head { seq: event.seq, hash: event.hash };
            event
        })
        .collect()
}

pub fn head_of(events: &[Event]) -> Head {
    let last = events.last().unwrap();
    Head { seq: last.seq, hash: last.hash }
}
