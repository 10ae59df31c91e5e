//! `everturn fork`

use crate::args::{Args, Fork};
use crate::output::{self, Failure};
use crate::{open, show};

pub fn run(args: &Args, verb: &Fork) -> Result<(), Failure> {
    let scope = open::writing(args)?;
    let id = scope.resolve(&verb.conversation)?;
    let at = match verb.at {
        Some(seq) => seq,
        None => scope.get(id)?.head.seq,
    };
    let fork = scope.fork(id, at).wait()?;
    if args.json {
        return output::json(&scope.get(fork.id)?);
    }
    output::text(show::conversation(&fork))
}
