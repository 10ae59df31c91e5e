//! `everturn open`

use crate::args::Args;
use crate::browser;
use crate::client::{Client, Remote};
use crate::open;
use crate::output::{self, Failure};
use clap::Args as ClapArgs;

/// Default address of a server.
const USUAL: &str = "http://127.0.0.1:7317";

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn open\n  \
    everturn open @last\n  \
    everturn open conv_01J9 --url https://everturn.example.org")]
pub struct Open {
    /// The conversation: an id, the beginning of one, or @last; without it the list
    #[arg(value_name = "CONV")]
    conversation: Option<String>,
}

pub fn run(args: &Args, verb: &Open) -> Result<(), Failure> {
    let server = open::server(args)?.unwrap_or(USUAL).trim_end_matches('/');
    let client = Client::Remote(Box::new(Remote::new(server, open::key(args)?.as_deref())?));
    let url = match &verb.conversation {
        Some(name) => format!("{server}/#/c/{}", client.resolve(name)?),
        None => format!("{server}/"),
    };
    if !browser::show(&url) {
        eprintln!("no browser was found here; open this address in one:");
    }
    if args.json {
        return output::json(&serde_json::json!({"url": url}));
    }
    output::text(url)
}
