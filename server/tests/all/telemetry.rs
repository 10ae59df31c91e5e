//! Telemetry of requests: spans to a collector, lines to standard error, metrics for Prometheus; never content.

use crate::generations::{self, done, text};
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use everturn_server::Telemetry;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Attribute;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use reqwest::Method;
use serde_json::json;
use std::io;
use std::sync::{Arc, Mutex};
use tracing_subscriber::fmt::MakeWriter;

/// Used as content everywhere, and must not appear anywhere.
const MARKER: &str = "quetzalcoatl";

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Written {
    type Writer = Written;

    fn make_writer(&self) -> Written {
        self.clone()
    }
}

type Received = Arc<Mutex<Vec<Vec<u8>>>>;

/// A collector, and what it received.
async fn collector() -> (String, Received) {
    let received = Received::default();
    let take = async |State(received): State<Received>, body: Bytes| {
        received.lock().unwrap().push(body.to_vec());
    };
    let router = Router::new().route("/v1/traces", post(take)).with_state(received.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    (url, received)
}

fn attribute(span: &Span, name: &str) -> Option<String> {
    let found = span.attributes.iter().find(|attribute| attribute.key == name)?;
    match found.value.as_ref()?.value.as_ref()? {
        Attribute::StringValue(text) => Some(text.clone()),
        Attribute::IntValue(number) => Some(number.to_string()),
        other => panic!("{name} is {other:?}"),
    }
}

/// One test, because a process has one global subscriber.
#[tokio::test(flavor = "multi_thread")]
async fn requests_are_told_of_and_what_they_say_is_not() {
    let (url, received) = collector().await;
    let written = Written::default();
    let telemetry = Telemetry {
        log: "debug".into(),
        json: Some(true),
        otlp_endpoint: Some(url),
        service_name: "everturn-test".into(),
    };
    let (subscriber, telling) = telemetry.subscriber(written.clone()).unwrap();
    tracing::subscriber::set_global_default(subscriber).unwrap();

    let (stage, tell) = generations::stage().await;
    let conversation = json!({"title": MARKER, "system_prompt": MARKER, "metadata": {MARKER: MARKER}});
    let made = stage.post("/api/v1/conversations", &conversation, 201).await;
    let id = made["id"].as_str().unwrap();
    let path = format!("/api/v1/conversations/{id}");
    stage.say(id, MARKER).await;
    for step in [text(MARKER), done(MARKER)] {
        tell.send(step).unwrap();
    }
    stage.post(&format!("{path}/generate"), &json!({}), 200).await;
    // Errors quote what they refuse, but only to the caller.
    stage.get(&format!("/api/v1/{MARKER}?q={MARKER}"), 404).await;
    stage.get(&format!("/api/v1/conversations?{MARKER}={MARKER}"), 400).await;
    stage.post("/api/v1/conversations", &json!({MARKER: MARKER}), 400).await;
    stage.get(&format!("{path}/pins/{MARKER}"), 405).await;
    let context = json!({"token_budget": 5000, "instructions": MARKER});
    stage.post(&format!("{path}/contexts"), &context, 201).await;
    let metrics = stage.request(Method::GET, "/metrics").send().await.unwrap().text().await.unwrap();
    stage.stop().await;
    tokio::task::spawn_blocking(|| telling.end()).await.unwrap();

    let sent: Vec<ExportTraceServiceRequest> = received
        .lock()
        .unwrap()
        .iter()
        .map(|body| ExportTraceServiceRequest::decode(body.as_slice()).unwrap())
        .collect();
    let resource = sent[0].resource_spans[0].resource.clone().unwrap();
    assert!(format!("{resource:?}").contains("everturn-test"));
    let all = sent.iter().flat_map(|request| &request.resource_spans).flat_map(|r| &r.scope_spans);
    let spans: Vec<&Span> = all.flat_map(|scope| &scope.spans).collect();
    let asked = spans.iter().find(|span| span.name == "POST /api/v1/conversations/{conversation}/generate");
    let asked = asked.expect("the request has a span");
    assert_eq!(attribute(asked, "http.response.status_code").as_deref(), Some("200"));
    assert_eq!(attribute(asked, "everturn.tenant").as_deref(), Some("default"));
    let generated = spans
        .iter()
        .find(|span| attribute(span, "gen_ai.conversation.id").as_deref() == Some(id))
        .expect("the model call has a span");
    assert!(attribute(generated, "gen_ai.usage.output_tokens").is_some(), "{generated:?}");
    let lines = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
    assert!(lines.contains("\"http.route\":\"/api/v1/conversations/{conversation}/generate\""), "{lines}");
    assert!(lines.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()));

    for (what, told) in [("logs", &lines), ("spans", &format!("{sent:?}")), ("metrics", &metrics)] {
        let place = told.find(MARKER).map(|at| &told[at.saturating_sub(300)..(at + 100).min(told.len())]);
        assert!(place.is_none(), "{what} have content: {place:?}");
    }
    for name in [
        "everturn_http_request_seconds_bucket{method=\"POST\",route=\"/api/v1/conversations\",status=\"201\"",
        "everturn_append_seconds_count",
        "everturn_commit_seconds_count",
        "everturn_commit_batch_requests_count",
        "everturn_index_lag_commits",
        "everturn_errors_total{code=\"route.absent\"}",
        "everturn_context_tokens_total{section=\"tail\"}",
    ] {
        assert!(metrics.contains(name), "{name} is missing:\n{metrics}");
    }
}

/// Regression: a line for every request slowed appends down.
#[tokio::test(flavor = "multi_thread")]
async fn by_default_a_success_writes_no_line_and_a_refusal_says_who_was_refused() {
    let written = Written::default();
    let telemetry = Telemetry {
        log: "info".into(),
        json: Some(true),
        otlp_endpoint: None,
        service_name: "everturn-test".into(),
    };
    let (subscriber, _telling) = telemetry.subscriber(written.clone()).unwrap();
    tracing::subscriber::set_global_default(subscriber).unwrap();

    let (stage, _tell) = generations::stage().await;
    let made = stage.post("/api/v1/conversations", &json!({}), 201).await;
    stage.say(made["id"].as_str().unwrap(), "hello").await;
    stage.get("/api/v1/conversations/conv_01ARZ3NDEKTSV4RRFFQ69G5FAV", 404).await;
    stage.stop().await;

    let lines = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
    let answered: Vec<serde_json::Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|line: &serde_json::Value| line["message"] == "answered")
        .collect();
    assert_eq!(answered.len(), 1, "{lines}");
    assert_eq!(answered[0]["level"], "INFO");
    assert_eq!(answered[0]["method"], "GET");
    assert_eq!(answered[0]["route"], "/api/v1/conversations/{conversation}");
    assert_eq!(answered[0]["status"], 404);
    assert_eq!(answered[0]["tenant"], "default");
    assert!(answered[0]["code"].is_string() && answered[0]["latency_ms"].is_number(), "{lines}");
}
