//! Assets that end with the process.

use super::{Assets, absent, damaged};
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::id::TenantName;
use everturn_core::time::Timestamp;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Assets in memory.
#[derive(Default)]
pub struct MemoryAssets(Mutex<BTreeMap<(TenantName, Hash), MemoryAsset>>);

struct MemoryAsset {
    bytes: Arc<[u8]>,
    /// By the system's clock, as in a folder.
    written: SystemTime,
}

impl MemoryAssets {
    fn find(&self, tenant: &TenantName, sha256: Hash) -> Result<Arc<[u8]>, Error> {
        let assets = self.0.lock();
        let found = assets.get(&(tenant.clone(), sha256)).ok_or_else(|| absent(sha256))?;
        Ok(found.bytes.clone())
    }
}

impl Assets for MemoryAssets {
    fn put(&self, tenant: &TenantName, sha256: Hash, bytes: Vec<u8>) -> Result<(), Error> {
        if self.get(tenant, sha256).is_ok() {
            return Ok(());
        }
        let asset = MemoryAsset { bytes: bytes.into(), written: SystemTime::now() };
        self.0.lock().insert((tenant.clone(), sha256), asset);
        Ok(())
    }

    fn get(&self, tenant: &TenantName, sha256: Hash) -> Result<Vec<u8>, Error> {
        let bytes = self.find(tenant, sha256)?;
        if Hash::of(&bytes) != sha256 {
            return Err(damaged(sha256));
        }
        Ok(bytes.to_vec())
    }

    fn get_range(&self, tenant: &TenantName, sha256: Hash, range: Range<u64>) -> Result<Vec<u8>, Error> {
        let bytes = self.find(tenant, sha256)?;
        let end = bytes.len().min(usize::try_from(range.end).unwrap_or(usize::MAX));
        let start = end.min(usize::try_from(range.start).unwrap_or(usize::MAX));
        Ok(bytes[start..end].to_vec())
    }

    fn delete(&self, tenant: &TenantName, sha256: Hash) -> Result<(), Error> {
        self.0.lock().remove(&(tenant.clone(), sha256));
        Ok(())
    }

    fn list(&self) -> Result<Vec<(TenantName, Hash, Timestamp)>, Error> {
        let assets = self.0.lock();
        let listed = assets.iter().map(|((tenant, sha256), asset)| {
            let written = asset.written.duration_since(UNIX_EPOCH).unwrap_or_default();
            (tenant.clone(), *sha256, Timestamp(written.as_micros() as i64))
        });
        Ok(listed.collect())
    }
}
