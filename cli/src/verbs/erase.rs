//! `everturn erase`

use crate::args::{Args, Erase};
use crate::open;
use crate::output::{self, Failure};
use everturn_core::id::TurnId;

pub fn run(args: &Args, verb: &Erase) -> Result<(), Failure> {
    let id: TurnId = verb.turn.parse()?;
    let scope = open::writing(args)?;
    let turn = scope.turn(id)?;
    scope.erase(turn.conversation, id, verb.actor.clone(), &verb.reason).wait()?;
    if args.json {
        return output::json(&scope.turn(id)?);
    }
    output::text(format!("erased {id}; its envelope and hash stay, `everturn verify` still holds"))
}
