//! `everturn mcp`

use crate::args::{Args, Mcp};
use crate::open;
use crate::output::Failure;
use everturn_core::Error;
use everturn_engine::Options;
use everturn_server::Stdio;

pub fn run(args: &Args, verb: &Mcp) -> Result<(), Failure> {
    if let Some(url) = open::server(args)? {
        let text =
            format!("a server speaks MCP itself: point the client at {}/mcp", url.trim_end_matches('/'));
        return Err(Error::invalid("url.mcp", text).into());
    }
    let store = open::store(args, Options { read_only: verb.read_only, ..Options::default() })?;
    let scope = store.tenant(&args.tenant)?;
    let options = Stdio { scope, read_only: verb.read_only, record: verb.record.clone() };
    Ok(everturn_server::stdio(options)?)
}
