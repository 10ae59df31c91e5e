//! A message whose blocks come line by line, and the lines between them.

use super::super::line::{Line, made};
use super::super::{AgentEntry, EntryContent, ParsedTurn, nth};
use super::{METADATA, tokens};
use everturn_core::time::Timestamp;
use std::borrow::Cow;

/// Most lines and bytes that wait for a message to be whole. A block that comes later is a turn of its own.
const LINES_MAX: usize = 256;
const BYTES_MAX: usize = 4 * 1024 * 1024;

/// One message and the lines since its first block.
pub struct Bundle {
    /// The message's own id.
    id: String,
    /// Number of turns before its blocks.
    depth: Option<u32>,
    /// The turn; its message is put together when it is given.
    turn: AgentEntry,
    blocks: Vec<Block>,
    others: Vec<Other>,
    bytes: usize,
    /// The version of the turn that was given.
    given: Option<u64>,
}

/// One line of the message.
struct Block {
    message: String,
    /// Everything else in the line.
    rest: String,
    /// The message without its content: state of the whole at an earlier line, such as its usage so far.
    frame: String,
}

/// Another line.
struct Other {
    entry: AgentEntry,
    /// Blocks that came before it.
    before: usize,
    /// Whether it must come after the message's last block.
    follows: bool,
    given: Option<u64>,
}

impl Bundle {
    pub fn new(
        turn: AgentEntry,
        id: &str,
        depth: Option<u32>,
        line: &Line<'_>,
        message: &Line<'_>,
    ) -> Bundle {
        let mut bundle = Bundle {
            id: id.to_string(),
            depth,
            turn,
            blocks: Vec::new(),
            others: Vec::new(),
            bytes: 0,
            given: None,
        };
        bundle.push(line, message);
        bundle
    }

    pub fn is(&self, id: &str) -> bool {
        self.id == id
    }

    pub fn depth(&self) -> Option<u32> {
        self.depth
    }

    pub fn is_full(&self) -> bool {
        self.blocks.len() + self.others.len() >= LINES_MAX || self.bytes > BYTES_MAX
    }

    fn push(&mut self, line: &Line<'_>, message: &Line<'_>) {
        let text = line.raw("message").unwrap_or_default().to_string();
        self.bytes += text.len() * 2;
        self.blocks.push(Block {
            message: text,
            rest: line.without("message"),
            frame: line.with("message", Some(&message.without("content"))),
        });
    }

    /// A further block. The turn keeps the time of the first.
    pub fn block(&mut self, line: &Line<'_>, message: &Line<'_>, at: Option<Timestamp>) {
        self.push(line, message);
        self.turn.at = self.turn.at.or(at);
        if let EntryContent::Turn(said) = &mut self.turn.step {
            // Counts grow from line to line; the last one is the total.
            said.tokens = tokens(message).or(said.tokens);
            said.model = said.model.take().or_else(|| message.text("model").map(Cow::into_owned));
        }
    }

    /// A tool result.
    pub fn result(&mut self, entry: AgentEntry) {
        self.other(entry, true);
    }

    /// A line that is no turn.
    pub fn also(&mut self, entry: AgentEntry) {
        self.other(entry, false);
    }

    fn other(&mut self, entry: AgentEntry, follows: bool) {
        self.bytes += match &entry.step {
            EntryContent::Turn(said) => {
                said.message.len() + said.metadata.values().map(|raw| raw.get().len()).sum::<usize>()
            }
            EntryContent::Event { body, .. } | EntryContent::Compaction { body, .. } => body.get().len(),
            EntryContent::System(text) => text.len(),
        };
        self.others.push(Other { entry, before: self.blocks.len(), follows, given: None });
    }

    /// Emits everything not emitted yet, in its current version.
    pub fn give(&mut self, out: &mut Vec<AgentEntry>) {
        let key = nth(self.turn.name, self.blocks.len() as u64 - 1);
        if self.given != Some(key) {
            self.given = Some(key);
            let mut turn = AgentEntry { key, ..self.turn.clone() };
            // Once it has taken their place, they are not there any more for a newer version.
            if let EntryContent::Turn(said) = &mut self.turn.step {
                said.supersedes.clear();
            }
            self.turn.title = None;
            if let EntryContent::Turn(said) = &mut turn.step {
                self.join(said);
            }
            out.push(turn);
        }
        for other in &mut self.others {
            // A block that came after a result makes the message a new turn; then the result must follow that one.
            let later = if other.follows { self.blocks.len() - other.before } else { 0 };
            let key = nth(other.entry.name, later as u64);
            if other.given != Some(key) {
                other.given = Some(key);
                out.push(AgentEntry { key, ..other.entry.clone() });
            }
        }
    }

    /// Puts the message together: the last line's, with the content of all.
    fn join(&self, said: &mut ParsedTurn) {
        let [.., last] = self.blocks.as_slice() else { return };
        if self.blocks.len() == 1 {
            return;
        }
        let content: Vec<String> = self.blocks.iter().filter_map(|block| content(&block.message)).collect();
        let content = format!("[{}]", content.join(","));
        if let Some(message) = Line::parse(&last.message) {
            said.message = message.with("content", Some(&content));
        }
        let earlier = self.blocks[..self.blocks.len() - 1].iter().map(|block| block.frame.as_str());
        let rest: Vec<&str> = earlier.chain([last.rest.as_str()]).collect();
        said.metadata.insert(METADATA.into(), made(format!("[{}]", rest.join(","))));
    }
}

/// The blocks of a message, without the brackets around them.
fn content(message: &str) -> Option<String> {
    let raw = Line::parse(message)?.raw("content")?;
    if raw.starts_with('"') {
        return Some(format!("{{\"type\":\"text\",\"text\":{raw}}}"));
    }
    let inner = raw.strip_prefix('[')?.strip_suffix(']')?.trim();
    (!inner.is_empty()).then(|| inner.to_string())
}
