//! Generations: replies of models.

use crate::context::ContextRequest;
use crate::decode::{messages, messages_schema};
use crate::turns::{TurnInput, new_turns};
use crate::{About, ConversationName, Method, Noun, Operation, Page, Requester, Work};
use everturn_core::Error;
use everturn_core::id::GenerationId;
use everturn_core::json::Raw;
use everturn_core::turn::Turn;
use everturn_engine::{
    AppendOptions, GenerateOptions, Generated, Generating, GenerationProgress, GenerationStatus, Regenerate,
};
use everturn_formats::wire::{Finish, ModelReply};
use futures_util::StreamExt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;

/// Appends the input, calls a model, and appends its reply.
///
/// While approvals are pending, the model is not asked: the generation is `waiting`, its status names them in `waits_for`,
/// and it goes on when the last one is resolved or expires.
///
/// With `stream` the reply is sent as server-sent events: `waiting` (`waits_for`, the pending approvals, if there are any), `started` (`id` of the generation, `turn`, `input`,
/// `receipt_seq`), `delta` (`type` is `text`, `thinking`, `refusal` or `call`), then `done` (as without
/// `stream`) or `error` (a problem). Closing the connection does not stop the generation; its turn can be
/// followed with the conversation's events.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(example = json!({"input": [{"role": "user", "content": "And then?"}], "max_output_tokens": 500}))]
pub struct Generate {
    /// The conversation.
    pub conversation: ConversationName,
    /// New turns to append first, or the text of one of the user. Without any, the model replies to the end of the log.
    #[serde(default, deserialize_with = "messages")]
    #[schemars(schema_with = "messages_schema::<TurnInput>")]
    pub input: Vec<TurnInput>,
    /// Generate an answer anew instead of another one: `last`, or the id of its turn. What is read before it is the
    /// prompt, and the new answer takes its place once it is complete.
    pub regenerate: Option<Regenerate>,
    /// Refuse unless this is the `seq` of the last event.
    pub expected_seq: Option<u64>,
    /// Name of the configured model.
    pub model: Option<String>,
    /// Model to request from the provider, instead of the configured one.
    pub served_model: Option<String>,
    /// Options of the context. `input`, `provider`, `model` and `at_seq` follow from the rest and are left out
    /// here.
    pub context: Option<ContextRequest>,
    /// Maximum number of tokens of the reply.
    pub max_output_tokens: Option<u64>,
    /// Sampling temperature.
    pub temperature: Option<f64>,
    /// Additional fields of the request to the provider.
    #[serde(default)]
    pub extra: BTreeMap<String, Raw>,
    /// Actor of the reply.
    pub actor: Option<String>,
    /// Metadata to store with the reply.
    #[serde(default)]
    pub metadata: BTreeMap<String, Raw>,
    /// Allow it while another generation runs in the conversation.
    #[serde(default)]
    pub parallel: bool,
    /// Stream the reply.
    #[serde(default)]
    pub stream: bool,
    /// Idempotency key of your choice: a repeated request with the same key is executed once, also after a
    /// restart.
    pub idempotency_key: Option<String>,
}

impl Generate {
    /// Starts the generation.
    pub async fn begin(self, requester: &Requester) -> Result<Generating, Error> {
        let context = self.context.unwrap_or_default();
        if context.says_what_follows() {
            let text =
                "context.input, context.provider and context.model follow from the rest; leave them out";
            return Err(Error::invalid("generate.context", text));
        }
        let options = GenerateOptions {
            input: new_turns(self.input)?,
            regenerate: self.regenerate,
            append: AppendOptions { expected_seq: self.expected_seq, idempotency_key: self.idempotency_key },
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
        };
        let name = self.conversation;
        let chat = match name.0.parse() {
            Ok(id) => requester.tenant.conversation(id),
            Err(_) => requester.blocking(move |tenant| name.find(tenant)).await?,
        };
        chat.generate(options).await
    }
}

impl Operation for Generate {
    type Answer = GeneratedAnswer;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::Generations,
        "generate",
        "/conversations/{conversation}/generate",
        "Generate a model reply",
        "The reply, complete and durable; or streamed.",
    )
    .asks_model()
    .once()
    .work(Work::Quick)
    .streams();

    async fn run(self, requester: &Requester) -> Result<GeneratedAnswer, Error> {
        let mut generating = self.begin(requester).await?;
        while let Some(progress) = generating.next().await {
            if let GenerationProgress::Done(generated) = progress? {
                return Ok(GeneratedAnswer::new(&generating, *generated));
            }
        }
        Err(Error::busy("store.closed", "the store was closed before the reply was complete; ask again"))
    }
}

/// A model reply.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Generated")]
pub struct GeneratedAnswer {
    /// Id of the generation.
    pub id: GenerationId,
    /// The input, as appended.
    pub input: Vec<Turn>,
    /// The reply: complete and durable turns.
    pub turns: Vec<Turn>,
    /// Text of the reply.
    pub text: String,
    /// Text of a refusal, if the provider reports it separately.
    pub refusal: Option<String>,
    /// Tool calls.
    pub calls: Vec<Call>,
    /// `stop`, `length`, `tool_calls`, `content_filter`, or another value of the provider.
    pub finish: String,
    /// Token counts.
    pub tokens: GeneratedTokens,
    /// Usage as reported by the provider.
    pub usage: Option<Raw>,
    /// Model that replied.
    pub model: String,
    /// `seq` of the receipt, which records the context.
    pub receipt_seq: u64,
}

/// A tool call.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Call {
    /// Id, if the provider gives one.
    pub id: Option<String>,
    /// Name of the tool.
    pub name: String,
    /// Arguments: JSON, unless the model made a mistake.
    pub arguments: String,
}

/// Token counts of a reply.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct GeneratedTokens {
    /// Tokens of the prompt.
    pub prompt: Option<u64>,
    /// Tokens of the completion.
    pub completion: Option<u64>,
    /// Tokens of the prompt that came from the provider's cache.
    pub cached: Option<u64>,
}

impl GeneratedAnswer {
    /// The reply of a finished generation.
    pub fn new(generating: &Generating, generated: Generated) -> GeneratedAnswer {
        let ModelReply { text, refusal, calls, finish, tokens, usage, model, .. } = generated.answer;
        let calls = calls.into_iter();
        GeneratedAnswer {
            id: generating.id,
            input: generating.input.clone(),
            turns: generated.turns,
            text,
            refusal,
            calls: calls
                .map(|call| Call { id: call.id, name: call.name, arguments: call.arguments })
                .collect(),
            finish: match finish {
                Finish::Stop => "stop".into(),
                Finish::Length => "length".into(),
                Finish::ToolCalls => "tool_calls".into(),
                Finish::ContentFilter => "content_filter".into(),
                Finish::Other(word) => word,
            },
            tokens: GeneratedTokens {
                prompt: tokens.prompt,
                completion: tokens.completion,
                cached: tokens.cached,
            },
            usage,
            model,
            receipt_seq: generated.receipt_seq,
        }
    }
}

/// Lists the generations that run in a conversation.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListGenerations {
    /// The conversation.
    pub conversation: ConversationName,
}

impl Operation for ListGenerations {
    type Answer = Page<GenerationStatus>;
    const ABOUT: About = About::new(
        Method::Get,
        Noun::Generations,
        "list_generations",
        "/conversations/{conversation}/generations",
        "List running generations",
        "Oldest first.",
    );

    async fn run(self, requester: &Requester) -> Result<Page<GenerationStatus>, Error> {
        let id = requester.conversation(&self.conversation)?.get()?.id;
        let running = requester.tenant.generations().running(id)?;
        Ok(Page::whole(running))
    }
}

/// Shows the status of a generation. Finished ones are remembered for a while.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetGeneration {
    /// The generation's id.
    pub generation: GenerationId,
}

impl Operation for GetGeneration {
    type Answer = GenerationStatus;
    const ABOUT: About = About::new(
        Method::Get,
        Noun::Generations,
        "get_generation",
        "/generations/{generation}",
        "Show the status of a generation",
        "The status.",
    )
    .work(Work::Quick);

    async fn run(self, requester: &Requester) -> Result<GenerationStatus, Error> {
        requester.tenant.generations().status(self.generation)
    }
}

/// Stops a generation. Its turn ends as interrupted and keeps the text so far; as aborted if there is none.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StopGeneration {
    /// The generation's id.
    pub generation: GenerationId,
}

impl Operation for StopGeneration {
    type Answer = GenerationStatus;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::Generations,
        "stop_generation",
        "/generations/{generation}/stop",
        "Stop a generation",
        "The request to stop was accepted; the generation ends soon.",
    )
    .begins()
    .work(Work::Quick);

    async fn run(self, requester: &Requester) -> Result<GenerationStatus, Error> {
        requester.tenant.generations().stop(self.generation)
    }
}

/// A configured model.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Model {
    /// Name in the configuration.
    pub name: String,
    /// Name at its provider.
    pub model: String,
}

/// Lists the configured models.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListModels {}

impl Operation for ListModels {
    type Answer = Page<Model>;
    const ABOUT: About = About::new(
        Method::Get,
        Noun::Generations,
        "list_models",
        "/models",
        "List models",
        "The whole list.",
    )
    .work(Work::Quick);

    async fn run(self, requester: &Requester) -> Result<Page<Model>, Error> {
        let models = requester.tenant.generations().models().into_iter();
        Ok(Page::whole(models.map(|(name, model)| Model { name, model }).collect()))
    }
}
