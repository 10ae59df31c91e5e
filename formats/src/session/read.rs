//! Reading a session line by line.

use super::entry::{Entry, EntryPayload, SessionFields};
use crate::jsonl::{self, CorruptLine, End, Header, TruncatedTail};
use everturn_core::Error;
use everturn_core::encoding;
use everturn_core::time::Timestamp;
use std::io::BufRead;

/// An item of a session file.
#[derive(Clone, PartialEq, Debug)]
pub enum Item {
    /// Header of the session.
    Start(Header),
    /// An entry.
    Entry(Recorded),
    /// End of the session.
    End(End),
    /// An unreadable line. Reading continues after it.
    Corrupt(CorruptLine),
    /// A last line that was not written to its end. Everything before it was returned.
    TruncatedTail(TruncatedTail),
}

/// A line between the header and the end, as far as it can be understood.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recorded {
    /// Line number, from 1.
    pub line: u64,
    /// Its `type`, if it has one.
    pub kind: Option<String>,
    /// Its `timestamp`, if it has one that can be read.
    pub at: Option<Timestamp>,
    /// The line as it came.
    pub text: String,
}

impl Recorded {
    /// Reads a line.
    pub fn new(line: u64, text: String) -> Recorded {
        let fields = fields(&text);
        let kind = fields.get("type").and_then(|raw| raw.read());
        let at = fields.get("timestamp").and_then(|raw| raw.read());
        Recorded { line, kind, at, text }
    }

    /// All fields, `type` and `timestamp` included. None, if the line is not an object.
    pub fn fields(&self) -> SessionFields {
        fields(&self.text)
    }

    /// The line as an entry, if it has a type and a time.
    pub fn entry(&self) -> Option<Entry> {
        let (kind, at) = (self.kind.clone()?, self.at?);
        let mut fields = self.fields();
        fields.take("type");
        fields.take("timestamp");
        Some(Entry { kind, at, fields })
    }

    /// Its payload, if it is of that type and has its fields.
    pub fn read<P: EntryPayload>(&self) -> Option<P> {
        (self.kind.as_deref() == Some(P::TYPE)).then(|| serde_json::from_str(&self.text).ok())?
    }
}

fn fields(text: &str) -> SessionFields {
    serde_json::from_str(text).unwrap_or_default()
}

/// Iterates over the items of a session file, with at most one line in memory. The events of a conversation's file
/// are entries, too; its assets are left out.
pub struct Reader<R> {
    items: jsonl::Reader<R>,
}

impl<R: BufRead> Reader<R> {
    /// Reader of this source.
    pub fn new(source: R) -> Reader<R> {
        Reader { items: jsonl::Reader::new(source) }
    }

    /// Once the iteration has ended: whether `session_end` is missing from the end of the file.
    pub fn is_unclosed(&self) -> bool {
        self.items.is_unclosed()
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Item, Error>;

    fn next(&mut self) -> Option<Result<Item, Error>> {
        loop {
            return Some(Ok(match self.items.next()? {
                Err(error) => return Some(Err(error)),
                Ok(jsonl::Item::Asset(_)) => continue,
                Ok(jsonl::Item::Header(header)) => Item::Start(header),
                Ok(jsonl::Item::Foreign { line, text }) => Item::Entry(Recorded::new(line, text)),
                Ok(jsonl::Item::Event { line, event }) => match encoding::to_line(&event) {
                    Ok(text) => {
                        Item::Entry(Recorded { line, kind: Some(event.kind), at: Some(event.at), text })
                    }
                    Err(error) => return Some(Err(error)),
                },
                Ok(jsonl::Item::End(end)) => Item::End(end),
                Ok(jsonl::Item::Corrupt(corrupt)) => Item::Corrupt(corrupt),
                Ok(jsonl::Item::TruncatedTail(tail)) => Item::TruncatedTail(tail),
            }));
        }
    }
}
