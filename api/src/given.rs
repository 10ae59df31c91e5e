//! Reading a request: fields from the path, the query and headers, then those of a JSON body, into one struct.
//!
//! The body is read straight from its text, so that [`Raw`] fields keep their bytes;
//! nothing is parsed into a generic value first.

use everturn_core::json::Raw;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::StrDeserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error as _, IntoDeserializer, MapAccess, SeqAccess,
    Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::{Map, Value};
use std::cell::Cell;
use std::fmt;

/// A request as it arrived.
#[derive(Default)]
pub struct Given<'a> {
    /// Fields in the path.
    pub path: Vec<(String, String)>,
    /// Fields in the query; a name may occur several times.
    pub query: Vec<(String, String)>,
    /// Fields from headers.
    pub headers: Vec<(String, String)>,
    /// The JSON text of the body; empty for an empty object.
    pub body: &'a str,
}

/// Part of a request that contains an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The path.
    Path,
    /// The query.
    Query,
    /// A header.
    Header,
    /// The body.
    Body,
}

/// Error in a request.
#[derive(Debug)]
pub struct Wrong {
    /// Part that contains it.
    pub part: Part,
    /// Message.
    pub text: String,
}

impl Given<'_> {
    /// Parses it as `T`.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, Wrong> {
        let fields = gather(self);
        let has_query = !self.query.is_empty();
        let part = Cell::new(None);
        let text = if self.body.trim().is_empty() { "{}" } else { self.body };
        let mut body = serde_json::Deserializer::from_str(text);
        let read = T::deserialize(Fields { fields, part: &part, body: &mut body });
        read.and_then(|read| body.end().map(|()| read)).map_err(|e| {
            // A missing or unknown field is in none of them: it is attributed to the part with the other
            // fields.
            let rest = if self.body.is_empty() && has_query { Part::Query } else { Part::Body };
            let (part, text) = (part.get().unwrap_or(rest), e.to_string());
            let is_named =
                |(name, _): &&(String, String)| text.starts_with(&format!("duplicate field `{name}`"));
            let text = match (part, self.path.iter().find(is_named)) {
                (Part::Body, Some((name, _))) => {
                    format!("`{name}` is in the path of the request; leave it out of the body")
                }
                // Lines and columns are those of the body.
                (Part::Body, None) => text,
                _ => without_place(&text).to_string(),
            };
            Wrong { part, text }
        })
    }
}

impl Wrong {
    /// Names all fields of the request where one of them is unknown, except those of the path: serde names only the
    /// fields of one of its parts.
    pub fn naming_fields<T: JsonSchema>(self, given: &Given<'_>) -> Wrong {
        let text = match without_place(&self.text).strip_prefix("unknown field `") {
            Some(rest) => unknown_field::<T>(rest, given).unwrap_or(self.text),
            None => self.text,
        };
        Wrong { text, ..self }
    }
}

/// The message about an unknown field of the request itself; `None` if it is in a part of a field.
fn unknown_field<T: JsonSchema>(text: &str, given: &Given<'_>) -> Option<String> {
    let (unknown, expected) = text.split_once('`')?;
    let schema = schemars::schema_for!(T);
    let fields = schema.get("properties")?.as_object()?;
    // The first name that it could have been tells the struct.
    if expected.split('`').nth(1).is_some_and(|name| !fields.contains_key(name)) {
        return None;
    }
    let in_path = |name: &str| given.path.iter().any(|(known, _)| known == name);
    let known: Vec<&str> = fields.keys().map(String::as_str).filter(|name| !in_path(name)).collect();
    Some(match known[..] {
        [] => format!("unknown field `{unknown}`; there are no fields"),
        _ => format!("unknown field `{unknown}`; known are {}", known.join(", ")),
    })
}

/// The message of an error in JSON without its line and column.
pub fn without_place(text: &str) -> &str {
    text.rsplit_once(" at line ").map_or(text, |(text, _)| text)
}

/// Parses a list of messages. A text stands for one message of the user.
pub fn messages<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let raw = <Raw as serde::Deserialize>::deserialize(deserializer)?;
    let message = raw.get().trim_start().starts_with('"');
    let list = match message {
        true => format!(r#"[{{"role":"user","content":{}}}]"#, raw.get()),
        false => raw.get().to_string(),
    };
    serde_json::from_str(&list).map_err(|e| D::Error::custom(without_place(&e.to_string())))
}

/// Schema of such a list.
pub fn messages_schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    let list = generator.subschema_for::<Vec<T>>();
    json_schema!({"anyOf": [{"type": "string"}, list]})
}

/// The fields before the body, grouped by name.
fn gather<'a>(given: &'a Given<'_>) -> Vec<(Part, &'a str, Vec<&'a str>)> {
    let parts = [(Part::Path, &given.path), (Part::Header, &given.headers), (Part::Query, &given.query)];
    let mut fields: Vec<(Part, &str, Vec<&str>)> = Vec::new();
    for (part, pairs) in parts {
        for (name, value) in pairs {
            match fields.iter_mut().find(|field| field.0 == part && field.1 == name) {
                Some(field) if part == Part::Query => field.2.push(value),
                _ => fields.push((part, name, vec![value])),
            }
        }
    }
    fields
}

struct Fields<'a, D> {
    fields: Vec<(Part, &'a str, Vec<&'a str>)>,
    part: &'a Cell<Option<Part>>,
    body: D,
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Fields<'_, D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let Fields { fields, part, body } = self;
        body.deserialize_map(Chained { fields, part, visitor })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

/// Presents the fields before those of the body to a visitor.
struct Chained<'a, V> {
    fields: Vec<(Part, &'a str, Vec<&'a str>)>,
    part: &'a Cell<Option<Part>>,
    visitor: V,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Chained<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, body: A) -> Result<V::Value, A::Error> {
        let (fields, part) = (self.fields.into_iter(), self.part);
        self.visitor.visit_map(Chain { fields, value: None, part, body })
    }
}

struct Chain<'a, I, A> {
    fields: I,
    value: Option<(Part, Vec<&'a str>)>,
    part: &'a Cell<Option<Part>>,
    body: A,
}

impl<'a, 'de, I, A> MapAccess<'de> for Chain<'a, I, A>
where
    I: Iterator<Item = (Part, &'a str, Vec<&'a str>)>,
    A: MapAccess<'de>,
{
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        let Some((part, name, values)) = self.fields.next() else { return self.body.next_key_seed(seed) };
        self.value = Some((part, values));
        let name: StrDeserializer<'_, A::Error> = name.into_deserializer();
        seed.deserialize(name).map(Some).inspect_err(|_| self.part.set(Some(part)))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        match self.value.take() {
            Some((part, values)) => {
                let text = Text { values, error: std::marker::PhantomData };
                seed.deserialize(text).inspect_err(|_| self.part.set(Some(part)))
            }
            None => self.body.next_value_seed(Limited(seed)),
        }
    }
}

/// Largest number of a field: what a signed number of 64 bits holds, in a store as in clients.
const NUMBER_MAX: u64 = i64::MAX as u64;

fn check_number<E: serde::de::Error>(number: u64) -> Result<u64, E> {
    match number <= NUMBER_MAX {
        true => Ok(number),
        false => Err(E::custom(format!("{number} is too large; the largest number is {NUMBER_MAX}"))),
    }
}

/// A field whose number, if it is one, is at most [`NUMBER_MAX`].
struct Limited<T>(T);

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Limited<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Limited(deserializer))
    }
}

macro_rules! pass_on {
    ($($method:ident($($name:ident: $type:ty),*)),+ $(,)?) => {$(
        fn $method<V: Visitor<'de>>(self, $($name: $type,)* visitor: V) -> Result<V::Value, D::Error> {
            self.0.$method($($name,)* visitor)
        }
    )+};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Limited<D> {
    type Error = D::Error;

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_u64(Limited(visitor))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_option(Limited(visitor))
    }

    pass_on!(
        deserialize_any(), deserialize_bool(), deserialize_i8(), deserialize_i16(), deserialize_i32(), deserialize_i64(),
        deserialize_i128(), deserialize_u8(), deserialize_u16(), deserialize_u32(), deserialize_u128(), deserialize_f32(),
        deserialize_f64(), deserialize_char(), deserialize_str(), deserialize_string(), deserialize_bytes(),
        deserialize_byte_buf(), deserialize_unit(), deserialize_seq(), deserialize_map(), deserialize_identifier(),
        deserialize_ignored_any(), deserialize_unit_struct(name: &'static str), deserialize_newtype_struct(name: &'static str),
        deserialize_tuple(length: usize), deserialize_tuple_struct(name: &'static str, length: usize),
        deserialize_struct(name: &'static str, fields: &'static [&'static str]),
        deserialize_enum(name: &'static str, variants: &'static [&'static str]),
    );
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Limited<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<V::Value, E> {
        self.0.visit_u64(check_number(number)?)
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<V::Value, E> {
        self.0.visit_i64(number)
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<V::Value, E> {
        self.0.visit_f64(number)
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.0.visit_none()
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.0.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.0.visit_some(Limited(deserializer))
    }
}

/// A value written as text: parsed as the type that is wanted.
struct Text<'a, E> {
    values: Vec<&'a str>,
    error: std::marker::PhantomData<E>,
}

impl<'a, E: serde::de::Error> Text<'a, E> {
    fn one(&self) -> Result<&'a str, E> {
        match self.values[..] {
            [value] => Ok(value),
            _ => Err(E::custom("a field is given twice")),
        }
    }
}

macro_rules! parsed {
    ($($method:ident $visit:ident $what:literal),+ $(,)?) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, E> {
            let text = self.one()?;
            match text.parse() {
                Ok(value) => visitor.$visit(value),
                Err(_) => Err(E::invalid_value(Unexpected::Str(text), &$what)),
            }
        }
    )+};
}

impl<'de, E: serde::de::Error> Deserializer<'de> for Text<'_, E> {
    type Error = E;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, E> {
        visitor.visit_str(self.one()?)
    }

    parsed!(
        deserialize_bool visit_bool "true or false",
        deserialize_u8 visit_u8 "a number",
        deserialize_u16 visit_u16 "a number",
        deserialize_u32 visit_u32 "a number",
        deserialize_i8 visit_i8 "a number",
        deserialize_i16 visit_i16 "a number",
        deserialize_i32 visit_i32 "a number",
        deserialize_i64 visit_i64 "a number",
        deserialize_f32 visit_f32 "a number",
        deserialize_f64 visit_f64 "a number",
    );

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, E> {
        let text = self.one()?;
        match text.parse() {
            Ok(number) => visitor.visit_u64(check_number(number)?),
            Err(_) => Err(E::invalid_value(Unexpected::Str(text), &"a number")),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, E> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, E> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, E> {
        visitor.visit_seq(Texts { values: self.values.into_iter(), error: self.error })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, E> {
        let variant: StrDeserializer<'_, E> = self.one()?.into_deserializer();
        visitor.visit_enum(variant)
    }

    forward_to_deserialize_any! {
        i128 u128 char str string bytes byte_buf unit unit_struct tuple tuple_struct map struct identifier ignored_any
    }
}

struct Texts<'a, E> {
    values: std::vec::IntoIter<&'a str>,
    error: std::marker::PhantomData<E>,
}

impl<'de, E: serde::de::Error> SeqAccess<'de> for Texts<'_, E> {
    type Error = E;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, E> {
        let Some(value) = self.values.next() else { return Ok(None) };
        seed.deserialize(Text { values: vec![value], error: self.error }).map(Some)
    }
}

/// Parses an object as two: the named fields go to one, all others to the other. Unlike `serde(flatten)`, the
/// others keep their bytes, and an unknown field is refused.
pub fn split_fields<'de, D, A, B>(deserializer: D, names: &'static [&'static str]) -> Result<(A, B), D::Error>
where
    D: Deserializer<'de>,
    A: DeserializeOwned,
    B: serde::Deserialize<'de>,
{
    struct Both<A, B>(&'static [&'static str], std::marker::PhantomData<(A, B)>);

    impl<'de, A: DeserializeOwned, B: serde::Deserialize<'de>> Visitor<'de> for Both<A, B> {
        type Value = (A, B);

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<(A, B), M::Error> {
            let mut named = Map::new();
            let others = Others { names: self.0, named: &mut named, map };
            let b = B::deserialize(serde::de::value::MapAccessDeserializer::new(others))?;
            let a = serde_json::from_value(Value::Object(named)).map_err(M::Error::custom)?;
            Ok((a, b))
        }
    }

    deserializer.deserialize_map(Both(names, std::marker::PhantomData))
}

struct Others<'a, M> {
    names: &'static [&'static str],
    named: &'a mut Map<String, Value>,
    map: M,
}

impl<'de, M: MapAccess<'de>> MapAccess<'de> for Others<'_, M> {
    type Error = M::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, M::Error> {
        while let Some(name) = self.map.next_key::<String>()? {
            let Some(known) = self.names.iter().find(|known| **known == name) else {
                let name: StrDeserializer<'_, M::Error> = name.as_str().into_deserializer();
                return seed.deserialize(name).map(Some);
            };
            if self.named.insert(name, self.map.next_value()?).is_some() {
                return Err(M::Error::duplicate_field(known));
            }
        }
        Ok(None)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, M::Error> {
        self.map.next_value_seed(seed)
    }
}

/// For a nullable field: `None` only if it is absent.
pub fn present<'de, D: Deserializer<'de>, T: serde::Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// Parses a request whose last field holds all fields that are not named: `split!(Struct { named } rest)`.
macro_rules! split {
    ($name:ident { $($field:ident: $type:ty),+ } $rest:ident) => {
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                #[derive(serde::Deserialize)]
                struct Named { $($field: $type),+ }

                let names = &[$(stringify!($field)),+];
                let (named, $rest): (Named, _) = $crate::given::split_fields(deserializer, names)?;
                Ok($name { $($field: named.$field,)+ $rest })
            }
        }
    };
}
pub(crate) use split;

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Deserialize, JsonSchema, Debug)]
    #[serde(deny_unknown_fields)]
    struct Body {
        value: Option<Raw>,
        #[serde(default)]
        limit: Option<u64>,
        #[serde(default, alias = "actor")]
        actors: Vec<String>,
    }

    #[derive(JsonSchema, Debug)]
    struct Asked {
        place: String,
        #[schemars(flatten)]
        body: Body,
    }
    split!(Asked { place: String } body);

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    #[test]
    fn all_parts_fill_one_struct_and_raw_json_keeps_its_bytes() {
        let raw = r#"{"b": 1.0e2,  "a": [0.10]}"#;
        let body = format!(r#"{{"value": {raw}}}"#);
        let given = Given {
            path: pairs(&[("place", "here")]),
            query: pairs(&[("actor", "ana"), ("limit", "7"), ("actor", "ben")]),
            headers: Vec::new(),
            body: &body,
        };
        let asked: Asked = given.read().unwrap();
        assert_eq!((asked.place.as_str(), asked.body.limit), ("here", Some(7)));
        assert_eq!(asked.body.value.unwrap().get(), raw);
        assert_eq!(asked.body.actors, ["ana", "ben"]);
    }

    #[test]
    fn what_is_wrong_names_its_part() {
        let wrong = |path: &[(&str, &str)], query: &[(&str, &str)], body: &str| {
            let given = Given { path: pairs(path), query: pairs(query), headers: Vec::new(), body };
            let wrong = given.read::<Asked>().unwrap_err().naming_fields::<Asked>(&given);
            assert!(wrong.part == Part::Body || !wrong.text.contains(" at line "), "{}", wrong.text);
            (wrong.part, wrong.text)
        };
        let here = [("place", "here")];
        let table = [
            (wrong(&here, &[("limit", "x")], ""), Part::Query, "a number"),
            (wrong(&here, &[("limit", "9223372036854775808")], ""), Part::Query, "the largest number is"),
            (wrong(&here, &[], r#"{"limit": 9223372036854775808}"#), Part::Body, "the largest number is"),
            (wrong(&here, &[("limit", "1"), ("limit", "2")], ""), Part::Query, "twice"),
            (wrong(&here, &[("nonsense", "1")], ""), Part::Query, "unknown field"),
            (wrong(&here, &[], r#"{"nonsense": 1}"#), Part::Body, "unknown field"),
            (wrong(&here, &[], r#"{"place": "there"}"#), Part::Body, "`place` is in the path of the request"),
            (wrong(&here, &[], r#"{"limit": 1, "limit": 2}"#), Part::Body, "duplicate field `limit`"),
            (wrong(&here, &[], r#"{"limit": 1} x"#), Part::Body, "trailing"),
            (wrong(&here, &[], "[]"), Part::Body, "an object"),
            (wrong(&[], &[], "{}"), Part::Body, "missing field `place`"),
        ];
        for ((part, text), expected, words) in table {
            assert_eq!(part, expected, "{text}");
            assert!(text.contains(words), "{text}");
        }
        let known = |path: &[(&str, &str)]| {
            let text = wrong(path, &[], r#"{"nonsense": 1}"#).1;
            let known = text.strip_prefix("unknown field `nonsense`; known are ").unwrap();
            let mut known: Vec<String> = known.split(", ").map(str::to_string).collect();
            known.sort();
            known.join(" ")
        };
        assert_eq!(known(&here), "actors limit value", "the path has the place already");
        assert_eq!(known(&[]), "actors limit place value");
    }

    #[test]
    fn a_text_stands_for_one_message_of_the_user() {
        #[derive(Deserialize)]
        struct Asked {
            #[serde(default, deserialize_with = "messages")]
            input: Vec<Raw>,
        }
        let input = |json: &str| serde_json::from_str::<Asked>(json).map(|asked| asked.input);
        let texts = |json: &str| -> Vec<String> {
            input(json).unwrap().iter().map(|raw| raw.get().to_string()).collect()
        };
        assert_eq!(texts(r#"{"input": "a \"b\""}"#), [r#"{"role":"user","content":"a \"b\""}"#]);
        assert_eq!(texts(r#"{"input": [{"a": 1.0}]}"#), [r#"{"a": 1.0}"#]);
        assert!(texts("{}").is_empty());
        assert!(input(r#"{"input": 7}"#).is_err() && input(r#"{"input": null}"#).is_err());
    }
}
