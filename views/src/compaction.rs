//! Compaction: when older turns give way to a checkpoint, which ones, and what the checkpoint says.
//!
//! Everything here is pure. `engine` asks [`is_due`](everturn_core::policy::is_due) and [`plan`], lets a model answer [`prompt`] and reads the answer
//! with [`accept`] and [`complete`], or takes [`extract`], which needs no model; then it appends one event with a
//! [`CompactionBody`]. Nothing is removed by any of this: the turns stay where they are.
//!
//! Rolling: every function that makes a checkpoint takes the previous one and the turns that are new since it. What must
//! not get lost on the way is kept by rule (see [`limits`]): constraints, open questions and identifiers of the first
//! round are still there after the hundredth.

mod extractive;
mod model;
mod plan;
mod render;

pub use extractive::{complete, extract};
pub use model::{Prompt, accept, prompt};
pub(crate) use model::{answered, said, shown};
pub use plan::{Candidate, Cut, MULTIMODAL_KEPT, RECENT_TURNS, plan};
pub use render::render;

use everturn_core::chain::Hash;
use everturn_core::conversation::CheckpointRef;
use everturn_core::id::EventId;
use everturn_core::write::Summarized;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How large a checkpoint may become, and what stays when it would become larger.
///
/// Each list has a number of entries. Over it, the entries at the beginning and at the end stay and the least valuable of
/// the middle goes: what was said first (the frame) and last (where things stand) matters most. If all lists together are
/// still over [`TOKENS_MAX`](limits::TOKENS_MAX), entries go in this order: the middle of completed work and discoveries, then of decisions
/// and pending work, then identifiers and files, and only then constraints and open questions.
///
/// Identifiers stay in this order of preference: those that a constraint, a question, a decision, the goal or pending work
/// mentions; the oldest [`IDENTIFIERS_OLDEST`](limits::IDENTIFIERS_OLDEST); those that the new turns mention, more often first; the newest.
pub mod limits {
    /// Most tokens of a checkpoint as [`render`](super::render) writes it, counted as bytes / 4.
    pub const TOKENS_MAX: usize = 5000;
    /// Longest entry of a list, in characters. A longer sentence is clipped between two words.
    pub const ENTRY_CHARS_MAX: usize = 280;
    /// Longest goal, in characters.
    pub const GOAL_CHARS_MAX: usize = 500;
    /// Longest handoff note, in bytes.
    pub const HANDOFF_BYTES_MAX: usize = 3600;
    /// Longest identifier, in bytes. A longer one is left out: clipped it would name something else.
    pub const IDENTIFIER_BYTES_MAX: usize = 240;
    /// Most entries in `user_constraints`.
    pub const CONSTRAINTS_MAX: usize = 24;
    /// Most entries in `decisions`.
    pub const DECISIONS_MAX: usize = 24;
    /// Most entries in `discoveries`.
    pub const DISCOVERIES_MAX: usize = 18;
    /// Most entries in `completed_work`.
    pub const COMPLETED_MAX: usize = 18;
    /// Most entries in `pending_work`.
    pub const PENDING_MAX: usize = 12;
    /// Most entries in `unresolved_questions`.
    pub const QUESTIONS_MAX: usize = 24;
    /// Most entries in `critical_identifiers`.
    pub const IDENTIFIERS_MAX: usize = 220;
    /// How many of them are safe because they are the oldest.
    pub const IDENTIFIERS_OLDEST: usize = 130;
    /// Most entries in `relevant_files`.
    pub const FILES_MAX: usize = 110;
    /// How many of them are safe because they are the oldest.
    pub const FILES_OLDEST: usize = 75;
    /// Longest answer of a model that is read at all, in bytes.
    pub const ANSWER_BYTES_MAX: usize = 256 * 1024;
    /// Longest prompt for a model, in characters. Long turns are shortened in their middle until it fits.
    pub const PROMPT_CHARS_MAX: usize = 400_000;
}

/// What a compaction produced: what the next model call must know of the turns that it no longer sees.
///
/// Stored in the log, so its names are frozen. Lists are oldest first.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Checkpoint {
    /// What all this is for.
    pub goal: String,
    /// What the user demanded or ruled out.
    pub user_constraints: Vec<String>,
    /// What was decided.
    pub decisions: Vec<String>,
    /// What was found out, errors included.
    pub discoveries: Vec<String>,
    /// What is done.
    pub completed_work: Vec<String>,
    /// What is still to do.
    pub pending_work: Vec<String>,
    /// What was asked and not answered.
    pub unresolved_questions: Vec<String>,
    /// Names that must not be lost or misspelt: ids, hashes, URLs, numbers with units, symbols.
    pub critical_identifiers: Vec<String>,
    /// Files that were spoken about or worked on.
    pub relevant_files: Vec<String>,
    /// A short note in Markdown for whoever continues. It is also the summary of a transcript value.
    pub handoff_md: String,
}

/// Which part of the log a checkpoint stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Covers {
    /// The first turn's place.
    pub from_seq: u64,
    /// The last turn's place.
    pub to_seq: u64,
    /// How many turns.
    pub turns: u64,
}

/// The summarizer's name when no model was used.
pub const EXTRACTIVE: &str = "extractive";

/// The body of a `compaction` event. Stored in the log, so its names are frozen; fields that a later version adds are
/// ignored by this one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CompactionBody {
    /// What the model will read instead of the turns. `None` after a revert to the time before the first compaction.
    #[serde(default)]
    pub checkpoint: Option<Checkpoint>,
    /// The turns that are new in this checkpoint.
    pub covers: Covers,
    /// How far this and all earlier compactions reach; absent where one is taken back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summarized: Option<Summarized>,
    /// The checkpoint that this one continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<CheckpointRef>,
    /// The model, or [`EXTRACTIVE`].
    pub summarizer: String,
    /// What the model was asked; absent without a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_hash: Option<Hash>,
    /// The previous checkpoint and the turns, as they went in.
    pub input_hash: Hash,
    /// Tokens that the prompt needed for what is covered, before.
    pub tokens_before: u64,
    /// Tokens that it needs for the checkpoint.
    pub tokens_after: u64,
    /// The compaction that this event undoes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reverts: Option<EventId>,
    /// What is in force again then; `None` if there was nothing before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restores: Option<CheckpointRef>,
}
