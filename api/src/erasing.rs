//! Erasing content. Envelopes and hashes stay, so that the chain still verifies.

use crate::{About, ConversationName, Method, Noun, Operation, Requester};
use everturn_core::Error;
use everturn_core::conversation::Conversation;
use everturn_core::id::TurnId;
use everturn_core::turn::Turn;
use everturn_engine::ErasedActor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Erases the content of a turn. Its envelope and hash stay, so that the chain still verifies.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(example = json!({"reason": "asked by the customer", "by": "dpo"}))]
pub struct EraseTurn {
    /// The turn's id.
    pub turn: TurnId,
    /// Reason; kept in the log.
    pub reason: String,
    /// Person or program on whose behalf it is erased; kept in the log.
    pub by: Option<String>,
}

impl Operation for EraseTurn {
    type Answer = Turn;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::Turns,
        "erase_turn",
        "/turns/{turn}/erase",
        "Erase a turn's content",
        "What stays.",
    )
    .destructive()
    .idempotent();

    async fn run(self, requester: &Requester) -> Result<Turn, Error> {
        let tenant = &requester.tenant;
        tenant
            .conversation(tenant.conversation_of(self.turn)?)
            .erase(self.turn, self.by, &self.reason)
            .wait()?;
        tenant.turn(self.turn)
    }
}

/// Erases the content of events that are not turns: notes, pins, facts, imported lines. If an event set the
/// title, metadata or system prompt, those are unset.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(example = json!({"seqs": [7], "reason": "asked by the customer", "by": "dpo"}))]
pub struct EraseEvents {
    /// The conversation.
    pub conversation: ConversationName,
    /// `seq` of each event to erase. Turns are erased by their id.
    pub seqs: Vec<u64>,
    /// Reason; kept in the log.
    pub reason: String,
    /// Person or program on whose behalf they are erased; kept in the log.
    pub by: Option<String>,
}

impl Operation for EraseEvents {
    type Answer = Conversation;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::Events,
        "erase_events",
        "/conversations/{conversation}/events/erase",
        "Erase the content of events",
        "The conversation as it is now.",
    )
    .destructive()
    .idempotent();

    async fn run(self, requester: &Requester) -> Result<Conversation, Error> {
        let chat = requester.conversation(&self.conversation)?;
        chat.log().erase(&self.seqs, self.by, &self.reason)?;
        chat.get()
    }
}

/// Erases everything that an actor wrote, in all conversations of the tenant, with everything derived from it.
/// Takes as long as reading the log once; repeating it is harmless and completes an interrupted run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(example = json!({"actor": "ana", "reason": "asked by the customer", "by": "dpo"}))]
pub struct EraseActor {
    /// Actor whose content is erased.
    pub actor: String,
    /// Reason; kept in the log.
    pub reason: String,
    /// Person or program on whose behalf it is erased; kept in the log.
    pub by: Option<String>,
}

impl Operation for EraseActor {
    type Answer = ErasedActor;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::Events,
        "erase_actor",
        "/erase",
        "Erase everything that an actor wrote",
        "How much was erased.",
    )
    .destructive()
    .idempotent();

    async fn run(self, requester: &Requester) -> Result<ErasedActor, Error> {
        let mut progress = requester.progress();
        let mut told = |erased: &ErasedActor| progress(erased.turns + erased.events);
        requester.tenant.erase_actor(&self.actor, self.by, &self.reason, &mut told)
    }
}
