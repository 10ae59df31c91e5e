//! Responses: create, retrieve, cancel, delete.

use super::conversations::{Paging, page};
use super::error::RequestError;
use super::events::ResponseEvents;
use super::fields::Fields;
use super::request::ResponseRequest;
use super::sse::{self, Feed, Steps};
use super::stored::{self, ResponseView, State as ReplyState, StoredRequest, done, usage};
use super::streams::Stream;
use super::target::{self, StartedResponse, unstored_request};
use super::{items, models};
use crate::access::{Admin, Reader, Writer};
use crate::app::{App, blocking};
use crate::json::{Json, Path, Query};
use crate::lanes;
use crate::problem::Problem;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use everturn_core::Error;
use everturn_core::event::kind;
use everturn_core::id::{ConversationId, GenerationId, TurnId};
use everturn_core::limits::PAGE_ENTRIES_MAX;
use everturn_core::turn::{Status, Turn};
use everturn_engine::model::{Delta, GenerationStep, ModelReply};
use everturn_engine::{HistoryQuery, Receipt, SystemWorld, Tenant, Update, World};
use futures_util::StreamExt;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Maximum time that a cancel waits for the generation to end.
const CANCEL_WAIT: Duration = Duration::from_secs(10);

/// `/v1/responses`.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/responses", post(create).get(super::socket::connect))
        .route("/v1/responses/{id}", get(retrieve).delete(delete))
        .route("/v1/responses/{id}/cancel", post(cancel))
        .route("/v1/responses/{id}/input_items", get(input_items))
}

/// A response being generated.
pub struct RunningResponse {
    pub turn: TurnId,
    kept: StoredRequest,
    steps: Steps,
    /// Tenant that it is stored in; `None` if it is not stored.
    tenant: Option<Tenant>,
}

impl RunningResponse {
    /// Time of the reply's end, in seconds since 1970.
    fn ended(&self) -> impl Future<Output = Result<i64, Error>> + Send + use<> {
        let (tenant, turn) = (self.tenant.clone(), self.turn);
        async move {
            let Some(tenant) = tenant else { return Ok(now()) };
            blocking(move || Ok(stored::ended(&tenant, &tenant.turn(turn)?)?.1)).await
        }
    }
}

/// A request that has begun.
pub struct StartedRequest {
    pub running: RunningResponse,
    /// The conversation, if it was created for this response.
    own: Option<ConversationId>,
}

pub async fn begin(tenant: &Tenant, ask: ResponseRequest) -> Result<StartedRequest, RequestError> {
    let model = models::find(tenant, ask.model.clone())?;
    if ask.store || ask.conversation.is_some() {
        let StartedResponse { generating, kept, own } = target::begin(tenant, ask, &model).await?;
        let (turn, own) = (generating.turn, own.then_some(generating.conversation));
        let (steps, tenant) = (sse::stored(generating), Some(tenant.clone()));
        return Ok(StartedRequest { running: RunningResponse { turn, kept, steps, tenant }, own });
    }
    let (model_name, echo) = (model.asked.clone(), ask.echo.clone());
    let request = unstored_request(tenant, ask, &model).await?;
    let steps = sse::unstored(model.configured.client.generate(request));
    let kept = StoredRequest { model: model_name, echo, conversation: None, inputs: 0 };
    Ok(StartedRequest { running: RunningResponse { turn: fresh()?, kept, steps, tenant: None }, own: None })
}

async fn create(
    State(app): State<Arc<App>>,
    Writer(tenant): Writer,
    Json(body): Json<Fields>,
) -> Result<Response, RequestError> {
    let ask = ResponseRequest::read(body)?;
    let (stream, background) = (ask.stream, ask.background);
    let StartedRequest { running, own } = begin(&tenant, ask).await?;
    if stream {
        let showing = app.clone();
        return Ok(sse::respond(&app, async move |feed| {
            // Its failure is the last event of the stream.
            let _ = show(&showing, running, Some(&feed)).await;
            feed.done().await;
        }));
    }
    if background {
        let shown = ResponseView { turn: running.turn, kept: &running.kept };
        let response = shown.object(&ReplyState::InProgress, &[], None);
        tokio::spawn(lanes::inherited(lanes::current(), async move { show(&app, running, None).await }));
        return Ok(axum::Json(response).into_response());
    }
    match whole(running).await {
        Ok(response) => Ok(axum::Json(response).into_response()),
        Err(error) => {
            // The client never got its id, so it cannot be retrieved.
            if let Some(own) = own {
                tenant.conversation(own).delete("its only response failed").await?;
            }
            Err(error.into())
        }
    }
}

/// Seconds since 1970.
pub fn now() -> i64 {
    SystemWorld.now().0.div_euclid(1_000_000)
}

/// An id for a response that is not stored: a ULID, like the others.
pub fn fresh() -> Result<TurnId, Error> {
    let mut bytes = [0; 16];
    SystemWorld.fill(&mut bytes)?;
    bytes[..6].copy_from_slice(&SystemWorld.now().millis().to_be_bytes()[2..]);
    Ok(TurnId::from_bytes(bytes))
}

/// The whole reply.
pub async fn answer(mut steps: Steps) -> Result<ModelReply, Error> {
    while let Some(step) = steps.next().await {
        if let GenerationStep::Done(answer) = step? {
            return Ok(*answer);
        }
    }
    Err(sse::endless())
}

async fn whole(mut running: RunningResponse) -> Result<Value, Error> {
    let answer = answer(std::mem::replace(&mut running.steps, sse::none())).await?;
    let state = done(&answer.finish, running.ended().await?);
    let output = items::of_answer(&answer.messages, running.turn, &state);
    let shown = ResponseView { turn: running.turn, kept: &running.kept };
    Ok(shown.object(&state, &output, usage(&answer)))
}

/// Streams a reply, and returns it. Disconnecting stops it only if it is not stored.
pub async fn show(app: &App, mut running: RunningResponse, feed: Option<&Feed>) -> Result<ModelReply, Error> {
    let mut events = ResponseEvents::new(running.turn, running.kept.clone());
    let mut next = events.begin();
    let stored = running.tenant.as_ref().map(|_| app.streams.begin(running.turn));
    let tell = async |events: Vec<Value>, last: bool| {
        if let Some(stream) = &stored {
            stream.tell(&events, last);
        }
        let there = match feed {
            Some(feed) => tell(feed, &events).await,
            None => false,
        };
        there || stored.is_some()
    };
    while tell(next, false).await {
        next = match running.steps.next().await {
            Some(Ok(GenerationStep::Delta(delta))) => events.delta(delta),
            last => {
                let last = match last {
                    Some(Ok(GenerationStep::Done(answer))) => running.ended().await.map(|at| (answer, at)),
                    Some(Err(error)) => Err(error),
                    _ => Err(sse::endless()),
                };
                let shown = match &last {
                    Ok((answer, at)) => events.end(answer, *at),
                    Err(error) => events.fail(error),
                };
                tell(shown, true).await;
                return last.map(|(answer, _)| *answer);
            }
        };
    }
    Err(sse::endless())
}

#[derive(Deserialize)]
struct Retrieve {
    stream: Option<bool>,
    starting_after: Option<u64>,
}

async fn retrieve(
    State(app): State<Arc<App>>,
    Reader(tenant): Reader,
    Path(id): Path<String>,
    Query(query): Query<Retrieve>,
) -> Result<Response, RequestError> {
    let finding = tenant.clone();
    let (turn, kept) = blocking(move || stored::find(&finding, &id)).await?;
    if query.stream == Some(true) {
        if let Some(stream) = app.streams.find(turn.id) {
            let from = query.starting_after.map_or(0, |seen| seen.saturating_add(1));
            return Ok(sse::respond(&app, move |feed| show_rest(stream, from, feed)));
        }
        if query.starting_after.is_some() {
            let text = "the stream of this response is no longer in memory, and would be numbered differently; leave starting_after out to get it from its beginning";
            return Err(RequestError::field("starting_after", text));
        }
        return Ok(sse::respond(&app, move |feed| show_again(tenant, turn, kept, feed)));
    }
    let response = blocking(move || stored::object(&tenant, &turn, &kept));
    Ok(axum::Json(response.await?).into_response())
}

/// Streams the events of a response from this one on, as they were numbered.
async fn show_rest(stream: Arc<Stream>, from: u64, feed: Feed) {
    let mut from = usize::try_from(from).unwrap_or(usize::MAX);
    while let Some(events) = stream.after(from).await {
        from += events.len();
        for event in &events {
            if !feed.send(event["type"].as_str(), event).await {
                return;
            }
        }
    }
    feed.done().await;
}

/// Streams a response again: existing items at once, and further ones as they come.
async fn show_again(tenant: Tenant, turn: Turn, kept: StoredRequest, feed: Feed) {
    let mut events = ResponseEvents::new(turn.id, kept.clone());
    if !tell(&feed, &events.begin()).await {
        return;
    }
    let last = async {
        let pending = turn.status == Status::Pending;
        if pending {
            let (chat, seq) = (tenant.conversation(turn.conversation), turn.seq);
            let mut news = blocking(move || chat.subscribe(seq - 1)).await?;
            while let Some(update) = news.next().await {
                let told = match update? {
                    Update::Chunk(chunk) if chunk.turn == turn.id => {
                        tell(&feed, &events.delta(Delta::Text(chunk.text.to_string()))).await
                    }
                    Update::Event(event) if event.turn == Some(turn.id) && kind::ends_turn(&event.kind) => {
                        break;
                    }
                    _ => true,
                };
                if !told {
                    return Ok(None);
                }
            }
        }
        let response = blocking(move || stored::object(&tenant, &tenant.turn(turn.id)?, &kept)).await?;
        if !pending
            && !tell(&feed, &events.items(response["output"].as_array().map_or(&[], Vec::as_slice))).await
        {
            return Ok(None);
        }
        Ok::<_, Error>(Some(response))
    };
    let last = match last.await {
        Ok(None) => return,
        Ok(Some(response)) => events.last(response),
        Err(error) => events.fail(&error),
    };
    tell(&feed, &last).await;
    feed.done().await;
}

/// Sends events. Returns whether the client is still connected.
pub async fn tell(feed: &Feed, events: &[Value]) -> bool {
    for event in events {
        if !feed.send(event["type"].as_str(), event).await {
            return false;
        }
    }
    true
}

/// Stops a running generation, and waits until it has ended.
async fn cancel(Writer(tenant): Writer, Path(id): Path<String>) -> Result<axum::Json<Value>, RequestError> {
    let finding = (tenant.clone(), id.clone());
    let (turn, kept) = blocking(move || stored::find(&finding.0, &finding.1)).await?;
    if turn.status == Status::Pending {
        let (chat, seq) = (tenant.conversation(turn.conversation), turn.seq);
        let mut news = blocking(move || chat.subscribe(seq)).await?;
        let generation: GenerationId = items::generation(&turn).id.unwrap_or_default().parse()?;
        match tenant.generations().stop(generation) {
            // It has just ended.
            Ok(_) | Err(Error::Conflict(_)) => {}
            Err(error) => return Err(error.into()),
        }
        let ended = async {
            while let Some(Ok(update)) = news.next().await {
                if let Update::Event(event) = update
                    && event.turn == Some(turn.id)
                    && kind::ends_turn(&event.kind)
                {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(CANCEL_WAIT, ended).await;
    } else if turn.status == Status::Complete {
        let text = format!("{id} is completed already; there is nothing to cancel");
        return Err(Problem::new(StatusCode::BAD_REQUEST, "response_completed", text).into());
    }
    let response = blocking(move || stored::object(&tenant, &tenant.turn(turn.id)?, &kept));
    Ok(axum::Json(response.await?))
}

/// The input turns of a response.
fn given(tenant: &Tenant, turn: &Turn, kept: &StoredRequest) -> Result<Vec<Turn>, Error> {
    let receipt = items::generation(turn).receipt_seq.unwrap_or(0);
    let event = tenant.conversation(turn.conversation).log().read(receipt.saturating_sub(1), 1)?.pop();
    let from = event.and_then(|event| event.read::<Receipt>()).and_then(|receipt| receipt.policy.input_from);
    let (Some(from), 1..) = (from, kept.inputs) else { return Ok(Vec::new()) };
    let query = HistoryQuery {
        after: Some(from.saturating_sub(1)),
        before: Some(turn.place),
        limit: kept.inputs.min(PAGE_ENTRIES_MAX),
        ..HistoryQuery::default()
    };
    stored::turns(tenant, turn.conversation, query)
}

async fn input_items(
    Reader(tenant): Reader,
    Path(id): Path<String>,
    Query(paging): Query<Paging>,
) -> Result<axum::Json<Value>, RequestError> {
    let (limit, newest_first) = (paging.limit()?, paging.newest_first()?);
    let mut found = blocking(move || {
        let (turn, kept) = stored::find(&tenant, &id)?;
        let mut found: Vec<Value> =
            given(&tenant, &turn, &kept)?.iter().flat_map(|turn| items::of_turn(&tenant, turn)).collect();
        if newest_first {
            found.reverse();
        }
        if let Some(after) = paging.after() {
            let at = found.iter().position(|item| item["id"] == after);
            found.drain(..at.map_or(found.len(), |at| at + 1));
        }
        Ok(found)
    })
    .await?;
    let more = found.len() > limit;
    found.truncate(limit);
    Ok(page(found, more))
}

/// Erases a response and its input; a conversation of its own that has nothing else is deleted. Turns of a
/// named conversation belong to that conversation.
async fn delete(Admin(tenant): Admin, Path(id): Path<String>) -> Result<axum::Json<Value>, RequestError> {
    let deleting = id.clone();
    let named = blocking(move || {
        let (turn, kept) = stored::find(&tenant, &deleting)?;
        let conversation = tenant.conversation(turn.conversation).get()?;
        if !conversation.is_hidden() {
            return Ok(Some(conversation.id));
        }
        if turn.status == Status::Pending {
            let text = format!("{deleting} is still being generated; cancel it first");
            return Err(Error::invalid("response_in_progress", text));
        }
        let mut turns = given(&tenant, &turn, &kept)?;
        turns.extend(stored::answer_turns(&tenant, &turn)?);
        let all = conversation.turns as usize <= turns.len();
        if all && conversation.parent.is_none() {
            tenant.conversation(conversation.id).delete("its only response was deleted").wait()?;
            return Ok(None);
        }
        for turn in turns {
            tenant.conversation(conversation.id).erase(turn.id, None, "its response was deleted").wait()?;
        }
        Ok(None)
    })
    .await?;
    if let Some(conversation) = named {
        let text = format!(
            "{id} is part of {conversation}; delete its items there, or the conversation: \
             DELETE /v1/conversations/{conversation}/items/{{item}}"
        );
        return Err(Problem::new(StatusCode::BAD_REQUEST, "response_in_conversation", text).into());
    }
    Ok(axum::Json(json!({"id": id, "object": "response", "deleted": true})))
}
