//! Assets as files in a folder.

use super::{Assets, absent, cannot, damaged, owner, path};
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::id::TenantName;
use everturn_core::time::Timestamp;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::UNIX_EPOCH;

/// Assets in a folder, as `tenant/ab/abcdef…`.
pub struct FolderAssets {
    /// Created with the first asset, so that a store without assets has no empty folder.
    folder: PathBuf,
}

impl FolderAssets {
    /// Stores assets in a folder. Every file is synced before [`Assets::put`] returns.
    pub fn new(folder: &Path) -> FolderAssets {
        FolderAssets { folder: folder.to_path_buf() }
    }

    fn file(&self, tenant: &TenantName, sha256: Hash) -> PathBuf {
        self.folder.join(path(tenant, sha256))
    }

    /// Opens a file of an asset, with its size.
    fn open(&self, tenant: &TenantName, sha256: Hash) -> Result<(File, u64), Error> {
        let opened = File::open(self.file(tenant, sha256)).and_then(|file| {
            let size = file.metadata()?.len();
            Ok((file, size))
        });
        opened.map_err(|error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => absent(sha256),
            _ => cannot_read(&error),
        })
    }
}

impl Assets for FolderAssets {
    fn put(&self, tenant: &TenantName, sha256: Hash, bytes: Vec<u8>) -> Result<(), Error> {
        // Existing bytes are read back: if they were damaged since, the good ones replace them.
        let is_as_long = self.open(tenant, sha256).is_ok_and(|(_, size)| size == bytes.len() as u64);
        if is_as_long && self.get(tenant, sha256).is_ok() {
            return Ok(());
        }
        let file = self.file(tenant, sha256);
        replace(&file, &bytes).map_err(|error| cannot("write the asset", &error))
    }

    fn get(&self, tenant: &TenantName, sha256: Hash) -> Result<Vec<u8>, Error> {
        let (mut file, size) = self.open(tenant, sha256)?;
        let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
        file.read_to_end(&mut bytes).map_err(|error| cannot_read(&error))?;
        if Hash::of(&bytes) != sha256 {
            return Err(damaged(sha256));
        }
        Ok(bytes)
    }

    fn get_range(&self, tenant: &TenantName, sha256: Hash, range: Range<u64>) -> Result<Vec<u8>, Error> {
        let (mut file, size) = self.open(tenant, sha256)?;
        let range = range.start..range.end.min(size);
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(range.start))
            .and_then(|_| file.take(range.end - range.start).read_to_end(&mut bytes))
            .map_err(|error| cannot_read(&error))?;
        Ok(bytes)
    }

    fn delete(&self, tenant: &TenantName, sha256: Hash) -> Result<(), Error> {
        match fs::remove_file(self.file(tenant, sha256)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(cannot("delete the asset", &error)),
            _ => Ok(()),
        }
    }

    fn list(&self) -> Result<Vec<(TenantName, Hash, Timestamp)>, Error> {
        let mut found = Vec::new();
        list(&self.folder, &mut Vec::new(), &mut found).map_err(|error| cannot("list the assets", &error))?;
        Ok(found)
    }
}

fn cannot_read(error: &io::Error) -> Error {
    cannot("read the asset", error)
}

/// Writes a file under another name and renames it: a reader, or a crash, sees the old bytes or the new ones.
fn replace(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    create_folder(folder)?;
    let (mut staged, name) = stage(file)?;
    let written = staged
        .write_all(bytes)
        .and_then(|()| staged.sync_all())
        .and_then(|()| fs::rename(&name, file))
        .and_then(|()| sync_folder(folder));
    if written.is_err() {
        // What is wrong is said by the first error.
        let _ = fs::remove_file(&name);
    }
    written
}

/// Creates a file beside another, under a name that no other thread or process uses.
fn stage(file: &Path) -> io::Result<(File, PathBuf)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = file.with_extension(format!("{}-{nth}.new", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).open(&name) {
            // Left by a process that crashed and had the same number.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            created => return Ok((created?, name)),
        }
    }
}

/// Creates a folder and those above it. An entry survives a power loss once the folder that it is in is synced.
fn create_folder(folder: &Path) -> io::Result<()> {
    match fs::create_dir(folder) {
        Ok(()) => sync_folder(folder.parent().unwrap_or(Path::new("."))),
        Err(_) if folder.is_dir() => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => match folder.parent() {
            Some(above) if above != Path::new("") => {
                create_folder(above)?;
                create_folder(folder)
            }
            _ => Err(error),
        },
        Err(error) => Err(error),
    }
}

#[cfg(unix)]
fn sync_folder(folder: &Path) -> io::Result<()> {
    let folder = if folder == Path::new("") { Path::new(".") } else { folder };
    File::open(folder)?.sync_all()
}

/// On other systems a folder cannot be opened as a file.
#[cfg(not(unix))]
fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}

/// Lists the files three levels below a folder. What is deleted meanwhile is left out.
fn list(
    folder: &Path,
    above: &mut Vec<String>,
    found: &mut Vec<(TenantName, Hash, Timestamp)>,
) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        above.push(name);
        if above.len() < 3 {
            list(&entry.path(), above, found)?;
        } else if let Some((tenant, sha256)) = owner(above.iter().map(String::as_str)) {
            match fs::metadata(entry.path()) {
                Ok(file) if file.is_file() => {
                    let written = file.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
                    found.push((tenant, sha256, Timestamp(written.as_micros() as i64)));
                }
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        above.pop();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Neither a relative folder, nor one whose parents are absent, is an obstacle.
    #[test]
    fn the_folder_and_those_above_it_are_created() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("a/b/c");
        create_folder(&deep).and_then(|()| create_folder(&deep)).unwrap();
        assert!(deep.is_dir());
        let file = folder.path().join("a/file");
        fs::write(&file, "").unwrap();
        assert!(create_folder(&file.join("b")).is_err());
    }

    #[test]
    fn files_that_are_no_assets_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let assets = FolderAssets::new(folder.path());
        let (tenant, sha256) = (TenantName::new("acme").unwrap(), Hash::of(b"x"));
        assets.put(&tenant, sha256, b"x".to_vec()).unwrap();
        let (mut staged, name) = stage(&assets.file(&tenant, sha256)).unwrap();
        staged.write_all(b"cut off").unwrap();
        fs::write(folder.path().join("note"), "").unwrap();
        fs::create_dir_all(folder.path().join("acme/no/folder")).unwrap();
        assert_eq!(assets.list().unwrap().len(), 1);
        assert!(name.exists());
    }
}
