//! Reading an archive in bounded memory.

use super::frame::Checking;
use super::{
    ArchiveCounts, ArchiveHeader, AssetRef, Block, Deleted, Erased, FORMAT, LINE_BYTES_MAX, Line, OpenText,
    Through,
};
use crate::jsonl::failed;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use everturn_core::Error;
use everturn_core::access::AccessKey;
use everturn_core::chain::Hash;
use everturn_core::encoding;
use everturn_core::event::Event;
use everturn_core::limits::ASSET_BYTES_MAX;
use everturn_core::write::AnsweredRequest;
use std::io::{BufRead, BufReader, Read};

/// Largest window that Zstandard may use, as a power of two: 16 MiB. Archives of [`super::Writer`] need 2 MiB.
const WINDOW_LOG_MAX: u32 = 24;

const HEADER: &str = "{\"backup\":";
const EVENT: &str = "{\"event\":";
const LOOSE: &str = "{\"loose\":";

/// A record.
#[derive(Debug)]
pub enum Item {
    /// A conversation begins.
    Block(Block),
    /// An event of it.
    Event(EventLine),
    /// The event before it brought an asset; with its bytes, if they are in this archive.
    Asset(AssetRef, Option<Vec<u8>>),
    /// A request of the conversation.
    Request(AnsweredRequest),
    /// Text of an open turn of the conversation.
    Text(OpenText),
    /// An event after damage, as its line. It is not restored.
    Loose(String),
    /// The conversation's block ends.
    Through(Through),
    /// A tombstone.
    Deleted(Deleted),
    /// Bodies that were erased.
    Erased(Erased),
    /// An access key.
    Key(AccessKey),
}

/// An event that was not looked at yet.
#[derive(Debug)]
pub struct EventLine(String);

impl EventLine {
    /// The event. Its hashes are not checked here; [`everturn_core::chain::Verifier`] does that.
    pub fn event(&self) -> Result<Event, Error> {
        let inner = self.0.strip_prefix(EVENT).and_then(|rest| rest.strip_suffix('}'));
        inner.ok_or_else(|| malformed("an event is cut")).and_then(encoding::from_line)
    }
}

/// Reads records. Only after the last one is it known that nothing was cut or changed: see [`Reader::finish`].
pub struct Reader<R: Read> {
    lines: BufReader<zstd::Decoder<'static, BufReader<Checking<R>>>>,
    header: ArchiveHeader,
    counts: ArchiveCounts,
    ended: bool,
}

impl<R: Read> Reader<R> {
    /// Reads the header.
    pub fn new(source: R) -> Result<Reader<R>, Error> {
        let mut decoder = zstd::Decoder::with_buffer(BufReader::new(Checking::new(source)))
            .map_err(|error| failed("cannot read the backup", &error))?;
        decoder.window_log_max(WINDOW_LOG_MAX).map_err(|error| failed("cannot read the backup", &error))?;
        let header = ArchiveHeader {
            format: FORMAT,
            number: 0,
            follows: None,
            created: everturn_core::time::Timestamp(0),
        };
        let mut reader =
            Reader { lines: BufReader::new(decoder), header, counts: ArchiveCounts::default(), ended: false };
        let foreign = || {
            Error::invalid(
                "backup.foreign",
                "this is not a backup that `everturn backup` wrote; name another file",
            )
        };
        let first = match reader.line() {
            Ok(Some(line)) => line,
            Ok(None) | Err(Error::Corrupt(_)) if !reader.is_zstandard() => return Err(foreign()),
            Ok(None) => return Err(cut()),
            Err(error) => return Err(error),
        };
        // Other programs compress with Zstandard too.
        if !first.starts_with(HEADER) {
            return Err(foreign());
        }
        let damaged = || malformed("its first record is malformed");
        // The format number can be read from the header of any later version.
        #[derive(serde::Deserialize)]
        struct First {
            backup: Format,
        }
        #[derive(serde::Deserialize)]
        struct Format {
            format: u64,
        }
        let format = serde_json::from_str::<First>(&first).map_err(|_| damaged())?.backup.format;
        if format > FORMAT {
            let text = format!(
                "the backup has format {format}, this program reads up to {FORMAT}; use a newer everturn"
            );
            return Err(Error::conflict("backup.newer", text));
        }
        match serde_json::from_str(&first) {
            Ok(Line::Backup(header)) => reader.header = header,
            _ => return Err(damaged()),
        }
        Ok(reader)
    }

    fn is_zstandard(&self) -> bool {
        self.lines.get_ref().get_ref().get_ref().is_zstandard == Some(true)
    }

    /// Header of the archive.
    pub fn header(&self) -> &ArchiveHeader {
        &self.header
    }

    /// Records read so far.
    pub fn counts(&self) -> &ArchiveCounts {
        &self.counts
    }

    /// The next record; `None` after the last one.
    pub fn next_item(&mut self) -> Result<Option<Item>, Error> {
        if self.ended {
            return Ok(None);
        }
        let line = self.line()?.ok_or_else(cut)?;
        if line.starts_with(LOOSE) {
            self.counts.loose += 1;
            return Ok(Some(Item::Loose(line)));
        }
        if line.starts_with(EVENT) {
            self.counts.events += 1;
            return Ok(Some(Item::Event(EventLine(line))));
        }
        let item = match parse(&line)? {
            Line::Conversation(block) => {
                self.counts.conversations += 1;
                Item::Block(block)
            }
            Line::Asset(asset) => {
                let bytes = asset.bytes.map(|bytes| self.pieces(asset.sha256, bytes)).transpose()?;
                Item::Asset(asset, bytes)
            }
            Line::Request(request) => {
                self.counts.requests += 1;
                Item::Request(request)
            }
            Line::Text(text) => Item::Text(text),
            Line::Through(through) => Item::Through(through),
            Line::Deleted(deleted) => {
                self.counts.deleted += 1;
                Item::Deleted(deleted)
            }
            Line::Erased(erased) => {
                self.counts.erased += erased.seqs.len();
                Item::Erased(erased)
            }
            Line::Key(key) => {
                self.counts.keys += 1;
                Item::Key(key.into())
            }
            Line::End(counts) if counts == self.counts => {
                self.ended = true;
                return Ok(None);
            }
            Line::End(_) => return Err(malformed("its end counts other records than there are")),
            Line::Backup(_) | Line::Piece(_) => return Err(malformed("a record is out of place")),
        };
        Ok(Some(item))
    }

    /// Checks that the archive ends where it says, and that not a byte of it was changed. Gives its id.
    pub fn finish(mut self) -> Result<Hash, Error> {
        if !self.ended || self.line()?.is_some() {
            return Err(malformed("there is something behind its end"));
        }
        let mut buffered = self.lines.into_inner().finish();
        // The decoder stops at the end of its frame; anything after it is not ours.
        if !buffered.fill_buf().map_err(|error| failed("cannot read the backup", &error))?.is_empty() {
            return Err(malformed("there is something behind its end"));
        }
        let id = buffered.into_inner().finish().map_err(|error| failed("cannot read the backup", &error))?;
        id.ok_or_else(|| malformed("its bytes are not the ones that were written"))
    }

    fn pieces(&mut self, sha256: Hash, size: u64) -> Result<Vec<u8>, Error> {
        if size > ASSET_BYTES_MAX as u64 {
            return Err(Error::limit(
                "ASSET_BYTES_MAX",
                ASSET_BYTES_MAX as u64,
                size,
                "the backup is not ours",
            ));
        }
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < size {
            let line = self.line()?.ok_or_else(cut)?;
            let Line::Piece(piece) = parse(&line)? else {
                return Err(malformed("a piece of an asset is missing"));
            };
            let piece = BASE64.decode(piece).map_err(|_| malformed("a piece of an asset is not base64"))?;
            if piece.is_empty() || bytes.len() as u64 + piece.len() as u64 > size {
                return Err(malformed("the pieces of an asset do not fit"));
            }
            bytes.extend(piece);
        }
        if Hash::of(&bytes) != sha256 {
            return Err(malformed("the bytes of an asset are not the ones that were written"));
        }
        self.counts.assets += 1;
        Ok(bytes)
    }

    /// The next line without its end.
    fn line(&mut self) -> Result<Option<String>, Error> {
        let mut line = Vec::new();
        let limit = LINE_BYTES_MAX as u64 + 1;
        let read = (&mut self.lines).take(limit).read_until(b'\n', &mut line);
        if let Err(error) = read {
            // Errors of the source are passed on; errors of Zstandard mean that the bytes are wrong.
            return Err(match self.lines.get_ref().get_ref().get_ref().failed {
                true => failed("cannot read the backup", &error),
                false if error.kind() == std::io::ErrorKind::UnexpectedEof => cut(),
                false => malformed("it cannot be decompressed"),
            });
        }
        match line.pop() {
            None => Ok(None),
            Some(b'\n') => String::from_utf8(line).map(Some).map_err(|_| malformed("a record is not UTF-8")),
            Some(_) if line.len() as u64 + 1 == limit => Err(Error::limit(
                "LINE_BYTES_MAX",
                LINE_BYTES_MAX as u64,
                limit,
                "everturn writes no such record; the file is not one of its backups",
            )),
            Some(_) => Err(cut()),
        }
    }
}

fn parse(line: &str) -> Result<Line, Error> {
    serde_json::from_str(line).map_err(|error| malformed(&format!("a record is malformed ({error})")))
}

fn cut() -> Error {
    Error::corrupt("backup.cut", "the backup is cut off; use another copy or an earlier backup")
}

pub(super) fn malformed(what: &str) -> Error {
    Error::corrupt(
        "backup.damaged",
        format!("the backup is damaged: {what}; use another copy or an earlier backup"),
    )
}
