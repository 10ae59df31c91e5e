//! `everturn erase`

use crate::args::Args;
use crate::open;
use crate::output::{self, Failure};
use clap::Args as ClapArgs;
use everturn_core::id::TurnId;

#[derive(ClapArgs)]
#[command(after_help = "Example:\n  everturn erase turn_01J9… --reason 'asked by the customer' --actor dpo")]
pub struct Erase {
    /// The turn's id
    #[arg(value_name = "TURN")]
    turn: String,
    /// Why; kept in the log
    #[arg(long)]
    reason: String,
    /// On whose behalf; kept in the log
    #[arg(long)]
    actor: Option<String>,
}

pub fn run(args: &Args, verb: &Erase) -> Result<(), Failure> {
    let id: TurnId = verb.turn.parse()?;
    let erased = open::writing(args)?.erase(id, verb.actor.clone(), &verb.reason)?;
    if args.json {
        return output::json(&erased);
    }
    output::text(format!("erased {id}; its envelope and hash stay, `everturn verify` still holds"))
}
