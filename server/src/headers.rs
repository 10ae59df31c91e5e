//! Headers that say on what condition, or how often, something is done.

use crate::problem::Problem;
use axum::extract::FromRequestParts;
use axum::http::header::{ETAG, HeaderName, IF_MATCH, IF_NONE_MATCH};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use everturn_core::Error;
use everturn_core::conversation::Conversation;
use std::convert::Infallible;
use std::fmt::Display;

/// `Idempotency-Key`: makes a repeated request harmless.
pub struct Once(pub Option<String>);

impl<S: Sync> FromRequestParts<S> for Once {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Once, Problem> {
        text(&parts.headers, &HeaderName::from_static("idempotency-key")).map(Once)
    }
}

/// `If-Match`: only if the conversation still ends where the caller read it.
pub struct IfMatch(pub Option<u64>);

impl<S: Sync> FromRequestParts<S> for IfMatch {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<IfMatch, Problem> {
        match text(&parts.headers, &IF_MATCH)?.as_deref().map(str::trim) {
            None | Some("*") => Ok(IfMatch(None)),
            Some(tag) => opaque(tag).parse().map(|seq| IfMatch(Some(seq))).map_err(|_| {
                let text = "If-Match must be one ETag that a GET of the conversation gave";
                Error::invalid("if_match.malformed", text).into()
            }),
        }
    }
}

/// `If-None-Match`: not again if the caller has it already.
pub struct IfNoneMatch(Vec<String>);

impl<S: Sync> FromRequestParts<S> for IfNoneMatch {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<IfNoneMatch, Infallible> {
        let tags = parts.headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
        let tags = tags.flat_map(|value| value.split(',')).map(|tag| opaque(tag.trim()).to_string());
        Ok(IfNoneMatch(tags.collect()))
    }
}

impl IfNoneMatch {
    /// The answer to a caller who has it already.
    pub fn unchanged(&self, tag: &str) -> Option<Response> {
        let known = self.0.iter().any(|known| known == tag || known == "*");
        known.then(|| (StatusCode::NOT_MODIFIED, etag(tag)).into_response())
    }
}

/// The header that names a version.
pub fn etag(tag: impl Display) -> [(HeaderName, String); 1] {
    [(ETAG, format!("\"{tag}\""))]
}

/// A conversation with its ETag: where its log ends.
pub fn tagged(conversation: Conversation) -> Response {
    (etag(conversation.head.seq), axum::Json(conversation)).into_response()
}

/// What the server said, without the marks that a proxy which compresses may add.
fn opaque(tag: &str) -> &str {
    tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"')
}

/// A header's value as text.
pub fn text(headers: &HeaderMap, name: &HeaderName) -> Result<Option<String>, Problem> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    match std::str::from_utf8(value.as_bytes()) {
        Ok(text) => Ok(Some(text.to_string())),
        Err(_) => Err(Error::invalid("header.not_utf8", format!("{name} is not text; send UTF-8")).into()),
    }
}
