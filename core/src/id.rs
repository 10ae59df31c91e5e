//! Ids: a prefix that names the type, and a ULID that sorts by time.
//!
//! The ULID's bits are passed in by `engine`; nothing here reads a clock. A turn has the same ULID as the event
//! that opened it, so that either id leads to the other.

use crate::Error;
use crate::limits::TENANT_BYTES_MAX;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use ulid::Ulid;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub Ulid);

        impl $name {
            /// Prefix of every id of this type.
            pub const PREFIX: &'static str = $prefix;

            /// Makes an id from its sixteen stored bytes.
            pub fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(Ulid::from_bytes(bytes))
            }

            /// The sixteen bytes that are stored and hashed.
            pub fn to_bytes(self) -> [u8; 16] {
                self.0.to_bytes()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut buffer = [0; ulid::ULID_LEN];
                f.write_str($prefix)?;
                f.write_str(self.0.array_to_str(&mut buffer))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self, Error> {
                text.strip_prefix($prefix)
                    .and_then(|rest| {
                        let id = Ulid::from_string(rest).ok()?;
                        // An id has one spelling only, so that it can be compared as text; the decoder accepts
                        // several.
                        let is_own = id.array_to_str(&mut [0; ulid::ULID_LEN]) == rest;
                        is_own.then_some(Self(id))
                    })
                    .ok_or_else(|| {
                        Error::invalid(
                            "id.malformed",
                            format!(concat!("{:?} is not an id of the form ", $prefix, "01J… (26 characters after the prefix)"), clip(text)),
                        )
                    })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = Cow::<str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({"type": "string", "examples": [concat!($prefix, "01JD0000000000000000000000")]})
            }
        }
    };
}

id!(
    /// A conversation: one identity that survives any number of compactions.
    ConversationId, "conv_"
);
id!(
    /// A turn: one actor's contribution.
    TurnId, "turn_"
);
id!(
    /// An event: one entry of the log.
    EventId, "evt_"
);
id!(
    /// A fact: subject, predicate, object.
    FactId, "fact_"
);
id!(
    /// A generation: a reply requested from a model.
    GenerationId, "gen_"
);
id!(
    /// An access key of a server, bound to one tenant.
    KeyId, "key_"
);

/// Name of a tenant, the isolation boundary. Letters, digits, `.`, `_` and `-`, so that it is also a safe folder name.
/// Shared instead of copied: each request hands it on several times.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TenantName(Arc<str>);

impl TenantName {
    /// Checks the name.
    pub fn new(name: impl Into<String>) -> Result<TenantName, Error> {
        let name = name.into();
        let safe = name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
        if name.is_empty() || name.len() > TENANT_BYTES_MAX || name.starts_with('.') || !safe {
            return Err(Error::invalid(
                "tenant.malformed",
                format!(
                    "tenant {:?} is not usable; use 1 to {TENANT_BYTES_MAX} letters, digits, '.', '_' or '-', not starting with '.'",
                    clip(&name)
                ),
            ));
        }
        Ok(TenantName(name.into()))
    }

    /// The name as given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Serialize for TenantName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for TenantName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        TenantName::new(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for TenantName {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Tenant".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": "^[A-Za-z0-9_-][A-Za-z0-9._-]*$",
            "maxLength": TENANT_BYTES_MAX,
            "examples": ["default"],
        })
    }
}

impl fmt::Display for TenantName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A conversation of a tenant. Every call into a store takes one of these, never a bare conversation id.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key {
    /// The tenant.
    pub tenant: TenantName,
    /// The conversation.
    pub id: ConversationId,
}

/// The start of an untrusted text, short enough for an error message.
pub fn clip(text: &str) -> String {
    const SHOWN_CHARS: usize = 60;
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_one_spelling() {
        let id = ConversationId(Ulid::from_parts(1, 2));
        assert_eq!(id.to_string().parse::<ConversationId>().unwrap(), id);
        for wrong in [
            "",
            "conv_",
            "turn_00000000010000000000000002",
            "conv_0000000001000000000000000g",
            "conv_000000000100000000000000ZZZ",
        ] {
            assert!(wrong.parse::<ConversationId>().is_err(), "{wrong}");
        }
        let other = ConversationId(Ulid::from_parts(1 << 40, u128::MAX)).to_string();
        assert!(
            other.parse::<ConversationId>().is_ok()
                && other.to_lowercase().parse::<ConversationId>().is_err()
        );
        assert!("conv_8ZZZZZZZZZZZZZZZZZZZZZZZZZ".parse::<ConversationId>().is_err(), "more than 128 bits");
    }

    #[test]
    fn a_tenant_is_a_safe_folder_name() {
        assert!(TenantName::new("acme-1.prod_x").is_ok());
        for wrong in ["", ".", "..", "a/b", "a b", "é", "a\0"] {
            assert!(TenantName::new(wrong).unwrap_err().text().contains("not usable"), "{wrong}");
        }
    }
}
