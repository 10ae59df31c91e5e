//! What a failing disk does to a SQLite store: power loss at any moment, and no space left.
//!
//! In a binary of its own, because the file layer below replaces SQLite's for the whole process.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop where it stands")]

#[path = "../all/dice.rs"]
mod dice;
mod disk;
mod full;
mod loss;
