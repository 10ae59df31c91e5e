//! `everturn delete`

use crate::args::{Args, Delete};
use crate::output::{self, Failure};
use crate::{open, show};

pub fn run(args: &Args, verb: &Delete) -> Result<(), Failure> {
    let scope = open::writing(args)?;
    let id = scope.resolve(&verb.conversation)?;
    let tombstone = scope.delete(id, &verb.reason).wait()?;
    if args.json {
        return output::json(&tombstone);
    }
    output::text(format!(
        "deleted {id}; what stays: {}, head {}",
        show::count(tombstone.head.seq, "event"),
        tombstone.head.hash
    ))
}
