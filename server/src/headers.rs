//! Conditional and idempotency headers.

use crate::problem::Problem;
use axum::http::header::{ETAG, HeaderName, IF_MATCH, IF_NONE_MATCH};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use everturn_core::Error;
use std::fmt::Display;

/// `If-Match`: only if the conversation still ends where the caller read it.
pub fn if_match(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    match text(headers, &IF_MATCH)?.as_deref().map(str::trim) {
        None | Some("*") => Ok(None),
        Some(tag) => {
            let digits = Some(opaque(tag)).filter(|tag| tag.bytes().all(|byte| byte.is_ascii_digit()));
            digits.and_then(|digits| digits.parse().ok()).map(Some).ok_or_else(|| {
                let text = "If-Match must be one ETag that a GET of the conversation gave";
                Error::invalid("if_match.malformed", text).into()
            })
        }
    }
}

/// `If-None-Match`: nothing is sent if the caller has the current version.
pub struct IfNoneMatch(Vec<String>);

impl IfNoneMatch {
    pub fn of(headers: &HeaderMap) -> IfNoneMatch {
        let tags = headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
        let tags = tags.flat_map(|value| value.split(',')).map(|tag| opaque(tag.trim()).to_string());
        IfNoneMatch(tags.collect())
    }

    /// The answer for a caller that has the current version.
    pub fn unchanged(&self, tag: &str) -> Option<Response> {
        let known = self.0.iter().any(|known| known == tag || known == "*");
        known.then(|| (StatusCode::NOT_MODIFIED, etag(tag)).into_response())
    }
}

/// The header that names a version.
pub fn etag(tag: impl Display) -> [(HeaderName, String); 1] {
    [(ETAG, format!("\"{tag}\""))]
}

/// The tag as the server sent it, without the marks that a compressing proxy may add.
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
