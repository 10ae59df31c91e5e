//! Validation of a session file.

use super::PROBLEMS_LISTED_MAX;
use super::entry::{self, SessionFields};
use super::read::{Item, Reader};
use crate::jsonl::{CorruptLine, End, Header, TruncatedTail};
use everturn_core::Error;
use everturn_core::id::{ConversationId, clip};
use everturn_core::json::Raw;
use everturn_core::time::Timestamp;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::BufRead;

/// Result of [`check`].
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Report {
    /// Session id given by its author.
    pub session_id: Option<String>,
    /// Conversation, if it is the file of one. Its chain is not checked here; `jsonl::verify` does that.
    pub conversation: Option<ConversationId>,
    /// Number of readable lines between the header and the end.
    pub entries: u64,
    /// Number of entries of each type; types are open.
    pub by_type: BTreeMap<String, u64>,
    /// Whether `session_end` is missing: the session is still running, or was never ended.
    pub unclosed: bool,
    /// Number of unreadable lines.
    pub corrupt: u64,
    /// The first [`PROBLEMS_LISTED_MAX`] of them.
    pub corrupt_lines: Vec<CorruptLine>,
    /// A last line that was not written to its end.
    pub truncated_tail: Option<TruncatedTail>,
    /// Number of other errors.
    pub wrong: u64,
    /// The first [`PROBLEMS_LISTED_MAX`] of them.
    pub problems: Vec<SessionProblem>,
    /// Unusual but possibly correct things: the first [`PROBLEMS_LISTED_MAX`].
    pub notes: Vec<SessionProblem>,
}

/// An error, or something unusual.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SessionProblem {
    /// Line number, from 1; 0 if it is about the whole file.
    pub line: u64,
    /// Stable code.
    pub code: &'static str,
    /// Explanation.
    pub text: String,
}

impl Report {
    /// Whether every recorded line is there and readable. A session that is not closed may be.
    pub fn is_ok(&self) -> bool {
        self.corrupt == 0 && self.truncated_tail.is_none() && self.wrong == 0
    }
}

/// Reads a whole file and reports its errors. An `Err` means that the source failed or is of a newer format.
pub fn check(source: impl BufRead) -> Result<Report, Error> {
    let mut walk = Walk::default();
    let mut reader = Reader::new(source);
    for item in &mut reader {
        walk.take(item?);
    }
    walk.finish(reader.is_unclosed())
}

#[derive(Default)]
struct Walk {
    report: Report,
    /// Whether anything was read.
    begun: bool,
    header: bool,
    ended: bool,
    /// Latest time so far, and the number of later lines with an earlier time.
    latest: Option<Timestamp>,
    back: u64,
}

impl Walk {
    fn take(&mut self, item: Item) {
        let first = !std::mem::replace(&mut self.begun, true);
        match item {
            Item::Start(header) => self.start(header, first),
            Item::Entry(recorded) => {
                let line = recorded.line;
                self.not_after_the_end(line);
                self.report.entries += 1;
                match &recorded.kind {
                    Some(kind) => *self.report.by_type.entry(kind.clone()).or_default() += 1,
                    None => self.problem(line, "session.no_type", "it is no object with a type".into()),
                }
                // The events of a conversation's file have other fields.
                if self.report.conversation.is_none()
                    && let Some(kind) = &recorded.kind
                    && let Err(error) = entry::check(kind, &recorded.fields())
                {
                    self.problem(line, "session.field", error.text().to_string());
                }
                match recorded.at {
                    Some(at) => self.time(line, at),
                    None if recorded.kind.is_some() => {
                        self.problem(
                            line,
                            "session.no_timestamp",
                            "it has no timestamp that can be read".into(),
                        );
                    }
                    None => {}
                }
            }
            Item::End(end) => self.end(&end),
            Item::Corrupt(corrupt) => {
                self.report.corrupt += 1;
                if self.report.corrupt_lines.len() < PROBLEMS_LISTED_MAX {
                    self.report.corrupt_lines.push(corrupt);
                }
            }
            Item::TruncatedTail(tail) => self.report.truncated_tail = Some(tail),
        }
    }

    fn start(&mut self, header: Header, first: bool) {
        let line = header.line;
        if !first {
            let text = "another session begins here; keep each in a file of its own";
            return self.problem(line, "session.second_header", text.into());
        }
        self.header = true;
        let fields: SessionFields = serde_json::from_str(&header.text).unwrap_or_default();
        match &header.session_id {
            None => self.problem(line, "session.header", "the header has no session_id".into()),
            Some(_) => self.report.session_id = header.session_id.clone(),
        }
        match header.started_at {
            None => self.problem(line, "session.header", "the header has no started_at time".into()),
            Some(at) => self.latest = Some(at),
        }
        self.report.conversation = header.conversation;
        if header.conversation.is_some() {
            return;
        }
        type Fits = fn(&Raw) -> bool;
        let known: [(&str, &str, Fits); 4] = [
            ("agent_provider", "a text", |raw| raw.read::<Option<String>>().is_some()),
            ("agent_temperature", "a number", |raw| raw.read::<Option<f64>>().is_some()),
            ("context_loaded", "a list of texts", |raw| raw.read::<Vec<String>>().is_some()),
            ("starting_snapshot_hash", "a text", |raw| raw.read::<Option<String>>().is_some()),
        ];
        for (name, what, fits) in known {
            match fields.get(name) {
                None => self.note(line, "session.header", format!("the header has no {name}")),
                Some(raw) if !fits(raw) => {
                    let text = format!("{name} must be {what}, not {}", clip(raw.get()));
                    self.problem(line, "session.header", text);
                }
                Some(_) => {}
            }
        }
    }

    fn end(&mut self, end: &End) {
        self.not_after_the_end(end.line);
        self.ended = true;
        let fields: SessionFields = serde_json::from_str(&end.text).unwrap_or_default();
        let entries = self.report.entries;
        match end.entries {
            Some(counted) if counted != entries => {
                let text = format!(
                    "session_end counts {counted} entries, the file has {entries} before it; lines are missing or were added"
                );
                self.problem(end.line, "session.entries", text);
            }
            Some(_) => {}
            None => self.note(end.line, "session.end", "session_end does not say how many entries".into()),
        }
        let by_type: Option<BTreeMap<String, u64>> = fields.get("by_type").and_then(Raw::read);
        if let Some(counted) = by_type.filter(|counted| *counted != self.report.by_type) {
            let kinds = counted.keys().chain(self.report.by_type.keys());
            let differs = kinds.into_iter().find(|kind| counted.get(*kind) != self.report.by_type.get(*kind));
            let kind = differs.map(|kind| clip(kind)).unwrap_or_default();
            let text = format!("session_end counts the entries of type {kind:?} otherwise than the file");
            self.problem(end.line, "session.by_type", text);
        }
        if let Some(at) = fields.get("ended_at").or_else(|| fields.get("timestamp")).and_then(Raw::read) {
            self.time(end.line, at);
        }
    }

    fn not_after_the_end(&mut self, line: u64) {
        if self.ended {
            self.problem(line, "session.after_end", "it comes after session_end".into());
        }
    }

    /// Clocks jump back, so this is a note, not an error.
    fn time(&mut self, line: u64, at: Timestamp) {
        match self.latest {
            Some(latest) if at < latest => {
                if self.back == 0 {
                    self.note(line, "session.time_back", format!("its time {at} is before {latest}"));
                }
                self.back += 1;
            }
            _ => self.latest = Some(at),
        }
    }

    fn problem(&mut self, line: u64, code: &'static str, text: String) {
        self.report.wrong += 1;
        if self.report.problems.len() < PROBLEMS_LISTED_MAX {
            self.report.problems.push(SessionProblem { line, code, text });
        }
    }

    fn note(&mut self, line: u64, code: &'static str, text: String) {
        if self.report.notes.len() < PROBLEMS_LISTED_MAX {
            self.report.notes.push(SessionProblem { line, code, text });
        }
    }

    fn finish(mut self, unclosed: bool) -> Result<Report, Error> {
        if !self.begun {
            return Err(Error::invalid("session.empty", "the file is empty; there is nothing to check"));
        }
        if !self.header {
            let text = "the file does not begin with a session_start line";
            self.problem(1, "session.no_header", text.into());
        }
        if self.back > 1 {
            let text = format!("times go back {} times; the order of the lines counts", self.back);
            self.note(0, "session.time_back", text);
        }
        self.report.unclosed = unclosed;
        Ok(self.report)
    }
}
