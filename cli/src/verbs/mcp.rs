//! `everturn mcp`

use crate::args::{Args, Mcp};
use crate::open;
use crate::output::Failure;
use everturn_server::Stdio;

pub fn run(args: &Args, verb: &Mcp) -> Result<(), Failure> {
    let scope = if verb.read_only { open::reading(args)? } else { open::writing(args)? };
    let options = Stdio { scope, read_only: verb.read_only, record: verb.record.clone() };
    Ok(everturn_server::stdio(options)?)
}
