//! The server as clients meet it: over real sockets.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod assets;
mod context;
mod conversations;
mod events;
mod generations;
mod hostile;
mod live;
mod openapi;
mod stage;
mod state;
mod streams;
mod transfer;
mod turns;
