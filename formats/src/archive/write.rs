//! Writing an archive, one record at a time.

use super::frame::Hashing;
use super::{
    ArchiveCounts, ArchiveHeader, AssetRef, Block, Deleted, Erased, KeyRecord, Line, OpenText, PIECE_BYTES,
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
use everturn_core::id::TenantName;
use everturn_core::write::AnsweredRequest;
use std::io::{self, Write};

/// Default compression level of Zstandard, about as fast as events are read and checked.
const LEVEL: i32 = 3;

/// Writes the header, then records as they come, then the end.
pub struct Writer<W: Write> {
    out: zstd::Encoder<'static, Hashing<W>>,
    counts: ArchiveCounts,
}

impl<W: Write> Writer<W> {
    /// Writes the header.
    pub fn new(out: W, header: &ArchiveHeader) -> Result<Writer<W>, Error> {
        let out = zstd::Encoder::new(Hashing::new(out), LEVEL).map_err(|error| cannot(&error))?;
        let mut writer = Writer { out, counts: ArchiveCounts::default() };
        writer.line(&Line::Backup(header.clone()))?;
        Ok(writer)
    }

    /// Records written so far.
    pub fn counts(&self) -> &ArchiveCounts {
        &self.counts
    }

    /// Begins a conversation's block.
    pub fn block(&mut self, block: &Block) -> Result<(), Error> {
        self.counts.conversations += 1;
        self.line(&Line::Conversation(block.clone()))
    }

    /// Writes an event of the block.
    pub fn event(&mut self, event: &Event) -> Result<(), Error> {
        self.counts.events += 1;
        self.raw(&format!("{{\"event\":{}}}\n", encoding::to_line(event)?))
    }

    /// Writes an event of a conversation whose chain is broken before it.
    pub fn loose(&mut self, tenant: &TenantName, event: &Event) -> Result<(), Error> {
        self.counts.loose += 1;
        let line = encoding::to_line(event)?;
        self.raw(&format!("{{\"loose\":{{\"tenant\":\"{tenant}\",\"event\":{line}}}}}\n"))
    }

    /// Says that the event before it brought an asset, with its bytes if the chain of archives does not have them.
    pub fn asset(&mut self, seq: u64, sha256: Hash, bytes: Option<&[u8]>) -> Result<(), Error> {
        self.line(&Line::Asset(AssetRef { seq, sha256, bytes: bytes.map(|bytes| bytes.len() as u64) }))?;
        let Some(bytes) = bytes else { return Ok(()) };
        self.counts.assets += 1;
        bytes.chunks(PIECE_BYTES).try_for_each(|piece| self.line(&Line::Piece(BASE64.encode(piece))))
    }

    /// Writes a request of the block.
    pub fn request(&mut self, request: AnsweredRequest) -> Result<(), Error> {
        self.counts.requests += 1;
        self.line(&Line::Request(request))
    }

    /// Writes the text of an open turn of the block.
    pub fn open_text(&mut self, text: OpenText) -> Result<(), Error> {
        self.line(&Line::Text(text))
    }

    /// Ends the block.
    pub fn through(&mut self, through: Through) -> Result<(), Error> {
        self.line(&Line::Through(through))
    }

    /// Writes a tombstone.
    pub fn deleted(&mut self, deleted: Deleted) -> Result<(), Error> {
        self.counts.deleted += 1;
        self.line(&Line::Deleted(deleted))
    }

    /// Says which bodies were erased.
    pub fn erased(&mut self, erased: Erased) -> Result<(), Error> {
        self.counts.erased += erased.seqs.len();
        self.line(&Line::Erased(erased))
    }

    /// Writes an access key.
    pub fn key(&mut self, key: AccessKey) -> Result<(), Error> {
        self.counts.keys += 1;
        self.line(&Line::Key(KeyRecord::from(key)))
    }

    /// Writes the end. Gives the output back, flushed, with the archive's id and its size in bytes.
    pub fn finish(mut self) -> Result<(W, Hash, u64), Error> {
        self.line(&Line::End(self.counts))?;
        self.out.finish().and_then(Hashing::finish).map_err(|error| cannot(&error))
    }

    fn line(&mut self, line: &Line) -> Result<(), Error> {
        let mut text = serde_json::to_string(line)
            .map_err(|error| Error::internal("backup.encode", error.to_string()))?;
        text.push('\n');
        self.raw(&text)
    }

    fn raw(&mut self, line: &str) -> Result<(), Error> {
        self.out.write_all(line.as_bytes()).map_err(|error| cannot(&error))
    }
}

fn cannot(error: &io::Error) -> Error {
    failed("cannot write the backup", error)
}
