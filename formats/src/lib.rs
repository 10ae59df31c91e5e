//! Foreign formats of conversations: bytes to drafts, and back.
//!
//! [`jsonl`] is a conversation as a file of events, which can be checked without a database. [`transcript`] is a
//! conversation as one JSON value, version 2; [`session`] is the session files of any program; [`provider`] puts messages
//! into the shape that a provider accepts, [`render`] writes a whole conversation out for a provider or for people, and
//! [`wire`] is the bytes of requests to model servers and of their answers. [`agents`] reads the files that Claude
//! Code, Codex, Gemini CLI and others leave on disk. [`acp`] listens to an editor and an agent, and [`archive`] is a
//! backup of a whole store as a file. Unknown fields are kept, never dropped, and foreign bytes never panic:
//! unreadable input is an error with place and reason.
//!
//! It knows no store, and opens no files but session files, which must work without one. It reads from and writes to
//! streams of the caller; `engine` gives ids and times, and stores the result.

pub mod acp;
pub mod agents;
pub mod archive;
pub mod jsonl;
pub mod provider;
pub mod render;
pub mod session;
pub mod transcript;
pub mod wire;
