//! Whether it runs.

use crate::app::{App, blocking};
use crate::problem::Problem;
use axum::Router;
use axum::extract::State;
use axum::routing::get;
use everturn_core::Error;
use std::sync::Arc;

/// `/healthz` and `/readyz`, which need no key.
pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/healthz", get(async || "ok\n")).route("/readyz", get(ready))
}

/// Whether it can do its work: the store answers, and nobody asked us to end.
async fn ready(State(app): State<Arc<App>>) -> Result<&'static str, Problem> {
    if app.stopping.is_cancelled() {
        return Err(Error::busy("server.stopping", "the server is ending; ask another").into());
    }
    blocking(move || app.store.keys().any()).await?;
    Ok("ok\n")
}
