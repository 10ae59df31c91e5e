//! `everturn context`

use crate::args::{self, Args};
use crate::output::{self, Failure};
use crate::store::Ask;
use crate::{open, show};
use everturn_core::Error;
use everturn_core::context::{Section, Sections};
use everturn_core::json::Raw;
use everturn_engine::{Context, ContextOptions, Digest, RecallRequest, script};
use serde_json::{Value, json};

pub fn run(args: &Args, verb: &args::Context) -> Result<(), Failure> {
    let store = if verb.record { open::writing(args)? } else { open::reading(args)? };
    let id = store.resolve(&verb.conversation)?;
    let (context, recorded) = match verb.replay {
        Some(seq) => (store.replay_context(id, seq)?, None),
        None => store.context(id, &ask(verb)?)?,
    };
    if args.json {
        return output::json(&context);
    }
    if verb.show {
        return prompt(&context);
    }
    output::text(table(&context))?;
    if let Some(seq) = recorded {
        output::text(format!("\nrecorded at #{seq}; again: everturn context {id} --replay {seq}"))?;
    }
    Ok(())
}

fn ask(verb: &args::Context) -> Result<Ask, Error> {
    let json = |option: &str, text: &str| -> Result<Value, Error> {
        serde_json::from_str(text).map_err(|e| Error::invalid("json.malformed", format!("{option}: {e}")))
    };
    let projection = match verb.project.as_deref().map(str::trim) {
        Some(text) if text.starts_with('{') => Some(json("--project", text)?),
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
    let options = ContextOptions {
        last_n: verb.last,
        participants: verb.participant.clone(),
        projection: projection.as_ref().map(script::options).transpose()?,
        sections: match &verb.sections {
            Some(text) => Sections::parse(&json("--sections", text)?)?,
            None => Sections::default(),
        },
        instructions: verb.instructions.clone(),
        digests: verb.digest.iter().map(digest).collect::<Result<_, Error>>()?,
        input: input.collect::<Result<_, _>>()?,
        provider: verb.provider.parse()?,
        model: verb.model.clone(),
        recall: (verb.recall.is_some() || verb.facts.is_some()).then(|| RecallRequest {
            turns: verb.recall.unwrap_or(0),
            facts: verb.facts.unwrap_or(0),
            query: None,
        }),
        at_seq: verb.at,
        ..ContextOptions::new(verb.budget.unwrap_or_default())
    };
    Ok(Ask { options, projection, record: verb.record })
}

/// The prompt as it would be sent, one part after the other.
fn prompt(context: &Context) -> Result<(), Failure> {
    if let Some(system) = &context.system {
        output::text(system.get())?;
    }
    context.messages.iter().try_for_each(|message| output::text(message.get()))
}

/// Sections with their tokens, and what did not fit.
fn table(context: &Context) -> String {
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
        "in all", tokens.used, tokens.budget, context.receipt.tokenizer
    ));
    for left in &context.left_out {
        let turns = left.turns.map(|turns| format!("{} ", show::count(turns, "turn"))).unwrap_or_default();
        lines.push(format!("left out   {}: {turns}{}", left.section, left.reason));
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
