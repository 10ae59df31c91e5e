//! Reads session files of any format into entries.

use super::claude::ClaudeCode;
use super::codex::Codex;
use super::detect::{self, HEAD_BYTES, Layout};
use super::elements::{Elements, Fragment};
use super::expand::Expanded;
use super::gemini::Gemini;
use super::kimi_code::KimiCode;
use super::line::{self, made};
use super::lines::{LineRead, Lines};
use super::linked::Linked;
use super::messages::Messages;
use super::opencode::Opencode;
use super::{AgentEntry, AgentFormat, EntryContent, FileProblem, LINE_BYTES_MAX, Thread};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use everturn_core::Error;
use everturn_core::error::code;
use everturn_core::json::{self, Raw};
use everturn_core::time::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;
use std::collections::VecDeque;
use std::io::{self, BufRead, Cursor, Read};

/// Maps the lines of one format to entries.
pub(super) trait Mapper {
    /// The conversations so far.
    fn threads(&self) -> &[Thread];
    /// One line or element, which is JSON.
    fn take(&mut self, number: u64, text: &str, out: &mut Vec<AgentEntry>);
    /// One that is not, in an object that holds it. `taken` is the JSON that was taken in its place, if any.
    fn keep(&mut self, number: u64, what: &str, body: Raw, taken: Option<&str>, out: &mut Vec<AgentEntry>);
    /// A field beside the messages, where the file is one value.
    fn field(&mut self, _name: &str, _text: &str) {}
    /// The file ends here, for now.
    fn settle(&mut self, out: &mut Vec<AgentEntry>);
}

/// A file that was looked into.
pub enum Opened<R: BufRead> {
    /// One of these formats.
    Agent(Reader<R>),
    /// None of them: its first bytes, and the rest.
    Other(Vec<u8>, Expanded<R>),
}

/// Detects the format of a file, which may be compressed. `name` is the session id if the file itself has none.
pub fn open<R: BufRead>(source: R, name: Option<&str>) -> Result<Opened<R>, Error> {
    let mut source = Expanded::new(source).map_err(|error| unreadable(&error))?;
    let mut head = Vec::new();
    source.by_ref().take(HEAD_BYTES as u64).read_to_end(&mut head).map_err(|error| unreadable(&error))?;
    if source.is_cut() && head.is_empty() {
        let text = "the compressed file is cut off, and nothing of it can be expanded; import it again once it is whole";
        return Err(Error::invalid("import.cut_off", text));
    }
    match detect::layout(&head) {
        Some((format, layout)) => Ok(Opened::Agent(Reader::new(format, layout, head, source, name))),
        None => Ok(Opened::Other(head, source)),
    }
}

/// Bytes of a file in which its first timestamp is searched.
const FIRST_TIME_BYTES: u64 = 1024 * 1024;

/// The first timestamp of a file, which may be compressed. Nothing else of it is read.
pub fn first_time(source: impl BufRead) -> Option<Timestamp> {
    let mut head = Vec::new();
    // The part before a failure may do.
    let _ = Expanded::new(source).ok()?.take(FIRST_TIME_BYTES).read_to_end(&mut head);
    let text = String::from_utf8_lossy(&head);
    // A key inside a string would have its quotes escaped.
    let keys = ["\"timestamp\"", "\"startTime\""];
    let mut places: Vec<usize> =
        keys.iter().flat_map(|key| text.match_indices(key).map(|(at, key)| at + key.len())).collect();
    places.sort_unstable();
    places.into_iter().find_map(|at| {
        let value = text[at..].trim_start().strip_prefix(':')?.trim_start();
        match value.strip_prefix('"') {
            Some(text) => line::time_of(&format!("\"{}\"", text.split('"').next()?)),
            None => line::time_of(value.split([',', '}', ']', '\r', '\n']).next()?.trim()),
        }
    })
}

type Source<R> = io::Chain<Cursor<Vec<u8>>, Expanded<R>>;

enum Input<R: BufRead> {
    Lines(Lines<Source<R>>),
    Value { elements: Elements<Source<R>>, number: u64 },
}

/// Gives the entries of a file one by one. An `Err` ends the iteration: the source failed.
pub struct Reader<R: BufRead> {
    format: AgentFormat,
    input: Input<R>,
    mapper: Box<dyn Mapper + Send>,
    ready: VecDeque<AgentEntry>,
    problems: Vec<FileProblem>,
    lines: u64,
    /// Time of the line before: a turn without a readable time was said about then.
    last: Option<Timestamp>,
    done: bool,
}

impl<R: BufRead> Reader<R> {
    fn new(
        format: AgentFormat,
        layout: Layout,
        head: Vec<u8>,
        source: Expanded<R>,
        name: Option<&str>,
    ) -> Reader<R> {
        let name = name.map(str::to_string);
        let mapper: Box<dyn Mapper + Send> = match format {
            AgentFormat::ClaudeCode => Box::new(ClaudeCode::new(name, &head)),
            AgentFormat::Codex => Box::new(Codex::new(name)),
            AgentFormat::Gemini => Box::new(Gemini::new(name)),
            AgentFormat::Pi | AgentFormat::Droid | AgentFormat::Qwen | AgentFormat::Copilot => {
                Box::new(Linked::new(format, name))
            }
            AgentFormat::KimiCode => Box::new(KimiCode::new(name)),
            AgentFormat::Opencode => Box::new(Opencode::new(name)),
            other => Box::new(Messages::new(other, name)),
        };
        let last = first_time(&head[..]);
        let source = Cursor::new(head).chain(source);
        let input = match layout {
            Layout::Lines => Input::Lines(Lines::new(source)),
            Layout::Value => Input::Value { elements: Elements::new(source), number: 0 },
        };
        let (ready, problems) = (VecDeque::new(), Vec::new());
        Reader { format, input, mapper, ready, problems, lines: 0, last, done: false }
    }

    /// Format of the file.
    pub fn format(&self) -> AgentFormat {
        self.format
    }

    /// Conversations found so far.
    pub fn threads(&self) -> &[Thread] {
        self.mapper.threads()
    }

    /// Unit that [`Reader::lines`] counts, for messages.
    pub fn unit(&self) -> &'static str {
        if self.lines_only() { "line" } else { "element" }
    }

    /// Number of lines or elements read.
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// Bytes of the (expanded) file read so far.
    pub fn offset(&self) -> u64 {
        match &self.input {
            Input::Lines(lines) => lines.offset(),
            Input::Value { elements, .. } => elements.offset(),
        }
    }

    fn is_cut(&self) -> bool {
        let source = match &self.input {
            Input::Lines(lines) => lines.source(),
            Input::Value { elements, .. } => elements.source(),
        };
        source.get_ref().1.is_cut()
    }

    /// Takes the problems found since the last call.
    pub fn problems(&mut self) -> Vec<FileProblem> {
        std::mem::take(&mut self.problems)
    }

    /// Reads a line or an element further.
    fn advance(&mut self) -> Result<(), Error> {
        let mut out = Vec::new();
        let offset = self.offset();
        let found = match &mut self.input {
            Input::Lines(lines) => match lines.next().map_err(|error| unreadable(&error))? {
                None => NextLine::End,
                Some(LineRead::Skipped { number, bytes }) => NextLine::Skipped(number, bytes),
                Some(LineRead::Line { number, bytes, last }) => {
                    NextLine::Text { number, bytes: bytes.to_vec(), last }
                }
            },
            Input::Value { elements, number } => {
                match elements.next().map_err(|error| unreadable(&error))? {
                    None => NextLine::End,
                    Some(Fragment::Torn) => NextLine::Torn,
                    Some(Fragment::Field(name, bytes)) => {
                        if let Ok(text) = std::str::from_utf8(&bytes).map(json::replace_lone_surrogates)
                            && json::check(&text).is_ok()
                        {
                            self.mapper.field(&name, &text);
                        }
                        return Ok(());
                    }
                    Some(Fragment::Skipped(bytes)) => {
                        *number += 1;
                        NextLine::Skipped(*number, bytes)
                    }
                    Some(Fragment::Element(bytes)) => {
                        *number += 1;
                        NextLine::Text { number: *number, bytes, last: false }
                    }
                }
            }
        };
        match found {
            NextLine::Text { number, bytes, last } => {
                if self.text(number, &bytes, last, &mut out) {
                    self.lines += 1;
                } else {
                    let text = format!(
                        "the last line is cut off at byte {offset} ({} bytes); it is taken over once it is whole",
                        bytes.len()
                    );
                    self.problems.push(FileProblem { line: number, text });
                }
            }
            NextLine::Skipped(line, bytes) => {
                let text = format!("LINE_BYTES_MAX is {LINE_BYTES_MAX}, this is {bytes}; left out");
                self.problems.push(FileProblem { line, text });
                self.lines += 1;
            }
            NextLine::Torn => {
                let text = format!("the file is not whole JSON from byte {} on; left out", self.offset());
                let line = match &self.input {
                    Input::Lines(_) => self.lines + 1,
                    Input::Value { elements, .. } => elements.line(),
                };
                self.problems.push(FileProblem { line, text });
            }
            NextLine::End => {
                self.done = true;
                if self.is_cut() {
                    let text = format!("the compressed file is cut off after its byte {offset}, expanded");
                    self.problems.push(FileProblem { line: self.lines, text });
                }
                self.mapper.settle(&mut out);
            }
        }
        for entry in &mut out {
            if matches!(entry.step, EntryContent::Turn(_)) {
                entry.at = entry.at.or(self.last);
            }
            self.last = entry.at.or(self.last);
        }
        self.ready.extend(out);
        Ok(())
    }

    /// Takes a line; false if it is incomplete.
    fn text(&mut self, number: u64, bytes: &[u8], last: bool, out: &mut Vec<AgentEntry>) -> bool {
        let reason = match std::str::from_utf8(bytes).map(|text| (text, json::check(text))) {
            Ok((text, Ok(()))) => {
                self.mapper.take(number, text, out);
                return true;
            }
            Ok((text, Err(error))) => {
                let replaced = json::replace_lone_surrogates(text);
                if let Some(values) = self.values(&replaced) {
                    values.iter().for_each(|value| self.mapper.take(number, value, out));
                    if replaced != text {
                        let body = kept(&Unreadable { text, base64: None, reason: error.text() });
                        self.mapper.keep(number, "unreadable", body, values.first().copied(), out);
                    }
                    return true;
                }
                if last {
                    return false;
                }
                error.text().to_string()
            }
            Err(error) => {
                let reason = format!("not UTF-8 at its byte {}", error.valid_up_to());
                let lossy = String::from_utf8_lossy(bytes);
                let replaced = json::replace_lone_surrogates(&lossy);
                if let Some(values) = self.values(&replaced) {
                    values.iter().for_each(|value| self.mapper.take(number, value, out));
                    let base64 = Some(BASE64.encode(bytes));
                    let body = kept(&Unreadable { text: &lossy, base64, reason: &reason });
                    self.mapper.keep(number, "unreadable", body, values.first().copied(), out);
                    return true;
                }
                if last {
                    return false;
                }
                reason
            }
        };
        let lossy = String::from_utf8_lossy(bytes);
        // A line that was cut off when the program died, with another one written after it.
        let glued = (self.lines_only()).then(|| glued(&lossy)).flatten();
        let text = glued.map_or(&*lossy, |at| &lossy[..at]);
        let base64 = std::str::from_utf8(bytes).is_err().then(|| BASE64.encode(bytes));
        let body = kept(&Unreadable { text, base64, reason: &reason });
        self.mapper.keep(number, "unreadable", body, None, out);
        if let Some(at) = glued {
            self.mapper.take(number, &lossy[at..], out);
        }
        true
    }

    /// The values of a line that is no JSON as a whole, or was none before it was mended.
    fn values<'a>(&self, line: &'a str) -> Option<Vec<&'a str>> {
        if line.starts_with('{') && json::check(line).is_ok() {
            return Some(vec![line]);
        }
        let values = detect::values(line).filter(|_| self.lines_only())?;
        Some(values.into_iter().map(RawValue::get).collect())
    }

    fn lines_only(&self) -> bool {
        matches!(self.input, Input::Lines(_))
    }
}

/// A line that is not JSON.
#[derive(Serialize)]
struct Unreadable<'a> {
    text: &'a str,
    /// Original bytes, where the text lost some of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
    reason: &'a str,
}

fn kept(line: &Unreadable<'_>) -> Raw {
    made(serde_json::to_string(line).unwrap_or_default())
}

enum NextLine {
    Text { number: u64, bytes: Vec<u8>, last: bool },
    Skipped(u64, u64),
    Torn,
    End,
}

/// Start of a whole object at the end of a broken line.
fn glued(line: &str) -> Option<usize> {
    const TRIES: usize = 64;
    let starts = line.match_indices("{\"").map(|(at, _)| at).filter(|at| *at > 0);
    starts.take(TRIES).find(|at| line.as_bytes()[at - 1] != b':' && json::check(&line[*at..]).is_ok())
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<AgentEntry, Error>;

    fn next(&mut self) -> Option<Result<AgentEntry, Error>> {
        loop {
            if let Some(entry) = self.ready.pop_front() {
                return Some(Ok(entry));
            }
            if self.done {
                return None;
            }
            if let Err(error) = self.advance() {
                self.done = true;
                return Some(Err(error));
            }
        }
    }
}

fn unreadable(error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::FileTooLarge => Error::too_large(code::LIMIT_EXCEEDED, error.to_string()),
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::Other => {
            Error::invalid("import.malformed", format!("cannot read the file: {error}"))
        }
        _ => Error::internal("file.io", format!("cannot read the file: {error}")),
    }
}
