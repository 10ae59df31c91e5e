//! An event as one line of JSON: the form in which it is exported and imported.
//!
//! Version 1, frozen by `core/tests/golden/`. `type` and `timestamp` come first, so that the line is also an event of a
//! session file. The body's bytes are embedded unchanged; a body with line breaks between its
//! tokens, which would end the line, goes into `body_text` as a string instead. An erased body and its salt are
//! absent.

use crate::Error;
use crate::chain::Hash;
use crate::event::{Body, Event, Visibility};
use crate::id::{ConversationId, EventId, TurnId};
use crate::time::Timestamp;
use crate::turn::Role;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use std::borrow::Cow;

#[derive(Serialize, Deserialize)]
struct Line<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    timestamp: Timestamp,
    id: EventId,
    conversation: ConversationId,
    seq: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    occurred_at: Option<Timestamp>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    actor: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    role: Option<Role>,
    visibility: Visibility,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    turn: Option<TurnId>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    key: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    body: Option<&'a RawValue>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    body_text: Option<Cow<'a, str>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    salt: Option<Cow<'a, str>>,
    body_hash: Hash,
    prev: Hash,
    hash: Hash,
}

/// Distinguishes a null body from an absent one.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// The event as one line, without the line break.
pub fn to_line(event: &Event) -> Result<String, Error> {
    let text = event.text();
    let one_line = text.filter(|text| !text.contains(['\n', '\r']));
    let body = match one_line {
        Some(text) => Some(serde_json::from_str::<&RawValue>(text).map_err(|e| {
            Error::corrupt("event.body", format!("the stored body is not JSON ({e}); run `everturn verify`"))
        })?),
        None => None,
    };
    // `RawValue` drops white space around the value; where there is any, only the text form is exact.
    let body = body.filter(|raw| Some(raw.get()) == one_line);
    let line = Line {
        kind: Cow::Borrowed(&event.kind),
        timestamp: event.at,
        id: event.id,
        conversation: event.conversation,
        seq: event.seq,
        occurred_at: event.occurred_at,
        actor: event.actor.as_deref().map(Cow::Borrowed),
        role: event.role,
        visibility: event.visibility,
        turn: event.turn,
        key: event.key.as_deref().map(Cow::Borrowed),
        body_text: if body.is_none() { text.map(Cow::Borrowed) } else { None },
        body,
        salt: event.body.as_ref().map(|body| Cow::Owned(hex::encode(body.salt))),
        body_hash: event.body_hash,
        prev: event.prev,
        hash: event.hash,
    };
    serde_json::to_string(&line).map_err(|e| Error::internal("event.encode", e.to_string()))
}

/// Parses a line into an event. The hashes are taken as they are; [`crate::chain::Verifier`] checks them.
pub fn from_line(line: &str) -> Result<Event, Error> {
    let malformed = |what: String| Error::invalid("event.malformed", format!("not an event: {what}"));
    let line: Line<'_> = serde_json::from_str(line).map_err(|e| malformed(e.to_string()))?;
    let text = match (line.body, line.body_text) {
        (Some(raw), None) => Some(raw.get().to_string()),
        (None, Some(text)) => Some(text.into_owned()),
        (None, None) => None,
        (Some(_), Some(_)) => return Err(malformed("it has both body and body_text".into())),
    };
    let body = match (text, line.salt) {
        (Some(text), Some(salt)) => {
            let mut bytes = [0; 16];
            hex::decode_to_slice(&*salt, &mut bytes)
                .map_err(|_| malformed("salt is not 32 hexadecimal digits".into()))?;
            crate::json::check(&text)?;
            Some(Body { salt: bytes, text })
        }
        (None, None) => None,
        _ => return Err(malformed("body and salt must be there together or not at all".into())),
    };
    Ok(Event {
        id: line.id,
        conversation: line.conversation,
        seq: line.seq,
        at: line.timestamp,
        occurred_at: line.occurred_at,
        kind: line.kind.into_owned(),
        actor: line.actor.map(Cow::into_owned),
        role: line.role,
        visibility: line.visibility,
        turn: line.turn,
        key: line.key.map(Cow::into_owned),
        body,
        hidden: false,
        body_hash: line.body_hash,
        prev: line.prev,
        hash: line.hash,
    })
}
