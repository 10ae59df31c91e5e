//! Permissions of callers without a key.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use crate::access::{Caller, Credential, KeyRole};
use crate::app::App;
use crate::config::Config;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, StatusCode};
use everturn_engine::Everturn;
use serde_json::{Value, json};
use std::sync::Arc;
use tower::ServiceExt;

struct Endpoint {
    app: Arc<App>,
    router: Router,
}

impl Endpoint {
    fn new() -> Endpoint {
        let app = Arc::new(App::new(Everturn::open("memory:").unwrap(), Config::default()));
        Endpoint { router: super::routes(&app).with_state(app.clone()), app }
    }

    /// Sends a message as a caller; returns the new session, and the answer.
    async fn ask(
        &self,
        who: Option<(&str, KeyRole)>,
        session: Option<&str>,
        method: &str,
        params: Value,
    ) -> (StatusCode, Option<String>, Value) {
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        self.send(who, session, Method::POST, message.to_string()).await
    }

    async fn send(
        &self,
        who: Option<(&str, KeyRole)>,
        session: Option<&str>,
        method: Method,
        body: String,
    ) -> (StatusCode, Option<String>, Value) {
        let mut request = Request::builder()
            .method(method)
            .uri("/mcp")
            .header("host", "localhost")
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream");
        if let Some(id) = session {
            request = request.header("mcp-session-id", id);
        }
        if let Some((tenant, role)) = who {
            let tenant = self.app.store.tenant(tenant).unwrap();
            let (credential, lane) = (Credential::None, self.app.access.lane(&tenant));
            request =
                request.extension(Caller { tenant, role, who: None, credential, is_keyless: false, lane });
        }
        let response = self.router.clone().oneshot(request.body(Body::from(body)).unwrap()).await.unwrap();
        let status = response.status();
        let begun = response.headers().get("mcp-session-id").map(|id| id.to_str().unwrap().to_string());
        let text = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        let text = String::from_utf8(text.to_vec()).unwrap();
        let data =
            text.lines().rev().find_map(|line| line.strip_prefix("data: ").filter(|data| !data.is_empty()));
        (status, begun, serde_json::from_str(data.unwrap_or(&text)).unwrap_or(Value::Null))
    }

    async fn begin(&self, who: (&str, KeyRole)) -> String {
        let hello = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        });
        self.ask(Some(who), None, "initialize", hello).await.1.unwrap()
    }
}

#[tokio::test]
async fn a_session_does_not_exist_for_another_tenant() {
    let endpoint = Endpoint::new();
    let (mine, theirs) = (("mine", KeyRole::Writer), ("theirs", KeyRole::Admin));
    let session = endpoint.begin(mine).await;
    let list = json!({"name": "list_conversations", "arguments": {}});
    for method in [Method::POST, Method::GET, Method::DELETE] {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).to_string();
        let (status, _, answer) = endpoint.send(Some(theirs), Some(&session), method, body).await;
        assert_eq!((status, &answer["code"]), (StatusCode::NOT_FOUND, &json!("mcp.session_absent")));
    }
    let said = json!({"name": "create_conversation", "arguments": {"title": "secret"}});
    let (status, _, answer) = endpoint.ask(Some(mine), Some(&session), "tools/call", said).await;
    assert_eq!((status, &answer["result"]["isError"]), (StatusCode::OK, &json!(false)), "{answer}");
    let id = answer["result"]["structuredContent"]["id"].as_str().unwrap().to_string();
    let other = endpoint.begin(theirs).await;
    let (_, _, answer) = endpoint.ask(Some(theirs), Some(&other), "tools/call", list).await;
    assert_eq!(answer["result"]["structuredContent"]["data"], json!([]));
    let uri = json!({"uri": format!("everturn://conversations/{id}")});
    for method in ["resources/read", "resources/subscribe"] {
        let (_, _, answer) = endpoint.ask(Some(theirs), Some(&other), method, uri.clone()).await;
        assert_eq!(answer["error"]["data"]["code"], "conversation.absent", "{answer}");
    }
}

#[tokio::test]
async fn a_reader_sees_and_uses_only_what_reads() {
    let endpoint = Endpoint::new();
    let reader = ("mine", KeyRole::Reader);
    let session = endpoint.begin(reader).await;
    let (_, _, answer) = endpoint.ask(Some(reader), Some(&session), "tools/list", json!({})).await;
    let tools = answer["result"]["tools"].as_array().unwrap();
    assert_eq!(tools.len(), 11);
    assert!(tools.iter().all(|tool| tool["annotations"]["readOnlyHint"] == true));
    let said = json!({"name": "create_conversation", "arguments": {"title": "hello"}});
    let (_, _, answer) = endpoint.ask(Some(reader), Some(&session), "tools/call", said.clone()).await;
    let text = answer["result"]["content"][0]["text"].as_str().unwrap();
    assert!(answer["result"]["isError"] == true && text.starts_with("access.role: "), "{answer}");
    // The key decides, not the session: a writer of the same tenant may write in a session that a reader began.
    let (_, _, answer) =
        endpoint.ask(Some(("mine", KeyRole::Writer)), Some(&session), "tools/call", said).await;
    assert_eq!(answer["result"]["isError"], false);
}

#[tokio::test]
async fn nobody_is_refused() {
    let endpoint = Endpoint::new();
    let (status, _, answer) = endpoint.ask(None, None, "tools/list", json!({})).await;
    assert_eq!((status, &answer["code"]), (StatusCode::UNAUTHORIZED, &json!("access.unauthorized")));
}

/// A call was answered, and its text was erased before the answer was recorded.
#[test]
fn an_answer_from_before_an_erasure_is_recorded_without_content() {
    const WORD: &str = "quetzalcoatlus";
    let folder = tempfile::tempdir().unwrap();
    let store = Everturn::open("memory:").unwrap();
    let tenant = store.tenant("acme").unwrap();
    let recorder = super::record::Recorder::begin(folder.path(), &tenant, "http", None);
    let id = tenant.create(everturn_engine::NewConversation::default()).wait().unwrap().id();
    let said = everturn_engine::NewTurn::user("short");
    let turn = tenant.conversation(id).append(said).wait().unwrap().turns[0].id;
    let call = recorder.called("append_turns", &json!({"turns": [{"content": "short"}]}));
    let asked = recorder.asked();
    tenant.conversation(id).erase(turn, None, "asked for").wait().unwrap();
    let answer = rmcp::model::CallToolResult::success(vec![rmcp::model::ContentBlock::text(WORD)]);
    recorder.answered(call, &Ok(answer));
    recorder.dispatched("prompts/get", &json!({"text": WORD}), &Ok(json!({"text": WORD})), asked);
    drop(recorder);
    let file = std::fs::read_dir(folder.path().join("acme/sessions")).unwrap().next().unwrap().unwrap();
    let text = std::fs::read_to_string(file.path()).unwrap();
    assert!(!text.contains(WORD) && !text.contains("short"), "{text}");
    assert_eq!(text.matches("\"erased\":true").count(), 3, "{text}");
    let report = everturn_formats::session::check(std::io::Cursor::new(text)).unwrap();
    assert!(!report.unclosed && report.problems.is_empty(), "{report:?}");
}

#[tokio::test]
async fn a_call_without_parameters_is_refused_as_such() {
    let endpoint = Endpoint::new();
    let who = ("acme", KeyRole::Writer);
    let session = endpoint.begin(who).await;
    for (method, code) in [("tools/call", -32602), ("resources/read", -32602), ("nope/nope", -32601)] {
        let message = json!({"jsonrpc": "2.0", "id": 7, "method": method}).to_string();
        let (_, _, answer) = endpoint.send(Some(who), Some(&session), Method::POST, message).await;
        assert_eq!(
            (&answer["error"]["code"], &answer["id"]),
            (&json!(code), &json!(7)),
            "{method}: {answer}"
        );
    }
}
