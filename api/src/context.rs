//! What a model call is given.

use crate::given::split;
use crate::{About, Asker, ConversationName, Method, Noun, Operation};
use everturn::script::options;
use everturn::{Context, ContextOptions, Digest, RecallRequest};
use everturn_core::Error;
use everturn_core::json::Raw;
use everturn_formats::provider::Provider;
use everturn_views::context::Sections;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// How a context is built. Everything but the budget may be left out.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ContextRequest {
    /// Most tokens. A generation may leave it out: then it is what the model takes, less the room for its answer.
    pub token_budget: Option<u64>,
    /// Most turns of the tail.
    pub last_n: Option<usize>,
    /// Whose view: these actors' turns are the assistant's, the others' the user's.
    #[serde(default)]
    pub participants: Vec<String>,
    /// How the tail is projected: a policy's name, or options.
    pub projection: Option<Value>,
    /// Which sections, and how much of the room each may fill: `{"facts": false, "recalled": {"share": 0.3}}`.
    #[schemars(with = "Option<serde_json::Map<String, Value>>")]
    pub sections: Option<Value>,
    /// Instructions for this call, after the system prompt.
    pub instructions: Option<String>,
    /// Texts of yours: a work board, a memory, a scratchpad. The most important first.
    #[serde(default)]
    pub digests: Vec<Digest>,
    /// What is asked now, as messages of any shape.
    #[serde(default)]
    pub input: Vec<Raw>,
    /// Content blocks that go with it: images, files.
    #[serde(default)]
    pub attachments: Vec<Raw>,
    /// The schemas of the tools that are sent along.
    #[serde(default)]
    pub tools: Vec<Raw>,
    /// Whose shape the messages get; `neutral` by default.
    pub provider: Option<Provider>,
    /// Which model will read it; decides how tokens are counted.
    pub model: Option<String>,
    /// What is recalled for it from further back than the tail: `{"turns": 5, "facts": 10}`.
    pub recall: Option<RecallRequest>,
    /// As it was when the log ended here.
    pub at_seq: Option<u64>,
}

impl ContextRequest {
    /// Whether it says what a generation knows better.
    pub(crate) fn says_what_follows(&self) -> bool {
        !self.input.is_empty() || self.provider.is_some() || self.model.is_some()
    }

    /// As the engine takes it.
    pub fn into_options(self) -> Result<ContextOptions, Error> {
        Ok(ContextOptions {
            last_n: self.last_n,
            participants: self.participants,
            projection: self.projection.as_ref().map(options).transpose()?,
            sections: self.sections.as_ref().map(Sections::parse).transpose()?.unwrap_or_default(),
            instructions: self.instructions,
            digests: self.digests,
            input: self.input,
            attachments: self.attachments,
            tools: self.tools,
            provider: self.provider.unwrap_or(Provider::Neutral),
            model: self.model,
            recall: self.recall,
            at_seq: self.at_seq,
            ..ContextOptions::new(self.token_budget.unwrap_or_default())
        })
    }
}

/// Builds what the next model call needs of a conversation, inside a token budget: system prompt, summary, pins and the
/// newest turns, with what it costs and what was left out. Nothing is written.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(example = json!({"token_budget": 8000, "provider": "openai-chat", "input": [{"role": "user", "content": "And then?"}]}))]
pub struct BuildContext {
    /// The conversation.
    pub conversation: ConversationName,
    /// How it is built.
    #[serde(flatten)]
    pub request: ContextRequest,
}
split!(BuildContext { conversation: ConversationName } request);

impl Operation for BuildContext {
    type Answer = Context;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::Context,
        "build_context",
        "/conversations/{conversation}/context",
        "Build a context",
        "The context.",
    )
    .reads()
    .for_agents();

    async fn run(self, asker: &Asker) -> Result<Context, Error> {
        asker.conversation(&self.conversation)?.contexts().build(&self.request.into_options()?)
    }
}

/// Builds a context and records its receipt, because it is going to be used.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(example = json!({"token_budget": 8000, "provider": "openai-chat", "input": [{"role": "user", "content": "And then?"}]}))]
pub struct RecordContext {
    /// The conversation.
    pub conversation: ConversationName,
    /// How it is built.
    #[serde(flatten)]
    pub request: ContextRequest,
}
split!(RecordContext { conversation: ConversationName } request);

/// A context, and the place of its receipt.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct RecordedContext {
    /// The context.
    #[serde(flatten)]
    pub context: Context,
    /// The place of the receipt.
    pub recorded_seq: u64,
}

impl<'de> Deserialize<'de> for RecordedContext {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<RecordedContext, D::Error> {
        #[derive(Deserialize)]
        struct Recorded {
            recorded_seq: u64,
        }
        let (Recorded { recorded_seq }, context) =
            crate::given::split_fields(deserializer, &["recorded_seq"])?;
        Ok(RecordedContext { context, recorded_seq })
    }
}

impl Operation for RecordContext {
    type Answer = RecordedContext;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::Context,
        "record_context",
        "/conversations/{conversation}/contexts",
        "Build a context and record its receipt",
        "The context, and the place of its receipt.",
    )
    .creates();

    async fn run(self, asker: &Asker) -> Result<RecordedContext, Error> {
        let chat = asker.conversation(&self.conversation)?;
        let context = chat.contexts().build(&self.request.into_options()?)?;
        let recorded_seq = chat.contexts().record(&context)?.seq;
        Ok(RecordedContext { context, recorded_seq })
    }

    fn location(path: &str, answer: &RecordedContext) -> Option<String> {
        Some(format!("{path}/{}", answer.recorded_seq))
    }
}

/// Makes a context again from its receipt, byte for byte.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplayContext {
    /// The conversation.
    pub conversation: ConversationName,
    /// The place of the receipt.
    pub seq: u64,
}

impl Operation for ReplayContext {
    type Answer = Context;
    const ABOUT: About = About::new(
        Method::Get,
        Noun::Context,
        "replay_context",
        "/conversations/{conversation}/contexts/{seq}",
        "Make a context again",
        "As the model saw it.",
    );

    async fn run(self, asker: &Asker) -> Result<Context, Error> {
        asker.conversation(&self.conversation)?.contexts().replay_at(self.seq)
    }
}
