//! Finding again what was said and learned: [`search`] asks, [`ranking`] joins what words and meaning found, [`in_context`] puts what
//! was recalled into a prompt; [`indexer`] takes in what is committed, and [`embedding`] gives it vectors.

pub mod embedding;
mod in_context;
pub mod indexer;
mod ranking;
mod search;

pub use search::{Hit, Matched, Rank, RecallOptions, Recalled};
