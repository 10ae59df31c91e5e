//! Health checks.

use crate::app::{App, blocking};
use crate::problem::Problem;
use axum::Router;
use axum::extract::State;
use axum::routing::get;
use everturn_core::Error;
use everturn_core::error::code;
use everturn_engine::ListQuery;
use std::sync::Arc;
use std::time::Duration;

/// `/healthz` and `/readyz`, which need no key.
pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/healthz", get(async || "ok\n")).route("/readyz", get(ready))
}

/// Longest time for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Ready while the store can be read and written and the server is not stopping; otherwise a load balancer uses
/// another server.
async fn ready(State(app): State<Arc<App>>) -> Result<&'static str, Problem> {
    if app.stopping.is_cancelled() {
        return Err(Error::busy("server.stopping", "the server is shutting down; use another one").into());
    }
    let (store, tenant) = (app.store.clone(), app.store.tenant("default")?);
    let look = blocking(move || {
        store.ready()?;
        tenant.list(ListQuery { limit: 1, ..ListQuery::default() })
    });
    let unanswered = |_| Err(Error::busy(code::STORE_UNANSWERED, "the store does not answer"));
    match tokio::time::timeout(PATIENCE, look).await.unwrap_or_else(unanswered) {
        Ok(_) => Ok("ready\n"),
        Err(error) => {
            tracing::warn!(%error, "not ready");
            // The caller is not authenticated, so the answer names no file.
            let (code, text) = match error.code() {
                code @ code::OVERTAKEN => {
                    (code, "another process has opened the store for writing; restart this server")
                }
                code @ code::STORE_MOVED => (
                    code,
                    "the store's file was removed, renamed or replaced; put it back, or restart this server",
                ),
                code @ code::STORE_FULL => (
                    code,
                    "the store's disk is full, or its database has no connection or memory left; see the server's log",
                ),
                code @ code::STORE_IO => (
                    code,
                    "the store cannot be written: its disk fails, or a limit on the size of files is reached; check both",
                ),
                code @ code::STORE_UNANSWERED => (
                    code,
                    "the store does not answer: its database hangs, or the network to it is cut; use another server",
                ),
                code @ "store.standby_away" => (
                    code,
                    "commits wait for a synchronous standby of the database that is away; bring it back, or take it out of \
                     synchronous_standby_names",
                ),
                code @ "store.standby" => {
                    (code, "the database is a standby; promote it, or name the primary in the store's URL")
                }
                code @ "store.read_only" => (code, "the database takes no writes; see the server's log"),
                code @ code::STORE_UNREACHABLE => {
                    (code, "the database cannot be reached; see the server's log")
                }
                _ => ("store.unready", "the store cannot be read; see the server's log"),
            };
            Err(Error::busy(code, text).into())
        }
    }
}
