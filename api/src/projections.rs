//! Projection: the messages of a transcript that the next request sees.

use crate::decode::split;
use crate::{About, ConversationName, Method, Noun, Operation, Page, Requester, Work};
use everturn_core::Error;
use everturn_core::json::Raw;
use everturn_engine::ConversationHandle;
use everturn_engine::script::options;
use everturn_formats::transcript;
use everturn_views::projection;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::borrow::Cow;

/// A view and the decisions behind it, byte for byte.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(with = "projection::ProjectedView<'static>")]
pub struct View(pub Raw);

/// Projects a given transcript: shows which messages the next request would see. Nothing is stored.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(example = json!({"transcript": [{"role": "user", "content": "hi"}], "options": {"policy": "clean_tool_repair"}}))]
pub struct ProjectTranscript {
    /// A list of messages, or a transcript value.
    pub transcript: Raw,
    /// The name of a policy, or options.
    pub options: Option<Value>,
}

impl Operation for ProjectTranscript {
    type Answer = View;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::Context,
        "project_transcript",
        "/project",
        "Project a transcript",
        "The view.",
    )
    .reads()
    .work(Work::Large);

    async fn run(self, _: &Requester) -> Result<View, Error> {
        let options = options(&self.options.unwrap_or(json!({})))?;
        let (messages, summary) = transcript::messages(&self.transcript)?;
        Raw::of(&projection::project(&messages, summary.as_deref(), &options)?).map(View)
    }
}

/// Options of a projection: `policy` (a name, or several), and the options of each. Without any, the conversation's
/// `policy.projection`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ProjectionOptions(pub Map<String, Value>);

impl ProjectionOptions {
    /// The options; without any, the default projection of the conversation.
    fn read(self, chat: &ConversationHandle) -> Result<projection::ViewOptions, Error> {
        if self.0.is_empty()
            && let Some(options) = chat.contexts().default_projection()?
        {
            return Ok(options);
        }
        options(&Value::Object(self.0))
    }
}

impl JsonSchema for ProjectionOptions {
    fn schema_name() -> Cow<'static, str> {
        "ProjectionOptions".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "properties": {
                "policy": {
                    "description": "`raw`, `clean_tool_repair`, `squash_failed_calls`, `summary_prefix`, `reachability_gc`, \
                                    `clear_tool_uses`, `custom`, or several of them.",
                },
                "projector": {"description": "For `custom`: the text of a script."},
            },
            "additionalProperties": true,
        })
    }
}

/// Shows which messages of a conversation the next request would see under a policy, such as without failed
/// tool calls, and how much that saves. Nothing is written.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(example = json!({"policy": "clean_tool_repair"}))]
pub struct ProjectConversation {
    /// The conversation.
    pub conversation: ConversationName,
    /// Options of the projection.
    #[serde(flatten)]
    pub options: ProjectionOptions,
}
split!(ProjectConversation { conversation: ConversationName } options);

impl Operation for ProjectConversation {
    type Answer = View;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::Context,
        "project_conversation",
        "/conversations/{conversation}/project",
        "Project a conversation",
        "The view.",
    )
    .reads()
    .work(Work::Large)
    .for_agents();

    async fn run(self, requester: &Requester) -> Result<View, Error> {
        let chat = requester.conversation(&self.conversation)?;
        let options = self.options.read(&chat)?;
        Ok(View(chat.contexts().project(&options)?.result))
    }
}

/// Projects a conversation and records the decision, for a view that will be used.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(example = json!({"policy": "clean_tool_repair"}))]
pub struct RecordProjection {
    /// The conversation.
    pub conversation: ConversationName,
    /// Options of the projection.
    #[serde(flatten)]
    pub options: ProjectionOptions,
}
split!(RecordProjection { conversation: ConversationName } options);

/// A view, and the `seq` of its record, which is only in the `Location` header.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(from = "View", into = "View")]
#[schemars(with = "View")]
pub struct RecordedView {
    /// The view.
    pub view: View,
    /// `seq` of the record.
    pub seq: u64,
}

impl From<View> for RecordedView {
    fn from(view: View) -> RecordedView {
        RecordedView { view, seq: 0 }
    }
}

impl From<RecordedView> for View {
    fn from(recorded: RecordedView) -> View {
        recorded.view
    }
}

impl Operation for RecordProjection {
    type Answer = RecordedView;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::Context,
        "record_projection",
        "/conversations/{conversation}/projections",
        "Project a conversation and record it",
        "The view; it can be rebuilt from the path in `Location`.",
    )
    .creates()
    .work(Work::Large);

    async fn run(self, requester: &Requester) -> Result<RecordedView, Error> {
        let chat = requester.conversation(&self.conversation)?;
        let options = self.options.read(&chat)?;
        let (view, event) = chat.contexts().project_turn(&options)?;
        Ok(RecordedView { view: View(view.result), seq: event.seq })
    }

    fn location(path: &str, answer: &RecordedView) -> Option<String> {
        Some(format!("{path}/{}", answer.seq))
    }
}

/// Rebuilds the messages of a recorded view, byte for byte.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplayProjection {
    /// The conversation.
    pub conversation: ConversationName,
    /// `seq` of the record.
    pub seq: u64,
}

impl Operation for ReplayProjection {
    type Answer = Page<Raw>;
    const ABOUT: About = About::new(
        Method::Get,
        Noun::Context,
        "replay_projection",
        "/conversations/{conversation}/projections/{seq}",
        "Rebuild a projection",
        "The messages.",
    )
    .work(Work::Large);

    async fn run(self, requester: &Requester) -> Result<Page<Raw>, Error> {
        requester.conversation(&self.conversation)?.contexts().replay_projection(self.seq).map(Page::whole)
    }
}
