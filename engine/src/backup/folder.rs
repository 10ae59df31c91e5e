//! A folder of archives: full ones, each with its increments after it.

use super::{BackedUp, Progress, cannot_read, cannot_write, contents, folder_of, sync_folder};
use crate::everturn::Everturn;
use crate::private;
use everturn_core::Error;
use std::fs::File;
use std::path::{Path, PathBuf};

/// A new full archive is due when the increments are together larger than the full one, and than this.
const INCREMENTS_BYTES_MIN: u64 = 64 * 1024 * 1024;

/// How archives are named: `everturn-000001-full.jsonl.zst`, `everturn-000002-increment.jsonl.zst`, …
const PREFIX: &str = "everturn-";
const FULL: &str = "-full.jsonl.zst";
const INCREMENT: &str = "-increment.jsonl.zst";
const PARTIAL: &str = ".partial";

/// How a folder is kept.
#[derive(Clone, Copy, Debug, Default)]
pub struct FolderOptions {
    /// Begin anew with a full archive.
    pub full: bool,
    /// Afterwards keep only this many full archives with their increments, the newest ones. Nothing is removed unless the new
    /// archive is whole and the store still has everything that would go.
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
    progress: Progress<'_>,
) -> Result<BackedUp, Error> {
    if !folder.is_dir() {
        // Not those above it: a disk that is not mounted would be taken for a new place.
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
            format!("{}; --full begins anew and leaves what is there", detail.text),
        ),
        other => other,
    })?;
    let name = format!("{PREFIX}{number:06}{}", if full { FULL } else { INCREMENT });
    let mut done = store.write_archive(&folder.join(name), previous, progress)?;
    if let Some(keep) = options.keep {
        (done.removed, done.kept_because) = match done.problems.is_empty() {
            true => prune(store, folder, keep)?,
            false => (Vec::new(), Some("the new archive is not whole".to_string())),
        };
    }
    Ok(done)
}

/// The archives that make up the newest backup of a folder, the full one first. With `through`, a number or a name, as of
/// that archive. Anything but a folder is an archive itself.
pub fn archives_of(path: &Path, through: Option<&str>) -> Result<Vec<PathBuf>, Error> {
    if !path.is_dir() {
        return match through {
            None => Ok(vec![path.to_path_buf()]),
            Some(_) => Err(Error::invalid(
                "backup.through",
                "an archive is chosen from a folder; leave --through out",
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

/// Every backup of a folder, the oldest first: each full archive with the increments that follow it. Anything but a folder
/// is an archive itself.
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

/// The last full archive and what follows it.
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

/// In the order in which they were made.
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
            format!("{} has two archives with number {}; take one away", folder.display(), pair[0].number),
        )),
    }
}

/// One backup at a time writes into a folder.
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

/// Removes what a backup that was killed left behind. The lock is held, so nobody writes to it.
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

/// Removes all but the newest full archives and their increments, the newest file of each first: whatever is left when
/// this is interrupted is a backup. Removes nothing, and says why, while they may be all that is left of something. Gives
/// what was removed.
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

/// Why a store cannot do without these archives.
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
