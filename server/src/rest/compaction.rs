//! Older turns give way to a checkpoint.

use crate::access::{Reader, Writer};
use crate::app::{App, blocking};
use crate::headers::tagged;
use crate::json::{Json, Path};
use crate::problem::Problem;
use crate::schema;
use axum::response::Response;
use everturn_core::id::ConversationId;
use everturn_engine::{CompactOptions, Compacted, Summary};
use serde::Deserialize;
use std::sync::Arc;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// `/conversations/{id}/compact` and `summarize`.
pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(compact))
        .routes(routes!(revert_compaction))
        .routes(routes!(summarize))
}

/// How to compact.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CompactRequest, example = json!({"keep_last": 1, "extractive": true}))]
struct Compact {
    /// Only say what would happen.
    #[serde(default)]
    #[schema(value_type = Option<bool>)]
    dry_run: bool,
    /// Leave this many turns at the end as they are, instead of what the policy says.
    keep_last: Option<usize>,
    /// Do not ask a model.
    #[serde(default)]
    #[schema(value_type = Option<bool>)]
    extractive: bool,
}

/// Summarizes the oldest turns into a checkpoint. Nothing is removed: the history keeps every turn.
#[utoipa::path(
    post, path = "/conversations/{id}/compact", tag = "context", params(schema::InConversation),
    request_body = Compact,
    responses(
        (status = 200, description = "What it did, or would do.", body = schema::Compacted),
        (status = 409, description = "Somebody else compacted at the same moment.", body = schema::Problem)
    )
)]
async fn compact(
    Writer(scope): Writer,
    Path(id): Path<ConversationId>,
    Json(body): Json<Compact>,
) -> Result<axum::Json<Compacted>, Problem> {
    let options =
        CompactOptions { dry_run: body.dry_run, keep_last: body.keep_last, extractive: body.extractive };
    Ok(axum::Json(blocking(move || scope.compact(id, options)).await?))
}

/// Takes the last compaction back.
#[utoipa::path(
    post, path = "/conversations/{id}/compact/revert", tag = "context", params(schema::InConversation),
    responses(
        (status = 200, description = "The conversation, with the checkpoint before it.", body = schema::Conversation),
        (status = 409, description = "Somebody else wrote at the same moment.", body = schema::Problem)
    )
)]
async fn revert_compaction(
    Writer(scope): Writer,
    Path(id): Path<ConversationId>,
) -> Result<Response, Problem> {
    Ok(tagged(blocking(move || scope.revert_compaction(id)).await?))
}

/// What to summarize.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SummarizeRequest, example = json!({"style": "three sentences"}))]
struct Summarize {
    /// The first place; by default the beginning.
    from_seq: Option<u64>,
    /// The last place; by default the end.
    to_seq: Option<u64>,
    /// What to tell the model beside the rules.
    style: Option<String>,
}

/// Summarizes a part of a conversation. Nothing is written.
#[utoipa::path(
    post, path = "/conversations/{id}/summarize", tag = "context", params(schema::InConversation),
    request_body = Summarize,
    responses((status = 200, description = "The summary.", body = schema::Summary))
)]
async fn summarize(
    Reader(scope): Reader,
    Path(id): Path<ConversationId>,
    Json(body): Json<Summarize>,
) -> Result<axum::Json<Summary>, Problem> {
    let summarize = move || {
        let to_seq = match body.to_seq {
            Some(seq) => seq,
            None => scope.get(id)?.head.seq,
        };
        scope.summarize(id, body.from_seq.unwrap_or(1), to_seq, body.style.as_deref())
    };
    Ok(axum::Json(blocking(summarize).await?))
}
