//! `everturn compact`

use crate::args::{Args, Model};
use crate::output::{self, Failure};
use crate::{model, open, show};
use clap::Args as ClapArgs;
use everturn::{CompactOptions, Options};
use everturn_api::compaction::{self as api, RevertCompaction};
use everturn_views::compaction;

#[derive(ClapArgs)]
#[command(
    mut_arg("base_url", |arg| arg.help("Have a model write the summary; by default it is extracted, offline")),
    after_help = "Examples:\n  \
    everturn compact @last --dry-run\n  \
    everturn compact @last --keep-last 10\n  \
    everturn compact @last --base-url http://localhost:8080/v1 --model qwen3\n  \
    everturn compact @last --revert"
)]
pub struct Compact {
    /// The conversation
    #[arg(value_name = "CONV")]
    conversation: String,
    /// Only show what the summary would be
    #[arg(long)]
    dry_run: bool,
    /// Leave this many turns at the end as they are, instead of what the policy says
    #[arg(long, value_name = "N")]
    keep_last: Option<usize>,
    /// Take the last compaction back
    #[arg(long, conflicts_with_all = ["dry_run", "keep_last", "base_url"])]
    revert: bool,
    #[command(flatten)]
    model: Model,
}

pub fn run(args: &Args, verb: &Compact) -> Result<(), Failure> {
    let servers_own = "a server has its summaries written by its own models, as its settings say";
    let summarizers = model::summarizers(args, &verb.model, servers_own)?;
    // A dry run writes nothing, so it works beside a process that does.
    let options = Options {
        read_only: verb.dry_run,
        create: false,
        summarizers,
        auto_compaction: false,
        ..Options::default()
    };
    let store = open::with(args, options)?;
    let id = store.resolve(&verb.conversation)?;
    if verb.revert {
        let conversation = store.call(RevertCompaction { conversation: id.into() })?;
        if args.json {
            return output::json(&conversation);
        }
        return output::text(match conversation.checkpoint {
            Some(at) => format!("taken back; turns up to #{} are still summarized", at.through_seq),
            None => "taken back; nothing is summarized any more".to_string(),
        });
    }
    let options =
        CompactOptions { dry_run: verb.dry_run, keep_last: verb.keep_last, ..CompactOptions::default() };
    let compacted = store.call(api::Compact { conversation: id.into(), options })?;
    if args.json {
        return output::json(&compacted);
    }
    let done = if verb.dry_run { "would summarize" } else { "summarized" };
    output::text(format!(
        "{done} {} (#{} to #{}), {} tokens into {}, {}\n",
        show::count(compacted.covers.turns, "turn"),
        compacted.covers.from_seq,
        compacted.covers.to_seq,
        compacted.tokens_before,
        compacted.tokens_after,
        match compacted.summarizer.as_str() {
            compaction::EXTRACTIVE => "extracted".to_string(),
            model => format!("written by {model}"),
        }
    ))?;
    output::text(show::printable_lines(&compaction::render(&compacted.checkpoint)))?;
    if compacted.erased > 0 {
        let erased = show::count(compacted.erased as u64, "turn");
        output::text(format!(
            "\nthe words of {erased} were erased, as the conversation's retention asks for"
        ))?;
    }
    Ok(())
}
