//! A span, a line of log and a measurement for every request. Without content: no bodies, no queries, no paths but their
//! patterns, unless `log_content` is on.

use crate::app::App;
use crate::problem::Code;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use std::sync::Arc;
use std::time::Instant;
use tracing::field::Empty;
use tracing::{Instrument, info, info_span};

/// Watches a request.
pub async fn observe(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let method = match request.method().as_str() {
        method @ ("GET" | "POST" | "PUT" | "PATCH" | "DELETE" | "HEAD" | "OPTIONS") => method.to_string(),
        // Anybody can make up methods; each would be a series of its own.
        _ => "_OTHER".to_string(),
    };
    let route = request.extensions().get::<MatchedPath>().map_or("(none)", MatchedPath::as_str).to_string();
    let span = info_span!(
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
    async {
        let response = next.run(request).await;
        let (status, took) = (response.status(), began.elapsed());
        let span = tracing::Span::current();
        span.record("http.response.status_code", status.as_u16());
        if status.is_server_error() {
            span.record("otel.status_code", "ERROR");
        }
        if let Some(Code(code)) = response.extensions().get() {
            span.record("error.type", code);
            metrics::counter!("everturn_errors_total", "code" => *code).increment(1);
        }
        let labels = [("method", method), ("route", route), ("status", status.as_u16().to_string())];
        metrics::histogram!("everturn_http_request_seconds", &labels).record(took);
        info!(status = status.as_u16(), latency_ms = took.as_secs_f64() * 1000.0, "answered");
        response
    }
    .instrument(span)
    .await
}
