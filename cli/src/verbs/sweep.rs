//! `everturn sweep`

use crate::args::Args;
use crate::client::WritableStore;
use crate::output::{self, Failure};
use crate::{open, show};
use clap::Args as ClapArgs;
use everturn_core::Error;
use everturn_engine::{Options, Swept};

#[derive(ClapArgs)]
#[command(
    after_help = "It deletes conversations whose --ttl has passed, and files of assets that nothing has referred to for an hour. It ends open turns that get no more text, gives up tool calls after `policy.abandon_tools_after_s`, and lets approvals expire at their deadline.\n\nA server does this by itself, every half minute.\n\nExample:\n  everturn sweep     (from cron, where no server runs)"
)]
pub struct Sweep {}

pub fn run(args: &Args, _: &Sweep) -> Result<(), Failure> {
    open::all_tenants(args, "sweep")?;
    if open::server(args)?.is_some() {
        let text = "a server sweeps by itself; leave --url out to sweep a local store";
        return Err(Error::invalid("url.sweep", text).into());
    }
    let options = Options { create: false, ..open::options(args)? };
    let swept = match open::local(args, options)?.open()? {
        WritableStore::Here(store) => store.sweep_all()?,
        WritableStore::Through(owner, _) => owner.sweep()?,
    };
    if args.json {
        return output::json(&swept);
    }
    let Swept { expired, interrupted, abandoned, approvals, collected } = swept;
    if swept == Swept::default() {
        return output::text("nothing to sweep");
    }
    output::text(format!(
        "deleted {} that had expired, ended {} after inactivity, gave up {} without a result, closed {} without an answer, removed {} without references",
        show::count(expired as u64, "conversation"),
        show::count(interrupted as u64, "open turn"),
        show::count(abandoned as u64, "tool call"),
        show::count(approvals as u64, "approval"),
        show::count(collected as u64, "asset"),
    ))
}
