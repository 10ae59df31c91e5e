//! `everturn doctor`

use crate::args::Args;
use crate::output::{self, Failure};
use crate::{open, show};
use clap::Args as ClapArgs;
use everturn_core::Error;
use everturn_engine::Options;

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  everturn doctor\n  everturn doctor --rebuild --compact")]
pub struct Doctor {
    /// First make everything that is derived from the log again
    #[arg(long)]
    rebuild: bool,
    /// First give unused space back; also removes old titles and names that stayed behind in it
    #[arg(long)]
    compact: bool,
    /// Go on with what there is, if the store has lost something that was committed
    #[arg(long)]
    accept_loss: bool,
}

pub fn run(args: &Args, verb: &Doctor) -> Result<(), Failure> {
    if (verb.rebuild || verb.compact || verb.accept_loss) && open::server(args)?.is_some() {
        let text = "--rebuild, --compact and --accept-loss need the store itself: run them where it is, while its server is stopped";
        return Err(Error::invalid("url.doctor", text).into());
    }
    if verb.accept_loss {
        open::store(args, Options { accept_loss: true, ..Options::default() })?;
    }
    if verb.rebuild {
        open::store(args, Options::default())?.rebuild()?;
    }
    if verb.compact {
        open::store(args, Options::default())?.compact()?;
    }
    let store = open::reading(args)?;
    let bar = output::progress(0, "conversations");
    let found = store.doctor(&mut |so_far| bar.set_position(so_far.conversations))?;
    bar.finish_and_clear();
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
            let about = finding.conversation.map(|id| format!("{id}: ")).unwrap_or_default();
            output::text(format!("{about}{}\n  {}", finding.problem, finding.advice))?;
        }
        if found.findings.is_empty() {
            output::text("everything is in order")?;
        }
    }
    if found.findings.is_empty() { Ok(()) } else { Err(Failure::Said) }
}
