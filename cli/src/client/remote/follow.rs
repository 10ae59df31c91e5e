//! Following a conversation at a server, also over the server's restarts.

use super::super::Updates;
use super::http::{Problem, SILENCE_MAX, Server};
use everturn::{Chunk, Update};
use everturn_core::Error;
use everturn_core::event::Event;
use everturn_core::id::{ConversationId, TurnId};
use reqwest::Response;
use serde::Deserialize;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// How long to wait before a lost connection is tried again.
const RETRY: Duration = Duration::from_millis(500);

/// A live stream that is taken up again where it broke off.
pub struct Following {
    server: Server,
    id: ConversationId,
    /// The first event that is wanted and was not received.
    next_seq: u64,
    /// How far the server says we are.
    last: Option<String>,
    /// How much of each open turn was received: after a break the text of some comes again from its beginning.
    known: HashMap<TurnId, u64>,
    stream: Option<Response>,
    reader: Reader,
    frames: VecDeque<Frame>,
}

impl Following {
    /// From a place on. The first connection must succeed.
    pub fn new(server: Server, id: ConversationId, from_seq: u64) -> Result<Following, Error> {
        let mut following = Following {
            server,
            id,
            next_seq: from_seq.max(1),
            last: None,
            known: HashMap::new(),
            stream: None,
            reader: Reader::default(),
            frames: VecDeque::new(),
        };
        following.connect()?;
        Ok(following)
    }

    fn connect(&mut self) -> Result<(), Error> {
        let id = self.id.to_string();
        let request = self.server.get(&["conversations", &id, "events"]).query("from", self.next_seq).live();
        let request = request.header("last-event-id", self.last.as_deref());
        self.reader = Reader::default();
        self.stream = Some(self.server.wait(request.send())?);
        Ok(())
    }

    /// Tries until the server is back. What it says once it is there counts.
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

    /// Reads more of the stream. One that ends, breaks or is silent is taken up again.
    fn more(&mut self) -> Result<(), Error> {
        let Some(stream) = &mut self.stream else { return self.reconnect() };
        let piece = self.server.wait(async { tokio::time::timeout(SILENCE_MAX, stream.chunk()).await });
        match piece {
            Ok(Ok(Some(bytes))) => self.reader.feed(&bytes, &mut self.frames),
            _ => self.stream = None,
        }
        Ok(())
    }

    /// What a frame says, if it is new.
    fn take(&mut self, frame: Frame) -> Result<Option<Update>, Error> {
        if frame.id.is_some() {
            self.last = frame.id;
        }
        match frame.name.as_str() {
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
            "error" => Err(Problem::read(&frame.data).map_or_else(
                || Error::internal("server.foreign", "the server sent an error that cannot be read"),
                Problem::into_error,
            )),
            // We were too slow, or the server stops: it says how far we are, and we ask again.
            "lagged" | "stopping" => {
                self.stream = None;
                Ok(None)
            }
            _ => Ok(None),
        }
    }

    /// What of a piece is new.
    fn rest(&mut self, piece: Piece) -> Option<Update> {
        let known = self.known.entry(piece.turn).or_default();
        let skip = known.saturating_sub(piece.offset) as usize;
        let text = piece.text.get(skip..).filter(|text| !text.is_empty())?;
        let offset = piece.offset + skip as u64;
        *known = offset + text.len() as u64;
        Some(Update::Chunk(Chunk { turn: piece.turn, turn_seq: piece.turn_seq, offset, text: text.into() }))
    }
}

impl Updates for Following {
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
struct Piece {
    turn: TurnId,
    turn_seq: u64,
    offset: u64,
    text: String,
}

/// One frame of server-sent events.
#[derive(Default, Debug, PartialEq)]
struct Frame {
    name: String,
    id: Option<String>,
    data: String,
}

/// Puts frames together from pieces that may end anywhere.
#[derive(Default)]
struct Reader {
    line: Vec<u8>,
    frame: Frame,
    has_data: bool,
}

impl Reader {
    fn feed(&mut self, bytes: &[u8], into: &mut VecDeque<Frame>) {
        for byte in bytes {
            if *byte != b'\n' {
                self.line.push(*byte);
                continue;
            }
            let line = std::mem::take(&mut self.line);
            let line = String::from_utf8_lossy(&line);
            match line.strip_suffix('\r').unwrap_or(&line) {
                "" => {
                    let frame = std::mem::take(&mut self.frame);
                    if std::mem::take(&mut self.has_data) {
                        into.push_back(frame);
                    }
                }
                line => self.field(line),
            }
        }
    }

    fn field(&mut self, line: &str) {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "event" => self.frame.name = value.to_string(),
            "id" => self.frame.id = Some(value.to_string()),
            "data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.frame.data.push('\n');
                }
                self.frame.data.push_str(value);
            }
            // Comments say that the stream is alive; `retry` is for browsers.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_wherever_the_pieces_end() {
        let text = "retry: 1000\n\n: still here\n\nevent: event\nid: 4.7\ndata: {\"a\":\ndata: \"é\"}\n\nevent: deleted\r\ndata: {}\r\n\r\n";
        for size in [1, 2, 3, 7, 1000] {
            let (mut reader, mut frames) = (Reader::default(), VecDeque::new());
            text.as_bytes().chunks(size).for_each(|piece| reader.feed(piece, &mut frames));
            let frame = |name: &str, id: Option<&str>, data: &str| Frame {
                name: name.into(),
                id: id.map(str::to_string),
                data: data.into(),
            };
            assert_eq!(
                frames,
                [frame("event", Some("4.7"), "{\"a\":\n\"é\"}"), frame("deleted", None, "{}")],
                "{size}"
            );
        }
    }
}
