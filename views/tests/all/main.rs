//! Tests of `views` through its public interface: checkpoints, facts, projections, reading order, state, tokens, vectors.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop here")]

mod compaction;
mod compaction_examples;
mod compaction_extract;
mod compaction_plan;
mod compaction_rounds;
mod compaction_settled;
mod compaction_talk;
mod facts;
mod projection;
mod projection_generated;
mod projection_incremental;
mod projection_properties;
mod projection_reclaim;
mod projection_record;
mod reading;
#[allow(dead_code, reason = "core uses more of it")]
#[path = "../../../core/tests/all/sample.rs"]
mod sample;
mod state;
mod tokens;
mod vectors;
