//! `everturn delete`

use crate::args::Args;
use crate::output::{self, Failure};
use crate::{open, show};
use clap::Args as ClapArgs;
use everturn_api::conversations::DeleteConversation;

#[derive(ClapArgs)]
#[command(after_help = "Example:\n  everturn delete conv_01J9… --reason 'test data'")]
pub struct Delete {
    /// Conversation: id, beginning of an id, or @last
    #[arg(value_name = "CONV")]
    conversation: String,
    /// Reason; kept in the tombstone
    #[arg(long)]
    reason: String,
}

pub fn run(args: &Args, verb: &Delete) -> Result<(), Failure> {
    let store = open::writing(args)?;
    let id = store.resolve(&verb.conversation)?;
    let tombstone =
        store.call(DeleteConversation { conversation: id.into(), reason: Some(verb.reason.clone()) })?;
    if args.json {
        return output::json(&tombstone);
    }
    output::text(format!(
        "deleted {id}; what stays: {}, head {}",
        show::count(tombstone.head.seq, "event"),
        tombstone.head.hash
    ))
}
