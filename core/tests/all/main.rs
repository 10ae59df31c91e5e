//! Tests of `core` through its public interface: the frozen encodings, byte-exact bodies, the chain, the rules
//! of writing.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop here")]

mod bodies;
mod chain;
mod golden;
mod pairing;
mod sample;
mod told;
mod write;
