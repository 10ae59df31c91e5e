//! `everturn delete`

use crate::args::Args;
use crate::output::{self, Failure};
use crate::{open, show};
use clap::Args as ClapArgs;
use everturn_api::conversations::{DeleteConversation, GetConversation};
use std::io::IsTerminal;

#[derive(ClapArgs)]
#[command(after_help = "Example:\n  everturn delete conv_01J9… --reason 'test data'")]
pub struct Delete {
    /// Conversation: id, beginning of an id, or @last
    #[arg(value_name = "CONV")]
    conversation: String,
    /// Reason; kept in the tombstone
    #[arg(long)]
    reason: String,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
}

pub fn run(args: &Args, verb: &Delete) -> Result<(), Failure> {
    let store = open::writing(args)?;
    let id = store.resolve(&verb.conversation)?;
    if !verb.yes && std::io::stdin().is_terminal() {
        let conversation = store.call(GetConversation { conversation: id.into() })?;
        let title = show::title(&conversation);
        let turns = show::count(conversation.turns, "turn");
        if !confirmed(&format!("delete {id}, {:?}, {turns}?", show::one_line(title)))? {
            eprintln!("nothing was deleted");
            return Err(Failure::Reported);
        }
    }
    let tombstone =
        store.call(DeleteConversation { conversation: id.into(), reason: Some(verb.reason.clone()) })?;
    if args.json {
        return output::json(&tombstone);
    }
    output::text(format!(
        "deleted {id} and its {}; a tombstone with the last hash stays: {}",
        show::count(tombstone.head.seq, "event"),
        tombstone.head.hash
    ))
}

/// Asks on the terminal.
fn confirmed(question: &str) -> Result<bool, Failure> {
    eprint!("{question} [y/N] ");
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
