//! The server.
//!
//! One process, one port: the native REST API with live streams, the OpenAI- and Anthropic-compatible
//! endpoints, and MCP, over one engine. A request is authenticated by `access`, parsed into the wire structs of
//! the file named after its noun, answered by the engine, and serialised. Every error is a `problem`.
//!
//! This crate decides nothing about conversations (the engine does), and it holds no state that another process
//! on the same store would miss.
//!
//! Reading order: [`Config`] is the configuration, [`App`] is the state shared by all handlers, [`router`] is
//! the table of routes, [`serve()`] runs it until it is told to stop.

#[cfg(not(unix))]
compile_error!(
    "the server and the program of Everturn need Unix sockets, by which processes find the owner of a store; on Windows, use WSL 2, or \
     the library: everturn without the feature `program`"
);

mod access;
mod anthropic;
mod app;
mod config;
mod connections;
mod headers;
mod json;
mod lanes;
mod mcp;
mod metrics;
mod observe;
mod openai;
mod openapi;
mod page;
mod pipe;
mod problem;
mod proxy;
mod range;
mod rest;
mod run;
mod schema;
mod serve;
pub mod settings;
pub mod socket;
mod sse;
mod telemetry;
mod tls;

pub use access::KeyRole;
pub use app::App;
pub use config::{Config, Hidden, Jwt, JwtKeys, Limits, Tls};
#[doc(hidden)]
pub use mcp::serve_pipes;
pub use mcp::{SharedStore, Stdio, ToolDispatch, Toolsets, stdio};
pub use openapi::document;
pub use proxy::{PassedMessage, Proxy};
pub use run::{StartedServer, run};
pub use serve::{Server, serve};
pub use settings::Settings;
pub use telemetry::{Telemetry, TelemetryGuard};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{Extensions, HeaderMap, StatusCode, Version};
use axum::middleware::Next;
use axum::response::Response;
use std::sync::Arc;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::{DefaultPredicate, Predicate};

/// All routes.
pub fn router(app: Arc<App>) -> Router {
    Router::new()
        .merge(rest::routes())
        .merge(rest::health::routes())
        .merge(metrics::routes())
        .merge(openapi::routes())
        .merge(openai::routes())
        .merge(mcp::routes(&app))
        .merge(page::routes())
        .fallback(problem::no_such_route)
        .method_not_allowed_fallback(problem::no_such_method)
        // As one layer: each one alone would box the request and the routes below it once more.
        .layer((
            tower_http::catch_panic::CatchPanicLayer::custom(problem::panicked),
            CompressionLayer::new().compress_when(DefaultPredicate::new().and(may_be_compressed)),
            cors(&app.config),
            axum::middleware::from_fn_with_state(app.clone(), answer),
        ))
        .with_state(app)
}

/// Answers a request, measured and authenticated. One function, for the same reason.
async fn answer(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let authenticated = |request| access::authenticate(&app, request, next);
    let converted = |request| openai::error::convert_errors(request, authenticated);
    observe::observe(&app, request, converted).await
}

/// Other origins whose pages may send requests: none, unless they are configured.
fn cors(config: &Config) -> tower_http::cors::CorsLayer {
    use tower_http::cors::{AllowHeaders, AllowOrigin, Any, CorsLayer};
    if config.cors_origins.is_empty() {
        return CorsLayer::new();
    }
    let origins = config.cors_origins.iter().filter_map(|origin| origin.parse().ok());
    let layer = CorsLayer::new().allow_origin(AllowOrigin::list(origins));
    // Mirrored, because for a browser "any" does not include Authorization.
    layer.allow_methods(Any).allow_headers(AllowHeaders::mirror_request()).expose_headers(Any)
}

/// Live streams never are: the default ensures that.
fn may_be_compressed(_: StatusCode, _: Version, _: &HeaderMap, extensions: &Extensions) -> bool {
    extensions.get::<rest::Uncompressed>().is_none()
}
