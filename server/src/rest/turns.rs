//! Turns: append, read, supersede, erase.

use crate::access::{Admin, Reader, Writer};
use crate::app::{App, blocking, committed, json};
use crate::headers::Once;
use crate::json::{Json, Path, Query, given};
use crate::page::Page;
use crate::problem::Problem;
use crate::schema;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use everturn_core::Error;
use everturn_core::event::Visibility;
use everturn_core::id::{ConversationId, TurnId};
use everturn_core::json::Raw;
use everturn_core::time::Timestamp;
use everturn_core::turn::{Role, Tokens, Turn};
use everturn_engine::{AppendOptions, HistoryQuery, NewTurn, Order};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// `/conversations/{id}/turns` and `/turns`.
pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(append_turns, list_turns))
        .routes(routes!(get_turn))
        .routes(routes!(supersede_turn))
        .routes(routes!(erase_turn))
}

/// A turn to append: either `message`, in any shape, or `role` and `content`.
#[derive(Deserialize, ToSchema, Default)]
#[serde(deny_unknown_fields)]
#[schema(as = NewTurn, example = json!({"role": "user", "content": "Where did we leave off?", "actor": "ana"}))]
pub struct Said {
    /// A message in any shape: OpenAI chat, Anthropic blocks, Responses item. Kept byte for byte.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<BTreeMap<String, Value>>)]
    message: Option<Raw>,
    /// In which role.
    #[schema(value_type = Option<schema::Role>)]
    role: Option<Role>,
    /// A text, or blocks. Kept byte for byte.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Value>)]
    content: Option<Raw>,
    /// Calls, as OpenAI writes them.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Value>)]
    tool_calls: Option<Raw>,
    /// Which call a turn of role `tool` answers.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>)]
    tool_call_id: Option<Raw>,
    /// Who speaks.
    actor: Option<String>,
    /// Who may see it.
    #[schema(value_type = Option<schema::Visibility>)]
    visibility: Option<Visibility>,
    /// Tokens that the provider counted.
    #[schema(value_type = Option<schema::Tokens>)]
    tokens: Option<Tokens>,
    /// Which model said it.
    model: Option<String>,
    /// Through which client or importer it came.
    adapter: Option<String>,
    /// Whatever else is to be kept with it.
    #[serde(default)]
    #[schema(value_type = Option<BTreeMap<String, Value>>)]
    metadata: BTreeMap<String, Raw>,
    /// When it was said, where that is not now.
    #[schema(value_type = Option<String>, format = DateTime)]
    occurred_at: Option<Timestamp>,
}

impl Said {
    /// As the engine takes it. Without any words the message is empty.
    pub fn into_turn(self) -> Result<NewTurn, Error> {
        let role = self.role.map(|role| Raw::of(&role)).transpose()?;
        let fields = [
            ("role", role),
            ("content", self.content),
            ("tool_calls", self.tool_calls),
            ("tool_call_id", self.tool_call_id),
        ];
        let fields: Vec<String> = fields
            .iter()
            .filter_map(|(name, value)| Some(format!("\"{name}\":{}", value.as_ref()?.get())))
            .collect();
        let message = match self.message {
            Some(_) if !fields.is_empty() => {
                let text = "a turn has `message`, or `role` and `content`; send one of the two";
                return Err(Error::invalid("turn.said_twice", text));
            }
            Some(message) => message.get().to_string(),
            None if fields.is_empty() => String::new(),
            None => format!("{{{}}}", fields.join(",")),
        };
        Ok(NewTurn {
            message,
            actor: self.actor,
            visibility: self.visibility,
            tokens: self.tokens,
            model: self.model,
            adapter: self.adapter,
            metadata: self.metadata,
            occurred_at: self.occurred_at,
        })
    }
}

/// Turns as the engine takes them; what is wrong names its place.
pub fn new_turns(turns: Vec<Said>) -> Result<Vec<NewTurn>, Error> {
    let turns = turns.into_iter().enumerate();
    turns.map(|(n, turn)| turn.into_turn().map_err(|e| e.at(format!("turns[{n}]")))).collect()
}

/// Turns to append: all of them, or none.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AppendRequest, example = json!({"turns": [{"role": "user", "content": "Where did we leave off?", "actor": "ana"}]}))]
struct Append {
    /// In order.
    turns: Vec<Said>,
    /// Refuse unless the log ends here.
    expected_seq: Option<u64>,
}

/// Appends turns, in one step.
#[utoipa::path(
    post, path = "/conversations/{id}/turns", tag = "turns",
    params(schema::InConversation, schema::IdempotencyKey), request_body = Append,
    responses(
        (status = 201, description = "They are appended, and durable.", body = schema::Appended),
        (status = 200, description = "They had been, under the same key.", body = schema::Appended),
        (status = 409, description = "The log does not end at `expected_seq`, the conversation is not active, or the key was used for something else.", body = schema::Problem)
    )
)]
async fn append_turns(
    Writer(scope): Writer,
    Path(id): Path<ConversationId>,
    Once(idempotency_key): Once,
    Json(body): Json<Append>,
) -> Result<Response, Problem> {
    let turns = new_turns(body.turns)?;
    let options = AppendOptions { expected_seq: body.expected_seq, idempotency_key };
    let commit = match scope.append_unless_blocking(id, turns, options) {
        Ok(commit) => commit,
        Err((turns, options)) => blocking(move || Ok(scope.append(id, turns, options))).await?,
    };
    let appended = committed(commit).await?;
    let status = if appended.repeated { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, axum::Json(appended)).into_response())
}

/// Which part of the history. `actor` may be said several times, so it is read by hand.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct History {
    /// Only what comes before this place.
    before: Option<u64>,
    /// Only what comes after this place.
    after: Option<u64>,
    /// At most this many.
    #[param(minimum = 1, maximum = 1000, default = 50)]
    limit: Option<usize>,
    /// `asc` (the default) or `desc`.
    #[param(value_type = Option<schema::Order>)]
    order: Option<Direction>,
    /// Also superseded turns.
    #[serde(default)]
    #[param(value_type = Option<bool>)]
    include_superseded: bool,
    /// Also events that are not turns.
    #[serde(default)]
    #[param(value_type = Option<bool>)]
    include_events: bool,
}

#[derive(Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Direction {
    Asc,
    Desc,
}

/// Reads the history, summarized turns included.
#[utoipa::path(
    get, path = "/conversations/{id}/turns", tag = "turns",
    params(
        schema::InConversation, History,
        ("actor" = Option<Vec<String>>, Query, description = "Only turns of this actor. May be said several times.")
    ),
    responses((status = 200, description = "A page; `next` is the next page's `after`, or its `before` with `order=desc`.", body = Page<schema::Entry>))
)]
async fn list_turns(
    Reader(scope): Reader,
    Path(id): Path<ConversationId>,
    Query(history): Query<History>,
    Query(fields): Query<Vec<(String, String)>>,
) -> Result<Response, Problem> {
    let known = ["before", "after", "limit", "order", "actor", "include_superseded", "include_events"];
    if let Some((name, _)) = fields.iter().find(|(name, _)| !known.contains(&name.as_str())) {
        let name = everturn_core::id::clip(name);
        let text = format!("{name:?} is not known; there are {}", known.join(", "));
        return Err(Error::invalid("query.shape", text).into());
    }
    let query = HistoryQuery {
        before: history.before,
        after: history.after,
        limit: history.limit.unwrap_or(HistoryQuery::default().limit),
        order: match history.order {
            Some(Direction::Desc) => Order::Descending,
            _ => Order::Ascending,
        },
        actors: fields.into_iter().filter(|(name, _)| name == "actor").map(|(_, actor)| actor).collect(),
        include_superseded: history.include_superseded,
        include_events: history.include_events,
    };
    json(move || {
        let page = scope.history(id, query)?;
        Ok(Page { data: page.data, next: page.next.map(|seq| seq.to_string()) })
    })
    .await
}

/// As which conversation sees it.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SeenBy {
    /// A fork, to read the turn as it was where the fork left.
    #[param(value_type = Option<String>)]
    conversation: Option<ConversationId>,
}

/// Reads one turn.
#[utoipa::path(
    get, path = "/turns/{turn}", tag = "turns", params(schema::OfTurn, SeenBy),
    responses((status = 200, description = "The turn.", body = schema::Turn))
)]
async fn get_turn(
    Reader(scope): Reader,
    Path(turn): Path<TurnId>,
    Query(seen_by): Query<SeenBy>,
) -> Result<axum::Json<Turn>, Problem> {
    let read = move || match seen_by.conversation {
        Some(conversation) => scope.turn_in(conversation, turn),
        None => scope.turn(turn),
    };
    Ok(axum::Json(blocking(read).await?))
}

/// Says something else instead. The old turn stays; history shows the chain, prompts use its newest end.
#[utoipa::path(
    post, path = "/turns/{turn}/supersede", tag = "turns", params(schema::OfTurn), request_body = Said,
    responses(
        (status = 201, description = "The new turn.", body = schema::Appended),
        (status = 409, description = "The turn is open, or has been superseded.", body = schema::Problem)
    )
)]
async fn supersede_turn(
    Writer(scope): Writer,
    Path(turn): Path<TurnId>,
    Json(body): Json<Said>,
) -> Result<Response, Problem> {
    let with = body.into_turn()?;
    let appended = blocking(move || Ok(scope.supersede(scope.turn(turn)?.conversation, turn, with))).await?;
    Ok((StatusCode::CREATED, axum::Json(appended.await?)).into_response())
}

/// Who wants it, and why.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = EraseRequest, example = json!({"reason": "asked by the customer", "by": "dpo"}))]
struct Erase {
    /// Why; kept in the log.
    reason: String,
    /// On whose behalf; kept in the log.
    by: Option<String>,
}

/// Erases the words of a turn. Its envelope and hash stay, so that the chain still verifies.
#[utoipa::path(
    post, path = "/turns/{turn}/erase", tag = "turns", params(schema::OfTurn), request_body = Erase,
    responses((status = 200, description = "What stays.", body = schema::Turn))
)]
async fn erase_turn(
    Admin(scope): Admin,
    Path(turn): Path<TurnId>,
    Json(body): Json<Erase>,
) -> Result<axum::Json<Turn>, Problem> {
    let erase = move || {
        scope.erase(scope.conversation_of(turn)?, turn, body.by, &body.reason).wait()?;
        scope.turn(turn)
    };
    Ok(axum::Json(blocking(erase).await?))
}
