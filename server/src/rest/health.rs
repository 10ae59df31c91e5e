//! Whether it runs, and whether it can work.

use crate::app::{App, blocking};
use crate::problem::Problem;
use axum::Router;
use axum::extract::State;
use axum::routing::get;
use everturn_core::Error;
use everturn_engine::ListQuery;
use std::sync::Arc;

/// `/healthz` and `/readyz`, which need no key.
pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/healthz", get(async || "ok\n")).route("/readyz", get(ready))
}

/// Ready while the store can be read and nobody has said stop: then a load balancer looks elsewhere.
async fn ready(State(app): State<Arc<App>>) -> Result<&'static str, Problem> {
    if app.stopping.is_cancelled() {
        return Err(Error::busy("server.stopping", "the server stops; ask another one").into());
    }
    let scope = app.store.tenant("default")?;
    let read = blocking(move || scope.list(ListQuery { limit: 1, ..ListQuery::default() }));
    match read.await {
        Ok(_) => Ok("ready\n"),
        Err(error) => {
            tracing::warn!(code = error.code(), "the store cannot be read");
            Err(Error::busy("store.unready", "the store cannot be read; see the server's log").into())
        }
    }
}
