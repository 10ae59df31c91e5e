//! Errors as RFC 9457 problem+json, with a stable code; and the one table from error to status.

use axum::http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use everturn_api::hints::in_routes;
use everturn_core::Error;
use schemars::JsonSchema;
use serde::Serialize;
use std::any::Any;
use std::borrow::Cow;
use std::time::Duration;

/// A problem: a status, a stable code, and a sentence that says what to do.
#[derive(Debug)]
pub struct Problem {
    pub status: StatusCode,
    /// Stable, dotted, lower case.
    pub code: &'static str,
    /// One sentence on what is wrong and one on what to do next.
    pub detail: Cow<'static, str>,
    header: Option<(HeaderName, HeaderValue)>,
}

/// The body of every error.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Problem")]
pub struct ProblemBody<'a> {
    /// `urn:everturn:` and the code.
    #[serde(rename = "type")]
    kind: String,
    /// Name of the status.
    title: &'a str,
    /// HTTP status.
    status: u16,
    /// Description of the problem and the next step.
    detail: &'a str,
    /// Stable, dotted, lower case: `append.stale_seq`.
    code: &'a str,
}

impl Problem {
    /// A problem that is not the engine's.
    pub fn new(status: StatusCode, code: &'static str, detail: impl Into<Cow<'static, str>>) -> Problem {
        Problem { status, code, detail: detail.into(), header: None }
    }

    /// Missing or invalid credentials.
    pub fn unauthorized(detail: impl Into<Cow<'static, str>>) -> Problem {
        let challenge = HeaderValue::from_static("Bearer");
        Problem {
            header: Some((WWW_AUTHENTICATE, challenge)),
            ..Problem::new(StatusCode::UNAUTHORIZED, "access.unauthorized", detail)
        }
    }

    /// A rate limit was exceeded.
    pub fn later(code: &'static str, wait: Duration, limit: String) -> Problem {
        let seconds = wait.as_millis().div_ceil(1000).max(1) as u64;
        Problem {
            header: Some((RETRY_AFTER, HeaderValue::from(seconds))),
            ..Problem::new(
                StatusCode::TOO_MANY_REQUESTS,
                code,
                format!("too many requests: {limit}; try again in {seconds} s"),
            )
        }
    }
}

impl Problem {
    pub fn body(&self) -> ProblemBody<'_> {
        ProblemBody {
            kind: format!("urn:everturn:{}", self.code),
            title: self.status.canonical_reason().unwrap_or("Error"),
            status: self.status.as_u16(),
            detail: &self.detail,
            code: self.code,
        }
    }
}

/// Failures of the server at its own store: its operator can mend them, and the caller may not read about them.
fn is_of_the_server(error: &Error) -> bool {
    matches!(error.code(), "store.denied" | "store.absent" | "store.certificate" | "store.url")
}

impl From<Error> for Problem {
    fn from(error: Error) -> Problem {
        let error = match is_of_the_server(&error) {
            false => error,
            true => {
                tracing::warn!(%error, "the store refuses this server");
                let text = "the server cannot use its store; try again later, or see the server's log";
                Error::busy(error.code(), text)
            }
        };
        let status = match &error {
            Error::NotFound(_) => StatusCode::NOT_FOUND,
            Error::Invalid(_) => StatusCode::BAD_REQUEST,
            Error::Forbidden(_) => StatusCode::FORBIDDEN,
            Error::Conflict(_) => StatusCode::CONFLICT,
            Error::Busy(_) => StatusCode::SERVICE_UNAVAILABLE,
            Error::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Error::Corrupt(_) | Error::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let header = matches!(error, Error::Busy(_)).then(|| (RETRY_AFTER, HeaderValue::from_static("1")));
        Problem { status, code: error.code(), detail: in_routes(error.text()).into(), header }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let text = serde_json::to_string(&self.body()).unwrap_or_default();
        let mut response = (self.status, text).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.extend(self.header);
        response.extensions_mut().insert(Code(self.code));
        response
    }
}

/// The code of an error, for metrics.
#[derive(Clone, Copy)]
pub struct Code(pub &'static str);

/// The answer for an unknown path.
pub async fn no_such_route(uri: Uri) -> Problem {
    let path = everturn_core::id::clip(uri.path()).to_string();
    Problem::new(
        StatusCode::NOT_FOUND,
        "route.absent",
        format!("there is nothing at {path}; see /openapi.json"),
    )
}

/// The answer for an unsupported method.
pub async fn no_such_method(method: Method, uri: Uri) -> Problem {
    let path = everturn_core::id::clip(uri.path()).to_string();
    Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "route.method",
        format!("{path} does not support {method}; see /openapi.json"),
    )
}

/// A panic must not close the connection.
pub fn panicked(_: Box<dyn Any + Send>) -> Response {
    // Outside of `observe`, which logs every other answer.
    tracing::warn!(code = "server.panic", "a request failed");
    Problem::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "server.panic",
        "the request failed inside the server; see its log",
    )
    .into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A role that may not log in any more was a 400 with its name and that of the host, which clients do not repeat.
    #[test]
    fn a_store_that_refuses_the_server_is_no_fault_of_the_caller() {
        let text =
            "PostgreSQL: role \"app\" is not permitted to log in (28000); check user and password in the URL";
        let problem = Problem::from(Error::invalid("store.denied", text));
        assert_eq!((problem.status, problem.code), (StatusCode::SERVICE_UNAVAILABLE, "store.denied"));
        assert!(
            !problem.detail.contains("app") && problem.detail.contains("try again later"),
            "{}",
            problem.detail
        );
        assert!(problem.header.is_some());
    }
}
