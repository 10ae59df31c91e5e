//! `everturn fork`

use crate::args::Args;
use crate::output::{self, Failure};
use crate::{open, show};
use clap::Args as ClapArgs;
use everturn_api::conversations::ForkConversation;

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  everturn fork @last\n  everturn fork conv_01J9 --at 42 --json")]
pub struct Fork {
    /// Conversation: id, beginning of an id, or @last
    #[arg(value_name = "CONV")]
    conversation: String,
    /// seq of the last shared event; by default the newest
    #[arg(long, value_name = "SEQ")]
    at: Option<u64>,
    /// Title of the fork; by default that of the conversation, with the place of the fork
    #[arg(long)]
    title: Option<String>,
}

pub fn run(args: &Args, verb: &Fork) -> Result<(), Failure> {
    let store = open::writing(args)?;
    let id = store.resolve(&verb.conversation)?;
    let fork = store.call(ForkConversation {
        conversation: id.into(),
        at_seq: verb.at,
        title: verb.title.clone(),
        idempotency_key: None,
    })?;
    if args.json {
        return output::json(&fork);
    }
    output::text(show::conversation(&fork))
}
