//! Anthropic's Messages API, with any configured model; recorded if the request names a conversation, else not
//! stored.

use crate::access::{Reader, Writer};
use crate::app::App;
use crate::json::Json;
use crate::openai::chat::{begun, next, said};
use crate::openai::conversion::extra;
use crate::openai::error::{RequestError, in_stream};
use crate::openai::fields::Fields;
use crate::openai::models::{self, SelectedModel};
use crate::openai::recorded::Recorder;
use crate::openai::sse::{self, Feed, Steps};
use crate::openai::{ids, request, responses, target, tokens, tools};
use axum::Router;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use everturn_core::json::Raw;
use everturn_engine::model::{Delta, Finish, GenerationStep, ModelReply, ModelRequest, Provider};
use everturn_views::tokens::TokenizerFamily;
use serde_json::{Value, json};
use std::sync::Arc;

/// `/v1/messages`.
pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/v1/messages", post(create)).route("/v1/messages/count_tokens", post(count))
}

async fn create(
    State(app): State<Arc<App>>,
    Writer(tenant): Writer,
    headers: HeaderMap,
    Json(mut body): Json<Fields>,
) -> Result<Response, RequestError> {
    let model = models::find(&tenant, Some(body.need("model")?))?;
    let stream = body.take("stream")?.unwrap_or(false);
    let mut metadata: Option<serde_json::Map<String, Value>> = body.take("metadata")?;
    let named = metadata.as_mut().and_then(|metadata| metadata.shift_remove("conversation"));
    if let Some(rest) = metadata.filter(|rest| !rest.is_empty()) {
        body.0.insert("metadata".into(), Raw::of(&rest)?);
    }
    let recorder = Recorder::named(&tenant, &headers, named.as_ref().and_then(Value::as_str), "anthropic")?;
    let (all, request) = request(&model, body)?;
    if let Some(recorder) = &recorder {
        recorder.input(&all).await?;
    }
    let shown = ReplyFormat {
        id: ids::item("message", responses::fresh()?, 0),
        model: model.asked.clone(),
        same: model.provider() == Provider::Anthropic,
    };
    let steps = sse::unstored(model.configured.client.generate(request));
    if !stream {
        let answer = said(steps, recorder).await?;
        return Ok(axum::Json(shown.whole(&answer)).into_response());
    }
    let steps = begun(steps).await?;
    Ok(sse::respond(&app, move |feed| show(shown, steps, recorder, feed)))
}

/// The messages, the system prompt first, and the request for the model.
fn request(model: &SelectedModel, mut body: Fields) -> Result<(Vec<Raw>, ModelRequest), RequestError> {
    if body.0.remove("thread").is_some_and(|raw| raw.get() != "null") {
        return Err(RequestError::thread());
    }
    let messages: Vec<Raw> = body.need("messages")?;
    if messages.is_empty() {
        return Err(RequestError::field("messages", "messages is empty; give at least one message"));
    }
    let system: Option<Raw> = body.take("system")?;
    let max_output_tokens = Some(body.need("max_tokens")?);
    let to = model.provider();
    let tools = tools::convert(Provider::Anthropic, to, body.take("tools")?.unwrap_or_default())?;
    let mut all = messages.clone();
    if let Some(system) = &system {
        all.insert(0, Raw::new(format!(r#"{{"role":"system","content":{}}}"#, system.get()))?);
    }
    let served = model.served.clone();
    if to == Provider::Anthropic {
        target::check_content(&messages).map_err(RequestError::at("messages"))?;
        let extra = request::rest(body, &[]);
        let request = ModelRequest {
            model: served,
            system,
            messages,
            tools,
            max_output_tokens,
            extra,
            ..ModelRequest::default()
        };
        return Ok((all, request));
    }
    let temperature = body.take("temperature")?;
    let without: &[&str] = if tools.is_empty() { &["tool_choice"] } else { &[] };
    let extra = extra(Provider::Anthropic, to, &request::rest(body, without))?;
    target::check_results(&[], &messages.iter().collect::<Vec<_>>()).map_err(RequestError::at("messages"))?;
    let (system, messages) = target::render(to, None, &all).map_err(RequestError::at("messages"))?;
    let request = ModelRequest {
        model: served,
        system,
        messages,
        tools,
        max_output_tokens,
        temperature,
        json: false,
        extra,
    };
    Ok((all, request))
}

/// Counts tokens with the documented estimate for models whose tokenizer is not public.
async fn count(
    Reader(tenant): Reader,
    Json(mut body): Json<Fields>,
) -> Result<axum::Json<Value>, RequestError> {
    let model = models::find(&tenant, Some(body.need("model")?))?;
    body.0.entry("max_tokens".into()).or_insert(Raw::of(&1)?);
    let (all, request) = request(&model, body)?;
    let tools: Vec<&str> = request.tools.iter().map(Raw::get).collect();
    let tokens = tokens::cost(TokenizerFamily::of_model(model.served_name()), &all, &tools);
    Ok(axum::Json(json!({"input_tokens": tokens})))
}

/// Envelope of a reply.
struct ReplyFormat {
    id: String,
    model: String,
    /// Whether the provider uses the same API, so that its own blocks can be returned.
    same: bool,
}

impl ReplyFormat {
    fn message(&self, content: Value, stop: Option<&str>, usage: Value) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": stop,
            "stop_sequence": null,
            "usage": usage,
        })
    }

    fn whole(&self, answer: &ModelReply) -> Value {
        self.message(self.content(answer), Some(stop(&answer.finish)), self.usage(answer))
    }

    fn content(&self, answer: &ModelReply) -> Value {
        let own: Option<Value> = answer.messages.first().filter(|_| self.same).and_then(Raw::read);
        if let Some(mut own) = own {
            return own["content"].take();
        }
        let words = answer.text.clone() + answer.refusal.as_deref().unwrap_or_default();
        let mut blocks = Vec::new();
        if !words.is_empty() {
            blocks.push(json!({"type": "text", "text": words}));
        }
        for (index, call) in answer.calls.iter().enumerate() {
            let input: Value = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
            let id = call.id.clone().unwrap_or_else(|| format!("call_{index}"));
            blocks.push(json!({"type": "tool_use", "id": id, "name": call.name, "input": input}));
        }
        Value::Array(blocks)
    }

    fn usage(&self, answer: &ModelReply) -> Value {
        let own: Option<Value> = answer.usage.as_ref().filter(|_| self.same).and_then(Raw::read);
        let tokens = &answer.tokens;
        let (prompt, cached) = (tokens.prompt.unwrap_or(0), tokens.cached.unwrap_or(0));
        own.unwrap_or_else(|| {
            json!({
                "input_tokens": prompt.saturating_sub(cached),
                "cache_read_input_tokens": cached,
                "cache_creation_input_tokens": 0,
                "output_tokens": tokens.completion.unwrap_or(0),
            })
        })
    }
}

fn stop(finish: &Finish) -> &str {
    match finish {
        Finish::Stop => "end_turn",
        Finish::Length => "max_tokens",
        Finish::ToolCalls => "tool_use",
        Finish::ContentFilter => "refusal",
        Finish::Other(word) if matches!(word.as_str(), "stop_sequence" | "pause_turn") => word,
        Finish::Other(_) => "end_turn",
    }
}

async fn show(shown: ReplyFormat, mut steps: Steps, recorder: Option<Recorder>, feed: Feed) {
    let mut blocks = Blocks { shown, begun: 0, open: None, out: Vec::new() };
    blocks.begin();
    let outcome = loop {
        let there = blocks.send(&feed).await;
        if !there && recorder.is_none() {
            return;
        }
        match next(&mut steps, recorder.as_ref()).await {
            Ok(GenerationStep::Delta(delta)) => blocks.delta(delta),
            Ok(GenerationStep::Done(answer)) => break Ok(answer),
            Err(error) => break Err(error),
        }
    };
    match outcome {
        Ok(answer) => blocks.end(&answer),
        Err(error) => blocks.out.push(in_stream(&error, true)),
    }
    blocks.send(&feed).await;
}

/// Events of a streamed message.
struct Blocks {
    shown: ReplyFormat,
    /// Number of blocks that have begun.
    begun: usize,
    /// The kind of the last block, if it is unfinished; for a call with its number.
    open: Option<(&'static str, usize)>,
    out: Vec<Value>,
}

impl Blocks {
    async fn send(&mut self, feed: &Feed) -> bool {
        let mut there = true;
        for event in self.out.drain(..) {
            there = feed.send(event["type"].as_str(), &event).await;
        }
        there
    }

    fn begin(&mut self) {
        let usage = json!({"input_tokens": 0, "output_tokens": 0});
        let message = self.shown.message(json!([]), None, usage);
        self.out.push(json!({"type": "message_start", "message": message}));
        self.out.push(json!({"type": "ping"}));
    }

    fn start(&mut self, open: (&'static str, usize), block: Value) {
        if self.open == Some(open) {
            return;
        }
        self.stop();
        self.out.push(json!({"type": "content_block_start", "index": self.begun, "content_block": block}));
        self.open = Some(open);
        self.begun += 1;
    }

    fn stop(&mut self) {
        if self.open.take().is_some() {
            self.out.push(json!({"type": "content_block_stop", "index": self.begun - 1}));
        }
    }

    fn piece(&mut self, delta: Value) {
        let index = self.begun.saturating_sub(1);
        self.out.push(json!({"type": "content_block_delta", "index": index, "delta": delta}));
    }

    fn delta(&mut self, delta: Delta) {
        match delta {
            Delta::Text(text) | Delta::Refusal(text) => {
                self.start(("text", 0), json!({"type": "text", "text": ""}));
                self.piece(json!({"type": "text_delta", "text": text}));
            }
            // Unsigned reasoning cannot be sent back, and is not shown.
            Delta::Item(_) | Delta::ThinkingEnd => {}
            Delta::Thinking(_) | Delta::Sealed(_) if !self.shown.same => {}
            Delta::Thinking(text) => {
                self.start(("thinking", 0), json!({"type": "thinking", "thinking": "", "signature": ""}));
                self.piece(json!({"type": "thinking_delta", "thinking": text}));
            }
            Delta::Sealed(block) => match block.read::<Value>().unwrap_or_default() {
                block if block["type"] == "thinking" => {
                    self.start(("thinking", 0), json!({"type": "thinking", "thinking": "", "signature": ""}));
                    self.piece(json!({"type": "signature_delta", "signature": block["signature"]}));
                    self.stop();
                }
                block => {
                    self.start(("sealed", 0), block);
                    self.stop();
                }
            },
            Delta::Call { index, id, name, arguments } => {
                if let Some(name) = name {
                    let id = id.unwrap_or_else(|| format!("call_{index}"));
                    let block = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                    self.start(("tool_use", index), block);
                }
                if self.open == Some(("tool_use", index)) && !arguments.is_empty() {
                    self.piece(json!({"type": "input_json_delta", "partial_json": arguments}));
                }
            }
        }
    }

    fn end(&mut self, answer: &ModelReply) {
        self.stop();
        let content = self.shown.content(answer);
        let streamed = ["text", "thinking", "redacted_thinking", "tool_use"];
        let other = |block: &&Value| block["type"].as_str().is_none_or(|kind| !streamed.contains(&kind));
        for block in content.as_array().into_iter().flatten().filter(other) {
            self.out
                .push(json!({"type": "content_block_start", "index": self.begun, "content_block": block}));
            self.out.push(json!({"type": "content_block_stop", "index": self.begun}));
            self.begun += 1;
        }
        let delta = json!({"stop_reason": stop(&answer.finish), "stop_sequence": null});
        let usage = self.shown.usage(answer);
        self.out.push(json!({"type": "message_delta", "delta": delta, "usage": usage}));
        self.out.push(json!({"type": "message_stop"}));
    }
}
