//! Follows a conversation on a server, across the server's restarts.

use super::super::Updates;
use super::http::{Problem, SILENCE_MAX, Server};
use everturn_core::Error;
use everturn_core::event::Event;
use everturn_core::id::{ConversationId, TurnId};
use everturn_core::limits::STREAM_BYTES_MAX;
use everturn_engine::{Chunk, Update};
use everturn_formats::wire::sse::{self, Parser};
use reqwest::Response;
use serde::Deserialize;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Delay before a lost connection is retried.
const RETRY: Duration = Duration::from_millis(500);
/// Maximum size of a frame in bytes. The largest chunk has this size if every byte of it is escaped.
const FRAME_BYTES_MAX: usize = 6 * STREAM_BYTES_MAX + 64 * 1024;

/// A live stream that resumes after an interruption.
pub struct RemoteUpdates {
    server: Server,
    id: ConversationId,
    /// `seq` of the first event that was not received yet.
    next_seq: u64,
    /// Position to resume from, as sent by the server.
    last: Option<String>,
    /// Number of bytes received of each open turn: after an interruption the text of some is sent again from
    /// its beginning.
    known: HashMap<TurnId, u64>,
    stream: Option<Response>,
    parser: Parser,
    frames: VecDeque<sse::SseEvent>,
}

impl RemoteUpdates {
    /// Follows from a `seq` on. The first connection must succeed.
    pub fn new(server: Server, id: ConversationId, from_seq: u64) -> Result<RemoteUpdates, Error> {
        let mut following = RemoteUpdates {
            server,
            id,
            next_seq: from_seq.max(1),
            last: None,
            known: HashMap::new(),
            stream: None,
            parser: Parser::new(FRAME_BYTES_MAX),
            frames: VecDeque::new(),
        };
        following.connect()?;
        Ok(following)
    }

    fn connect(&mut self) -> Result<(), Error> {
        let id = self.id.to_string();
        let request = self.server.get(&["conversations", &id, "events"]).query("from", self.next_seq).live();
        let request = request.header("last-event-id", self.last.as_deref());
        self.parser = Parser::new(FRAME_BYTES_MAX);
        self.stream = Some(self.server.wait(request.send())?);
        Ok(())
    }

    /// Retries until the server is back, and then returns its errors.
    fn reconnect(&mut self) -> Result<(), Error> {
        let mut told = false;
        loop {
            match self.connect() {
                Err(Error::Busy(detail)) => {
                    if !told {
                        eprintln!("{}; trying again", detail.text);
                        told = true;
                    }
                    std::thread::sleep(RETRY);
                }
                other => return other,
            }
        }
    }

    /// Reads more of the stream. One that ends, breaks or times out is resumed.
    fn more(&mut self) -> Result<(), Error> {
        let Some(stream) = &mut self.stream else { return self.reconnect() };
        let piece = self.server.wait(async { tokio::time::timeout(SILENCE_MAX, stream.chunk()).await });
        match piece {
            Ok(Ok(Some(bytes))) => {
                let mut frames = Vec::new();
                let fed = self.parser.feed(&bytes, &mut frames);
                self.frames.extend(frames);
                fed.map_err(|_| foreign("frames that are too large or not UTF-8"))
            }
            _ => {
                self.stream = None;
                Ok(())
            }
        }
    }

    /// The update in a frame, if it is new.
    fn take(&mut self, frame: sse::SseEvent) -> Result<Option<Update>, Error> {
        if frame.id.is_some() {
            self.last = frame.id;
        }
        match frame.name.as_deref().unwrap_or_default() {
            "event" => {
                let event: Event = self.server.read(&frame.data)?;
                if event.seq < self.next_seq {
                    return Ok(None);
                }
                self.next_seq = event.seq + 1;
                Ok(Some(Update::Event(Arc::new(event))))
            }
            "chunk" => Ok(self.rest(self.server.read(&frame.data)?)),
            "deleted" => Ok(Some(Update::Deleted)),
            "error" => {
                let problem = Problem::read(&frame.data);
                Err(problem.map_or_else(|| foreign("an error that cannot be read"), Problem::into_error))
            }
            // This client was too slow, or the server is shutting down: it has sent a position to resume from.
            "lagged" | "stopping" => {
                self.stream = None;
                Ok(None)
            }
            _ => Ok(None),
        }
    }

    /// The new part of a chunk.
    fn rest(&mut self, piece: ChunkData) -> Option<Update> {
        let known = self.known.entry(piece.turn).or_default();
        let skip = known.saturating_sub(piece.offset) as usize;
        let text = piece.text.get(skip..).filter(|text| !text.is_empty())?;
        let offset = piece.offset + skip as u64;
        *known = offset + text.len() as u64;
        Some(Update::Chunk(Chunk {
            turn: piece.turn,
            turn_seq: piece.turn_seq,
            offset,
            text: text.into(),
            audience: None,
        }))
    }
}

impl Updates for RemoteUpdates {
    fn next(&mut self) -> Result<Option<Update>, Error> {
        loop {
            while let Some(frame) = self.frames.pop_front() {
                if let Some(update) = self.take(frame)? {
                    return Ok(Some(update));
                }
            }
            self.more()?;
        }
    }
}

#[derive(Deserialize)]
struct ChunkData {
    turn: TurnId,
    turn_seq: u64,
    offset: u64,
    text: String,
}

fn foreign(what: &str) -> Error {
    Error::internal("server.foreign", format!("the server sent {what}"))
}
