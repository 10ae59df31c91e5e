//! What `core` promises, checked from outside: the frozen encodings, bytes that survive, the chain, the rules of writing.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop here")]

mod bodies;
mod chain;
mod golden;
mod pairing;
mod sample;
mod told;
mod write;
