//! Streams of server-sent events.

use crate::app::App;
use crate::lanes;
use axum::http::header::CONTENT_TYPE;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use everturn_core::Error;
use everturn_engine::model::{Generation, GenerationStep};
use everturn_engine::{Generating, GenerationProgress};
use futures_util::{Stream, StreamExt};
use serde_json::Value;
use std::convert::Infallible;
use std::pin::Pin;
use std::time::Duration;
use tokio::sync::mpsc;

/// Maximum silence of a stream.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// Number of events buffered for a slow client.
pub const EVENTS_AHEAD: usize = 64;

/// A reply being generated, from any source.
pub type Steps = Pin<Box<dyn Stream<Item = Result<GenerationStep, Error>> + Send>>;

/// A stored generation.
pub fn stored(generating: Generating) -> Steps {
    generating
        .map(|progress| {
            progress.map(|progress| match progress {
                GenerationProgress::Delta(delta) => GenerationStep::Delta(delta),
                GenerationProgress::Done(generated) => GenerationStep::Done(Box::new(generated.answer)),
            })
        })
        .boxed()
}

/// A generation that is not stored.
pub fn unstored(generation: Generation) -> Steps {
    generation.boxed()
}

/// No reply.
pub fn none() -> Steps {
    futures_util::stream::empty().boxed()
}

/// The error for a reply without an end.
pub fn endless() -> Error {
    Error::internal("model.no_answer", "the model's reply has no end; ask again")
}

/// Sink of events. A disconnected client is not an error.
pub enum Feed {
    /// Server-sent events.
    ResponseEvents(mpsc::Sender<Event>),
    /// Messages of a socket.
    Messages(mpsc::Sender<String>),
}

impl Feed {
    /// Sends an event. Returns whether the client is still connected.
    pub async fn send(&self, name: Option<&str>, data: &Value) -> bool {
        match self {
            Feed::ResponseEvents(sink) => {
                let event = name.map_or_else(Event::default, |name| Event::default().event(name));
                sink.send(event.data(data.to_string())).await.is_ok()
            }
            Feed::Messages(sink) => sink.send(data.to_string()).await.is_ok(),
        }
    }

    /// The mark after the last event. A socket has none.
    pub async fn done(&self) {
        if let Feed::ResponseEvents(sink) = self {
            let _ = sink.send(Event::default().data("[DONE]")).await;
        }
    }
}

/// A streamed answer whose events are made by this work, which continues even if the client disconnects.
pub fn respond<F: Future<Output = ()> + Send + 'static>(app: &App, work: impl FnOnce(Feed) -> F) -> Response {
    let (sender, receiver) = mpsc::channel(EVENTS_AHEAD);
    tokio::spawn(lanes::inherited(lanes::current(), work(Feed::ResponseEvents(sender))));
    let stopping = app.stopping.clone();
    let events = futures_util::stream::unfold(receiver, async |mut receiver| {
        Some((Ok::<_, Infallible>(receiver.recv().await?), receiver))
    });
    let alive = KeepAlive::new().interval(HEARTBEAT).text("still here");
    let events = Sse::new(events.take_until(stopping.cancelled_owned())).keep_alive(alive);
    ([(CONTENT_TYPE, "text/event-stream; charset=utf-8")], events).into_response()
}
