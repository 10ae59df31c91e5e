//! A SQLite store on a failing disk: power loss at any moment, and no space left.
//!
//! A binary of its own, because the file layer replaces SQLite's for the whole process.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop where it stands")]

#[path = "../all/dice.rs"]
mod dice;
mod disk;
mod full;
mod loss;
