//! Tools in the words of JSON Schema, and what they answer with.
//!
//! Answers are the model's own JSON, the same as over REST. Nothing is ever made from these structs; that they are true
//! is tested with a client that checks every answer against them.
#![allow(dead_code, reason = "read by the derive only")]

use rmcp::handler::server::tool::{schema_for_input, schema_for_output};
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use schemars::JsonSchema;
use serde_json::{Map, Value};
use std::sync::Arc;

/// A description with its schemas. That the schemas can be made is checked by a test.
pub fn tool<I: JsonSchema + 'static, O: JsonSchema + 'static>(
    name: &'static str,
    title: &str,
    text: &'static str,
    hints: ToolAnnotations,
) -> Tool {
    let input = schema_for_input::<I>().unwrap_or_default();
    Tool::new(name, text, plain(&input))
        .with_title(title)
        .with_raw_output_schema(plain(&schema_for_output::<O>()))
        .with_annotations(hints)
}

/// Without `format`: `uint64` is no format of JSON Schema's, and clients complain about it.
fn plain(schema: &JsonObject) -> Arc<JsonObject> {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.retain(|name, value| name != "format" || !value.is_string());
                fields.values_mut().for_each(strip);
            }
            Value::Array(items) => items.iter_mut().for_each(strip),
            _ => {}
        }
    }
    let mut schema = schema.clone();
    schema.values_mut().for_each(strip);
    Arc::new(schema)
}

/// A page of conversations.
#[derive(JsonSchema)]
pub struct Conversations {
    /// Last changed first.
    data: Vec<Conversation>,
    /// Give it as `cursor` to go on; null at the end.
    next: Option<String>,
}

/// A conversation.
#[derive(JsonSchema)]
struct Conversation {
    /// Its id.
    id: String,
    /// For people.
    title: Option<String>,
    /// active, archived, abandoned or closed.
    state: String,
    /// How many turns it has.
    turns: u64,
    /// Who has spoken.
    participants: Vec<String>,
    /// When it began.
    created: String,
    /// When it was last changed.
    updated: String,
    /// Where its log ends.
    head: Head,
}

/// Where a log ends.
#[derive(JsonSchema)]
struct Head {
    /// The last event's place.
    seq: u64,
    /// The last event's hash.
    hash: String,
}

/// A part of a history.
#[derive(JsonSchema)]
pub struct Turns {
    /// The conversation.
    conversation: String,
    /// Oldest first.
    data: Vec<Entry>,
    /// Where to go on; null at the end.
    next: Option<u64>,
}

/// A turn, or an event that is none.
#[derive(JsonSchema)]
struct Entry {
    /// Its id.
    id: String,
    /// Its place.
    seq: u64,
    /// Of a turn: user, assistant, system or tool.
    role: Option<String>,
    /// Who spoke.
    actor: Option<String>,
    /// Of a turn: what was said, a text or blocks.
    content: Option<Value>,
    /// Of a turn: pending, complete, aborted or interrupted.
    status: Option<String>,
    /// Of an event that is no turn: what happened.
    kind: Option<String>,
}

/// What was recalled.
#[derive(JsonSchema)]
pub struct Recalled {
    /// How it was looked for: hybrid, lexical or vector.
    mode: String,
    /// Why that is another way than was asked for, or why not everything was searched.
    note: Option<String>,
    /// What could not be found because it is not in the index yet.
    behind: Behind,
    /// Best first.
    data: Vec<Hit>,
}

/// How far the index is behind.
#[derive(JsonSchema)]
struct Behind {
    /// Events that are not in it.
    events: u64,
    /// Turns and facts that cannot be found by meaning yet.
    vectors: u64,
}

/// A turn or a fact that was found.
#[derive(JsonSchema)]
struct Hit {
    /// turn or fact.
    kind: String,
    /// The turn's id.
    turn: Option<String>,
    /// The fact, with its sources.
    fact: Option<Map<String, Value>>,
    /// Where it was said or learned.
    conversation: String,
    /// What that conversation is called.
    title: Option<String>,
    /// Its place there.
    seq: u64,
    /// Who said it.
    actor: Option<String>,
    /// In which role.
    role: Option<String>,
    /// When it was said.
    at: String,
    /// More is better.
    score: f64,
    /// Which rankings found it, and at which place.
    matched: Map<String, Value>,
    /// The part that shows why.
    snippet: Snippet,
    /// The same of the turn beside it, where that is why it was found.
    beside: Option<Snippet>,
}

/// A part of a text.
#[derive(JsonSchema)]
struct Snippet {
    /// The part.
    text: String,
    /// Where the words stand that were looked for, in characters: from, to.
    marks: Vec<(u64, u64)>,
}

/// What was learned in a conversation.
#[derive(JsonSchema)]
pub struct Facts {
    /// The conversation.
    conversation: String,
    /// In the order in which they were taken down.
    data: Vec<Fact>,
    /// Give it as `after` to go on; null at the end.
    next: Option<u64>,
}

/// Something that was learned.
#[derive(JsonSchema)]
pub struct Fact {
    /// Its id.
    id: String,
    /// About whom or what.
    subject: String,
    /// What is said of it.
    predicate: String,
    /// What it is said to be.
    object: String,
    /// How sure, from 0 to 1.
    confidence: f64,
}

/// A conversation as a file.
#[derive(JsonSchema)]
pub struct Exported {
    /// The conversation.
    conversation: String,
    /// How it is written.
    format: String,
    /// The file's text.
    content: String,
}

/// What was taken over from a file.
#[derive(JsonSchema)]
pub struct Imported {
    /// What the file is.
    format: String,
    /// The conversation, as it is now.
    conversation: Conversation,
    /// Events in the file.
    events: u64,
    /// Events that were new here.
    added: u64,
    /// Turns in the file.
    turns: u64,
    /// What could not be taken over, and why.
    problems: Vec<String>,
}

/// What a model call is given.
#[derive(JsonSchema)]
pub struct Context {
    /// In the provider's shape.
    messages: Vec<Value>,
    /// What goes into the provider's field for it, if it has one.
    system: Option<Value>,
    /// What it costs.
    tokens: Tokens,
    /// What went in, in order.
    included: Vec<Map<String, Value>>,
    /// What did not, and why.
    left_out: Vec<Map<String, Value>>,
    /// The same log and the same options give the same.
    prefix_hash: String,
    /// What a prompt cache still covers of it.
    cache: Map<String, Value>,
    /// Hashes of everything that went in.
    receipt: Map<String, Value>,
}

/// What a context costs.
#[derive(JsonSchema)]
struct Tokens {
    /// What it may.
    budget: u64,
    /// What it does.
    used: u64,
    /// Section by section.
    by_section: Map<String, Value>,
}

/// A view of a conversation.
#[derive(JsonSchema)]
pub struct Projection {
    /// The messages.
    messages: Vec<Value>,
    /// Their hash.
    prefix_hash: String,
}

/// Whether a chain holds.
#[derive(JsonSchema)]
pub struct Verdict {
    /// The conversation.
    conversation: String,
    /// Whether everything is as it was written.
    ok: bool,
    /// How many events were checked.
    events: Option<u64>,
    /// How many of them have an erased body.
    erased: Option<u64>,
    /// Where the log ends: note its hash to ask for it later.
    head: Option<Head>,
    /// Whether the log contains the head that was asked for.
    contains_head: Option<bool>,
    /// What is wrong.
    problem: Option<String>,
}

/// What an append did.
#[derive(JsonSchema)]
pub struct Appended {
    /// The conversation.
    conversation: String,
    /// The turns, with their ids and places.
    turns: Vec<Entry>,
    /// Where the log ends now.
    head: Head,
    /// Whether it had been appended before, under the same key.
    repeated: bool,
}

/// What is pinned.
#[derive(JsonSchema)]
pub struct Pinned {
    /// The conversation.
    conversation: String,
    /// Where the log says so.
    seq: u64,
    /// Everything that is pinned now.
    pins: Map<String, Value>,
}

/// What a compaction did, or would do.
#[derive(JsonSchema)]
pub struct Compacted {
    /// Its event; null if it was only shown.
    event: Option<String>,
    /// What contexts say instead of the turns.
    checkpoint: Map<String, Value>,
    /// Which turns.
    covers: Map<String, Value>,
    /// The model that wrote it, or extractive.
    summarizer: String,
    /// What a prompt needed before.
    tokens_before: u64,
    /// What it needs now.
    tokens_after: u64,
    /// Turns whose words were erased because retention asks for it.
    erased: u64,
}
