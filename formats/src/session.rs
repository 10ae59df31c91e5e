//! Session files: one JSON object per line, beside any program and without a store.
//!
//! ```text
//! img_1/sessions/2026-04-27T14-30-00_session_001.jsonl
//! {"type":"session_start","timestamp":…,"session_id":…,"image_id":"img_1","started_at":…, …}
//! {"type":"agent_tool_call","timestamp":…,"tool":"crop","parameters":{…}}
//! {"type":"session_end","timestamp":…,"ended_at":…,"duration_s":…,"entries":1,"by_type":{…}}
//! ```
//!
//! [`Session`] writes one, [`Sink`] is a [`Session`] whose failures never reach the recorded program, [`Reader`]
//! reads one in bounded memory, [`check`] finds errors in one, [`Dispatches`] makes entries of the messages between
//! an MCP client and a server, and [`Mapper`] maps one to turns and events. The frame is the one of [`crate::jsonl`];
//! these lines have no chain.
//!
//! This is the one place in `formats` that opens files, because recording a session must work in a program that has no
//! store. It has no clock all the same: times and session ids are arguments.

mod check;
mod dispatch;
mod entry;
mod map;
mod place;
mod read;
mod sink;
mod tally;
mod write;

pub use check::{Report, SessionProblem, check};
pub use dispatch::{CALL, Dispatch, Dispatches, Sender, milliseconds};
pub use entry::{
    AgentThinking, AgentToolCall, Entry, EntryPayload, MaskGenerated, PhotographerMessage, SessionFields,
    SnapshotCreated, TasteConfirmation, TasteProposal, ToolResult, VocabularyGapLogged,
};
pub(crate) use entry::{check as check_entry, line};
pub(crate) use map::{IMPORTED, MESSAGE, role_of};
pub use map::{Mapped, Mapper, conversation_id};
pub use read::{Item, Reader, Recorded};
pub use sink::Sink;
pub use tally::Tally;
pub use write::{Fsync, Mended, NewSession, Session, SessionOptions, SessionSummary};

/// The types that make the frame, and the one that [`crate::jsonl`] uses for bytes. No entry has one of them.
pub const FRAME_TYPES: [&str; 3] = [START, END, "asset_content"];
/// Most problems and most notes that a [`Report`] lists; the rest is counted.
pub const PROBLEMS_LISTED_MAX: usize = 100;

const START: &str = "session_start";
const END: &str = "session_end";
