//! Access keys: created, listed, revoked, and looked up by their text.
//!
//! The text of a key is `et_ID_SECRET`: the ULID of the key, and 32 random bytes in hex. It is shown once, when the
//! key is created; only the SHA-256 of the secret is stored.

use crate::caller::Caller;
use crate::everturn::{Inner, Shared};
use everturn_core::Error;
use everturn_core::access::{AccessKey, KeyRole};
use everturn_core::chain::Hash;
use everturn_core::event::check_name;
use everturn_core::id::{KeyId, TenantName};
use everturn_core::limits::{KEY_ACTORS_MAX, NAME_BYTES_MAX};
use everturn_core::time::Timestamp;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use subtle::ConstantTimeEq;
use tokio::sync::watch;

/// Prefix of the text of every key.
pub const KEY_PREFIX: &str = "et_";

/// The last use of a key is written at most this often.
const TOUCH_EVERY_S: u64 = 60;

/// The keys of a store.
#[derive(Clone)]
pub struct Keys {
    shared: Arc<Shared>,
    /// Keeps the store open.
    _open: Option<Arc<Inner>>,
}

/// A key to create.
#[derive(Clone, Debug)]
pub struct NewKey {
    /// Tenant that it gives access to.
    pub tenant: String,
    /// Role that it grants.
    pub role: KeyRole,
    /// Actors that the key is bound to; if empty, it may act as any actor.
    pub actors: Vec<String>,
    /// Description for people.
    pub label: Option<String>,
    /// Time at which it expires.
    pub expires: Option<Timestamp>,
}

impl NewKey {
    /// A key that holds for any actor and does not expire.
    pub fn new(tenant: impl Into<String>, role: KeyRole) -> NewKey {
        NewKey { tenant: tenant.into(), role, actors: Vec::new(), label: None, expires: None }
    }
}

/// Access granted by a key.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Grant {
    /// Id of the key.
    pub key: KeyId,
    /// Tenant that it gives access to.
    pub tenant: TenantName,
    /// Role that it grants.
    pub role: KeyRole,
    /// Actors that the key is bound to; if empty, it may act as any actor.
    pub actors: Vec<String>,
    /// Time at which it expires.
    pub expires: Option<Timestamp>,
}

impl Grant {
    /// The holder of the key.
    pub fn caller(&self) -> Caller {
        Caller::holding(self.key.to_string(), self.role, &self.actors)
    }
}

/// Stored keys, with a cache while the store is open.
pub(crate) struct KeyRing {
    pub store: Arc<dyn everturn_store::AccessKeys>,
    /// Incremented when a key is created or revoked.
    changes: watch::Sender<u64>,
    touched: Mutex<HashMap<KeyId, Timestamp>>,
}

impl KeyRing {
    pub fn new(store: Arc<dyn everturn_store::AccessKeys>) -> KeyRing {
        KeyRing { store, changes: watch::Sender::default(), touched: Mutex::default() }
    }

    /// Notes that another process created or revoked a key.
    pub fn changed_elsewhere(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }
}

impl Keys {
    pub(crate) fn new(shared: Arc<Shared>, open: Option<Arc<Inner>>) -> Keys {
        Keys { shared, _open: open }
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Creates a key. Also returns its text, which cannot be shown again.
    pub fn create(&self, new: NewKey) -> Result<(AccessKey, String), Error> {
        self.shared().journal.writable()?;
        let now = self.shared().now();
        if let Some(label) = new.label.as_ref().filter(|label| label.len() > NAME_BYTES_MAX) {
            let (limit, got) = (NAME_BYTES_MAX as u64, label.len() as u64);
            return Err(Error::limit("NAME_BYTES_MAX", limit, got, "give the key a shorter label"));
        }
        if new.actors.len() > KEY_ACTORS_MAX {
            let (limit, got) = (KEY_ACTORS_MAX as u64, new.actors.len() as u64);
            return Err(Error::limit("KEY_ACTORS_MAX", limit, got, "create several keys"));
        }
        new.actors.iter().try_for_each(|actor| check_name("actor", actor))?;
        if let Some(expires) = new.expires {
            expires.check()?;
            if expires <= now {
                let text = format!("the key would end at {expires}, which has passed; give a later time");
                return Err(Error::invalid("key.expires", text));
            }
        }
        let secret = self.shared().journal.source.secret()?;
        let key = AccessKey {
            id: KeyId(self.shared().journal.source.ulid()?),
            tenant: TenantName::new(new.tenant)?,
            role: new.role,
            actors: new.actors,
            label: new.label,
            created: now,
            expires: new.expires,
            revoked: None,
            last_used: None,
            secret: Hash::of(&secret),
        };
        self.check_quota(&key.tenant)?;
        self.shared().keys.store.put_key(&key)?;
        self.shared().keys.changes.send_modify(|changes| *changes += 1);
        let words = format!("{KEY_PREFIX}{}_{}", key.id.0, hex::encode(secret));
        Ok((key, words))
    }

    /// The keys of a tenant, oldest first, revoked and expired ones too.
    pub fn list(&self, tenant: &str) -> Result<Vec<AccessKey>, Error> {
        self.shared().keys.store.keys(&TenantName::new(tenant)?)
    }

    /// Revokes a key. Another tenant's key counts as absent.
    pub fn revoke(&self, tenant: &str, id: KeyId) -> Result<AccessKey, Error> {
        self.shared().journal.writable()?;
        let revoked = self.shared().keys.store.revoke_key(&TenantName::new(tenant)?, id, self.shared().now());
        self.shared().keys.changes.send_modify(|changes| *changes += 1);
        revoked
    }

    /// Access granted by the text of a key. Reads the store. Unknown, revoked and expired keys give the same error.
    pub fn find(&self, words: &str) -> Result<Grant, Error> {
        let unknown = || {
            let text = "this key is unknown, revoked or expired; ask an administrator for another";
            Error::not_found("key.unknown", text)
        };
        let (id, secret) = parse(words).ok_or_else(unknown)?;
        let key = self.shared().keys.store.key(id)?.ok_or_else(unknown)?;
        let same = bool::from(Hash::of(&secret).0.ct_eq(&key.secret.0));
        if !same || !key.is_valid(self.shared().now()) {
            return Err(unknown());
        }
        let AccessKey { id, tenant, role, actors, expires, .. } = key;
        Ok(Grant { key: id, tenant, role, actors, expires })
    }

    /// Whether a grant has expired since it was found.
    pub fn has_expired(&self, grant: &Grant) -> bool {
        grant.expires.is_some_and(|end| end <= self.shared().now())
    }

    /// Notes that a key was used. Writes at most once a minute for each key, and may wait for the disk then.
    pub fn touch(&self, id: KeyId) -> Result<(), Error> {
        let now = self.shared().now();
        let mut touched = self.shared().keys.touched.lock();
        let recently = |at: &Timestamp| *at <= now && now < at.plus_s(TOUCH_EVERY_S);
        if self.shared().options.read_only || touched.get(&id).is_some_and(recently) {
            return Ok(());
        }
        touched.insert(id, now);
        drop(touched);
        self.shared().keys.store.touch_key(id, now)
    }

    /// Whether any tenant ever had a key.
    pub fn any(&self) -> Result<bool, Error> {
        self.shared().keys.store.any_key(None)
    }

    /// Whether any tenant has a valid key.
    pub fn any_valid(&self) -> Result<bool, Error> {
        self.shared().keys.store.any_key(Some(self.shared().now()))
    }

    /// A number that changes whenever a key is created or revoked: earlier grants may be invalid.
    pub fn changes(&self) -> u64 {
        *self.shared().keys.changes.borrow()
    }

    /// Wakes its holder whenever a key is created or revoked.
    pub fn watch_changes(&self) -> watch::Receiver<u64> {
        self.shared().keys.changes.subscribe()
    }

    /// Whether a key is still valid. Reads the store.
    pub fn is_valid(&self, id: KeyId) -> Result<bool, Error> {
        Ok(self.shared().keys.store.key(id)?.is_some_and(|key| key.is_valid(self.shared().now())))
    }

    /// Time until `end` by the store's clock; zero if it has passed.
    pub fn time_left(&self, end: Timestamp) -> Duration {
        let us = end.0.saturating_sub(self.shared().now().0);
        Duration::from_micros(u64::try_from(us).unwrap_or(0))
    }
}

/// Id and secret in the text of a key.
fn parse(words: &str) -> Option<(KeyId, [u8; 32])> {
    let (id, secret) = words.strip_prefix(KEY_PREFIX)?.split_once('_')?;
    let mut bytes = [0; 32];
    hex::decode_to_slice(secret, &mut bytes).ok()?;
    Some((format!("{}{id}", KeyId::PREFIX).parse().ok()?, bytes))
}
