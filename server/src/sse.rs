//! Server-sent events: frames, heartbeats, and how a stream ends.

use crate::app::App;
use crate::lanes::{self, Lane};
use axum::body::{Body, Bytes};
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderName};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use futures_util::StreamExt;
use serde::Serialize;
use std::convert::Infallible;
use std::sync::Arc;

/// How long a client waits before it connects again, in milliseconds.
const RETRY_MS: u32 = 1000;

/// One frame.
pub struct Frame {
    name: &'static str,
    id: Option<String>,
    data: String,
}

impl Frame {
    /// A frame of this name with this as JSON.
    pub fn new(name: &'static str, data: &impl Serialize) -> Frame {
        Frame { name, id: None, data: serde_json::to_string(data).unwrap_or_default() }
    }

    /// The same with a place to resume from.
    pub fn at(mut self, id: impl ToString) -> Frame {
        self.id = Some(id.to_string());
        self
    }

    /// As it is written. JSON that was stored with line breaks between its tokens goes on over several `data:` lines; a
    /// reader puts them together again with line feeds, which is the same JSON.
    fn text(&self) -> String {
        let mut out = String::with_capacity(self.data.len() + 128);
        out += &format!("event: {}\n", self.name);
        if let Some(id) = &self.id {
            out += &format!("id: {id}\n");
        }
        let mut line = |line: &str| ["data: ", line, "\n"].iter().for_each(|part| out.push_str(part));
        if self.data.bytes().any(|byte| matches!(byte, b'\n' | b'\r')) {
            self.data.replace("\r\n", "\n").split(['\n', '\r']).for_each(line);
        } else {
            line(&self.data);
        }
        out + "\n"
    }
}

/// What a stream of frames is made of.
pub trait Frames: Send + 'static {
    /// The next frame; `None` at the end. Dropping the future loses nothing.
    fn next(&mut self) -> impl Future<Output = Option<Frame>> + Send;

    /// The last frame when the server stops.
    fn stopping(&self) -> Frame;
}

/// Whether the caller wants a stream.
pub fn is_wanted(headers: &HeaderMap) -> bool {
    let mut accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted.any(|value| value.contains("text/event-stream"))
}

/// The answer: frames as they come, a comment when nothing comes for a while, a last word when the server stops.
pub fn answer(app: &Arc<App>, frames: impl Frames) -> Response {
    let headers = [
        (CONTENT_TYPE, "text/event-stream"),
        (CACHE_CONTROL, "no-store"),
        // Proxies that gather answers would hold back what is live.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    let body = Body::from_stream(bytes(app.clone(), frames).map(Ok::<_, Infallible>));
    (headers, body).into_response()
}

/// The next frame, once enough of what the tenant was sent is read.
async fn next(frames: &mut impl Frames, lane: Option<&Lane>) -> Option<Frame> {
    if let Some(lane) = lane {
        lane.room().await;
    }
    frames.next().await
}

fn bytes(app: Arc<App>, frames: impl Frames) -> impl Stream<Item = Bytes> {
    let begin = format!("retry: {RETRY_MS}\n\n");
    let lane = lanes::current().map(|errand| errand.lane.clone());
    futures_util::stream::unfold((Some(begin), Some(frames)), move |(begin, frames)| {
        let (app, lane) = (app.clone(), lane.clone());
        async move {
            if let Some(begin) = begin {
                return Some((Bytes::from(begin), (None, frames)));
            }
            let mut frames = frames?;
            tokio::select! {
                biased;
                () = app.stopping.cancelled() => {
                    let last = format!("retry: {RETRY_MS}\n{}", frames.stopping().text());
                    Some((Bytes::from(last), (None, None)))
                }
                frame = next(&mut frames, lane.as_deref()) => frame.map(|frame| {
                    let text = frame.text();
                    let charge = lane.and_then(|lane| lane.charge(text.len()));
                    (lanes::charged(text.into_bytes(), charge), (None, Some(frames)))
                }),
                () = tokio::time::sleep(app.config.heartbeat) => {
                    Some((Bytes::from_static(b": still here\n\n"), (None, Some(frames))))
                }
            }
        }
    })
}
