//! Backup of a whole store, restore, and comparison of a store with a backup.
//!
//! `take` writes an archive, `folder` manages archives in a folder, `restore` makes a store from archives, `compare`
//! compares a store with them. The format is in `formats::archive`; nothing here depends on a backend.

mod compare;
mod folder;
mod restore;
mod take;

pub use compare::{Comparison, Difference};
pub use everturn_core::id::Key;
pub use everturn_formats::archive::{
    ArchiveContents, ArchiveCounts, ArchiveHeader, ArchivedConversation, ParentNo, Ranges,
};
pub use folder::{FolderOptions, all_archives_of, archives_of};
pub use restore::{Restored, UndoneRemovals, check, left_out};

use crate::everturn::Everturn;
use crate::private;
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_formats::archive::Reader;
use serde::Serialize;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Result of a backup.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct BackedUp {
    /// Path of the archive; none for a stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// The archive's id: the hash of its bytes.
    pub id: Hash,
    /// The archive before it; none if this one is full.
    pub follows: Option<Hash>,
    /// Position in its backup: 1 for the full archive, one more for each increment. File numbers in a folder keep
    /// counting when a new full archive begins.
    pub number: u64,
    /// Size of the archive.
    pub bytes: u64,
    /// Contents of the archive, counted.
    #[serde(flatten)]
    pub counts: ArchiveCounts,
    /// Damaged parts of the store that could not be backed up.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// Older archives that were removed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<PathBuf>,
    /// Reason why older archives were kept although they were due for removal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept_because: Option<String>,
}

/// Callback with the number of events done and the total.
pub type BackupProgress<'a> = &'a mut dyn FnMut(u64, u64);

impl Everturn {
    /// Writes all tenants into one stream: a full archive, or an increment to the archives in `previous`. Does not block
    /// a writing process.
    pub fn backup(
        &self,
        out: impl Write,
        previous: &ArchiveContents,
        progress: BackupProgress<'_>,
    ) -> Result<BackedUp, Error> {
        take::take(&self.inner.shared, out, previous, progress).map(|(_, done)| done)
    }

    /// Writes an archive into a file: full, or an increment to the archives `after`, listed from the full one on. The
    /// file appears under its name only once it is complete, synced and read back. Only another archive is
    /// overwritten.
    pub fn backup_to_file(
        &self,
        path: &Path,
        after: &[PathBuf],
        progress: BackupProgress<'_>,
    ) -> Result<BackedUp, Error> {
        let previous = contents(after)?;
        may_replace(path, after)?;
        self.write_archive(path, previous, progress)
    }

    /// Adds an archive to a folder: an increment if there is a backup of this store in it, else a full one.
    pub fn backup_to_folder(
        &self,
        folder: &Path,
        options: FolderOptions,
        progress: BackupProgress<'_>,
    ) -> Result<BackedUp, Error> {
        folder::add(self, folder, options, progress)
    }

    /// Compares this store with archives, listed from the full one on: it must still have everything in them.
    pub fn compare(&self, archives: &[PathBuf], progress: BackupProgress<'_>) -> Result<Comparison, Error> {
        compare::compare(&self.inner.shared, archives, progress)
    }

    /// Makes a store from archives, listed from the full one on. The store must not exist yet, and appears only once
    /// it is complete.
    pub fn restore(url: &str, archives: &[PathBuf], progress: BackupProgress<'_>) -> Result<Restored, Error> {
        restore::restore(url, archives, progress)
    }

    fn write_archive(
        &self,
        path: &Path,
        previous: ArchiveContents,
        progress: BackupProgress<'_>,
    ) -> Result<BackedUp, Error> {
        let partial = beside(path, ".partial");
        let written = self.write_partial(&partial, previous, progress).and_then(|done| {
            std::fs::rename(&partial, path).map_err(|error| cannot_write(path, &error))?;
            sync_folder(folder_of(path))?;
            Ok(BackedUp { path: Some(path.to_path_buf()), ..done })
        });
        if written.is_err() {
            // A leftover is removed by the next backup into the same folder.
            let _ = std::fs::remove_file(&partial);
        }
        // Errors name the final file, not the partial one.
        let (partial, name) = (partial.display().to_string(), path.display().to_string());
        written.map_err(|error| error.reworded(|text| text.replace(&partial, &name)))
    }

    fn write_partial(
        &self,
        partial: &Path,
        mut previous: ArchiveContents,
        progress: BackupProgress<'_>,
    ) -> Result<BackedUp, Error> {
        let file = File::create(partial).map_err(|error| cannot_write(partial, &error))?;
        private::close(partial, folder_of(partial));
        let (out, done) = take::take(&self.inner.shared, BufWriter::new(file), &previous, progress)
            .map_err(|error| error.at(partial.display()))?;
        let file = out.into_inner().map_err(|error| cannot_write(partial, error.error()))?;
        file.sync_all().map_err(|error| cannot_write(partial, &error))?;
        let again = File::open(partial).map_err(|error| cannot_read(partial, &error))?;
        previous.add(again).map_err(|error| error.at(partial.display()))?;
        Ok(done)
    }
}

/// Reads archives to the end and returns their combined contents.
pub fn contents(archives: &[PathBuf]) -> Result<ArchiveContents, Error> {
    let mut contents = ArchiveContents::default();
    for path in archives {
        contents.add(open(path)?).map_err(|error| error.at(path.display()))?;
    }
    Ok(contents)
}

fn open(path: &Path) -> Result<File, Error> {
    File::open(path).map_err(|error| cannot_read(path, &error))
}

fn cannot_read(path: &Path, error: &std::io::Error) -> Error {
    Error::invalid("backup.cannot_read", format!("cannot read {}: {error}; check the path", path.display()))
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Error {
    let file = path.display();
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            Error::busy("file.disk_full", format!("cannot write {file}: {error}; make room and try again"))
        }
        _ => Error::invalid("backup.cannot_write", format!("cannot write {file}: {error}; check the folder")),
    }
}

pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes file names in a folder durable.
fn sync_folder(folder: &Path) -> Result<(), Error> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|error| cannot_write(folder, &error))
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Refuses to overwrite anything that is not an archive, such as the store itself, and the archives before the new
/// one.
fn may_replace(path: &Path, after: &[PathBuf]) -> Result<(), Error> {
    let Ok(real) = path.canonicalize() else { return Ok(()) };
    let name = path.display();
    if after.iter().any(|archive| archive.canonicalize().is_ok_and(|archive| archive == real)) {
        let text = format!("{name} is one of the archives before the new one; name another file");
        return Err(Error::conflict("backup.target", text));
    }
    if !real.is_file() {
        return Ok(());
    }
    let what = match Reader::new(open(&real)?) {
        Ok(_) => return Ok(()),
        Err(Error::Corrupt(_)) => "a damaged backup",
        Err(_) => "not a backup",
    };
    let text = format!("{name} exists and is {what}; name another file, or remove it first");
    Err(Error::conflict("backup.target", text))
}
