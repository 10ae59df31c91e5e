//! `everturn summarize`

use crate::args::{Args, Model};
use crate::output::{self, Failure};
use crate::{model, open, show};
use clap::Args as ClapArgs;
use everturn_api::compaction as api;
use everturn_engine::Options;
use everturn_views::compaction;

#[derive(ClapArgs)]
#[command(
    mut_arg("base_url", |arg| arg.help("Have a model write the summary; by default the configured one does, or it is extracted, offline")),
    after_help = "Nothing is written; `everturn compact` keeps a summary for the next model call.\n\n\
    Examples:\n  \
    everturn summarize @last\n  \
    everturn summarize @last --from 10 --to 60 --base-url http://localhost:8080/v1 --model qwen3 --style 'three sentences'"
)]
pub struct Summarize {
    /// Conversation: id, beginning of an id, or @last
    #[arg(value_name = "CONV")]
    conversation: String,
    /// First seq
    #[arg(long, value_name = "SEQ")]
    from: Option<u64>,
    /// Last seq
    #[arg(long, value_name = "SEQ")]
    to: Option<u64>,
    /// Additional instructions for the model
    #[arg(long, value_name = "TEXT")]
    style: Option<String>,
    #[command(flatten)]
    model: Model,
}

pub fn run(args: &Args, verb: &Summarize) -> Result<(), Failure> {
    let servers_own = "a server uses its own models for summaries, from its configuration";
    let options = Options { read_only: true, ..open::options(args)? };
    let store = model::open(args, options, &verb.model, servers_own)?;
    let summary = store.call(api::Summarize {
        conversation: store.resolve(&verb.conversation)?.into(),
        from_seq: verb.from,
        to_seq: verb.to,
        style: verb.style.clone(),
    })?;
    if args.json {
        return output::json(&summary);
    }
    output::text(show::printable_lines(&compaction::render(&summary.checkpoint)))
}
