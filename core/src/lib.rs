//! The model and the rules of writing.
//!
//! The model (conversation, turn, event, asset, fact), its one versioned encoding, the hash chain, a reader for
//! every message shape, and the rules by which a write becomes rows. Everything derived from a log is in
//! `views`. Everything here is a pure function of its arguments: ids, times and salts are passed in by
//! `engine`, so any failure replays from a seed.
//!
//! This crate has no disk, no clock, no network and no randomness, and it knows no other program's file format
//! (those live in `formats`).
//!
//! Reading order: [`event`] and [`chain`] are the ground; [`message`] reads the content of a turn; [`turn`] and
//! [`conversation`] are what the log folds into; [`mod@write`] turns a request into events and rows.

pub mod access;
pub mod approval;
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
pub mod misleading;
pub mod pairing;
pub mod policy;
pub mod redaction;
pub mod time;
pub mod turn;
pub mod viewer;
pub mod write;

pub use error::Error;
