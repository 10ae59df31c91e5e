//! Keys for access to a server.

use everturn_core::Error;
use everturn_core::access::AccessKey;
use everturn_core::id::{KeyId, TenantName};
use everturn_core::time::Timestamp;

/// Access keys. Ground, but beside the log: a key concerns access, not a conversation.
pub trait AccessKeys: Send + Sync {
    /// Stores a new key; durable when it returns. One with the same id is a `Conflict`.
    fn put_key(&self, key: &AccessKey) -> Result<(), Error>;
    /// A key of any tenant, since the key determines the tenant; revoked and expired ones too.
    fn key(&self, id: KeyId) -> Result<Option<AccessKey>, Error>;
    /// The keys of a tenant, oldest first, revoked and expired ones too.
    fn keys(&self, tenant: &TenantName) -> Result<Vec<AccessKey>, Error>;
    /// Whether any tenant has a key that is valid at this time; without a time, whether there ever was a key.
    fn any_key(&self, valid_at: Option<Timestamp>) -> Result<bool, Error>;
    /// Revokes a key; durable when it returns. `NotFound` if it is absent or another tenant's. An already
    /// revoked one stays unchanged.
    fn revoke_key(&self, tenant: &TenantName, id: KeyId, at: Timestamp) -> Result<AccessKey, Error>;
    /// Records the use of a key. The time never goes back; an absent key is not an error.
    fn touch_key(&self, id: KeyId, at: Timestamp) -> Result<(), Error>;
}

/// The error for a key that is absent or another tenant's.
pub(crate) fn absent_key(id: KeyId) -> Error {
    Error::not_found("key.absent", format!("the tenant has no key {id}; `everturn keys list` lists its keys"))
}

/// The error for a key that exists already.
pub(crate) fn key_exists(id: KeyId) -> Error {
    Error::conflict("key.exists", format!("key {id} exists already; create another"))
}
