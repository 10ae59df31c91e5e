//! Server-sent events: bytes to events, wherever the bytes are cut.

use everturn_core::Error;

/// Largest single event, in bytes. The last event of a Responses stream repeats the whole answer.
pub const SSE_EVENT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// One event with data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SseEvent {
    /// Its name, if it has one.
    pub name: Option<String>,
    /// The place to resume from that it brings.
    pub id: Option<String>,
    /// Its data; several `data:` lines are joined by a line feed.
    pub data: String,
}

/// Cuts a stream of bytes into events.
///
/// Lines end with LF, CRLF or CR; a piece may end anywhere, in the middle of a character as well. `retry` is for browsers
/// and left aside.
#[derive(Debug)]
pub struct Parser {
    line: Vec<u8>,
    name: Option<String>,
    id: Option<String>,
    data: Option<String>,
    /// The last byte was CR: an LF that follows belongs to it.
    after_cr: bool,
    /// Whether no line has ended yet, so that a byte order mark may still come.
    first: bool,
    event_bytes_max: usize,
}

impl Default for Parser {
    fn default() -> Parser {
        Parser::new(SSE_EVENT_BYTES_MAX)
    }
}

impl Parser {
    /// A parser that refuses events above this size.
    pub fn new(event_bytes_max: usize) -> Parser {
        Parser {
            line: Vec::new(),
            name: None,
            id: None,
            data: None,
            after_cr: false,
            first: true,
            event_bytes_max,
        }
    }

    /// Takes the next bytes and adds the events they complete, also when something wrong comes after them.
    pub fn feed(&mut self, mut bytes: &[u8], events: &mut Vec<SseEvent>) -> Result<(), Error> {
        if self.after_cr && !bytes.is_empty() {
            self.after_cr = false;
            bytes = bytes.strip_prefix(b"\n").unwrap_or(bytes);
        }
        while let Some(end) = bytes.iter().position(|b| matches!(b, b'\n' | b'\r')) {
            self.grow(&bytes[..end])?;
            let cr = bytes[end] == b'\r';
            bytes = &bytes[end + 1..];
            if cr {
                match bytes.first() {
                    Some(b'\n') => bytes = &bytes[1..],
                    Some(_) => {}
                    None => self.after_cr = true,
                }
            }
            events.extend(self.line()?);
        }
        self.grow(bytes)
    }

    /// The event that was begun when the stream ended. By the letter of the standard it is to be dropped; a server that
    /// leaves out the last empty line means it all the same. Whoever reads it must expect half of one.
    pub fn finish(mut self) -> Option<SseEvent> {
        if !self.line.is_empty() {
            self.line().ok()?;
        }
        self.dispatch()
    }

    fn grow(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let size = self.line.len() + bytes.len() + self.data.as_ref().map_or(0, String::len);
        if size > self.event_bytes_max {
            let advice = "the server sends more in one event than an answer can be; ask another server";
            return Err(Error::limit(
                "SSE_EVENT_BYTES_MAX",
                self.event_bytes_max as u64,
                size as u64,
                advice,
            ));
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    fn line(&mut self) -> Result<Option<SseEvent>, Error> {
        let taken = std::mem::take(&mut self.line);
        let mut line = std::str::from_utf8(&taken)
            .map_err(|_| Error::internal("model.garbage", "the event stream is not UTF-8"))?;
        if std::mem::take(&mut self.first) {
            line = line.strip_prefix('\u{feff}').unwrap_or(line);
        }
        if line.is_empty() {
            return Ok(self.dispatch());
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => match &mut self.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => self.data = Some(value.to_string()),
            },
            "event" => self.name = Some(value.to_string()),
            "id" => self.id = Some(value.to_string()),
            // A comment (its field is empty), `retry`, or an unknown field.
            _ => {}
        }
        Ok(None)
    }

    fn dispatch(&mut self) -> Option<SseEvent> {
        let name = self.name.take().filter(|name| !name.is_empty());
        let id = self.id.take();
        self.data.take().map(|data| SseEvent { name, id, data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(pieces: &[&[u8]]) -> Vec<(Option<String>, String)> {
        let mut parser = Parser::default();
        let mut events = Vec::new();
        for piece in pieces {
            parser.feed(piece, &mut events).unwrap();
        }
        events.into_iter().map(|e| (e.name, e.data)).collect()
    }

    fn data(text: &str) -> (Option<String>, String) {
        (None, text.to_string())
    }

    #[test]
    fn every_line_end_comment_and_field_of_the_standard() {
        for (bytes, expected) in [
            ("data: a\n\ndata: b\n\n", vec![data("a"), data("b")]),
            ("data: a\r\n\r\ndata: b\r\n\r\n", vec![data("a"), data("b")]),
            ("data: a\r\rdata: b\r\r", vec![data("a"), data("b")]),
            ("\u{feff}data: a\n\n", vec![data("a")]),
            ("data: \u{feff}\n\n\u{feff}data: b\n\n", vec![data("\u{feff}")]),
            (": hello\n\n:\n\ndata:a\n\n", vec![data("a")]),
            ("data:  two\ndata\ndata: three\n\n", vec![data(" two\n\nthree")]),
            (
                "event: x\nid: 1\nretry: 5\nnonsense\ndata: a\n\ndata: b\n\n",
                vec![(Some("x".to_string()), "a".to_string()), data("b")],
            ),
            ("event: lost\n\ndata: a\n\n", vec![data("a")]),
            ("data:\n\n", vec![data("")]),
            ("data: unfinished\n", vec![]),
        ] {
            assert_eq!(read(&[bytes.as_bytes()]), expected, "{bytes:?}");
        }
    }

    #[test]
    fn an_id_belongs_to_its_event_alone() {
        let mut events = Vec::new();
        let text = "id: 1\n\nevent: x\nid: 4.7\ndata: {\"a\":\ndata: \"é\"}\n\ndata: b\r\n\r\n";
        Parser::default().feed(text.as_bytes(), &mut events).unwrap();
        let event = |name: Option<&str>, id: Option<&str>, data: &str| SseEvent {
            name: name.map(str::to_string),
            id: id.map(str::to_string),
            data: data.to_string(),
        };
        assert_eq!(events, [event(Some("x"), Some("4.7"), "{\"a\":\n\"é\"}"), event(None, None, "b")]);
    }

    #[test]
    fn an_event_without_its_last_empty_line_is_given_at_the_end() {
        for bytes in ["data: a\ndata: b", "data: a\ndata: b\n", "data: a\r\ndata: b\r"] {
            let mut parser = Parser::default();
            let mut events = Vec::new();
            parser.feed(bytes.as_bytes(), &mut events).unwrap();
            assert!(events.is_empty());
            assert_eq!(parser.finish().unwrap().data, "a\nb");
        }
        let mut parser = Parser::default();
        parser.feed(b"data: \xf0\x9f", &mut Vec::new()).unwrap();
        assert_eq!(parser.finish(), None);
    }

    #[test]
    fn an_event_above_the_limit_is_refused_with_both_numbers() {
        let mut events = Vec::new();
        let mut parser = Parser::new(10);
        let error = parser.feed(b"data: a\n\ndata: 0123456789", &mut events).unwrap_err();
        assert_eq!(events.len(), 1);
        assert!(error.text().contains("SSE_EVENT_BYTES_MAX is 10, this is 16"), "{error}");
        // Many short lines are one event as well.
        let mut parser = Parser::new(20);
        let error = (0..100).find_map(|_| parser.feed(b"data: 01\n", &mut events).err()).unwrap();
        assert_eq!(error.code(), "limit.exceeded");
        // Many small events are not.
        let mut parser = Parser::new(20);
        assert!((0..100).all(|_| parser.feed(b"data: 01\n\n", &mut events).is_ok()));
        assert_eq!(events.len(), 101);
    }

    #[test]
    fn bytes_that_are_no_text_are_an_error() {
        assert_eq!(
            Parser::default().feed(b"data: \xff\n\n", &mut Vec::new()).unwrap_err().code(),
            "model.garbage"
        );
    }

    fn line_end() -> impl Strategy<Value = &'static str> {
        prop_oneof![Just("\n"), Just("\r\n"), Just("\r")]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// However the bytes are cut, the events are the same.
        #[test]
        fn cut_anywhere_the_events_are_the_same(
            lines in prop::collection::vec(("(data|event|id|)?:? ?[a😀é:\u{feff} ]{0,6}", line_end()), 0..20),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let text: String = lines.iter().flat_map(|(line, end)| [line.as_str(), end]).collect();
            let bytes = text.as_bytes();
            let whole = read(&[bytes]);
            let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            at.extend([0, bytes.len()]);
            at.sort_unstable();
            let pieces: Vec<&[u8]> = at.windows(2).map(|w| &bytes[w[0]..w[1]]).collect();
            prop_assert_eq!(&read(&pieces), &whole);
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            prop_assert_eq!(&read(&single), &whole);
        }

        /// Written events are read back, whatever the line end.
        #[test]
        fn what_is_written_comes_back(texts in prop::collection::vec("[^\r\n\u{0}]{0,10}", 1..6), end in line_end()) {
            let mut bytes = String::new();
            for text in &texts {
                bytes.push_str(&format!("data: {text}{end}{end}"));
            }
            prop_assert_eq!(read(&[bytes.as_bytes()]), texts.iter().map(|t| data(t)).collect::<Vec<_>>());
        }

        /// Any bytes at all: an error, or events, never a panic.
        #[test]
        fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut parser = Parser::new(64);
            if parser.feed(&bytes, &mut Vec::new()).is_ok() {
                parser.finish();
            }
        }
    }
}
