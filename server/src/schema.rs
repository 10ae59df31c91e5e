//! What answers look like, for the description of the API.
//!
//! Answers are the model's own JSON, the same that the command-line tool prints. These structs say so in the words of
//! OpenAPI; nothing is ever made from them. That they are true is tested by validating real answers against them.
#![allow(dead_code, reason = "read by the derive only")]

mod derived;
mod facts;
mod recall;
mod stored;

pub use crate::problem::ProblemBody as Problem;
pub use derived::*;
pub use facts::*;
pub use recall::*;
pub use stored::*;

use utoipa::{IntoParams, ToSchema};

/// Where a conversation is in its life.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub enum ConversationState {
    Active,
    Archived,
    Abandoned,
    Closed,
}

/// How long content is kept.
#[derive(ToSchema)]
#[schema(rename_all = "kebab-case")]
pub enum Retention {
    Full,
    AuditOnly,
    Ephemeral,
}

/// In which role an actor speaks.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub enum Role {
    User,
    Assistant,
    System,
    Tool,
}

/// Who may see something.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub enum Visibility {
    Public,
    Internal,
    Private,
}

/// How far a turn has come.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub enum Status {
    Pending,
    Complete,
    Aborted,
    Interrupted,
}

/// In which direction a page goes.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub enum Order {
    Asc,
    Desc,
}

/// How an approval ended.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub enum Resolution {
    Approved,
    Denied,
    Cancelled,
    Expired,
}

/// Whose shape messages have.
#[derive(ToSchema)]
#[schema(rename_all = "kebab-case")]
pub enum Provider {
    OpenaiChat,
    OpenaiResponses,
    Anthropic,
    Gemini,
    Neutral,
}

/// A part of a prompt.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub enum Section {
    System,
    State,
    Facts,
    Recalled,
    Digests,
    Tail,
    Input,
}

/// Which conversation.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub struct InConversation {
    /// The conversation's id.
    #[param(example = "conv_01JD0000000000000000000000")]
    id: String,
}

/// Which turn.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub struct OfTurn {
    /// The turn's id.
    #[param(example = "turn_01JD0000000000000000000000")]
    turn: String,
}

/// Which asset.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub struct OfAsset {
    /// The asset's id.
    #[param(example = "asset_01JD0000000000000000000000")]
    asset: String,
}

/// Which fact.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub struct OfFact {
    /// The fact's id.
    #[param(example = "fact_01JD0000000000000000000000")]
    fact: String,
}

/// Which generation.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub struct OfGeneration {
    /// The generation's id.
    #[param(example = "gen_01JD0000000000000000000000")]
    generation: String,
}

/// Which pin.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub struct NamedPin {
    /// What it is called.
    #[param(example = "language")]
    name: String,
}

/// Makes a repeated request harmless.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
pub struct IdempotencyKey {
    /// A text of your choice: the same request under the same key is done once, also after a restart.
    #[param(rename = "Idempotency-Key")]
    idempotency_key: Option<String>,
}

/// On what condition.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
pub struct IfMatch {
    /// The ETag of a GET: refuse if it has changed since.
    #[param(rename = "If-Match")]
    if_match: Option<String>,
}

/// On what condition.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
pub struct IfNoneMatch {
    /// The ETag of a GET: say nothing if it has not changed since.
    #[param(rename = "If-None-Match")]
    if_none_match: Option<String>,
}
