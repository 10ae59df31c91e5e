//! Assets in a place that other processes use too, over a network or not: `place` opens one.

use super::{Assets, absent, cannot, damaged, owner, path, told};
use crate::runtime::Runtime;
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::id::TenantName;
use everturn_core::time::Timestamp;
use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Assets in an object store, as `tenant/ab/abcdef…`.
pub struct ObjectAssets {
    pub(super) store: Arc<dyn ObjectStore>,
    /// Serves the connections.
    pub(super) runtime: Runtime,
}

impl ObjectAssets {
    /// Drives a request about so many bytes. It has a time in which it must end.
    fn ask<T>(
        &self,
        what: &str,
        bytes: u64,
        request: impl Future<Output = Result<T, object_store::Error>>,
    ) -> Result<T, Failed> {
        let limit = ANSWER_TIMEOUT + Duration::from_secs(bytes / SLOWEST_BYTES_PER_S);
        match self.runtime.drive(async { tokio::time::timeout(limit, request).await }) {
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
        match cannot(what, error) {
            Error::Internal(_) => Error::busy(
                "assets.unreachable",
                format!("cannot {what} in the asset storage ({}); try again", told(error)),
            ),
            told => told,
        }
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

impl Assets for ObjectAssets {
    fn put(&self, tenant: &TenantName, sha256: Hash, bytes: Vec<u8>) -> Result<(), Error> {
        let path = Path::from(path(tenant, sha256));
        let size = bytes.len() as u64;
        let what = "write the asset";
        // Existing bytes are written again, which renews their time: another process may be about to collect them.
        let written = self.ask(what, size, self.store.put(&path, bytes.into()));
        written.map(drop).map_err(|e| self.cannot(what, e))
    }

    fn get(&self, tenant: &TenantName, sha256: Hash) -> Result<Vec<u8>, Error> {
        let what = "read the asset";
        let path = Path::from(path(tenant, sha256));
        let read = self.ask(what, 0, self.store.get(&path)).and_then(|found| {
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
        let what = "read the asset";
        let path = Path::from(path(tenant, sha256));
        let size = self.ask(what, 0, self.store.head(&path)).map_err(|e| self.cannot_read(sha256, e))?.size;
        let range = range.start..range.end.min(size);
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let length = range.end - range.start;
        let bytes = self.ask(what, length, self.store.get_range(&path, range));
        Ok(bytes.map_err(|e| self.cannot_read(sha256, e))?.into())
    }

    fn delete(&self, tenant: &TenantName, sha256: Hash) -> Result<(), Error> {
        let what = "delete the asset";
        match self.ask(what, 0, self.store.delete(&Path::from(path(tenant, sha256)))) {
            Ok(()) | Err(Failed::Told(object_store::Error::NotFound { .. })) => Ok(()),
            Err(e) => Err(self.cannot(what, e)),
        }
    }

    fn list(&self) -> Result<Vec<(TenantName, Hash, Timestamp)>, Error> {
        let what = "list the assets";
        let (mut objects, mut found) = (self.store.list(None), Vec::new());
        // Each page of a long list has its own time.
        while let Some(object) = self.ask(what, 0, objects.try_next()).map_err(|e| self.cannot(what, e))? {
            found.extend(listed(&object));
        }
        Ok(found)
    }
}

/// Reads the name of an object. Objects with other names are not ours and are left alone.
pub(super) fn listed(object: &ObjectMeta) -> Option<(TenantName, Hash, Timestamp)> {
    let parts: Vec<_> = object.location.parts().collect();
    let (tenant, sha256) = owner(parts.iter().map(AsRef::as_ref))?;
    Some((tenant, sha256, Timestamp(object.last_modified.timestamp_micros())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{self, ErrorKind};

    /// Regression: the code was `asset.io`, an internal error that did not mention the disk.
    #[test]
    fn a_full_disk_below_an_object_store_is_told_as_such() {
        let full = io::Error::from(ErrorKind::StorageFull);
        let inside = object_store::Error::Generic { store: "disk", source: Box::new(full) };
        let told = cannot("write the asset", &inside);
        assert_eq!((told.code(), matches!(told, Error::Busy(_))), ("store.full", true), "{told}");
    }
}
