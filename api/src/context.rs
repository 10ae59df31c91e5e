//! Context of a model call.

use crate::decode::{messages, messages_schema, split};
use crate::{About, ConversationName, Method, Noun, Operation, Requester};
use everturn_core::Error;
use everturn_core::json::Raw;
use everturn_engine::script::options;
use everturn_engine::{Context, ContextOptions, Digest, RecallRequest};
use everturn_formats::provider::Provider;
use everturn_views::context::Sections;
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Options of a context. Everything but the budget may be left out.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ContextRequest {
    /// Maximum number of tokens. Optional for a generation: by default the model's limit, less the room for its
    /// reply.
    pub token_budget: Option<u64>,
    /// Maximum number of turns in the tail.
    pub last_n: Option<usize>,
    /// Point of view: turns of these actors are the assistant's, those of others the user's. Their private turns are in the
    /// prompt; a key that is bound to actors can name these only.
    #[serde(default)]
    pub participants: Vec<String>,
    /// Projection of the tail: the name of a policy, or options.
    pub projection: Option<Value>,
    /// Sections to include, and the share of the room that each may fill: `{"facts": false, "recalled":
    /// {"share": 0.3}}`.
    #[schemars(with = "Option<serde_json::Map<String, Value>>")]
    pub sections: Option<Value>,
    /// Instructions for this call, after the system prompt.
    pub instructions: Option<String>,
    /// Additional texts: a work board, a memory, a scratchpad. The most important first.
    #[serde(default)]
    pub digests: Vec<Digest>,
    /// New input: a text, or messages of any shape.
    #[serde(default, deserialize_with = "messages")]
    #[schemars(schema_with = "messages_schema::<Raw>")]
    pub input: Vec<Raw>,
    /// Content blocks of the input: images, files.
    #[serde(default)]
    pub attachments: Vec<Raw>,
    /// Schemas of the tools that are sent along.
    #[serde(default)]
    pub tools: Vec<Raw>,
    /// Provider whose message shape to use; `neutral` by default.
    pub provider: Option<Provider>,
    /// Model that will read it; determines how tokens are counted.
    pub model: Option<String>,
    /// Turns and facts to recall from before the tail: `{"turns": 5, "facts": 10}`.
    pub recall: Option<RecallRequest>,
    /// As of this `seq`.
    pub at_seq: Option<u64>,
}

fn requires_budget(schema: &mut Schema) {
    let required = schema.ensure_object().entry("required").or_insert_with(|| json!([]));
    if let Some(names) = required.as_array_mut() {
        names.push("token_budget".into());
    }
}

impl ContextRequest {
    /// The request of a context that no model determines the budget of.
    fn with_budget(self) -> Result<ContextOptions, Error> {
        if self.token_budget.is_none() {
            let text = "token_budget is missing; give the most tokens that the prompt may have";
            return Err(Error::invalid("context.token_budget", text));
        }
        self.into_options()
    }

    /// Whether it sets a field that a generation determines itself.
    pub(crate) fn says_what_follows(&self) -> bool {
        !self.input.is_empty() || self.provider.is_some() || self.model.is_some()
    }

    /// Converts it to the engine's options.
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

/// Builds the context of the next model call of a conversation, inside a token budget: system prompt, summary,
/// pins and the newest turns, with token counts and what was left out. Nothing is written.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(transform = requires_budget)]
#[schemars(example = json!({"token_budget": 8000, "provider": "openai-chat", "input": [{"role": "user", "content": "And then?"}]}))]
pub struct BuildContext {
    /// The conversation.
    pub conversation: ConversationName,
    /// Options of the context.
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

    async fn run(self, requester: &Requester) -> Result<Context, Error> {
        requester.conversation(&self.conversation)?.contexts().build(&self.request.with_budget()?)
    }
}

/// Builds a context and records its receipt, for a context that will be used.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(transform = requires_budget)]
#[schemars(example = json!({"token_budget": 8000, "provider": "openai-chat", "input": [{"role": "user", "content": "And then?"}]}))]
pub struct RecordContext {
    /// The conversation.
    pub conversation: ConversationName,
    /// Options of the context.
    #[serde(flatten)]
    pub request: ContextRequest,
}
split!(RecordContext { conversation: ConversationName } request);

/// A context, and the `seq` of its receipt.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct RecordedContext {
    /// The context.
    #[serde(flatten)]
    pub context: Context,
    /// `seq` of the receipt.
    pub recorded_seq: u64,
}

impl<'de> Deserialize<'de> for RecordedContext {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<RecordedContext, D::Error> {
        #[derive(Deserialize)]
        struct Recorded {
            recorded_seq: u64,
        }
        let (Recorded { recorded_seq }, context) =
            crate::decode::split_fields(deserializer, &["recorded_seq"])?;
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
        "The context, and the `seq` of its receipt.",
    )
    .creates();

    async fn run(self, requester: &Requester) -> Result<RecordedContext, Error> {
        let chat = requester.conversation(&self.conversation)?;
        let context = chat.contexts().build(&self.request.with_budget()?)?;
        let recorded_seq = chat.contexts().record(&context)?.seq;
        Ok(RecordedContext { context, recorded_seq })
    }

    fn location(path: &str, answer: &RecordedContext) -> Option<String> {
        Some(format!("{path}/{}", answer.recorded_seq))
    }
}

/// Rebuilds a context from its receipt, byte for byte.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplayContext {
    /// The conversation.
    pub conversation: ConversationName,
    /// `seq` of the receipt.
    pub seq: u64,
}

impl Operation for ReplayContext {
    type Answer = Context;
    const ABOUT: About = About::new(
        Method::Get,
        Noun::Context,
        "replay_context",
        "/conversations/{conversation}/contexts/{seq}",
        "Rebuild a context",
        "The context as the model saw it.",
    );

    async fn run(self, requester: &Requester) -> Result<Context, Error> {
        requester.conversation(&self.conversation)?.contexts().replay_at(self.seq)
    }
}
