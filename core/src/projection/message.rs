//! A message that views are made of.

use super::hash;
use crate::Error;
use crate::json::Raw;
use crate::message::carries_signature;
use serde_json::Value;
use std::sync::{Arc, OnceLock};

/// A message as it came, and what it says. A clone is the same message, not a copy.
#[derive(Clone, Debug)]
pub struct Message(Arc<Kept>);

#[derive(Debug)]
struct Kept {
    raw: Raw,
    /// Of a message that was changed it is read only if somebody asks: most are just sent.
    value: OnceLock<Value>,
    /// What a view's hash is made of, of a message that was changed.
    canonical: Option<Box<[u8]>>,
    /// Found out when a message is read, so that a view that drops it need not look inside; of one that was changed, when
    /// somebody asks.
    about: OnceLock<About>,
}

#[derive(Clone, Copy, Debug)]
struct About {
    chars: usize,
    is_signed: bool,
}

impl About {
    fn of(raw: &Raw, value: &Value) -> About {
        About { chars: hash::chars(raw.get().as_bytes()), is_signed: carries_signature(value) }
    }
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
        let about = About::of(&raw, &value).into();
        Message(Arc::new(Kept { raw, value: value.into(), canonical: None, about }))
    }

    /// A message that was changed, and its canonical JSON.
    pub(super) fn changed(raw: Raw, canonical: Vec<u8>) -> Message {
        let canonical = Some(canonical.into());
        Message(Arc::new(Kept { raw, value: OnceLock::new(), canonical, about: OnceLock::new() }))
    }

    /// The text.
    pub fn raw(&self) -> &Raw {
        &self.0.raw
    }

    /// What it says.
    pub fn value(&self) -> &Value {
        // What was changed was JSON before and is so after.
        self.0.value.get_or_init(|| parse(self.raw().get()).unwrap_or_default())
    }

    /// `keys` is empty before and after; it spares an allocation for each message.
    pub(super) fn write_canonical<'m>(&'m self, out: &mut Vec<u8>, keys: &mut Vec<(&'m str, &'m Value)>) {
        match &self.0.canonical {
            Some(canonical) => out.extend_from_slice(canonical),
            None => hash::write_with(self.value(), out, keys),
        }
    }

    /// How long its text is.
    pub(super) fn chars(&self) -> usize {
        self.about().chars
    }

    /// Whether it carries reasoning that its provider will check.
    pub(super) fn is_signed(&self) -> bool {
        self.about().is_signed
    }

    fn about(&self) -> About {
        *self.0.about.get_or_init(|| About::of(self.raw(), self.value()))
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
