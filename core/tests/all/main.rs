//! What `core` promises, checked from outside: the frozen encodings, bytes that survive, the chain, the rules of writing.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop here")]

mod bodies;
mod chain;
mod compaction;
mod compaction_examples;
mod compaction_extract;
mod compaction_plan;
mod compaction_rounds;
mod compaction_talk;
mod facts;
mod golden;
mod pairing;
mod projection;
mod projection_generated;
mod projection_properties;
mod projection_reclaim;
mod projection_record;
mod sample;
mod state;
mod tokens;
mod told;
mod vectors;
mod write;
