//! `everturn copy`

use crate::args::Args;
use crate::output::{self, Failure};
use crate::{open, show};
use clap::Args as ClapArgs;
use everturn::{Everturn, Options};
use everturn_core::Error;
use std::time::Instant;

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn copy --from sqlite:chats.db --to postgres://everturn@db/everturn\n  \
    everturn copy --from postgres://everturn@db/everturn --to sqlite:chats.db\n\n\
    Everything of every tenant: conversations with their chains, forks, assets, answered requests and access keys. The\n\
    same command again goes on where it stopped, or brings what is new. The end of every chain is compared.\n\
    Conversations that were deleted at the destination stay deleted, and are named.")]
pub struct Copy {
    /// URL of the store to read
    #[arg(long, value_name = "URL")]
    from: String,
    /// URL of the store to write; it is made if it does not exist
    #[arg(long, value_name = "URL")]
    to: String,
    /// Copy also conversations that were deleted at the destination
    #[arg(long)]
    deleted: bool,
}

pub fn run(args: &Args, verb: &Copy) -> Result<(), Failure> {
    open::all_tenants(args, "copy")?;
    let (from, to) = (open::url(&verb.from, false)?, open::url(&verb.to, true)?);
    if from == to {
        return Err(Error::invalid("copy.same", "--from and --to name the same store; name two").into());
    }
    // Whoever serves the copy indexes and compacts it.
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
    for id in &copied.left_deleted {
        output::text(format!("{id} was deleted at the destination, and stays so; --deleted copies it"))?;
    }
    Ok(())
}
