//! Streams of server-sent events.

use crate::app::App;
use crate::lanes;
use axum::http::header::CONTENT_TYPE;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use everturn::model::{Generation, Step};
use everturn::{Generating, Progress};
use everturn_core::Error;
use futures_util::{Stream, StreamExt};
use serde_json::Value;
use std::convert::Infallible;
use std::pin::Pin;
use std::time::Duration;
use tokio::sync::mpsc;

/// How long a stream is silent at most.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// Events that may wait for a slow client.
const EVENTS_AHEAD: usize = 64;

/// An answer on its way, whoever makes it.
pub type Steps = Pin<Box<dyn Stream<Item = Result<Step, Error>> + Send>>;

/// An answer that is kept.
pub fn kept(generating: Generating) -> Steps {
    generating
        .map(|progress| {
            progress.map(|progress| match progress {
                Progress::Delta(delta) => Step::Delta(delta),
                Progress::Done(generated) => Step::Done(Box::new(generated.answer)),
            })
        })
        .boxed()
}

/// An answer that is not.
pub fn unkept(generation: Generation) -> Steps {
    generation.boxed()
}

/// There was no end.
pub fn endless() -> Error {
    Error::internal("model.no_answer", "the model's answer has no end; ask again")
}

/// Where events go. A client that has gone does not mind.
pub struct Feed(mpsc::Sender<Event>);

impl Feed {
    /// Sends an event. Whether anybody is still there.
    pub async fn send(&self, name: Option<&str>, data: &Value) -> bool {
        let event = match name {
            Some(name) => Event::default().event(name),
            None => Event::default(),
        };
        self.0.send(event.data(data.to_string())).await.is_ok()
    }

    /// The end, as chat completions have it.
    pub async fn done(&self) {
        let _ = self.0.send(Event::default().data("[DONE]")).await;
    }
}

/// A response whose events are made by this work, which goes on also if the client does not wait for it.
pub fn respond<F: Future<Output = ()> + Send + 'static>(app: &App, work: impl FnOnce(Feed) -> F) -> Response {
    let (sender, receiver) = mpsc::channel(EVENTS_AHEAD);
    tokio::spawn(lanes::inherited(lanes::current(), work(Feed(sender))));
    let stopping = app.stopping.clone();
    let events = futures_util::stream::unfold(receiver, async |mut receiver| {
        Some((Ok::<_, Infallible>(receiver.recv().await?), receiver))
    });
    let alive = KeepAlive::new().interval(HEARTBEAT).text("still here");
    let events = Sse::new(events.take_until(stopping.cancelled_owned())).keep_alive(alive);
    ([(CONTENT_TYPE, "text/event-stream; charset=utf-8")], events).into_response()
}
