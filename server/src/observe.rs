//! A span, a measurement and, where relevant, a log line for every request. Without content: no bodies, no
//! queries, only patterns of paths, unless `log_content` is on.

use crate::app::App;
use crate::problem::Code;
use axum::extract::{MatchedPath, Request};
use axum::http::StatusCode;
use axum::response::Response;
use everturn_core::id::TenantName;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::field::Empty;
use tracing::{Instrument, Level, debug_span};

/// A successful request is logged at `debug`, or at `info` if its answer took this long to begin.
const SLOW_REQUEST: Duration = Duration::from_secs(1);

/// The caller of a request. Attached to the response by `access`, for the log.
#[derive(Clone)]
pub struct CallerInfo {
    pub tenant: TenantName,
    pub key: Option<Arc<str>>,
}

pub async fn observe<F: Future<Output = Response>>(
    app: &App,
    request: Request,
    answer: impl FnOnce(Request) -> F,
) -> Response {
    let began = Instant::now();
    let method = match request.method().as_str() {
        "GET" => "GET",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        "HEAD" => "HEAD",
        "OPTIONS" => "OPTIONS",
        // Clients can invent methods; each would be a series of its own.
        _ => "_OTHER",
    };
    let matched = request.extensions().get::<MatchedPath>().cloned();
    let route = matched.as_ref().map_or("(none)", MatchedPath::as_str);
    let span = debug_span!(
        "request",
        otel.name = format!("{method} {route}"),
        otel.kind = "server",
        otel.status_code = Empty,
        http.request.method = method,
        http.route = route,
        http.response.status_code = Empty,
        error.r#type = Empty,
        everturn.tenant = Empty,
        everturn.key = Empty,
        url.full = Empty,
    );
    if app.config.log_content {
        span.record("url.full", request.uri().to_string());
    }
    app.store.note_request();
    let response = answer(request).instrument(span.clone()).await;
    app.store.note_request();
    let (status, took) = (response.status(), began.elapsed());
    span.record("http.response.status_code", status.as_u16());
    if status.is_server_error() {
        span.record("otel.status_code", "ERROR");
    }
    let code = response.extensions().get().map(|Code(code)| *code);
    if let Some(code) = code {
        span.record("error.type", code);
        metrics::counter!("everturn_errors_total", "code" => code).increment(1);
    }
    let seconds = metrics::histogram!(
        "everturn_http_request_seconds",
        "method" => method,
        "route" => route.to_string(),
        "status" => status.as_u16().to_string(),
    );
    seconds.record(took);
    span.in_scope(|| log(method, route, &response, code, took));
    response
}

/// Log level of an answer: failures of the server are warnings, refusals and slow answers are info.
fn level(status: StatusCode, took: Duration) -> Level {
    if status.is_server_error() {
        Level::WARN
    } else if status.is_client_error() || took >= SLOW_REQUEST {
        Level::INFO
    } else {
        Level::DEBUG
    }
}

fn log(method: &str, route: &str, response: &Response, code: Option<&str>, took: Duration) {
    let status = response.status();
    let caller = response.extensions().get::<CallerInfo>();
    let (tenant, key) = (caller.map(|by| by.tenant.as_str()), caller.and_then(|by| by.key.as_deref()));
    let latency_ms = took.as_micros() as f64 / 1000.0;
    macro_rules! line {
        ($level:ident) => {
            tracing::$level!(
                method,
                route,
                status = status.as_u16(),
                latency_ms,
                code,
                tenant,
                key,
                "answered"
            )
        };
    }
    match level(status, took) {
        Level::WARN => line!(warn),
        Level::INFO => line!(info),
        _ => line!(debug),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failures_refusals_and_slow_answers_are_logged_by_default() {
        let quick = Duration::from_millis(5);
        for (status, took, expected) in [
            (StatusCode::CREATED, quick, Level::DEBUG),
            (StatusCode::NOT_MODIFIED, quick, Level::DEBUG),
            (StatusCode::OK, SLOW_REQUEST, Level::INFO),
            (StatusCode::NOT_FOUND, quick, Level::INFO),
            (StatusCode::TOO_MANY_REQUESTS, quick, Level::INFO),
            (StatusCode::SERVICE_UNAVAILABLE, quick, Level::WARN),
            (StatusCode::INTERNAL_SERVER_ERROR, SLOW_REQUEST, Level::WARN),
        ] {
            assert_eq!(level(status, took), expected, "{status} after {took:?}");
        }
    }
}
