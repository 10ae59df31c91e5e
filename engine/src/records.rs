//! Session files that record what was asked of a tenant: `<folder>/<tenant>/sessions/….jsonl`.
//!
//! They hold arguments and answers, so they hold words of turns. A record that names a conversation or a turn of which
//! something was erased, or that repeats its words, loses its content. The line is overwritten in place and keeps its length:
//! whoever is writing the file goes on at its end.

use everturn_core::Error;
use everturn_core::echo::Words;
use everturn_core::id::Tenant;
use serde_json::{Map, Value};
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::Path;

/// Fields of a record that stay.
const KEPT: [&str; 7] = ["type", "timestamp", "ts", "tool", "call_id", "method", "duration_ms"];

/// What records must not hold any more.
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

/// Takes words out of a tenant's session files.
pub fn erase(folder: &Path, tenant: &Tenant, erased: &Erased) -> Result<(), Error> {
    let sessions = folder.join(tenant.as_str()).join("sessions");
    for entry in fs::read_dir(&sessions).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_file() {
            erase_in(&path, erased).map_err(|error| {
                let text = format!(
                    "erased in the store, but {} could not be changed ({error}); delete the file, or erase again",
                    path.display()
                );
                Error::internal("erase.record", text)
            })?;
        }
    }
    Ok(())
}

fn erase_in(path: &Path, erased: &Erased) -> std::io::Result<()> {
    let mut calls: HashSet<String> = HashSet::new();
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

fn each_line(path: &Path, mut look: impl FnMut(u64, &str) -> std::io::Result<()>) -> std::io::Result<()> {
    let mut reader = BufReader::new(File::open(path)?);
    let (mut at, mut line) = (0, Vec::new());
    while reader.read_until(b'\n', &mut line)? > 0 {
        // A line that is just being written has no end yet; whoever writes it has read the log after the erasure.
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
