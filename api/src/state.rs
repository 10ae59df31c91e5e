//! State of a conversation: checkpoint, pins, pending items.

use crate::{About, ConversationName, Method, Noun, Operation, Requester, Work};
use everturn_core::Error;
use everturn_core::approval::{Approval, ApprovalBody};
use everturn_core::event::Event;
use everturn_core::id::clip;
use everturn_core::json::Raw;
use everturn_core::time::Timestamp;
use everturn_engine::{ApprovalOutcome, Tenant};
use everturn_views::state::State;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Reads the minimum that a conversation needs to continue: its checkpoint, pins, and pending items.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetState {
    /// The conversation.
    pub conversation: ConversationName,
    /// As of this `seq`.
    pub at: Option<u64>,
}

impl Operation for GetState {
    type Answer = State;
    const ABOUT: About = About::new(
        Method::Get,
        Noun::State,
        "get_state",
        "/conversations/{conversation}/state",
        "Read the state of a conversation",
        "The state.",
    )
    .for_agents();

    async fn run(self, requester: &Requester) -> Result<State, Error> {
        let chat = requester.conversation(&self.conversation)?;
        match self.at {
            Some(seq) => chat.state().at(seq),
            None => chat.state().read(),
        }
    }
}

/// Pins a value: every prompt contains it until it is unpinned, whatever is summarized.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(example = json!({"value": "Answer in Portuguese."}))]
pub struct Pin {
    /// The conversation.
    pub conversation: ConversationName,
    /// Name of the pin.
    #[schemars(example = &"language")]
    pub name: String,
    /// Value: a text, or any JSON of up to 4 KiB.
    pub value: Raw,
}

impl Operation for Pin {
    type Answer = Event;
    const ABOUT: About = About::new(
        Method::Put,
        Noun::State,
        "pin",
        "/conversations/{conversation}/pins/{name}",
        "Pin a truth",
        "The event that pinned it.",
    )
    .work(Work::Quick)
    .for_agents();

    async fn run(self, requester: &Requester) -> Result<Event, Error> {
        let pin =
            move |tenant: &Tenant| Ok(self.conversation.find(tenant)?.state().pin(&self.name, self.value));
        requester.writing(pin).await
    }
}

/// Removes a pin.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Unpin {
    /// The conversation.
    pub conversation: ConversationName,
    /// Name of the pin.
    #[schemars(example = &"language")]
    pub name: String,
}

impl Operation for Unpin {
    type Answer = Event;
    const ABOUT: About = About::new(
        Method::Delete,
        Noun::State,
        "unpin",
        "/conversations/{conversation}/pins/{name}",
        "Remove a pin",
        "The event that removed it.",
    )
    .work(Work::Quick)
    .for_agents();

    async fn run(self, requester: &Requester) -> Result<Event, Error> {
        let unpin = move |tenant: &Tenant| {
            let chat = self.conversation.find(tenant)?;
            if !chat.state().read()?.pins.contains_key(&self.name) {
                let text = format!("nothing is pinned as {:?}; `state` shows the pins", clip(&self.name));
                return Err(Error::not_found("pin.absent", text));
            }
            Ok(chat.state().unpin(&self.name))
        };
        requester.writing(unpin).await
    }
}

/// Sets a scratchpad, the working memory of an agent: every prompt contains it until it is cleared, and projections with
/// `reachability_gc` keep the tool results that it names.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(example = json!({"value": {"step": 2, "file": "src/main.rs"}}))]
pub struct SetScratchpad {
    /// The conversation.
    pub conversation: ConversationName,
    /// Name of the scratchpad.
    #[schemars(example = &"plan")]
    pub name: String,
    /// Value: a text, or any JSON of up to 16 KiB.
    pub value: Raw,
}

impl Operation for SetScratchpad {
    type Answer = Event;
    const ABOUT: About = About::new(
        Method::Put,
        Noun::State,
        "set_scratchpad",
        "/conversations/{conversation}/scratchpads/{name}",
        "Set a scratchpad",
        "The event that set it; its `seq` is the version of the scratchpad.",
    )
    .work(Work::Quick);

    async fn run(self, requester: &Requester) -> Result<Event, Error> {
        let set = move |tenant: &Tenant| {
            Ok(self.conversation.find(tenant)?.state().set_scratchpad(&self.name, self.value))
        };
        requester.writing(set).await
    }
}

/// Clears a scratchpad.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClearScratchpad {
    /// The conversation.
    pub conversation: ConversationName,
    /// Name of the scratchpad.
    #[schemars(example = &"plan")]
    pub name: String,
}

impl Operation for ClearScratchpad {
    type Answer = Event;
    const ABOUT: About = About::new(
        Method::Delete,
        Noun::State,
        "clear_scratchpad",
        "/conversations/{conversation}/scratchpads/{name}",
        "Clear a scratchpad",
        "The event that cleared it.",
    )
    .work(Work::Quick);

    async fn run(self, requester: &Requester) -> Result<Event, Error> {
        let clear = move |tenant: &Tenant| {
            let chat = self.conversation.find(tenant)?;
            if !chat.state().read()?.scratchpads.contains_key(&self.name) {
                let text = format!("there is no scratchpad {:?}; `state` shows them", clip(&self.name));
                return Err(Error::not_found("scratchpad.absent", text));
            }
            Ok(chat.state().clear_scratchpad(&self.name))
        };
        requester.writing(clear).await
    }
}

/// Requests an approval: a question that must be answered before work continues.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(example = json!({"approval_id": "appr-2", "tool_call_id": "call_7", "tool_name": "send_mail", "question": "Send it?"}))]
pub struct RequestApproval {
    /// The conversation.
    pub conversation: ConversationName,
    /// Id that pairs request and answer.
    pub approval_id: String,
    /// Id of the call that waits for it.
    pub tool_call_id: Option<String>,
    /// Name of the tool.
    pub tool_name: Option<String>,
    /// Question for people.
    pub question: Option<String>,
    /// Actor that requests it.
    pub actor: Option<String>,
    /// Time at which it expires.
    pub deadline: Option<Timestamp>,
}

impl Operation for RequestApproval {
    type Answer = Event;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::State,
        "request_approval",
        "/conversations/{conversation}/approvals",
        "Request an approval",
        "The event that requests it.",
    )
    .creates()
    .work(Work::Quick);

    async fn run(self, requester: &Requester) -> Result<Event, Error> {
        let ask = move |tenant: &Tenant| {
            let request = ApprovalBody {
                approval_id: self.approval_id,
                tool_call_id: self.tool_call_id,
                tool_name: self.tool_name,
                question: self.question,
                deadline: self.deadline,
                ..ApprovalBody::default()
            };
            Ok(self.conversation.find(tenant)?.state().request_approval(request, self.actor))
        };
        requester.writing(ask).await
    }
}

/// Gives up a tool call that will not get a result: it is no longer pending and holds no compaction back, and prompts
/// contain a result that says so. A result that comes later counts.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(example = json!({"reason": "the worker died"}))]
pub struct AbandonToolCall {
    /// The conversation.
    pub conversation: ConversationName,
    /// Id of the call; the name of the tool if the call has none.
    #[schemars(example = &"call_7")]
    pub call: String,
    /// Actor that gives it up.
    pub actor: Option<String>,
    /// Reason, shown to the model.
    pub reason: Option<String>,
}

impl Operation for AbandonToolCall {
    type Answer = Event;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::State,
        "abandon_tool_call",
        "/conversations/{conversation}/tool-calls/{call}/abandon",
        "Give up a tool call",
        "The event that gives it up.",
    );

    async fn run(self, requester: &Requester) -> Result<Event, Error> {
        let chat = requester.conversation(&self.conversation)?;
        chat.state().abandon_tool(&self.call, self.actor, self.reason.as_deref())
    }
}

/// Answers an approval. Each has one outcome: of two answers, the first counts, and the other is a conflict that names it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(example = json!({"state": "approved", "actor": "ana", "reason": "checked the recipients"}))]
pub struct ResolveApproval {
    /// The conversation.
    pub conversation: ConversationName,
    /// The approval's id.
    pub approval: String,
    /// `approved`, `denied` or `cancelled`; `expired` only once its deadline has passed.
    pub state: Approval,
    /// Actor that answers.
    pub actor: Option<String>,
    /// Reason for the answer.
    pub reason: Option<String>,
}

impl Operation for ResolveApproval {
    type Answer = Event;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::State,
        "resolve_approval",
        "/conversations/{conversation}/approvals/{approval}/resolve",
        "Answer an approval",
        "The event that resolves it.",
    )
    .work(Work::Quick);

    async fn run(self, requester: &Requester) -> Result<Event, Error> {
        let resolve = move |tenant: &Tenant| {
            let chat = self.conversation.find(tenant)?;
            let ResolveApproval { approval: approval_id, state, actor, reason, .. } = self;
            Ok(chat.state().resolve_approval(ApprovalOutcome { approval_id, state, actor, reason }))
        };
        requester.writing(resolve).await
    }
}
