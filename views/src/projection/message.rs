//! A message that views are made of.

use super::hash;
use everturn_core::Error;
use everturn_core::json::Raw;
use everturn_core::message::carries_signature;
use serde_json::Value;
use std::sync::{Arc, OnceLock};

/// A message as it came, and what it says. A clone is the same message, not a copy.
#[derive(Clone, Debug)]
pub struct Message {
    kept: Arc<Kept>,
    /// How long the text is. This and what follows are found out when a message is read, and stand here, so that a view
    /// that drops it need not look inside.
    chars: usize,
    /// Whether it is signed, unless it was changed.
    is_signed: Option<bool>,
}

#[derive(Debug)]
struct Kept {
    raw: Raw,
    said: Said,
}

#[derive(Debug)]
enum Said {
    Read(Value),
    /// Of a message that was changed, what a view's hash is made of. It is read only if somebody asks: most are just sent.
    Changed {
        canonical: Box<[u8]>,
        value: OnceLock<Value>,
    },
}

impl Message {
    /// Reads a message. A number too large for a double is its spelling in [`Message::value`]; what is shown and sent
    /// is the text, in which it stays as it is.
    pub fn read(raw: Raw) -> Result<Message, Error> {
        let value = parse(raw.get())
            .map_err(|e| Error::invalid("projection.message", format!("the message cannot be read: {e}")))?;
        Ok(Message::whole(raw, value))
    }

    /// A message that was never text.
    pub fn of(value: Value) -> Result<Message, Error> {
        Ok(Message::whole(Raw::of(&value)?, value))
    }

    fn whole(raw: Raw, value: Value) -> Message {
        let (chars, is_signed) = (hash::chars(raw.get().as_bytes()), Some(carries_signature(&value)));
        Message { kept: Arc::new(Kept { raw, said: Said::Read(value) }), chars, is_signed }
    }

    /// A message that was changed, and its canonical JSON.
    pub(super) fn changed(raw: Raw, canonical: Vec<u8>) -> Message {
        let chars = hash::chars(raw.get().as_bytes());
        let said = Said::Changed { canonical: canonical.into(), value: OnceLock::new() };
        Message { kept: Arc::new(Kept { raw, said }), chars, is_signed: None }
    }

    /// Whether this is the same message, not only an equal one.
    pub(super) fn is(&self, other: &Message) -> bool {
        Arc::ptr_eq(&self.kept, &other.kept)
    }

    /// The text.
    pub fn raw(&self) -> &Raw {
        &self.kept.raw
    }

    /// What it says.
    pub fn value(&self) -> &Value {
        match &self.kept.said {
            Said::Read(value) => value,
            // What was changed was JSON before and is so after.
            Said::Changed { value, .. } => value.get_or_init(|| parse(self.raw().get()).unwrap_or_default()),
        }
    }

    /// `keys` is empty before and after; it spares an allocation for each message.
    pub(super) fn write_canonical<'m>(&'m self, out: &mut Vec<u8>, keys: &mut Vec<(&'m str, &'m Value)>) {
        match &self.kept.said {
            Said::Read(value) => hash::write_with(value, out, keys),
            Said::Changed { canonical, .. } => out.extend_from_slice(canonical),
        }
    }

    /// How long its text is.
    pub(super) fn chars(&self) -> usize {
        self.chars
    }

    /// Whether it carries reasoning that its provider will check.
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
