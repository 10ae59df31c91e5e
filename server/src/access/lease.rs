//! The end of a credential while an answer is still being sent.
//!
//! A live stream outlasts the request that opened it, so it is not enough to check its key once. Each streamed answer holds
//! a [`Lease`], and ends when the key is revoked or expires, or when the token expires: at once if this process revokes the
//! key, within [`BELIEVED`] if another one does.

use super::BELIEVED;
use crate::app::{App, blocking};
use crate::openai;
use crate::problem::Problem;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use everturn_core::id::KeyId;
use everturn_core::time::Timestamp;
use everturn_engine::Keys;
use futures_util::StreamExt;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio_util::sync::CancellationToken;

/// Credential of a request.
#[derive(Clone, Copy)]
pub enum Credential {
    /// None: the server asks nobody for a key.
    None,
    /// A key of the store.
    Key { id: KeyId, expires: Option<Timestamp> },
    /// A JWT.
    Token { expires: Timestamp },
}

/// Keys that have live streams.
#[derive(Default)]
pub struct Leases {
    keys: Mutex<HashMap<KeyId, Weak<CancellationToken>>>,
}

/// Resolves when a credential ends.
pub enum Lease {
    Key(Arc<CancellationToken>),
    Token { keys: Keys, expires: Timestamp },
}

impl Leases {
    /// A lease on this credential; `None` if it cannot end.
    pub fn of(&self, app: &App, credential: Credential) -> Option<Lease> {
        let keys = app.store.keys();
        match credential {
            Credential::None => None,
            Credential::Token { expires } => Some(Lease::Token { keys, expires }),
            Credential::Key { id, expires } => {
                let mut known = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(ended) = known.get(&id).and_then(Weak::upgrade) {
                    return Some(Lease::Key(ended));
                }
                known.retain(|_, ended| ended.strong_count() > 0);
                let ended = Arc::new(CancellationToken::new());
                known.insert(id, Arc::downgrade(&ended));
                tokio::spawn(watch(keys, id, expires, Arc::downgrade(&ended)));
                Some(Lease::Key(ended))
            }
        }
    }
}

/// Watches a key for as long as something is leased on it.
async fn watch(keys: Keys, id: KeyId, expires: Option<Timestamp>, ended: Weak<CancellationToken>) {
    let mut changes = keys.watch_changes();
    loop {
        changes.mark_unchanged();
        let reader = keys.clone();
        let valid = blocking(move || reader.is_valid(id)).await;
        let Some(ended) = ended.upgrade() else { return };
        match valid {
            Ok(true) => {}
            Ok(false) => return ended.cancel(),
            Err(error) => {
                tracing::warn!(%error, "a key with live streams could not be checked; trying again")
            }
        }
        drop(ended);
        let wait = expires.map_or(BELIEVED, |end| keys.time_left(end).min(BELIEVED));
        tokio::select! {
            _ = changes.changed() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

impl Lease {
    /// Waits for the end of the credential.
    pub async fn ended(self) {
        match self {
            Lease::Key(ended) => ended.cancelled().await,
            Lease::Token { keys, expires } => loop {
                // In steps, so that a clock that is set meanwhile is followed.
                match keys.time_left(expires) {
                    left if left.is_zero() => return,
                    left => tokio::time::sleep(left.min(BELIEVED)).await,
                }
            },
        }
    }

    /// Ends a streamed answer together with the credential.
    pub fn end_with(self, response: Response, path: &str) -> Response {
        let content_type = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let is_sse = content_type.is_some_and(|kind| kind.starts_with("text/event-stream"));
        let last = if is_sse { Ok(last_frame(path)) } else { Err(io::ErrorKind::PermissionDenied.into()) };
        response.map(|body| {
            let parts = body.into_data_stream().map(|part| part.map_err(io::Error::other));
            let begin = (parts, Box::pin(self.ended()), Some(last));
            Body::from_stream(futures_util::stream::unfold(begin, async |(mut parts, mut ended, last)| {
                let last = last?;
                tokio::select! {
                    biased;
                    () = &mut ended => Some((last, (parts, ended, None))),
                    part = parts.next() => part.map(|part| (part, (parts, ended, Some(last)))),
                }
            }))
        })
    }
}

/// Whether an answer goes on after its beginning was sent.
pub fn is_stream(response: &Response) -> bool {
    response.body().size_hint().exact().is_none()
}

/// The last frame of a stream of events, in the words of the protocol that is spoken at this path.
fn last_frame(path: &str) -> Bytes {
    let text = "the key or token of this stream was revoked or has expired; connect again with a valid one";
    let problem = Problem::new(StatusCode::UNAUTHORIZED, "access.ended", text);
    match path {
        // Every frame of MCP is a JSON-RPC message, of which none says this; a comment is for people.
        "/mcp" => format!(": {text}\n\n").into(),
        path if path.starts_with("/v1/") => openai::error::last_frame(path, &problem).into(),
        _ => {
            let body = serde_json::to_string(&problem.body()).unwrap_or_default();
            format!("event: error\ndata: {body}\n\n").into()
        }
    }
}
