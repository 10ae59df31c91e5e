//! `everturn state`, `pin` and `unpin`

use crate::args::Args;
use crate::open;
use crate::output::{self, Failure};
use clap::Args as ClapArgs;
use everturn_api::state::{self, GetState, ResolveApproval};
use everturn_core::json::Raw;
use everturn_views::state::Approval;

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
    // Anything that is not JSON is a text, so that a word need not be quoted twice in a shell.
    let value = Raw::new(verb.value.clone()).or_else(|_| Raw::of(&verb.value))?;
    let event = store.call(state::Pin { conversation: id.into(), name: verb.name.clone(), value })?;
    if args.json { output::json(&event) } else { output::text(format!("pinned at #{}", event.seq)) }
}

pub fn unpin(args: &Args, verb: &Unpin) -> Result<(), Failure> {
    let store = open::writing(args)?;
    let id = store.resolve(&verb.conversation)?;
    let event = store.call(state::Unpin { conversation: id.into(), name: verb.name.clone() })?;
    if args.json { output::json(&event) } else { output::text(format!("unpinned at #{}", event.seq)) }
}

#[derive(ClapArgs)]
#[command(after_help = "`everturn state CONV` shows what waits for an approval.\n\n\
    Examples:\n  everturn approve @last appr-1\n  everturn deny @last appr-1")]
pub struct Resolution {
    /// Conversation: id, beginning of an id, or @last
    #[arg(value_name = "CONV")]
    conversation: String,
    /// Id of the approval
    #[arg(value_name = "APPROVAL")]
    approval: String,
}

pub fn approve(args: &Args, verb: &Resolution) -> Result<(), Failure> {
    resolve(args, verb, Approval::Approved, "approved")
}

pub fn deny(args: &Args, verb: &Resolution) -> Result<(), Failure> {
    resolve(args, verb, Approval::Denied, "denied")
}

fn resolve(args: &Args, verb: &Resolution, state: Approval, word: &str) -> Result<(), Failure> {
    let store = open::writing(args)?;
    let conversation = store.resolve(&verb.conversation)?.into();
    let event = store.call(ResolveApproval { conversation, approval: verb.approval.clone(), state })?;
    if args.json { output::json(&event) } else { output::text(format!("{word} at #{}", event.seq)) }
}
