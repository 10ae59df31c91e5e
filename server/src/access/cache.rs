//! Cache of keys, so that a request does not wait for the store.
//!
//! A key that this process revokes is dropped at once, one that another process revokes within
//! [`KEY_CACHED_FOR`](super::KEY_CACHED_FOR). Indexed by the hash of the key, so that memory holds no secrets.

use super::{Caller, Credential, KEY_CACHED_FOR};
use crate::app::{App, blocking};
use crate::problem::Problem;
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_engine::Grant;
use std::sync::Arc;
use std::time::Instant;

/// Maximum number of cached keys.
const KEYS_MAX: usize = 10_000;

pub struct Cache {
    found: quick_cache::sync::Cache<Hash, Arc<CachedGrant>>,
}

impl Default for Cache {
    fn default() -> Cache {
        Cache { found: quick_cache::sync::Cache::new(KEYS_MAX) }
    }
}

struct CachedGrant {
    grant: Grant,
    caller: Caller,
    at: Instant,
    /// The store's count of key changes when it was found.
    changes: u64,
}

impl Cache {
    /// The owner of a key, if it is cached.
    pub fn get(&self, app: &App, words: &str) -> Option<Caller> {
        let keys = app.store.keys();
        let found = self.found.get(&Hash::of(words.as_bytes()))?;
        let good = found.at.elapsed() < KEY_CACHED_FOR
            && found.changes == keys.changes()
            && !keys.has_expired(&found.grant);
        good.then(|| found.caller.clone())
    }

    /// Looks a key up in the store.
    pub async fn find(&self, app: &App, words: &str) -> Result<Caller, Problem> {
        let keys = app.store.keys();
        // Before the lookup: a key that is revoked meanwhile is then looked up again.
        let changes = keys.changes();
        let (searched, wanted) = (keys.clone(), words.to_string());
        let grant = match blocking(move || searched.find(&wanted)).await {
            Err(Error::NotFound(detail)) => return Err(Problem::unauthorized(detail.text)),
            other => other?,
        };
        let tenant = app.store.tenant(grant.tenant.as_str())?.called_by(grant.caller());
        let caller = Caller {
            lane: app.access.lane(&tenant),
            tenant,
            role: grant.role,
            who: Some(Arc::from(grant.key.to_string())),
            credential: Credential::Key { id: grant.key, expires: grant.expires },
            is_keyless: false,
        };
        let id = grant.key;
        let found = CachedGrant { grant, caller: caller.clone(), at: Instant::now(), changes };
        self.found.insert(Hash::of(words.as_bytes()), Arc::new(found));
        // The request does not wait until this is recorded.
        tokio::task::spawn_blocking(move || {
            if let Err(error) = keys.touch(id) {
                tracing::warn!(%error, "the last use of a key could not be recorded");
            }
        });
        Ok(caller)
    }
}
