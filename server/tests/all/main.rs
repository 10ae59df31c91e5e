//! The server as clients meet it: over real sockets.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod access;
mod assets;
mod context;
mod conversations;
mod events;
mod generations;
mod guarding;
mod hostile;
mod live;
mod mcp;
mod openapi;
mod settings;
mod openai;
mod openai_responses;
mod scripted_provider;
mod stage;
mod state;
mod streams;
mod telemetry;
mod tokens;
mod transfer;
mod turns;
