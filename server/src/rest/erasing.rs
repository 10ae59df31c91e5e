//! Erasing what is not named by a turn: other events, and everything of an actor. See `turns` for a single turn.

use crate::access::Admin;
use crate::app::{App, blocking};
use crate::json::{Json, Path};
use crate::problem::Problem;
use crate::schema;
use everturn_core::conversation::Conversation;
use everturn_core::id::ConversationId;
use everturn_engine::ErasedActor;
use serde::Deserialize;
use std::sync::Arc;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// `/conversations/{id}/events/erase` and `/erase`.
pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(erase_events)).routes(routes!(erase_actor))
}

/// Which events, who wants it, and why.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = EraseEvents, example = json!({"seqs": [7], "reason": "asked by the customer", "by": "dpo"}))]
struct Events {
    /// Places of events that are no turns.
    seqs: Vec<u64>,
    /// Why; kept in the log.
    reason: String,
    /// On whose behalf; kept in the log.
    by: Option<String>,
}

/// Erases the words of events that are no turns: notes, pins, facts, imported lines. Of an event that set title, metadata
/// or system prompt, those are unset.
#[utoipa::path(
    post, path = "/conversations/{id}/events/erase", tag = "events", params(schema::InConversation), request_body = Events,
    responses(
        (status = 200, description = "The conversation as it is now.", body = schema::Conversation),
        (status = 400, description = "An event is part of a turn, or has no words.", body = schema::Problem)
    )
)]
async fn erase_events(
    Admin(scope): Admin,
    Path(id): Path<ConversationId>,
    Json(body): Json<Events>,
) -> Result<axum::Json<Conversation>, Problem> {
    let erase = move || {
        scope.erase_events(id, &body.seqs, body.by, &body.reason)?;
        scope.get(id)
    };
    Ok(axum::Json(blocking(erase).await?))
}

/// Whose words, who wants it, and why.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = EraseActor, example = json!({"actor": "ana", "reason": "asked by the customer", "by": "dpo"}))]
struct Actor {
    /// Everything that this actor said goes.
    actor: String,
    /// Why; kept in the log.
    reason: String,
    /// On whose behalf; kept in the log.
    by: Option<String>,
}

/// Erases everything that an actor said, in all conversations of the tenant, with everything that was derived from it. Takes
/// as long as reading the log once; repeating it is harmless and finishes what was cut off.
#[utoipa::path(
    post, path = "/erase", tag = "events", request_body = Actor,
    responses((status = 200, description = "How much was erased.", body = schema::ErasedActor))
)]
async fn erase_actor(
    Admin(scope): Admin,
    Json(body): Json<Actor>,
) -> Result<axum::Json<ErasedActor>, Problem> {
    let erase = move || scope.erase_actor(&body.actor, body.by, &body.reason, &mut |_| {});
    Ok(axum::Json(blocking(erase).await?))
}
