//! What a conversation needs to go on: checkpoint, pins, what is pending.

use crate::access::{Reader, Writer};
use crate::app::{App, blocking};
use crate::json::{Json, Path, Query};
use crate::problem::Problem;
use crate::schema;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use everturn_core::Error;
use everturn_core::event::Event;
use everturn_core::id::{ConversationId, clip};
use everturn_core::json::Raw;
use everturn_views::state::{Approval, ApprovalBody, State};
use serde::Deserialize;
use std::sync::Arc;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// `/conversations/{id}/state`, `pins` and `approvals`.
pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(get_state))
        .routes(routes!(pin, unpin))
        .routes(routes!(request_approval))
        .routes(routes!(resolve_approval))
}

/// As of when.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct At {
    /// As it was when the log ended here.
    at: Option<u64>,
}

/// Reads the state.
#[utoipa::path(
    get, path = "/conversations/{id}/state", tag = "state", params(schema::InConversation, At),
    responses((status = 200, description = "The state.", body = schema::State))
)]
async fn get_state(
    Reader(scope): Reader,
    Path(id): Path<ConversationId>,
    Query(as_of): Query<At>,
) -> Result<axum::Json<State>, Problem> {
    let read = move || match as_of.at {
        Some(seq) => scope.state_at(id, seq),
        None => scope.state(id),
    };
    Ok(axum::Json(blocking(read).await?))
}

/// A truth.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"value": "Answer in Portuguese."}))]
struct NewPin {
    /// Any JSON of up to 4 KiB.
    #[schema(value_type = Value)]
    value: Raw,
}

/// Pins a truth: every prompt says it until it is unpinned, whatever is summarized.
#[utoipa::path(
    put, path = "/conversations/{id}/pins/{name}", tag = "state",
    params(schema::InConversation, schema::NamedPin), request_body = NewPin,
    responses((status = 200, description = "The event that pinned it.", body = schema::Event))
)]
async fn pin(
    Writer(scope): Writer,
    Path((id, name)): Path<(ConversationId, String)>,
    Json(body): Json<NewPin>,
) -> Result<axum::Json<Event>, Problem> {
    let pinned = blocking(move || Ok(scope.pin(id, &name, body.value))).await?;
    Ok(axum::Json(pinned.await?))
}

/// Takes a pin away.
#[utoipa::path(
    delete, path = "/conversations/{id}/pins/{name}", tag = "state",
    params(schema::InConversation, schema::NamedPin),
    responses((status = 200, description = "The event that took it away.", body = schema::Event))
)]
async fn unpin(
    Writer(scope): Writer,
    Path((id, name)): Path<(ConversationId, String)>,
) -> Result<axum::Json<Event>, Problem> {
    let unpinned = blocking(move || {
        if !scope.state(id)?.pins.contains_key(&name) {
            let text = format!("nothing is pinned as {:?}; the state shows the pins", clip(&name));
            return Err(Error::not_found("pin.absent", text));
        }
        Ok(scope.unpin(id, &name))
    });
    Ok(axum::Json(unpinned.await?.await?))
}

/// A question that somebody must answer before work goes on.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"approval_id": "appr-2", "tool_call_id": "call_7", "tool_name": "send_mail", "question": "Send it?"}))]
struct NewApproval {
    /// Pairs question and answer.
    approval_id: String,
    /// The call that waits for it.
    tool_call_id: Option<String>,
    /// Its tool.
    tool_name: Option<String>,
    /// For people.
    question: Option<String>,
}

/// Asks for an approval.
#[utoipa::path(
    post, path = "/conversations/{id}/approvals", tag = "state", params(schema::InConversation),
    request_body = NewApproval,
    responses((status = 201, description = "The event that asks.", body = schema::Event))
)]
async fn request_approval(
    Writer(scope): Writer,
    Path(id): Path<ConversationId>,
    Json(body): Json<NewApproval>,
) -> Result<Response, Problem> {
    let request = ApprovalBody {
        approval_id: body.approval_id,
        tool_call_id: body.tool_call_id,
        tool_name: body.tool_name,
        question: body.question,
        state: None,
    };
    let event = scope.request_approval(id, request).await?;
    Ok((StatusCode::CREATED, axum::Json(event)).into_response())
}

/// An answer.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ResolveRequest, example = json!({"state": "approved"}))]
struct Resolution {
    /// `approved`, `denied`, `cancelled` or `expired`.
    #[schema(value_type = schema::Resolution)]
    state: Approval,
}

/// Answers an approval.
#[utoipa::path(
    post, path = "/conversations/{id}/approvals/{approval}/resolve", tag = "state",
    params(schema::InConversation, ("approval" = String, Path, description = "The approval's id.")),
    request_body = Resolution,
    responses((status = 200, description = "The event that answers.", body = schema::Event))
)]
async fn resolve_approval(
    Writer(scope): Writer,
    Path((id, approval)): Path<(ConversationId, String)>,
    Json(body): Json<Resolution>,
) -> Result<axum::Json<Event>, Problem> {
    let resolved = blocking(move || {
        if !scope.state(id)?.pending_approvals.iter().any(|pending| pending.approval_id == approval) {
            let text = format!("no approval {:?} waits; the state shows what does", clip(&approval));
            return Err(Error::not_found("approval.absent", text));
        }
        Ok(scope.resolve_approval(id, &approval, body.state))
    });
    Ok(axum::Json(resolved.await?.await?))
}
