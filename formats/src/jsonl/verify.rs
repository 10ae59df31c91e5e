//! Checking a file's chain, offline.

use super::{AssetPieces, CORRUPT_LINES_LISTED_MAX, CorruptLine, Item, Reader, TruncatedTail};
use everturn_core::Error;
use everturn_core::chain::{ChainReport, Hash, Verifier};
use everturn_core::id::ConversationId;
use serde::Serialize;
use std::io::BufRead;

/// Result of [`verify`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct FileReport {
    /// Conversation in the file.
    pub conversation: ConversationId,
    /// The chain up to its end, or up to the first break.
    #[serde(flatten)]
    pub chain: ChainReport,
    /// First error in the chain.
    pub broken: Option<Broken>,
    /// Number of unreadable lines.
    pub corrupt: u64,
    /// The first [`CORRUPT_LINES_LISTED_MAX`] of them.
    pub corrupt_lines: Vec<CorruptLine>,
    /// A last line that was not written to its end.
    pub truncated_tail: Option<TruncatedTail>,
    /// Lines without chain fields, about which nothing can be proved.
    pub foreign: u64,
    /// Whether `session_end` is missing: the file may still be written to.
    pub unclosed: bool,
}

/// The first error in a chain.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Broken {
    /// Line where it shows.
    pub line: u64,
    /// Stable, as in [`Error::code`].
    pub code: &'static str,
    /// Explanation.
    pub text: String,
}

impl FileReport {
    /// Whether the file is intact. An unclosed file may be.
    pub fn is_ok(&self) -> bool {
        self.broken.is_none()
            && self.corrupt == 0
            && self.truncated_tail.is_none()
            && self.foreign == 0
            && self.chain.contains_head != Some(false)
    }
}

/// Walks the chain of an exported file. With `wanted`, a head hash that was noted earlier, it also tells whether the
/// file still contains it. An `Err` means that there was nothing to check or that the source failed; errors in
/// the file are in the report.
pub fn verify(source: impl BufRead, wanted: Option<Hash>) -> Result<FileReport, Error> {
    let mut walk = Walk::default();
    let mut reader = Reader::new(source);
    for item in &mut reader {
        walk.take(item?, wanted);
    }
    walk.unclosed = reader.is_unclosed();
    walk.finish(wanted)
}

/// The walk so far.
#[derive(Default)]
struct Walk {
    /// Conversation and line of the header.
    header: Option<(Option<ConversationId>, u64)>,
    verifier: Option<Verifier>,
    /// The conversation of the last event.
    latest: Option<ConversationId>,
    events: u64,
    broken: Option<Broken>,
    corrupt: u64,
    corrupt_lines: Vec<CorruptLine>,
    truncated_tail: Option<TruncatedTail>,
    foreign: u64,
    unclosed: bool,
    assets: AssetPieces,
}

impl Walk {
    fn take(&mut self, item: Item, wanted: Option<Hash>) {
        match item {
            Item::Header(header) if self.header.is_some() || self.events > 0 => self.broke(
                header.line,
                "file.second_session",
                "another session begins here; verify each in a file of its own".into(),
            ),
            Item::Header(header) => self.header = Some((header.conversation, header.line)),
            Item::Event { line, event } => {
                self.events += 1;
                self.latest = Some(event.conversation);
                let conversation = self.header.and_then(|(id, _)| id).unwrap_or(event.conversation);
                let verifier = self.verifier.get_or_insert_with(|| Verifier::new(conversation, wanted));
                // After the first break every link is broken; only the first one is informative.
                if self.broken.is_none()
                    && let Err(error) = verifier.push(&event)
                {
                    self.broke(line, error.code(), error.text().to_string());
                }
            }
            Item::End(end) => {
                if let Some(entries) = end.entries.filter(|entries| *entries != self.events) {
                    let events = self.events;
                    self.broke(
                        end.line,
                        "file.entries",
                        format!("session_end counts {entries} events, the file has {events} before it; lines are missing or were added"),
                    );
                }
            }
            Item::Foreign { .. } => self.foreign += 1,
            Item::Asset(piece) => {
                let line = piece.line;
                if let Err(error) = self.assets.push(piece) {
                    self.broke(line, error.code(), error.text().to_string());
                }
            }
            Item::Corrupt(line) => {
                self.corrupt += 1;
                if self.corrupt_lines.len() < CORRUPT_LINES_LISTED_MAX {
                    self.corrupt_lines.push(line);
                }
            }
            Item::TruncatedTail(tail) => self.truncated_tail = Some(tail),
        }
    }

    fn broke(&mut self, line: u64, code: &'static str, text: String) {
        self.broken.get_or_insert(Broken { line, code, text });
    }

    fn finish(mut self, wanted: Option<Hash>) -> Result<FileReport, Error> {
        let named = self.header.and_then(|(id, _)| id);
        let Some(conversation) = named.or(self.latest) else {
            return Err(Error::invalid(
                "file.no_chain",
                "the file has no chain to verify; only what `everturn export --format jsonl` wrote has one",
            ));
        };
        // The header is not part of the chain, so it is compared with the events.
        if let (Some((Some(named), line)), Some(latest)) = (self.header, self.latest)
            && named != latest
        {
            self.broke(
                line,
                "file.other_conversation",
                format!("the header names {named}, the events end in {latest}"),
            );
        }
        let verifier = self.verifier.unwrap_or_else(|| Verifier::new(conversation, wanted));
        Ok(FileReport {
            conversation,
            chain: verifier.finish(),
            broken: self.broken,
            corrupt: self.corrupt,
            corrupt_lines: self.corrupt_lines,
            truncated_tail: self.truncated_tail,
            foreign: self.foreign,
            unclosed: self.unclosed,
        })
    }
}
