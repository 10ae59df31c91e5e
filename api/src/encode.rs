//! Writing a request, for a client over HTTP. Raw values keep their bytes.

use crate::{About, Operation};
use everturn_core::Error;
use everturn_core::json::{Raw, quote};
use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use std::fmt;

/// A request over HTTP.
#[derive(Debug)]
pub struct EncodedRequest {
    /// Segments of the path below `/api/v1`, not escaped.
    pub path: Vec<String>,
    /// The query, not escaped.
    pub query: Vec<(String, String)>,
    /// `Idempotency-Key`.
    pub idempotency_key: Option<String>,
    /// `If-Match`: the `seq` of the last event when it was read.
    pub if_match: Option<String>,
    /// The JSON text of the body.
    pub body: Option<String>,
}

impl EncodedRequest {
    /// Converts an operation to a request.
    pub fn new<O: Operation>(operation: &O) -> Result<EncodedRequest, Error> {
        let about = O::ABOUT;
        let mut fields: Vec<(String, Raw)> = Raw::of(operation)?.read::<Object>().unwrap_or_default().0;
        fields.retain(|(_, value)| value.get() != "null" || about.method.has_body());
        // The alternative path, if its fields are set.
        let has = |name: &str| fields.iter().any(|(field, value)| field == name && value.get() != "null");
        let alias = about.alias.map(|(_, path)| path).filter(|path| About::fields_of(path).all(&has));
        let mut take = |name: &str| {
            let at = fields.iter().position(|(field, _)| field == name)?;
            let (_, value) = fields.remove(at);
            (value.get() != "null").then(|| plain(&value))
        };
        let mut path = Vec::new();
        for part in alias.unwrap_or(about.path).split('/').skip(1) {
            path.push(match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
                Some(field) => match take(field).unwrap_or_default() {
                    // URLs are resolved before they are sent.
                    name if matches!(name.as_str(), "." | "..") => {
                        let text =
                            format!("{field} is {name:?}, which cannot be part of a URL path; run the command on the store itself");
                        return Err(Error::invalid("name.malformed", text));
                    }
                    name => name,
                },
                None => part.to_string(),
            });
        }
        let idempotency_key = if about.once { take("idempotency_key") } else { None };
        let if_match = if about.if_match { take("expected_seq") } else { None };
        let mut request = EncodedRequest { path, query: Vec::new(), idempotency_key, if_match, body: None };
        if about.method.has_body() {
            let fields: Vec<String> =
                fields.iter().map(|(name, value)| format!("{}:{}", quote(name), value.get())).collect();
            request.body = Some(format!("{{{}}}", fields.join(",")));
        } else {
            for (name, value) in fields {
                match value.read::<Vec<Raw>>() {
                    Some(values) => {
                        request.query.extend(values.iter().map(|value| (name.clone(), plain(value))))
                    }
                    None => request.query.push((name, plain(&value))),
                }
            }
        }
        Ok(request)
    }
}

/// A string without its quotes, or a number as it is.
fn plain(value: &Raw) -> String {
    value.read::<String>().unwrap_or_else(|| value.get().to_string())
}

/// The fields of an object, in order.
#[derive(Default)]
struct Object(Vec<(String, Raw)>);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Object, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = Object;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Object(fields))
            }
        }

        deserializer.deserialize_map(Fields)
    }
}
