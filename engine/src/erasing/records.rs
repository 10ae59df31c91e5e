//! Session files that record requests to a tenant: `<folder>/<tenant>/sessions/….jsonl`.
//!
//! They hold arguments and results, and so text of turns. A record loses its content if it names a conversation or a
//! turn of which something was erased, or repeats erased text. The line is overwritten in place and keeps its length:
//! another process may be appending to the file.
//!
//! A result may be computed before an erasure and recorded after it, also by another process. So each erasure adds a
//! line to `<folder>/<tenant>/erasures` before it searches the files, and a recorder compares the length of that file
//! with the one from before the text was read.

use everturn_core::Error;
use everturn_core::echo::Words;
use everturn_core::id::TenantName;
use serde_json::{Map, Value};
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Fields of a record that stay.
const KEPT: [&str; 7] = ["type", "timestamp", "ts", "tool", "call_id", "method", "duration_ms"];

/// Content that must leave the records.
#[derive(Default)]
pub struct Erased {
    /// Ids of turns and conversations.
    pub ids: Vec<String>,
    pub words: Vec<Words>,
}

impl Erased {
    fn in_line(&self, line: &str) -> bool {
        self.ids.iter().any(|id| line.contains(id))
            || serde_json::from_str::<Value>(line)
                .is_ok_and(|v| self.words.iter().any(|words| words.stand_in(&v)))
    }
}

/// A tenant's session files below a folder.
#[derive(Clone, Debug)]
pub struct Records {
    /// `<folder>/<tenant>`.
    folder: PathBuf,
}

impl Records {
    pub(crate) fn of(folder: &Path, tenant: &TenantName) -> Records {
        Records { folder: folder.join(tenant.as_str()) }
    }

    fn erasures_file(&self) -> PathBuf {
        self.folder.join("erasures")
    }

    /// A mark to take before reading text that will be recorded.
    pub fn mark(&self) -> u64 {
        fs::metadata(self.erasures_file()).map_or(0, |file| file.len())
    }

    /// Runs `write`, which records something. Its argument is true if anything was erased since the mark was taken:
    /// then text from before must not be recorded. Every later erasure sees what it writes.
    pub fn write<T>(&self, mark: u64, write: impl FnOnce(bool) -> T) -> T {
        let file = File::options().create(true).append(true).open(self.erasures_file()).ok();
        // If files cannot be locked, the mark alone leaves a gap of microseconds.
        let _ = file.as_ref().map(File::lock_shared);
        let written = write(self.mark() != mark);
        let _ = file.as_ref().map(File::unlock);
        written
    }

    /// Removes the content of a call's records from a file.
    pub fn erase_call(&self, file: &Path, call: &str) -> io::Result<()> {
        erase_in(file, &Erased::default(), HashSet::from([call.to_string()]))
    }

    /// Removes text from the session files.
    pub(crate) fn erase(&self, erased: &Erased) -> Result<(), Error> {
        let cannot = |path: &Path, error: io::Error| {
            let text = format!(
                "{} could not be changed ({error}) and may still have the text; delete the file, or make it writable and erase again",
                path.display()
            );
            Error::internal("erase.record", text)
        };
        for entry in fs::read_dir(self.folder.join("sessions")).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_file() {
                erase_in(&path, erased, HashSet::new()).map_err(|error| cannot(&path, error))?;
            }
        }
        Ok(())
    }

    /// Notes a committed erasure, so that no result from before it is recorded from now on.
    pub(crate) fn note_erasure(&self) -> Result<(), Error> {
        // A recorder makes the folder before it reads any text.
        if !self.folder.is_dir() {
            return Ok(());
        }
        let path = self.erasures_file();
        let noted = File::options().create(true).append(true).open(&path).and_then(|mut file| {
            let _ = file.lock();
            let written = file.write_all(b"erased\n");
            let _ = file.unlock();
            written
        });
        noted.map_err(|error| {
            let text = format!("cannot write {}: {error}; make it writable and erase again", path.display());
            Error::internal("erase.record", text)
        })
    }
}

/// Blanks lines with erased text, and all lines of the same calls.
fn erase_in(path: &Path, erased: &Erased, mut calls: HashSet<String>) -> io::Result<()> {
    each_line(path, |_, line| {
        if erased.in_line(line) {
            calls.extend(call_of(line));
        }
        Ok(())
    })?;
    let mut file: Option<File> = None;
    each_line(path, |at, line| {
        if !erased.in_line(line) && !call_of(line).is_some_and(|call| calls.contains(&call)) {
            return Ok(());
        }
        let open = match &mut file {
            Some(file) => file,
            none => none.insert(File::options().write(true).open(path)?),
        };
        open.seek(SeekFrom::Start(at))?;
        open.write_all(&blank(line))
    })?;
    file.map_or(Ok(()), |file| file.sync_data())
}

fn each_line(path: &Path, mut look: impl FnMut(u64, &str) -> io::Result<()>) -> io::Result<()> {
    let mut reader = BufReader::new(File::open(path)?);
    let (mut at, mut line) = (0, Vec::new());
    while reader.read_until(b'\n', &mut line)? > 0 {
        // A line without an end is being written, by a recorder that has compared marks.
        if line.last() == Some(&b'\n') {
            look(at, &String::from_utf8_lossy(&line[..line.len() - 1]))?;
        }
        at += line.len() as u64;
        line.clear();
    }
    Ok(())
}

fn call_of(line: &str) -> Option<String> {
    let record: Map<String, Value> = serde_json::from_str(line).ok()?;
    record.get("call_id")?.as_str().map(str::to_string)
}

/// A record of the same length without content.
fn blank(line: &str) -> Vec<u8> {
    let record: Map<String, Value> = serde_json::from_str(line).unwrap_or_default();
    let mut kept: Map<String, Value> =
        record.into_iter().filter(|(name, _)| KEPT.contains(&name.as_str())).collect();
    kept.insert("erased".into(), true.into());
    let mut text = Value::Object(kept).to_string();
    if text.len() > line.len() {
        text = "{}".into();
    }
    let mut bytes = text.into_bytes();
    bytes.resize(line.len(), b' ');
    bytes
}
