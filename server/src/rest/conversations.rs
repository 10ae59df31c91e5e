//! Conversations: begin, find, change, fork, end.

use crate::access::{Admin, Reader, Writer};
use crate::app::{App, blocking};
use crate::headers::{IfMatch, IfNoneMatch, Once, tagged};
use crate::json::{Json, Path, Query, given};
use crate::page::Page;
use crate::problem::Problem;
use crate::schema;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use everturn_core::Error;
use everturn_core::conversation::{Conversation, Retention, Settings, State, SystemPrompt, Tombstone};
use everturn_core::id::ConversationId;
use everturn_core::json::Raw;
use everturn_core::time::Timestamp;
use everturn_engine::{Change, ListQuery, NewConversation, Scope};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// `/conversations`.
pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(create_conversation, list_conversations))
        .routes(routes!(resolve_conversation))
        .routes(routes!(get_conversation, change_conversation, delete_conversation))
        .routes(routes!(fork_conversation))
        .routes(routes!(reset_conversation))
        .routes(routes!(list_tombstones))
}

/// A conversation to begin. Everything may be left out.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewConversation, example = json!({"title": "Trip to Lisbon", "system_prompt": "You plan trips.", "metadata": {"project": "holidays"}}))]
struct Create {
    /// An id of your choice; by default a new one.
    #[schema(value_type = Option<String>)]
    id: Option<ConversationId>,
    /// For people.
    title: Option<String>,
    /// Whose it is within the tenant.
    owner: Option<String>,
    /// Whatever you keep here.
    #[serde(default)]
    #[schema(value_type = Option<BTreeMap<String, Value>>)]
    metadata: BTreeMap<String, Raw>,
    /// Seconds after the last change until it is deleted.
    ttl: Option<u64>,
    /// How long content is kept.
    #[schema(value_type = Option<schema::Retention>)]
    retention: Option<Retention>,
    /// `compaction`, `budget`, `facts`, `redaction`.
    #[serde(default)]
    #[schema(value_type = Option<BTreeMap<String, Value>>)]
    policy: BTreeMap<String, Raw>,
    /// Session-level instructions.
    system_prompt: Option<String>,
}

/// What is to be different. A field that is absent stays as it is; one that is null goes.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ConversationChange, example = json!({"title": "Lisbon in May", "metadata": {"project": null}}))]
struct Patch {
    /// For people.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>)]
    title: Option<Option<String>>,
    /// Whose it is within the tenant.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>)]
    owner: Option<Option<String>>,
    /// Merged key by key; null removes a key.
    #[serde(default)]
    #[schema(value_type = Option<BTreeMap<String, Value>>)]
    metadata: BTreeMap<String, Raw>,
    /// Seconds after the last change until it is deleted.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<u64>)]
    ttl: Option<Option<u64>>,
    /// How long content is kept.
    #[schema(value_type = Option<schema::Retention>)]
    retention: Option<Retention>,
    /// Merged key by key; null removes a key.
    #[serde(default)]
    #[schema(value_type = Option<BTreeMap<String, Value>>)]
    policy: BTreeMap<String, Raw>,
    /// Session-level instructions.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>)]
    system_prompt: Option<Option<String>>,
    /// Where it is in its life: `archived` puts it away, `active` brings it back, `closed` ends it for good.
    #[schema(value_type = Option<schema::ConversationState>)]
    state: Option<State>,
    /// Why the state changes.
    reason: Option<String>,
}

/// Begins a conversation.
#[utoipa::path(
    post, path = "/conversations", tag = "conversations", params(schema::IdempotencyKey),
    request_body = Create,
    responses(
        (status = 201, description = "It began.", body = schema::Conversation),
        (status = 409, description = "The id is taken, or the key was used for something else.", body = schema::Problem)
    )
)]
async fn create_conversation(
    Writer(scope): Writer,
    Once(idempotency_key): Once,
    Json(body): Json<Create>,
) -> Result<Response, Problem> {
    let settings = Settings {
        title: body.title.map(Some),
        owner: body.owner.map(Some),
        metadata: body.metadata,
        ttl: body.ttl.map(Some),
        retention: body.retention,
        policy: body.policy,
        system_prompt: body.system_prompt.map(SystemPrompt::new).map(Some),
        ..Settings::default()
    };
    let made = scope.create(NewConversation { settings, idempotency_key, id: body.id }).await?;
    created(scope, made.id).await
}

/// A new conversation as a GET shows it, and where that is.
async fn created(scope: Scope, id: ConversationId) -> Result<Response, Problem> {
    let conversation = blocking(move || scope.get(id)).await?;
    let location = format!("/api/v1/conversations/{id}");
    Ok((StatusCode::CREATED, [(LOCATION, location)], tagged(conversation)).into_response())
}

/// Which conversations.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct List {
    /// Only those whose title contains this.
    query: Option<String>,
    /// Only those in this state.
    #[param(value_type = Option<schema::ConversationState>)]
    state: Option<State>,
    /// The `next` of the page before.
    after: Option<String>,
    /// At most this many.
    #[param(minimum = 1, maximum = 1000, default = 50)]
    limit: Option<usize>,
}

/// Lists conversations, last changed first.
#[utoipa::path(
    get, path = "/conversations", tag = "conversations", params(List),
    responses((status = 200, description = "A page.", body = Page<schema::Conversation>))
)]
async fn list_conversations(
    Reader(scope): Reader,
    Query(list): Query<List>,
) -> Result<Page<Conversation>, Problem> {
    let query = ListQuery {
        text: list.query,
        state: list.state,
        after: list.after.as_deref().map(cursor).transpose()?,
        limit: list.limit.unwrap_or(ListQuery::default().limit),
    };
    let page = blocking(move || scope.list(query)).await?;
    Ok(Page { data: page.data, next: page.next.map(|(updated, id)| format!("{updated}/{id}")) })
}

fn cursor(text: &str) -> Result<(Timestamp, ConversationId), Error> {
    let wrong = || Error::invalid("list.after", "`after` is not the `next` of a page; copy it from there");
    let (updated, id) = text.split_once('/').ok_or_else(wrong)?;
    Ok((updated.parse().map_err(|_| wrong())?, id.parse().map_err(|_| wrong())?))
}

/// What a person calls it.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Named {
    /// An id, the beginning of one, or `@last` for the conversation that changed last.
    #[param(example = "@last")]
    name: String,
}

/// Finds the conversation that a person means.
#[utoipa::path(
    get, path = "/conversations/resolve", tag = "conversations", params(Named),
    responses(
        (status = 200, description = "The one.", body = schema::Conversation),
        (status = 404, description = "None.", body = schema::Problem)
    )
)]
async fn resolve_conversation(
    Reader(scope): Reader,
    Query(named): Query<Named>,
) -> Result<Response, Problem> {
    let conversation = blocking(move || scope.get(scope.resolve(&named.name)?)).await?;
    Ok(tagged(conversation))
}

/// Reads a conversation.
#[utoipa::path(
    get, path = "/conversations/{id}", tag = "conversations",
    params(schema::InConversation, schema::IfNoneMatch),
    responses(
        (status = 200, description = "As it is now.", body = schema::Conversation, headers(("ETag" = String, description = "Where its log ends."))),
        (status = 304, description = "As the caller has it.")
    )
)]
async fn get_conversation(
    Reader(scope): Reader,
    Path(id): Path<ConversationId>,
    known: IfNoneMatch,
) -> Result<Response, Problem> {
    let conversation = blocking(move || scope.get(id)).await?;
    let unchanged = known.unchanged(&conversation.head.seq.to_string());
    Ok(unchanged.unwrap_or_else(|| tagged(conversation)))
}

/// Changes settings and state, in one step.
#[utoipa::path(
    patch, path = "/conversations/{id}", tag = "conversations",
    params(schema::InConversation, schema::IfMatch), request_body = Patch,
    responses(
        (status = 200, description = "As it is now.", body = schema::Conversation, headers(("ETag" = String, description = "Where its log ends."))),
        (status = 409, description = "It is closed, or was changed at the same moment.", body = schema::Problem),
        (status = 412, description = "It changed since it was read.", body = schema::Problem)
    )
)]
async fn change_conversation(
    Writer(scope): Writer,
    Path(id): Path<ConversationId>,
    IfMatch(expected_seq): IfMatch,
    Json(body): Json<Patch>,
) -> Result<Response, Problem> {
    let settings = Settings {
        title: body.title,
        owner: body.owner,
        metadata: body.metadata,
        ttl: body.ttl,
        retention: body.retention,
        policy: body.policy,
        system_prompt: body.system_prompt.map(|prompt| prompt.map(SystemPrompt::new)),
        ..Settings::default()
    };
    let change = Change { settings, state: body.state, reason: body.reason, expected_seq };
    scope.change(id, change).await.map_err(|error| match (expected_seq, error.code()) {
        (Some(_), "append.stale_seq") => Problem::new(
            StatusCode::PRECONDITION_FAILED,
            "conversation.changed",
            format!("{error}; read the conversation again"),
        ),
        _ => error.into(),
    })?;
    Ok(tagged(blocking(move || scope.get(id)).await?))
}

/// Why something goes.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Why {
    /// Why; kept in the tombstone.
    #[param(example = "test data")]
    reason: Option<String>,
}

/// Deletes a conversation whole. A tombstone stays, so that audit can tell deleted from lost.
#[utoipa::path(
    delete, path = "/conversations/{id}", tag = "conversations", params(schema::InConversation, Why),
    responses((status = 200, description = "What stays.", body = schema::Tombstone))
)]
async fn delete_conversation(
    Admin(scope): Admin,
    Path(id): Path<ConversationId>,
    Query(why): Query<Why>,
) -> Result<axum::Json<Tombstone>, Problem> {
    let reason = why.reason.as_deref().unwrap_or("on request");
    Ok(axum::Json(scope.delete(id, reason).await?))
}

/// Where to fork.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ForkRequest, example = json!({"at_seq": 1}))]
struct Fork {
    /// The last event that both share; by default the newest.
    at_seq: Option<u64>,
}

/// Forks a conversation: a new one that shares the history up to a place.
#[utoipa::path(
    post, path = "/conversations/{id}/fork", tag = "conversations",
    params(schema::InConversation, schema::IdempotencyKey), request_body = Fork,
    responses(
        (status = 201, description = "The fork.", body = schema::Conversation),
        (status = 409, description = "The key was used for something else.", body = schema::Problem)
    )
)]
async fn fork_conversation(
    Writer(scope): Writer,
    Path(id): Path<ConversationId>,
    Once(idempotency_key): Once,
    Json(body): Json<Fork>,
) -> Result<Response, Problem> {
    let fork = {
        let scope = scope.clone();
        blocking(move || scope.fork_once(id, body.at_seq, idempotency_key).wait()).await?
    };
    created(scope, fork.id).await
}

/// Starts over: a new conversation with the same settings that names this one; this one is closed.
#[utoipa::path(
    post, path = "/conversations/{id}/reset", tag = "conversations", params(schema::InConversation),
    responses((status = 201, description = "The new one.", body = schema::Conversation))
)]
async fn reset_conversation(
    Writer(scope): Writer,
    Path(id): Path<ConversationId>,
) -> Result<Response, Problem> {
    let new = {
        let scope = scope.clone();
        blocking(move || scope.reset(id)).await?
    };
    created(scope, new.id).await
}

/// Lists what was deleted.
#[utoipa::path(
    get, path = "/tombstones", tag = "conversations",
    responses((status = 200, description = "All of them.", body = Page<schema::Tombstone>))
)]
async fn list_tombstones(Reader(scope): Reader) -> Result<Page<Tombstone>, Problem> {
    Ok(Page::whole(blocking(move || scope.tombstones()).await?))
}
