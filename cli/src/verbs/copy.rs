//! `everturn copy`

use crate::args::Args;
use crate::output::{self, Failure};
use crate::{open, show};
use clap::Args as ClapArgs;
use clap::parser::ValueSource;
use everturn::{Everturn, Options};
use everturn_core::Error;
use std::time::Instant;

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn copy --from sqlite:chats.db --to postgres://everturn@db/everturn\n  \
    everturn copy --from postgres://everturn@db/everturn --to sqlite:chats.db\n  \
    everturn copy --from sqlite:chats.db\n      (to the store of EVERTURN_STORE, so that no password is in the arguments)\n\n\
    Everything of every tenant: conversations with their chains, forks, assets, answered requests and access keys. The same \
    command again goes on where it stopped, or brings what is new. The end of every chain is compared. Conversations that \
    were deleted or continued at the destination stay as they are there, and are named.")]
pub struct Copy {
    /// URL of the store to read; by default that of --store
    #[arg(long, value_name = "URL", required_unless_present = "to")]
    from: Option<String>,
    /// URL of the store to write, by default that of --store; it is made if it does not exist
    #[arg(long, value_name = "URL")]
    to: Option<String>,
    /// Also copy conversations that were deleted at the destination
    #[arg(long)]
    deleted: bool,
}

pub fn run(args: &Args, verb: &Copy) -> Result<(), Failure> {
    open::all_tenants(args, "copy")?;
    if verb.from.is_some() && verb.to.is_some() && args.sources.store == Some(ValueSource::CommandLine) {
        let text = "--from and --to name both stores; leave --store out";
        return Err(Error::invalid("copy.store", text).into());
    }
    let url = |given: &Option<String>, make| match given {
        Some(given) => open::url(given, make),
        None => open::store_url(args, make),
    };
    let (from, to) = (url(&verb.from, false)?, url(&verb.to, true)?);
    if from == to {
        return Err(Error::invalid("copy.same", "--from and --to name the same store; name two").into());
    }
    // The process that serves the copy indexes and compacts it.
    let options = Options { index: false, auto_compaction: false, ..Options::default() };
    let from = Everturn::open_with(&from, Options { read_only: true, ..options.clone() })?;
    let to = Everturn::open_with(&to, options)?;
    let bar = output::progress(0, "events");
    let began = Instant::now();
    let copied = from.copy_to(&to, verb.deleted, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let copied = copied?;
    if args.json {
        return output::json(&copied);
    }
    let rate = copied.events as f64 / began.elapsed().as_secs_f64().max(0.001);
    let parts = [
        show::count(copied.events, "event"),
        show::count(copied.assets, "asset"),
        show::count(copied.keys, "key"),
    ];
    output::text(format!(
        "copied {} ({rate:.0} events/s); {} equal in both stores",
        parts.join(", "),
        show::count(copied.conversations, "conversation")
    ))?;
    for id in &copied.ahead {
        output::text(format!("{id} has more at the destination, and stays as it is there"))?;
    }
    for id in &copied.left_deleted {
        output::text(format!("{id} was deleted at the destination, and stays so; --deleted copies it"))?;
    }
    Ok(())
}
