//! What is written.
//!
//! The model (conversation, turn, event, asset, fact), its one versioned encoding, the hash chain, the lens over
//! every message shape, and the rules by which a write becomes rows. What is read from a log is in `views`. Everything here is a pure function of its
//! arguments: ids, times and salts are handed in by `engine`, so any failure replays from a seed.
//!
//! What it is not: it has no disk, no clock, no network and no randomness, and it knows no other program's file
//! format (those live in `formats`).
//!
//! Reading order: [`event`] and [`chain`] are the ground; [`message`] reads what is inside a turn; [`turn`] and
//! [`conversation`] are what the log folds into; [`mod@write`] is how a request becomes events and rows.

pub mod access;
pub mod asset;
pub mod budget;
pub mod chain;
pub mod conversation;
pub mod echo;
pub mod encoding;
pub mod error;
pub mod event;
pub mod fact;
pub mod id;
pub mod json;
pub mod limits;
pub mod message;
pub mod pairing;
pub mod policy;
pub mod redaction;
pub mod time;
pub mod turn;
pub mod write;

pub use error::Error;
