//! Bytes of assets: in a folder beside the database, in memory, or in a place that several servers share.
//!
//! `place` opens one by URL, and needs the feature `objects`.

mod folder;
mod memory;
#[cfg(feature = "objects")]
mod objects;
#[cfg(feature = "objects")]
mod place;
#[cfg(all(feature = "postgres", not(feature = "objects")))]
#[path = "assets/no_place.rs"]
mod place;

pub use folder::FolderAssets;
pub use memory::MemoryAssets;
#[cfg(feature = "objects")]
pub use objects::ObjectAssets;
#[cfg(feature = "postgres")]
pub use place::Place;

use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::error::code;
use everturn_core::id::TenantName;
use everturn_core::time::Timestamp;
use std::io::ErrorKind;
use std::ops::Range;

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

/// Path of the bytes, relative to the folder.
pub fn path(tenant: &TenantName, sha256: Hash) -> String {
    let name = sha256.to_string();
    format!("{tenant}/{}/{name}", &name[..2])
}

/// Reads the path of an asset. Files and objects with other names are not ours and are left alone.
fn owner<'a>(mut parts: impl Iterator<Item = &'a str>) -> Option<(TenantName, Hash)> {
    let (tenant, _, name) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    Some((TenantName::new(tenant).ok()?, name.parse().ok()?))
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
            let told = cannot("write the asset", &full);
            assert_eq!((told.code(), matches!(told, Error::Busy(_))), ("store.full", true), "{told}");
        }
        let other = std::io::Error::from(ErrorKind::PermissionDenied);
        assert_eq!(cannot("write the asset", &other).code(), "asset.io");
    }
}
