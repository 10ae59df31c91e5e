//! Compaction: older turns are replaced by a checkpoint.

use crate::conversations::version;
use crate::decode::split;
use crate::{About, ConversationName, Method, Noun, Operation, Requester};
use everturn_core::Error;
use everturn_core::conversation::Conversation;
use everturn_engine::{CompactOptions, Compacted, Summary};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Summarizes the oldest turns of a conversation into a checkpoint that contexts use instead. Nothing is
/// removed: the history keeps every turn, unless the conversation's retention asks for its content to be
/// erased. Refused if the checkpoint would be no shorter than what it replaces.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(example = json!({"keep_last": 1, "extractive": true}))]
pub struct Compact {
    /// The conversation.
    pub conversation: ConversationName,
    /// Options.
    #[serde(flatten)]
    pub options: CompactOptions,
}
split!(Compact { conversation: ConversationName } options);

impl Operation for Compact {
    type Answer = Compacted;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::Context,
        "compact",
        "/conversations/{conversation}/compact",
        "Compact a conversation",
        "The compaction that was made, or would be made.",
    )
    .asks_model()
    .for_agents();

    async fn run(self, requester: &Requester) -> Result<Compacted, Error> {
        requester.conversation(&self.conversation)?.compaction().compact(self.options)
    }
}

/// Reverts the last compaction.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RevertCompaction {
    /// The conversation.
    pub conversation: ConversationName,
}

impl Operation for RevertCompaction {
    type Answer = Conversation;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::Context,
        "revert_compaction",
        "/conversations/{conversation}/compact/revert",
        "Revert the last compaction",
        "The conversation, with the previous checkpoint in force.",
    );

    async fn run(self, requester: &Requester) -> Result<Conversation, Error> {
        requester.conversation(&self.conversation)?.compaction().revert()
    }

    fn tag(answer: &Conversation) -> Option<String> {
        Some(version(answer))
    }
}

/// Summarizes a part of a conversation. Nothing is written.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(example = json!({"style": "three sentences"}))]
pub struct Summarize {
    /// The conversation.
    pub conversation: ConversationName,
    /// First `seq`; by default the beginning.
    pub from_seq: Option<u64>,
    /// Last `seq`; by default the end.
    pub to_seq: Option<u64>,
    /// Additional instructions for the model.
    pub style: Option<String>,
}

impl Operation for Summarize {
    type Answer = Summary;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::Context,
        "summarize",
        "/conversations/{conversation}/summarize",
        "Summarize a part of a conversation",
        "The summary.",
    )
    .asks_model()
    .reads()
    .for_agents();

    async fn run(self, requester: &Requester) -> Result<Summary, Error> {
        let chat = requester.conversation(&self.conversation)?;
        let to_seq = match self.to_seq {
            Some(seq) => seq,
            None => chat.get()?.head.seq,
        };
        chat.compaction().summarize(self.from_seq.unwrap_or(1), to_seq, self.style.as_deref())
    }
}
