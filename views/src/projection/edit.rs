//! Removing or replacing parts of a message, without touching a byte of the rest.
//!
//! The text and the canonical JSON of the result are written side by side, so that nothing is parsed again only
//! to be hashed.

use super::hash;
use super::pointer::Pointer;
use everturn_core::Error;
use everturn_core::json::unescape;
use everturn_core::message::field;
use everturn_core::pairing::BlockPath;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

/// Changes to a message of the transcript; places are those of the original message.
#[derive(Clone, Debug, Default)]
pub(super) struct Edit {
    /// Removed calls and results.
    pub(super) removed: Vec<BlockPath>,
    /// Replaced bodies and arguments.
    pub(super) pointers: Vec<Pointer>,
    /// Length of the removed parts, in characters.
    pub(super) removed_chars: usize,
}

/// An object whose keys and values stay text.
pub(super) struct Fields<'a>(Vec<(&'a RawValue, &'a RawValue)>);

impl<'a> Fields<'a> {
    /// Each key as written and as decoded, with its value.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&'a str, Cow<'a, str>, &'a RawValue)> {
        self.0.iter().map(|(key, value)| {
            let key = key.get();
            (key, unescape(&key[1..key.len() - 1]), *value)
        })
    }
}

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Fields<'de>, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
                let mut fields = Vec::with_capacity(8);
                while let Some(entry) = map.next_entry()? {
                    fields.push(entry);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// Key that records the changes to a message or block.
pub(super) const MARKER: &str = "_harn_projection";

/// JSON as shown, and as hashed.
#[derive(Default)]
pub(super) struct Written {
    pub(super) text: String,
    pub(super) canonical: Vec<u8>,
}

impl Written {
    fn of(text: &str, value: &Value) -> Written {
        Written { text: text.into(), canonical: hash::canonical(value) }
    }
}

/// Applies the edit to the message. Counts the removed characters.
pub(super) fn apply(text: &str, value: &Value, edit: &mut Edit) -> Result<Written, Error> {
    rewrite(text, value, edit)
        .map_err(|e| Error::invalid("projection.message", format!("the message cannot be changed: {e}")))
}

fn rewrite(text: &str, value: &Value, edit: &mut Edit) -> Result<Written, serde_json::Error> {
    let fields: Fields<'_> = serde_json::from_str(text)?;
    let whole = edit.pointers.iter().find(|pointer| pointer.place == BlockPath::Message);
    let inside = edit.pointers.iter().any(|pointer| pointer.place != BlockPath::Message);
    let mut out = Object::new(text.len());
    let mut removed_chars = 0;
    for (written, key, text) in fields.iter() {
        if key == MARKER && !edit.pointers.is_empty() {
            continue;
        }
        let value = field(value, &key).unwrap_or(&Value::Null);
        let is_touched = |place: &BlockPath| match place {
            BlockPath::Block(_) => key == "content",
            BlockPath::Part(_) => key == "parts",
            BlockPath::ToolCall(_) => key == "tool_calls",
            BlockPath::ToolResult(_) => key == "tool_results",
            BlockPath::Message => false,
            BlockPath::FunctionCall => key == "function_call",
        };
        let mut removed = edit.removed.iter().filter(|place| is_touched(place)).peekable();
        let mut pointers = edit.pointers.iter().filter(|pointer| is_touched(&pointer.place)).peekable();
        if let Some(pointer) = whole.filter(|pointer| pointer.field == key) {
            out.set(written, key, &pointer.replacement(value));
        } else if removed.peek().is_none() && pointers.peek().is_none() {
            out.keep(written, key, text, value);
        } else if key == "function_call" {
            match pointers.next() {
                _ if removed.next().is_some() => removed_chars += text.get().chars().count(),
                Some(pointer) => out.put(written, key, element(text.get(), value, pointer)?),
                None => {}
            }
        } else {
            let (left, gone_chars) = items(text.get(), value, removed, pointers)?;
            removed_chars += gone_chars;
            match left {
                Some(left) => out.put(written, key, left),
                // `content` must be present; a list of calls must not be empty.
                None if key == "content" => out.set(written, key, "null"),
                None => {}
            }
        }
    }
    if let Some(pointer) = whole {
        out.mark(pointer.marker());
    } else if inside {
        out.mark(Pointer::markers(&edit.pointers));
    }
    edit.removed_chars = removed_chars;
    Ok(out.end())
}

/// A list without the removed items and with pointers in place of the reclaimed ones; none if nothing is left.
/// Also returns the number of removed characters.
fn items<'e>(
    text: &str,
    value: &Value,
    removed: impl Iterator<Item = &'e BlockPath>,
    pointers: impl Iterator<Item = &'e Pointer>,
) -> Result<(Option<Written>, usize), serde_json::Error> {
    let items: Vec<&RawValue> = serde_json::from_str(text)?;
    let mut is_removed = vec![false; items.len()];
    for n in removed.filter_map(|place| place.index()) {
        if let Some(slot) = is_removed.get_mut(n) {
            *slot = true;
        }
    }
    let mut pointed: Vec<Option<&Pointer>> = vec![None; items.len()];
    for pointer in pointers {
        if let Some(slot) = pointer.place.index().and_then(|n| pointed.get_mut(n)) {
            *slot = Some(pointer);
        }
    }
    let mut out = Written::default();
    let mut removed_chars = 0;
    for (n, item) in items.iter().enumerate() {
        let value = value.get(n).unwrap_or(&Value::Null);
        let left = match pointed[n] {
            _ if is_removed[n] => {
                removed_chars += item.get().chars().count();
                continue;
            }
            Some(pointer) => element(item.get(), value, pointer)?,
            None => Written::of(item.get(), value),
        };
        let before = if out.text.is_empty() { '[' } else { ',' };
        out.text.push(before);
        out.text.push_str(&left.text);
        out.canonical.push(before as u8);
        out.canonical.extend(left.canonical);
    }
    if out.text.is_empty() {
        return Ok((None, removed_chars));
    }
    out.text.push(']');
    out.canonical.push(b']');
    Ok((Some(out), removed_chars))
}

/// A block, call or result with a pointer in place of its reclaimed body.
fn element(text: &str, value: &Value, pointer: &Pointer) -> Result<Written, serde_json::Error> {
    let (outer, inner) =
        pointer.field.split_once('.').map_or((pointer.field.as_str(), None), |(o, i)| (o, Some(i)));
    let fields: Fields<'_> = serde_json::from_str(text)?;
    let mut out = Object::new(text.len());
    for (written, key, text) in fields.iter().filter(|(_, key, _)| key != MARKER) {
        let value = field(value, &key).unwrap_or(&Value::Null);
        match inner {
            _ if key != outer => out.keep(written, key, text, value),
            None => out.set(written, key, &pointer.replacement(value)),
            Some(inner) => out.put(written, key, nested(text.get(), value, inner, pointer)?),
        }
    }
    out.mark(pointer.marker());
    Ok(out.end())
}

/// The object inside a call that holds the pointer's target.
fn nested(text: &str, value: &Value, name: &str, pointer: &Pointer) -> Result<Written, serde_json::Error> {
    let fields: Fields<'_> = serde_json::from_str(text)?;
    let mut out = Object::new(text.len());
    for (written, key, text) in fields.iter() {
        let value = field(value, &key).unwrap_or(&Value::Null);
        if key == name {
            out.set(written, key, &pointer.replacement(value));
        } else {
            out.keep(written, key, text, value);
        }
    }
    Ok(out.end())
}

/// An object being written.
struct Object<'t> {
    text: String,
    /// The canonical fields in the order in which they came, and the position of each.
    canonical: Vec<u8>,
    fields: Vec<(Cow<'t, str>, Range<usize>)>,
}

impl<'t> Object<'t> {
    fn new(bytes: usize) -> Object<'t> {
        // A marker is longer than most of what it replaces.
        let bytes = bytes + 512;
        let text = String::with_capacity(bytes);
        Object { text, canonical: Vec::with_capacity(bytes), fields: Vec::with_capacity(8) }
    }

    /// Writes an unchanged field.
    fn keep(&mut self, written: &str, key: Cow<'t, str>, text: &RawValue, value: &Value) {
        self.field(written, key, text.get(), |out| hash::write(value, out));
    }

    /// Writes a field with another value.
    fn put(&mut self, written: &str, key: Cow<'t, str>, value: Written) {
        self.field(written, key, &value.text, |out| out.extend_from_slice(&value.canonical));
    }

    /// Writes a field with generated text, which is already canonical.
    fn set(&mut self, written: &str, key: Cow<'t, str>, text: &str) {
        self.field(written, key, text, |out| out.extend_from_slice(text.as_bytes()));
    }

    /// Appends the record of the changes.
    fn mark(&mut self, marker: String) {
        self.set("\"_harn_projection\"", MARKER.into(), &marker);
    }

    fn field(&mut self, written: &str, key: Cow<'t, str>, text: &str, canonical: impl FnOnce(&mut Vec<u8>)) {
        self.text.push(if self.text.is_empty() { '{' } else { ',' });
        self.text.push_str(written);
        self.text.push(':');
        self.text.push_str(text);
        let start = self.canonical.len();
        hash::string(&key, &mut self.canonical);
        self.canonical.push(b':');
        canonical(&mut self.canonical);
        self.fields.push((key, start..self.canonical.len()));
    }

    fn end(mut self) -> Written {
        self.text.push_str(if self.text.is_empty() { "{}" } else { "}" });
        self.fields.sort_by(|(one, _), (other, _)| one.cmp(other));
        self.fields.dedup_by(|(one, _), (other, _)| one == other);
        let mut canonical = Vec::with_capacity(self.canonical.len() + self.fields.len().max(1) + 1);
        canonical.push(b'{');
        for (n, (_, range)) in self.fields.into_iter().enumerate() {
            if n > 0 {
                canonical.push(b',');
            }
            canonical.extend_from_slice(&self.canonical[range]);
        }
        canonical.push(b'}');
        Written { text: self.text, canonical }
    }
}
