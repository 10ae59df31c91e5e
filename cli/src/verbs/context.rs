//! `everturn context`

use crate::args::Args;
use crate::output::{self, Failure};
use crate::{open, show};
use clap::Args as ClapArgs;
use everturn_api::context::{BuildContext, ContextRequest, RecordContext, ReplayContext};
use everturn_api::conversations::GetConversation;
use everturn_core::Error;
use everturn_core::json::Raw;
use everturn_engine::{Digest, Options, RecallRequest};
use everturn_views::context::Section;
use serde_json::{Value, json};

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn context @last --budget 8000\n  \
    everturn context @last --budget 8000 --provider anthropic --model claude-sonnet-4-5 --json\n  \
    everturn context @last --budget 4000 --projection clean_tool_repair --input 'And now?'\n  \
    everturn context @last --budget 8000 --record     (keep a receipt, as before a model call)\n  \
    everturn context @last --replay 120               (what was the model given then?)")]
pub struct Context {
    /// Conversation: id, beginning of an id, or @last
    #[arg(value_name = "CONV")]
    conversation: String,
    /// Maximum number of tokens
    #[arg(long, value_name = "N", required_unless_present = "replay")]
    budget: Option<u64>,
    /// Message shape: openai-chat, openai-responses, anthropic, gemini or neutral
    #[arg(long, value_name = "P", default_value = "neutral")]
    provider: String,
    /// Model that will read it; determines how tokens are counted
    #[arg(long)]
    model: Option<String>,
    /// Maximum number of verbatim turns
    #[arg(long, value_name = "N")]
    last: Option<usize>,
    /// Actor whose point of view is used; may be repeated
    #[arg(long, value_name = "ACTOR")]
    participant: Vec<String>,
    /// Projection of the turns: a policy, or options as JSON
    #[arg(long, alias = "project", value_name = "POLICY | JSON")]
    projection: Option<String>,
    /// Sections to include, as JSON: {"digests": false, "tail": {"share": 0.8}}
    #[arg(long, value_name = "JSON")]
    sections: Option<String>,
    /// Instructions for this call
    #[arg(long, value_name = "TEXT")]
    instructions: Option<String>,
    /// Additional text with its title; may be repeated
    #[arg(long, value_name = "TITLE=TEXT")]
    digest: Vec<String>,
    /// New input
    #[arg(long, value_name = "TEXT")]
    input: Option<String>,
    /// Maximum number of recalled older turns that are relevant to the input
    #[arg(long, value_name = "TURNS", num_args = 0..=1, default_missing_value = "5")]
    recall: Option<usize>,
    /// Maximum number of recalled facts that are relevant to the input
    #[arg(long, value_name = "FACTS", num_args = 0..=1, default_missing_value = "10")]
    facts: Option<usize>,
    /// As of this seq
    #[arg(long, value_name = "SEQ")]
    at: Option<u64>,
    /// Print the prompt itself instead of the table
    #[arg(long)]
    show: bool,
    /// Record the receipt in the log, as before a model call
    #[arg(long, conflicts_with_all = ["replay", "at"])]
    record: bool,
    /// Rebuild the context recorded at this seq
    #[arg(long, value_name = "SEQ", conflicts_with = "budget")]
    replay: Option<u64>,
}

pub fn run(args: &Args, verb: &Context) -> Result<(), Failure> {
    let recalls = verb.recall.is_some() || verb.facts.is_some() || verb.replay.is_some();
    let store = match verb.record {
        true => open::with(
            args,
            Options { create: false, embedder: open::embedder(args)?, ..open::options(args)? },
        )?,
        false if recalls => open::recalling(args, Vec::new(), false)?,
        false => open::reading(args)?,
    };
    let id = store.resolve(&verb.conversation)?;
    let conversation = id.into();
    let (context, recorded) = match verb.replay {
        Some(seq) => (store.call(ReplayContext { conversation, seq })?, None),
        None if verb.record => {
            let recorded = store.call(RecordContext { conversation, request: request(verb)? })?;
            (recorded.context, Some(recorded.recorded_seq))
        }
        None => (store.call(BuildContext { conversation, request: request(verb)? })?, None),
    };
    if args.json {
        return output::json(&context);
    }
    if verb.show {
        return prompt(&context);
    }
    let turns = store.call(GetConversation { conversation: id.into() })?.turns;
    output::text(table(&context, turns))?;
    if let Some(seq) = recorded {
        output::text(format!(
            "\nrecorded at #{seq}; again: everturn context {id} --replay {seq}{}",
            args.again()
        ))?;
    }
    Ok(())
}

fn request(verb: &Context) -> Result<ContextRequest, Error> {
    let json = |option: &str, text: &str| -> Result<Value, Error> {
        serde_json::from_str(text).map_err(|e| Error::invalid("json.malformed", format!("{option}: {e}")))
    };
    let projection = match verb.projection.as_deref().map(str::trim) {
        Some(text) if text.starts_with('{') => Some(json("--projection", text)?),
        Some(policy) => Some(json!(policy)),
        None => None,
    };
    let digest = |text: &String| {
        let (title, text) = text.split_once('=').ok_or_else(|| {
            Error::invalid("context.digest", "--digest must be TITLE=TEXT, such as 'Work board=3 open'")
        })?;
        Ok(Digest { title: title.into(), text: text.into() })
    };
    let input = verb.input.iter().map(|text| Raw::of(&json!({"role": "user", "content": text})));
    Ok(ContextRequest {
        token_budget: verb.budget,
        last_n: verb.last,
        participants: verb.participant.clone(),
        projection,
        sections: verb.sections.as_deref().map(|text| json("--sections", text)).transpose()?,
        instructions: verb.instructions.clone(),
        digests: verb.digest.iter().map(digest).collect::<Result<_, Error>>()?,
        input: input.collect::<Result<_, _>>()?,
        provider: Some(show::option("--provider", &verb.provider)?),
        model: verb.model.clone(),
        recall: (verb.recall.is_some() || verb.facts.is_some()).then(|| RecallRequest {
            turns: verb.recall.unwrap_or(0),
            facts: verb.facts.unwrap_or(0),
            query: None,
        }),
        at_seq: verb.at,
        ..ContextRequest::default()
    })
}

/// The prompt as it would be sent: a line of JSON for each part.
fn prompt(context: &everturn_engine::Context) -> Result<(), Failure> {
    if let Some(system) = &context.system {
        output::text(format!("{{\"system\":{}}}", system.get()))?;
    }
    context.messages.iter().try_for_each(|message| output::text(message.get()))
}

/// Sections with their tokens, and what did not fit, of a conversation with so many turns.
fn table(context: &everturn_engine::Context, all: u64) -> String {
    let tokens = &context.tokens;
    let mut lines = vec![format!("{:<10} {:>8} {:>6}", "section", "tokens", "parts")];
    for section in Section::ALL {
        let parts = context.included.iter().filter(|block| block.section == section).count();
        if let Some(cost) = tokens.by_section.get(&section) {
            lines.push(format!("{:<10} {cost:>8} {parts:>6}", section.as_str()));
        }
    }
    let frame = tokens.used.saturating_sub(tokens.by_section.values().sum());
    lines.push(format!("{:<10} {frame:>8}", "frame"));
    lines.push(format!(
        "{:<10} {:>8}   of {} ({})",
        "total", tokens.used, tokens.budget, context.receipt.tokenizer
    ));
    for left in &context.left_out {
        let turns = match left.turns {
            Some(turns) => format!(", {}", show::count(turns, "turn")),
            // Turns that are too old to fit are not read, and so not counted.
            None if left.lacked_room() => format!(", the rest of {}", show::count(all, "turn")),
            None => String::new(),
        };
        lines.push(format!("left out   {}{turns}: {}", left.section, left.reason));
    }
    if let Some(section) = context.cache.first_changed_section {
        let stable = context.cache.stable_prefix_tokens;
        lines.push(format!(
            "cache      {stable} tokens as in the last recorded call, changed from {section} on"
        ));
    }
    lines.push(context.prefix_hash.clone());
    lines.join("\n")
}
