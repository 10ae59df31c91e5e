//! How the network asks.
//!
//! One process, one port: the native REST API with live streams, the OpenAI- and Anthropic-compatible endpoints, and
//! MCP, over one engine. A request goes through [`access`](mod@access) (who asks, and what they may do), is read into
//! the wire structs of the file that is named after its noun, answered by the engine, and written back. Every error is
//! a [`problem`](mod@problem).
//!
//! What it is not: it decides nothing about conversations (the engine does), and it holds no state that another process
//! on the same store would miss.
//!
//! Reading order: [`Config`] says what is served, [`App`] is what all handlers share, [`router`] is the table of routes,
//! [`serve()`] runs it until it is told to stop.

mod access;
mod app;
mod config;
mod json;
mod mcp;
mod openapi;
mod problem;
mod rest;
mod schema;
mod serve;

pub use access::Role;
pub use app::App;
pub use config::Config;
pub use mcp::{Stdio, stdio};
pub use openapi::document;
pub use serve::{Server, serve};

use axum::Router;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;

/// Everything that is answered.
pub fn router(app: Arc<App>) -> Router {
    let (native, _) = OpenApiRouter::new().nest("/api/v1", rest::routes()).split_for_parts();
    native
        .merge(rest::health::routes())
        .merge(openapi::routes())
        .merge(mcp::routes(&app))
        .fallback(problem::no_such_route)
        .method_not_allowed_fallback(problem::no_such_method)
        .layer(axum::middleware::from_fn_with_state(app.clone(), access::authenticate))
        .layer(tower_http::compression::CompressionLayer::new())
        .layer(tower_http::catch_panic::CatchPanicLayer::custom(problem::panicked))
        .with_state(app)
}
