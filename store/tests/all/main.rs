//! What the stores promise, proven on each of them; then what only a file can get wrong.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop where it stands")]

mod derived;
mod dice;
mod diverged;
mod erasure;
mod files;
#[cfg(feature = "postgres")]
mod in_postgres;
mod indexes;
mod load;
mod promises;
mod whole;
mod writers;
