//! JSON as text: taken apart and put together without rewriting what is inside.
//!
//! A value that is only passed on keeps its bytes, so that numbers keep their spelling and signed parts stay signed.

use everturn_core::json;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, de};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

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
    let fields: Vec<_> =
        fields.into_iter().map(|(key, value)| format!("{}:{value}", json::quote(key))).collect();
    format!("{{{}}}", fields.join(","))
}

/// An array of values that are JSON already.
pub fn array(elements: &[String]) -> String {
    format!("[{}]", elements.join(","))
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
                while let Some(Key(key)) = map.next_key()? {
                    fields.push((key, map.next_value::<&RawValue>()?.get()));
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

/// A key, borrowed where it has no escapes.
struct Key<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Key<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }

            fn visit_borrowed_str<E: de::Error>(self, key: &'de str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Borrowed(key)))
            }

            fn visit_str<E: de::Error>(self, key: &str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Owned(key.to_string())))
            }
        }
        deserializer.deserialize_str(Reader)
    }
}
