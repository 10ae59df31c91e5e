//! Ending streams when their credential ends.
//!
//! A live stream outlasts the request that opened it, so it is not enough to check its key once. Each streamed
//! answer holds a [`Lease`], and ends when the key is revoked or expires, when the token expires, or, without any, when
//! the first key is made: at once if this process revokes or makes the key, within [`KEY_CACHED_FOR`] if another one does.

use super::KEY_CACHED_FOR;
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
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Weak};
use tokio_util::sync::CancellationToken;

#[derive(Clone, Copy)]
pub enum Credential {
    /// None, and none will be required.
    None,
    /// None: there is no key yet. It ends with the first one.
    Keyless,
    /// A key of the store.
    Key {
        id: KeyId,
        expires: Option<Timestamp>,
    },
    Token {
        expires: Timestamp,
    },
}

/// Keys with live streams, or with some that ended a moment ago.
#[derive(Default)]
pub struct Leases {
    keys: Arc<Watched>,
    /// Ends with the first key.
    keyless: Mutex<Weak<CancellationToken>>,
}

type Watched = Mutex<HashMap<KeyId, Arc<CancellationToken>>>;

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
            Credential::Keyless => {
                let mut known = self.keyless.lock();
                let ended = known.upgrade().unwrap_or_else(|| {
                    let ended = Arc::new(CancellationToken::new());
                    *known = Arc::downgrade(&ended);
                    tokio::spawn(watch_for_keys(keys, known.clone()));
                    ended
                });
                Some(Lease::Key(ended))
            }
            Credential::Token { expires } => Some(Lease::Token { keys, expires }),
            Credential::Key { id, expires } => {
                let mut known = self.keys.lock();
                let ended = known.entry(id).or_insert_with(|| {
                    let ended = Arc::new(CancellationToken::new());
                    tokio::spawn(watch(self.keys.clone(), keys, id, expires, ended.clone()));
                    ended
                });
                Some(Lease::Key(ended.clone()))
            }
        }
    }
}

/// Watches a key for as long as there is a lease on it.
async fn watch(
    watched: Arc<Watched>,
    keys: Keys,
    id: KeyId,
    expires: Option<Timestamp>,
    ended: Arc<CancellationToken>,
) {
    let mut changes = keys.watch_changes();
    loop {
        changes.mark_unchanged();
        let reader = keys.clone();
        let valid = blocking(move || reader.is_valid(id)).await;
        if let Err(error) = &valid {
            tracing::warn!(%error, "a key with live streams could not be checked; trying again");
        }
        let revoked = matches!(valid, Ok(false));
        {
            let mut watched = watched.lock();
            // Only the map and this task hold it.
            if revoked || Arc::strong_count(&ended) <= 2 {
                watched.remove(&id);
                if revoked {
                    ended.cancel();
                }
                return;
            }
        }
        let wait = expires.map_or(KEY_CACHED_FOR, |end| keys.time_left(end).min(KEY_CACHED_FOR));
        tokio::select! {
            _ = changes.changed() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Watches for the first key, for as long as there is a lease without one.
async fn watch_for_keys(keys: Keys, leased: Weak<CancellationToken>) {
    let mut changes = keys.watch_changes();
    while leased.strong_count() > 0 {
        changes.mark_unchanged();
        let reader = keys.clone();
        match blocking(move || reader.any()).await {
            Ok(true) => return leased.upgrade().into_iter().for_each(|ended| ended.cancel()),
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "cannot check whether there are keys; trying again"),
        }
        tokio::select! {
            _ = changes.changed() => {}
            () = tokio::time::sleep(KEY_CACHED_FOR) => {}
        }
    }
}

impl Lease {
    /// Waits for the end of the credential.
    pub async fn ended(self) {
        match self {
            Lease::Key(ended) => ended.cancelled().await,
            Lease::Token { keys, expires } => loop {
                // In steps, so that a change of the clock is noticed.
                match keys.time_left(expires) {
                    left if left.is_zero() => return,
                    left => tokio::time::sleep(left.min(KEY_CACHED_FOR)).await,
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
            let parts = futures_util::stream::unfold(begin, async |(mut parts, mut ended, last)| {
                let last = last?;
                tokio::select! {
                    biased;
                    () = &mut ended => Some((last, (parts, ended, None))),
                    part = parts.next() => part.map(|part| (part, (parts, ended, Some(last)))),
                }
            });
            // An encoder looks for more after the end.
            Body::from_stream(parts.fuse())
        })
    }
}

/// Whether an answer continues after its beginning was sent.
pub fn is_stream(response: &Response) -> bool {
    response.body().size_hint().exact().is_none()
}

/// The last frame of a stream of events, in the format of the protocol at this path.
fn last_frame(path: &str) -> Bytes {
    let text = "the key or token of this stream was revoked or has expired, or a key is required now; connect again with a \
                valid one";
    let problem = Problem::new(StatusCode::UNAUTHORIZED, "access.ended", text);
    match path {
        // Every frame of MCP is a JSON-RPC message, and there is none for this; a comment is for people.
        "/mcp" => format!(": {text}\n\n").into(),
        path if path.starts_with("/v1/") => openai::error::last_frame(path, &problem).into(),
        _ => {
            let body = serde_json::to_string(&problem.body()).unwrap_or_default();
            format!("event: error\ndata: {body}\n\n").into()
        }
    }
}
