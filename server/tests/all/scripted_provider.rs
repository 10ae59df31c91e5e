//! A fake model server for clients to talk to through Everturn: OpenAI chat, Responses, embeddings and
//! Anthropic Messages.
//!
//! It is deterministic. It calls the first tool that is offered, unless the last message is a tool result; else
//! it replies with the number of user messages and repeats the last one. It streams in small pieces. A message
//! with the word `forever` gets an endless reply, one with `refuse` is refused, and the reply to one with
//! `cut short` reaches the token limit; before one with `think`, chat and Messages show some reasoning. To one with
//! `phases`, Responses replies with reasoning in two parts and a message in each of two phases.

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use everturn_engine::model::{
    Configured, Embed, Embedding, Endpoint, HttpEmbedder, HttpModel, Limits, Protocol,
};
use everturn_engine::{Everturn, Options};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Number of characters of a piece.
const PIECE_CHARS: usize = 4;
/// Delay between the pieces of an endless reply.
const TICK: Duration = Duration::from_millis(10);

type Seen = Arc<Mutex<Vec<Value>>>;

pub struct ScriptedProvider {
    url: String,
    seen: Seen,
    running: JoinHandle<()>,
}

impl Drop for ScriptedProvider {
    fn drop(&mut self) {
        self.running.abort();
    }
}

impl ScriptedProvider {
    /// Starts on a free port.
    pub async fn start() -> ScriptedProvider {
        let seen = Seen::default();
        let routes = Router::new()
            .route("/v1/chat/completions", post(chat))
            .route("/v1/responses", post(responses))
            .route("/v1/messages", post(messages))
            .route("/v1/embeddings", post(embeddings))
            .with_state(seen.clone());
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let running = tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        ScriptedProvider { url, seen, running }
    }

    pub fn seen(&self) -> Vec<Value> {
        self.seen.lock().unwrap().clone()
    }

    /// A store with a model for each protocol: `chat`, `responses` and `claude`, and `default`, which is `chat`.
    pub fn store(&self) -> Everturn {
        self.store_at("memory:")
    }

    /// The same at this address.
    pub fn store_at(&self, url: &str) -> Everturn {
        let model = |kind, name: &str| {
            let mut endpoint = Endpoint::new(kind, &self.url, name);
            endpoint.limits = Limits { attempts: 1, ..Limits::default() };
            Configured::new(Arc::new(HttpModel::new(endpoint).unwrap()))
        };
        let models = BTreeMap::from([
            ("default".to_string(), model(Protocol::OpenaiChat, "scripted")),
            ("chat".to_string(), model(Protocol::OpenaiChat, "scripted-chat")),
            ("responses".to_string(), model(Protocol::OpenaiResponses, "scripted-responses")),
            ("claude".to_string(), model(Protocol::Anthropic, "scripted-claude")),
        ]);
        Everturn::open_with(url, Options { models, ..Options::default() }).unwrap()
    }

    pub fn embedders(&self) -> BTreeMap<String, Arc<dyn Embed>> {
        let endpoint = Endpoint::new(Protocol::OpenaiChat, &self.url, "scripted-embed");
        let embedder: Arc<dyn Embed> = Arc::new(HttpEmbedder::new(endpoint, Embedding::default()).unwrap());
        BTreeMap::from([("embed".to_string(), embedder)])
    }
}

enum Act {
    Say(String),
    Call(String),
    /// A call with free-text arguments.
    Write(String),
    Forever,
    Refuse,
}

/// The content of a message of any shape: whether it is a tool result, and its text.
fn heard(message: &Value) -> (bool, String) {
    let blocks = message["content"].as_array().cloned().unwrap_or_default();
    let result = blocks.iter().find(|block| block["type"] == "tool_result");
    let is_result =
        message["role"] == "tool" || message["type"] == "function_call_output" || result.is_some();
    let words = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => blocks.iter().filter_map(|block| block["text"].as_str()).collect(),
        _ => String::new(),
    };
    let text = match result {
        Some(result) => words(&result["content"]),
        None if message["type"] == "function_call_output" => words(&message["output"]),
        None => words(&message["content"]),
    };
    (is_result, text)
}

fn act(messages: &[Value], tools: &Value, tool_name: impl Fn(&Value) -> &Value) -> Act {
    let users = messages.iter().filter(|message| message["role"] == "user" && !heard(message).0).count();
    let (is_result, text) = messages.last().map(heard).unwrap_or_default();
    if text.contains("forever") {
        return Act::Forever;
    }
    if text.contains("refuse") {
        return Act::Refuse;
    }
    if is_result {
        return Act::Say(format!("The tool says: {text}"));
    }
    match tools.as_array().and_then(|tools| tools.first()) {
        Some(tool) if tool["type"] == "custom" => Act::Write(tool["name"].as_str().unwrap().to_string()),
        Some(tool) => Act::Call(tool_name(tool).as_str().unwrap_or_default().to_string()),
        None => Act::Say(format!("Heard {users}: {text}")),
    }
}

const CUT: &str = "cut short";
const ARGUMENTS: &str = r#"{"city": "Paris"}"#;

fn pieces(text: &str) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    chars.chunks(PIECE_CHARS).map(|piece| piece.iter().collect()).collect()
}

fn sse(events: Vec<Value>, named: bool, done: bool) -> Response {
    let mut text = String::new();
    for event in events {
        if named {
            text.push_str(&format!("event: {}\n", event["type"].as_str().unwrap()));
        }
        text.push_str(&format!("data: {event}\n\n"));
    }
    if done {
        text.push_str("data: [DONE]\n\n");
    }
    ([("content-type", "text/event-stream")], text).into_response()
}

/// The first events once, then one more repeatedly.
fn forever(first: Vec<Value>, again: Value) -> Response {
    let first: String = first.iter().map(|event| format!("data: {event}\n\n")).collect();
    let again = format!("data: {again}\n\n");
    let pieces = futures_util::stream::unfold(Some(first), move |first| {
        let again = again.clone();
        async move {
            if first.is_none() {
                tokio::time::sleep(TICK).await;
            }
            Some((Ok::<_, Infallible>(Bytes::from(first.unwrap_or(again))), None))
        }
    });
    ([("content-type", "text/event-stream")], Body::from_stream(pieces)).into_response()
}

fn refused() -> Response {
    let body = json!({"error": {"message": "I will not.", "type": "invalid_request_error", "param": null, "code": null}});
    (StatusCode::BAD_REQUEST, body.to_string()).into_response()
}

fn read(seen: &Seen, body: &str) -> Value {
    let request: Value = serde_json::from_str(body).unwrap();
    seen.lock().unwrap().push(request.clone());
    request
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

async fn chat(State(seen): State<Seen>, body: String) -> Response {
    let request = read(&seen, &body);
    let chunk = |delta: Value, finish: Value| {
        json!({"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": request["model"],
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
    };
    let mut events = vec![chunk(json!({"role": "assistant", "content": ""}), Value::Null)];
    let finish = match act(&list(&request["messages"]), &request["tools"], |tool| &tool["function"]["name"]) {
        Act::Refuse => return refused(),
        Act::Forever => return forever(events, chunk(json!({"content": "tick "}), Value::Null)),
        Act::Say(text) => {
            if text.contains("think") {
                events.extend(
                    ["Let me ", "see."].map(|piece| chunk(json!({"reasoning_content": piece}), Value::Null)),
                );
            }
            events.extend(pieces(&text).iter().map(|piece| chunk(json!({"content": piece}), Value::Null)));
            if text.contains(CUT) { "length" } else { "stop" }
        }
        Act::Call(name) | Act::Write(name) => {
            let call = json!({"index": 0, "id": "call_a", "type": "function", "function": {"name": name, "arguments": ""}});
            events.push(chunk(json!({"tool_calls": [call]}), Value::Null));
            for piece in pieces(ARGUMENTS) {
                let call = json!({"index": 0, "function": {"arguments": piece}});
                events.push(chunk(json!({"tool_calls": [call]}), Value::Null));
            }
            "tool_calls"
        }
    };
    events.push(chunk(json!({}), json!(finish)));
    let usage = json!({"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18});
    events
        .push(json!({"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": request["model"],
        "choices": [], "usage": usage}));
    sse(events, false, true)
}

async fn responses(State(seen): State<Seen>, body: String) -> Response {
    let request = read(&seen, &body);
    let response = |status: &str, output: Value| {
        json!({"id": "resp_up", "object": "response", "created_at": 1, "model": request["model"], "status": status,
            "error": null, "incomplete_details": null, "output": output,
            "usage": {"input_tokens": 11, "output_tokens": 7, "total_tokens": 18}})
    };
    let mut events =
        vec![json!({"type": "response.created", "response": response("in_progress", json!([]))})];
    // Like a reasoning model: an encrypted item first, of which nothing is shown.
    let sealed = json!({"type": "reasoning", "id": "rs_up", "summary": [], "encrypted_content": "c2VhbGVk"});
    events.push(json!({"type": "response.output_item.added", "output_index": 0, "item": sealed}));
    events.push(json!({"type": "response.output_item.done", "output_index": 0, "item": sealed}));
    let item = match act(&list(&request["input"]), &request["tools"], |tool| &tool["name"]) {
        Act::Refuse => return refused(),
        Act::Forever => {
            return forever(
                events,
                json!({"type": "response.output_text.delta", "output_index": 1, "delta": "tick "}),
            );
        }
        Act::Say(text) if text.contains("phases") => return phases(response),
        Act::Say(text) => {
            let status = if text.contains(CUT) { "incomplete" } else { "completed" };
            let item = |content: Value| json!({"type": "message", "id": "msg_up", "role": "assistant", "status": status, "content": content});
            events.push(
                json!({"type": "response.output_item.added", "output_index": 1, "item": item(json!([]))}),
            );
            for piece in pieces(&text) {
                events.push(json!({"type": "response.output_text.delta", "output_index": 1, "content_index": 0, "delta": piece}));
            }
            item(json!([{"type": "output_text", "text": text, "annotations": []}]))
        }
        Act::Call(name) => {
            let item = |arguments: &str| json!({"type": "function_call", "id": "fc_up", "call_id": "call_a", "name": name, "arguments": arguments});
            events.push(json!({"type": "response.output_item.added", "output_index": 1, "item": item("")}));
            for piece in pieces(ARGUMENTS) {
                events.push(json!({"type": "response.function_call_arguments.delta", "output_index": 1, "delta": piece}));
            }
            item(ARGUMENTS)
        }
        Act::Write(name) => {
            let item = |input: &str| json!({"type": "custom_tool_call", "id": "ctc_up", "call_id": "call_a", "name": name, "input": input});
            events.push(json!({"type": "response.output_item.added", "output_index": 1, "item": item("")}));
            for piece in pieces("print(1)") {
                events.push(json!({"type": "response.custom_tool_call_input.delta", "output_index": 1, "delta": piece}));
            }
            item("print(1)")
        }
    };
    events.push(json!({"type": "response.output_item.done", "output_index": 1, "item": item}));
    let mut last = response("completed", json!([sealed, item]));
    if item["status"] == "incomplete" {
        (last["status"], last["incomplete_details"]) =
            (json!("incomplete"), json!({"reason": "max_output_tokens"}));
    }
    events.push(json!({"type": format!("response.{}", last["status"].as_str().unwrap()), "response": last}));
    sse(events, true, false)
}

/// A Responses reply of several items, each as OpenAI streams it.
fn phases(response: impl Fn(&str, Value) -> Value) -> Response {
    let part = |text: &str| json!({"type": "summary_text", "text": text});
    let reasoning = json!({"type": "reasoning", "id": "rs_up", "summary": [part("One."), part("Two.")],
        "encrypted_content": "c2VhbGVk"});
    let message = |id: &str, phase: &str, text: &str| {
        json!({"type": "message", "id": id, "role": "assistant", "status": "completed", "phase": phase,
            "content": [{"type": "output_text", "text": text, "annotations": []}]})
    };
    let items = [
        reasoning,
        message("msg_up_1", "commentary", "I look it up. "),
        message("msg_up_2", "final_answer", "1, 2, 3"),
    ];
    let mut events =
        vec![json!({"type": "response.created", "response": response("in_progress", json!([]))})];
    for (place, item) in items.iter().enumerate() {
        let event = |kind: &str, field: &str, value: Value| json!({"type": format!("response.{kind}"), "output_index": place, field: value});
        let mut begun = item.clone();
        (begun["summary"], begun["content"]) = (json!([]), json!([]));
        events.push(event("output_item.added", "item", begun));
        for part in list(&item["summary"]) {
            let texts = pieces(part["text"].as_str().unwrap()).into_iter();
            events.extend(texts.map(|piece| event("reasoning_summary_text.delta", "delta", json!(piece))));
            events.push(event("reasoning_summary_part.done", "part", part));
        }
        for part in list(&item["content"]) {
            let texts = pieces(part["text"].as_str().unwrap()).into_iter();
            events.extend(texts.map(|piece| event("output_text.delta", "delta", json!(piece))));
        }
        events.push(event("output_item.done", "item", item.clone()));
    }
    events.push(json!({"type": "response.completed", "response": response("completed", json!(items))}));
    sse(events, true, false)
}

async fn messages(State(seen): State<Seen>, body: String) -> Response {
    let request = read(&seen, &body);
    let message = json!({"id": "msg_up", "type": "message", "role": "assistant", "model": request["model"], "content": [],
        "stop_reason": null, "stop_sequence": null, "usage": {"input_tokens": 11, "output_tokens": 1}});
    let start = |index: u64, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
    let delta =
        |index: u64, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
    let mut events = vec![json!({"type": "message_start", "message": message})];
    let mut last = 0;
    let stop = match act(&list(&request["messages"]), &request["tools"], |tool| &tool["name"]) {
        Act::Refuse => return refused(),
        Act::Forever => {
            events.push(start(0, json!({"type": "text", "text": ""})));
            return forever(events, delta(0, json!({"type": "text_delta", "text": "tick "})));
        }
        Act::Say(text) => {
            if text.contains("think") {
                events.push(start(0, json!({"type": "thinking", "thinking": "", "signature": ""})));
                let pieces =
                    ["Let me ", "see."].map(|piece| json!({"type": "thinking_delta", "thinking": piece}));
                events.extend(pieces.map(|piece| delta(0, piece)));
                events.push(delta(0, json!({"type": "signature_delta", "signature": "c2lnbmVk"})));
                events.push(json!({"type": "content_block_stop", "index": 0}));
                last = 1;
            }
            events.push(start(last, json!({"type": "text", "text": ""})));
            let pieces = pieces(&text).into_iter().map(|piece| json!({"type": "text_delta", "text": piece}));
            events.extend(pieces.map(|piece| delta(last, piece)));
            if text.contains(CUT) { "max_tokens" } else { "end_turn" }
        }
        Act::Call(name) | Act::Write(name) => {
            events.push(start(0, json!({"type": "tool_use", "id": "toolu_a", "name": name, "input": {}})));
            let pieces = pieces(ARGUMENTS).into_iter();
            events.extend(
                pieces.map(|piece| delta(0, json!({"type": "input_json_delta", "partial_json": piece}))),
            );
            "tool_use"
        }
    };
    events.push(json!({"type": "content_block_stop", "index": last}));
    events.push(json!({"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": null}, "usage": {"output_tokens": 7}}));
    events.push(json!({"type": "message_stop"}));
    sse(events, true, false)
}

async fn embeddings(State(seen): State<Seen>, body: String) -> Response {
    let request = read(&seen, &body);
    let data: Vec<Value> = list(&request["input"])
        .iter()
        .enumerate()
        .map(|(index, text)| {
            let length = text.as_str().unwrap_or_default().len() as f32;
            json!({"object": "embedding", "index": index, "embedding": [length, 0.5, -1.0]})
        })
        .collect();
    let usage = json!({"prompt_tokens": 1, "total_tokens": 1});
    json!({"object": "list", "data": data, "model": request["model"], "usage": usage})
        .to_string()
        .into_response()
}
