//! Canonical JSON, streamed into SHA-256.
//!
//! Frozen: events carry these hashes. Keys sorted by their UTF-8 bytes at every depth, no white space, non-ASCII
//! unescaped, strings and numbers as `serde_json` writes them.

use serde_json::Value;
use sha2::{Digest, Sha256};
use std::io::Write;

const BUFFER_BYTES: usize = 16 * 1024;

/// A hash that is fed with JSON.
#[derive(Clone)]
pub(super) struct Canonical<'a> {
    hasher: Sha256,
    buffer: Vec<u8>,
    chars: usize,
    /// The keys of the objects that are being written, the innermost last: one list instead of one per object.
    keys: Vec<(&'a str, &'a Value)>,
}

/// `sha256:` and the hash of a value's canonical JSON.
pub(super) fn of_value(value: &Value) -> String {
    let mut canonical = Canonical::new();
    canonical.value(value);
    canonical.finish().0
}

/// The hash of a tool result's body and its length: a string's own characters, of anything else the canonical JSON.
pub(super) fn of_body(body: &Value) -> (String, usize) {
    match body {
        Value::String(text) => (spell(Sha256::digest(text).as_slice()), text.chars().count()),
        other => {
            let mut canonical = Canonical::new();
            canonical.value(other);
            canonical.finish()
        }
    }
}

fn spell(digest: &[u8]) -> String {
    format!("sha256:{}", hex::encode(digest))
}

impl<'a> Canonical<'a> {
    pub(super) fn new() -> Canonical<'a> {
        Canonical {
            hasher: Sha256::new(),
            buffer: Vec::with_capacity(BUFFER_BYTES),
            chars: 0,
            keys: Vec::new(),
        }
    }

    /// The hash, and how many characters went into it.
    pub(super) fn finish(mut self) -> (String, usize) {
        self.flush();
        (spell(self.hasher.finalize().as_slice()), self.chars)
    }

    /// Text that is JSON already.
    pub(super) fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        if self.buffer.len() + bytes.len() > BUFFER_BYTES {
            self.flush();
        }
        if bytes.len() > BUFFER_BYTES {
            self.count(bytes.len(), bytes);
            self.hasher.update(bytes);
        } else {
            self.buffer.extend_from_slice(bytes);
        }
    }

    fn flush(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        self.count(buffer.len(), &buffer);
        self.hasher.update(&buffer);
        self.buffer = buffer;
        self.buffer.clear();
    }

    fn count(&mut self, len: usize, bytes: &[u8]) {
        self.chars += len - bytes.iter().filter(|byte| **byte & 0xc0 == 0x80).count();
    }

    /// Recursion is bounded: what was parsed is not nested deeper than its parser allows.
    pub(super) fn value(&mut self, value: &'a Value) {
        match value {
            Value::Null => self.text("null"),
            Value::Bool(true) => self.text("true"),
            Value::Bool(false) => self.text("false"),
            Value::Number(number) => {
                // Writing into memory does not fail.
                let _ = write!(self.buffer, "{number}");
            }
            Value::String(text) => self.string(text),
            Value::Array(items) => {
                for (n, item) in items.iter().enumerate() {
                    self.text(if n == 0 { "[" } else { "," });
                    self.value(item);
                }
                self.text(if items.is_empty() { "[]" } else { "]" });
            }
            Value::Object(fields) => {
                let start = self.keys.len();
                self.keys.extend(fields.iter().map(|(key, value)| (key.as_str(), value)));
                self.keys[start..].sort_unstable_by_key(|(key, _)| *key);
                for n in start..start + fields.len() {
                    let (key, value) = self.keys[n];
                    self.text(if n == start { "{" } else { "," });
                    self.string(key);
                    self.text(":");
                    self.value(value);
                }
                self.text(if fields.is_empty() { "{}" } else { "}" });
                self.keys.truncate(start);
            }
        }
    }

    fn string(&mut self, text: &str) {
        self.text("\"");
        let bytes = text.as_bytes();
        let mut done = 0;
        for (at, byte) in bytes.iter().enumerate() {
            if *byte >= 0x20 && *byte != b'"' && *byte != b'\\' {
                continue;
            }
            self.bytes(&bytes[done..at]);
            done = at + 1;
            match byte {
                b'"' => self.text("\\\""),
                b'\\' => self.text("\\\\"),
                b'\n' => self.text("\\n"),
                b'\t' => self.text("\\t"),
                b'\r' => self.text("\\r"),
                0x08 => self.text("\\b"),
                0x0c => self.text("\\f"),
                other => self.text(&format!("\\u{other:04x}")),
            }
        }
        self.bytes(&bytes[done..]);
        self.text("\"");
    }
}
