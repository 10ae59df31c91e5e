//! The lock file of a store, which names the process that writes to it.

use super::door::{beside, close_like, open_beside, read_only};
use everturn_core::Error;
use everturn_core::error::code;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// The right to write to a store: one process at a time. Released when dropped, also by a crash.
#[derive(Debug)]
pub struct WriteLock {
    file: File,
}

impl Drop for WriteLock {
    fn drop(&mut self) {
        // Closing the file is not enough: a child that was forked and has not yet called exec has it open too,
        // and would keep the lock for that moment. If this fails, closing still releases it.
        let _ = self.file.unlock();
    }
}

impl WriteLock {
    /// Acquires the right, waiting at most `patience` for another process to end.
    pub fn take(path: &Path, patience: Duration) -> Result<WriteLock, Error> {
        let lock = beside(path, ".lock");
        let cannot = |e: &std::io::Error| match e.kind() {
            std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => read_only(path),
            _ if lock.is_symlink() => Error::invalid(
                "store.cannot_open",
                format!("{} is a symbolic link, and is not written through; remove it", lock.display()),
            ),
            _ => Error::invalid(
                "store.cannot_open",
                format!("cannot open {}: {e}; check that its folder exists", lock.display()),
            ),
        };
        let mut file = open_beside(&lock).map_err(|e| cannot(&e))?;
        close_like(&file, path);
        let deadline = Instant::now() + patience;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(std::fs::TryLockError::WouldBlock) if Instant::now() < deadline => {
                    // The file lock has no timed wait, and the other process does not announce its end.
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(std::fs::TryLockError::WouldBlock) => {
                    let mut owner = String::new();
                    let _ = file.read_to_string(&mut owner);
                    let owner = if owner.is_empty() {
                        "another process".to_string()
                    } else {
                        owner.trim().to_string()
                    };
                    return Err(Error::busy(
                        code::STORE_OWNED,
                        format!(
                            "{} is open for writing by {owner}; wait until it ends, or, if it is a server, send it the request, on the command line with --url (reading is allowed)",
                            path.display()
                        ),
                    ));
                }
                Err(std::fs::TryLockError::Error(e)) => return Err(cannot(&e)),
            }
        }
        let program = std::env::args().next().unwrap_or_default();
        let program = Path::new(&program)
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        let owner = format!("process {} ({program})\n", std::process::id());
        // The note is for people; the lock holds without it.
        let _ = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(owner.as_bytes()));
        Ok(WriteLock { file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a program that starts children and reopens its store was sometimes told that it owns the
    /// store itself: a child between fork and exec shares every open file, and with it the lock. A second
    /// handle to the same file has the same effect.
    #[test]
    fn the_right_to_write_is_let_go_at_once_also_while_a_child_has_the_file_open() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("store.db");
        let lock = WriteLock::take(&path, Duration::ZERO).expect("nobody has it");
        let inherited = lock.file.try_clone().expect("a second handle");
        assert_eq!(
            WriteLock::take(&path, Duration::ZERO).expect_err("it is taken").code(),
            code::STORE_OWNED
        );
        drop(lock);
        WriteLock::take(&path, Duration::ZERO).expect("it was let go");
        drop(inherited);
    }
}
