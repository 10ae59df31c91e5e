//! The log itself: as pages, or live.

use crate::access::{Reader, Writer};
use crate::app::{self, App, blocking};
use crate::headers;
use crate::json::{Json, Path, Query};
use crate::lanes::{self, Charge, Lane};
use crate::page::Page;
use crate::problem::Problem;
use crate::schema;
use crate::sse::{self, Frame, Frames};
use axum::extract::State;
use axum::http::header::HeaderName;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use everturn_core::Error;
use everturn_core::id::ConversationId;
use everturn_core::json::Raw;
use everturn_engine::{Position, Scope, Subscription, Update};
use futures_util::StreamExt;
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;
use tokio::task::JoinHandle;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// `/conversations/{id}/events`.
pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(list_events, append_event))
}

/// Which events.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Events {
    /// The first event that is wanted.
    #[param(minimum = 1, default = 1)]
    from: Option<u64>,
    /// At most this many; a live stream has no limit.
    #[param(minimum = 1, maximum = 1000, default = 50)]
    limit: Option<usize>,
}

/// Reads the log, or follows it.
///
/// With `Accept: text/event-stream` everything from `from` on is sent, then what comes, without a gap and without a
/// repeat. `id:` is the place to resume after, to be sent back as `Last-Event-ID`; it may be inside a turn. `resume_from`
/// is the same as a number for `from`, where open turns begin anew. `event:` is one of
/// `event` (data: an event of the log),
/// `chunk` (a piece of an open turn: `turn`, `turn_seq`, `offset` in bytes, `text`),
/// `lagged` (the reader was too slow and is let go: `resume_from`),
/// `deleted` (the conversation is gone),
/// `stopping` (the server stops: `resume_from`) or
/// `error` (a problem).
#[utoipa::path(
    get, path = "/conversations/{id}/events", tag = "events",
    params(
        schema::InConversation, Events,
        ("Last-Event-ID" = Option<String>, Header, description = "The last `id:` that was received; goes before `from`.")
    ),
    responses(
        (status = 200, description = "A page whose `next` is the next page's `from`; or a live stream.", content(
            (Page<schema::Event> = "application/json"), (String = "text/event-stream")
        ))
    )
)]
async fn list_events(
    State(app): State<Arc<App>>,
    Reader(scope): Reader,
    Path(id): Path<ConversationId>,
    Query(events): Query<Events>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let from = events.from.unwrap_or(1).max(1);
    if !sse::is_wanted(&headers) {
        return page(scope, id, from, events.limit.unwrap_or(50)).await;
    }
    let last = headers::text(&headers, &HeaderName::from_static("last-event-id"))?;
    let after: Position = match last.filter(|last| !last.is_empty()) {
        Some(last) => last.trim().parse()?,
        None => Position { seq: from - 1, chunk: None },
    };
    let subscription = blocking(move || scope.subscribe_after(id, after)).await?;
    Ok(sse::answer(&app, Following::new(subscription)))
}

async fn page(scope: Scope, id: ConversationId, from: u64, limit: usize) -> Result<Response, Problem> {
    crate::app::json(move || {
        let data = scope.events(id, from - 1, limit)?;
        let next = match data.last() {
            Some(last) if !scope.events(id, last.seq, 1)?.is_empty() => Some((last.seq + 1).to_string()),
            _ => None,
        };
        Ok(Page { data, next })
    })
    .await
}

/// A live stream. Reading the log blocks, so it is done on another thread, which has the subscription meanwhile.
struct Following {
    subscription: Source,
    lane: Option<Arc<Lane>>,
    /// For the updates that were read and wait to be sent.
    charge: Option<Charge>,
    /// After the frame that was given last.
    position: Position,
}

enum Source {
    Here(Subscription),
    Reading(JoinHandle<(Subscription, Result<Option<Charge>, Error>)>),
    Gone,
}

impl Following {
    fn new(subscription: Subscription) -> Following {
        let lane = lanes::current().map(|errand| errand.lane.clone());
        Following {
            position: subscription.position(),
            subscription: Source::Here(subscription),
            lane,
            charge: None,
        }
    }

    /// The subscription, with its next updates read from the log. Dropping the future loses nothing.
    async fn read_ahead(&mut self) -> Result<&mut Subscription, Error> {
        if let Source::Here(subscription) = &self.subscription
            && subscription.is_behind()
        {
            let thread = match &self.lane {
                Some(lane) => Some(lane.thread_of_stream().await),
                None => None,
            };
            if let Source::Here(mut subscription) = std::mem::replace(&mut self.subscription, Source::Gone) {
                let lane = self.lane.clone();
                self.subscription = Source::Reading(tokio::task::spawn_blocking(move || {
                    let _thread = thread;
                    let read = subscription.read_ahead();
                    let charge = lane.and_then(|lane| lane.charge(subscription.waiting_bytes()));
                    (subscription, read.map(|()| charge))
                }));
            }
        }
        if let Source::Reading(reading) = &mut self.subscription {
            let read = reading.await;
            self.subscription = Source::Gone;
            let (subscription, read) = read.map_err(|_| app::panicked())?;
            self.subscription = Source::Here(subscription);
            self.charge = read?;
        }
        match &mut self.subscription {
            Source::Here(subscription) => Ok(subscription),
            _ => Err(app::panicked()),
        }
    }
}

impl Frames for Following {
    async fn next(&mut self) -> Option<Frame> {
        if let Source::Gone = self.subscription {
            return None;
        }
        let subscription = match self.read_ahead().await {
            Ok(subscription) => subscription,
            Err(error) => return Some(Frame::new("error", &Problem::from(error).body())),
        };
        let update = match subscription.next().await? {
            Ok(update) => update,
            Err(error) => return Some(Frame::new("error", &Problem::from(error).body())),
        };
        let at = subscription.position();
        if subscription.waiting_bytes() == 0 {
            self.charge = None;
        }
        self.position = at;
        Some(match update {
            Update::Event(event) => Frame::new("event", &*event).at(at),
            Update::Chunk(chunk) => {
                let data = json!({"turn": chunk.turn, "turn_seq": chunk.turn_seq, "offset": chunk.offset, "text": &*chunk.text});
                Frame::new("chunk", &data).at(at)
            }
            Update::Lagged { resume_from } => {
                Frame::new("lagged", &json!({"resume_from": resume_from})).at(at)
            }
            Update::Deleted => Frame::new("deleted", &json!({})),
        })
    }

    fn stopping(&self) -> Frame {
        Frame::new("stopping", &json!({"resume_from": self.position.seq + 1})).at(self.position)
    }
}

/// Something that happened.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"kind": "snapshot_created", "body": {"path": "/tmp/a.png"}}))]
struct NewEvent {
    /// What happened: `tool.started`, `tool.finished`, or a kind of your own. Kinds that change turns or conversations
    /// have their own routes.
    kind: String,
    /// Who did it.
    actor: Option<String>,
    /// Kept byte for byte.
    #[schema(value_type = Value)]
    body: Raw,
}

/// Appends an event that is not a turn.
#[utoipa::path(
    post, path = "/conversations/{id}/events", tag = "events", params(schema::InConversation),
    request_body = NewEvent,
    responses(
        (status = 201, description = "The event.", body = schema::Event),
        (status = 409, description = "The conversation is not active.", body = schema::Problem)
    )
)]
async fn append_event(
    Writer(scope): Writer,
    Path(id): Path<ConversationId>,
    Json(body): Json<NewEvent>,
) -> Result<Response, Problem> {
    let event = scope.append_event(id, &body.kind, body.actor, body.body).await?;
    Ok((StatusCode::CREATED, axum::Json(event)).into_response())
}
