//! Chat completions, with any configured model; recorded if the request names a conversation, stored with `store`, else
//! not stored.

use super::conversion::extra;
use super::error::{RequestError, in_stream};
use super::fields::Fields;
use super::models::{self, SelectedModel};
use super::recorded::Recorder;
use super::responses::{answer, now};
use super::sse::{self, Feed, Steps};
use super::target::{check_content, check_results, render};
use super::{completions, request, tools};
use crate::access::Writer;
use crate::app::App;
use crate::json::Json;
use axum::Router;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use everturn_core::Error;
use everturn_core::json::Raw;
use everturn_engine::model::{Delta, Finish, GenerationStep, ModelReply, ModelRequest, Provider, ToolCall};
use futures_util::{FutureExt, StreamExt};
use serde_json::{Value, json};
use std::sync::Arc;

/// `/v1/chat/completions`.
pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/v1/chat/completions", post(create))
}

/// Fields that are refused: the engine's model clients do not support them.
const UNSUPPORTED_FIELDS: [&str; 5] = ["functions", "function_call", "logprobs", "top_logprobs", "audio"];

/// A call, and how its reply is returned.
#[derive(Clone)]
pub struct ReplyFormat {
    id: String,
    created: i64,
    model: String,
    /// Whether the provider uses the same API, so that its own fields can be returned.
    same: bool,
    usage: bool,
}

async fn create(
    State(app): State<Arc<App>>,
    Writer(tenant): Writer,
    headers: HeaderMap,
    Json(mut body): Json<Fields>,
) -> Result<Response, RequestError> {
    let model = models::find(&tenant, body.take("model")?)?;
    let messages: Vec<Raw> = body.need("messages")?;
    if messages.is_empty() {
        return Err(RequestError::field("messages", "messages is empty; give at least one message"));
    }
    let store = body.take("store")?.unwrap_or(false);
    let stream = body.take("stream")?.unwrap_or(false);
    let options: Option<Value> = body.take("stream_options")?;
    let mut metadata: Option<serde_json::Map<String, Value>> = body.take("metadata")?;
    let named = metadata.as_mut().and_then(|metadata| metadata.shift_remove("conversation"));
    let recorder = Recorder::named(&tenant, &headers, named.as_ref().and_then(Value::as_str), "openai-chat")?;
    if let Some(rest) = metadata.as_ref().filter(|rest| !rest.is_empty() && !store) {
        body.0.insert("metadata".into(), Raw::of(rest)?);
    }
    let request = request(&model, body, messages.clone())?;
    let kept = match store && recorder.is_none() {
        true => Some(completions::begin(&tenant, metadata.unwrap_or_default()).await?),
        false => None,
    };
    let shown = ReplyFormat {
        id: completions::id(kept.as_ref().map(Recorder::conversation))?,
        created: now(),
        model: model.asked.clone(),
        same: model.provider() == Provider::OpenaiChat,
        usage: options.is_some_and(|options| options["include_usage"] == true),
    };
    let recorder = recorder.or(kept.map(|kept| kept.for_completion(shown.clone())));
    let answered = async {
        if let Some(recorder) = &recorder {
            recorder.input(&messages).await.map_err(RequestError::at("messages"))?;
        }
        let steps = sse::unstored(model.configured.client.generate(request));
        if !stream {
            let answer = said(steps, recorder.clone()).await?;
            return Ok(axum::Json(shown.whole(&answer)).into_response());
        }
        let steps = begun(steps).await?;
        let recorder = recorder.clone();
        Ok(sse::respond(&app, move |feed| show(shown, steps, recorder, feed)))
    };
    match (answered.await, recorder) {
        (Err(refused), Some(recorder)) => {
            recorder.forget().await?;
            Err(refused)
        }
        (answered, _) => answered,
    }
}

fn request(
    model: &SelectedModel,
    mut body: Fields,
    messages: Vec<Raw>,
) -> Result<ModelRequest, RequestError> {
    if body.take::<u64>("n")?.is_some_and(|n| n != 1) {
        return Err(RequestError::field(
            "n",
            "only one reply is generated per request; leave n out, and send several requests",
        ));
    }
    let wanted =
        |name: &&&str| body.0.get(**name).is_some_and(|raw| !matches!(raw.get(), "null" | "false" | "0"));
    if let Some(name) = UNSUPPORTED_FIELDS.iter().find(wanted) {
        return Err(RequestError::field(*name, format!("{name} is not supported here; leave it out")));
    }
    UNSUPPORTED_FIELDS.iter().for_each(|name| drop(body.0.remove(*name)));
    let to = model.provider();
    let tools = tools::convert(Provider::OpenaiChat, to, body.take("tools")?.unwrap_or_default())?;
    if to == Provider::OpenaiChat {
        check_content(&messages).map_err(RequestError::at("messages"))?;
        let extra = request::rest(body, &[]);
        return Ok(ModelRequest {
            model: model.served.clone(),
            messages,
            tools,
            extra,
            ..ModelRequest::default()
        });
    }
    let most: Option<u64> = body.take("max_completion_tokens")?;
    let max_output_tokens = most.or(body.take("max_tokens")?);
    let temperature = body.take("temperature")?;
    let without: &[&str] = if tools.is_empty() { &["tool_choice", "parallel_tool_calls"] } else { &[] };
    let extra = extra(Provider::OpenaiChat, to, &request::rest(body, without))?;
    check_results(&[], &messages.iter().collect::<Vec<_>>()).map_err(RequestError::at("messages"))?;
    let (system, messages) = render(to, None, &messages).map_err(RequestError::at("messages"))?;
    let model = model.served.clone();
    Ok(ModelRequest { model, system, messages, tools, max_output_tokens, temperature, json: false, extra })
}

/// The whole reply, recorded. A recorded reply is completed even if the client disconnects.
pub async fn said(steps: Steps, recorder: Option<Recorder>) -> Result<ModelReply, Error> {
    let Some(recorder) = recorder else { return answer(steps).await };
    let work = async move {
        let answer = answer(steps).await?;
        recorder.answer(&answer).await?;
        Ok(answer)
    };
    let work = tokio::spawn(crate::lanes::inherited(crate::lanes::current(), work));
    work.await.unwrap_or_else(|_| Err(sse::endless()))
}

/// A reply that has begun: a failure before its first piece is an error, not a stream.
pub async fn begun(mut steps: Steps) -> Result<Steps, Error> {
    let first = steps.next().await.ok_or_else(sse::endless)??;
    Ok(futures_util::stream::once(std::future::ready(Ok(first))).chain(steps).boxed())
}

/// The next piece of a reply, or the whole of it: if it is recorded, its end is shown only once it is in the log.
pub async fn next(steps: &mut Steps, recorder: Option<&Recorder>) -> Result<GenerationStep, Error> {
    let step = steps.next().await.ok_or_else(sse::endless)??;
    if let (GenerationStep::Done(answer), Some(recorder)) = (&step, recorder) {
        recorder.answer(answer).await?;
    }
    Ok(step)
}

async fn show(shown: ReplyFormat, mut steps: Steps, recorder: Option<Recorder>, feed: Feed) {
    let mut there = feed.send(None, &shown.chunk(json!({"role": "assistant", "content": ""}), None)).await;
    let outcome = loop {
        if !there && recorder.is_none() {
            return;
        }
        match next(&mut steps, recorder.as_ref()).await {
            Ok(GenerationStep::Delta(delta)) => {
                if let Some(piece) = piece(delta) {
                    there = feed.send(None, &shown.chunk(piece, None)).await;
                }
            }
            Ok(GenerationStep::Done(answer)) => break Ok(answer),
            Err(error) => break Err(error),
        }
    };
    match outcome {
        Ok(answer) => {
            feed.send(None, &shown.chunk(json!({}), Some(finish(&answer.finish)))).await;
            if shown.usage {
                let mut last = shown.chunk(json!({}), None);
                last["choices"] = json!([]);
                last["usage"] = shown.used(&answer);
                feed.send(None, &last).await;
            }
        }
        Err(error) => {
            if let Some(recorder) = &recorder
                && let Err(error) = recorder.forget().await
            {
                tracing::warn!(%error, "a completion that failed could not be deleted");
            }
            feed.send(None, &in_stream(&error, false)).await;
        }
    }
    feed.done().boxed().await;
}

/// A piece of a reply in the format of chat completions; `None` for a seal, for which it has none.
fn piece(delta: Delta) -> Option<Value> {
    Some(match delta {
        Delta::Sealed(_) | Delta::Item(_) | Delta::ThinkingEnd => return None,
        Delta::Text(text) => json!({"content": text}),
        Delta::Refusal(text) => json!({"refusal": text}),
        Delta::Thinking(text) => json!({"reasoning_content": text}),
        Delta::Call { index, id, name: Some(name), arguments } => json!({"tool_calls": [{
            "index": index,
            "id": id.unwrap_or_else(|| format!("call_{index}")),
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }]}),
        Delta::Call { index, arguments, .. } => {
            json!({"tool_calls": [{"index": index, "function": {"arguments": arguments}}]})
        }
    })
}

fn finish(finish: &Finish) -> &'static str {
    match finish {
        Finish::Stop | Finish::Other(_) => "stop",
        Finish::Length => "length",
        Finish::ToolCalls => "tool_calls",
        Finish::ContentFilter => "content_filter",
    }
}

impl ReplyFormat {
    fn chunk(&self, delta: Value, finish: Option<&str>) -> Value {
        json!({
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "choices": [{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish}],
        })
    }

    pub fn whole(&self, answer: &ModelReply) -> Value {
        let own: Option<Value> = answer.messages.first().filter(|_| self.same).and_then(Raw::read);
        json!({
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": [{
                "index": 0,
                "message": own.unwrap_or_else(|| message(answer)),
                "logprobs": null,
                "finish_reason": finish(&answer.finish),
            }],
            "usage": self.used(answer),
        })
    }

    fn used(&self, answer: &ModelReply) -> Value {
        let own: Option<Value> = answer.usage.as_ref().filter(|_| self.same).and_then(Raw::read);
        let tokens = &answer.tokens;
        own.or_else(|| {
            let (prompt, completion) = (tokens.prompt?, tokens.completion?);
            Some(json!({
                "prompt_tokens": prompt,
                "completion_tokens": completion,
                "total_tokens": prompt + completion,
                "prompt_tokens_details": {"cached_tokens": tokens.cached.unwrap_or(0)},
            }))
        })
        .unwrap_or_default()
    }
}

fn message(answer: &ModelReply) -> Value {
    let call = |(index, call): (usize, &ToolCall)| {
        let id = call.id.clone().unwrap_or_else(|| format!("call_{index}"));
        let function = json!({"name": call.name, "arguments": call.arguments});
        json!({"id": id, "type": "function", "function": function})
    };
    let content = Some(&answer.text).filter(|text| !text.is_empty() || answer.calls.is_empty());
    let mut message = json!({"role": "assistant", "content": content, "refusal": answer.refusal});
    if !answer.calls.is_empty() {
        message["tool_calls"] = answer.calls.iter().enumerate().map(call).collect();
    }
    message
}
