//! The server as clients meet it: over real sockets.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod conversations;
mod openai;
mod openai_responses;
mod scripted_provider;
mod stage;
