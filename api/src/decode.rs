//! Reading a request: fields from the path, the query and headers, then those of a JSON body, into one struct.
//!
//! The body is read straight from its text, so that [`Raw`] fields keep their bytes;
//! nothing is parsed into a generic value first.

use everturn_core::id::clip;
use everturn_core::json::Raw;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::StrDeserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error as _, IntoDeserializer, MapAccess, SeqAccess,
    Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::de::StrRead;
use serde_json::{Map, Value};
use std::cell::Cell;
use std::fmt;

/// A request as it arrived.
#[derive(Default)]
pub struct RawRequest<'a> {
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
pub struct InvalidRequest {
    /// Part that contains it.
    pub part: Part,
    /// Message.
    pub text: String,
}

impl RawRequest<'_> {
    /// Parses it as `T`.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, InvalidRequest> {
        let part = Cell::new(None);
        self.parse(&part, |fields| T::deserialize(fields)).or_else(|_| {
            // Only now: following the path to every field takes time.
            let mut path = String::new();
            let followed = self.parse(&part, |fields| {
                serde_path_to_error::deserialize(fields).map_err(|error| {
                    path = path_of(&error);
                    error.into_inner()
                })
            });
            followed.map_err(|error| self.wrong(part.get(), &path, &error.to_string()))
        })
    }

    fn parse<'s, T>(
        &'s self,
        part: &Cell<Option<Part>>,
        read: impl FnOnce(Fields<'s, '_, &mut serde_json::Deserializer<StrRead<'s>>>) -> serde_json::Result<T>,
    ) -> serde_json::Result<T> {
        let text = if self.body.trim().is_empty() { "{}" } else { self.body };
        let mut body = serde_json::Deserializer::from_str(text);
        let parsed = read(Fields { fields: gather(self), part, body: &mut body })?;
        body.end().map(|()| parsed)
    }

    fn wrong(&self, part: Option<Part>, path: &str, error: &str) -> InvalidRequest {
        // A missing or unknown field is in none of them: it is attributed to the part with the other fields.
        let rest = if self.body.is_empty() && !self.query.is_empty() { Part::Query } else { Part::Body };
        let part = part.unwrap_or(rest);
        let is_named =
            |(name, _): &&(String, String)| error.starts_with(&format!("duplicate field `{name}`"));
        let text = match self.path.iter().find(is_named) {
            Some((name, _)) if part == Part::Body => {
                format!("`{name}` is in the path of the request; leave it out of the body")
            }
            _ => explain(path, error),
        };
        InvalidRequest { part, text }
    }
}

impl InvalidRequest {
    /// Names all fields of the request where one of them is unknown, except those of the path: serde names only the
    /// fields of one of its parts.
    pub fn naming_fields<T: JsonSchema>(self, request: &RawRequest<'_>) -> InvalidRequest {
        let unknown = self.text.strip_prefix("unknown field `").and_then(|rest| rest.split_once('`'));
        let text = match unknown {
            Some((name, _)) if !name.contains(['.', '[']) => unknown_field::<T>(name, request),
            _ => self.text,
        };
        InvalidRequest { text, ..self }
    }
}

/// The message about an unknown field of the request itself.
fn unknown_field<T: JsonSchema>(unknown: &str, request: &RawRequest<'_>) -> String {
    let schema = schemars::schema_for!(T);
    let fields = schema.get("properties").and_then(Value::as_object);
    let in_path = |name: &str| request.path.iter().any(|(known, _)| known == name);
    let names = fields.into_iter().flat_map(Map::keys).map(String::as_str);
    let known: Vec<&str> = names.filter(|name| !in_path(name)).collect();
    match known[..] {
        [] => format!("unknown field `{unknown}`; there are no fields"),
        _ => format!("unknown field `{unknown}`; known are {}", known.join(", ")),
    }
}

/// Parses JSON text. The error names the field, what was expected and what came.
pub fn from_json<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).or_else(|_| {
        let mut json = serde_json::Deserializer::from_str(text);
        let parsed = serde_path_to_error::deserialize(&mut json)
            .map_err(|error| explain(&path_of(&error), &error.inner().to_string()))?;
        json.end().map(|()| parsed).map_err(|error| error.to_string())
    })
}

/// The path to the field at fault; empty for the value itself.
fn path_of<E>(error: &serde_path_to_error::Error<E>) -> String {
    match error.path().to_string() {
        root if root == "." => String::new(),
        path => path,
    }
}

/// An error of serde in words: the field, what it must be, and what came.
fn explain(path: &str, error: &str) -> String {
    let text = without_place(error);
    let quoted = |text: &str| text.split('`').nth(1).unwrap_or_default().to_string();
    let rest = |start: &str| text.strip_prefix(start);
    let expected = |text: &str| text.rsplit_once(", expected ").map(|(a, b)| (a.to_string(), b.to_string()));
    if let Some(name) = rest("missing field ") {
        return subject(&join(path, &quoted(name)), "is missing");
    }
    if let Some(name) = rest("duplicate field ") {
        return subject(&join(path, &quoted(name)), "is there twice");
    }
    if let Some(names) = rest("unknown field ") {
        let name = quoted(names);
        let path = match path.strip_suffix(&name) {
            Some(before) if before.is_empty() || before.ends_with('.') => path.to_string(),
            _ => join(path, &name),
        };
        let known =
            names.split_once(", expected ").map_or("there are no fields".to_string(), |(_, known)| {
                let names: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
                format!("known are {}", names.join(", "))
            });
        return format!("unknown field `{}`; {known}", clip(&path));
    }
    if let Some((came, names)) = rest("unknown variant ").and_then(expected) {
        let names: Vec<&str> = names.split('`').skip(1).step_by(2).collect();
        let came = came.trim_matches('`');
        return subject(path, &format!("must be {}, not {:?}", one_of(&names), clip(came)));
    }
    if let Some((came, wanted)) = rest("invalid type: ").and_then(expected) {
        return subject(path, &format!("must be {}, not {}", wanted_words(&wanted), came_words(&came)));
    }
    if let Some((came, wanted)) = rest("invalid value: ").and_then(expected) {
        let came = came.split_once(' ').map_or(came.as_str(), |(_, value)| value).trim_matches('`');
        let wanted = match wanted.starts_with('u') && came.starts_with('-') {
            true => UNSIGNED,
            false => wanted_words(&wanted),
        };
        return subject(path, &format!("must be {wanted}, not {}", clip(came)));
    }
    if text.starts_with("data did not match any variant") {
        return subject(path, "has none of the shapes that it can have");
    }
    // serde_json's words where one of several words is expected.
    subject(path, if text == "expected value" { "must be a string" } else { text })
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_string() } else { format!("{path}.{name}") }
}

/// A sentence about the field at `path`. `text` may already be one about a part of it.
fn subject(path: &str, text: &str) -> String {
    let path = clip(path);
    let text = text.strip_prefix("it ").unwrap_or(text);
    let is_predicate = ["must ", "is ", "has "].iter().any(|verb| text.starts_with(verb));
    match text.strip_prefix('`') {
        None if path.is_empty() && is_predicate => format!("it {text}"),
        _ if path.is_empty() => text.to_string(),
        Some(part) if part.starts_with('[') => format!("`{path}{part}"),
        Some(part) => format!("`{path}.{part}"),
        None if is_predicate => format!("`{path}` {text}"),
        None => format!("`{path}`: {text}"),
    }
}

fn one_of(names: &[&str]) -> String {
    match names {
        [] => "absent".to_string(),
        [only] => only.to_string(),
        [first, second] => format!("{first} or {second}"),
        several => format!("one of {}", several.join(", ")),
    }
}

/// The expectation of a type of Rust in the words of JSON.
fn wanted_words(wanted: &str) -> &str {
    match wanted {
        "a boolean" => "true or false",
        "u8" | "u16" | "u32" | "u64" | "usize" | "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a sequence" => "a list",
        "a map" => "an object",
        "string or map" | "a borrowed string" => "a string",
        _ if wanted.starts_with("struct ") || wanted.contains("enum ") => "an object",
        _ => wanted,
    }
}

/// A value that came, in the words of JSON. Strings are not repeated: they can be long.
fn came_words(came: &str) -> String {
    let kind = came.split(' ').next().unwrap_or_default();
    match (kind, came.split('`').nth(1)) {
        ("boolean" | "integer" | "floating", Some(value)) => value.to_string(),
        ("string", _) => "a string".to_string(),
        ("sequence", _) => "a list".to_string(),
        ("map", _) => "an object".to_string(),
        ("null" | "unit" | "Option", _) => "null".to_string(),
        _ => clip(came),
    }
}

/// The message of an error in JSON without its line and column.
fn without_place(text: &str) -> &str {
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
    from_json(&list).map_err(D::Error::custom)
}

/// Schema of such a list.
pub fn messages_schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    let list = generator.subschema_for::<Vec<T>>();
    json_schema!({"anyOf": [{"type": "string"}, list]})
}

/// The fields before the body, grouped by name.
fn gather<'a>(request: &'a RawRequest<'_>) -> Vec<(Part, &'a str, Vec<&'a str>)> {
    let parts =
        [(Part::Path, &request.path), (Part::Header, &request.headers), (Part::Query, &request.query)];
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

struct Fields<'a, 'p, D> {
    fields: Vec<(Part, &'a str, Vec<&'a str>)>,
    part: &'p Cell<Option<Part>>,
    body: D,
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Fields<'_, '_, D> {
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

/// A number that cannot be negative, in words.
const UNSIGNED: &str = "a whole number, 0 or more";

/// A value written as text: parsed as the type that is wanted.
struct Text<'a, E> {
    values: Vec<&'a str>,
    error: std::marker::PhantomData<E>,
}

impl<'a, E: serde::de::Error> Text<'a, E> {
    fn one(&self) -> Result<&'a str, E> {
        match self.values[..] {
            [value] => Ok(value),
            _ => Err(E::custom("is given twice")),
        }
    }
}

macro_rules! parsed {
    ($($method:ident $visit:ident $what:expr),+ $(,)?) => {$(
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
        deserialize_u8 visit_u8 UNSIGNED,
        deserialize_u16 visit_u16 UNSIGNED,
        deserialize_u32 visit_u32 UNSIGNED,
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
            Err(_) => Err(E::invalid_value(Unexpected::Str(text), &UNSIGNED)),
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
            let a = serde_path_to_error::deserialize(Value::Object(named))
                .map_err(|error| M::Error::custom(explain(&path_of(&error), &error.inner().to_string())))?;
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
                let (named, $rest): (Named, _) = $crate::decode::split_fields(deserializer, names)?;
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
    struct Sample {
        place: String,
        #[schemars(flatten)]
        body: Body,
    }
    split!(Sample { place: String } body);

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    #[test]
    fn all_parts_fill_one_struct_and_raw_json_keeps_its_bytes() {
        let raw = r#"{"b": 1.0e2,  "a": [0.10]}"#;
        let body = format!(r#"{{"value": {raw}}}"#);
        let request = RawRequest {
            path: pairs(&[("place", "here")]),
            query: pairs(&[("actor", "ana"), ("limit", "7"), ("actor", "ben")]),
            headers: Vec::new(),
            body: &body,
        };
        let asked: Sample = request.read().unwrap();
        assert_eq!((asked.place.as_str(), asked.body.limit), ("here", Some(7)));
        assert_eq!(asked.body.value.unwrap().get(), raw);
        assert_eq!(asked.body.actors, ["ana", "ben"]);
    }

    #[test]
    fn what_is_wrong_names_its_part() {
        let wrong = |path: &[(&str, &str)], query: &[(&str, &str)], body: &str| {
            let request = RawRequest { path: pairs(path), query: pairs(query), headers: Vec::new(), body };
            let wrong = request.read::<Sample>().unwrap_err().naming_fields::<Sample>(&request);
            assert!(wrong.part == Part::Body || !wrong.text.contains(" at line "), "{}", wrong.text);
            (wrong.part, wrong.text)
        };
        let here = [("place", "here")];
        let table = [
            (
                wrong(&here, &[("limit", "x")], ""),
                Part::Query,
                "`limit` must be a whole number, 0 or more, not \"x\"",
            ),
            (
                wrong(&here, &[("limit", "-1")], ""),
                Part::Query,
                "`limit` must be a whole number, 0 or more, not \"-1\"",
            ),
            (
                wrong(&here, &[], r#"{"limit": -1}"#),
                Part::Body,
                "`limit` must be a whole number, 0 or more, not -1",
            ),
            (wrong(&here, &[("limit", "9223372036854775808")], ""), Part::Query, "the largest number is"),
            (wrong(&here, &[], r#"{"limit": 9223372036854775808}"#), Part::Body, "the largest number is"),
            (wrong(&here, &[("limit", "1"), ("limit", "2")], ""), Part::Query, "`limit` is given twice"),
            (wrong(&here, &[("nonsense", "1")], ""), Part::Query, "unknown field"),
            (wrong(&here, &[], r#"{"nonsense": 1}"#), Part::Body, "unknown field"),
            (wrong(&here, &[], r#"{"place": "there"}"#), Part::Body, "`place` is in the path of the request"),
            (wrong(&here, &[], r#"{"limit": 1, "limit": 2}"#), Part::Body, "`limit` is there twice"),
            (wrong(&here, &[], r#"{"limit": 1} x"#), Part::Body, "trailing"),
            (wrong(&here, &[], "[]"), Part::Body, "it must be an object, not a list"),
            (
                wrong(&here, &[], r#"{"limit": "x"}"#),
                Part::Body,
                "`limit` must be a whole number, not a string",
            ),
            (wrong(&here, &[], r#"{"actors": {}}"#), Part::Body, "`actors` must be a list, not an object"),
            (wrong(&here, &[], r#"{"actors": ["a", 7]}"#), Part::Body, "`actors[1]` must be a string, not 7"),
            (wrong(&[], &[], r#"{"place": null}"#), Part::Body, "`place` must be a string, not null"),
            (wrong(&[], &[], "{}"), Part::Body, "`place` is missing"),
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
        struct Sample {
            #[serde(default, deserialize_with = "messages")]
            input: Vec<Raw>,
        }
        let input = |json: &str| serde_json::from_str::<Sample>(json).map(|asked| asked.input);
        let texts = |json: &str| -> Vec<String> {
            input(json).unwrap().iter().map(|raw| raw.get().to_string()).collect()
        };
        assert_eq!(texts(r#"{"input": "a \"b\""}"#), [r#"{"role":"user","content":"a \"b\""}"#]);
        assert_eq!(texts(r#"{"input": [{"a": 1.0}]}"#), [r#"{"a": 1.0}"#]);
        assert!(texts("{}").is_empty());
        assert!(input(r#"{"input": 7}"#).is_err() && input(r#"{"input": null}"#).is_err());
    }

    #[test]
    fn an_error_names_the_field_what_was_expected_and_what_came() {
        #[derive(Deserialize, Debug)]
        #[serde(rename_all = "lowercase")]
        enum Color {
            Red,
            Green,
            Blue,
        }
        #[derive(Deserialize, Debug)]
        #[serde(deny_unknown_fields)]
        #[expect(dead_code, reason = "only read")]
        struct Part {
            color: Color,
            #[serde(default)]
            on: bool,
            #[serde(default)]
            share: Option<f64>,
        }
        #[derive(Deserialize, Debug)]
        #[expect(dead_code, reason = "only read")]
        struct Whole {
            #[serde(default)]
            parts: Vec<Part>,
            #[serde(default)]
            id: Option<everturn_core::id::TurnId>,
            #[serde(default, deserialize_with = "messages")]
            input: Vec<Part>,
        }
        let long = format!(r#"{{"parts": [{{"color": "{}"}}]}}"#, "x".repeat(5000));
        for (json, words) in [
            (
                r#"{"parts": [{"color": "pink"}]}"#,
                r#"`parts[0].color` must be one of red, green, blue, not "pink""#,
            ),
            (r#"{"parts": [{"color": 7}]}"#, "`parts[0].color` must be a string"),
            (
                r#"{"parts": [{"color": "red", "on": "yes"}]}"#,
                "`parts[0].on` must be true or false, not a string",
            ),
            (
                r#"{"parts": [{"color": "red", "share": []}]}"#,
                "`parts[0].share` must be a number, not a list",
            ),
            (r#"{"parts": [{}]}"#, "`parts[0].color` is missing"),
            (r#"{"parts": [{"colour": 1}]}"#, "unknown field `parts[0].colour`; known are color, on, share"),
            (r#"{"parts": [7]}"#, "`parts[0]` must be an object, not 7"),
            (r#"{"parts": true}"#, "`parts` must be a list, not true"),
            (r#"{"id": "turn"}"#, "`id`: \"turn\" is not an id of the form turn_"),
            (r#"{"input": [{"color": "red"}, {"color": 1.5}]}"#, "`input[1].color` must be a string"),
            (r#"{"input": 7}"#, "`input` must be a list, not 7"),
            ("7", "it must be an object, not 7"),
            (&long, "not \"xxxx"),
        ] {
            let text = from_json::<Whole>(json).unwrap_err();
            assert!(text.contains(words) && text.len() < 300, "{json}: {text}");
        }
    }
}
