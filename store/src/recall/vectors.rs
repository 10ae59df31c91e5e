//! Vectors of entries. None are kept yet: nothing is near anything, and nothing waits for a vector.

use super::find::Scope;
use crate::{Found, Unembedded};
use everturn_core::recall::EntryNo;
use rusqlite::Connection;

/// Forgets the vectors of an entry.
pub fn remove(_: &Connection, _: i64) -> rusqlite::Result<()> {
    Ok(())
}

/// How many entries have no vector of a model.
pub fn missing(_: &Connection, _: &str) -> rusqlite::Result<u64> {
    Ok(0)
}

/// Entries without a vector of a model, newest first.
pub fn unembedded(_: &Connection, _: &str, _: usize) -> rusqlite::Result<Vec<Unembedded>> {
    Ok(Vec::new())
}

/// Keeps vectors.
pub fn put(_: &Connection, _: &str, _: &[(EntryNo, Vec<f32>)]) -> rusqlite::Result<()> {
    Ok(())
}

/// The nearest entries.
pub fn near(_: &Connection, _: &Scope, _: &str, _: &[f32], _: usize) -> rusqlite::Result<Vec<Found>> {
    Ok(Vec::new())
}
