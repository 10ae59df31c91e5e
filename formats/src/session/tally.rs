//! Counting the lines of a session as they are written.

use super::entry::SessionFields;
use super::read::Recorded;
use super::write::SessionSummary;
use super::{END, START};
use everturn_core::Error;
use everturn_core::json::Raw;
use everturn_core::time::Timestamp;
use std::collections::BTreeMap;
use std::io;

/// Takes the bytes of a session file and keeps their numbers.
#[derive(Default)]
pub struct Tally {
    /// A line that is not whole yet.
    line: Vec<u8>,
    started_at: Option<Timestamp>,
    entries: u64,
    by_type: BTreeMap<String, u64>,
}

impl Tally {
    /// Number of lines between the header and the end.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// The end of the session: its numbers, and the line that says them, with further fields.
    pub fn end(self, at: Timestamp, extra: &SessionFields) -> Result<(SessionSummary, SessionFields), Error> {
        let summary = SessionSummary::new(self.started_at, at, self.entries, self.by_type);
        let mut fields =
            SessionFields(vec![("type".into(), Raw::of(&END)?), ("timestamp".into(), Raw::of(&at)?)]);
        fields.0.extend(SessionFields::of(&summary)?.0);
        fields.0.extend(extra.0.iter().cloned());
        Ok((summary, fields))
    }

    fn count(&mut self) {
        let line = String::from_utf8_lossy(&std::mem::take(&mut self.line)).into_owned();
        let recorded = Recorded::new(0, line);
        match recorded.kind.as_deref() {
            Some(START) => {
                self.started_at = recorded.fields().get("started_at").and_then(Raw::read).or(recorded.at);
            }
            Some(END) => {}
            kind => {
                self.entries += 1;
                if let Some(kind) = kind {
                    *self.by_type.entry(kind.to_string()).or_default() += 1;
                }
            }
        }
    }
}

impl io::Write for Tally {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                self.count();
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
