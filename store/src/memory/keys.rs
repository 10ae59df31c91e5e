//! Keys, in memory.

use super::Memory;
use crate::{AccessKeys, absent_key, key_exists};
use everturn_core::Error;
use everturn_core::access::AccessKey;
use everturn_core::id::{KeyId, TenantName};
use everturn_core::time::Timestamp;
use std::collections::btree_map::Entry;

impl AccessKeys for Memory {
    fn put_key(&self, key: &AccessKey) -> Result<(), Error> {
        match self.kept().keys.entry(key.id) {
            Entry::Occupied(_) => Err(key_exists(key.id)),
            Entry::Vacant(place) => {
                place.insert(key.clone());
                Ok(())
            }
        }
    }

    fn key(&self, id: KeyId) -> Result<Option<AccessKey>, Error> {
        Ok(self.kept().keys.get(&id).cloned())
    }

    fn keys(&self, tenant: &TenantName) -> Result<Vec<AccessKey>, Error> {
        Ok(self.kept().keys.values().filter(|key| key.tenant == *tenant).cloned().collect())
    }

    fn any_key(&self, valid_at: Option<Timestamp>) -> Result<bool, Error> {
        Ok(self.kept().keys.values().any(|key| valid_at.is_none_or(|at| key.is_valid(at))))
    }

    fn revoke_key(&self, tenant: &TenantName, id: KeyId, at: Timestamp) -> Result<AccessKey, Error> {
        let mut kept = self.kept();
        let key = kept.keys.get_mut(&id).filter(|key| key.tenant == *tenant).ok_or_else(|| absent_key(id))?;
        key.revoked.get_or_insert(at);
        Ok(key.clone())
    }

    fn touch_key(&self, id: KeyId, at: Timestamp) -> Result<(), Error> {
        if let Some(key) = self.kept().keys.get_mut(&id) {
            key.last_used = key.last_used.max(Some(at));
        }
        Ok(())
    }
}
