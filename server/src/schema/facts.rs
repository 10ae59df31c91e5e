//! What was learned.

use utoipa::ToSchema;

/// Whether a fact holds.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub enum FactStatus {
    Current,
    Superseded,
    Retracted,
}

/// Something learned from what was said.
#[derive(ToSchema)]
pub struct Fact {
    #[schema(examples("fact_01JD0000000000000000000000"))]
    id: String,
    /// Where it was learned; for an inherited fact of a fork, the ancestor.
    conversation: String,
    /// The place of the event that stated it first.
    seq: u64,
    /// About whom or what.
    subject: String,
    /// What is said of it.
    predicate: String,
    /// What it is said to be.
    object: String,
    /// How sure, from 0 to 1.
    confidence: f64,
    status: FactStatus,
    /// The turns that say so. Empty for one that was added or corrected by hand.
    sources: Vec<FactSource>,
    created: String,
    /// A model, or an actor.
    by: Option<String>,
    /// The fact that it corrects.
    corrects: Option<String>,
    /// The fact that took its place.
    superseded_by: Option<String>,
    /// As of any earlier place it held.
    superseded_seq: Option<u64>,
    retracted: Option<FactRetraction>,
}

/// A turn that supports a fact.
#[derive(ToSchema)]
pub struct FactSource {
    turn: String,
    /// Its place.
    seq: Option<u64>,
    /// The words of it that support the fact.
    quote: Option<String>,
}

/// That a fact was taken back.
#[derive(ToSchema)]
pub struct FactRetraction {
    seq: u64,
    at: String,
    by: Option<String>,
    reason: Option<String>,
}

/// What reading turns for facts brought.
#[derive(ToSchema)]
pub struct Extraction {
    /// Who read.
    model: String,
    /// How many turns were read.
    turns: u64,
    /// The first place that was read; absent if nothing was.
    from_seq: Option<u64>,
    /// The last place that was read; absent if nothing was.
    to_seq: Option<u64>,
    /// The facts that are new, or have another source now.
    facts: Vec<Fact>,
    dropped: FactsDropped,
}

/// What a model found that was not kept, counted by why.
#[derive(ToSchema)]
pub struct FactsDropped {
    /// Not of the form that was asked for, or too long.
    malformed: u64,
    /// Its turn is not among those that were shown, or does not stand any more.
    no_such_turn: u64,
    /// Its turn does not have the quote.
    ungrounded: u64,
    /// Nothing is left of it after redaction.
    redacted: u64,
    /// It is known.
    known: u64,
}

/// What erasing everything of an actor did.
#[derive(ToSchema)]
pub struct ErasedActor {
    /// The actor. Its name stays in the envelopes.
    actor: String,
    /// Conversations in which something was erased.
    conversations: u64,
    /// Turns.
    turns: u64,
    /// Other events: facts added by hand, pins, notes.
    events: u64,
}
