//! Files that agents and chat programs leave on disk: Claude Code, Codex, Gemini CLI, pi, Droid, Qwen Code, Copilot
//! CLI, Kimi CLI, Kimi Code, Cursor, opencode, and messages in the shapes of providers.
//!
//! [`open`] tells the format by the content, [`Reader`] reads a file from its beginning in bounded memory and gives an
//! [`AgentEntry`] for everything in it: a turn, a compaction, or an event that keeps a line as it was. One file may hold several
//! conversations ([`Thread`]s): subagents, and branches that were left and taken up again.
//!
//! Nothing in here depends on how often a file was read, or on where it lies, except that its name may be that of its
//! session. Every entry has a name (its identity) and a key (its version), made from the content alone. An entry whose name
//! and key were taken over before adds nothing; the same name with another key is a newer version of the same turn. So a
//! file that has grown, was copied, or is read again after a crash gives what is new, and only that.

mod claude;
mod codex;
mod cursor;
mod detect;
mod elements;
mod expand;
mod gemini;
mod kimi_code;
mod line;
mod lines;
mod linked;
mod messages;
mod opencode;
mod reader;
mod tree;

pub use claude::continues;
pub use detect::{AgentFormat, HEAD_BYTES, detect, unknown};
pub use expand::{EXPANSION_MAX, Expanded};
pub use reader::{Opened, Reader, first_time, open};

use everturn_core::chain::Hash;
use everturn_core::event::Visibility;
use everturn_core::id::ConversationId;
use everturn_core::json::Raw;
use everturn_core::limits::BODY_BYTES_MAX;
use everturn_core::time::Timestamp;
use everturn_core::turn::Tokens;
use everturn_views::speech;
use serde::Serialize;
use std::collections::BTreeMap;

/// Longest line or element that is read, in bytes. A longer one is left out and reported.
pub const LINE_BYTES_MAX: usize = 32 * 1024 * 1024;

/// One step of a session.
#[derive(Clone, PartialEq, Debug)]
pub struct AgentEntry {
    /// Index of its thread in the reader's threads.
    pub thread: usize,
    /// The line (or element) where it begins, from 1.
    pub line: u64,
    /// Its identity, the same in every version of the file.
    pub name: u64,
    /// Its version.
    pub key: u64,
    /// Time in the file.
    pub at: Option<Timestamp>,
    /// Title of the conversation from here on.
    pub title: Option<String>,
    /// Its content.
    pub step: EntryContent,
}

/// Content of an entry.
#[derive(Clone, PartialEq, Debug)]
pub enum EntryContent {
    /// A turn.
    Turn(Box<ParsedTurn>),
    /// System prompt of the conversation from here on.
    System(String),
    /// A line that is no turn, kept as it is.
    Event {
        /// Its type, for the report.
        what: String,
        /// The line as it came, or an object that holds it where it is not JSON.
        body: Raw,
    },
    /// The program summarized the turns before this place.
    Compaction {
        /// Its type, for the report.
        what: String,
        /// The summary that replaces them in a prompt.
        summary: String,
        /// Tokens that were summarized, where the file says so.
        tokens_before: Option<u64>,
        /// Name of the first turn that the program kept as it was, if it did not summarize all of them.
        kept: Option<u64>,
        /// The line as it came.
        body: Raw,
    },
}

/// A turn.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ParsedTurn {
    /// The message as it came; joined, where several lines are one message.
    pub message: String,
    /// Model that answered.
    pub model: Option<String>,
    /// Tokens as counted by the provider.
    pub tokens: Option<Tokens>,
    /// Visibility, where it differs from the default of the role.
    pub visibility: Option<Visibility>,
    /// The rest of the line.
    pub metadata: BTreeMap<String, Raw>,
    /// Names of the turns that this one supersedes.
    pub supersedes: Vec<u64>,
    /// The same turn in another state of the file.
    pub other_state: Option<OtherState>,
}

/// A version of a turn with the same words.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct OtherState {
    /// Its key.
    pub key: u64,
    /// Whether it may have tokens that are another turn's by now.
    pub lost_tokens: bool,
}

impl ParsedTurn {
    /// Size of its message and metadata.
    pub fn bytes(&self) -> usize {
        self.message.len() + self.metadata.values().map(|value| value.get().len()).sum::<usize>()
    }

    /// Whether it is larger than the body of an event, and has no media, which are kept apart: it is kept as a line.
    pub fn is_oversized(&self) -> bool {
        self.bytes() > BODY_BYTES_MAX && !self.message.contains("base64")
    }
}

/// A conversation within a file.
#[derive(Clone, PartialEq, Debug)]
pub struct Thread {
    /// Id of the conversation, the same for every import of the session.
    pub id: ConversationId,
    /// Program, session and folder that it comes from.
    pub origin: ImportOrigin,
    /// Start of the branch in another thread, if it is one.
    pub branch: Option<BranchPoint>,
}

/// Origin of a conversation: its metadata under `import`.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct ImportOrigin {
    /// The format's name.
    pub format: &'static str,
    /// Session id of the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Subagent, if it is the session of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The conversation that a subagent worked for, or that this one was forked from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<ConversationId>,
    /// The working folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// The branch that was checked out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub git_branch: Option<String>,
    /// The program's version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// A place in another thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BranchPoint {
    /// The other thread.
    pub of: usize,
    /// The name of its turn before which it leaves.
    pub before: u64,
}

/// A problem in a file, for the report.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileProblem {
    /// The line or element.
    pub line: u64,
    /// The problem, and how it was handled.
    pub text: String,
}

/// Conversation id derived from parts of a name.
fn conversation_id(parts: &[&str]) -> ConversationId {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest(parts).0[..16]);
    ConversationId::from_bytes(bytes)
}

/// A name made of parts.
fn name_of(parts: &[&str]) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&digest(parts).0[..8]);
    u64::from_be_bytes(bytes)
}

/// The n-th version of a name, or the n-th of several that are spelt the same; the first is the name itself.
fn nth(name: u64, n: u64) -> u64 {
    if n == 0 { name } else { name_of(&[&name.to_string(), &n.to_string()]) }
}

fn digest(parts: &[&str]) -> Hash {
    // Lengths in between, so that no two lists of parts read the same.
    let mut bytes = Vec::with_capacity(parts.iter().map(|part| part.len() + 8).sum());
    for part in parts {
        bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
        bytes.extend_from_slice(part.as_bytes());
    }
    Hash::of(&bytes)
}

/// A title from a prompt: the beginning of the person's own words in it.
fn prompt_title(text: &str) -> Option<String> {
    // A command alone ("/model") says nothing about what follows, nor does the number of an option ("1").
    let is_command = |words: &str| {
        let command = words.trim().strip_prefix('/').unwrap_or_default();
        !command.is_empty() && !command.contains(|c: char| c.is_whitespace() || c == '/')
    };
    let is_number = |words: &str| words.chars().all(|c| c.is_ascii() && !c.is_alphabetic());
    let words = speech::words(text).ok().filter(|words| !is_command(words) && !is_number(words))?;
    title(&words)
}

/// The beginning of a text as a title. Of a path for which there is no room its last part stays, and another long word is
/// cut.
fn title(text: &str) -> Option<String> {
    const CHARS_MAX: usize = 80;
    const LONG_WORD_CHARS: usize = 20;
    let mut title = String::new();
    for word in text.split_whitespace() {
        if !title.is_empty() {
            title.push(' ');
        }
        // A place for the ellipsis stays.
        let room = CHARS_MAX.saturating_sub(title.chars().count() + 1);
        let fits = |word: &str| word.chars().count() <= room;
        let file = word.trim_end_matches('/').rsplit_once('/').filter(|_| !word.contains("://"));
        match file.map(|(_, file)| format!("…/{file}")) {
            _ if fits(word) => title.push_str(word),
            Some(file) if fits(&file) => title.push_str(&file),
            _ => {
                let is_long = word.chars().count() > LONG_WORD_CHARS || title.is_empty();
                title.extend(word.chars().take(if is_long { room } else { 0 }));
                title.truncate(title.trim_end().len());
                title.push('…');
                break;
            }
        }
    }
    (!title.is_empty()).then_some(title)
}
