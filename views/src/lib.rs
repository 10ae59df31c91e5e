//! What is read from a log: everything that is derived, as pure functions from events to a value.
//!
//! [`reading`] puts turns in order; [`state`] folds a log into the smallest set of truths needed to go on; [`projection`] is the
//! clean view of its messages;
//! [`compaction`] plans, writes and reads checkpoints; [`context`] fits all of that into a token budget, counted by
//! [`tokens`]; [`recall`] and [`vectors`] rank what was said before; [`facts`] adds up what was learned.
//!
//! What it is not: it decides nothing about what is written (that is `core`), and like `core` it has no disk, no clock, no
//! network and no randomness. Dropping whatever it made and deriving it again gives the same bytes.

pub mod compaction;
pub mod context;
pub mod facts;
pub mod identifier;
pub mod projection;
pub mod reading;
pub mod recall;
pub mod state;
pub mod tokens;
pub mod vectors;
