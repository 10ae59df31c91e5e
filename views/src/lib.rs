//! Everything derived from a log, as pure functions from events to a value.
//!
//! [`reading`] puts turns in reading order; [`state`] folds a log into the minimum needed to continue;
//! [`projection`] is the clean view of its messages; [`compaction`] plans, writes and reads checkpoints;
//! [`context`] fits all of that into a token budget, counted by [`tokens`]; [`recall`] and [`vectors`] rank
//! earlier turns; [`facts`] derives facts.
//!
//! The rules of writing are in `core`. Like `core`, this crate has no disk, no clock, no network and no randomness.
//! Deriving a value again gives the same bytes.

pub mod compaction;
pub mod context;
pub mod facts;
pub mod identifier;
pub mod projection;
pub mod reading;
pub mod recall;
pub mod speech;
pub mod state;
pub mod tokens;
pub mod vectors;
