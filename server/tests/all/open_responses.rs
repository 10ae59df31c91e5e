//! The cases of the public compliance suite of Open Responses, with a model of each protocol; and what WebSocket mode
//! promises beyond them.

use crate::openai::{events, stage, stage_and_tenant};
use crate::scripted_provider::ScriptedProvider;
use crate::stage::{Stage, answer, config};
use everturn_core::access::KeyRole;
use everturn_engine::{Everturn, NewKey};
use everturn_server::{App, Config};
use futures_util::{SinkExt, StreamExt};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

const MODELS: [&str; 3] = ["chat", "responses", "claude"];

/// A red heart.
const IMAGE: &str = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

fn is_text(value: &Value) -> bool {
    value.is_string()
}

fn is_text_or_null(value: &Value) -> bool {
    value.is_string() || value.is_null()
}

fn is_count(value: &Value) -> bool {
    value.is_u64()
}

fn is_count_or_null(value: &Value) -> bool {
    value.is_u64() || value.is_null()
}

fn is_object_or_null(value: &Value) -> bool {
    value.is_object() || value.is_null()
}

type Check = (&'static str, fn(&Value) -> bool);

/// The fields of a response, all of them required.
const RESPONSE: [Check; 31] = [
    ("id", is_text),
    ("object", |value| value == "response"),
    ("created_at", is_count),
    ("completed_at", is_count_or_null),
    ("status", is_text),
    ("incomplete_details", is_object_or_null),
    ("model", is_text),
    ("previous_response_id", is_text_or_null),
    ("instructions", is_text_or_null),
    ("output", |value| value.as_array().is_some_and(|items| items.iter().all(is_item))),
    ("error", is_object_or_null),
    ("tools", |value| value.as_array().is_some_and(|tools| tools.iter().all(is_tool))),
    ("tool_choice", |value| value.is_string() || value.is_object()),
    ("truncation", |value| value == "auto" || value == "disabled"),
    ("parallel_tool_calls", Value::is_boolean),
    ("text", |value| value["format"]["type"].is_string()),
    ("top_p", Value::is_number),
    ("presence_penalty", Value::is_number),
    ("frequency_penalty", Value::is_number),
    ("top_logprobs", is_count),
    ("temperature", Value::is_number),
    ("reasoning", |value| {
        ["effort", "summary"].iter().all(|name| value.get(name).is_some_and(is_text_or_null))
    }),
    ("usage", |value| value.is_null() || is_usage(value)),
    ("max_output_tokens", is_count_or_null),
    ("max_tool_calls", is_count_or_null),
    ("store", Value::is_boolean),
    ("background", Value::is_boolean),
    ("service_tier", is_text),
    ("metadata", Value::is_object),
    ("safety_identifier", is_text_or_null),
    ("prompt_cache_key", is_text_or_null),
];

fn is_usage(usage: &Value) -> bool {
    let counts = ["input_tokens", "output_tokens", "total_tokens"].iter().all(|name| is_count(&usage[name]));
    counts
        && is_count(&usage["input_tokens_details"]["cached_tokens"])
        && is_count(&usage["output_tokens_details"]["reasoning_tokens"])
}

fn is_tool(tool: &Value) -> bool {
    let has = |name: &str, fits: fn(&Value) -> bool| tool.get(name).is_some_and(fits);
    tool["type"] == "function"
        && has("name", is_text)
        && has("description", is_text_or_null)
        && has("parameters", is_object_or_null)
        && has("strict", |strict| strict.is_boolean() || strict.is_null())
}

fn is_item(item: &Value) -> bool {
    let part = |part: &Value| match part["type"].as_str() {
        Some("output_text") => part["text"].is_string() && part["annotations"].is_array(),
        Some("input_text" | "summary_text") => part["text"].is_string(),
        Some("input_image") => part["image_url"].is_string(),
        _ => false,
    };
    let all = |parts: &Value| parts.as_array().is_some_and(|parts| parts.iter().all(part));
    let known = ["in_progress", "completed", "incomplete"];
    let status = || item["status"].as_str().is_some_and(|status| known.contains(&status));
    item["id"].is_string()
        && match item["type"].as_str() {
            Some("message") => status() && item["role"].is_string() && all(&item["content"]),
            Some("function_call") => {
                status() && ["call_id", "name", "arguments"].iter().all(|name| item[name].is_string())
            }
            Some("reasoning") => all(&item["summary"]) && item.get("encrypted_content").is_none_or(is_text),
            Some("compaction") => item["encrypted_content"].is_string(),
            _ => false,
        }
}

fn check(response: &Value) {
    for (name, fits) in RESPONSE {
        assert!(response.get(name).is_some_and(fits), "{name} in {response:#}");
    }
}

/// Checks a stream: numbers without gaps, valid items and responses, one end.
fn check_stream(events: &[Value], expected: &str) -> Value {
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number, "{event}");
        if let Some(item) = event.get("item") {
            assert!(is_item(item), "{event}");
        }
        if let Some(response) = event.get("response") {
            check(response);
        }
    }
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.completed", "{last}");
    let response = &last["response"];
    assert_eq!(response["status"], "completed");
    assert!(is_count(&response["completed_at"]), "{response}");
    assert!(text(response).contains(expected), "{response}");
    response.clone()
}

fn text(response: &Value) -> String {
    let items = response["output"].as_array().unwrap().iter();
    let parts = items.filter_map(|item| item["content"].as_array()).flatten();
    parts.filter_map(|part| part["text"].as_str()).collect()
}

fn said(role: &str, text: &str) -> Value {
    json!({"type": "message", "role": role, "content": text})
}

#[tokio::test(flavor = "multi_thread")]
async fn each_case_over_http() {
    let (provider, stage) = stage().await;
    for model in MODELS {
        let ask = async |input: Value| {
            let response = stage.post("/v1/responses", &json!({"model": model, "input": input}), 200).await;
            check(&response);
            assert_eq!(response["status"], "completed");
            (response, provider.seen().pop().unwrap())
        };
        // basic-response
        let (response, _) = ask(json!([said("user", "Say hello.")])).await;
        assert_eq!(text(&response), "Heard 1: Say hello.");
        assert_eq!((&response["temperature"], &response["top_p"]), (&json!(1.0), &json!(1.0)));
        let kept = stage.get(&format!("/v1/responses/{}", response["id"].as_str().unwrap()), 200).await;
        assert_eq!(kept, response, "it is the same when it is retrieved");
        // assistant-phase
        let labelled = |phase: &str, text: &str| json!({"type": "message", "role": "assistant", "phase": phase, "content": text});
        let thought = labelled("commentary", "I should say four.");
        let (_, seen) =
            ask(json!([thought, labelled("final_answer", "Four."), said("user", "Repeat.")])).await;
        if model == "responses" {
            assert_eq!(seen["input"][0]["phase"], "commentary", "{seen}");
        }
        // streaming-response
        let body = json!({"model": model, "input": [said("user", "Count.")], "stream": true});
        let stream = events(&stage, "/v1/responses", &body).await;
        let stream: Vec<Value> = stream.into_iter().map(|(_, event)| event).collect();
        check_stream(&stream, "Heard 1: Count.");
        // system-prompt
        let (_, seen) = ask(json!([said("system", "You are a pirate."), said("user", "Hello.")])).await;
        assert!(seen.to_string().contains("You are a pirate."), "{seen}");
        // tool-calling
        let tool = json!({"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}});
        let body = json!({"model": model, "input": [said("user", "Weather?")], "tools": [tool], "temperature": 0.5,
            "top_p": 0.25, "presence_penalty": 0.5});
        let called = stage.post("/v1/responses", &body, 200).await;
        check(&called);
        assert!(
            called["output"].as_array().unwrap().iter().any(|item| item["type"] == "function_call"),
            "{called}"
        );
        for name in ["temperature", "top_p", "presence_penalty"] {
            assert_eq!(called[name], body[name]);
        }
        if model == "chat" {
            assert_eq!(provider.seen().pop().unwrap()["presence_penalty"], 0.5);
        }
        // image-input
        let image = json!([{"type": "input_text", "text": "What is this?"}, {"type": "input_image", "image_url": IMAGE}]);
        let (_, seen) = ask(json!([{"type": "message", "role": "user", "content": image}])).await;
        assert!(seen.to_string().contains("iVBORw0KGgo"), "{seen}");
        // multi-turn
        let turns = json!([
            said("user", "I am Alice."),
            said("assistant", "Hello Alice!"),
            said("user", "Who am I?")
        ]);
        let (response, seen) = ask(turns).await;
        assert_eq!(text(&response), "Heard 2: Who am I?");
        assert!(seen.to_string().contains("Hello Alice!"));
        // compact-response
        let input = json!([said("user", "We launch on Tuesday."), said("assistant", "Understood.")]);
        let body = json!({"model": model, "input": input, "prompt_cache_key": "k"});
        let compacted = stage.post("/v1/responses/compact", &body, 200).await;
        assert_eq!(compacted["object"], "response.compaction");
        assert!(is_usage(&compacted["usage"]) && is_count(&compacted["created_at"]), "{compacted}");
        assert!(compacted["output"].as_array().unwrap().iter().all(is_item), "{compacted}");
        assert_eq!(compacted["output"].as_array().unwrap().last().unwrap()["type"], "compaction");
    }
    // compact-missing-model
    let refused =
        stage.post("/v1/responses/compact", &json!({"input": [said("user", "Compact.")]}), 400).await;
    assert_eq!(refused["error"]["param"], "model");
    stage.stop().await;
}

struct Socket(WebSocketStream<MaybeTlsStream<TcpStream>>);

impl Socket {
    async fn try_open(stage: &Stage, headers: &[(&'static str, &str)]) -> Result<Socket, Error> {
        let url = format!("{}/v1/responses", stage.url.replace("http://", "ws://"));
        let mut request = url.into_client_request()?;
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        connect_async(request).await.map(|(socket, _)| Socket(socket))
    }

    async fn open(stage: &Stage) -> Socket {
        Socket::try_open(stage, &[]).await.unwrap()
    }

    async fn send(&mut self, message: &str) {
        self.0.send(Message::text(message)).await.unwrap();
    }

    async fn next(&mut self) -> Option<Value> {
        loop {
            match self.0.next().await? {
                Ok(Message::Text(text)) => return Some(serde_json::from_str(&text).unwrap()),
                Ok(Message::Close(_)) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    /// The events of the next answer.
    async fn answer(&mut self) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            let event = self.next().await.expect("an answer");
            let kind = event["type"].as_str().unwrap();
            let last = kind == "error"
                || ["completed", "failed", "incomplete"].iter().any(|end| kind == format!("response.{end}"));
            events.push(event);
            if last {
                return events;
            }
        }
    }

    async fn ask(&mut self, mut body: Value) -> Vec<Value> {
        body["type"] = json!("response.create");
        self.send(&body.to_string()).await;
        self.answer().await
    }

    /// Asks for something that is refused, with this code.
    async fn refused(&mut self, body: Value, code: &str) {
        let answer = self.ask(body).await;
        assert_eq!(answer.len(), 1, "{answer:?}");
        assert_eq!(answer[0]["error"]["code"], code, "{answer:?}");
        assert!(answer[0]["status"].is_u64() && answer[0]["error"]["message"].is_string(), "{answer:?}");
    }
}

/// A message over the limit dropped the connection without a word.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_over_the_limit_closes_the_websocket_with_a_reason() {
    let (_provider, stage) = stage().await;
    let mut socket = Socket::open(&stage).await;
    let large = format!("{{\"type\":\"response.create\",\"input\":\"{}\"}}", "x".repeat(17 << 20));
    // The server may close before everything is sent.
    let _ = socket.0.send(Message::text(large)).await;
    let Some(Ok(Message::Text(told))) = socket.0.next().await else { panic!("nothing is told") };
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!((told["type"].as_str(), told["status"].as_u64()), (Some("error"), Some(413)), "{told}");
    let Some(Ok(Message::Close(Some(end)))) = socket.0.next().await else { panic!("no close frame") };
    assert_eq!(u16::from(end.code), 1009);
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_case_over_a_websocket() {
    let (provider, stage) = stage().await;
    for model in MODELS {
        let body = |input: Value| json!({"model": model, "store": false, "input": input});
        let after = |response: &Value, input: Value| json!({"model": model, "store": false, "input": input, "previous_response_id": response["id"]});
        // websocket-response
        let mut socket = Socket::open(&stage).await;
        let events = socket.ask(json!({"model": model, "input": [said("user", "Count.")]})).await;
        let stored = check_stream(&events, "Heard 1: Count.");
        stage.get(&format!("/v1/responses/{}", stored["id"].as_str().unwrap()), 200).await;
        // A stored response is continued by ones that are not.
        let beside = check_stream(&socket.ask(after(&stored, json!("On."))).await, "Heard 2: On.");
        check_stream(&socket.ask(after(&beside, json!("Further."))).await, "Heard 3: Further.");
        assert!(provider.seen().pop().unwrap().to_string().contains("Count."));
        // websocket-sequential-responses, sent without waiting
        for text in ["first", "second"] {
            let mut body = body(json!(text));
            body["type"] = json!("response.create");
            socket.send(&body.to_string()).await;
        }
        for text in ["first", "second"] {
            check_stream(&socket.answer().await, &format!("Heard 1: {text}"));
        }
        // websocket-continuation
        let first = check_stream(&socket.ask(body(json!("The word is cobalt."))).await, "cobalt");
        let second =
            check_stream(&socket.ask(after(&first, json!("Which word?"))).await, "Heard 2: Which word?");
        assert_eq!(second["previous_response_id"], first["id"]);
        assert!(provider.seen().pop().unwrap().to_string().contains("The word is cobalt."));
        let third = check_stream(&socket.ask(after(&second, json!("Again?"))).await, "Heard 3: Again?");
        stage.get(&format!("/v1/responses/{}", third["id"].as_str().unwrap()), 404).await;
        // websocket-reconnect-store-false-recovery
        let mut other = Socket::open(&stage).await;
        other.refused(after(&third, json!("And now?")), "previous_response_not_found").await;
        check_stream(&other.ask(body(json!([said("user", "Anew.")]))).await, "Heard 1: Anew.");
        // websocket-previous-response-not-found
        let missing = json!({"id": "resp_openresponses_missing"});
        socket.refused(after(&missing, json!("x")), "previous_response_not_found").await;
        for input in [Value::Null, json!([]), json!([{"role": "user", "content": []}])] {
            socket.refused(json!({"model": model, "input": input}), "generate.nothing").await;
        }
        // websocket-failed-continuation-evicts-cache
        let first = check_stream(&socket.ask(body(json!("The word is ember."))).await, "ember");
        let output = json!({"type": "function_call_output", "call_id": "call_missing", "output": "?"});
        socket.refused(after(&first, json!([output])), "tool_call_not_found").await;
        socket.refused(after(&first, json!("stale")), "previous_response_not_found").await;
        // websocket-compact-new-chain
        let input =
            json!([said("user", "The word is slate."), said("assistant", "OK."), said("user", "Compress.")]);
        let compacted =
            stage.post("/v1/responses/compact", &json!({"model": model, "input": input}), 200).await;
        let mut input = compacted["output"].as_array().unwrap().clone();
        input.push(said("user", "Continue."));
        check_stream(&socket.ask(body(json!(input))).await, "Continue.");
        assert!(provider.seen().pop().unwrap().to_string().contains("slate"));
    }
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_goes_on_after_a_refusal() {
    let (_provider, stage) = stage().await;
    let mut socket = Socket::open(&stage).await;
    for (message, code) in [
        ("{", "json.malformed"),
        ("[]", "body.shape"),
        (r#"{"type": "response.cancel"}"#, "invalid_value"),
        (r#"{"type": "response.create", "model": "none", "input": "x"}"#, "model_not_found"),
        (r#"{"type": "response.create", "model": "chat", "store": false}"#, "generate.nothing"),
        (
            r#"{"type": "response.create", "model": "chat", "input": "x", "background": true}"#,
            "invalid_value",
        ),
    ] {
        socket.send(message).await;
        let refused = socket.answer().await;
        assert_eq!(refused[0]["error"]["code"], code, "{message}: {refused:?}");
    }
    // Fields of the other transport are ignored; some clients send them.
    let events = socket.ask(json!({"model": "chat", "input": "a", "stream": true})).await;
    check_stream(&events, "Heard 1: a");
    stage.stop().await;
}

/// Codex prepares a connection with a request that asks for no reply, and continues it.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_can_be_prepared_without_a_reply() {
    let (provider, stage) = stage().await;
    let mut socket = Socket::open(&stage).await;
    let body = json!({"model": "chat", "store": false, "input": [said("user", "a")], "generate": false});
    let events = socket.ask(body).await;
    let warm = check_stream(&events, "");
    assert!(provider.seen().is_empty() && warm["output"] == json!([]));
    let next = json!({"model": "chat", "store": false, "input": "b", "previous_response_id": warm["id"]});
    check_stream(&socket.ask(next).await, "Heard 2: b");
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stored_response_goes_on_when_its_websocket_is_gone() {
    let (_provider, stage) = stage().await;
    let mut socket = Socket::open(&stage).await;
    socket.send(&json!({"type": "response.create", "model": "chat", "input": "forever"}).to_string()).await;
    let created = socket.next().await.unwrap();
    while socket.next().await.unwrap()["type"] != "response.output_text.delta" {}
    drop(socket);
    let path = format!("/v1/responses/{}", created["response"]["id"].as_str().unwrap());
    assert_eq!(stage.get(&path, 200).await["status"], "in_progress");
    assert_eq!(stage.post(&format!("{path}/cancel"), &json!({}), 200).await["status"], "cancelled");
    stage.stop().await;
}

fn status(refused: Result<Socket, Error>) -> u16 {
    match refused {
        Err(Error::Http(response)) => response.status().as_u16(),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was accepted"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_needs_a_key_that_is_still_valid() {
    let provider = ScriptedProvider::start().await;
    let store: Everturn = provider.store();
    let key = |tenant: &str, role| {
        let new = NewKey::new(tenant, role);
        let (key, words) = store.keys().create(new).unwrap();
        (key.id, format!("Bearer {words}"))
    };
    let (_, reader) = key("one", KeyRole::Reader);
    let (writer_id, writer) = key("one", KeyRole::Writer);
    let (_, other) = key("two", KeyRole::Writer);
    let keys = store.keys();
    let config = Config { keys_required: None, ..config() };
    let stage = Stage::with(App::new(store, config)).await;
    assert_eq!(status(Socket::try_open(&stage, &[]).await), 401);
    assert_eq!(status(Socket::try_open(&stage, &[("authorization", &reader)]).await), 403);
    let mut socket = Socket::try_open(&stage, &[("authorization", &writer)]).await.unwrap();
    let mine = check_stream(&socket.ask(json!({"model": "chat", "input": "xylophone"})).await, "xylophone");
    let mut foreign = Socket::try_open(&stage, &[("authorization", &other)]).await.unwrap();
    let body = json!({"model": "chat", "input": "b", "previous_response_id": mine["id"]});
    foreign.refused(body, "previous_response_not_found").await;
    keys.revoke("one", writer_id).unwrap();
    assert_eq!(socket.next().await.unwrap()["error"]["code"], "access.ended");
    assert!(socket.next().await.is_none());
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_other_sites_and_plain_requests_get_no_websocket() {
    let (_provider, stage, _) = stage_and_tenant().await;
    assert_eq!(status(Socket::try_open(&stage, &[("origin", "https://evil.example")]).await), 403);
    let refused = answer(stage.request(Method::GET, "/v1/responses"), 426).await;
    assert_eq!(refused["error"]["code"], "socket.expected");
    // A server that stops does not wait for those who say nothing.
    let mut socket = Socket::open(&stage).await;
    stage.stop().await;
    assert!(socket.next().await.is_none());
}
