//! Turns that come in pieces: open, chunks, commit or abort.

use super::turns::Said;
use crate::access::Writer;
use crate::app::{App, blocking};
use crate::headers::Once;
use crate::json::{Json, Path};
use crate::problem::Problem;
use crate::schema;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use everturn_core::id::{ConversationId, TurnId};
use everturn_core::json::Raw;
use everturn_core::turn::{Role, Turn};
use everturn_engine::NewStream;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// `/conversations/{id}/turns/open` and what follows it.
pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(open_turn))
        .routes(routes!(append_chunk))
        .routes(routes!(commit_turn))
        .routes(routes!(abort_turn))
}

/// How a streamed turn begins.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewStream, example = json!({"actor": "planner", "model": "gpt-5"}))]
struct Open {
    /// Who speaks.
    actor: Option<String>,
    /// In which role; the assistant's by default.
    #[schema(value_type = Option<schema::Role>)]
    role: Option<Role>,
    /// Which model speaks.
    model: Option<String>,
    /// Whatever else is to be kept with it.
    #[serde(default)]
    #[schema(value_type = Option<BTreeMap<String, Value>>)]
    metadata: BTreeMap<String, Raw>,
}

/// Opens a turn whose text will come in chunks. One that is silent for ten minutes is ended as interrupted.
#[utoipa::path(
    post, path = "/conversations/{id}/turns/open", tag = "turns",
    params(schema::InConversation, schema::IdempotencyKey), request_body = Open,
    responses(
        (status = 201, description = "The pending turn.", body = schema::Turn),
        (status = 409, description = "The conversation is not active, or the key was used for something else.", body = schema::Problem)
    )
)]
async fn open_turn(
    Writer(scope): Writer,
    Path(id): Path<ConversationId>,
    Once(idempotency_key): Once,
    Json(body): Json<Open>,
) -> Result<Response, Problem> {
    let Open { actor, role, model, metadata } = body;
    let new = NewStream { actor, role, model, metadata, idempotency_key };
    let turn = scope.append_open(id, new).await?;
    Ok((StatusCode::CREATED, axum::Json(turn)).into_response())
}

/// A piece of text.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"delta": "Lisbon, ", "offset": 0}))]
struct Chunk {
    /// The piece.
    delta: String,
    /// Bytes of the turn's text before it: a repeated chunk then changes nothing, and a missing one is noticed.
    offset: Option<u64>,
}

/// How long the text is.
#[derive(Serialize, ToSchema)]
struct Length {
    /// Bytes of the turn's text, this piece included: the next one's offset.
    length: u64,
}

/// Adds to an open turn: shown at once, durable within a quarter of a second.
#[utoipa::path(
    post, path = "/turns/{turn}/chunks", tag = "turns", params(schema::OfTurn), request_body = Chunk,
    responses(
        (status = 200, description = "It is taken.", body = Length),
        (status = 409, description = "The turn has ended, or the offset leaves a hole.", body = schema::Problem)
    )
)]
async fn append_chunk(
    Writer(scope): Writer,
    Path(turn): Path<TurnId>,
    Json(body): Json<Chunk>,
) -> Result<axum::Json<Length>, Problem> {
    let append = move || scope.append_chunk(scope.turn(turn)?.conversation, turn, body.offset, &body.delta);
    Ok(axum::Json(Length { length: blocking(append).await? }))
}

/// Ends an open turn. Without words, what came in chunks is its content; words given here replace it.
#[utoipa::path(
    post, path = "/turns/{turn}/commit", tag = "turns", params(schema::OfTurn),
    request_body(content = Said, example = json!({"tokens": {"prompt": 812, "completion": 5}})),
    responses(
        (status = 200, description = "The turn, complete and durable.", body = schema::Turn),
        (status = 409, description = "The turn has ended.", body = schema::Problem)
    )
)]
async fn commit_turn(
    Writer(scope): Writer,
    Path(turn): Path<TurnId>,
    Json(body): Json<Said>,
) -> Result<axum::Json<Turn>, Problem> {
    let last = body.into_turn()?;
    let commit = blocking(move || Ok(scope.append_commit(scope.turn(turn)?.conversation, turn, last)));
    Ok(axum::Json(commit.await?.await?))
}

/// Why it is given up.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AbortRequest, example = json!({"reason": "the user stopped it"}))]
struct Abort {
    /// Why; kept with the turn.
    reason: String,
    /// The turn that takes its place.
    #[schema(value_type = Option<String>)]
    replacement: Option<TurnId>,
}

/// Gives an open turn up. What was said so far is kept.
#[utoipa::path(
    post, path = "/turns/{turn}/abort", tag = "turns", params(schema::OfTurn), request_body = Abort,
    responses(
        (status = 200, description = "The turn, aborted.", body = schema::Turn),
        (status = 409, description = "The turn has ended.", body = schema::Problem)
    )
)]
async fn abort_turn(
    Writer(scope): Writer,
    Path(turn): Path<TurnId>,
    Json(body): Json<Abort>,
) -> Result<axum::Json<Turn>, Problem> {
    let abort = move || {
        let conversation = scope.turn(turn)?.conversation;
        Ok(scope.append_abort(conversation, turn, &body.reason, body.replacement))
    };
    Ok(axum::Json(blocking(abort).await?.await?))
}
