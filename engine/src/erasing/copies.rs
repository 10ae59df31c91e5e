//! Folders outside the store that repeat its words: mirrors, and records of sessions.
//!
//! A process that writes such a folder notes it beside the database, in `PATH-copies`, one JSON object a line. So an erasure
//! by another process, which was started without those settings, reaches the folder as well. Notes are never removed; a
//! folder that is gone is skipped.

use crate::backup::folder_of;
use crate::private;
use everturn_core::Error;
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// A folder with copies of words. Frozen: this is a line of the file.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Copy {
    Mirror(PathBuf),
    Records(PathBuf),
}

/// The folders that were noted for a store.
pub struct Copies {
    /// Where they are noted; a store in memory has no such file.
    file: Option<PathBuf>,
    /// Those that this process noted.
    noted: Mutex<BTreeSet<Copy>>,
}

impl Copies {
    pub fn of(database: Option<&Path>) -> Copies {
        let file = database.map(|path| {
            let mut name = everturn_store::sqlite::resolve(path).into_os_string();
            name.push("-copies");
            PathBuf::from(name)
        });
        Copies { file, noted: Mutex::default() }
    }

    pub fn note_mirror(&self, folder: &Path) -> Result<(), Error> {
        self.note(Copy::Mirror(absolute(folder)?))
    }

    pub fn note_records(&self, folder: &Path) -> Result<(), Error> {
        self.note(Copy::Records(absolute(folder)?))
    }

    pub fn mirrors(&self) -> Result<Vec<PathBuf>, Error> {
        let mirror = |copy| if let Copy::Mirror(folder) = copy { Some(folder) } else { None };
        Ok(self.all()?.into_iter().filter_map(mirror).collect())
    }

    pub fn records(&self) -> Result<Vec<PathBuf>, Error> {
        let records = |copy| if let Copy::Records(folder) = copy { Some(folder) } else { None };
        Ok(self.all()?.into_iter().filter_map(records).collect())
    }

    fn noted(&self) -> MutexGuard<'_, BTreeSet<Copy>> {
        self.noted.lock()
    }

    /// Durable before anything is written into the folder.
    fn note(&self, copy: Copy) -> Result<(), Error> {
        let mut noted = self.noted();
        if noted.contains(&copy) {
            return Ok(());
        }
        if let Some(path) =
            self.file.as_ref().filter(|_| !self.read().is_ok_and(|known| known.contains(&copy)))
        {
            let line = serde_json::to_string(&copy).map_err(|_| {
                Error::invalid("copies.name", "the folder's name is not UTF-8; choose another folder")
            })?;
            let is_new = !path.exists();
            let written = File::options().create(true).append(true).open(path).and_then(|mut file| {
                if is_new {
                    private::close(path, folder_of(path));
                }
                file.write_all(format!("{line}\n").as_bytes())?;
                file.sync_all()
            });
            written.map_err(|error| failed("write", path, &error))?;
        }
        noted.insert(copy);
        Ok(())
    }

    /// Read each time: another process may have noted one since.
    fn all(&self) -> Result<BTreeSet<Copy>, Error> {
        let mut all = self.read()?;
        all.extend(self.noted().iter().cloned());
        Ok(all)
    }

    fn read(&self) -> Result<BTreeSet<Copy>, Error> {
        let Some(path) = &self.file else { return Ok(BTreeSet::new()) };
        match std::fs::read_to_string(path) {
            // A line that was cut by a crash names a folder that nothing was written into.
            Ok(text) => Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(BTreeSet::new()),
            Err(error) => Err(failed("read", path, &error)),
        }
    }
}

fn absolute(folder: &Path) -> Result<PathBuf, Error> {
    let absolute = folder.canonicalize().or_else(|_| std::path::absolute(folder));
    absolute.map_err(|error| {
        Error::invalid("copies.name", format!("{}: {error}; name another folder", folder.display()))
    })
}

fn failed(what: &str, path: &Path, error: &std::io::Error) -> Error {
    let text = format!(
        "cannot {what} {}: {error}; an erasure has to find every folder that repeats words, so make it writable",
        path.display()
    );
    Error::invalid("copies.file", text)
}
