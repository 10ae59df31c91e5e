//! What is made from what is kept.

use super::{Conversation, Head, Section, Turn};
use serde_json::Value;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// What a compaction produced: what the next model call must know of the turns that it no longer sees.
#[derive(ToSchema)]
pub struct Checkpoint {
    goal: String,
    user_constraints: Vec<String>,
    decisions: Vec<String>,
    discoveries: Vec<String>,
    completed_work: Vec<String>,
    pending_work: Vec<String>,
    unresolved_questions: Vec<String>,
    critical_identifiers: Vec<String>,
    relevant_files: Vec<String>,
    /// A short note in Markdown for whoever continues.
    handoff_md: String,
}

/// Which part of the log a checkpoint stands for.
#[derive(ToSchema)]
pub struct Covers {
    from_seq: u64,
    to_seq: u64,
    turns: u64,
}

/// What a compaction did, or would do.
#[derive(ToSchema)]
pub struct Compacted {
    /// The event; null for a dry run.
    event: Option<String>,
    checkpoint: Checkpoint,
    covers: Covers,
    /// The model, or `extractive`.
    summarizer: String,
    tokens_before: u64,
    tokens_after: u64,
    /// Turns whose content was erased because the conversation's retention asks for it.
    erased: u64,
}

/// A summary of a part of a conversation.
#[derive(ToSchema)]
pub struct Summary {
    covers: Covers,
    /// The model, or `extractive`.
    summarizer: String,
    checkpoint: Checkpoint,
}

/// What a model call is given.
#[derive(ToSchema)]
pub struct Context {
    /// In the provider's shape.
    messages: Vec<Value>,
    /// What goes into the provider's field for it.
    system: Option<Value>,
    tokens: ContextTokens,
    /// What went in, in order.
    included: Vec<Block>,
    /// What did not, and why.
    left_out: Vec<LeftOut>,
    /// The hash of system and messages.
    prefix_hash: String,
    cache: Cache,
    receipt: Receipt,
}

/// A context whose receipt was recorded.
#[derive(ToSchema)]
pub struct RecordedContext {
    #[serde(flatten)]
    context: Context,
    /// The place of the receipt.
    recorded_seq: u64,
}

/// What a context costs.
#[derive(ToSchema)]
pub struct ContextTokens {
    budget: u64,
    used: u64,
    by_section: BTreeMap<String, u64>,
}

/// One entry of a receipt.
#[derive(ToSchema)]
pub struct Block {
    section: Section,
    /// Ids of events or facts, `given`, or `made`.
    source: Value,
    sha256: String,
    tokens: u64,
}

/// Something that did not go in.
#[derive(ToSchema)]
pub struct LeftOut {
    section: Section,
    source: Option<Value>,
    turns: Option<u64>,
    reason: String,
}

/// What a provider's prompt cache still covers, compared with the last recorded call.
#[derive(ToSchema)]
pub struct Cache {
    stable_prefix_tokens: u64,
    first_changed_section: Option<Section>,
}

/// What a model call was given, as hashes.
#[derive(ToSchema)]
pub struct Receipt {
    version: u32,
    renderer: String,
    renderer_version: u32,
    model: Option<String>,
    tokenizer: String,
    policy: BTreeMap<String, Value>,
    through_seq: u64,
    blocks: Vec<Block>,
    tools: Option<Vec<String>>,
    projection: Option<Value>,
    used: u64,
    prefix_hash: String,
}

/// How to project: `policy` (a name, or several), and what each takes.
#[derive(ToSchema)]
pub struct ProjectionOptions {
    /// `raw`, `clean_tool_repair`, `squash_failed_calls`, `summary_prefix`, `reachability_gc`, `clear_tool_uses`, `custom`, or
    /// several of them.
    policy: Option<Value>,
    /// For `custom`: the text of a script.
    projector: Option<Value>,
}

/// What the next request sees, and what was decided on the way there.
#[derive(ToSchema)]
pub struct View {
    policy: String,
    reason: String,
    messages: Vec<Value>,
    /// For each message its index in the transcript; null if it is synthetic.
    source_indices: Vec<Option<u64>>,
    kept_indices: Vec<u64>,
    dropped_indices: Vec<u64>,
    redacted_indices: Vec<u64>,
    kept_count: u64,
    dropped_count: u64,
    redacted_count: u64,
    reclaimed_chars: u64,
    reclaimed_tokens: u64,
    prefix_hash: String,
    /// The policy would have broken signed reasoning, so the view is raw.
    provider_safety_blocked: bool,
    roots_consulted: Vec<String>,
    redaction_pointers: Vec<BTreeMap<String, Value>>,
    first_changed_index: Option<u64>,
    unchanged_leading_tokens: Option<u64>,
    /// The event that records it.
    event: BTreeMap<String, Value>,
}

/// A transcript value, version 2.
#[derive(ToSchema)]
pub struct Transcript {
    /// Always `transcript`.
    #[serde(rename = "_type")]
    marker: String,
    version: u32,
    id: Option<String>,
    state: Option<String>,
    summary: Option<String>,
    metadata: BTreeMap<String, Value>,
    messages: Vec<Value>,
    events: Vec<Value>,
    assets: Vec<Value>,
}

/// How a conversation is exported.
#[derive(ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    Jsonl,
    Transcript,
    OpenaiChat,
    OpenaiResponses,
    Anthropic,
    Gemini,
    Markdown,
    Html,
}

/// A transcript value, or the fields of a request to a provider: `messages`, `input` or `contents`, and what goes before
/// them.
#[derive(ToSchema)]
pub struct Exported(BTreeMap<String, Value>);

/// What an import did.
#[derive(ToSchema)]
pub struct Imported {
    /// `jsonl`, `session`, `transcript`, `claude-code`, `codex`, `gemini-cli`, `openai-chat`, `openai-responses`,
    /// `anthropic` or `messages`.
    format: String,
    conversation: Conversation,
    /// Further conversations of the file: subagents, and branches that were taken up again.
    linked: Option<Vec<String>>,
    /// Events in the file: lines, or elements of a list.
    events: u64,
    /// Turns in the file.
    turns: u64,
    /// Events that were new here.
    added: u64,
    /// What is no turn and was kept as an event `import.line`: how often, by its type.
    kept: Option<std::collections::BTreeMap<String, u64>>,
    /// What could not be taken over, and why.
    problems: Vec<String>,
}

/// What a verification found.
#[derive(ToSchema)]
pub struct Verdict {
    conversation: String,
    ok: bool,
    /// Events that were checked.
    events: Option<u64>,
    /// Bodies that are erased: counted, not an error.
    erased: Option<u64>,
    head: Option<Head>,
    /// If a head was asked for: whether the chain contains it.
    contains_head: Option<bool>,
    problems: Option<Vec<String>>,
}

/// What a check of everything found.
#[derive(ToSchema)]
pub struct Doctor {
    conversations: u64,
    events: u64,
    erased: u64,
    assets: u64,
    /// What is wrong; empty if nothing is.
    findings: Vec<Finding>,
}

/// Something that is wrong, and what to do about it.
#[derive(ToSchema)]
pub struct Finding {
    tenant: Option<String>,
    conversation: Option<String>,
    problem: String,
    advice: String,
}

/// What a model answered.
#[derive(ToSchema)]
pub struct Generated {
    /// The generation.
    id: String,
    /// What was asked, as it was appended.
    input: Vec<Turn>,
    /// What was answered: complete, and durable.
    turns: Vec<Turn>,
    /// The words of the answer.
    text: String,
    /// The words of a refusal, where the provider keeps it apart.
    refusal: Option<String>,
    /// The tools it calls.
    calls: Vec<Call>,
    /// `stop`, `length`, `tool_calls`, `content_filter`, or the provider's word.
    finish: String,
    tokens: GeneratedTokens,
    /// All that the provider says about what it cost.
    usage: Option<Value>,
    /// The model that answered.
    model: String,
    /// The place of the receipt: what the model was given.
    receipt_seq: u64,
}

/// A tool call.
#[derive(ToSchema)]
pub struct Call {
    id: Option<String>,
    name: String,
    /// JSON, unless the model erred.
    arguments: String,
}

/// What an answer cost.
#[derive(ToSchema)]
pub struct GeneratedTokens {
    prompt: Option<u64>,
    completion: Option<u64>,
    /// Tokens of the prompt that came from the provider's cache.
    cached: Option<u64>,
}

/// How a generation goes.
#[derive(ToSchema)]
pub struct Generation {
    id: String,
    conversation: String,
    /// The turn that it writes; null before it is open.
    turn: Option<String>,
    /// `running`, `done`, `failed` or `stopped`.
    state: String,
    /// Why it failed.
    code: Option<String>,
    /// The same in words.
    text: Option<String>,
}
