//! Metrics for Prometheus. The engine reports them through the `metrics` facade; here they are collected and
//! served.

use crate::access::{KeyRole, allowed};
use crate::app::App;
use crate::problem::Problem;
use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Buckets of durations, in seconds.
const SECONDS: &[f64] = &[
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    60.0,
];

/// Buckets of the number of requests per commit.
const REQUESTS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];

/// Interval at which measurements are aggregated, so that they do not pile up between two scrapes.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);

static COLLECTOR: OnceLock<Option<PrometheusHandle>> = OnceLock::new();

/// Starts collecting, once in a process. `None` if the program around us collects in another way.
pub fn collect() -> Option<&'static PrometheusHandle> {
    COLLECTOR.get_or_init(install).as_ref()
}

fn install() -> Option<PrometheusHandle> {
    let builder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), SECONDS)
        .and_then(|builder| builder.set_buckets_for_metric(Matcher::Suffix("_requests".into()), REQUESTS));
    let handle = builder.and_then(PrometheusBuilder::install_recorder).ok()?;
    describe();
    Some(handle)
}

fn describe() {
    use metrics::{describe_counter, describe_gauge, describe_histogram};
    describe_histogram!("everturn_http_request_seconds", "From a request to the beginning of its answer.");
    describe_histogram!("everturn_append_seconds", "From the request of a write until it is durable.");
    describe_histogram!("everturn_commit_seconds", "One transaction with its sync.");
    describe_histogram!("everturn_commit_batch_requests", "Writes that shared one transaction.");
    describe_gauge!("everturn_index_lag_commits", "Commits whose index rows are not written yet.");
    describe_gauge!("everturn_recall_behind_events", "Events that are not in the recall index yet.");
    describe_gauge!("everturn_recall_behind_vectors", "Entries that have no embedding yet.");
    describe_gauge!(
        "everturn_replay_age_seconds",
        "Age of the last transaction that the standby of a read-only server has replayed."
    );
    describe_gauge!("everturn_subscribers", "Subscriptions to live updates.");
    describe_counter!("everturn_context_tokens_total", "Tokens of built contexts, by section.");
    describe_counter!("everturn_compactions_total", "Compactions, by summarizer.");
    describe_counter!("everturn_budget_actions_total", "Budget actions, by kind.");
    describe_counter!("everturn_errors_total", "Errors that were answered, by code.");
}

/// Aggregates periodically, until the server stops.
pub async fn upkeep(stopping: CancellationToken) {
    while stopping.run_until_cancelled(tokio::time::sleep(UPKEEP_EVERY)).await.is_some() {
        if let Some(collector) = collect() {
            collector.run_upkeep();
        }
    }
}

/// `/metrics`, for counters. The numbers cover the whole process and name no tenant.
pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/metrics", get(show))
}

async fn show(request: Request) -> Result<Response, Problem> {
    allowed(request.extensions(), KeyRole::Counter)?;
    Ok(match collect() {
        Some(collector) => {
            ([(CONTENT_TYPE, "text/plain; version=0.0.4")], collector.render()).into_response()
        }
        None => {
            let text = "the program that embeds this server collects its metrics elsewhere; read them there";
            Problem::new(StatusCode::NOT_FOUND, "metrics.elsewhere", text).into_response()
        }
    })
}
