//! Keys for access to a server.

use everturn_core::Error;
use everturn_core::access::AccessKey;
use everturn_core::id::{KeyId, TenantName};
use everturn_core::time::Timestamp;

/// Ground, but beside the log: a key is about access and not about a conversation.
pub trait Keys: Send + Sync {
    /// Keeps a new key; durable when it returns. One with the same id is a `Conflict`.
    fn put_key(&self, key: &AccessKey) -> Result<(), Error>;
    /// A key of any tenant, since the key tells the tenant; revoked and expired ones too.
    fn key(&self, id: KeyId) -> Result<Option<AccessKey>, Error>;
    /// The keys of a tenant, oldest first, revoked and expired ones too.
    fn keys(&self, tenant: &TenantName) -> Result<Vec<AccessKey>, Error>;
    /// Whether any tenant has a key that is valid at this time; without one, whether there ever was a key.
    fn any_key(&self, valid_at: Option<Timestamp>) -> Result<bool, Error>;
    /// Takes a key back; durable when it returns. `NotFound` if it is not there or not this tenant's. One that was
    /// revoked before stays as it is.
    fn revoke_key(&self, tenant: &TenantName, id: KeyId, at: Timestamp) -> Result<AccessKey, Error>;
    /// Notes that a key was used. The time never goes back; an absent key is no error.
    fn touch_key(&self, id: KeyId, at: Timestamp) -> Result<(), Error>;
}

/// No key with this id, or another tenant's, which looks the same.
pub(crate) fn absent_key(id: KeyId) -> Error {
    Error::not_found(
        "key.absent",
        format!(
            "the tenant has no key {id}; `everturn keys list` shows those there are, with --tenant those of another tenant"
        ),
    )
}

/// A key with this id is there already.
pub(crate) fn key_exists(id: KeyId) -> Error {
    Error::conflict("key.exists", format!("there is a key {id} already; make another"))
}
