//! `everturn delete`

use crate::args::{Args, Delete};
use crate::output::{self, Failure};
use crate::{open, show};

pub fn run(args: &Args, verb: &Delete) -> Result<(), Failure> {
    let store = open::writing(args)?;
    let id = store.resolve(&verb.conversation)?;
    let tombstone = store.delete(id, &verb.reason)?;
    if args.json {
        return output::json(&tombstone);
    }
    output::text(format!(
        "deleted {id}; what stays: {}, head {}",
        show::count(tombstone.head.seq, "event"),
        tombstone.head.hash
    ))
}
