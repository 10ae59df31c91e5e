//! `everturn erase`

use crate::args::{Args, Erase};
use crate::open;
use crate::output::{self, Failure};
use everturn_core::id::TurnId;

pub fn run(args: &Args, verb: &Erase) -> Result<(), Failure> {
    let id: TurnId = verb.turn.parse()?;
    let erased = open::writing(args)?.erase(id, verb.actor.clone(), &verb.reason)?;
    if args.json {
        return output::json(&erased);
    }
    output::text(format!("erased {id}; its envelope and hash stay, `everturn verify` still holds"))
}
