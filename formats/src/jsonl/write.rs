//! Writing a conversation's file, one line at a time.

use super::{ASSET, ASSET_PIECE_BYTES, END, FORMAT, START, failed};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::conversation::Conversation;
use everturn_core::encoding;
use everturn_core::event::Event;
use everturn_core::id::ConversationId;
use everturn_core::time::Timestamp;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;

/// Writes the header, then events as they come, then the end. One `write` per line, so that a crash can cut the last
/// line and never two.
pub struct Writer<W> {
    out: W,
    started_at: Timestamp,
    ended_at: Timestamp,
    entries: u64,
    by_type: BTreeMap<String, u64>,
}

/// The first line. `type` and `timestamp` lead every line; the order of the rest is kept, too.
#[derive(Serialize)]
struct HeaderLine<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    timestamp: Timestamp,
    session_id: ConversationId,
    conversation: ConversationId,
    started_at: Timestamp,
    format: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<&'a str>,
}

/// A piece of an asset.
#[derive(Serialize)]
struct AssetLine {
    #[serde(rename = "type")]
    kind: &'static str,
    timestamp: Timestamp,
    sha256: Hash,
    bytes: u64,
    offset: u64,
    base64: String,
}

/// The last line.
#[derive(Serialize)]
struct EndLine<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    timestamp: Timestamp,
    ended_at: Timestamp,
    duration_s: f64,
    entries: u64,
    by_type: &'a BTreeMap<String, u64>,
}

impl<W: io::Write> Writer<W> {
    /// Writes the header. `now` is when the file is written; the session began when the conversation did.
    pub fn new(out: W, conversation: &Conversation, now: Timestamp) -> Result<Writer<W>, Error> {
        let started_at = conversation.created;
        let by_type = BTreeMap::new();
        let mut writer = Writer { out, started_at, ended_at: started_at, entries: 0, by_type };
        writer.line(encode(&HeaderLine {
            kind: START,
            timestamp: now,
            session_id: conversation.id,
            conversation: conversation.id,
            started_at,
            format: FORMAT,
            title: conversation.title.as_deref(),
        })?)?;
        Ok(writer)
    }

    /// Writes an asset's bytes, before the events that refer to it.
    pub fn asset(&mut self, sha256: Hash, bytes: &[u8]) -> Result<(), Error> {
        // An empty asset is one empty piece.
        for (index, piece) in bytes.chunks(ASSET_PIECE_BYTES).chain([&[][..]]).enumerate() {
            if piece.is_empty() && index > 0 {
                break;
            }
            self.line(encode(&AssetLine {
                kind: ASSET,
                timestamp: self.started_at,
                sha256,
                bytes: bytes.len() as u64,
                offset: (index * ASSET_PIECE_BYTES) as u64,
                base64: BASE64.encode(piece),
            })?)?;
        }
        Ok(())
    }

    /// Writes the next event. They must come in the order of `seq`, a fork's inherited ones first.
    pub fn event(&mut self, event: &Event) -> Result<(), Error> {
        self.line(encoding::to_line(event)?)?;
        self.ended_at = self.ended_at.max(event.at);
        self.entries += 1;
        *self.by_type.entry(event.kind.clone()).or_default() += 1;
        Ok(())
    }

    /// Writes the end and gives the output back, flushed. The session ended with its last event.
    pub fn finish(mut self, now: Timestamp) -> Result<W, Error> {
        let end = encode(&EndLine {
            kind: END,
            timestamp: now,
            ended_at: self.ended_at,
            duration_s: self.ended_at.0.saturating_sub(self.started_at.0) as f64 / 1e6,
            entries: self.entries,
            by_type: &self.by_type,
        })?;
        self.line(end)?;
        self.out.flush().map_err(|error| failed("flushing the session file", &error))?;
        Ok(self.out)
    }

    fn line(&mut self, mut line: String) -> Result<(), Error> {
        line.push('\n');
        self.out.write_all(line.as_bytes()).map_err(|error| failed("writing the session file", &error))
    }
}

fn encode(line: &impl Serialize) -> Result<String, Error> {
    serde_json::to_string(line).map_err(|error| Error::internal("file.encode", error.to_string()))
}
