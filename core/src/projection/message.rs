//! A message that views are made of.

use super::hash;
use super::reachability::Names;
use crate::Error;
use crate::json::Raw;
use crate::message::carries_signature;
use crate::pairing::Facts;
use serde_json::Value;
use std::sync::{Arc, OnceLock};

/// A message as it came, and what it says. A clone is the same message, not a copy.
///
/// A transcript is projected again at every turn, so what projections ask of a message is worked out when it is first
/// asked for and kept.
#[derive(Clone, Debug)]
pub struct Message(Arc<Kept>);

#[derive(Debug)]
struct Kept {
    raw: Raw,
    value: Value,
    /// What a view's hash is made of.
    canonical: OnceLock<String>,
    chars: OnceLock<usize>,
    signed: OnceLock<bool>,
    facts: OnceLock<Facts>,
    names: OnceLock<Names>,
}

impl Message {
    /// Reads a message. A number too large for a double is its spelling in [`Message::value`]; what is shown and sent
    /// is the text, in which it stays as it is.
    pub fn read(raw: Raw) -> Result<Message, Error> {
        let value = match serde_json::from_str(raw.get()) {
            Ok(value) => value,
            Err(_) => serde_json::from_str(&with_huge_numbers_quoted(raw.get())).map_err(|e| {
                Error::invalid("projection.message", format!("the message cannot be read: {e}"))
            })?,
        };
        Ok(Message::new(raw, value))
    }

    /// A message that was never text.
    pub fn of(value: Value) -> Result<Message, Error> {
        Ok(Message::new(Raw::of(&value)?, value))
    }

    fn new(raw: Raw, value: Value) -> Message {
        Message(Arc::new(Kept {
            raw,
            value,
            canonical: OnceLock::new(),
            chars: OnceLock::new(),
            signed: OnceLock::new(),
            facts: OnceLock::new(),
            names: OnceLock::new(),
        }))
    }

    /// The text.
    pub fn raw(&self) -> &Raw {
        &self.0.raw
    }

    /// What it says.
    pub fn value(&self) -> &Value {
        &self.0.value
    }

    /// Whether the other is a clone of this one. Two that only say the same are not.
    pub(super) fn is(&self, other: &Message) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(super) fn canonical(&self) -> &str {
        self.0.canonical.get_or_init(|| hash::canonical_of(self.value(), self.raw().get().len()))
    }

    pub(super) fn chars(&self) -> usize {
        *self.0.chars.get_or_init(|| self.raw().get().chars().count())
    }

    pub(super) fn is_signed(&self) -> bool {
        *self.0.signed.get_or_init(|| carries_signature(self.value()))
    }

    /// What pairing takes.
    pub(super) fn paired(&self) -> (&Value, &Facts) {
        (self.value(), self.0.facts.get_or_init(|| Facts::of(self.value())))
    }

    /// What its calls and results name.
    pub(super) fn names(&self) -> &Names {
        self.0.names.get_or_init(|| Names::of(self.value()))
    }
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
