//! `everturn compact`

use crate::args::{Args, Compact, Speaks};
use crate::output::{self, Failure};
use crate::{open, show};
use clap::parser::ValueSource;
use everturn_core::{Error, compaction};
use everturn_engine::model::{Endpoint, Generate, HttpModel, Kind, Secret, Summarize, Summarizer};
use everturn_engine::{CompactOptions, Options};
use std::collections::BTreeMap;
use std::sync::Arc;

pub fn run(args: &Args, verb: &Compact) -> Result<(), Failure> {
    let remote = open::server(args)?.is_some();
    if remote && args.sources.base_url == Some(ValueSource::CommandLine) {
        let text =
            "a server has its summaries written by its own models, as its settings say; leave --base-url out";
        return Err(Error::invalid("url.model", text).into());
    }
    let summarizers = match &verb.base_url {
        Some(url) if !remote => {
            let client = client(url, verb.model.as_deref(), verb.speaks, verb.api_key_env.as_deref())?;
            BTreeMap::from([("default".to_string(), Arc::new(Summarizer::new(client)) as Arc<dyn Summarize>)])
        }
        _ => BTreeMap::new(),
    };
    // A dry run writes nothing, so it works beside a process that does.
    let options =
        Options { read_only: verb.dry_run, summarizers, auto_compaction: false, ..Options::default() };
    let store = open::with(args, options)?;
    let id = store.resolve(&verb.conversation)?;
    if verb.revert {
        let conversation = store.revert_compaction(id)?;
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
    let compacted = store.compact(id, options)?;
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

/// The client of a model that was named on the command line.
pub fn client(
    url: &str,
    model: Option<&str>,
    speaks: Speaks,
    api_key_env: Option<&str>,
) -> Result<Arc<dyn Generate>, Error> {
    let kind = match speaks {
        Speaks::OpenaiChat => Kind::OpenaiChat,
        Speaks::OpenaiResponses => Kind::OpenaiResponses,
        Speaks::Anthropic => Kind::Anthropic,
    };
    let mut endpoint = Endpoint::new(kind, url, model.unwrap_or_default());
    if let Some(name) = api_key_env {
        let key = std::env::var(name).map_err(|_| {
            Error::invalid(
                "model.no_key",
                format!("the environment variable {name} is not set; export it first"),
            )
        })?;
        endpoint.api_key = Some(Secret::new(key));
    }
    Ok(Arc::new(HttpModel::new(endpoint)?))
}
