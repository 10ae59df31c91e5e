//! Access keys of the caller's own tenant.

use crate::{About, Method, Noun, Operation, Page, Requester, Work};
use everturn_core::Error;
use everturn_core::access::{AccessKey, KeyRole};
use everturn_core::id::{KeyId, TenantName};
use everturn_core::time::Timestamp;
use everturn_engine::NewKey;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Creates a key for the caller's tenant. The secret is in this answer and nowhere else.
///
/// A server without keys requires none; from the first key on it requires one of every caller, so the first
/// must be an admin's.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(example = json!({"role": "admin", "label": "my laptop"}))]
pub struct CreateKey {
    /// Role: `counter` (numbers, but no words), `reader`, `writer` or `admin`.
    pub role: KeyRole,
    /// Actors that the holder acts as: it sees their private turns, and writes in their names only. Without any, an admin sees
    /// everything, everyone else what is for everyone, and either may write in any name.
    #[serde(default)]
    pub actors: Vec<String>,
    /// Note for people, such as the holder and the purpose.
    #[schemars(example = &"the build bot")]
    pub label: Option<String>,
    /// Time after which it is no longer accepted, RFC 3339.
    pub expires: Option<Timestamp>,
}

/// A new key.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct MadeKey {
    /// The key.
    #[serde(flatten)]
    pub key: AccessKey,
    /// The key to send as `Authorization: Bearer`. It is shown only once.
    #[schemars(example = &"et_01JD0000000000000000000000_5f0c…")]
    pub secret: String,
}

impl Operation for CreateKey {
    type Answer = MadeKey;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::Keys,
        "create_key",
        "/keys",
        "Create a key",
        "The key, and its secret.",
    )
    .creates()
    .destructive();

    async fn run(self, requester: &Requester) -> Result<MadeKey, Error> {
        if self.role != KeyRole::Admin && requester.is_keyless {
            let text = "once there is a key, every request needs one, so the first must be an admin's; create an admin key first";
            return Err(Error::conflict("key.first", text));
        }
        let own = requester.tenant.caller().actors();
        if !own.is_empty() && (self.actors.is_empty() || self.actors.iter().any(|actor| !own.contains(actor)))
        {
            let text = format!(
                "your key acts as {}; name some of these as the actors of the new key",
                own.join(", ")
            );
            return Err(Error::forbidden("actor.forbidden", text));
        }
        let tenant = requester.tenant.name().to_string();
        let new =
            NewKey { tenant, role: self.role, actors: self.actors, label: self.label, expires: self.expires };
        let (key, secret) = requester.tenant.keys().create(new)?;
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

    async fn run(self, requester: &Requester) -> Result<Page<AccessKey>, Error> {
        requester.tenant.keys().list(requester.tenant.name().as_str()).map(Page::whole)
    }
}

/// Revokes a key. It is no longer accepted; its record stays.
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
        "Revoke a key",
        "The revoked key.",
    )
    .destructive();

    async fn run(self, requester: &Requester) -> Result<AccessKey, Error> {
        requester.tenant.keys().revoke(requester.tenant.name().as_str(), self.key)
    }
}

/// Shows who the caller is: tenant, role, and the actors that its key is bound to.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WhoAmI {}

/// The caller of a request.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Identity {
    /// Tenant.
    pub tenant: TenantName,
    /// Role: `counter`, `reader`, `writer` or `admin`.
    pub role: KeyRole,
    /// Actors that the caller acts as; none if it may act as anyone.
    pub actors: Vec<String>,
    /// Id of the key, or `jwt:` and the subject of a token; null without one.
    pub key: Option<String>,
}

impl Operation for WhoAmI {
    type Answer = Identity;
    const ABOUT: About =
        About::new(Method::Get, Noun::Keys, "whoami", "/whoami", "Show the caller", "The caller.")
            .counts()
            .work(Work::Quick);

    async fn run(self, requester: &Requester) -> Result<Identity, Error> {
        let caller = requester.tenant.caller();
        Ok(Identity {
            tenant: requester.tenant.name().clone(),
            role: requester.role,
            actors: caller.actors().to_vec(),
            key: caller.key().map(str::to_string),
        })
    }
}
