//! Validation of JSON text that is then stored byte for byte.
//!
//! This is a strict scan instead of a parse and a rewrite, because a rewrite would change number spellings, key
//! order and escapes, and with them signatures. It refuses what parsers disagree about (duplicate keys, lone
//! surrogates, unbounded nesting) and reports the position of each string, so that a secret or a payload can be
//! replaced without touching a byte around it.

use crate::Error;
use crate::limits::JSON_DEPTH_MAX;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

/// A JSON value as text, exactly as written. Equality compares bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Raw(Box<RawValue>);

impl Raw {
    /// Validates the text.
    pub fn new(text: String) -> Result<Raw, Error> {
        check(&text)?;
        RawValue::from_string(text).map(Raw).map_err(|e| Error::invalid("json.malformed", e.to_string()))
    }

    /// Like [`Raw::new`], for text assembled from valid JSON, of which only the grammar needs checking.
    pub fn joined(text: String) -> Result<Raw, Error> {
        RawValue::from_string(text)
            .map(Raw)
            .map_err(|e| Error::internal("json.malformed", format!("the joined text is not valid JSON: {e}")))
    }

    /// Serialises a value.
    pub fn of(value: &impl Serialize) -> Result<Raw, Error> {
        serde_json::value::to_raw_value(value)
            .map(Raw)
            .map_err(|e| Error::invalid("json.malformed", format!("cannot be written as JSON: {e}")))
    }

    /// The JSON text.
    pub fn get(&self) -> &str {
        self.0.get()
    }

    /// Parses it as `T`, if it has that shape.
    pub fn read<'a, T: Deserialize<'a>>(&'a self) -> Option<T> {
        serde_json::from_str(self.get()).ok()
    }
}

impl std::str::FromStr for Raw {
    type Err = Error;

    fn from_str(text: &str) -> Result<Raw, Error> {
        Raw::new(text.to_string())
    }
}

/// For a nullable field: `None` only if it is absent.
pub(crate) fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Raw>, D::Error> {
    Raw::deserialize(deserializer).map(Some)
}

/// Any JSON value.
impl JsonSchema for Raw {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Raw".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        Schema::from(true)
    }
}

/// Reads a cursor that may be written as a string, as the `next` of a page is.
pub fn place<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Cursor {
        Number(u64),
        Text(String),
    }
    let expected = "a number, such as the `next` of a page";
    let wrong = |unexpected| serde::de::Error::invalid_value(unexpected, &expected);
    // Larger ones do not exist: a place is a signed number in a store.
    let exists = |seq: &u64| *seq <= i64::MAX as u64;
    match Option::<Cursor>::deserialize(deserializer)? {
        None => Ok(None),
        Some(Cursor::Number(seq)) => {
            Some(seq).filter(exists).map(Some).ok_or_else(|| wrong(serde::de::Unexpected::Unsigned(seq)))
        }
        Some(Cursor::Text(text)) => {
            let seq = text.parse().ok().filter(exists);
            seq.map(Some).ok_or_else(|| wrong(serde::de::Unexpected::Str(&text)))
        }
    }
}

impl PartialEq for Raw {
    fn eq(&self, other: &Raw) -> bool {
        self.get() == other.get()
    }
}

impl Eq for Raw {}

/// One string in a scanned text.
#[derive(Clone, Copy, Debug)]
pub struct StringValue<'a> {
    /// Byte offset of the opening quote.
    pub start: usize,
    /// Byte offset after the closing quote.
    pub end: usize,
    /// The text between the quotes, with its escapes.
    pub raw: &'a str,
    /// The key of the value if it is directly in an object, as written.
    pub key: Option<&'a str>,
    /// Whether it is itself a key, and not a value.
    pub is_key: bool,
    /// Byte offset after the `{` of the innermost enclosing object that is an element of an array: a content block.
    pub block: Option<usize>,
}

/// Checks that the text is one JSON value that can be stored.
pub fn check(text: &str) -> Result<(), Error> {
    scan(text, |_| {})
}

/// Checks the text and calls back for every string, keys included, in order.
pub fn scan<'a>(text: &'a str, on_string: impl FnMut(StringValue<'a>)) -> Result<(), Error> {
    Scanner { text, bytes: text.as_bytes(), at: 0, frames: Vec::new(), on_string }.run()
}

/// JSON text with `\ufffd` in place of each escape of a lone surrogate. Programs write such escapes when they cut a text
/// inside a character.
pub fn replace_lone_surrogates(text: &str) -> Cow<'_, str> {
    let unit = |at: usize| {
        let digits = text.get(at..)?.strip_prefix("\\u")?.get(..4)?;
        u16::from_str_radix(digits, 16).ok()
    };
    let (mut out, mut copied, mut at) = (String::new(), 0, 0);
    while let Some(next) = text.as_bytes().get(at..).and_then(|rest| memchr::memchr(b'\\', rest)) {
        at += next;
        at += match (unit(at), unit(at + 6)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 12,
            (Some(0xd800..=0xdfff), _) => {
                out += &text[copied..at];
                out += "\\ufffd";
                copied = at + 6;
                6
            }
            (Some(_), _) => 6,
            (None, _) => 2,
        };
    }
    if copied == 0 { Cow::Borrowed(text) } else { Cow::Owned(out + &text[copied..]) }
}

/// Decodes the escapes of a string. The text must have passed [`check`].
pub fn unescape(raw: &str) -> Cow<'_, str> {
    if !raw.contains('\\') {
        return Cow::Borrowed(raw);
    }
    serde_json::from_str(&format!("\"{raw}\"")).map_or(Cow::Borrowed(raw), Cow::Owned)
}

/// A JSON string literal, quotes included.
pub fn quote(text: &str) -> String {
    // Serialising text into memory does not fail.
    serde_json::to_string(text).unwrap_or_default()
}

/// The fields of an object in order; empty if the text is no object.
pub fn fields(text: &str) -> Vec<(Cow<'_, str>, &str)> {
    serde_json::from_str::<Fields<'_>>(text).map(|fields| fields.0).unwrap_or_default()
}

/// The elements of an array; empty if the text is no array.
pub fn elements(text: &str) -> Vec<&str> {
    let raw: Vec<&RawValue> = serde_json::from_str(text).unwrap_or_default();
    raw.into_iter().map(RawValue::get).collect()
}

/// One field of an object.
pub fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    fields(text).into_iter().find_map(|(key, value)| (key == name).then_some(value))
}

/// An object of values that are JSON already.
pub fn object<'a>(fields: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let fields: Vec<_> = fields.into_iter().map(|(key, value)| format!("{}:{value}", quote(key))).collect();
    format!("{{{}}}", fields.join(","))
}

/// An array of values that are JSON already.
pub fn array(elements: &[String]) -> String {
    format!("[{}]", elements.join(","))
}

/// Whether a character may be written as `\uXXXX`, which would hide a word. Most texts have no escape at all, and a single
/// byte is found faster than two.
pub fn has_unicode_escape(text: &str) -> bool {
    memchr::memchr(b'\\', text.as_bytes()).is_some_and(|at| text[at..].contains("\\u"))
}

struct Fields<'a>(Vec<(Cow<'a, str>, &'a str)>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
                let mut fields = Vec::new();
                while let Some(FieldName(key)) = map.next_key()? {
                    fields.push((key, map.next_value::<&RawValue>()?.get()));
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

/// Name of a field, borrowed where it has no escapes.
struct FieldName<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for FieldName<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = FieldName<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }

            fn visit_borrowed_str<E: de::Error>(self, key: &'de str) -> Result<FieldName<'de>, E> {
                Ok(FieldName(Cow::Borrowed(key)))
            }

            fn visit_str<E: de::Error>(self, key: &str) -> Result<FieldName<'de>, E> {
                Ok(FieldName(Cow::Owned(key.to_string())))
            }
        }
        deserializer.deserialize_str(Reader)
    }
}

struct Scanner<'a, F> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    frames: Vec<Frame<'a>>,
    on_string: F,
}

struct Frame<'a> {
    /// `None` for an array.
    keys: Option<Keys<'a>>,
    key: Option<&'a str>,
    block: Option<usize>,
}

/// Keys of one object so far. Most objects are small, where a list beats a set.
enum Keys<'a> {
    Few(Vec<Cow<'a, str>>),
    Many(HashSet<Cow<'a, str>>),
}

impl<'a> Keys<'a> {
    const FEW: usize = 16;

    /// Returns false if the key is already present.
    fn insert(&mut self, key: Cow<'a, str>) -> bool {
        match self {
            Keys::Few(list) if list.contains(&key) => false,
            Keys::Few(list) if list.len() < Self::FEW => {
                list.push(key);
                true
            }
            Keys::Few(list) => {
                let mut set: HashSet<_> = list.drain(..).collect();
                set.insert(key);
                *self = Keys::Many(set);
                true
            }
            Keys::Many(set) => set.insert(key),
        }
    }
}

impl<'a, F: FnMut(StringValue<'a>)> Scanner<'a, F> {
    fn run(&mut self) -> Result<(), Error> {
        self.space();
        self.value()?;
        // Each iteration starts after a value: it closes what is complete and moves on to the next value.
        while let Some(frame) = self.frames.last() {
            let in_object = frame.keys.is_some();
            self.space();
            match (self.peek(), in_object) {
                (Some(b','), true) => {
                    self.at += 1;
                    self.space();
                    self.key()?;
                    self.value()?;
                }
                (Some(b','), false) => {
                    self.at += 1;
                    self.space();
                    self.value()?;
                }
                (Some(b'}'), true) | (Some(b']'), false) => {
                    self.at += 1;
                    self.frames.pop();
                }
                (_, true) => return Err(self.wrong("expected ',' or '}'")),
                (_, false) => return Err(self.wrong("expected ',' or ']'")),
            }
        }
        self.space();
        if self.at < self.bytes.len() {
            return Err(self.wrong("text after the end of the JSON value"));
        }
        Ok(())
    }

    /// Consumes one scalar, or the opening of a container up to the end of its first value.
    fn value(&mut self) -> Result<(), Error> {
        loop {
            match self.peek() {
                Some(b'{') => {
                    self.at += 1;
                    let parent = self.frames.last();
                    let block = match parent {
                        Some(f) if f.keys.is_none() => Some(self.at),
                        other => other.and_then(|f| f.block),
                    };
                    self.push(Frame { keys: Some(Keys::Few(Vec::new())), key: None, block })?;
                    self.space();
                    if self.peek() == Some(b'}') {
                        self.at += 1;
                        self.frames.pop();
                        return Ok(());
                    }
                    self.key()?;
                }
                Some(b'[') => {
                    self.at += 1;
                    let block = self.frames.last().and_then(|f| f.block);
                    self.push(Frame { keys: None, key: None, block })?;
                    self.space();
                    if self.peek() == Some(b']') {
                        self.at += 1;
                        self.frames.pop();
                        return Ok(());
                    }
                }
                Some(b'"') => {
                    let start = self.at;
                    let raw = self.string()?;
                    let (key, block) = self.frames.last().map_or((None, None), |f| (f.key, f.block));
                    (self.on_string)(StringValue { start, end: self.at, raw, key, is_key: false, block });
                    return Ok(());
                }
                Some(b't') => return self.literal("true"),
                Some(b'f') => return self.literal("false"),
                Some(b'n') => return self.literal("null"),
                Some(b'-' | b'0'..=b'9') => return self.number(),
                Some(_) => return Err(self.wrong("expected a JSON value")),
                None => return Err(self.wrong("the JSON ends too early")),
            }
        }
    }

    fn push(&mut self, frame: Frame<'a>) -> Result<(), Error> {
        if self.frames.len() == JSON_DEPTH_MAX {
            let got = JSON_DEPTH_MAX as u64 + 1;
            return Err(Error::limit("JSON_DEPTH_MAX", JSON_DEPTH_MAX as u64, got, "flatten the JSON"));
        }
        self.frames.push(frame);
        Ok(())
    }

    fn key(&mut self) -> Result<(), Error> {
        if self.peek() != Some(b'"') {
            return Err(self.wrong("expected a key in double quotes"));
        }
        let start = self.at;
        let raw = self.string()?;
        let block = self.frames.last().and_then(|frame| frame.block);
        (self.on_string)(StringValue { start, end: self.at, raw, key: None, is_key: true, block });
        self.space();
        if self.peek() != Some(b':') {
            return Err(self.wrong("expected ':' after the key"));
        }
        self.at += 1;
        self.space();
        let frame = self.frames.last_mut().expect("a key is only read inside an object");
        frame.key = Some(raw);
        if !frame.keys.as_mut().expect("a key is only read inside an object").insert(unescape(raw)) {
            return Err(Error::invalid(
                "json.duplicate_key",
                format!("duplicate key \"{}\" at byte {start}; keep one of them", crate::id::clip(raw)),
            ));
        }
        Ok(())
    }

    /// Consumes a string and returns the text between its quotes.
    fn string(&mut self) -> Result<&'a str, Error> {
        self.at += 1;
        let start = self.at;
        loop {
            let rest = &self.bytes[self.at..];
            let plain = memchr::memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
            // Checking the run as a whole is many times faster than byte by byte; the exact position is only
            // computed for the error.
            if rest[..plain].iter().fold(u8::MAX, |least, byte| least.min(*byte)) < 0x20 {
                self.at += rest.iter().position(|byte| *byte < 0x20).unwrap_or_default();
                return Err(self.wrong("a control character in a string must be escaped"));
            }
            self.at += plain;
            match self.peek() {
                Some(b'"') => {
                    let raw = &self.text[start..self.at];
                    self.at += 1;
                    return Ok(raw);
                }
                Some(_) => self.escape()?,
                None => return Err(self.wrong("the JSON ends inside a string")),
            }
        }
    }

    fn escape(&mut self) -> Result<(), Error> {
        match self.bytes.get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 2,
            Some(b'u') => {
                let unit = self.hex4(self.at + 2)?;
                let low = match unit {
                    0xd800..=0xdbff if self.bytes[self.at + 6..].starts_with(b"\\u") => {
                        Some(self.hex4(self.at + 8)?)
                    }
                    _ => None,
                };
                match (unit, low) {
                    (0xd800..=0xdbff, Some(0xdc00..=0xdfff)) => self.at += 12,
                    (0xd800..=0xdfff, _) => {
                        return Err(self.wrong("a lone surrogate is not a character; remove it"));
                    }
                    _ => self.at += 6,
                }
            }
            _ => return Err(self.wrong("an unknown escape")),
        }
        Ok(())
    }

    fn hex4(&self, at: usize) -> Result<u16, Error> {
        self.bytes
            .get(at..at + 4)
            .filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))
            .and_then(|digits| u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok())
            .ok_or_else(|| self.wrong("\\u needs four hexadecimal digits"))
    }

    fn number(&mut self) -> Result<(), Error> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.digits()?,
            _ => return Err(self.wrong("a number needs a digit")),
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), Error> {
        let start = self.at;
        while self.peek().is_some_and(|b| b.is_ascii_digit()) {
            self.at += 1;
        }
        if self.at == start { Err(self.wrong("a number needs a digit")) } else { Ok(()) }
    }

    fn literal(&mut self, word: &str) -> Result<(), Error> {
        if self.bytes[self.at..].starts_with(word.as_bytes()) {
            self.at += word.len();
            return Ok(());
        }
        Err(self.wrong("expected a JSON value"))
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn wrong(&self, what: &str) -> Error {
        Error::invalid("json.malformed", format!("not JSON at byte {}: {what}", self.at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lone_surrogates_are_replaced_and_every_other_byte_stays() {
        for (text, replaced) in [
            (r#""a\ud83d""#, r#""a\ufffd""#),
            (r#""\uDE00x\ud83d\u0041""#, r#""\ufffdx\ufffd\u0041""#),
            (r#""\ud83d\ud83d\ude00\ude00""#, r#""\ufffd\ud83d\ude00\ufffd""#),
            (r#"{"\ud800":"\\\ud800"}"#, r#"{"\ufffd":"\\\ufffd"}"#),
            (r#""\\ud83d \n\"é\u00e9""#, r#""\\ud83d \n\"é\u00e9""#),
            // No JSON, but no reason to fail.
            (r"\ud83d\", r"\ufffd\"),
            (r"\é\u\ud8", r"\é\u\ud8"),
        ] {
            assert_eq!(replace_lone_surrogates(text), replaced, "{text}");
        }
    }

    #[test]
    fn refuses_what_readers_disagree_about() {
        for (text, says) in [
            (r#"{"a":1,"a":2}"#, "duplicate key \"a\" at byte 7"),
            (r#"{"a":1,"\u0061":2}"#, "duplicate key"),
            (r#"{"a":{"b":1,"c":[{"b":1,"b":1}]}}"#, "duplicate key \"b\""),
            (r#""\ud800""#, "surrogate"),
            (r#""\udc00x""#, "surrogate"),
            (r#""\ud800\u0041""#, "surrogate"),
            ("[1,]", "expected a JSON value"),
            ("{\"a\":1,}", "expected a key"),
            ("01", "text after the end"),
            ("1.", "digit"),
            ("nul", "expected a JSON value"),
            ("\"a\nb\"", "control character"),
            ("", "ends too early"),
            ("[1", "expected ',' or ']'"),
            ("{} {}", "text after the end"),
        ] {
            let error = check(text).unwrap_err();
            assert!(error.text().contains(says), "{text}: {error}");
        }
        let deep = format!("{}{}", "[".repeat(JSON_DEPTH_MAX + 1), "]".repeat(JSON_DEPTH_MAX + 1));
        assert!(check(&deep).unwrap_err().text().contains("JSON_DEPTH_MAX is 100, this is 101"));
    }

    #[test]
    fn tells_where_strings_lie_and_which_block_holds_them() {
        let text = r#"{"role":"user","content":[{"type":"image","source":{"data":"QUJD"}},"x"]}"#;
        let mut seen = Vec::new();
        let mut keys = Vec::new();
        scan(text, |s| match s.is_key {
            true => keys.push(s.raw),
            false => seen.push((s.key, &text[s.start..s.end], s.block.map(|b| &text[b - 1..b + 6]))),
        })
        .unwrap();
        assert_eq!(keys, ["role", "content", "type", "source", "data"]);
        assert_eq!(
            seen,
            [
                (Some("role"), "\"user\"", None),
                (Some("type"), "\"image\"", Some("{\"type\"")),
                (Some("data"), "\"QUJD\"", Some("{\"type\"")),
                (None, "\"x\"", None),
            ]
        );
    }

    proptest! {
        /// Accepts whatever serde_json reads as a value with plain strings and no repeated keys, and never
        /// panics.
        #[test]
        fn agrees_with_serde_json(text in ".{0,60}|[\\[\\]{}\",:0-9eE.+-tfn\\\\u ]{0,60}") {
            let ours = check(&text).is_ok();
            if ours {
                // IgnoredAny accepts numbers of any size, as we do.
                prop_assert!(serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok());
            } else if serde_json::from_str::<serde_json::Value>(&text).is_ok() {
                prop_assert!(check(&text).unwrap_err().code() != "json.malformed", "{}", text);
            }
        }
    }
}
