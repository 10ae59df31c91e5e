//! JSON objects that come in pieces: members that come once keep their bytes, members that grow are joined.

use super::Failure;
use everturn_core::json::Raw;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use std::borrow::Cow;

/// The members of an object, in order, each with its own bytes.
pub struct Members(pub Vec<(String, Raw)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Members, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Members;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

/// An object that is put together.
#[derive(Default)]
pub struct Pieces(Vec<(String, Member)>);

enum Member {
    /// Came once: its bytes are kept.
    Once(Raw),
    /// Came in several pieces.
    Merged(Value),
}

/// Members that identify an object. They do not grow: a server that repeats them sends the same value again.
const FIXED: [&str; 8] = ["id", "type", "role", "name", "index", "format", "call_id", "object"];

impl Pieces {
    /// Adds the next piece of a member: texts are joined, lists extended, objects merged; of anything else the last one
    /// stays. `null` adds nothing.
    pub fn add(&mut self, key: &str, piece: Raw) {
        if piece.get() == "null" {
            return;
        }
        let Some((_, known)) = self.0.iter_mut().find(|(name, _)| name == key) else {
            self.0.push((key.to_string(), Member::Once(piece)));
            return;
        };
        let Some(next) = piece.read::<Value>() else { return };
        let mut before = match known {
            Member::Once(raw) => raw.read().unwrap_or(Value::Null),
            Member::Merged(value) => value.take(),
        };
        // Nothing was there, so the bytes of this piece are all there is.
        if empty(&before) {
            *known = Member::Once(piece);
            return;
        }
        if empty(&next) {
            // The bytes of the present value stay as they are.
            if let Member::Merged(value) = known {
                *value = before;
            }
            return;
        }
        merge(key, &mut before, next);
        *known = Member::Merged(before);
    }

    /// Replaces a member, or adds it.
    pub fn set(&mut self, key: &str, value: Raw) {
        match self.0.iter_mut().find(|(name, _)| name == key) {
            Some((_, known)) => *known = Member::Once(value),
            None => self.0.push((key.to_string(), Member::Once(value))),
        }
    }

    /// A member that is a string.
    pub fn text(&self, key: &str) -> Option<Cow<'_, str>> {
        match self.0.iter().find(|(name, _)| name == key).map(|(_, piece)| piece)? {
            Member::Once(raw) => raw.read::<String>().map(Cow::Owned),
            Member::Merged(value) => value.as_str().map(Cow::Borrowed),
        }
    }

    /// A member that came once.
    pub fn raw(&self, key: &str) -> Option<&Raw> {
        self.0.iter().find_map(|(name, piece)| match piece {
            Member::Once(raw) if name == key => Some(raw),
            _ => None,
        })
    }

    /// Whether there is such a member.
    pub fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(name, _)| name == key)
    }

    /// The members as they are now.
    pub fn members(&self) -> Result<Vec<(&str, Raw)>, Failure> {
        let written = self.0.iter().map(|(key, piece)| match piece {
            Member::Once(raw) => Ok((key.as_str(), raw.clone())),
            Member::Merged(value) => Ok((key.as_str(), Raw::of(value)?)),
        });
        written.collect()
    }

    /// The object as it is now.
    pub fn write(&self) -> Result<Raw, Failure> {
        write(&self.members()?)
    }
}

/// An object of these members, in this order, each with its own bytes.
pub fn write(members: &[(&str, Raw)]) -> Result<Raw, Failure> {
    Ok(Raw::new(super::object(members.iter().map(|(key, raw)| (*key, raw))))?)
}

fn empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        _ => false,
    }
}

fn merge(key: &str, known: &mut Value, next: Value) {
    if empty(&next) {
        return;
    }
    match (known, next) {
        (Value::String(known), Value::String(next)) if !known.is_empty() && FIXED.contains(&key) => {
            drop(next)
        }
        (Value::String(known), Value::String(next)) => known.push_str(&next),
        (Value::Array(known), Value::Array(next)) => {
            for item in next {
                match known.iter_mut().find(|other| goes_on(other, &item)) {
                    Some(other) => merge("", other, item),
                    None => known.push(item),
                }
            }
        }
        (Value::Object(known), Value::Object(next)) => {
            for (key, value) in next {
                match known.get_mut(&key) {
                    Some(other) => merge(&key, other, value),
                    None => drop(known.insert(key, value)),
                }
            }
        }
        (known, next) => *known = next,
    }
}

/// Items of a list that carry an index are pieces of one if index and type agree.
fn goes_on(known: &Value, next: &Value) -> bool {
    known.get("index").is_some_and(|index| Some(index) == next.get("index"))
        && known.get("type") == next.get("type")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Raw {
        Raw::new(text.to_string()).unwrap()
    }

    fn built(pieces: &[(&str, &str)]) -> String {
        let mut all = Pieces::default();
        for (key, piece) in pieces {
            all.add(key, raw(piece));
        }
        all.write().unwrap().get().to_string()
    }

    #[test]
    fn what_came_once_keeps_its_bytes() {
        let odd = r#"{"seal" : "\u0041\/==", "n":1.00, "big":123456789012345678901234567890}"#;
        assert_eq!(built(&[("x", odd)]), format!(r#"{{"x":{odd}}}"#));
        // Empty beginnings and ends do not count as pieces.
        assert_eq!(
            built(&[("x", "\"\""), ("x", r#""\u0041""#), ("x", "\"\""), ("x", "null")]),
            r#"{"x":"\u0041"}"#
        );
    }

    #[test]
    fn pieces_are_put_together_by_what_they_are() {
        for (pieces, expected) in [
            (vec![("t", r#""a""#), ("t", r#""b""#), ("t", r#""""#), ("t", r#""c""#)], r#"{"t":"abc"}"#),
            (vec![("id", r#""x""#), ("id", r#""x""#)], r#"{"id":"x"}"#),
            (vec![("n", "1"), ("n", "2")], r#"{"n":2}"#),
            (vec![("l", "[1]"), ("l", "[2]")], r#"{"l":[1,2]}"#),
            (vec![("o", r#"{"a":"x"}"#), ("o", r#"{"a":"y","b":true}"#)], r#"{"o":{"a":"xy","b":true}}"#),
            (
                vec![
                    ("d", r#"[{"type":"r","index":0,"text":"a"}]"#),
                    ("d", r#"[{"type":"r","index":0,"text":"b","signature":null}]"#),
                    ("d", r#"[{"type":"r","index":0,"signature":"s"},{"type":"e","index":0,"data":"z"}]"#),
                ],
                r#"{"d":[{"type":"r","index":0,"text":"ab","signature":"s"},{"type":"e","index":0,"data":"z"}]}"#,
            ),
        ] {
            assert_eq!(built(&pieces), expected, "{pieces:?}");
        }
    }
}
