//! The bytes of an answer, as they come from the connection, to deltas and the answer.

use super::failure::{Class, Failure};
use super::sse::{Parser, SSE_EVENT_BYTES_MAX};
use super::{Assemble, Delta, ModelReply, Protocol};
use everturn_core::Error;

/// Largest answer, in bytes on the wire.
pub const MODEL_ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Reads one answer. Its form is told from its first bytes and not from the content type, which many servers
/// get wrong: events, or one JSON value from a server that does not stream.
pub struct Reader {
    form: Form,
    assembly: Box<dyn Assemble>,
    read: usize,
    events: usize,
    bytes_max: usize,
}

enum Form {
    /// Nothing but white space so far.
    Unknown(Vec<u8>),
    Events(Parser),
    Whole(Vec<u8>),
}

impl Reader {
    /// Reads an answer of that kind, of at most so many bytes.
    pub fn new(kind: Protocol, bytes_max: usize) -> Reader {
        Reader { form: Form::Unknown(Vec::new()), assembly: kind.assembly(), read: 0, events: 0, bytes_max }
    }

    /// Takes the next bytes. Adds their deltas to `deltas`, also if they end in a failure.
    pub fn feed(&mut self, bytes: &[u8], deltas: &mut Vec<Delta>) -> Result<(), Failure> {
        self.read += bytes.len();
        if self.read > self.bytes_max {
            let advice =
                "the server sends more than an answer can be; set max_output_tokens or ask another server";
            return Err(Error::limit(
                "MODEL_ANSWER_BYTES_MAX",
                self.bytes_max as u64,
                self.read as u64,
                advice,
            )
            .into());
        }
        match &mut self.form {
            Form::Whole(body) => body.extend_from_slice(bytes),
            Form::Events(parser) => {
                let mut events = Vec::new();
                let fed = parser.feed(bytes, &mut events);
                for event in events {
                    self.events += 1;
                    deltas.extend(self.assembly.event(&event)?);
                }
                fed?;
            }
            Form::Unknown(begun) => {
                begun.extend_from_slice(bytes);
                let begun = std::mem::take(begun);
                const MARK: &[u8] = b"\xef\xbb\xbf";
                let text =
                    begun.strip_prefix(MARK).unwrap_or(if MARK.starts_with(&begun) { b"" } else { &begun });
                match text.iter().find(|byte| !byte.is_ascii_whitespace()) {
                    None => self.form = Form::Unknown(begun),
                    Some(b'{' | b'[') => self.form = Form::Whole(text.to_vec()),
                    Some(b'<') => return Err(Failure::garbage("a page of HTML")),
                    Some(_) => {
                        self.form = Form::Events(Parser::new(SSE_EVENT_BYTES_MAX.min(self.bytes_max)));
                        self.read = 0;
                        return self.feed(&begun, deltas);
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether the server said that the answer is over. It may be that the connection stays open.
    pub fn ended(&self) -> bool {
        self.assembly.ended()
    }

    /// Whether the answer is whole, so that nothing is lost when the connection breaks now.
    pub fn complete(&self) -> bool {
        self.assembly.complete()
    }

    /// Ends the input and returns the answer. Adds the last deltas to `deltas`.
    pub fn finish(mut self, deltas: &mut Vec<Delta>) -> Result<ModelReply, Failure> {
        match self.form {
            Form::Whole(body) => {
                let body = String::from_utf8(body).map_err(|_| Failure::garbage("it is not UTF-8"))?;
                deltas.extend(self.assembly.whole(&body)?);
                return self.assembly.answer();
            }
            Form::Events(parser) if !self.assembly.complete() => {
                // Half an event is not worth an error of its own: the answer was cut.
                if let Some(more) = parser.finish().and_then(|event| self.assembly.event(&event).ok()) {
                    deltas.extend(more);
                    self.events += 1;
                }
                if !self.assembly.complete() && self.events == 0 {
                    return Err(Failure::garbage("it holds no events"));
                }
            }
            Form::Events(_) => {}
            Form::Unknown(_) => return Err(Failure::new(Class::Cut, "nothing came")),
        }
        if !self.assembly.complete() {
            return Err(Failure::new(Class::Cut, "the connection ended in the middle"));
        }
        self.assembly.answer()
    }
}
