//! The log itself and the changes of a tenant's conversations: in pages, or live.

use super::{at, operations};
use crate::app::{self, App};
use crate::headers;
use crate::lanes::{self, Charge, Lane};
use crate::problem::Problem;
use crate::sse::{self, Frames, frame, frame_at};
use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::HeaderName;
use axum::response::Response;
use axum::response::sse::Event;
use axum::routing::get;
use everturn_api::events::{ListChanges, ListEvents, shown};
use everturn_api::{Operation, Requester};
use everturn_core::Error;
use everturn_engine::{
    ChangeKind, ChangeSubscription, Position, Subscription, TenantChanges, Timestamp, Update,
};
use futures_util::StreamExt;
use serde_json::json;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::task::JoinHandle;

/// `/conversations/{conversation}/events` and `/events`.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route(&at(ListEvents::ABOUT.path), get(list_events))
        .route(&at(ListChanges::ABOUT.path), get(list_changes))
}

async fn list_events(State(app): State<Arc<App>>, request: Request) -> Result<Response, Problem> {
    if !sse::is_wanted(request.headers()) {
        return operations::answer_whole::<ListEvents>(app, request).await;
    }
    let last = headers::text(request.headers(), &HeaderName::from_static("last-event-id"))?;
    let (requester, asked) = operations::read::<ListEvents>(&app, request).await?;
    let after: Position = match last.filter(|last| !last.is_empty()) {
        Some(last) => last.trim().parse()?,
        None => Position { seq: asked.from.unwrap_or(1).max(1) - 1, chunk: None },
    };
    let subscription =
        requester.blocking(move |tenant| asked.conversation.find(tenant)?.subscribe(after)).await?;
    Ok(sse::answer(&app, EventStream::new(subscription)))
}

/// A live stream. Reading the log blocks, so it is done on another thread, which holds the subscription
/// meanwhile.
struct EventStream {
    subscription: Source,
    lane: Option<Arc<Lane>>,
    /// For updates that were read and wait to be sent.
    charge: Option<Charge>,
    /// Position after the last frame.
    position: Position,
}

/// A subscription with its next updates, and the charge for them.
type ReadAhead = (Box<Subscription>, Result<Option<Charge>, Error>);

enum Source {
    Here(Box<Subscription>),
    Reading(JoinHandle<ReadAhead>),
    Gone,
}

impl EventStream {
    fn new(subscription: Subscription) -> EventStream {
        let lane = lanes::current().map(|request_lane| request_lane.lane.clone());
        EventStream {
            position: subscription.position(),
            subscription: Source::Here(Box::new(subscription)),
            lane,
            charge: None,
        }
    }

    /// Reads the next updates from the log, if they come from there. Dropping the future loses nothing.
    async fn read_ahead(&mut self) -> Result<(), Error> {
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
        Ok(())
    }
}

impl Frames for EventStream {
    async fn next(&mut self) -> Option<Event> {
        if let Source::Gone = self.subscription {
            return None;
        }
        let subscription = loop {
            if let Err(error) = self.read_ahead().await {
                return Some(frame("error", &Problem::from(error).body()));
            }
            let Source::Here(subscription) = &mut self.subscription else { return None };
            subscription.changed().await;
            if !subscription.is_behind() {
                break subscription;
            }
        };
        let update = match subscription.next().await? {
            Ok(update) => update,
            Err(error) => return Some(frame("error", &Problem::from(error).body())),
        };
        let at = subscription.position();
        if subscription.waiting_bytes() == 0 {
            self.charge = None;
        }
        self.position = at;
        Some(match update {
            Update::Event(event) => frame_at("event", at, &*event),
            Update::Chunk(chunk) => {
                let data = json!({"turn": chunk.turn, "turn_seq": chunk.turn_seq, "offset": chunk.offset, "text": &*chunk.text});
                frame_at("chunk", at, &data)
            }
            Update::Lagged { resume_from } => frame_at("lagged", at, &json!({"resume_from": resume_from})),
            Update::Deleted => frame("deleted", &json!({})),
        })
    }

    fn stopping(&self) -> Event {
        frame_at("stopping", self.position, &json!({"resume_from": self.position.seq + 1}))
    }
}

async fn list_changes(State(app): State<Arc<App>>, request: Request) -> Result<Response, Problem> {
    if !sse::is_wanted(request.headers()) {
        return operations::answer_whole::<ListChanges>(app, request).await;
    }
    let last = headers::text(request.headers(), &HeaderName::from_static("last-event-id"))?;
    let (requester, asked) = operations::read::<ListChanges>(&app, request).await?;
    let after = match last.filter(|last| !last.is_empty()) {
        Some(last) => Some(last.trim().parse()?),
        None => asked.since,
    };
    let changes = requester.blocking(move |tenant| Ok(tenant.changes(after))).await?;
    Ok(sse::answer(&app, ChangeStream::new(requester, changes)))
}

/// A live stream of a tenant's changes. Reading them blocks, so it is done on another thread, which holds the
/// subscription meanwhile.
struct ChangeStream {
    requester: Requester,
    changes: Option<ChangeSubscription>,
    reading: Option<JoinHandle<(ChangeSubscription, Result<TenantChanges, Error>)>>,
    ready: VecDeque<Event>,
    /// Position after the last frame.
    position: Timestamp,
}

impl ChangeStream {
    fn new(requester: Requester, changes: ChangeSubscription) -> ChangeStream {
        let position = changes.position();
        let ready = frame("ready", &json!({"next": position})).id(position.to_string());
        ChangeStream {
            requester,
            changes: Some(changes),
            reading: None,
            ready: VecDeque::from([ready]),
            position,
        }
    }

    /// Reads the next changes; false at the end. Dropping the future loses nothing.
    async fn read(&mut self) -> Result<bool, Error> {
        if let Some(changes) = &mut self.changes {
            if !changes.wait().await {
                return Ok(false);
            }
            self.reading = self.changes.take().map(|mut changes| {
                tokio::task::spawn_blocking(move || {
                    let read = changes.read();
                    (changes, read)
                })
            });
        }
        let Some(reading) = &mut self.reading else { return Ok(false) };
        let (changes, read) = reading.await.map_err(|_| app::panicked())?;
        (self.changes, self.reading) = (Some(changes), None);
        let read = read?;
        if read.reset {
            self.ready.push_back(frame("reset", &json!({"next": read.next})).id(read.next.to_string()));
        }
        self.ready.extend(read.data.into_iter().map(|change| {
            let name = match change.change {
                ChangeKind::Created => "created",
                ChangeKind::Changed => "changed",
                ChangeKind::Deleted => "deleted",
            };
            let change = shown(&self.requester, change);
            frame(name, &change).id(change.at.to_string())
        }));
        self.position = read.next;
        Ok(true)
    }
}

impl Frames for ChangeStream {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            match self.read().await {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    (self.changes, self.reading) = (None, None);
                    return Some(frame("error", &Problem::from(error).body()));
                }
            }
        }
    }

    fn stopping(&self) -> Event {
        frame("stopping", &json!({"next": self.position})).id(self.position.to_string())
    }
}
