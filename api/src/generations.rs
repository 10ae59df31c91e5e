//! Answers of models.

use crate::context::ContextRequest;
use crate::turns::{TurnInput, new_turns};
use crate::{About, Asker, ConversationName, Method, Noun, Operation, Page, Work};
use everturn::{AppendOptions, GenerateOptions, Generated, Generating, GenerationStatus, Progress};
use everturn_core::Error;
use everturn_core::id::GenerationId;
use everturn_core::json::Raw;
use everturn_core::turn::Turn;
use everturn_formats::wire::{Answer as ModelReply, Finish};
use futures_util::StreamExt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;

/// Appends the input, asks a model, and appends its answer.
///
/// With `stream` the answer comes as server-sent events: `started` (`id` of the generation, `turn`, `input`,
/// `receipt_seq`), `delta` (`type` is `text`, `thinking`, `refusal` or `call`), then `done` (as without `stream`) or
/// `error` (a problem). Closing the connection does not stop it; its turn can be followed with the conversation's events.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(example = json!({"input": [{"role": "user", "content": "And then?"}], "max_output_tokens": 500}))]
pub struct Generate {
    /// The conversation.
    pub conversation: ConversationName,
    /// What is said first. Without any, the model answers what the log ends with.
    #[serde(default)]
    pub input: Vec<TurnInput>,
    /// Refuse unless the log ends here.
    pub expected_seq: Option<u64>,
    /// The configured model, by name.
    pub model: Option<String>,
    /// The model that the provider is asked for, instead of the configured one.
    pub served_model: Option<String>,
    /// What the model is given. `input`, `provider`, `model` and `at_seq` follow from the rest and are left out here.
    pub context: Option<ContextRequest>,
    /// Most tokens of the answer.
    pub max_output_tokens: Option<u64>,
    /// How freely the model chooses its words.
    pub temperature: Option<f64>,
    /// Further fields of the request to the provider.
    #[serde(default)]
    pub extra: BTreeMap<String, Raw>,
    /// Who answers.
    pub actor: Option<String>,
    /// Whatever is to be kept with the answer.
    #[serde(default)]
    pub metadata: BTreeMap<String, Raw>,
    /// Also while another answer runs in the conversation.
    #[serde(default)]
    pub parallel: bool,
    /// Send the answer as it comes.
    #[serde(default)]
    pub stream: bool,
    /// A text of your choice: the same request under the same key is done once, also after a restart.
    pub idempotency_key: Option<String>,
}

impl Generate {
    /// Begins it.
    pub async fn begin(self, asker: &Asker) -> Result<Generating, Error> {
        let context = self.context.unwrap_or_default();
        if context.says_what_follows() {
            let text =
                "context.input, context.provider and context.model follow from the rest; leave them out";
            return Err(Error::invalid("generate.context", text));
        }
        let options = GenerateOptions {
            input: new_turns(self.input)?,
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
            Ok(id) => asker.tenant.conversation(id),
            Err(_) => asker.blocking(move |tenant| name.find(tenant)).await?,
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
        "Have a model answer",
        "The answer, complete and durable; or as it comes.",
    )
    .asks_model()
    .once()
    .streams();

    async fn run(self, asker: &Asker) -> Result<GeneratedAnswer, Error> {
        let mut generating = self.begin(asker).await?;
        while let Some(progress) = generating.next().await {
            if let Progress::Done(generated) = progress? {
                return Ok(GeneratedAnswer::new(&generating, *generated));
            }
        }
        Err(Error::busy("store.closed", "the store was closed before the answer was whole; ask again"))
    }
}

/// What a model answered.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Generated")]
pub struct GeneratedAnswer {
    /// The generation.
    pub id: GenerationId,
    /// What was asked, as it was appended.
    pub input: Vec<Turn>,
    /// What was answered: complete, and durable.
    pub turns: Vec<Turn>,
    /// The words of the answer.
    pub text: String,
    /// The words of a refusal, where the provider keeps it apart.
    pub refusal: Option<String>,
    /// The tools it calls.
    pub calls: Vec<Call>,
    /// `stop`, `length`, `tool_calls`, `content_filter`, or the provider's word.
    pub finish: String,
    /// What it cost.
    pub tokens: GeneratedTokens,
    /// All that the provider says about what it cost.
    pub usage: Option<Raw>,
    /// The model that answered.
    pub model: String,
    /// The place of the receipt: what the model was given.
    pub receipt_seq: u64,
}

/// A tool call.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Call {
    /// Its id, where the provider gives one.
    pub id: Option<String>,
    /// The tool.
    pub name: String,
    /// JSON, unless the model erred.
    pub arguments: String,
}

/// What an answer cost.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct GeneratedTokens {
    /// What went in.
    pub prompt: Option<u64>,
    /// What came out.
    pub completion: Option<u64>,
    /// Tokens of the prompt that came from the provider's cache.
    pub cached: Option<u64>,
}

impl GeneratedAnswer {
    /// A generation that is done.
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

    async fn run(self, asker: &Asker) -> Result<Page<GenerationStatus>, Error> {
        let id = asker.conversation(&self.conversation)?.get()?.id;
        let running = asker.tenant.running_generations(id);
        Ok(Page::whole(running))
    }
}

/// Shows where a generation is. Those that ended are remembered for a while.
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
        "Show where a generation is",
        "Where it is.",
    )
    .work(Work::Quick);

    async fn run(self, asker: &Asker) -> Result<GenerationStatus, Error> {
        asker.tenant.generation(self.generation)
    }
}

/// Asks a generation to stop. Its turn ends as aborted and keeps what was said so far.
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
        "It was asked; the end follows.",
    )
    .begins()
    .work(Work::Quick);

    async fn run(self, asker: &Asker) -> Result<GenerationStatus, Error> {
        asker.tenant.stop_generation(self.generation)
    }
}

/// A model that can be asked.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Model {
    /// What it is called here.
    pub name: String,
    /// What its server calls it.
    pub model: String,
}

/// Lists the models that can be asked.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListModels {}

impl Operation for ListModels {
    type Answer = Page<Model>;
    const ABOUT: About =
        About::new(Method::Get, Noun::Generations, "list_models", "/models", "List models", "All of them.")
            .work(Work::Quick);

    async fn run(self, asker: &Asker) -> Result<Page<Model>, Error> {
        let models = asker.tenant.models().into_iter();
        Ok(Page::whole(models.map(|(name, model)| Model { name, model }).collect()))
    }
}
