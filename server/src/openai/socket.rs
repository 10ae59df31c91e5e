//! Responses over a WebSocket: the client sends `response.create` messages, each of which is answered with the events
//! of a stream, one after another.
//!
//! The last response that was not stored can be continued on its connection: its messages are kept in memory until the
//! next one, or until its continuation fails.

use super::error::RequestError;
use super::events::ResponseEvents;
use super::fields::Fields;
use super::request::ResponseRequest;
use super::responses::{StartedRequest, begin, fresh, now, show, tell};
use super::sse::{EVENTS_AHEAD, Feed};
use super::stored::StoredRequest;
use super::{ids, models};
use crate::access::{Caller, KeyRole, allowed};
use crate::app::App;
use crate::connections::BusyGuard;
use crate::json;
use crate::lanes::{self, SMALL_BYTES};
use crate::problem::Problem;
use axum::body::Bytes;
use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, WebSocketUpgrade, close_code};
use axum::extract::{FromRequestParts, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use everturn_core::json::Raw;
use futures_util::future::OptionFuture;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Maximum life of a connection.
const LIFE: Duration = Duration::from_secs(60 * 60);
/// Maximum silence of the server. A message after it finds out whether the client is still there.
const HEARTBEAT: Duration = Duration::from_secs(30);
/// Maximum number of messages that wait for the one before them; further ones are not read yet.
const WAITING_MAX: usize = 16;
/// Fields of the HTTP transport. Over a socket the answer is always a stream.
const OTHER_TRANSPORT: [&str; 2] = ["stream", "stream_options"];

/// Accepts a connection.
pub async fn connect(State(app): State<Arc<App>>, request: Request) -> Result<Response, RequestError> {
    let caller = allowed(request.extensions(), KeyRole::Writer)?.clone();
    let answering = request.extensions().get::<Arc<BusyGuard>>().cloned();
    // A connection counts like a stream.
    let running = app.access.admit(&caller)?;
    let (mut parts, _) = request.into_parts();
    let upgrade = WebSocketUpgrade::from_request_parts(&mut parts, &()).await.map_err(|_| {
        let text = "GET /v1/responses opens a WebSocket, and this is not a request for one; send a POST, or GET \
                    /v1/responses/{id}";
        Problem::new(StatusCode::UPGRADE_REQUIRED, "socket.expected", text)
    })?;
    let bytes_max = app.config.body_bytes_max;
    let upgrade = upgrade.max_message_size(bytes_max).max_frame_size(bytes_max);
    Ok(upgrade.on_upgrade(async move |socket| {
        let _held = (answering, running);
        Connection { app, caller, last: None }.serve(socket).await;
    }))
}

struct Connection {
    app: Arc<App>,
    caller: Caller,
    last: Option<Unstored>,
}

/// A response that was not stored.
struct Unstored {
    id: String,
    /// The stored response that it continues.
    previous: Option<String>,
    /// Its messages, with those after `previous`.
    messages: Vec<Raw>,
}

impl Connection {
    async fn serve(mut self, mut socket: WebSocket) {
        let stopping = self.app.stopping.clone();
        let lease = self.app.access.lease(&self.app, self.caller.credential);
        let end = async {
            tokio::select! {
                () = stopping.cancelled() => (close_code::AWAY, None),
                Some(()) = OptionFuture::from(lease.map(|lease| lease.ended())) => {
                    let text = "the key or token of this connection was revoked or has expired; connect again with a valid one";
                    (close_code::POLICY, Some(Problem::new(StatusCode::UNAUTHORIZED, "access.ended", text)))
                }
                () = tokio::time::sleep(LIFE) => {
                    let text = "a connection may last 60 minutes; open a new one";
                    let code = "websocket_connection_limit_reached";
                    (close_code::POLICY, Some(Problem::new(StatusCode::BAD_REQUEST, code, text)))
                }
            }
        };
        tokio::pin!(end);
        let mut waiting = VecDeque::new();
        let (code, problem) = loop {
            let text = tokio::select! {
                biased;
                end = &mut end => break end,
                Some(text) = std::future::ready(waiting.pop_front()) => text,
                message = socket.recv() => match message {
                    Some(Ok(Message::Text(text))) => text,
                    Some(Ok(Message::Binary(_))) => break (close_code::UNSUPPORTED, None),
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => continue,
                    Some(Err(error)) if is_too_large(&error) => break self.too_large(),
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                },
                () = tokio::time::sleep(HEARTBEAT) => match socket.send(Message::Ping(Bytes::new())).await {
                    Ok(()) => continue,
                    Err(_) => return,
                },
            };
            let (sink, events) = mpsc::channel(EVENTS_AHEAD);
            let lane = self.caller.lane.clone();
            let answering = lane.run(self.answer(text.to_string(), Feed::Messages(sink)));
            let sent = tokio::select! {
                biased;
                end = &mut end => break end,
                ((), sent) = async { tokio::join!(answering, forward(&mut socket, events, &mut waiting)) } => sent,
            };
            match sent {
                Ok(()) => {}
                Err(Some(error)) if is_too_large(&error) => break self.too_large(),
                Err(_) => return,
            }
        };
        if let Some(problem) = problem {
            let _ =
                socket.send(Message::Text(RequestError::from(problem).message().to_string().into())).await;
        }
        let _ = socket.send(Message::Close(Some(CloseFrame { code, reason: "".into() }))).await;
    }

    fn too_large(&self) -> (u16, Option<Problem>) {
        let text = format!(
            "a message has at most {} bytes (`body_bytes_max` of the server); send less, or upload files as assets",
            self.app.config.body_bytes_max
        );
        (close_code::SIZE, Some(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "body.too_large", text)))
    }

    /// Answers one message.
    async fn answer(&mut self, text: String, feed: Feed) {
        if let Err(refused) = self.respond(&text, &feed).await {
            feed.send(None, &refused.message()).await;
        }
    }

    async fn respond(&mut self, text: &str, feed: &Feed) -> Result<(), RequestError> {
        let _running = self.app.access.admit(&self.caller)?;
        if let (Some(errand), true) = (lanes::current(), text.len() > SMALL_BYTES) {
            errand.reserve(text.len()).await?;
        }
        let mut body: Fields = json::read(text)?;
        let kind: Option<String> = body.take("type")?;
        if kind.as_deref() != Some("response.create") {
            return Err(RequestError::field(
                "type",
                "type is not response.create, the only message that is supported",
            ));
        }
        let generate = body.take("generate")?.unwrap_or(true);
        OTHER_TRANSPORT.iter().for_each(|name| drop(body.0.remove(*name)));
        let mut ask = ResponseRequest::read(body)?;
        if ask.background {
            return Err(RequestError::field(
                "background",
                "background is not supported over a WebSocket; leave it out, or send a POST",
            ));
        }
        // Whatever comes of it, this response is continued at most once more after it succeeded.
        let last = self.last.take();
        match last {
            Some(last) if ask.previous.as_ref() == Some(&last.id) => {
                let input = std::mem::replace(&mut ask.input, last.messages);
                ask.input.extend(input);
                ask.previous = last.previous;
            }
            // Another response to continue is a stored one.
            other => self.last = other,
        }
        if !ask.store && ask.conversation.is_none() {
            return self.unstored(ask, generate, feed).await;
        }
        let StartedRequest { running, .. } = begin(&self.caller.tenant, ask).await?;
        // Its failure is the last event of the stream.
        let _ = show(&self.app, running, Some(feed)).await;
        Ok(())
    }

    /// Answers a request that is not stored, and keeps it for its continuation.
    async fn unstored(
        &mut self,
        ask: ResponseRequest,
        generate: bool,
        feed: &Feed,
    ) -> Result<(), RequestError> {
        let (previous, mut messages) = (ask.previous.clone(), ask.input.clone());
        if generate {
            let StartedRequest { running, .. } = begin(&self.caller.tenant, ask).await?;
            let turn = running.turn;
            if let Ok(answer) = show(&self.app, running, Some(feed)).await {
                messages.extend(answer.messages);
                self.last = Some(Unstored { id: ids::response(turn), previous, messages });
            }
            return Ok(());
        }
        // A request that only prepares the next one.
        let turn = fresh()?;
        let model = models::find(&self.caller.tenant, ask.model)?.asked;
        let mut events =
            ResponseEvents::new(turn, StoredRequest { model, echo: ask.echo, conversation: None, inputs: 0 });
        tell(feed, &events.begin()).await;
        tell(feed, &events.end_empty(now())).await;
        self.last = Some(Unstored { id: ids::response(turn), previous, messages });
        Ok(())
    }
}

/// Sends messages as they come, and queues those of the client. `Err` if the connection does not go on, with the reason if
/// there is one.
async fn forward(
    socket: &mut WebSocket,
    mut events: mpsc::Receiver<String>,
    waiting: &mut VecDeque<Utf8Bytes>,
) -> Result<(), Option<axum::Error>> {
    loop {
        tokio::select! {
            event = events.recv() => match event {
                None => return Ok(()),
                Some(event) => {
                    socket.send(Message::Text(event.into())).await?;
                }
            },
            message = socket.recv(), if waiting.len() < WAITING_MAX => match message {
                Some(Ok(Message::Text(text))) => waiting.push_back(text),
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Err(error)) => return Err(Some(error)),
                _ => return Err(None),
            },
            () = tokio::time::sleep(HEARTBEAT) => {
                socket.send(Message::Ping(Bytes::new())).await?;
            }
        }
    }
}

/// Whether a message is larger than the limit.
fn is_too_large(error: &axum::Error) -> bool {
    // The type of the error is not public.
    error.to_string().starts_with("Space limit exceeded")
}
