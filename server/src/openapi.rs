//! The description of the native API, made from the handlers themselves.

use crate::app::App;
use axum::Router;
use axum::routing::get;
use std::sync::{Arc, LazyLock};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Everturn",
        description = "Every word is kept; the model reads what it needs. A conversation store for AI agents."
    ),
    tags(
        (name = "conversations", description = "Conversations: begin, find, change, fork, delete."),
        (name = "turns", description = "Turns: append, stream, read, supersede, erase."),
        (name = "events", description = "The log itself, as pages or live."),
    )
)]
struct Description;

static TEXT: LazyLock<String> = LazyLock::new(document);

/// OpenAPI 3.1, as JSON.
pub fn document() -> String {
    let (_, api) = OpenApiRouter::with_openapi(Description::openapi())
        .nest("/api/v1", crate::rest::routes())
        .split_for_parts();
    api.to_pretty_json().unwrap_or_default()
}

/// `/openapi.json`.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/openapi.json", get(|| async { ([("content-type", "application/json")], TEXT.as_str()) }))
}
