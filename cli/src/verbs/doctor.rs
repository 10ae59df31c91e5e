//! `everturn doctor`

use crate::args::Args;
use crate::output::{self, Failure};
use crate::{open, show};
use clap::Args as ClapArgs;
use everturn_core::Error;
use everturn_engine::{Finding, Options, sqlite_notices, store_file};

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  everturn doctor\n  everturn doctor --rebuild --compact")]
pub struct Doctor {
    /// First rebuild everything that is derived from the log
    #[arg(long)]
    rebuild: bool,
    /// First reclaim unused space, which also removes old titles and names left in it
    #[arg(long)]
    compact: bool,
    /// Accept that the store has lost committed data, continue with what is left, and say what is known to be
    /// missing
    #[arg(long)]
    accept_loss: bool,
}

pub fn run(args: &Args, verb: &Doctor) -> Result<(), Failure> {
    open::all_tenants(args, "doctor")?;
    let changes = verb.rebuild || verb.compact || verb.accept_loss;
    if changes && open::server(args)?.is_some() {
        let text = "--rebuild, --compact and --accept-loss need the store itself: run them where it is, while its server is stopped";
        return Err(Error::invalid("url.doctor", text).into());
    }
    let given_up = verb.accept_loss && matches!(open::reading(args), Err(Failure::Error(Error::Corrupt(_))));
    if changes {
        let options = Options { accept_loss: verb.accept_loss, create: false, ..open::options(args)? };
        let store = open::store(args, options).map_err(|error| {
            open::owned(error, "doctor must own the file to change it; wait until that ends, or stop it")
        })?;
        if verb.rebuild {
            for lost in store.rebuild()? {
                eprintln!("given up: {}{}", about(&lost), lost.problem);
            }
            eprintln!("rebuilt all derived rows from the log");
        }
        if verb.compact {
            store.compact()?;
            eprintln!("reclaimed unused space");
        }
    }
    let store = open::reading(args)?;
    let bar = output::progress(0, "conversations");
    let found = store.doctor(&mut |so_far| bar.set_position(so_far.conversations))?;
    bar.finish_and_clear();
    if open::server(args)?.is_none() && store_file(&open::store_url(args, false)?)?.is_some() {
        for notice in sqlite_notices() {
            eprintln!("{notice}");
        }
    }
    if args.json {
        output::json(&found)?;
    } else {
        let erased = if found.erased > 0 { format!(" ({} erased)", found.erased) } else { String::new() };
        output::text(format!(
            "checked {}, {}{erased}, {}",
            show::count(found.conversations, "conversation"),
            show::count(found.events, "event"),
            show::count(found.assets, "asset"),
        ))?;
        for finding in &found.findings {
            output::text(format!("{}{}\n  {}", about(finding), finding.problem, finding.advice))?;
        }
        match (found.findings.is_empty(), given_up) {
            (true, false) => output::text("everything is in order")?,
            (true, true) => output::text("the loss is accepted, see above; the rest is in order")?,
            (false, _) => {}
        }
    }
    if found.findings.is_empty() { Ok(()) } else { Err(Failure::Reported) }
}

/// The conversation of a finding, as the beginning of a line.
fn about(finding: &Finding) -> String {
    match (&finding.conversation, &finding.tenant) {
        (Some(id), Some(tenant)) => format!("{id} (tenant {tenant}): "),
        (Some(id), None) => format!("{id}: "),
        (None, _) => String::new(),
    }
}
