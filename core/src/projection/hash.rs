//! Canonical JSON and its hash.
//!
//! Frozen: events carry these hashes. Keys sorted by their UTF-8 bytes at every depth, no white space, non-ASCII
//! unescaped, strings and numbers as `serde_json` writes them.

use super::Message;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// A value's canonical JSON.
pub(super) fn canonical(value: &Value) -> String {
    canonical_of(value, 0)
}

/// The same, if it is known about how long it is.
pub(super) fn canonical_of(value: &Value, bytes: usize) -> String {
    let mut out = String::with_capacity(bytes);
    write(value, &mut out, &mut Vec::new());
    out
}

/// `sha256:` and the hash of a value's canonical JSON.
pub(super) fn of_value(value: &Value) -> String {
    spell(Sha256::digest(canonical(value)).as_slice())
}

/// How far the hash of a list of messages had come behind each of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Chain(Vec<(Message, Sha256)>);

impl Chain {
    /// The hash of the list's canonical JSON. Only what is behind the beginning that it shares with the last list is hashed.
    pub(super) fn hash<'m>(&mut self, messages: impl Iterator<Item = &'m Message>) -> String {
        let mut messages = messages.peekable();
        let same = self.0.iter().take_while(|(known, _)| messages.next_if(|next| next.is(known)).is_some());
        let same = same.count();
        self.0.truncate(same);
        for message in messages {
            let mut hasher = self.0.last().map_or_else(Sha256::new, |(_, hasher)| hasher.clone());
            hasher.update(if self.0.is_empty() { "[" } else { "," });
            hasher.update(message.canonical());
            self.0.push((message.clone(), hasher));
        }
        let mut hasher = match self.0.last() {
            Some((_, hasher)) => hasher.clone(),
            None => Sha256::new_with_prefix("["),
        };
        hasher.update("]");
        spell(hasher.finalize().as_slice())
    }
}

/// The hash of a tool result's body and its length: a string's own characters, of anything else the canonical JSON.
pub(super) fn of_body(body: &Value) -> (String, usize) {
    let written;
    let text = match body {
        Value::String(text) => text,
        other => {
            written = canonical(other);
            &written
        }
    };
    (spell(Sha256::digest(text).as_slice()), text.chars().count())
}

fn spell(digest: &[u8]) -> String {
    format!("sha256:{}", hex::encode(digest))
}

/// Recursion is bounded: what was parsed is not nested deeper than its parser allows. `keys` are those of the objects that
/// are being written, the innermost last: one list instead of one per object.
fn write<'a>(value: &'a Value, out: &mut String, keys: &mut Vec<(&'a str, &'a Value)>) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => {
            // Writing into memory does not fail.
            let _ = write!(out, "{number}");
        }
        Value::String(text) => string(text, out),
        Value::Array(items) => {
            for (n, item) in items.iter().enumerate() {
                out.push(if n == 0 { '[' } else { ',' });
                write(item, out, keys);
            }
            out.push_str(if items.is_empty() { "[]" } else { "]" });
        }
        Value::Object(fields) => {
            let start = keys.len();
            keys.extend(fields.iter().map(|(key, value)| (key.as_str(), value)));
            keys[start..].sort_unstable_by_key(|(key, _)| *key);
            for n in start..start + fields.len() {
                let (key, value) = keys[n];
                out.push(if n == start { '{' } else { ',' });
                string(key, out);
                out.push(':');
                write(value, out, keys);
            }
            out.push_str(if fields.is_empty() { "{}" } else { "}" });
            keys.truncate(start);
        }
    }
}

/// Where the next byte is that cannot stand in a string as it is. Most text has few of them, so chunks are asked as a
/// whole, which the compiler turns into a few instructions.
fn next_escaped(bytes: &[u8], from: usize) -> Option<usize> {
    let escaped = |byte: &u8| *byte < 0x20 || *byte == b'"' || *byte == b'\\';
    let (chunks, _) = bytes[from..].as_chunks::<16>();
    let plain = chunks.iter().take_while(|chunk| !chunk.iter().fold(false, |any, byte| any | escaped(byte)));
    let from = from + plain.count() * 16;
    bytes[from..].iter().position(escaped).map(|n| from + n)
}

fn string(text: &str, out: &mut String) {
    out.push('"');
    let mut done = 0;
    while let Some(at) = next_escaped(text.as_bytes(), done) {
        // What is escaped is one byte long, so both cuts are between characters.
        out.push_str(&text[done..at]);
        done = at + 1;
        match text.as_bytes()[at] {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\t' => out.push_str("\\t"),
            b'\r' => out.push_str("\\r"),
            0x08 => out.push_str("\\b"),
            0x0c => out.push_str("\\f"),
            other => {
                let _ = write!(out, "\\u{other:04x}");
            }
        }
    }
    out.push_str(&text[done..]);
    out.push('"');
}
