//! What the owner of a conversation decides about it, by the name of the part: `policy.compaction`, `policy.facts`. Budgets and
//! redaction are beside what they bound: [`budget`](crate::budget), [`redaction`](crate::redaction).

mod compaction;
mod facts;

pub use compaction::{CompactionPolicy, OnOverflow, Strategy, is_due};
pub use facts::FactsPolicy;
