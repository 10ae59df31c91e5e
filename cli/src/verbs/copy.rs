//! `everturn copy`

use crate::args::Args;
use crate::output::{self, Failure};
use crate::{open, show};
use clap::Args as ClapArgs;
use clap::parser::ValueSource;
use everturn_core::Error;
use everturn_engine::{Copied, Everturn, Options};
use everturn_server::settings::without_password;
use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn copy --from sqlite:chats.db --to postgres://everturn@db/everturn\n  \
    everturn copy --from postgres://everturn@db/everturn --to sqlite:chats.db\n  \
    everturn copy --from sqlite:chats.db\n      (to the store of EVERTURN_STORE, so that no password is in the arguments)\n\n\
    Everything of every tenant: conversations with their chains, forks, assets, answered requests and access keys. The same \
    command again goes on where it stopped, or brings what is new. The end of every chain is compared. Conversations that \
    were deleted or continued at the destination stay as they are there, and are named. Conversations that cannot be copied, \
    such as those that were continued in both stores, are named with the reason; the others are copied, and the exit code is \
    1. Where standard error is not a terminal, -v prints the progress.")]
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

/// Time between two lines of progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

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
    if to == "memory:" {
        let text = "a copy to memory: is gone when the command ends; copy to sqlite:PATH or postgres://…";
        return Err(Error::invalid("copy.memory", text).into());
    }
    if from == to {
        return Err(Error::invalid("copy.same", "--from and --to name the same store; name two").into());
    }
    // The process that serves the copy indexes and compacts it.
    let options = Options { index: false, auto_compaction: false, ..Options::default() };
    let source = Everturn::open_with(&from, Options { read_only: true, ..options.clone() })?;
    let destination = Everturn::open_with(&to, options)?;
    let to = without_password(&to);
    if !args.json {
        anstream::eprintln!("copying {} to {to}", without_password(&from));
    }
    let bar = output::progress(0, "events");
    let (began, mut printed) = (Instant::now(), None::<Instant>);
    let prints = args.verbose > 0 && !stderr().is_terminal();
    let copied = source.copy_to(&destination, verb.deleted, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
        if prints && printed.is_none_or(|at| at.elapsed() >= PROGRESS_EVERY) {
            anstream::eprintln!("{done} of {}", show::count(total, "event"));
            printed = Some(Instant::now());
        }
    });
    bar.finish_and_clear();
    let copied = copied?;
    if args.json {
        output::json(&copied)?;
    } else {
        tell(&copied, &to, began.elapsed())?;
    }
    if copied.not_copied.is_empty() { Ok(()) } else { Err(Failure::Reported) }
}

fn tell(copied: &Copied, to: &str, time: Duration) -> Result<(), Failure> {
    let rate = copied.events as f64 / time.as_secs_f64().max(0.001);
    let written = [
        show::count(copied.events, "event"),
        show::count(copied.assets, "asset"),
        show::count(copied.keys, "key"),
    ];
    let ahead = copied.ahead.len() as u64;
    // Each conversation is in one of these numbers.
    let others = [
        (ahead, "with more at the destination"),
        (copied.left_deleted.len() as u64, "deleted at the destination"),
        (copied.not_copied.len() as u64, "not copied"),
    ];
    let mut parts =
        vec![format!("{} equal in both stores", show::count(copied.conversations - ahead, "conversation"))];
    parts.extend(
        others.iter().filter(|(number, _)| *number > 0).map(|(number, what)| format!("{number} {what}")),
    );
    output::text(format!(
        "copied {} ({rate:.0} events/s) to {to}; {}",
        written.join(", "),
        parts.join(", ")
    ))?;
    for id in &copied.ahead {
        output::text(format!("{id} has more at the destination, and stays as it is there"))?;
    }
    for id in &copied.left_deleted {
        output::text(format!("{id} was deleted at the destination, and stays so; --deleted copies it"))?;
    }
    let red = anstyle::AnsiColor::Red.on_default().bold();
    for not in &copied.not_copied {
        anstream::eprintln!(
            "{red}failed{red:#}  {} of tenant {}: {}",
            not.conversation,
            not.tenant,
            not.message
        );
    }
    Ok(())
}
