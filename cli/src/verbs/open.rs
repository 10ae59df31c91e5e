//! `everturn open`

use crate::args::Args;
use crate::browser;
use crate::client::{Client, Remote};
use crate::open;
use crate::output::{self, Failure};
use clap::Args as ClapArgs;
use everturn_engine::store_file;
use everturn_server::socket;

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
    let (server, remote) = match owner(args)? {
        Some(found) => found,
        None => {
            let server = open::server(args)?.unwrap_or(USUAL);
            let remote = Remote::new(server, open::key(args)?.as_deref())?;
            remote.check()?;
            (server.to_string(), remote)
        }
    };
    let server = server.trim_end_matches('/');
    let url = match &verb.conversation {
        Some(name) => format!("{server}/#/c/{}", Client::Remote(Box::new(remote)).resolve(name)?),
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

/// The server that owns the local store, and its address.
fn owner(args: &Args) -> Result<Option<(String, Remote)>, Failure> {
    if open::server(args)?.is_some() {
        return Ok(None);
    }
    let file = store_file(&open::store_url(args, false)?)?;
    let Some((socket, _)) = file.and_then(|file| socket::find(&file)) else { return Ok(None) };
    let remote = Remote::through(&socket, &args.tenant)?;
    // An owner that serves no page has no address.
    Ok(remote.page().ok().flatten().map(|url| (url, remote)))
}
