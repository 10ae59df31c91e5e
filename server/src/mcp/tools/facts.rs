//! What was learned.

use super::{Answer, answer, read, reads};
use crate::mcp::shapes::{self, tool};
use everturn_engine::{FactQuery, NewFact, Scope};
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Facts {
    /// The conversation: its id, the beginning of one, or @last for the last changed.
    conversation: String,
    /// As they were when the log ended at this place.
    as_of: Option<u64>,
    /// Also superseded ones.
    #[serde(default)]
    include_superseded: bool,
    /// At most this many; 50 if left out.
    limit: Option<usize>,
    /// The `next` of the page before, to go on.
    after: Option<u64>,
}

pub fn about_list() -> Tool {
    let text = "Lists what was learned in a conversation, in the order in which it was taken down: subject, predicate, object, \
                how sure, and the turns that say so. `recall` finds facts by what they are about.";
    tool::<Facts, shapes::Facts>("facts", "List facts", text, reads())
}

pub fn list(scope: &Scope, arguments: JsonObject) -> Answer {
    let Facts { conversation, as_of, include_superseded, limit, after } = read(arguments)?;
    let id = scope.resolve(&conversation)?;
    let limit = limit.unwrap_or(FactQuery::default().limit);
    let query = FactQuery { as_of, include_superseded, after, limit, ..FactQuery::default() };
    let page = scope.facts(id, query)?;
    answer(&json!({"conversation": id, "data": page.data, "next": page.next}))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct AddFact {
    /// The conversation: its id, the beginning of one, or @last for the last changed.
    conversation: String,
    /// About whom or what.
    subject: String,
    /// What is said of it.
    predicate: String,
    /// What it is said to be.
    object: String,
    /// How sure, from 0 to 1; certain if left out.
    confidence: Option<f64>,
    /// The turn that says so. When it is erased, so is the fact.
    source_turn: Option<String>,
    /// The words of that turn that say so.
    quote: Option<String>,
    /// Who adds it.
    by: Option<String>,
}

pub fn about_add() -> Tool {
    let text = "Adds a fact to a conversation. One that is known is not added twice; one that says something else of the same \
                subject and predicate takes the place of the older one, which stays readable.";
    let hints = ToolAnnotations::new().read_only(false).destructive(false).idempotent(true).open_world(false);
    tool::<AddFact, shapes::Fact>("add_fact", "Add a fact", text, hints)
}

pub fn add(scope: &Scope, arguments: JsonObject) -> Answer {
    let AddFact { conversation, subject, predicate, object, confidence, source_turn, quote, by } =
        read(arguments)?;
    let source_turn = source_turn.as_deref().map(str::parse).transpose()?;
    let new = NewFact { subject, predicate, object, confidence, source_turn, quote, by };
    answer(&scope.add_fact(scope.resolve(&conversation)?, new)?)
}
