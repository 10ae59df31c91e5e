//! What `formats` promises, checked from outside: files that are broken in every way, values that come back equal.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop here")]

mod acp;
mod agents;
mod agents_any;
mod agents_withdrawn;
mod archive;
mod document_valid;
mod jsonl;
mod log;
mod provider;
mod provider_any;
mod provider_parts;
mod provider_valid;
mod render;
mod session;
mod session_map;
mod session_reading;
mod transcript;
