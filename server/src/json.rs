//! Bodies, queries and paths of requests: parsed strictly, with an error that says why.

use crate::app::{App, blocking};
use crate::config::Config;
use crate::lanes::{self, SMALL_BYTES};
use crate::problem::Problem;
use axum::body::{BodyDataStream, Bytes, HttpBody};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::HeaderMap;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use everturn_core::Error;
use everturn_core::error::code;
use futures_util::StreamExt;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Duration;

/// The text of a JSON body.
pub async fn text(request: Request, app: &App) -> Result<String, Problem> {
    let is_other = !is_json(request.headers()) && request.headers().contains_key(CONTENT_TYPE);
    let text = body(request, &app.config, app.config.body_bytes_max).await?;
    if is_other && !text.is_empty() { Err(not_json()) } else { Ok(text) }
}

/// Whether the content type of a request is JSON.
pub fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    let suffix = essence.rsplit_once('+').map(|(_, suffix)| suffix);
    essence.eq_ignore_ascii_case("application/json")
        || suffix.is_some_and(|it| it.eq_ignore_ascii_case("json"))
}

/// The error for a body of another content type.
pub fn not_json() -> Problem {
    let text = "the body must be JSON; send it with Content-Type: application/json";
    Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "body.not_json", text)
}

/// A JSON body. Its text is validated like everything that is stored, so [`Raw`] fields keep their bytes.
///
/// [`Raw`]: everturn_core::json::Raw
pub struct Json<T>(pub T);

impl<T: DeserializeOwned + Send + 'static> FromRequest<Arc<App>> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Json<T>, Problem> {
        let text = text(request, app).await?;
        if text.len() > SMALL_BYTES {
            // It takes milliseconds, and other connections of this thread would wait.
            return blocking(move || Ok(read(&text))).await?.map(Json);
        }
        read(&text).map(Json)
    }
}

/// The text of a body, inside a limit.
pub async fn body(request: Request, config: &Config, bytes_max: usize) -> Result<String, Problem> {
    let bytes = bytes(request, config, bytes_max).await?;
    String::from_utf8(bytes.into()).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        Problem::from(Error::invalid(
            "body.not_utf8",
            format!("the body is not UTF-8 at byte {at}; send UTF-8"),
        ))
    })
}

/// The bytes of a body, inside a limit. A large one waits for memory of the tenant before it is read.
pub async fn bytes(request: Request, config: &Config, bytes_max: usize) -> Result<Bytes, Problem> {
    let request_lane = lanes::current();
    let body = request.into_body();
    let announced = body.size_hint().exact().map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    let mut reserved = false;
    let mut body = body.into_data_stream();
    let mut bytes = Vec::new();
    loop {
        let expected = announced.unwrap_or(if bytes.is_empty() { 0 } else { bytes_max });
        if let Some(request_lane) = &request_lane
            && !reserved
            && (bytes.len() > SMALL_BYTES || announced.is_some_and(|bytes| bytes > SMALL_BYTES))
        {
            request_lane.reserve(expected.min(bytes_max)).await?;
            reserved = true;
        }
        let piece = match tokio::time::timeout(config.limits.body_timeout, body.next()).await {
            Ok(None) => break,
            Ok(Some(Ok(piece))) => piece,
            Ok(Some(Err(_))) => {
                let text = "the body ended early; send it again";
                return Err(Error::invalid("body.broken", text).into());
            }
            Err(_) => return Err(stalled(config)),
        };
        if bytes.len() + piece.len() > bytes_max {
            // A client that is still sending would see a closed connection instead of the answer.
            let _ = tokio::time::timeout(DISCARD_PATIENCE, discard(body)).await;
            let text =
                format!("the body is larger than {bytes_max} bytes; send it in parts, or payloads as assets");
            return Err(Error::too_large(code::LIMIT_EXCEEDED, text).into());
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes.into())
}

/// The error for a body without progress.
pub fn stalled(config: &Config) -> Problem {
    let seconds = config.limits.body_timeout.as_secs_f64();
    Problem::new(
        StatusCode::REQUEST_TIMEOUT,
        "body.stalled",
        format!(
            "no part of the body arrived for {seconds} s (limits.body_timeout_s); send it again without a pause"
        ),
    )
}

/// Limits on reading the rest of a body that is too large, so that the client receives the refusal.
const DISCARD_BYTES_MAX: usize = 256 * 1024 * 1024;
const DISCARD_PATIENCE: Duration = Duration::from_secs(10);

async fn discard(mut body: BodyDataStream) {
    let mut discarded = 0;
    while let Some(Ok(piece)) = body.next().await {
        discarded += piece.len();
        if discarded > DISCARD_BYTES_MAX {
            return;
        }
    }
}

/// JSON text read as `T`; an empty text is an empty object.
pub fn read<T: DeserializeOwned>(text: &str) -> Result<T, Problem> {
    let text = if text.trim().is_empty() { "{}" } else { text };
    everturn_core::json::check(text)?;
    everturn_api::decode::from_json(text)
        .map_err(|e| Problem::from(Error::invalid("body.shape", format!("the body is invalid: {e}"))))
}

/// The query of a URL.
pub struct Query<T>(pub T);

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Query<T>, Problem> {
        axum::extract::Query::try_from_uri(&parts.uri)
            .map(|axum::extract::Query(query)| Query(query))
            .map_err(|e| {
                Error::invalid("query.shape", format!("the query is invalid: {}", e.body_text())).into()
            })
    }
}

/// The variable parts of a path. Malformed ids are not found.
pub struct Path<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Path<T>, Problem> {
        axum::extract::Path::from_request_parts(parts, state)
            .await
            .map(|axum::extract::Path(path)| Path(path))
            .map_err(|_| {
                Error::not_found("id.malformed", "the path contains a malformed id; check it").into()
            })
    }
}
