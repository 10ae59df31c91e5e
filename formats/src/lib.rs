//! How others write conversations: bytes to drafts, and back.
//!
//! [`jsonl`] is a conversation as a file of events, which can be checked without a database. [`transcript`] is a
//! conversation as one JSON value, version 2; [`session`] is the session files of any program; [`provider`] puts messages
//! into the shape that a provider accepts, [`render`] writes a whole conversation out for a provider or for people, and
//! [`wire`] is what model servers are sent and answer. [`agents`] reads what Claude Code, Codex, Gemini CLI and others leave
//! on disk. [`acp`] listens to an editor and an agent, and [`archive`] is a backup of a whole store as a file. Unknown fields are kept, never dropped, and foreign bytes never panic:
//! what cannot be read is an error that says where and why.
//!
//! What it is not: it knows no store, and opens no files but session files, which must work without one. It reads from and writes to whatever the caller hands in;
//! ids, times and the writing of what was read are `engine`'s.

pub mod acp;
pub mod agents;
pub mod archive;
pub mod jsonl;
pub mod provider;
pub mod render;
pub mod session;
pub mod transcript;
pub mod wire;
