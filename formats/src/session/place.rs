//! Path of a session file: `<root>/<subject>/sessions/YYYY-MM-DDTHH-MM-SS_session_NNN.jsonl`.

use everturn_core::Error;
use everturn_core::event::check_name;
use everturn_core::id::clip;
use everturn_core::time::Timestamp;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

const MARK: &str = "_session_";
const SUFFIX: &str = ".jsonl";

/// Creates the file of a new session, never opening an existing one. Its number is the next in its folder.
pub fn create(root: &Path, subject: &str, started_at: Timestamp) -> Result<(File, PathBuf), Error> {
    check_subject(subject)?;
    let second = second(started_at)?;
    let folder = root.join(subject).join("sessions");
    fs::create_dir_all(&folder).map_err(|e| cannot("make", &folder, &e))?;
    // New sessions in a folder wait for each other, so that no number is given twice, also in different seconds.
    // If the folder cannot be locked, the exclusive creation still keeps two files apart.
    let turn = File::open(&folder).ok();
    let _ = turn.as_ref().map(File::lock);
    let mut number = last_number(&folder)? + 1;
    loop {
        let path = folder.join(format!("{second}{MARK}{number:03}{SUFFIX}"));
        match OpenOptions::new().read(true).append(true).create_new(true).open(&path) {
            Ok(file) => {
                sync_folder(&folder)?;
                return Ok((file, path));
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => number += 1,
            Err(e) => return Err(cannot("make", &path, &e)),
        }
    }
}

/// Checks that the name is that of one folder below the root, on every system that may get a copy of it.
fn check_subject(subject: &str) -> Result<(), Error> {
    check_name("subject", subject)?;
    if subject == "." || subject == ".." || subject.contains(['/', '\\', ':']) {
        let text = format!(
            "subject {:?} is not the name of one folder; leave out / \\ : and do not call it . or ..",
            clip(subject)
        );
        return Err(Error::invalid("session.subject", text));
    }
    Ok(())
}

/// The second for file names, in UTC.
fn second(at: Timestamp) -> Result<String, Error> {
    at.check()?;
    let text = at.to_string();
    match text.split_once('.') {
        // Years before 0 and after 9999 have a sign and more digits.
        Some((second, _)) if second.len() == "2026-04-27T14:30:00".len() => Ok(second.replace(':', "-")),
        _ => Err(Error::invalid("session.started_at", format!("{text} does not fit into a file name"))),
    }
}

/// Highest session number in the folder.
fn last_number(folder: &Path) -> Result<u64, Error> {
    let mut last = 0;
    for entry in fs::read_dir(folder).map_err(|e| cannot("read", folder, &e))? {
        let name = entry.map_err(|e| cannot("read", folder, &e))?.file_name();
        let number = name
            .to_str()
            .and_then(|name| name.strip_suffix(SUFFIX)?.rsplit_once(MARK)?.1.parse::<u64>().ok())
            .filter(|number| *number < u64::MAX);
        last = last.max(number.unwrap_or(0));
    }
    Ok(last)
}

/// Makes the names in a folder durable, where the system can.
pub fn sync_folder(folder: &Path) -> Result<(), Error> {
    #[cfg(unix)]
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(|e| failed(&format!("syncing {}", folder.display()), &e))?;
    #[cfg(not(unix))]
    let _ = folder;
    Ok(())
}

/// Error for a file that cannot be opened or created.
pub fn cannot(what: &str, path: &Path, error: &io::Error) -> Error {
    failed(&format!("cannot {what} {}", path.display()), error)
}

/// Error for a failed step.
pub fn failed(doing: &str, error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::NotFound => Error::not_found("file.absent", format!("{doing}: it is not there")),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            Error::invalid("file.no_permission", format!("{doing}: {error}; make it writable"))
        }
        io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory => {
            Error::invalid("file.cannot_open", format!("{doing}: {error}; choose another place"))
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Error::busy("file.disk_full", format!("{doing}: {error}; make room and try again"))
        }
        _ => Error::internal("file.io", format!("{doing}: {error}; check the file and its disk")),
    }
}
