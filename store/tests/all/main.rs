//! The promises of the stores, run on each of them; then failures that only files can have.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop where it stands")]

mod derived;
mod dice;
mod diverged;
mod erasure;
mod files;
mod in_postgres;
mod indexes;
mod load;
mod places;
mod promises;
mod sql;
mod whole;
mod writers;
