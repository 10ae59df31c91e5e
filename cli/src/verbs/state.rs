//! `everturn state`, `pin`, `unpin` and `scratchpad`

use crate::args::Args;
use crate::client::Client;
use crate::dates;
use crate::open;
use crate::output::{self, Failure};
use clap::Args as ClapArgs;
use everturn_api::state::{self, AbandonToolCall, GetState, ResolveApproval};
use everturn_core::Error;
use everturn_core::approval::Approval;
use everturn_core::id::{ConversationId, clip};
use everturn_core::json::Raw;

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  everturn state @last\n  everturn state @last --at 42 --json | jq .pins")]
pub struct State {
    /// Conversation: id, beginning of an id, or @last
    #[arg(value_name = "CONV")]
    conversation: String,
    /// As of this seq
    #[arg(long, value_name = "SEQ")]
    at: Option<u64>,
}

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn pin @last branch release/2.1\n  \
    everturn pin @last limits '{\"files\": 3}'")]
pub struct Pin {
    /// Conversation: id, beginning of an id, or @last
    #[arg(value_name = "CONV")]
    conversation: String,
    /// Name of the pin
    #[arg(value_name = "NAME")]
    name: String,
    /// Value: JSON, or else a text
    #[arg(value_name = "VALUE")]
    value: String,
}

#[derive(ClapArgs)]
#[command(after_help = "Example:\n  everturn unpin @last branch")]
pub struct Unpin {
    /// Conversation: id, beginning of an id, or @last
    #[arg(value_name = "CONV")]
    conversation: String,
    /// Name of the pin
    #[arg(value_name = "NAME")]
    name: String,
}

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn scratchpad @last plan '{\"step\": 2, \"file\": \"src/main.rs\"}'\n  \
    everturn scratchpad @last plan --clear")]
pub struct Scratchpad {
    /// Conversation: id, beginning of an id, or @last
    #[arg(value_name = "CONV")]
    conversation: String,
    /// Name of the scratchpad
    #[arg(value_name = "NAME")]
    name: String,
    /// Value: JSON, or else a text
    #[arg(value_name = "VALUE", required_unless_present = "clear")]
    value: Option<String>,
    /// Clear it
    #[arg(long, conflicts_with = "value")]
    clear: bool,
}

pub fn run(args: &Args, verb: &State) -> Result<(), Failure> {
    let store = open::reading(args)?;
    let id = store.resolve(&verb.conversation)?;
    let state = store.call(GetState { conversation: id.into(), at: verb.at })?;
    if args.json {
        return output::json(&state);
    }
    match state.render().as_str() {
        "" => output::text("nothing is summarized, pinned or pending; `everturn pin` pins a value"),
        text => output::text(crate::show::printable_lines(text)),
    }
}

pub fn pin(args: &Args, verb: &Pin) -> Result<(), Failure> {
    let store = open::writing(args)?;
    let id = store.resolve(&verb.conversation)?;
    let value = json_or_text(&verb.value)?;
    let event = store.call(state::Pin { conversation: id.into(), name: verb.name.clone(), value })?;
    if args.json { output::json(&event) } else { output::text(format!("pinned at #{}", event.seq)) }
}

pub fn unpin(args: &Args, verb: &Unpin) -> Result<(), Failure> {
    let store = open::writing(args)?;
    let id = store.resolve(&verb.conversation)?;
    let unpin = state::Unpin { conversation: id.into(), name: verb.name.clone() };
    let event = store.call(unpin).map_err(|error| naming_state(error, id))?;
    if args.json { output::json(&event) } else { output::text(format!("unpinned at #{}", event.seq)) }
}

/// A value that is not JSON is a text, so that a word need not be quoted twice in a shell.
fn json_or_text(value: &str) -> Result<Raw, Failure> {
    Ok(Raw::new(value.to_string()).or_else(|_| Raw::of(&value))?)
}

pub fn scratchpad(args: &Args, verb: &Scratchpad) -> Result<(), Failure> {
    let store = open::writing(args)?;
    let (conversation, name) = (store.resolve(&verb.conversation)?.into(), verb.name.clone());
    let (event, word) = match &verb.value {
        Some(value) => {
            let value = json_or_text(value)?;
            (store.call(state::SetScratchpad { conversation, name, value })?, "set")
        }
        None => (store.call(state::ClearScratchpad { conversation, name })?, "cleared"),
    };
    if args.json { output::json(&event) } else { output::text(format!("{word} at #{}", event.seq)) }
}

#[derive(ClapArgs)]
#[command(
    after_help = "`everturn state CONV` shows the calls that wait. A result that comes later still counts.\n\n\
    Examples:\n  everturn abandon-call @last call_7 --reason 'the worker died'\n  everturn abandon-call @last"
)]
pub struct AbandonCall {
    /// Conversation: id, beginning of an id, or @last
    #[arg(value_name = "CONV")]
    conversation: String,
    /// Id of the call, or the name of the tool if the call has none; by default, every call that waits
    #[arg(value_name = "CALL")]
    call: Option<String>,
    /// Actor that gives it up
    #[arg(long)]
    actor: Option<String>,
    /// Reason, shown to the model
    #[arg(long)]
    reason: Option<String>,
}

pub fn abandon_call(args: &Args, verb: &AbandonCall) -> Result<(), Failure> {
    let store = open::writing(args)?;
    let conversation = store.resolve(&verb.conversation)?;
    let calls = match &verb.call {
        Some(call) => vec![call.clone()],
        None => {
            let waiting = store.call(GetState { conversation: conversation.into(), at: None })?.pending_tools;
            waiting.into_iter().map(|tool| tool.tool_call_id.unwrap_or(tool.tool_name)).collect()
        }
    };
    if calls.is_empty() {
        return output::text("no tool call waits for a result");
    }
    for call in calls {
        let (actor, reason) = (verb.actor.clone(), verb.reason.clone());
        let conversation = conversation.into();
        let event = store.call(AbandonToolCall { conversation, call: call.clone(), actor, reason })?;
        if args.json {
            output::json(&event)?;
        } else {
            output::text(format!("abandoned {} at #{}", crate::show::printable_lines(&call), event.seq))?;
        }
    }
    Ok(())
}

#[derive(ClapArgs)]
#[command(after_help = "`everturn state CONV` shows what waits for an approval.\n\n\
    Examples:\n  everturn approve @last\n  everturn approve @last appr-1\n  everturn deny @last appr-1 --actor ana --reason 'wrong recipient'")]
pub struct Resolution {
    /// Conversation: id, beginning of an id, or @last
    #[arg(value_name = "CONV")]
    conversation: String,
    /// Id of the approval; by default, the only one that waits
    #[arg(value_name = "APPROVAL")]
    approval: Option<String>,
    /// Actor that answers
    #[arg(long)]
    actor: Option<String>,
    /// Reason for the answer
    #[arg(long)]
    reason: Option<String>,
}

#[derive(ClapArgs)]
#[command(after_help = "`everturn approve` and `everturn deny` answer it.\n\n\
    Example:\n  everturn request-approval @last appr-1 --question 'Send the mail?' --deadline 2h")]
pub struct RequestApproval {
    /// Conversation: id, beginning of an id, or @last
    #[arg(value_name = "CONV")]
    conversation: String,
    /// Id of your choice
    #[arg(value_name = "APPROVAL")]
    approval: String,
    /// Question for people
    #[arg(long)]
    question: Option<String>,
    /// Name of the tool
    #[arg(long, value_name = "NAME")]
    tool_name: Option<String>,
    /// Id of the tool call that waits for it
    #[arg(long, value_name = "ID")]
    tool_call_id: Option<String>,
    /// Actor that requests it
    #[arg(long)]
    actor: Option<String>,
    /// Time at which it expires: 2h, 14:30, 2026-12-01, …
    #[arg(long, value_name = "DATE")]
    deadline: Option<String>,
}

pub fn request_approval(args: &Args, verb: &RequestApproval) -> Result<(), Failure> {
    if verb.question.is_none() && verb.approval.contains(char::is_whitespace) {
        let text = format!(
            "{:?} looks like the question; give an id of your choice before it: everturn request-approval {} ID --question TEXT",
            clip(&verb.approval),
            verb.conversation
        );
        return Err(Error::invalid("approval.question", text).into());
    }
    let deadline = verb.deadline.as_deref().map(|text| dates::deadline("--deadline", text)).transpose()?;
    let store = open::writing(args)?;
    let event = store.call(state::RequestApproval {
        conversation: store.resolve(&verb.conversation)?.into(),
        approval_id: verb.approval.clone(),
        tool_call_id: verb.tool_call_id.clone(),
        tool_name: verb.tool_name.clone(),
        question: verb.question.clone(),
        actor: verb.actor.clone(),
        deadline,
    })?;
    if args.json { output::json(&event) } else { output::text(format!("requested at #{}", event.seq)) }
}

/// The error with the command that shows the state of this conversation.
fn naming_state(error: Error, id: ConversationId) -> Error {
    error.reworded(|text| text.replace("`state`", &format!("`everturn state {id}`")))
}

/// The only pending approval.
fn only_approval(store: &Client, id: ConversationId) -> Result<String, Error> {
    let waiting = store.call(GetState { conversation: id.into(), at: None })?.pending_approvals;
    match &waiting[..] {
        [only] => Ok(only.approval_id.clone()),
        [] => Err(Error::not_found("approval.none", format!("no approval waits in {id}"))),
        several => {
            let names: Vec<String> =
                several.iter().map(|approval| crate::show::one_line(&approval.approval_id)).collect();
            let text = format!("{} approvals wait: {}; name one", several.len(), names.join(", "));
            Err(Error::invalid("approval.which", text))
        }
    }
}

pub fn approve(args: &Args, verb: &Resolution) -> Result<(), Failure> {
    resolve(args, verb, Approval::Approved, "approved")
}

pub fn deny(args: &Args, verb: &Resolution) -> Result<(), Failure> {
    resolve(args, verb, Approval::Denied, "denied")
}

fn resolve(args: &Args, verb: &Resolution, state: Approval, word: &str) -> Result<(), Failure> {
    let store = open::writing(args)?;
    let id = store.resolve(&verb.conversation)?;
    let approval = match &verb.approval {
        Some(approval) => approval.clone(),
        None => only_approval(&store, id)?,
    };
    let (actor, reason) = (verb.actor.clone(), verb.reason.clone());
    let resolve = ResolveApproval { conversation: id.into(), approval, state, actor, reason };
    let event = store.call(resolve).map_err(|error| naming_state(error, id))?;
    if args.json { output::json(&event) } else { output::text(format!("{word} at #{}", event.seq)) }
}
