//! Access keys of a server, each bound to one tenant and one role.
//!
//! A key is written `et_ID_SECRET`. Only the hash of the secret is stored: a lost key cannot be recovered, only
//! replaced.

use crate::Error;
use crate::chain::Hash;
use crate::id::{KeyId, TenantName, clip};
use crate::time::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Role of a caller. Each role includes the permissions of the ones before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "KeyRole")]
pub enum KeyRole {
    /// May see numbers, but no words: usage, and conversations without titles, names and metadata.
    Counter,
    /// May read.
    Reader,
    /// May read, append and derive.
    Writer,
    /// May also delete, erase and manage keys.
    Admin,
}

impl KeyRole {
    /// The name in JSON, in configuration and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            KeyRole::Counter => "counter",
            KeyRole::Reader => "reader",
            KeyRole::Writer => "writer",
            KeyRole::Admin => "admin",
        }
    }
}

impl fmt::Display for KeyRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for KeyRole {
    type Err = Error;

    fn from_str(text: &str) -> Result<KeyRole, Error> {
        [KeyRole::Counter, KeyRole::Reader, KeyRole::Writer, KeyRole::Admin]
            .into_iter()
            .find(|role| role.as_str() == text)
            .ok_or_else(|| {
                let text = clip(text);
                Error::invalid(
                    "key.role",
                    format!("{text:?} is not a role; use counter, reader, writer or admin"),
                )
            })
    }
}

/// A key, without its secret.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Key")]
pub struct AccessKey {
    /// Id of the key; not secret.
    pub id: KeyId,
    /// The tenant that the key gives access to.
    pub tenant: TenantName,
    /// Role of the holder: `counter`, `reader`, `writer` or `admin`.
    pub role: KeyRole,
    /// Actors that the key is bound to: it reads what they may see and writes only in their names. Without any, an admin
    /// sees everything, and every other role sees public content.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub actors: Vec<String>,
    /// Note for people, such as the holder and the purpose.
    pub label: Option<String>,
    /// Time of creation.
    pub created: Timestamp,
    /// Time after which the key is no longer accepted.
    pub expires: Option<Timestamp>,
    /// Time of revocation.
    pub revoked: Option<Timestamp>,
    /// Time of last use, accurate to about a minute.
    pub last_used: Option<Timestamp>,
    /// SHA-256 of the secret. The secret has 256 random bits, so a slow hash is not needed.
    #[serde(skip, default = "placeholder_hash")]
    pub secret: Hash,
}

/// Placeholder for the hash, which is never sent to callers. No secret hashes to it.
fn placeholder_hash() -> Hash {
    Hash([0; 32])
}

impl AccessKey {
    /// Whether the key is accepted at this time.
    pub fn is_valid(&self, now: Timestamp) -> bool {
        self.revoked.is_none() && self.expires.is_none_or(|end| now < end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_ordered_and_have_one_spelling() {
        assert!(KeyRole::Counter < KeyRole::Reader && KeyRole::Reader < KeyRole::Writer);
        assert!(KeyRole::Writer < KeyRole::Admin);
        for role in [KeyRole::Counter, KeyRole::Reader, KeyRole::Writer, KeyRole::Admin] {
            assert_eq!(role.to_string().parse::<KeyRole>().unwrap(), role);
        }
        assert!(
            "root".parse::<KeyRole>().unwrap_err().text().contains("use counter, reader, writer or admin")
        );
    }
}
