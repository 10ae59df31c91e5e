//! Recall: finding again what was said and learned.

use crate::given::split;
use crate::{About, Asker, ConversationName, Method, Noun, Operation};
use everturn::{RecallOptions, Recalled};
use everturn_core::Error;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

/// Finds what was said or learned before, by words and by meaning, best first: a snippet, who said it, when and where.
///
/// In all conversations, or in one; in a fork with what it inherited. What was erased, deleted or taken back is not found.
/// To read more around a hit, list the turns before and after its `seq`.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(example = json!({"query": "which port did we choose", "limit": 5}))]
pub struct Recall {
    /// What to look for, in any words: a question, names, `"a phrase"`, `begin*`.
    pub query: String,
    /// Only in this conversation and in what it inherited.
    pub conversation: Option<ConversationName>,
    /// Where to look, and how.
    #[serde(flatten)]
    pub options: RecallOptions,
}
split!(Recall { query: String, conversation: Option<ConversationName> } options);

impl Operation for Recall {
    type Answer = Recalled;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::Recall,
        "recall",
        "/recall",
        "Recall what was said",
        "What was found.",
    )
    .also("recall_in", "/conversations/{conversation}/recall")
    .reads()
    .for_agents();

    async fn run(self, asker: &Asker) -> Result<Recalled, Error> {
        let conversation = self.conversation.as_ref().map(|name| asker.conversation(name)).transpose()?;
        let options = RecallOptions { conversation: conversation.map(|chat| chat.id()), ..self.options };
        asker.tenant.recall(&self.query, &options)
    }
}
