//! A fact: something learned from what was said, with the turn that it came from.

use crate::id::{FactId, TurnId};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// Subject, predicate, object.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Fact {
    /// Its id.
    pub id: FactId,
    /// About whom or what.
    pub subject: String,
    /// What is said of it.
    pub predicate: String,
    /// What it is said to be.
    pub object: String,
    /// How sure, from 0 to 1.
    pub confidence: f64,
    /// Where it was said.
    pub source_turn: TurnId,
    /// When it was taken down.
    pub created: Timestamp,
}
