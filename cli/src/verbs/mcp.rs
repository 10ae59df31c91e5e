//! `everturn mcp`

use crate::args::Args;
use crate::client::McpStore;
use crate::open;
use crate::output::Failure;
use clap::Args as ClapArgs;
use everturn_core::Error;
use everturn_engine::Options;
use everturn_server::settings::Flag;
use everturn_server::{SharedStore, Stdio};
use std::path::PathBuf;
use std::sync::Arc;

#[derive(ClapArgs)]
#[command(after_help = "An MCP client starts this command itself. Examples:\n  \
    claude mcp add everturn -- everturn mcp\n  \
    {\"mcpServers\": {\"everturn\": {\"command\": \"everturn\", \"args\": [\"mcp\", \"--read-only\"]}}}")]
pub struct Mcp {
    /// Offer only tools that change nothing
    #[arg(long)]
    read_only: bool,
    /// Tool sets to offer, separated by commas: default, all, destructive, or by subject: conversations, turns,
    /// events, state, facts, recall, context, generations, sessions, assets, transfer, usage
    #[arg(long, value_name = "SETS", default_value = "default")]
    toolsets: String,
    /// Record requests in a session file below this folder
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
}

pub fn run(args: &Args, verb: &Mcp) -> Result<(), Failure> {
    if let Some(url) = open::server(args)? {
        let text =
            format!("a server offers MCP itself: point the client at {}/mcp", url.trim_end_matches('/'));
        return Err(Error::invalid("url.mcp", text).into());
    }
    let given = verb.record.as_ref().map(|folder| folder.display().to_string());
    let flags = given.map(|value| Flag { key: "mcp.record", flag: "--record", value });
    let settings = open::settings(args, flags.into_iter().collect())?;
    let store: Arc<dyn SharedStore> = match verb.read_only {
        true => {
            let options = Options { read_only: true, ..open::with_models(args, &settings)? };
            Arc::new(open::store(args, options)?.tenant(&args.tenant)?)
        }
        false => Arc::new(McpStore::open(open::shared(args, &settings)?)?),
    };
    let toolsets = verb.toolsets.parse()?;
    let options = Stdio {
        store,
        toolsets,
        read_only: verb.read_only,
        record: settings.text("mcp.record").map(Into::into),
    };
    Ok(everturn_server::stdio(options)?)
}
