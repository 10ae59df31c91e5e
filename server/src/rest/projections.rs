//! Which slice of a transcript the next request sees.

use crate::access::{Reader, Writer};
use crate::app::{App, large, large_json};
use crate::json::{Json, Path};
use crate::page::Page;
use crate::problem::Problem;
use crate::schema;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use everturn_core::id::ConversationId;
use everturn_core::json::Raw;
use everturn_engine::script::options;
use everturn_formats::transcript;
use everturn_views::projection;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// `/project`, `/conversations/{id}/project` and `projections`.
pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(project_transcript))
        .routes(routes!(project_conversation))
        .routes(routes!(record_projection))
        .routes(routes!(replay_projection))
}

/// A transcript, and how to project it.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ProjectRequest, example = json!({"transcript": [{"role": "user", "content": "hi"}], "options": {"policy": "clean_tool_repair"}}))]
struct Project {
    /// A list of messages, or a transcript value.
    #[schema(value_type = Value)]
    transcript: Raw,
    /// A policy's name, or options.
    options: Option<Value>,
}

/// Projects a transcript that is given. Nothing is kept.
#[utoipa::path(
    post, path = "/project", tag = "context", request_body = Project,
    responses((status = 200, description = "The view.", body = schema::View))
)]
async fn project_transcript(Reader(_): Reader, Json(body): Json<Project>) -> Result<Response, Problem> {
    large_json(move || {
        let options = options(&body.options.unwrap_or(json!({})))?;
        let (messages, summary) = transcript::messages(&body.transcript)?;
        Raw::of(&projection::project(&messages, summary.as_deref(), &options)?)
    })
    .await
}

/// Projects a conversation. Nothing is written.
#[utoipa::path(
    post, path = "/conversations/{id}/project", tag = "context", params(schema::InConversation),
    request_body(content = schema::ProjectionOptions, example = json!({"policy": "clean_tool_repair"})),
    responses((status = 200, description = "The view.", body = schema::View))
)]
async fn project_conversation(
    Reader(scope): Reader,
    Path(id): Path<ConversationId>,
    Json(asked): Json<Value>,
) -> Result<Response, Problem> {
    large_json(move || Ok(scope.project(id, &options(&asked)?)?.result)).await
}

/// Projects a conversation and records the decision, because the view is going to be used.
#[utoipa::path(
    post, path = "/conversations/{id}/projections", tag = "context", params(schema::InConversation),
    request_body(content = schema::ProjectionOptions, example = json!({"policy": "clean_tool_repair"})),
    responses((status = 201, description = "The view; `Location` is where it can be made again.", body = schema::View))
)]
async fn record_projection(
    Writer(scope): Writer,
    Path(id): Path<ConversationId>,
    Json(asked): Json<Value>,
) -> Result<Response, Problem> {
    let (view, event) = large(move || scope.project_turn(id, &options(&asked)?)).await?;
    let location = format!("/api/v1/conversations/{id}/projections/{}", event.seq);
    Ok((StatusCode::CREATED, [(LOCATION, location)], axum::Json(view.result)).into_response())
}

/// Makes the messages of a recorded view again, byte for byte.
#[utoipa::path(
    get, path = "/conversations/{id}/projections/{seq}", tag = "context",
    params(schema::InConversation, ("seq" = u64, Path, description = "The place of the record.")),
    responses((status = 200, description = "The messages.", body = Page<Value>))
)]
async fn replay_projection(
    Reader(scope): Reader,
    Path((id, seq)): Path<(ConversationId, u64)>,
) -> Result<Response, Problem> {
    large_json(move || scope.replay_projection(id, seq).map(Page::whole)).await
}
