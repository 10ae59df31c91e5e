//! Canonical JSON and its hash.
//!
//! Frozen: events carry these hashes. Keys sorted by their UTF-8 bytes at every depth, no white space, non-ASCII
//! unescaped, strings and numbers as `serde_json` writes them.

use super::Message;
use everturn_core::chain::{Hash, Hasher};
use serde_json::Value;
use std::io::Write;

pub(super) fn canonical(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    write(value, &mut out);
    out
}

/// Appends a value's canonical JSON.
pub(super) fn write(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::String(text) => string(text, out),
        other => write_with(other, out, &mut Vec::new()),
    }
}

/// `sha256:` and the hash of a value's canonical JSON.
pub(super) fn of_value(value: &Value) -> String {
    spell(Hash::of(&canonical(value)))
}

/// The hash of the canonical JSON of a list of messages.
pub(super) fn of_messages<'m>(messages: impl Iterator<Item = &'m Message>) -> String {
    Growing::default().of_messages(0, messages)
}

/// The hash of a growing list, which hashes each message once.
#[derive(Clone, Default)]
pub(super) struct Growing {
    /// States of the hasher, each with the number of messages hashed so far, ascending.
    states: Vec<(usize, Hasher)>,
}

impl Growing {
    /// The hash of the canonical JSON of a list of messages. The first `same` are equal to those of the previous list.
    pub(super) fn of_messages<'m>(
        &mut self,
        same: usize,
        messages: impl Iterator<Item = &'m Message>,
    ) -> String {
        /// Each piece is hashed while it is still in the processor's nearest cache.
        const PIECE: usize = 16 << 10;
        /// Number of messages between two kept states. The state at the end is kept too.
        const EVERY: usize = 128;
        while self.states.pop_if(|(count, _)| *count > same).is_some() {}
        let (mut count, mut hasher) = self.states.last().cloned().unwrap_or_default();
        let mut text = Vec::with_capacity(2 * PIECE);
        let mut keys = Vec::new();
        if count == 0 {
            text.push(b'[');
        }
        for message in messages.skip(count) {
            if count > 0 {
                text.push(b',');
            }
            message.write_canonical(&mut text, &mut keys);
            count += 1;
            if text.len() >= PIECE || count % EVERY == 0 {
                hasher.update(&text);
                text.clear();
            }
            if count % EVERY == 0 {
                self.states.push((count, hasher.clone()));
            }
        }
        hasher.update(&text);
        // The state at the end of the previous list is no longer useful, unless it is a regular one.
        self.states.pop_if(|(before, _)| *before % EVERY != 0);
        if count > self.states.last().map_or(0, |(before, _)| *before) {
            self.states.push((count, hasher.clone()));
        }
        hasher.update(b"]");
        spell(hasher.finish())
    }
}

/// The hash of a tool result's body and its length: of a string its own characters, of anything else the
/// canonical JSON.
pub(super) fn of_body(body: &Value) -> (String, usize) {
    let written;
    let text = match body {
        Value::String(text) => text.as_bytes(),
        other => {
            written = canonical(other);
            &written
        }
    };
    (spell(Hash::of(text)), chars(text))
}

/// Number of characters in these bytes of UTF-8.
pub(super) fn chars(text: &[u8]) -> usize {
    // All but the first byte of a character are 10xxxxxx. Sums that fit a byte let the processor count many at once.
    let starts = |bytes: &[u8]| bytes.iter().map(|byte| u8::from((*byte as i8) >= -0x40)).sum::<u8>();
    let (chunks, rest) = text.as_chunks::<192>();
    chunks.iter().map(|chunk| usize::from(starts(chunk))).sum::<usize>() + usize::from(starts(rest))
}

fn spell(hash: Hash) -> String {
    format!("sha256:{hash}")
}

/// Like [`write`], with a reused buffer. Recursion is bounded by the nesting that the parser allows. `keys` are
/// those of the objects being written, the innermost last: one list instead of one per object.
pub(super) fn write_with<'a>(value: &'a Value, out: &mut Vec<u8>, keys: &mut Vec<(&'a str, &'a Value)>) {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Number(number) => {
            // Writing into memory does not fail.
            let _ = write!(out, "{number}");
        }
        Value::String(text) => string(text, out),
        Value::Array(items) => {
            out.push(b'[');
            for (n, item) in items.iter().enumerate() {
                if n > 0 {
                    out.push(b',');
                }
                write_with(item, out, keys);
            }
            out.push(b']');
        }
        Value::Object(fields) => {
            let start = keys.len();
            keys.extend(fields.iter().map(|(key, value)| (key.as_str(), value)));
            keys[start..].sort_unstable_by_key(|(key, _)| *key);
            out.push(b'{');
            for n in start..start + fields.len() {
                let (key, value) = keys[n];
                if n > start {
                    out.push(b',');
                }
                string(key, out);
                out.push(b':');
                write_with(value, out, keys);
            }
            out.push(b'}');
            keys.truncate(start);
        }
    }
}

/// Appends a JSON string.
pub(super) fn string(text: &str, out: &mut Vec<u8>) {
    let mut rest = text.as_bytes();
    out.reserve(rest.len() + 2);
    out.push(b'"');
    // A block is copied whole; if it has a byte that must be escaped, what follows that byte is removed again.
    while let Some(block) = rest.first_chunk::<BLOCK>() {
        out.extend_from_slice(block);
        let plain = first_escaped(block);
        if plain < BLOCK {
            out.truncate(out.len() - (BLOCK - plain));
            escape(block[plain], out);
            rest = &rest[plain + 1..];
        } else {
            rest = &rest[BLOCK..];
        }
    }
    for byte in rest {
        match byte {
            b'"' | b'\\' | ..0x20 => escape(*byte, out),
            plain => out.push(*plain),
        }
    }
    out.push(b'"');
}

const BLOCK: usize = 16;

/// Number of bytes before the first that must be escaped.
fn first_escaped(block: &[u8; BLOCK]) -> usize {
    let (halves, _) = block.as_chunks::<8>();
    let (low, high) = (escaped(halves[0]), escaped(halves[1]));
    let marked = if low == 0 { 64 + high.trailing_zeros() } else { low.trailing_zeros() };
    marked as usize / 8
}

/// Sets the highest bit of each byte that must be escaped; after the first such byte others may be set too.
/// Compares eight bytes at once.
fn escaped(bytes: [u8; 8]) -> u64 {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    let word = u64::from_le_bytes(bytes);
    let below = |word: u64, bound: u64| word.wrapping_sub(ONES * bound) & !word;
    let is = |byte: u8| below(word ^ (ONES * u64::from(byte)), 1);
    (below(word, 0x20) | is(b'"') | is(b'\\')) & (ONES << 7)
}

fn escape(byte: u8, out: &mut Vec<u8>) {
    let letter = match byte {
        b'\n' => b'n',
        b'\t' => b't',
        b'\r' => b'r',
        0x08 => b'b',
        0x0c => b'f',
        b'"' | b'\\' => byte,
        _ => {
            // Writing into memory does not fail.
            let _ = write!(out, "\\u{byte:04x}");
            return;
        }
    };
    out.extend_from_slice(&[b'\\', letter]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn strings_are_written_as_serde_json_does(text in "(\\PC|[\\x00-\\x7f]|[\"\\\\\n]|é){0,40}") {
            let mut out = Vec::new();
            string(&text, &mut out);
            prop_assert_eq!(String::from_utf8(out).unwrap(), serde_json::to_string(&text).unwrap());
        }

        #[test]
        fn characters_are_counted(text in "\\PC{0,700}") {
            prop_assert_eq!(chars(text.as_bytes()), text.chars().count());
        }
    }
}
