//! Answers of models.

use super::context::Build;
use super::turns::{Said, new_turns};
use crate::access::{Reader, Writer};
use crate::app::App;
use crate::headers::Once;
use crate::json::{Json, Path};
use crate::page::Page;
use crate::problem::Problem;
use crate::schema;
use crate::sse::{self, Frame, Frames};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use everturn_core::Error;
use everturn_core::id::{ConversationId, GenerationId};
use everturn_core::json::Raw;
use everturn_core::turn::Turn;
use everturn_engine::model::{Answer, Delta, Finish};
use everturn_engine::{AppendOptions, GenerateOptions, Generated, Generating, GenerationStatus, Progress};
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// `/conversations/{id}/generate`, `/generations` and `/models`.
pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(generate))
        .routes(routes!(list_generations))
        .routes(routes!(get_generation))
        .routes(routes!(stop_generation))
        .routes(routes!(list_models))
}

/// What to ask a model.
#[derive(Deserialize, ToSchema, Default)]
#[serde(deny_unknown_fields)]
#[schema(as = GenerateRequest, example = json!({"input": [{"role": "user", "content": "And then?"}], "max_output_tokens": 500}))]
struct Ask {
    /// What is said first. Without any, the model answers what the log ends with.
    #[serde(default)]
    #[schema(value_type = Option<Vec<Said>>)]
    input: Vec<Said>,
    /// Refuse unless the log ends here.
    expected_seq: Option<u64>,
    /// The configured model, by name.
    model: Option<String>,
    /// The model that the provider is asked for, instead of the configured one.
    served_model: Option<String>,
    /// What the model is given. `input`, `provider`, `model` and `at_seq` follow from the rest and are left out here.
    context: Option<Build>,
    /// Most tokens of the answer.
    max_output_tokens: Option<u64>,
    /// How freely the model chooses its words.
    temperature: Option<f64>,
    /// Further fields of the request to the provider.
    #[serde(default)]
    #[schema(value_type = Option<BTreeMap<String, Value>>)]
    extra: BTreeMap<String, Raw>,
    /// Who answers.
    actor: Option<String>,
    /// Whatever is to be kept with the answer.
    #[serde(default)]
    #[schema(value_type = Option<BTreeMap<String, Value>>)]
    metadata: BTreeMap<String, Raw>,
    /// Also while another answer runs in the conversation.
    #[serde(default)]
    #[schema(value_type = Option<bool>)]
    parallel: bool,
    /// Send the answer as it comes.
    #[serde(default)]
    #[schema(value_type = Option<bool>)]
    stream: bool,
}

impl Ask {
    fn into_options(self, idempotency_key: Option<String>) -> Result<GenerateOptions, Error> {
        let context = self.context.unwrap_or_default();
        if context.says_what_follows() {
            let text =
                "context.input, context.provider and context.model follow from the rest; leave them out";
            return Err(Error::invalid("generate.context", text));
        }
        Ok(GenerateOptions {
            input: new_turns(self.input)?,
            append: AppendOptions { expected_seq: self.expected_seq, idempotency_key },
            model: self.model,
            served_model: self.served_model,
            context: context.into_options()?,
            max_output_tokens: self.max_output_tokens,
            temperature: self.temperature,
            extra: self.extra,
            actor: self.actor,
            metadata: self.metadata,
            parallel: self.parallel,
            whole: false,
        })
    }
}

/// Appends the input, asks a model, and appends its answer.
///
/// With `stream` the answer comes as server-sent events: `started` (`id` of the generation, `turn`, `input`,
/// `receipt_seq`), `delta` (`type` is `text`, `thinking`, `refusal` or `call`), then `done` (as without `stream`) or
/// `error` (a problem). Closing the connection does not stop it; its turn can be followed with the conversation's events.
#[utoipa::path(
    post, path = "/conversations/{id}/generate", tag = "generations",
    params(schema::InConversation, schema::IdempotencyKey), request_body = Ask,
    responses(
        (status = 200, description = "The answer, complete and durable; or as it comes.", content(
            (schema::Generated = "application/json"), (String = "text/event-stream")
        )),
        (status = 409, description = "Another answer runs, it was stopped, or the log does not end at `expected_seq`.", body = schema::Problem)
    )
)]
async fn generate(
    State(app): State<Arc<App>>,
    Writer(scope): Writer,
    Path(id): Path<ConversationId>,
    Once(idempotency_key): Once,
    Json(body): Json<Ask>,
) -> Result<Response, Problem> {
    let stream = body.stream;
    let mut generating = scope.generate(id, body.into_options(idempotency_key)?).await?;
    if stream {
        return Ok(sse::answer(&app, Answering { begun: false, generating }));
    }
    while let Some(progress) = generating.next().await {
        if let Progress::Done(generated) = progress? {
            return Ok(axum::Json(Answered::new(&generating, &generated)).into_response());
        }
    }
    Err(Error::busy("store.closed", "the store was closed before the answer was whole; ask again").into())
}

struct Answering {
    begun: bool,
    generating: Generating,
}

impl Frames for Answering {
    async fn next(&mut self) -> Option<Frame> {
        let generating = &mut self.generating;
        if !std::mem::replace(&mut self.begun, true) {
            let started = json!({
                "id": generating.id,
                "conversation": generating.conversation,
                "turn": generating.turn,
                "receipt_seq": generating.receipt_seq,
                "input": generating.input,
            });
            return Some(Frame::new("started", &started));
        }
        Some(match generating.next().await? {
            Ok(Progress::Delta(delta)) => Frame::new("delta", &shown(&delta)),
            Ok(Progress::Done(generated)) => Frame::new("done", &Answered::new(generating, &generated)),
            Err(error) => Frame::new("error", &Problem::from(error).body()),
        })
    }

    fn stopping(&self) -> Frame {
        Frame::new("stopping", &json!({"id": self.generating.id, "turn": self.generating.turn}))
    }
}

fn shown(delta: &Delta) -> Value {
    match delta {
        Delta::Text(text) => json!({"type": "text", "text": text}),
        Delta::Thinking(text) => json!({"type": "thinking", "text": text}),
        Delta::Refusal(text) => json!({"type": "refusal", "text": text}),
        Delta::Call { index, id, name, arguments } => {
            json!({"type": "call", "index": index, "id": id, "name": name, "arguments": arguments})
        }
    }
}

/// A whole answer.
#[derive(Serialize)]
struct Answered<'a> {
    id: GenerationId,
    input: &'a [Turn],
    turns: &'a [Turn],
    text: &'a str,
    refusal: Option<&'a str>,
    calls: Vec<Value>,
    finish: &'a str,
    tokens: Value,
    usage: Option<&'a Raw>,
    model: &'a str,
    receipt_seq: u64,
}

impl<'a> Answered<'a> {
    fn new(generating: &'a Generating, generated: &'a Generated) -> Answered<'a> {
        let answer: &Answer = &generated.answer;
        let calls = answer.calls.iter();
        let calls = calls.map(|call| json!({"id": call.id, "name": call.name, "arguments": call.arguments}));
        let tokens = answer.tokens;
        Answered {
            id: generating.id,
            input: &generating.input,
            turns: &generated.turns,
            text: &answer.text,
            refusal: answer.refusal.as_deref(),
            calls: calls.collect(),
            finish: match &answer.finish {
                Finish::Stop => "stop",
                Finish::Length => "length",
                Finish::ToolCalls => "tool_calls",
                Finish::ContentFilter => "content_filter",
                Finish::Other(word) => word,
            },
            tokens: json!({"prompt": tokens.prompt, "completion": tokens.completion, "cached": tokens.cached}),
            usage: answer.usage.as_ref(),
            model: &answer.model,
            receipt_seq: generated.receipt_seq,
        }
    }
}

/// Lists the generations that run in a conversation.
#[utoipa::path(
    get, path = "/conversations/{id}/generations", tag = "generations", params(schema::InConversation),
    responses((status = 200, description = "Oldest first.", body = Page<schema::Generation>))
)]
async fn list_generations(
    Reader(scope): Reader,
    Path(id): Path<ConversationId>,
) -> Result<Page<GenerationStatus>, Problem> {
    let running = crate::app::blocking(move || scope.get(id).map(|_| scope.running_generations(id)));
    Ok(Page::whole(running.await?))
}

/// Where a generation is. Those that ended are remembered for a while.
#[utoipa::path(
    get, path = "/generations/{generation}", tag = "generations", params(schema::OfGeneration),
    responses((status = 200, description = "Where it is.", body = schema::Generation))
)]
async fn get_generation(
    Reader(scope): Reader,
    Path(id): Path<GenerationId>,
) -> Result<axum::Json<GenerationStatus>, Problem> {
    Ok(axum::Json(scope.generation(id)?))
}

/// Asks a generation to stop. Its turn ends as aborted and keeps what was said so far.
#[utoipa::path(
    post, path = "/generations/{generation}/stop", tag = "generations", params(schema::OfGeneration),
    responses(
        (status = 202, description = "It was asked; the end follows.", body = schema::Generation),
        (status = 409, description = "It has ended.", body = schema::Problem)
    )
)]
async fn stop_generation(Writer(scope): Writer, Path(id): Path<GenerationId>) -> Result<Response, Problem> {
    let status = scope.stop_generation(id)?;
    Ok((axum::http::StatusCode::ACCEPTED, axum::Json(status)).into_response())
}

/// A model that can be asked.
#[derive(Serialize, ToSchema)]
struct Model {
    /// What it is called here.
    name: String,
    /// What its server calls it.
    model: String,
}

/// Lists the models that can be asked.
#[utoipa::path(
    get, path = "/models", tag = "generations",
    responses((status = 200, description = "All of them.", body = Page<Model>))
)]
async fn list_models(Reader(scope): Reader) -> Page<Model> {
    Page::whole(scope.models().into_iter().map(|(name, model)| Model { name, model }).collect())
}
