//! Facts learned from conversations.

use crate::decode::split;
use crate::{About, ConversationName, Method, Noun, Operation, Page, Requester};
use everturn_core::Error;
use everturn_core::fact::Fact;
use everturn_core::id::FactId;
use everturn_engine::{ConversationHandle, Correction, ExtractOptions, Extraction, FactQuery, NewFact};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Lists the facts of a conversation, in the order in which they were recorded, including those that a fork
/// inherited: subject, predicate, object, confidence, and the supporting turns. `recall` searches facts by
/// subject.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ListFacts {
    /// The conversation.
    pub conversation: ConversationName,
    /// Filter.
    #[serde(flatten)]
    pub query: FactQuery,
}
split!(ListFacts { conversation: ConversationName } query);

impl Operation for ListFacts {
    type Answer = Page<Fact>;
    const ABOUT: About = About::new(
        Method::Get,
        Noun::Facts,
        "list_facts",
        "/conversations/{conversation}/facts",
        "List facts",
        "A page; `next` is the next page's `after`.",
    )
    .for_agents();

    async fn run(self, requester: &Requester) -> Result<Page<Fact>, Error> {
        Ok(requester.conversation(&self.conversation)?.facts().list(self.query)?.into())
    }
}

/// Adds a fact to a conversation. A known fact is not added twice; a fact with another object for the same
/// subject and predicate supersedes the older one, which stays readable.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(example = json!({"subject": "Ana", "predicate": "prefers", "object": "window seats", "by": "ana"}))]
pub struct AddFact {
    /// The conversation.
    pub conversation: ConversationName,
    /// The fact.
    #[serde(flatten)]
    pub new: NewFact,
}
split!(AddFact { conversation: ConversationName } new);

impl Operation for AddFact {
    type Answer = Fact;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::Facts,
        "add_fact",
        "/conversations/{conversation}/facts",
        "Add a fact",
        "The fact as it is now.",
    )
    .creates()
    .idempotent()
    .for_agents();

    async fn run(self, requester: &Requester) -> Result<Fact, Error> {
        requester.conversation(&self.conversation)?.facts().add(self.new)
    }
}

/// Has a model read turns, and stores the facts that they support.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(example = json!({"from": 1}))]
pub struct ExtractFacts {
    /// The conversation.
    pub conversation: ConversationName,
    /// Turns to read.
    #[serde(flatten)]
    pub options: ExtractOptions,
}
split!(ExtractFacts { conversation: ConversationName } options);

impl Operation for ExtractFacts {
    type Answer = Extraction;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::Facts,
        "extract_facts",
        "/conversations/{conversation}/facts/extract",
        "Extract facts with a model",
        "The facts that were stored, and the number dropped, by reason.",
    )
    .asks_model();

    async fn run(self, requester: &Requester) -> Result<Extraction, Error> {
        requester.conversation(&self.conversation)?.facts().extract(self.options)
    }
}

/// Reads a fact.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetFact {
    /// The fact's id.
    pub fact: FactId,
}

impl Operation for GetFact {
    type Answer = Fact;
    const ABOUT: About = About::new(
        Method::Get,
        Noun::Facts,
        "get_fact",
        "/facts/{fact}",
        "Read a fact",
        "The fact as it is now.",
    );

    async fn run(self, requester: &Requester) -> Result<Fact, Error> {
        requester.tenant.fact(self.fact)
    }
}

/// The conversation that a request names, or the one that a fact was learned in.
fn home(
    requester: &Requester,
    fact: FactId,
    named: Option<&ConversationName>,
) -> Result<ConversationHandle, Error> {
    match named {
        Some(name) => requester.conversation(name),
        None => Ok(requester.tenant.conversation(requester.tenant.fact_home(fact)?)),
    }
}

/// Corrects a fact: a new one supersedes it, and the old one stays readable.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(example = json!({"object": "aisle seats", "by": "ana"}))]
pub struct CorrectFact {
    /// The fact's id.
    pub fact: FactId,
    /// Conversation to write to, for a fact that a fork inherited; by default the one that it was learned in.
    pub conversation: Option<ConversationName>,
    /// Changed fields.
    #[serde(flatten)]
    pub correction: Correction,
}
split!(CorrectFact { fact: FactId, conversation: Option<ConversationName> } correction);

impl Operation for CorrectFact {
    type Answer = Fact;
    const ABOUT: About = About::new(
        Method::Patch,
        Noun::Facts,
        "correct_fact",
        "/facts/{fact}",
        "Correct a fact",
        "The fact that supersedes it.",
    );

    async fn run(self, requester: &Requester) -> Result<Fact, Error> {
        let chat = home(requester, self.fact, self.conversation.as_ref())?;
        chat.facts().correct(self.fact, self.correction)
    }
}

/// Retracts a fact. It is returned only on request; erasing its turns removes its text.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RetractFact {
    /// The fact's id.
    pub fact: FactId,
    /// Conversation to write to, for a fact that a fork inherited; by default the one that it was learned in.
    pub conversation: Option<ConversationName>,
    /// Actor that retracts it.
    pub by: Option<String>,
    /// Reason.
    pub reason: Option<String>,
}

impl Operation for RetractFact {
    type Answer = Fact;
    const ABOUT: About = About::new(
        Method::Delete,
        Noun::Facts,
        "retract_fact",
        "/facts/{fact}",
        "Retract a fact",
        "The fact, retracted.",
    );

    async fn run(self, requester: &Requester) -> Result<Fact, Error> {
        let chat = home(requester, self.fact, self.conversation.as_ref())?;
        chat.facts().retract(self.fact, self.by, self.reason)
    }
}
