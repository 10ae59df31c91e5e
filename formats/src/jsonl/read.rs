//! Reading a session file, ours or another program's, in bounded memory.

use super::{ASSET, END, FORMAT, LINE_BYTES_MAX, START, failed};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::encoding;
use everturn_core::event::Event;
use everturn_core::id::ConversationId;
use everturn_core::json::{self, Raw};
use everturn_core::time::Timestamp;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, BufRead, Read};

/// An item of a file. Lines count from 1.
#[derive(Clone, PartialEq, Debug)]
pub enum Item {
    /// Start of the session.
    Header(Header),
    /// An event with its place in the chain, which is not checked here.
    Event {
        /// Line number.
        line: u64,
        /// The event.
        event: Box<Event>,
    },
    /// A piece of an asset's bytes.
    Asset(AssetPiece),
    /// JSON without chain fields: another program's event.
    Foreign {
        /// Line number.
        line: u64,
        /// The line as it came.
        text: String,
    },
    /// End of the session.
    End(End),
    /// An unreadable line. Reading continues after it.
    Corrupt(CorruptLine),
    /// A last line that was not written to its end. Everything before it was returned.
    TruncatedTail(TruncatedTail),
}

/// The `session_start` line. Fields that another program left out or wrote otherwise are `None`, and still in the text.
#[derive(Clone, PartialEq, Debug)]
pub struct Header {
    /// Line number.
    pub line: u64,
    /// Session id given by its author.
    pub session_id: Option<String>,
    /// The conversation, if Everturn wrote the file.
    pub conversation: Option<ConversationId>,
    /// Start time.
    pub started_at: Option<Timestamp>,
    /// For people.
    pub title: Option<String>,
    /// Whether the file is a mirror, which is kept up to date and has no end.
    pub live: bool,
    /// The line as it came.
    pub text: String,
}

/// A piece of an asset's bytes.
#[derive(Clone, PartialEq, Debug)]
pub struct AssetPiece {
    /// Line number.
    pub line: u64,
    /// The asset.
    pub sha256: Hash,
    /// Size of the whole asset, in bytes.
    pub bytes: u64,
    /// Offset of this piece in the asset.
    pub offset: u64,
    /// The piece.
    pub piece: Vec<u8>,
}

/// The `session_end` line.
#[derive(Clone, PartialEq, Debug)]
pub struct End {
    /// Line number.
    pub line: u64,
    /// Number of events that its author counted.
    pub entries: Option<u64>,
    /// The line as it came.
    pub text: String,
}

/// A line that could not be read.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct CorruptLine {
    /// Line number.
    pub line: u64,
    /// Offset of its first byte in the file.
    pub byte_offset: u64,
    /// Reason why it cannot be read.
    pub reason: String,
}

/// A last line that was not written to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct TruncatedTail {
    /// Offset of its first byte: the size to truncate the file to.
    pub byte_offset: u64,
    /// Size of the incomplete line.
    pub bytes: u64,
}

/// Gives the items of a file one by one. At most one line of at most [`LINE_BYTES_MAX`] bytes is in memory.
///
/// A byte order mark, `\r\n`, empty lines and a missing last line break are taken as they are. An `Err` ends the
/// iteration: the source failed, or the file is of a newer format.
pub struct Reader<R> {
    source: R,
    buffer: Vec<u8>,
    line: u64,
    offset: u64,
    closed: bool,
    live: bool,
    done: bool,
}

/// State of the line in the buffer.
enum Filled {
    /// The file has ended.
    Nothing,
    /// All of it, and its line break.
    Line,
    /// All there is: the file ends without a line break.
    Tail,
    /// The line was too long and has been skipped.
    Skipped { bytes: u64, ended: bool },
}

impl<R: BufRead> Reader<R> {
    /// Reads from here.
    pub fn new(source: R) -> Reader<R> {
        Reader { source, buffer: Vec::new(), line: 0, offset: 0, closed: false, live: false, done: false }
    }

    /// Once the iteration has ended: whether `session_end` is missing from the end of the file. A mirror's file has none.
    pub fn is_unclosed(&self) -> bool {
        !self.closed && !self.live
    }

    fn read_item(&mut self) -> Result<Option<Item>, Error> {
        loop {
            let byte_offset = self.offset;
            let filled = self.fill().map_err(|error| failed("reading the session file", &error))?;
            self.line += 1;
            let line = self.line;
            let item = match filled {
                Filled::Nothing => return Ok(None),
                Filled::Skipped { bytes, ended: false } => {
                    Some(Item::TruncatedTail(TruncatedTail { byte_offset, bytes }))
                }
                Filled::Skipped { bytes, ended: true } => {
                    let limit =
                        Error::limit("LINE_BYTES_MAX", LINE_BYTES_MAX as u64, bytes, "split the line");
                    let reason = limit.text().to_string();
                    Some(Item::Corrupt(CorruptLine { line, byte_offset, reason }))
                }
                Filled::Line | Filled::Tail => {
                    let tail = matches!(filled, Filled::Tail);
                    match content(&self.buffer, byte_offset) {
                        Ok("") => None,
                        Ok(text) if tail && !text.starts_with('{') => Some(self.cut(byte_offset)),
                        Ok(text) => match parse(line, text) {
                            Ok(item) => Some(item),
                            Err(newer) if newer.code() == NEWER => return Err(newer),
                            // A cut line is never whole JSON; a whole one without its line break is not cut.
                            Err(_) if tail && json::check(text).is_err() => Some(self.cut(byte_offset)),
                            Err(error) => Some(Item::Corrupt(CorruptLine {
                                line,
                                byte_offset,
                                reason: error.text().to_string(),
                            })),
                        },
                        Err(_) if tail => Some(self.cut(byte_offset)),
                        Err(reason) => Some(Item::Corrupt(CorruptLine { line, byte_offset, reason })),
                    }
                }
            };
            if let Some(item) = item {
                self.closed = matches!(item, Item::End(_));
                self.live |= matches!(&item, Item::Header(header) if header.live);
                return Ok(Some(item));
            }
        }
    }

    fn cut(&self, byte_offset: u64) -> Item {
        Item::TruncatedTail(TruncatedTail { byte_offset, bytes: self.offset - byte_offset })
    }

    /// Reads up to the next line break and never more than one line's limit into memory.
    fn fill(&mut self) -> io::Result<Filled> {
        self.buffer.clear();
        let most = LINE_BYTES_MAX as u64 + 1;
        let bytes = self.source.by_ref().take(most).read_until(b'\n', &mut self.buffer)? as u64;
        self.offset += bytes;
        if self.buffer.last() == Some(&b'\n') {
            return Ok(Filled::Line);
        }
        if bytes < most {
            return Ok(if bytes == 0 { Filled::Nothing } else { Filled::Tail });
        }
        let (skipped, ended) = self.skip_line()?;
        self.offset += skipped;
        Ok(Filled::Skipped { bytes: bytes + skipped - u64::from(ended), ended })
    }

    /// Skips the rest of a line; returns its size and whether a line break ended it.
    fn skip_line(&mut self) -> io::Result<(u64, bool)> {
        let mut skipped = 0;
        loop {
            let available = match self.source.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                available => available?,
            };
            if available.is_empty() {
                return Ok((skipped, false));
            }
            let end = available.iter().position(|byte| *byte == b'\n');
            let used = end.map_or(available.len(), |end| end + 1);
            self.source.consume(used);
            skipped += used as u64;
            if end.is_some() {
                return Ok((skipped, true));
            }
        }
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Item, Error>;

    fn next(&mut self) -> Option<Result<Item, Error>> {
        if self.done {
            return None;
        }
        let item = self.read_item().transpose();
        self.done = !matches!(item, Some(Ok(_)));
        item
    }
}

/// Trimmed text of a line, or the error in its bytes.
fn content(line: &[u8], byte_offset: u64) -> Result<&str, String> {
    let bom = if byte_offset == 0 && line.starts_with("\u{feff}".as_bytes()) { 3 } else { 0 };
    match std::str::from_utf8(&line[bom..]) {
        Ok(text) => Ok(text.trim_matches(|c| matches!(c, ' ' | '\t' | '\r' | '\n'))),
        Err(error) => {
            let at = byte_offset + (bom + error.valid_up_to()) as u64;
            Err(format!("invalid UTF-8 at byte {at} of the file"))
        }
    }
}

/// The code of the one error that ends the reading of a file.
const NEWER: &str = "file.format_newer";

/// Fields that tell the kind of a line.
#[derive(Default, Deserialize)]
struct Probe<'a> {
    #[serde(borrow, rename = "type", default)]
    kind: Option<Cow<'a, str>>,
    #[serde(default)]
    body_hash: Option<IgnoredAny>,
}

fn parse(line: u64, text: &str) -> Result<Item, Error> {
    // An event first: nearly every line is one, and the kinds are open, so one may well be called `session_end`.
    let not_an_event = match encoding::from_line(text) {
        Ok(event) => return Ok(Item::Event { line, event: Box::new(event) }),
        Err(error) => error,
    };
    json::check(text)?;
    let probe: Probe<'_> = serde_json::from_str(text).unwrap_or_default();
    match probe.kind.as_deref() {
        // With a chain field it was meant as one of our events.
        _ if probe.body_hash.is_some() => Err(not_an_event),
        Some(START) => header(line, text).map(Item::Header),
        Some(END) => {
            let entries = field(&fields(text), "entries");
            Ok(Item::End(End { line, entries, text: text.to_string() }))
        }
        Some(ASSET) => asset(line, text).map(Item::Asset),
        _ => Ok(Item::Foreign { line, text: text.to_string() }),
    }
}

fn asset(line: u64, text: &str) -> Result<AssetPiece, Error> {
    #[derive(Deserialize)]
    struct Piece<'a> {
        sha256: Hash,
        bytes: u64,
        offset: u64,
        #[serde(borrow)]
        base64: Cow<'a, str>,
    }
    let malformed =
        |what: &str| Error::invalid("asset.malformed", format!("not a piece of an asset: {what}"));
    let read: Piece<'_> = serde_json::from_str(text).map_err(|e| malformed(&e.to_string()))?;
    let piece = BASE64.decode(read.base64.as_bytes()).map_err(|e| malformed(&e.to_string()))?;
    Ok(AssetPiece { line, sha256: read.sha256, bytes: read.bytes, offset: read.offset, piece })
}

fn header(line: u64, text: &str) -> Result<Header, Error> {
    let fields = fields(text);
    if let Some(format) = field::<u64>(&fields, "format").filter(|format| *format > FORMAT) {
        return Err(Error::invalid(
            NEWER,
            format!(
                "line {line}: the file has format {format}, this everturn reads up to {FORMAT}; upgrade it"
            ),
        ));
    }
    Ok(Header {
        line,
        session_id: field(&fields, "session_id"),
        conversation: field(&fields, "conversation"),
        started_at: field(&fields, "started_at"),
        title: field(&fields, "title"),
        live: field(&fields, "live").unwrap_or_default(),
        text: text.to_string(),
    })
}

fn fields(text: &str) -> BTreeMap<String, Raw> {
    serde_json::from_str(text).unwrap_or_default()
}

/// A field; `None` if it is absent or has another type.
fn field<'a, T: Deserialize<'a>>(fields: &'a BTreeMap<String, Raw>, name: &str) -> Option<T> {
    fields.get(name)?.read()
}
