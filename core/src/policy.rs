//! Policies of a conversation that have no module of their own: `policy.compaction` and `policy.facts`. Budgets
//! and redaction are in [`budget`](crate::budget) and [`redaction`](crate::redaction).

mod compaction;
mod facts;

pub use compaction::{CompactionPolicy, CompactionStrategy, OnOverflow, is_due};
pub use facts::FactsPolicy;
