//! Bytes of assets, in an object store: by default a folder beside the database. `place` opens one by URL.

mod place;

pub use place::Place;

use crate::runtime::Runtime;
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::error::code;
use everturn_core::id::TenantName;
use everturn_core::time::Timestamp;
use futures_executor::block_on;
use futures_util::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use std::io::ErrorKind;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Asset bytes by their hash, beside the log.
pub trait Assets: Send + Sync {
    /// Stores the bytes; durable when it returns. Bytes that are already stored are compared, and replaced if
    /// damaged. A full disk is `Busy`.
    fn put(&self, tenant: &TenantName, sha256: Hash, bytes: Vec<u8>) -> Result<(), Error>;
    /// The bytes, or `NotFound`. Bytes that do not match their hash are `Corrupt`.
    fn get(&self, tenant: &TenantName, sha256: Hash) -> Result<Vec<u8>, Error>;
    /// A range of the bytes, truncated at their end. Not compared with the hash, which would require reading
    /// all of them: the caller compares pieces.
    fn get_range(&self, tenant: &TenantName, sha256: Hash, range: Range<u64>) -> Result<Vec<u8>, Error>;
    /// Deletes the bytes; absent ones are not an error.
    fn delete(&self, tenant: &TenantName, sha256: Hash) -> Result<(), Error>;
    /// All stored bytes, with the time at which they were written.
    fn list(&self) -> Result<Vec<(TenantName, Hash, Timestamp)>, Error>;
    /// Makes sure that bytes may be deleted here: an error if another store needs them. To be called every half minute.
    fn claim(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// Assets in any object store, as `tenant/ab/abcdef…`.
pub struct ObjectAssets {
    store: OnceLock<Arc<dyn ObjectStore>>,
    /// Created with the first asset, so that a store without assets has no empty folder.
    folder: PathBuf,
    /// Serves the connections of a place that was opened by URL. Other processes use that place too.
    runtime: Option<Runtime>,
}

impl ObjectAssets {
    /// Stores assets in a folder. Every file is synced before [`Assets::put`] returns.
    pub fn folder(path: &std::path::Path) -> ObjectAssets {
        ObjectAssets { store: OnceLock::new(), folder: path.to_path_buf(), runtime: None }
    }

    /// Stores assets in memory.
    pub fn memory() -> ObjectAssets {
        ObjectAssets {
            store: OnceLock::from(Arc::new(InMemory::new()) as Arc<dyn ObjectStore>),
            folder: PathBuf::new(),
            runtime: None,
        }
    }

    pub(crate) fn drive<F: Future>(&self, future: F) -> F::Output {
        match &self.runtime {
            Some(runtime) => runtime.drive(future),
            None => block_on(future),
        }
    }

    /// Drives a request about so many bytes. Over a network it has a time in which it must end.
    fn ask<T>(
        &self,
        what: &str,
        bytes: u64,
        request: impl Future<Output = Result<T, object_store::Error>>,
    ) -> Result<T, Failed> {
        let Some(runtime) = &self.runtime else { return block_on(request).map_err(Failed::Told) };
        let limit = ANSWER_TIMEOUT + Duration::from_secs(bytes / SLOWEST_BYTES_PER_S);
        match runtime.drive(async { tokio::time::timeout(limit, request).await }) {
            Ok(answer) => answer.map_err(Failed::Told),
            Err(_) => Err(Failed::Silent(Error::busy(
                "assets.unreachable",
                format!(
                    "cannot {what}: the asset storage did not answer within {} s; try again",
                    limit.as_secs()
                ),
            ))),
        }
    }

    fn cannot_read(&self, sha256: Hash, failed: Failed) -> Error {
        match failed {
            Failed::Told(object_store::Error::NotFound { .. }) => absent(sha256),
            failed => self.cannot("read the asset", failed),
        }
    }

    fn cannot(&self, what: &str, failed: Failed) -> Error {
        let error = &match failed {
            Failed::Told(error) => error,
            Failed::Silent(error) => return error,
        };
        match (cannot(what, error), &self.runtime) {
            (Error::Internal(_), Some(_)) => Error::busy(
                "assets.unreachable",
                format!("cannot {what} in the asset storage ({}); try again", told(error)),
            ),
            (told, _) => told,
        }
    }

    /// The object store, if it has been created.
    fn opened(&self) -> Result<Option<&Arc<dyn ObjectStore>>, Error> {
        if self.store.get().is_none() && self.folder.is_dir() {
            let folder = LocalFileSystem::new_with_prefix(&self.folder)
                .map_err(|e| cannot("open the asset folder", &e))?;
            return Ok(Some(self.store.get_or_init(|| Arc::new(folder.with_fsync(true)))));
        }
        Ok(self.store.get())
    }

    /// The object store, created if needed.
    fn made(&self) -> Result<&Arc<dyn ObjectStore>, Error> {
        if self.store.get().is_none() {
            let folder = self.folder.display();
            std::fs::create_dir_all(&self.folder)
                .map_err(|e| cannot(&format!("make the folder {folder}"), &e))?;
        }
        self.opened()?.ok_or_else(|| Error::internal("asset.io", "the asset folder vanished; try again"))
    }
}

/// Failure of a request: an answer, or none in time.
enum Failed {
    Told(object_store::Error),
    Silent(Error),
}

/// Longest time until an answer of a place over a network, and the slowest line for which that is enough.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
const SLOWEST_BYTES_PER_S: u64 = 100_000;

/// Path of the bytes, relative to the folder.
pub fn path(tenant: &TenantName, sha256: Hash) -> String {
    let name = sha256.to_string();
    format!("{tenant}/{}/{name}", &name[..2])
}

impl Assets for ObjectAssets {
    fn put(&self, tenant: &TenantName, sha256: Hash, bytes: Vec<u8>) -> Result<(), Error> {
        let path = Path::from(path(tenant, sha256));
        let store = self.made()?;
        let size = bytes.len() as u64;
        // Existing bytes are read back: if they were damaged since, the good ones replace them. In a shared place they are
        // written again, which renews their time: another process may be about to collect them.
        if self.runtime.is_none()
            && block_on(store.head(&path)).is_ok_and(|meta| meta.size == size)
            && self.get(tenant, sha256).is_ok()
        {
            return Ok(());
        }
        let what = "write the asset";
        self.ask(what, size, store.put(&path, bytes.into())).map(drop).map_err(|e| self.cannot(what, e))
    }

    fn get(&self, tenant: &TenantName, sha256: Hash) -> Result<Vec<u8>, Error> {
        let store = self.opened()?.ok_or_else(|| absent(sha256))?;
        let what = "read the asset";
        let path = Path::from(path(tenant, sha256));
        let read = self.ask(what, 0, store.get(&path)).and_then(|found| {
            let size = found.meta.size;
            self.ask(what, size, found.bytes())
        });
        let bytes = read.map_err(|e| self.cannot_read(sha256, e))?;
        if Hash::of(&bytes) != sha256 {
            return Err(damaged(sha256));
        }
        Ok(bytes.into())
    }

    fn get_range(&self, tenant: &TenantName, sha256: Hash, range: Range<u64>) -> Result<Vec<u8>, Error> {
        let store = self.opened()?.ok_or_else(|| absent(sha256))?;
        let what = "read the asset";
        let path = Path::from(path(tenant, sha256));
        let size = self.ask(what, 0, store.head(&path)).map_err(|e| self.cannot_read(sha256, e))?.size;
        let range = range.start..range.end.min(size);
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let length = range.end - range.start;
        let bytes = self.ask(what, length, store.get_range(&path, range));
        Ok(bytes.map_err(|e| self.cannot_read(sha256, e))?.into())
    }

    fn delete(&self, tenant: &TenantName, sha256: Hash) -> Result<(), Error> {
        let Some(store) = self.opened()? else { return Ok(()) };
        let what = "delete the asset";
        match self.ask(what, 0, store.delete(&Path::from(path(tenant, sha256)))) {
            Ok(()) | Err(Failed::Told(object_store::Error::NotFound { .. })) => Ok(()),
            Err(e) => Err(self.cannot(what, e)),
        }
    }

    fn list(&self) -> Result<Vec<(TenantName, Hash, Timestamp)>, Error> {
        let Some(store) = self.opened()? else { return Ok(Vec::new()) };
        let what = "list the assets";
        let (mut objects, mut found) = (store.list(None), Vec::new());
        // Each page of a long list has its own time.
        while let Some(object) = self.ask(what, 0, objects.try_next()).map_err(|e| self.cannot(what, e))? {
            found.extend(listed(&object));
        }
        Ok(found)
    }
}

/// Reads the name of an object. Objects with other names are not ours and are left alone.
fn listed(object: &ObjectMeta) -> Option<(TenantName, Hash, Timestamp)> {
    let parts: Vec<_> = object.location.parts().collect();
    let [tenant, _, name] = parts.as_slice() else { return None };
    let written = Timestamp(object.last_modified.timestamp_micros());
    Some((TenantName::new(tenant.as_ref()).ok()?, name.as_ref().parse().ok()?, written))
}

/// The error for bytes that do not match their hash.
pub fn damaged(sha256: Hash) -> Error {
    let text = format!(
        "the bytes of asset {sha256} are not those that were written; add the same file again, or restore it from a backup"
    );
    Error::corrupt("asset.corrupt", text)
}

pub(crate) fn absent(sha256: Hash) -> Error {
    Error::not_found("asset.absent", format!("the bytes of asset {sha256} are not here"))
}

fn cannot(what: &str, error: &(dyn std::error::Error + 'static)) -> Error {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    let is_full = |cause: &(dyn std::error::Error + 'static)| {
        let kind = cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        matches!(kind, Some(ErrorKind::StorageFull | ErrorKind::QuotaExceeded))
    };
    if causes.any(is_full) {
        let text = format!(
            "cannot {what}: the disk that holds the assets is full; nothing of this request was written; free some space and try \
             again"
        );
        return Error::busy(code::STORE_FULL, text);
    }
    Error::internal("asset.io", format!("cannot {what}: {}", told(error)))
}

/// An error with those of its causes that its text leaves out.
fn told(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    for cause in std::iter::successors(error.source(), |error| error.source()).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the code was `asset.io`, an internal error that did not mention the disk.
    #[test]
    fn a_full_disk_is_told_as_such() {
        for kind in [ErrorKind::StorageFull, ErrorKind::QuotaExceeded] {
            let full = std::io::Error::from(kind);
            assert_eq!(cannot("make the folder", &full).code(), "store.full");
            let inside = object_store::Error::Generic { store: "disk", source: Box::new(full) };
            let told = cannot("write the asset", &inside);
            assert_eq!((told.code(), matches!(told, Error::Busy(_))), ("store.full", true), "{told}");
        }
        let other = std::io::Error::from(ErrorKind::PermissionDenied);
        assert_eq!(cannot("write the asset", &other).code(), "asset.io");
    }
}
