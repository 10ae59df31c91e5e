//! `everturn fork`

use crate::args::{Args, Fork};
use crate::output::{self, Failure};
use crate::{open, show};

pub fn run(args: &Args, verb: &Fork) -> Result<(), Failure> {
    let store = open::writing(args)?;
    let id = store.resolve(&verb.conversation)?;
    let fork = store.fork(id, verb.at)?;
    if args.json {
        return output::json(&fork);
    }
    output::text(show::conversation(&fork))
}
