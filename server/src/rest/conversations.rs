//! Conversations.

use crate::access::{Reader, Writer};
use crate::app::{App, blocking};
use crate::json::{Json, Path};
use crate::problem::{Problem, ProblemBody};
use crate::schema;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use everturn_core::conversation::{Settings, SystemPrompt};
use everturn_core::id::ConversationId;
use everturn_engine::NewConversation;
use serde::Deserialize;
use std::sync::Arc;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// `/conversations`.
pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(create)).routes(routes!(get))
}

/// A conversation to begin.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Create {
    /// For people.
    title: Option<String>,
    /// Session-level instructions.
    system_prompt: Option<String>,
}

/// Begins a conversation.
#[utoipa::path(
    post, path = "/conversations", tag = "conversations", request_body = Create,
    responses((status = 201, body = schema::Conversation), (status = 400, body = ProblemBody))
)]
async fn create(Writer(scope): Writer, Json(body): Json<Create>) -> Result<Response, Problem> {
    let settings = Settings {
        title: body.title.map(Some),
        system_prompt: body.system_prompt.map(SystemPrompt::new).map(Some),
        ..Settings::default()
    };
    let conversation = scope.create(NewConversation { settings, ..NewConversation::default() }).await?;
    let location = format!("/api/v1/conversations/{}", conversation.id);
    Ok((StatusCode::CREATED, [(LOCATION, location)], axum::Json(conversation)).into_response())
}

/// One conversation.
#[utoipa::path(
    get, path = "/conversations/{id}", tag = "conversations", params(("id" = String, Path)),
    responses((status = 200, body = schema::Conversation), (status = 404, body = ProblemBody))
)]
async fn get(Reader(scope): Reader, Path(id): Path<ConversationId>) -> Result<Response, Problem> {
    let conversation = blocking(move || scope.get(id)).await?;
    Ok(axum::Json(conversation).into_response())
}
