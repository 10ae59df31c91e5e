//! One large JSON value, element by element: the elements of a list, or an object whose lists of messages are given
//! element by element and whose other fields are given whole.

use super::LINE_BYTES_MAX;
use std::io::{self, BufRead};

/// The fields of an object whose elements are messages, or lines of a session.
const LISTS: [&str; 7] = ["messages", "input", "contents", "items", "output", "history", "loglines"];

/// A piece of the value.
#[derive(Debug, PartialEq)]
pub enum Fragment {
    /// An element of a list of messages.
    Element(Vec<u8>),
    /// Another field of the object: its name and its JSON.
    Field(String, Vec<u8>),
    /// A value that was too long and has been skipped.
    Skipped(u64),
    /// The value ended early.
    Torn,
}

/// Gives the pieces of a value.
pub struct Elements<R> {
    source: R,
    place: ParserState,
    offset: u64,
    line: u64,
    done: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum ParserState {
    Start,
    /// In a list, which is the whole value or a field of it.
    List {
        within: bool,
    },
    Object,
    End,
}

impl<R: BufRead> Elements<R> {
    pub fn new(source: R) -> Elements<R> {
        Elements { source, place: ParserState::Start, offset: 0, line: 1, done: false }
    }

    pub fn source(&self) -> &R {
        &self.source
    }

    /// Bytes of the file read so far.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Line of the file that was reached.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// The next piece.
    pub fn next(&mut self) -> io::Result<Option<Fragment>> {
        if self.done {
            return Ok(None);
        }
        loop {
            let Some(byte) = self.peek_token()? else {
                self.done = true;
                return Ok((self.place != ParserState::End).then_some(Fragment::Torn));
            };
            match (self.place, byte) {
                (ParserState::Start, b'[') => self.enter(ParserState::List { within: false })?,
                (ParserState::Start, b'{') => self.enter(ParserState::Object)?,
                (ParserState::List { within }, b']') => {
                    self.enter(if within { ParserState::Object } else { ParserState::End })?;
                }
                (ParserState::List { .. } | ParserState::Object, b',') => self.skip()?,
                (ParserState::Object, b'}') => self.enter(ParserState::End)?,
                (ParserState::List { .. }, _) => {
                    return Ok(Some(match self.value()? {
                        Value::Whole(bytes) => Fragment::Element(bytes),
                        Value::TooLong(bytes) => Fragment::Skipped(bytes),
                        Value::Torn => self.torn(),
                    }));
                }
                (ParserState::Object, b'"') => {
                    let Value::Whole(name) = self.value()? else { return Ok(Some(self.torn())) };
                    let name: String = serde_json::from_slice(&name).unwrap_or_default();
                    if self.peek_token()? != Some(b':') {
                        return Ok(Some(self.torn()));
                    }
                    self.skip()?;
                    if self.peek_token()? == Some(b'[') && LISTS.contains(&name.as_str()) {
                        self.enter(ParserState::List { within: true })?;
                        continue;
                    }
                    return Ok(Some(match self.value()? {
                        Value::Whole(bytes) => Fragment::Field(name, bytes),
                        Value::TooLong(bytes) => Fragment::Skipped(bytes),
                        Value::Torn => self.torn(),
                    }));
                }
                // Bytes after the end, or bytes that are not JSON.
                (ParserState::End | ParserState::Start | ParserState::Object, _) => {
                    return Ok(Some(self.torn()));
                }
            }
        }
    }

    fn torn(&mut self) -> Fragment {
        // Nothing after it can be trusted; the source is left where it is.
        self.done = true;
        Fragment::Torn
    }

    fn enter(&mut self, place: ParserState) -> io::Result<()> {
        self.place = place;
        self.skip()
    }

    fn skip(&mut self) -> io::Result<()> {
        self.source.consume(1);
        self.offset += 1;
        Ok(())
    }

    /// The next byte that is not space; not consumed.
    fn peek_token(&mut self) -> io::Result<Option<u8>> {
        loop {
            let available = self.source.fill_buf()?;
            if available.is_empty() {
                return Ok(None);
            }
            let at_start = self.offset < 3;
            let space =
                |byte: &u8| byte.is_ascii_whitespace() || (at_start && [0xef, 0xbb, 0xbf].contains(byte));
            match available.iter().position(|byte| !space(byte)) {
                Some(at) => {
                    let byte = available[at];
                    self.line += breaks(&available[..at]);
                    self.source.consume(at);
                    self.offset += at as u64;
                    return Ok(Some(byte));
                }
                None => {
                    let bytes = available.len();
                    self.line += breaks(available);
                    self.source.consume(bytes);
                    self.offset += bytes as u64;
                }
            }
        }
    }

    /// Bytes of the value that begins here. Looks only for its end, not at its content.
    fn value(&mut self) -> io::Result<Value> {
        let mut out = Vec::new();
        let (mut depth, mut in_string, mut escaped) = (0_u64, false, false);
        let mut bytes = 0_u64;
        loop {
            let available = self.source.fill_buf()?;
            if available.is_empty() {
                let scalar = depth == 0 && !in_string && !out.is_empty();
                return Ok(if scalar { Value::Whole(out) } else { Value::Torn });
            }
            let mut end = None;
            for (at, byte) in available.iter().enumerate() {
                if in_string {
                    match byte {
                        _ if escaped => escaped = false,
                        b'\\' => escaped = true,
                        b'"' => {
                            in_string = false;
                            if depth == 0 {
                                end = Some(at + 1);
                                break;
                            }
                        }
                        _ => {}
                    }
                    continue;
                }
                match byte {
                    b'"' => in_string = true,
                    b'{' | b'[' => depth += 1,
                    b'}' | b']' if depth > 1 => depth -= 1,
                    b'}' | b']' if depth == 1 => {
                        end = Some(at + 1);
                        break;
                    }
                    // The end of a number or a word.
                    b'}' | b']' | b',' | b' ' | b'\n' | b'\r' | b'\t' | b':' if depth == 0 => {
                        end = Some(at);
                        break;
                    }
                    _ => {}
                }
            }
            let used = end.unwrap_or(available.len());
            bytes += used as u64;
            if bytes <= LINE_BYTES_MAX as u64 {
                out.extend_from_slice(&available[..used]);
            } else {
                out = Vec::new();
            }
            self.line += breaks(&available[..used]);
            self.source.consume(used);
            self.offset += used as u64;
            if end.is_some() {
                return Ok(match bytes {
                    // A stray byte is no value, and reading it again would find it again.
                    0 => Value::Torn,
                    bytes if bytes > LINE_BYTES_MAX as u64 => Value::TooLong(bytes),
                    _ => Value::Whole(out),
                });
            }
        }
    }
}

enum Value {
    Whole(Vec<u8>),
    TooLong(u64),
    Torn,
}

fn breaks(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|byte| **byte == b'\n').count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(text: &str) -> Vec<String> {
        // Two bytes at a time, so that every place is also the end of a piece that was read.
        let source = io::BufReader::with_capacity(2, text.as_bytes());
        let mut elements = Elements::new(source);
        let mut out = Vec::new();
        while let Some(piece) = elements.next().unwrap() {
            out.push(match piece {
                Fragment::Element(bytes) => String::from_utf8(bytes).unwrap(),
                Fragment::Field(name, bytes) => format!("{name}={}", String::from_utf8(bytes).unwrap()),
                Fragment::Skipped(bytes) => format!("skipped {bytes}"),
                Fragment::Torn => "torn".into(),
            });
            assert!(out.len() < 100);
        }
        out
    }

    #[test]
    fn lists_and_objects_come_in_pieces() {
        assert_eq!(
            pieces(r#" [ {"a":"]\"}"} , 12, [1,[2]] ,"x\\" ] "#),
            [r#"{"a":"]\"}"}"#, "12", "[1,[2]]", r#""x\\""#]
        );
        let object = r#"{"sessionId":"s","messages":[{"id":1},{"id":2}],"n":{"messages":[3]},"t":1.5}"#;
        assert_eq!(
            pieces(object),
            [r#"sessionId="s""#, r#"{"id":1}"#, r#"{"id":2}"#, r#"n={"messages":[3]}"#, "t=1.5"]
        );
        assert_eq!(pieces("[]"), [""; 0]);
        assert_eq!(pieces("\u{feff}[1]"), ["1"]);
        for torn in ["[1,{\"a\":", "{\"a\"", "{\"a\" 1}", "{1}", "[1] x", "[:", "{\"messages\":[1"] {
            assert_eq!(pieces(torn).last().unwrap(), "torn", "{torn}");
        }
    }
}
