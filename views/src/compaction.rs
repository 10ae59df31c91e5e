//! Compaction: replacing older turns of the prompt by a checkpoint. When it is due, the range to cover, and the content.
//!
//! Everything here is pure. `engine` calls [`is_due`](everturn_core::policy::is_due) and [`plan`], sends a
//! model the [`prompt`] and parses its reply with [`accept`] and [`complete`], or calls [`extract`], which
//! needs no model; then it appends one event with a [`CompactionBody`]. Nothing is removed by any of this: the
//! turns stay in the log.
//!
//! Checkpoints are rolling: every function that makes one takes the previous one and the turns since it. The rules
//! in [`limits`] decide what to keep: constraints, open questions and identifiers of the first round survive the
//! hundredth. An imported summary has no lists and is carried over as text.

mod extractive;
mod model;
mod outline;
mod plan;
mod render;

pub use extractive::{complete, extract, extract_before};
pub use model::{Prompt, accept, prompt};
pub(crate) use model::{answered, said, shown};
pub use outline::{check_unquoted, outline, outline_of};
pub use plan::{Candidate, Cut, MULTIMODAL_KEPT, RECENT_TURNS, leaves_from, plan};
pub use render::{fitted, render};

use everturn_core::chain::Hash;
use everturn_core::conversation::CheckpointRef;
use everturn_core::id::EventId;
use everturn_core::write::Summarized;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Size limits of a checkpoint, and the rules for dropping entries above them.
///
/// Each list has a maximum number of entries. Over it, the entries at the beginning and at the end stay and the
/// least valuable of the middle is dropped: the first (the frame) and the last (the current state) matter most. If all lists together are still over [`TOKENS_MAX`](limits::TOKENS_MAX), entries are dropped
/// in this order: the middle of completed work and discoveries, then of decisions and pending work, then
/// identifiers and files, and only then constraints and open questions.
///
/// Identifiers are kept in this order of preference: those that a constraint, a question, a decision, the goal
/// or pending work mentions; the oldest [`IDENTIFIERS_OLDEST`](limits::IDENTIFIERS_OLDEST); those that the new
/// turns mention, more often first; the newest.
pub mod limits {
    /// Maximum size of a checkpoint as [`render`](super::render) writes it, in tokens of 4 bytes.
    pub const TOKENS_MAX: usize = 5000;
    /// Maximum length of an entry of a list, in characters. A longer sentence is clipped between two words.
    pub const ENTRY_CHARS_MAX: usize = 280;
    /// Maximum length of the goal, in characters.
    pub const GOAL_CHARS_MAX: usize = 500;
    /// Maximum length of the handoff note, in bytes.
    pub const HANDOFF_BYTES_MAX: usize = 3600;
    /// Maximum length of an earlier summary, in bytes. The middle of a longer one is left out.
    pub const EARLIER_BYTES_MAX: usize = 8000;
    /// Maximum length of an identifier, in bytes. A longer one is left out: clipped, it would name something
    /// else.
    pub const IDENTIFIER_BYTES_MAX: usize = 240;
    /// Maximum number of entries in `user_constraints`.
    pub const CONSTRAINTS_MAX: usize = 24;
    /// Maximum number of entries in `decisions`.
    pub const DECISIONS_MAX: usize = 24;
    /// Maximum number of entries in `discoveries`.
    pub const DISCOVERIES_MAX: usize = 18;
    /// Maximum number of entries in `completed_work`.
    pub const COMPLETED_MAX: usize = 18;
    /// Maximum number of entries in `pending_work`.
    pub const PENDING_MAX: usize = 12;
    /// Maximum number of entries in `unresolved_questions`.
    pub const QUESTIONS_MAX: usize = 24;
    /// Maximum number of entries in `critical_identifiers`.
    pub const IDENTIFIERS_MAX: usize = 220;
    /// Number of oldest identifiers that are kept.
    pub const IDENTIFIERS_OLDEST: usize = 130;
    /// Maximum number of entries in `relevant_files`.
    pub const FILES_MAX: usize = 110;
    /// Number of oldest files that are kept.
    pub const FILES_OLDEST: usize = 75;
    /// Maximum length of a model reply, in bytes. A longer one is not parsed.
    pub const ANSWER_BYTES_MAX: usize = 256 * 1024;
    /// Maximum length of a prompt for a model, in characters. Long turns are shortened in their middle until it
    /// fits.
    pub const PROMPT_CHARS_MAX: usize = 400_000;
}

/// A checkpoint: the summary of older turns for the next model calls.
///
/// Stored in the log, so its names are frozen. Lists are oldest first.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Checkpoint {
    /// Purpose of the conversation.
    pub goal: String,
    /// Demands and prohibitions of the user.
    pub user_constraints: Vec<String>,
    /// Decisions made.
    pub decisions: Vec<String>,
    /// Findings, errors included.
    pub discoveries: Vec<String>,
    /// Finished work.
    pub completed_work: Vec<String>,
    /// Work still to do.
    pub pending_work: Vec<String>,
    /// Questions that were asked and not answered.
    pub unresolved_questions: Vec<String>,
    /// Names that must not be lost or misspelt: ids, hashes, URLs, numbers with units, symbols.
    pub critical_identifiers: Vec<String>,
    /// Files that were discussed or worked on.
    pub relevant_files: Vec<String>,
    /// Summary that came with an imported conversation, as long as only that tells of the turns before those of the lists.
    /// The handoff note contains it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub earlier_summary: String,
    /// A short handoff note in Markdown. It is also the summary of a transcript value.
    pub handoff_md: String,
}

/// Range of the log that a checkpoint covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Covers {
    /// `seq` of the first turn.
    pub from_seq: u64,
    /// `seq` of the last turn.
    pub to_seq: u64,
    /// Number of turns.
    pub turns: u64,
}

/// Name of the summarizer that uses no model.
pub const EXTRACTIVE: &str = "extractive";

/// The body of a `compaction` event. Stored in the log, so its names are frozen; fields added by later versions
/// are ignored.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CompactionBody {
    /// The checkpoint that the model reads instead of the turns. `None` after reverting the first compaction.
    #[serde(default)]
    pub checkpoint: Option<Checkpoint>,
    /// Turns that are new in this checkpoint.
    pub covers: Covers,
    /// Reach of this and all earlier compactions; absent in a revert.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summarized: Option<Summarized>,
    /// The checkpoint that this one continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<CheckpointRef>,
    /// The model, or [`EXTRACTIVE`].
    pub summarizer: String,
    /// Hash of the prompt; absent without a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_hash: Option<Hash>,
    /// Hash of the previous checkpoint and the turns, as sent to the summarizer.
    pub input_hash: Hash,
    /// Tokens of the covered part in a prompt, before.
    pub tokens_before: u64,
    /// Tokens of the checkpoint that replaces it.
    pub tokens_after: u64,
    /// The compaction that this event reverts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reverts: Option<EventId>,
    /// The checkpoint that is in force again after a revert; `None` if there was none before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restores: Option<CheckpointRef>,
}
