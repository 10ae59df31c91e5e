//! The server as clients meet it: over real sockets.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod conversations;
mod mcp;
mod stage;
