//! A message to make views from.

use super::hash;
use everturn_core::Error;
use everturn_core::json::Raw;
use everturn_core::message::carries_signature;
use serde_json::Value;
use std::sync::{Arc, OnceLock};

/// A message as it came, with its parsed value. Clones share the message.
#[derive(Clone, Debug)]
pub struct Message {
    kept: Arc<Kept>,
    /// Length of the text. This and the following are computed when a message is read, so that a view that
    /// drops it need not look inside.
    chars: usize,
    /// Whether it is signed, unless it was changed.
    is_signed: Option<bool>,
}

#[derive(Debug)]
struct Kept {
    raw: Raw,
    body: MessageBody,
}

#[derive(Debug)]
enum MessageBody {
    Read(Value),
    /// A changed message with its canonical JSON. It is parsed only on demand: most are just sent.
    Changed {
        canonical: Box<[u8]>,
        value: OnceLock<Value>,
    },
}

impl Message {
    /// Parses a message. In [`Message::value`], a number too large for a double is its spelling; the text that
    /// is shown and sent keeps it unchanged.
    pub fn read(raw: Raw) -> Result<Message, Error> {
        let value = parse(raw.get())
            .map_err(|e| Error::invalid("projection.message", format!("the message cannot be read: {e}")))?;
        Ok(Message::whole(raw, value))
    }

    /// Makes a message from a value that was never text.
    pub fn of(value: Value) -> Result<Message, Error> {
        Ok(Message::whole(Raw::of(&value)?, value))
    }

    fn whole(raw: Raw, value: Value) -> Message {
        let (chars, is_signed) = (hash::chars(raw.get().as_bytes()), Some(carries_signature(&value)));
        Message { kept: Arc::new(Kept { raw, body: MessageBody::Read(value) }), chars, is_signed }
    }

    /// Makes a changed message with its canonical JSON.
    pub(super) fn changed(raw: Raw, canonical: Vec<u8>) -> Message {
        let chars = hash::chars(raw.get().as_bytes());
        let body = MessageBody::Changed { canonical: canonical.into(), value: OnceLock::new() };
        Message { kept: Arc::new(Kept { raw, body }), chars, is_signed: None }
    }

    /// Whether this is the same message, not only an equal one.
    pub(super) fn is(&self, other: &Message) -> bool {
        Arc::ptr_eq(&self.kept, &other.kept)
    }

    /// The JSON text.
    pub fn raw(&self) -> &Raw {
        &self.kept.raw
    }

    /// The parsed value.
    pub fn value(&self) -> &Value {
        match &self.kept.body {
            MessageBody::Read(value) => value,
            // The original was JSON, and so is the result of changing it.
            MessageBody::Changed { value, .. } => {
                value.get_or_init(|| parse(self.raw().get()).unwrap_or_default())
            }
        }
    }

    /// `keys` is empty before and after; reusing it saves an allocation for each message.
    pub(super) fn write_canonical<'m>(&'m self, out: &mut Vec<u8>, keys: &mut Vec<(&'m str, &'m Value)>) {
        match &self.kept.body {
            MessageBody::Read(value) => hash::write_with(value, out, keys),
            MessageBody::Changed { canonical, .. } => out.extend_from_slice(canonical),
        }
    }

    pub(super) fn chars(&self) -> usize {
        self.chars
    }

    /// Whether it contains signed reasoning.
    pub(super) fn is_signed(&self) -> bool {
        self.is_signed.unwrap_or_else(|| carries_signature(self.value()))
    }
}

fn parse(text: &str) -> Result<Value, serde_json::Error> {
    serde_json::from_str(text).or_else(|_| serde_json::from_str(&with_huge_numbers_quoted(text)))
}

fn with_huge_numbers_quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    let mut rest = text;
    while let Some(start) = rest.find(|char: char| char == '"' || char == '-' || char.is_ascii_digit()) {
        out.push_str(&rest[..start]);
        rest = &rest[start..];
        let bytes = rest.as_bytes();
        let mut end = 1;
        if bytes[0] == b'"' {
            while end < bytes.len() && bytes[end] != b'"' {
                end += if bytes[end] == b'\\' { 2 } else { 1 };
            }
            end = rest.len().min(end + 1);
        } else {
            while end < bytes.len() && matches!(bytes[end], b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E') {
                end += 1;
            }
        }
        let (token, behind) = rest.split_at(end);
        rest = behind;
        if token.parse().is_ok_and(f64::is_infinite) {
            out.extend(["\"", token, "\""]);
        } else {
            out.push_str(token);
        }
    }
    out.push_str(rest);
    out
}
