//! Assets in an object store: a folder beside the database by default.

use crate::Assets;
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::id::Tenant;
use everturn_core::time::Timestamp;
use futures_executor::block_on;
use futures_util::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use std::sync::Arc;

/// Assets in any object store, as `tenant/ab/abcdef…`.
pub struct ObjectAssets {
    store: Arc<dyn ObjectStore>,
}

impl ObjectAssets {
    /// In a folder, which is made if it is not there. Every file is synced before [`Assets::put`] returns.
    pub fn folder(path: &std::path::Path) -> Result<ObjectAssets, Error> {
        std::fs::create_dir_all(path)
            .map_err(|e| cannot(&format!("make the folder {}", path.display()), &e))?;
        let store =
            LocalFileSystem::new_with_prefix(path).map_err(|e| cannot("open the asset folder", &e))?;
        Ok(ObjectAssets { store: Arc::new(store.with_fsync(true)) })
    }

    /// In memory.
    pub fn memory() -> ObjectAssets {
        ObjectAssets { store: Arc::new(InMemory::new()) }
    }
}

/// Where the bytes are, relative to the folder.
pub fn path(tenant: &Tenant, sha256: Hash) -> String {
    let name = sha256.to_string();
    format!("{tenant}/{}/{name}", &name[..2])
}

impl Assets for ObjectAssets {
    fn put(&self, tenant: &Tenant, sha256: Hash, bytes: Vec<u8>) -> Result<(), Error> {
        let path = Path::from(path(tenant, sha256));
        if block_on(self.store.head(&path)).is_ok_and(|meta| meta.size == bytes.len() as u64) {
            return Ok(());
        }
        block_on(self.store.put(&path, bytes.into())).map(drop).map_err(|e| cannot("write the asset", &e))
    }

    fn get(&self, tenant: &Tenant, sha256: Hash) -> Result<Vec<u8>, Error> {
        let read = async { self.store.get(&Path::from(path(tenant, sha256))).await?.bytes().await };
        let bytes = match block_on(read) {
            Ok(bytes) => bytes,
            Err(object_store::Error::NotFound { .. }) => {
                return Err(Error::not_found(
                    "asset.absent",
                    format!("the bytes of asset {sha256} are not here"),
                ));
            }
            Err(e) => return Err(cannot("read the asset", &e)),
        };
        if Hash::of(&bytes) != sha256 {
            return Err(Error::corrupt(
                "asset.corrupt",
                format!("the bytes of asset {sha256} were changed; restore the file from a backup"),
            ));
        }
        Ok(bytes.into())
    }

    fn delete(&self, tenant: &Tenant, sha256: Hash) -> Result<(), Error> {
        match block_on(self.store.delete(&Path::from(path(tenant, sha256)))) {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(e) => Err(cannot("delete the asset", &e)),
        }
    }

    fn list(&self) -> Result<Vec<(Tenant, Hash, Timestamp)>, Error> {
        let found: Vec<_> =
            block_on(self.store.list(None).try_collect()).map_err(|e| cannot("list the assets", &e))?;
        // Whatever is not named as we name things is not ours, and not ours to touch.
        Ok(found
            .into_iter()
            .filter_map(|meta| {
                let parts: Vec<_> = meta.location.parts().collect();
                let [tenant, _, name] = parts.as_slice() else { return None };
                let written = Timestamp(meta.last_modified.timestamp_micros());
                Some((Tenant::new(tenant.as_ref()).ok()?, name.as_ref().parse().ok()?, written))
            })
            .collect())
    }
}

fn cannot(what: &str, error: &dyn std::fmt::Display) -> Error {
    Error::internal("asset.io", format!("cannot {what}: {error}"))
}
