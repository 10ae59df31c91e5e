//! What was found again.

use super::{Fact, Role};
use utoipa::ToSchema;

/// What can be found.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub enum RecallKind {
    Turn,
    Fact,
}

/// How to look.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub enum RecallMode {
    Hybrid,
    Lexical,
    Vector,
}

/// What was recalled.
#[derive(ToSchema)]
pub struct Recalled {
    /// How it was really looked for.
    mode: RecallMode,
    /// Why that is another way than was asked for, or why not everything was searched.
    note: Option<String>,
    behind: Behind,
    /// Best first.
    data: Vec<Hit>,
}

/// How far the index is behind the log.
#[derive(ToSchema)]
pub struct Behind {
    /// Events that are not in it yet.
    events: u64,
    /// Turns and facts that cannot be found by meaning yet.
    vectors: u64,
}

/// A turn or a fact that was found.
#[derive(ToSchema)]
pub struct Hit {
    kind: RecallKind,
    turn: Option<String>,
    fact: Option<Fact>,
    /// Where it was said or learned; of what a fork inherited, the ancestor.
    conversation: String,
    /// What that conversation is called.
    title: Option<String>,
    seq: u64,
    actor: Option<String>,
    role: Option<Role>,
    /// When it was said.
    at: String,
    /// More is better; only comparable within one answer.
    score: f64,
    matched: Matched,
    snippet: Snippet,
    /// The same of the turn beside it, where that is why it was found.
    beside: Option<Snippet>,
}

/// Where something stands in each ranking.
#[derive(ToSchema)]
pub struct Matched {
    lexical: Option<Rank>,
    vector: Option<Rank>,
    /// The place of the turn beside it that says most of what was asked for, where that is why it was found.
    beside: Option<u64>,
    /// Whether it was said in the time that the question names; left out if not.
    in_period: Option<bool>,
}

/// A place in one ranking.
#[derive(ToSchema)]
pub struct Rank {
    /// From 1.
    rank: u64,
    score: f64,
}

/// The part that shows why it was found.
#[derive(ToSchema)]
pub struct Snippet {
    /// `…` stands where the text goes on.
    text: String,
    /// Where the words stand that were looked for, in characters: from, to.
    #[schema(value_type = Vec<Vec<u64>>)]
    marks: Vec<(u64, u64)>,
}

/// What is recalled into a context.
#[derive(ToSchema)]
pub struct ContextRecall {
    /// At most so many turns of the conversation, older than the tail.
    turns: Option<u64>,
    /// At most so many facts.
    facts: Option<u64>,
    /// What to look for; by default what is asked now, or what a user said last.
    query: Option<String>,
}
