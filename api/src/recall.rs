//! Recall: search over turns and facts.

use crate::decode::split;
use crate::{About, ConversationName, Method, Noun, Operation, Requester};
use everturn_core::Error;
use everturn_engine::{RecallOptions, Recalled};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

/// Searches turns and facts, lexically and by embedding, best first: a snippet, its actor, time and location.
///
/// Searches all conversations, or one; a fork includes what it inherited. Erased, deleted and retracted content
/// is not found. To read more around a hit, list the turns before and after its `seq`.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(example = json!({"query": "which port did we choose", "limit": 5}))]
pub struct Recall {
    /// Query in any words: a question, names, `"a phrase"`, `prefix*`.
    pub query: String,
    /// Only in this conversation, inherited turns included.
    pub conversation: Option<ConversationName>,
    /// Filters and options.
    #[serde(flatten)]
    pub options: RecallOptions,
}
split!(Recall { query: String, conversation: Option<ConversationName> } options);

impl Operation for Recall {
    type Answer = Recalled;
    const ABOUT: About =
        About::new(Method::Post, Noun::Recall, "recall", "/recall", "Search turns and facts", "The hits.")
            .also("recall_in", "/conversations/{conversation}/recall")
            .reads()
            .for_agents();

    async fn run(self, requester: &Requester) -> Result<Recalled, Error> {
        let conversation = self.conversation.as_ref().map(|name| requester.conversation(name)).transpose()?;
        let options = RecallOptions { conversation: conversation.map(|chat| chat.id()), ..self.options };
        requester.tenant.recall(&self.query, &options)
    }
}
