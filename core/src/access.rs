//! Who may ask a server, and for what: a key, bound to one tenant and one role.
//!
//! The words of a key are `et_ID_SECRET`. Only the hash of the secret is kept; whoever lost the words makes a new key.

use crate::Error;
use crate::chain::Hash;
use crate::id::{KeyId, TenantName, clip};
use crate::time::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What a caller may do. Each may do what the ones before it may.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "KeyRole")]
pub enum KeyRole {
    /// Read.
    Reader,
    /// Read, append and derive.
    Writer,
    /// Also delete, erase, and make keys.
    Admin,
}

impl KeyRole {
    /// How it is written.
    pub fn as_str(self) -> &'static str {
        match self {
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
        [KeyRole::Reader, KeyRole::Writer, KeyRole::Admin]
            .into_iter()
            .find(|role| role.as_str() == text)
            .ok_or_else(|| {
                let text = clip(text);
                Error::invalid("key.role", format!("{text:?} is no role; use reader, writer or admin"))
            })
    }
}

/// A key, without its secret.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Key")]
pub struct AccessKey {
    /// Its id.
    pub id: KeyId,
    /// Whose conversations it opens; no others.
    pub tenant: TenantName,
    /// What its holder may do: `reader`, `writer` or `admin`.
    pub role: KeyRole,
    /// For people: who has it, and what for.
    pub label: Option<String>,
    /// When it was made.
    pub created: Timestamp,
    /// When it ends by itself.
    pub expires: Option<Timestamp>,
    /// When it was taken back.
    pub revoked: Option<Timestamp>,
    /// When it was last used, to about a minute.
    pub last_used: Option<Timestamp>,
    /// SHA-256 of the secret, which has 256 random bits, so that no slower hash is needed.
    #[serde(skip, default = "untold")]
    pub secret: Hash,
}

/// In place of a hash that is not told to callers; no secret has it.
fn untold() -> Hash {
    Hash([0; 32])
}

impl AccessKey {
    /// Whether it opens anything at this time.
    pub fn is_valid(&self, now: Timestamp) -> bool {
        self.revoked.is_none() && self.expires.is_none_or(|end| now < end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_ordered_and_have_one_spelling() {
        assert!(KeyRole::Reader < KeyRole::Writer && KeyRole::Writer < KeyRole::Admin);
        for role in [KeyRole::Reader, KeyRole::Writer, KeyRole::Admin] {
            assert_eq!(role.to_string().parse::<KeyRole>().unwrap(), role);
        }
        assert!("root".parse::<KeyRole>().unwrap_err().text().contains("use reader, writer or admin"));
    }
}
