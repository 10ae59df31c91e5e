//! One JSON object, taken apart without copying.

use everturn_core::json::Raw;
use everturn_core::time::Timestamp;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// The fields of an object in their order.
#[derive(Clone, Debug, Default)]
pub struct Line<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> Line<'a> {
    /// The text must have passed `json::check`. `None` if it is not an object.
    pub fn parse(text: &'a str) -> Option<Line<'a>> {
        serde_json::from_str(text).ok()
    }

    /// A field's JSON.
    pub fn raw(&self, name: &str) -> Option<&'a str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.get())
    }

    /// A field that is a text.
    pub fn text(&self, name: &str) -> Option<Cow<'a, str>> {
        let raw = self.raw(name)?;
        if !raw.starts_with('"') {
            return None;
        }
        match raw.contains('\\') {
            false => Some(Cow::Borrowed(&raw[1..raw.len() - 1])),
            true => serde_json::from_str(raw).ok().map(Cow::Owned),
        }
    }

    /// A field that is an object.
    pub fn object(&self, name: &str) -> Option<Line<'a>> {
        self.raw(name).filter(|raw| raw.starts_with('{')).and_then(Line::parse)
    }

    /// A field that is a number.
    pub fn number(&self, name: &str) -> Option<u64> {
        serde_json::from_str(self.raw(name)?).ok()
    }

    /// Whether a field is true.
    pub fn is(&self, name: &str) -> bool {
        self.raw(name) == Some("true")
    }

    /// A time, in the forms that programs write.
    pub fn time(&self, name: &str) -> Option<Timestamp> {
        time_of(self.raw(name)?)
    }

    /// The elements of a field that is an array.
    pub fn list(&self, name: &str) -> Option<Vec<&'a RawValue>> {
        self.raw(name).filter(|raw| raw.starts_with('[')).and_then(|raw| serde_json::from_str(raw).ok())
    }

    /// The object without one of its fields, each of the others as it was.
    pub fn without(&self, name: &str) -> String {
        self.with(name, None)
    }

    /// The object with one of its fields replaced (in its place) or left out.
    pub fn with(&self, name: &str, value: Option<&str>) -> String {
        let mut out = String::from("{");
        for (key, raw) in &self.0 {
            let value = if key == name { value } else { Some(raw.get()) };
            let Some(value) = value else { continue };
            if out.len() > 1 {
                out.push(',');
            }
            out += &everturn_core::json::quote(key);
            out.push(':');
            out += value;
        }
        out.push('}');
        out
    }

    /// The names of the fields.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_ref())
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Line<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Line<'a>, D::Error> {
        /// A key, borrowed where it has no escapes.
        #[derive(Deserialize)]
        #[serde(transparent)]
        struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

        struct Ordered;

        impl<'de> Visitor<'de> for Ordered {
            type Value = Vec<(Cow<'de, str>, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::with_capacity(16);
                while let Some((Name(name), value)) = map.next_entry()? {
                    fields.push((name, value));
                }
                Ok(fields)
            }
        }
        deserializer.deserialize_map(Ordered).map(Line)
    }
}

/// JSON that was put together from parts that are JSON.
pub fn made(text: String) -> Raw {
    let null = || Raw::of(&()).unwrap_or_else(|_| unreachable!("null can be written"));
    serde_json::from_str(&text).unwrap_or_else(|_| null())
}

/// The words of a message's content: a text, or the text blocks of a list.
pub fn words(content: &str) -> String {
    if content.starts_with('"') {
        return serde_json::from_str(content).unwrap_or_default();
    }
    let blocks: Vec<&RawValue> = serde_json::from_str(content).unwrap_or_default();
    let texts = blocks.iter().filter_map(|block| match block.get().starts_with('"') {
        true => serde_json::from_str::<String>(block.get()).ok(),
        false => Line::parse(block.get())?.text("text").map(Cow::into_owned),
    });
    texts.collect::<Vec<_>>().join("\n")
}

/// A time as JSON: a text with a zone or without one, which then is UTC, or a number of seconds, milliseconds, microseconds or
/// nanoseconds since 1970.
pub fn time_of(raw: &str) -> Option<Timestamp> {
    if raw.starts_with('"') {
        let text: String = serde_json::from_str(raw).ok()?;
        let zoneless = || format!("{}Z", text.trim().replacen(' ', "T", 1)).parse().ok();
        return text.parse().ok().or_else(zoneless);
    }
    // The year 2001 in seconds, and from there on a thousandfold each.
    const SECONDS: std::ops::Range<f64> = 1e9..1e11;
    let number: f64 = raw.parse().ok()?;
    let per_second = [1.0, 1e3, 1e6, 1e9].into_iter().find(|unit| SECONDS.contains(&(number / unit)))?;
    // Seconds have at most eleven digits, so that the product is exact enough.
    let time = Timestamp((number / per_second * 1e6).round() as i64);
    time.check().is_ok().then_some(time)
}
