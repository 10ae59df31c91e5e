//! Which slice of a transcript the next request sees.

use crate::access::{Reader, Writer};
use crate::app::{App, blocking};
use crate::json::{Json, Path};
use crate::page::Page;
use crate::problem::Problem;
use crate::schema;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use everturn_core::Error;
use everturn_core::id::ConversationId;
use everturn_core::json::Raw;
use everturn_core::projection::{self, Message, Options};
use everturn_engine::script::Script;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
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
    let view = blocking(move || {
        let options = options(&body.options.unwrap_or(json!({})))?;
        let (messages, summary) = read(&body.transcript)?;
        Raw::of(&projection::project(&messages, summary.as_deref(), &options)?)
    });
    Ok(axum::Json(view.await?).into_response())
}

/// Options in which a projector is the text of a script.
pub fn options(value: &Value) -> Result<Options, Error> {
    let mut options = Options::parse(value)?;
    if let Some(script) = options.script.as_ref().and_then(Value::as_str) {
        options.projector = Some(Arc::new(Script::compile(script)?));
    }
    Ok(options)
}

/// The messages of a transcript value or of a bare list, and the value's summary.
fn read(transcript: &Raw) -> Result<(Vec<Message>, Option<String>), Error> {
    let (list, summary) = match transcript.read::<Vec<Raw>>() {
        Some(list) => (list, None),
        None => {
            let fields: BTreeMap<String, Raw> = transcript.read().unwrap_or_default();
            let list =
                fields.get("messages").and_then(|messages| messages.read::<Vec<Raw>>()).ok_or_else(|| {
                    let text =
                        "`transcript` must be a list of messages, or a transcript value with `messages`";
                    Error::invalid("project.input", text)
                })?;
            (list, fields.get("summary").and_then(|summary| summary.read::<String>()))
        }
    };
    let messages = list.into_iter().enumerate();
    let messages = messages.map(|(n, raw)| Message::read(raw).map_err(|e| e.at(format!("messages[{n}]"))));
    Ok((messages.collect::<Result<_, _>>()?, summary))
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
) -> Result<axum::Json<Raw>, Problem> {
    let view = blocking(move || scope.project(id, &options(&asked)?));
    Ok(axum::Json(view.await?.result))
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
    let (view, event) = blocking(move || scope.project_turn(id, &options(&asked)?)).await?;
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
) -> Result<Page<Raw>, Problem> {
    Ok(Page::whole(blocking(move || scope.replay_projection(id, seq)).await?))
}
