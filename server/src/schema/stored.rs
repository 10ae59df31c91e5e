//! What is kept.

use super::{ConversationState, Retention, Role, Status, Visibility};
use serde_json::Value;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// A conversation.
#[derive(ToSchema)]
pub struct Conversation {
    /// Its id.
    #[schema(examples("conv_01JD0000000000000000000000"))]
    id: String,
    /// Whose it is.
    tenant: String,
    /// Whose it is within the tenant.
    owner: Option<String>,
    /// For people.
    title: Option<String>,
    /// Every actor that has spoken.
    participants: Vec<String>,
    /// Whatever the caller keeps here; `system_prompt` with its text, and `transcript_budget`, where one conversation is read.
    metadata: BTreeMap<String, Value>,
    state: ConversationState,
    /// When it began.
    #[schema(format = DateTime)]
    created: String,
    /// When its last event was taken.
    #[schema(format = DateTime)]
    updated: String,
    /// The last turn that a summary covers.
    summarized_through: Option<String>,
    /// Seconds after `updated` until it is deleted.
    ttl: Option<u64>,
    retention: Retention,
    /// `compaction`, `budget`, `facts`, `redaction`.
    policy: BTreeMap<String, Value>,
    head: Head,
    /// How many turns it has, inherited ones included.
    turns: u64,
    /// Where it left its parent.
    parent: Option<Parent>,
    /// The conversation that it continues after a reset.
    predecessor: Option<String>,
    /// Its system prompt's fingerprint.
    system_prompt: Option<PromptRef>,
    /// The checkpoint in force.
    checkpoint: Option<CheckpointRef>,
    /// What its budget did last.
    budget: Option<BudgetRef>,
}

/// Where a log ends.
#[derive(ToSchema)]
pub struct Head {
    /// The last event's place.
    seq: u64,
    /// The last event's hash.
    #[schema(pattern = "^[0-9a-f]{64}$")]
    hash: String,
}

/// Where a fork left its parent.
#[derive(ToSchema)]
pub struct Parent {
    conversation: String,
    /// The last event that both share.
    at_seq: u64,
}

/// What a conversation knows of its prompt without reading it.
#[derive(ToSchema)]
pub struct PromptRef {
    sha256: String,
    /// The event whose body holds the text.
    seq: u64,
}

/// A checkpoint without its words.
#[derive(ToSchema)]
pub struct CheckpointRef {
    /// The compaction.
    event: String,
    /// Its place.
    seq: u64,
    /// The last turn it covers.
    through: String,
    /// That turn's place.
    through_seq: u64,
    /// How many turns there are up to it.
    turns_before: u64,
}

/// What a budget did.
#[derive(ToSchema)]
pub struct BudgetRef {
    /// Its place.
    seq: u64,
    /// Turns up to this place were trimmed from the messages view.
    through_seq: u64,
    /// How many turns there are up to it.
    turns_before: u64,
}

/// What stays of a deleted conversation.
#[derive(ToSchema)]
pub struct Tombstone {
    /// The conversation that was.
    id: String,
    head: Head,
    /// When it was deleted.
    #[schema(format = DateTime)]
    deleted: String,
    /// Why.
    reason: String,
}

/// A turn.
#[derive(ToSchema)]
pub struct Turn {
    /// Its id.
    #[schema(examples("turn_01JD0000000000000000000000"))]
    id: String,
    /// The conversation it was read from.
    conversation: String,
    /// Its place in the history.
    seq: u64,
    /// Who spoke.
    actor: Option<String>,
    role: Role,
    /// A text, or blocks, byte for byte as given.
    content: Option<Value>,
    tool_calls: Option<Value>,
    tool_results: Option<Value>,
    /// The whole message, where it has more fields than these.
    message: Option<Value>,
    status: Status,
    visibility: Visibility,
    tokens: Option<Tokens>,
    /// Which model said it.
    model: Option<String>,
    /// Through which client or importer it came.
    adapter: Option<String>,
    /// Why it was aborted or interrupted.
    reason: Option<String>,
    metadata: BTreeMap<String, Value>,
    #[schema(format = DateTime)]
    created: String,
    /// When a client or importer says that it was said.
    #[schema(format = DateTime)]
    occurred_at: Option<String>,
    /// The turn, or the event, that took its place.
    superseded_by: Option<String>,
    /// Whether its content was erased.
    erased: Option<bool>,
}

/// Tokens that a provider counted.
#[derive(ToSchema)]
pub struct Tokens {
    /// What went in.
    prompt: Option<u64>,
    /// What came out.
    completion: Option<u64>,
}

/// What an append did.
#[derive(ToSchema)]
pub struct Appended {
    turns: Vec<Turn>,
    head: Head,
    /// Whether this had been appended before, under the same idempotency key.
    repeated: bool,
}

/// One entry of a history.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
#[serde(untagged)]
pub enum Entry {
    Turn(Box<Turn>),
    Event(Box<Event>),
}

/// One entry of the log.
#[derive(ToSchema)]
pub struct Event {
    #[schema(examples("evt_01JD0000000000000000000000"))]
    id: String,
    /// The conversation it was written in; for an inherited event of a fork, the ancestor.
    conversation: String,
    /// Its place: dense, from 1.
    seq: u64,
    /// When the store took it.
    #[schema(format = DateTime)]
    at: String,
    /// When a client or importer says that it happened.
    #[schema(format = DateTime)]
    occurred_at: Option<String>,
    /// What happened: `message`, `turn.opened`, `compaction`, …
    kind: String,
    actor: Option<String>,
    role: Option<Role>,
    visibility: Visibility,
    /// The turn it begins or is about.
    turn: Option<String>,
    /// Byte for byte as written; absent once erased.
    body: Option<Value>,
    /// Whether its body was erased.
    erased: Option<bool>,
    body_hash: String,
    /// The previous event's hash.
    prev: String,
    hash: String,
}

/// What is known about an asset.
#[derive(ToSchema)]
pub struct Asset {
    /// Always `transcript_asset`.
    #[serde(rename = "_type")]
    marker: String,
    id: String,
    /// `image`, `audio`, `video` or `file`.
    kind: String,
    mime_type: String,
    name: Option<String>,
    /// Its size; absent where only the descriptor was imported.
    bytes: Option<u64>,
    sha256: Option<String>,
    /// The SHA-256 of each piece of 1 MiB, where the asset is larger than that.
    pieces: Option<Vec<String>>,
    visibility: Visibility,
    storage: Option<Storage>,
}

/// Where an asset's bytes are.
#[derive(ToSchema)]
pub struct Storage {
    path: Option<String>,
    url: Option<String>,
}

/// What a conversation needs to go on.
#[derive(ToSchema)]
pub struct State {
    version: u32,
    /// The last event it covers.
    through_seq: u64,
    /// The newest turns that no summary covers, oldest first.
    recent_turn_ids: Vec<String>,
    /// The last turn that a summary covers.
    summarized_through: Option<String>,
    checkpoint: Option<super::Checkpoint>,
    pending_approvals: Vec<PendingApproval>,
    pending_tools: Vec<PendingTool>,
    pins: BTreeMap<String, Pin>,
    /// Turns that are still being said.
    open_turns: Vec<String>,
    #[schema(format = DateTime)]
    updated: String,
}

/// An approval that waits.
#[derive(ToSchema)]
pub struct PendingApproval {
    approval_id: String,
    tool_call_id: Option<String>,
    tool_name: Option<String>,
    question: Option<String>,
    /// Always `pending`.
    state: String,
    requested_seq: u64,
}

/// A tool that has not answered.
#[derive(ToSchema)]
pub struct PendingTool {
    tool_call_id: Option<String>,
    tool_name: String,
    summary: String,
    since_seq: u64,
}

/// Current truth.
#[derive(ToSchema)]
pub struct Pin {
    value: Value,
    /// Where it was set.
    seq: u64,
}
