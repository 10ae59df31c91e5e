//! `everturn compact`

use crate::args::{Args, Model};
use crate::output::{self, Failure};
use crate::{model, open, show};
use clap::Args as ClapArgs;
use everturn_api::compaction::{self as api, RevertCompaction};
use everturn_engine::{CompactOptions, Options};
use everturn_views::compaction;

#[derive(ClapArgs)]
#[command(
    mut_arg("base_url", |arg| arg.help("Have a model write the summary; by default the configured one does, or it is extracted, offline")),
    after_help = "Examples:\n  \
    everturn compact @last --dry-run\n  \
    everturn compact @last --keep-last 10\n  \
    everturn compact @last --base-url http://localhost:8080/v1 --model qwen3\n  \
    everturn compact @last --revert"
)]
pub struct Compact {
    /// Conversation: id, beginning of an id, or @last
    #[arg(value_name = "CONV")]
    conversation: String,
    /// Only show the checkpoint that would be written
    #[arg(long)]
    dry_run: bool,
    /// Number of turns at the end to leave unchanged, instead of the policy's
    #[arg(long, value_name = "N")]
    keep_last: Option<usize>,
    /// Revert the last compaction
    #[arg(long, conflicts_with_all = ["dry_run", "keep_last", "base_url"])]
    revert: bool,
    #[command(flatten)]
    model: Model,
}

pub fn run(args: &Args, verb: &Compact) -> Result<(), Failure> {
    let servers_own = "a server uses its own models for summaries, from its configuration";
    // A dry run writes nothing, so it works beside a writer.
    let options =
        Options { read_only: verb.dry_run, create: false, auto_compaction: false, ..open::options(args)? };
    let store = model::open(args, options, &verb.model, servers_own)?;
    let id = store.resolve(&verb.conversation)?;
    if verb.revert {
        let conversation = store.call(RevertCompaction { conversation: id.into() })?;
        if args.json {
            return output::json(&conversation);
        }
        return output::text(match conversation.checkpoint {
            Some(at) => format!("reverted; turns up to #{} are still summarized", at.through_seq),
            None => "reverted; nothing is summarized any more".to_string(),
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
        "{done} {} ({}), {} tokens into {}, {}\n",
        show::count(compacted.covers.turns, "turn"),
        show::range(compacted.covers.from_seq, compacted.covers.to_seq),
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
            "\nthe content of {erased} was erased, as the conversation's retention requires"
        ))?;
    }
    Ok(())
}
