//! Server-sent events: frames, heartbeats, and the end of a stream.

use crate::app::App;
use crate::lanes::{self, Lane};
use axum::body::Body;
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderName};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use everturn_engine::Position;
use futures_core::Stream;
use futures_util::{StreamExt, TryStreamExt};
use serde::Serialize;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

/// Delay before a client reconnects.
const RETRY: Duration = Duration::from_secs(1);

/// A frame with this name and JSON data.
pub fn frame(name: &str, data: &impl Serialize) -> Event {
    Event::default().event(name).data(text(data))
}

/// The same with a position to resume from.
pub fn frame_at(name: &str, at: Position, data: &impl Serialize) -> Event {
    Event::default().event(name).id(at.to_string()).data(text(data))
}

/// JSON that was stored with line breaks between its tokens spans several `data:` lines; a reader joins them
/// with line feeds, which gives the same JSON. Few readers know that a carriage return ends a line too.
fn text(data: &impl Serialize) -> String {
    let text = serde_json::to_string(data).unwrap_or_default();
    if text.contains('\r') { text.replace("\r\n", "\n").replace('\r', "\n") } else { text }
}

/// Source of a stream of frames.
pub trait Frames: Send + 'static {
    /// The next frame; `None` at the end.
    fn next(&mut self) -> impl Future<Output = Option<Event>> + Send;

    /// The last frame when the server stops.
    fn stopping(&self) -> Event;
}

/// Whether the caller accepts a stream.
pub fn is_wanted(headers: &HeaderMap) -> bool {
    let mut accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted.any(|value| value.contains("text/event-stream"))
}

/// The answer: frames as they come, a comment after a period of silence, a last frame when the server stops.
pub fn answer(app: &Arc<App>, frames: impl Frames) -> Response {
    let headers = [
        (CONTENT_TYPE, "text/event-stream"),
        (CACHE_CONTROL, "no-store"),
        // Buffering proxies would hold back live events.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    let lane = lanes::current().map(|request_lane| request_lane.lane.clone());
    let events = events(app.clone(), frames, lane.clone()).map(Ok::<_, Infallible>);
    let alive = KeepAlive::new().interval(app.config.heartbeat).text("still here");
    let bytes = Sse::new(events).keep_alive(alive).into_response().into_body().into_data_stream();
    let charged = bytes.map_ok(move |bytes| {
        let charge = lane.as_ref().and_then(|lane| lane.charge(bytes.len()));
        lanes::charged(bytes, charge)
    });
    (headers, Body::from_stream(charged)).into_response()
}

/// The next frame, once the tenant has read enough of what it was sent.
async fn next(frames: &mut impl Frames, lane: Option<&Lane>) -> Option<Event> {
    if let Some(lane) = lane {
        lane.room().await;
    }
    frames.next().await
}

fn events(app: Arc<App>, frames: impl Frames, lane: Option<Arc<Lane>>) -> impl Stream<Item = Event> {
    let begin = futures_util::stream::iter([Event::default().retry(RETRY)]);
    begin.chain(futures_util::stream::unfold(Some(frames), move |frames| {
        let (app, lane) = (app.clone(), lane.clone());
        async move {
            let mut frames = frames?;
            tokio::select! {
                biased;
                () = app.stopping.cancelled() => Some((frames.stopping().retry(RETRY), None)),
                frame = next(&mut frames, lane.as_deref()) => Some((frame?, Some(frames))),
            }
        }
    }))
}
