//! Keys: who may ask, of the caller's own tenant.

use crate::{About, Asker, Method, Noun, Operation, Page};
use everturn::NewKey;
use everturn_core::Error;
use everturn_core::access::{AccessKey, KeyRole};
use everturn_core::id::KeyId;
use everturn_core::time::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Makes a key for the caller's tenant. Its words are in this answer and nowhere else.
///
/// A server without keys asks nobody for one; from the first key on it asks everybody, so the first must be an admin's.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(example = json!({"role": "admin", "label": "my laptop"}))]
pub struct CreateKey {
    /// `reader`, `writer` or `admin`.
    pub role: KeyRole,
    /// For people: who has it, and what for.
    #[schemars(example = &"the build bot")]
    pub label: Option<String>,
    /// When it ends by itself, RFC 3339.
    pub expires: Option<Timestamp>,
}

/// A key that was just made.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct MadeKey {
    /// The key.
    #[serde(flatten)]
    pub key: AccessKey,
    /// The words to send as `Authorization: Bearer`. They are shown this once.
    #[schemars(example = &"et_01JD0000000000000000000000_5f0c…")]
    pub secret: String,
}

impl Operation for CreateKey {
    type Answer = MadeKey;
    const ABOUT: About =
        About::new(Method::Post, Noun::Keys, "create_key", "/keys", "Make a key", "The key, and its words.")
            .creates()
            .destructive();

    async fn run(self, asker: &Asker) -> Result<MadeKey, Error> {
        if self.role != KeyRole::Admin && asker.is_keyless {
            let text = "from the first key on every request needs one, so the first must be an admin's; make that first";
            return Err(Error::conflict("key.first", text));
        }
        let tenant = asker.tenant.name().to_string();
        let new = NewKey { tenant, role: self.role, label: self.label, expires: self.expires };
        let (key, secret) = asker.tenant.keys().create(new)?;
        Ok(MadeKey { key, secret })
    }
}

/// Lists the keys of the caller's tenant, revoked and expired ones too.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListKeys {}

impl Operation for ListKeys {
    type Answer = Page<AccessKey>;
    const ABOUT: About =
        About::new(Method::Get, Noun::Keys, "list_keys", "/keys", "List keys", "Oldest first.").destructive();

    async fn run(self, asker: &Asker) -> Result<Page<AccessKey>, Error> {
        asker.tenant.keys().list(asker.tenant.name().as_str()).map(Page::whole)
    }
}

/// Takes a key back. It opens nothing from now on; its record stays.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RevokeKey {
    /// The key's id.
    pub key: KeyId,
}

impl Operation for RevokeKey {
    type Answer = AccessKey;
    const ABOUT: About = About::new(
        Method::Delete,
        Noun::Keys,
        "revoke_key",
        "/keys/{key}",
        "Take a key back",
        "The key, as it is kept.",
    )
    .destructive();

    async fn run(self, asker: &Asker) -> Result<AccessKey, Error> {
        asker.tenant.keys().revoke(asker.tenant.name().as_str(), self.key)
    }
}
