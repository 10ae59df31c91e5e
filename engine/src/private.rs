//! File modes of stores and backups: only their owner has access. In a folder that is closed to others and open to
//! its group, such as one of mode 0750 or 2770, the group has the same access as to the folder. Existing files keep
//! their mode.

use std::path::Path;

/// Closes a new file or folder to others; the containing folder decides on the group.
#[cfg(unix)]
pub fn close(path: &Path, folder: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let closed = (|| {
        let group = match std::fs::metadata(folder)?.permissions().mode() {
            mode if mode & 0o007 == 0 => mode & 0o070,
            _ => 0,
        };
        let made = std::fs::metadata(path)?;
        let mode = match made.is_dir() {
            true => 0o700 | group | made.permissions().mode() & 0o2000,
            false => 0o600 | group & 0o060,
        };
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode))
    })();
    if let Err(error) = closed {
        // Some file systems have no modes.
        tracing::warn!(%error, path = %path.display(), "others may be able to read this");
    }
}

#[cfg(not(unix))]
pub fn close(_: &Path, _: &Path) {}
