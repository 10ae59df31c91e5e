//! A folder of archives: full ones, each with its increments after it.

use super::{BackedUp, BackupProgress, cannot_read, cannot_write, contents, folder_of, sync_folder};
use crate::everturn::Everturn;
use crate::private;
use everturn_core::Error;
use std::fs::File;
use std::path::{Path, PathBuf};

/// A new full archive is due when the increments together exceed both the full one and this size.
const INCREMENTS_BYTES_MIN: u64 = 64 * 1024 * 1024;

/// Archive names: `everturn-000001-full.jsonl.zst`, `everturn-000002-increment.jsonl.zst`, …
const PREFIX: &str = "everturn-";
const FULL: &str = "-full.jsonl.zst";
const INCREMENT: &str = "-increment.jsonl.zst";
const PARTIAL: &str = ".partial";

/// Options of a backup folder.
#[derive(Clone, Copy, Debug, Default)]
pub struct FolderOptions {
    /// Start a new full archive.
    pub full: bool,
    /// Number of full archives to keep, with their increments; the newest stay. Nothing is removed unless the new
    /// archive is complete and the store still has everything in those that would go.
    pub keep: Option<usize>,
}

/// An archive in a folder.
struct Archive {
    number: u64,
    full: bool,
    path: PathBuf,
}

pub fn add(
    store: &Everturn,
    folder: &Path,
    options: FolderOptions,
    progress: BackupProgress<'_>,
) -> Result<BackedUp, Error> {
    if !folder.is_dir() {
        // Only the last component: with its parents, an unmounted disk would be taken for a new folder.
        std::fs::create_dir(folder).map_err(|error| cannot_write(folder, &error))?;
        private::close(folder, folder_of(folder));
    }
    let _lock = lock(folder)?;
    let archives = list(folder)?;
    remove_partial(folder)?;
    let number = archives.last().map_or(1, |last| last.number + 1);
    let chain = chain(&archives);
    let full = options.full || chain.is_empty() || is_outgrown(chain)?;
    let chain = if full { Vec::new() } else { paths(chain) };
    let previous = contents(&chain).map_err(|error| match error {
        Error::Corrupt(detail) => Error::corrupt(
            detail.code,
            format!("{}; --full starts a new full archive and keeps the existing ones", detail.text),
        ),
        other => other,
    })?;
    let name = format!("{PREFIX}{number:06}{}", if full { FULL } else { INCREMENT });
    let mut done = store.write_archive(&folder.join(name), previous, progress)?;
    if let Some(keep) = options.keep {
        (done.removed, done.kept_because) = match done.problems.is_empty() {
            true => prune(store, folder, keep)?,
            false => (Vec::new(), Some("the new archive is incomplete".to_string())),
        };
    }
    Ok(done)
}

/// Archives of the newest backup in a folder, the full one first; with `through`, a number or a name, up to that
/// archive. A path that is not a folder is an archive itself.
pub fn archives_of(path: &Path, through: Option<&str>) -> Result<Vec<PathBuf>, Error> {
    if !path.is_dir() {
        return match through {
            None => Ok(vec![path.to_path_buf()]),
            Some(_) => Err(Error::invalid(
                "backup.through",
                "--through chooses an archive from a folder, and this is none; leave it out",
            )),
        };
    }
    let mut archives = list(path)?;
    let folder = path.display();
    if archives.is_empty() {
        let text = format!("there is no backup in {folder}; `everturn backup {folder}` makes one");
        return Err(Error::not_found("backup.absent", text));
    }
    if let Some(through) = through {
        let wanted = |archive: &Archive| {
            let name = archive.path.file_name().is_some_and(|name| name == through);
            name || through.parse() == Ok(archive.number)
        };
        let place = archives.iter().position(wanted).ok_or_else(|| {
            let names: Vec<String> = archives.iter().map(|archive| archive.number.to_string()).collect();
            let text =
                format!("there is no archive {through:?} in {folder}; it has number {}", names.join(", "));
            Error::not_found("backup.absent", text)
        })?;
        archives.truncate(place + 1);
    }
    let chain = chain(&archives);
    if chain.is_empty() {
        let text = format!("{folder} has increments without the full archive that they follow; put it back");
        return Err(Error::invalid("backup.incomplete", text));
    }
    Ok(paths(chain))
}

/// Every backup in a folder, the oldest first: each full archive with its increments. A path that is not a folder is
/// an archive itself.
pub fn all_archives_of(path: &Path) -> Result<Vec<Vec<PathBuf>>, Error> {
    let newest = archives_of(path, None)?;
    if !path.is_dir() {
        return Ok(vec![newest]);
    }
    let archives = list(path)?;
    let begin = archives.iter().position(|archive| archive.full).unwrap_or_default();
    Ok(archives[begin..].chunk_by(|_, next| !next.full).map(paths).collect())
}

fn paths(archives: &[Archive]) -> Vec<PathBuf> {
    archives.iter().map(|archive| archive.path.clone()).collect()
}

/// The last full archive and its increments.
fn chain(archives: &[Archive]) -> &[Archive] {
    archives.iter().rposition(|archive| archive.full).map_or(&[], |full| &archives[full..])
}

fn is_outgrown(chain: &[Archive]) -> Result<bool, Error> {
    let size = |archive: &Archive| {
        std::fs::metadata(&archive.path)
            .map(|file| file.len())
            .map_err(|error| cannot_read(&archive.path, &error))
    };
    let Some((full, increments)) = chain.split_first() else { return Ok(true) };
    let increments = increments.iter().map(size).sum::<Result<u64, Error>>()?;
    Ok(increments > size(full)?.max(INCREMENTS_BYTES_MIN))
}

/// Archives of a folder, in the order in which they were made.
fn list(folder: &Path) -> Result<Vec<Archive>, Error> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|error| cannot_read(folder, &error))? {
        let path = entry.map_err(|error| cannot_read(folder, &error))?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let Some(rest) = name.strip_prefix(PREFIX) else { continue };
        let numbered = rest
            .strip_suffix(FULL)
            .map(|number| (number, true))
            .or_else(|| rest.strip_suffix(INCREMENT).map(|number| (number, false)));
        if let Some((Ok(number), full)) = numbered.map(|(number, full)| (number.parse(), full)) {
            found.push(Archive { number, full, path });
        }
    }
    found.sort_by_key(|archive| archive.number);
    match found.windows(2).find(|pair| pair[0].number == pair[1].number) {
        None => Ok(found),
        Some(pair) => Err(Error::invalid(
            "backup.order",
            format!("{} has two archives with number {}; remove one", folder.display(), pair[0].number),
        )),
    }
}

/// Locks a folder: one backup at a time writes into it.
fn lock(folder: &Path) -> Result<File, Error> {
    let path = folder.join(".everturn-backup.lock");
    let is_new = !path.exists();
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(|error| cannot_write(&path, &error))?;
    if is_new {
        private::close(&path, folder);
    }
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(Error::busy(
            "backup.busy",
            format!("another backup writes into {}; wait until it ends", folder.display()),
        )),
        Err(std::fs::TryLockError::Error(error)) => Err(cannot_write(&path, &error)),
    }
}

/// Removes partial files of a killed backup. The lock is held, so nobody is writing them.
fn remove_partial(folder: &Path) -> Result<(), Error> {
    for entry in std::fs::read_dir(folder).map_err(|error| cannot_read(folder, &error))? {
        let path = entry.map_err(|error| cannot_read(folder, &error))?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let ours = [FULL, INCREMENT].iter().any(|kind| name.ends_with(&format!("{kind}{PARTIAL}")));
        if name.starts_with(PREFIX) && ours {
            std::fs::remove_file(&path).map_err(|error| cannot_write(&path, &error))?;
        }
    }
    Ok(())
}

/// Removes all but the newest `keep` full archives and their increments, the newest file of each first, so that an
/// interruption leaves a valid backup. Removes nothing while an archive may be the only copy of something, and
/// returns the reason. Also returns the removed files.
fn prune(store: &Everturn, folder: &Path, keep: usize) -> Result<(Vec<PathBuf>, Option<String>), Error> {
    let archives = list(folder)?;
    let fulls: Vec<usize> =
        archives.iter().enumerate().filter(|(_, archive)| archive.full).map(|(place, _)| place).collect();
    let Some(first_kept) = fulls.len().checked_sub(keep.max(1)).map(|place| fulls[place]) else {
        return Ok((Vec::new(), None));
    };
    let old = &archives[..first_kept];
    if let Some(needed) = needed_still(store, &paths(chain(old)))? {
        return Ok((Vec::new(), Some(needed)));
    }
    for archive in old.iter().rev() {
        std::fs::remove_file(&archive.path).map_err(|error| cannot_write(&archive.path, &error))?;
    }
    sync_folder(folder)?;
    Ok((paths(old), None))
}

/// Reason why a store cannot do without these archives.
fn needed_still(store: &Everturn, archives: &[PathBuf]) -> Result<Option<String>, Error> {
    let Some(newest) = archives.last() else { return Ok(None) };
    let newest = newest.display();
    match store.compare(archives, &mut |_, _| {}) {
        Err(Error::Corrupt(detail)) => Ok(Some(format!("{newest} cannot be read ({})", detail.text))),
        compared => Ok(compared?.differences.first().map(|lost| {
            let conversation = lost.conversation.map(|id| format!(" {id}")).unwrap_or_default();
            format!(
                "the store lacks what {newest} has ({}{conversation}: {}); `everturn verify --against` says more",
                lost.tenant, lost.problem
            )
        })),
    }
}
