//! Tests of the server over real sockets.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod access;
mod assets;
mod attacks;
mod context;
mod conversations;
mod events;
mod facts;
mod generations;
mod guarding;
mod hostile;
mod live;
mod mcp;
mod open_responses;
mod openai;
mod openai_responses;
mod openapi;
mod page;
mod quotas;
mod recalling;
mod scripted_provider;
mod settings;
mod stage;
mod state;
mod streams;
mod telemetry;
mod tokens;
mod transfer;
mod turns;
