//! What a conversation needs to go on: checkpoint, pins, what is pending.

use crate::{About, Asker, ConversationName, Method, Noun, Operation, Work};
use everturn::Tenant;
use everturn_core::Error;
use everturn_core::event::Event;
use everturn_core::id::clip;
use everturn_core::json::Raw;
use everturn_views::state::{Approval, ApprovalBody, State};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Reads what a conversation needs to go on: its checkpoint, its pins, and what is pending.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetState {
    /// The conversation.
    pub conversation: ConversationName,
    /// As it was when the log ended here.
    pub at: Option<u64>,
}

impl Operation for GetState {
    type Answer = State;
    const ABOUT: About = About::new(
        Method::Get,
        Noun::State,
        "get_state",
        "/conversations/{conversation}/state",
        "Read what a conversation needs to go on",
        "The state.",
    )
    .for_agents();

    async fn run(self, asker: &Asker) -> Result<State, Error> {
        let chat = asker.conversation(&self.conversation)?;
        match self.at {
            Some(seq) => chat.state().at(seq),
            None => chat.state().read(),
        }
    }
}

/// Pins a truth: every prompt says it until it is unpinned, whatever is summarized.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(example = json!({"value": "Answer in Portuguese."}))]
pub struct Pin {
    /// The conversation.
    pub conversation: ConversationName,
    /// What the truth is called.
    #[schemars(example = &"language")]
    pub name: String,
    /// The truth: a text, or any JSON of up to 4 KiB.
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

    async fn run(self, asker: &Asker) -> Result<Event, Error> {
        let pin =
            move |tenant: &Tenant| Ok(self.conversation.find(tenant)?.state().pin(&self.name, self.value));
        asker.writing(pin).await
    }
}

/// Takes a pin away.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Unpin {
    /// The conversation.
    pub conversation: ConversationName,
    /// What the truth is called.
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
        "Take a pin away",
        "The event that took it away.",
    )
    .work(Work::Quick)
    .for_agents();

    async fn run(self, asker: &Asker) -> Result<Event, Error> {
        let unpin = move |tenant: &Tenant| {
            let chat = self.conversation.find(tenant)?;
            if !chat.state().read()?.pins.contains_key(&self.name) {
                let text = format!("nothing is pinned as {:?}; the state shows the pins", clip(&self.name));
                return Err(Error::not_found("pin.absent", text));
            }
            Ok(chat.state().unpin(&self.name))
        };
        asker.writing(unpin).await
    }
}

/// Asks for an approval: a question that somebody must answer before work goes on.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(example = json!({"approval_id": "appr-2", "tool_call_id": "call_7", "tool_name": "send_mail", "question": "Send it?"}))]
pub struct RequestApproval {
    /// The conversation.
    pub conversation: ConversationName,
    /// Pairs question and answer.
    pub approval_id: String,
    /// The call that waits for it.
    pub tool_call_id: Option<String>,
    /// Its tool.
    pub tool_name: Option<String>,
    /// For people.
    pub question: Option<String>,
}

impl Operation for RequestApproval {
    type Answer = Event;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::State,
        "request_approval",
        "/conversations/{conversation}/approvals",
        "Ask for an approval",
        "The event that asks.",
    )
    .creates()
    .work(Work::Quick);

    async fn run(self, asker: &Asker) -> Result<Event, Error> {
        let ask = move |tenant: &Tenant| {
            let request = ApprovalBody {
                approval_id: self.approval_id,
                tool_call_id: self.tool_call_id,
                tool_name: self.tool_name,
                question: self.question,
                state: None,
            };
            Ok(self.conversation.find(tenant)?.state().request_approval(request))
        };
        asker.writing(ask).await
    }
}

/// Answers an approval.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(example = json!({"state": "approved"}))]
pub struct ResolveApproval {
    /// The conversation.
    pub conversation: ConversationName,
    /// The approval's id.
    pub approval: String,
    /// `approved`, `denied`, `cancelled` or `expired`.
    pub state: Approval,
}

impl Operation for ResolveApproval {
    type Answer = Event;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::State,
        "resolve_approval",
        "/conversations/{conversation}/approvals/{approval}/resolve",
        "Answer an approval",
        "The event that answers.",
    )
    .work(Work::Quick);

    async fn run(self, asker: &Asker) -> Result<Event, Error> {
        let resolve = move |tenant: &Tenant| {
            let (chat, approval) = (self.conversation.find(tenant)?, &self.approval);
            if !chat.state().read()?.pending_approvals.iter().any(|pending| pending.approval_id == *approval)
            {
                let text = format!("no approval {:?} waits; the state shows what does", clip(approval));
                return Err(Error::not_found("approval.absent", text));
            }
            Ok(chat.state().resolve_approval(approval, self.state))
        };
        asker.writing(resolve).await
    }
}
