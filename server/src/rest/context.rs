//! What a model call is given.

use crate::access::{Reader, Writer};
use crate::app::{App, blocking};
use crate::json::{Json, Path};
use crate::problem::Problem;
use crate::schema;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use everturn_core::Error;
use everturn_core::id::ConversationId;
use everturn_core::json::Raw;
use everturn_engine::script::options;
use everturn_engine::{Context, ContextOptions, Digest, RecallRequest};
use everturn_views::context::Sections;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// `/conversations/{id}/context` and `contexts`.
pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(build_context))
        .routes(routes!(record_context))
        .routes(routes!(replay_context))
}

/// How a context is built. Everything but the budget may be left out.
#[derive(Deserialize, ToSchema, Default)]
#[serde(deny_unknown_fields)]
#[schema(as = ContextRequest, example = json!({"token_budget": 8000, "provider": "openai-chat", "input": [{"role": "user", "content": "And then?"}]}))]
pub struct Build {
    /// Most tokens. A generation may leave it out: then it is what the model takes, less the room for its answer.
    token_budget: Option<u64>,
    /// Most turns of the tail.
    last_n: Option<usize>,
    /// Whose view: these actors' turns are the assistant's, the others' the user's.
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>)]
    participants: Vec<String>,
    /// How the tail is projected: a policy's name, or options.
    projection: Option<Value>,
    /// Which sections, and how much of the room each may fill: `{"facts": false, "recalled": {"share": 0.3}}`.
    #[schema(value_type = Option<BTreeMap<String, Value>>)]
    sections: Option<Value>,
    /// Instructions for this call, after the system prompt.
    instructions: Option<String>,
    /// Texts of yours: a work board, a memory, a scratchpad. The most important first.
    #[serde(default)]
    #[schema(value_type = Option<Vec<DigestText>>)]
    digests: Vec<DigestText>,
    /// What is asked now, as messages of any shape.
    #[serde(default)]
    #[schema(value_type = Option<Vec<Value>>)]
    input: Vec<Raw>,
    /// Content blocks that go with it: images, files.
    #[serde(default)]
    #[schema(value_type = Option<Vec<Value>>)]
    attachments: Vec<Raw>,
    /// The schemas of the tools that are sent along.
    #[serde(default)]
    #[schema(value_type = Option<Vec<Value>>)]
    tools: Vec<Raw>,
    /// Whose shape the messages get: `openai-chat`, `openai-responses`, `anthropic`, `gemini` or `neutral`.
    #[schema(value_type = Option<schema::Provider>)]
    provider: Option<String>,
    /// Which model will read it; decides who counts.
    model: Option<String>,
    /// What is recalled for it from further back than the tail: `{"turns": 5, "facts": 10}`.
    #[schema(value_type = Option<schema::ContextRecall>)]
    recall: Option<RecallRequest>,
    /// As it was when the log ended here.
    at_seq: Option<u64>,
}

/// A text of the caller's.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DigestText {
    /// What stands above it.
    title: String,
    /// Plain text, or JSON.
    text: String,
}

impl From<DigestText> for Digest {
    fn from(digest: DigestText) -> Digest {
        Digest { title: digest.title, text: digest.text }
    }
}

impl Build {
    /// Whether it says what a generation knows better.
    pub fn says_what_follows(&self) -> bool {
        !self.input.is_empty() || self.provider.is_some() || self.model.is_some()
    }

    /// As the engine takes them.
    pub fn into_options(self) -> Result<ContextOptions, Error> {
        Ok(ContextOptions {
            last_n: self.last_n,
            participants: self.participants,
            projection: self.projection.as_ref().map(options).transpose()?,
            sections: self.sections.as_ref().map(Sections::parse).transpose()?.unwrap_or_default(),
            instructions: self.instructions,
            digests: self.digests.into_iter().map(Digest::from).collect(),
            input: self.input,
            attachments: self.attachments,
            tools: self.tools,
            provider: self.provider.as_deref().unwrap_or("neutral").parse()?,
            model: self.model,
            recall: self.recall,
            at_seq: self.at_seq,
            ..ContextOptions::new(self.token_budget.unwrap_or_default())
        })
    }
}

/// Builds what a model call is given, inside a token budget. Nothing is written.
#[utoipa::path(
    post, path = "/conversations/{id}/context", tag = "context", params(schema::InConversation),
    request_body = Build,
    responses((status = 200, description = "The context.", body = schema::Context))
)]
async fn build_context(
    Reader(scope): Reader,
    Path(id): Path<ConversationId>,
    Json(body): Json<Build>,
) -> Result<axum::Json<Context>, Problem> {
    let context = blocking(move || scope.build_context(id, &body.into_options()?)).await?;
    Ok(axum::Json(context))
}

/// A context and where its receipt is.
#[derive(Serialize)]
struct Recorded {
    #[serde(flatten)]
    context: Context,
    recorded_seq: u64,
}

/// Builds a context and records its receipt, because it is going to be used.
#[utoipa::path(
    post, path = "/conversations/{id}/contexts", tag = "context", params(schema::InConversation),
    request_body = Build,
    responses((status = 201, description = "The context, and the place of its receipt.", body = schema::RecordedContext))
)]
async fn record_context(
    Writer(scope): Writer,
    Path(id): Path<ConversationId>,
    Json(body): Json<Build>,
) -> Result<Response, Problem> {
    let recorded = blocking(move || {
        let context = scope.build_context(id, &body.into_options()?)?;
        let recorded_seq = scope.record_receipt(id, &context)?.seq;
        Ok(Recorded { context, recorded_seq })
    })
    .await?;
    let location = format!("/api/v1/conversations/{id}/contexts/{}", recorded.recorded_seq);
    Ok((StatusCode::CREATED, [(LOCATION, location)], axum::Json(recorded)).into_response())
}

/// Makes a context again from its receipt, byte for byte.
#[utoipa::path(
    get, path = "/conversations/{id}/contexts/{seq}", tag = "context",
    params(schema::InConversation, ("seq" = u64, Path, description = "The place of the receipt.")),
    responses((status = 200, description = "As the model saw it.", body = schema::Context))
)]
async fn replay_context(
    Reader(scope): Reader,
    Path((id, seq)): Path<(ConversationId, u64)>,
) -> Result<axum::Json<Context>, Problem> {
    Ok(axum::Json(blocking(move || scope.replay_context(id, seq)).await?))
}
