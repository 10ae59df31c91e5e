//! Checkpoints without quotes, for conversations whose retention does not keep the text.

use super::Checkpoint;
use super::extractive::extract;
use super::model::said;
use super::plan::Candidate;
use everturn_core::Error;
use everturn_core::id::clip;
use everturn_core::pairing;
use std::collections::{BTreeMap, HashSet};

/// First sentence of the handoff note.
const NOTE: &str = "What was said is not kept: the retention of this conversation erases it. These numbers and names are left.";
/// Beginning of an entry that counts turns.
const TURNS: &str = "turns by ";
/// Beginning of an entry that counts calls of a tool.
const CALLS: &str = "calls of ";
/// Maximum length of a tool's name, in bytes.
const TOOL_BYTES_MAX: usize = 128;
/// Maximum number of tools that are counted by name.
const TOOLS_MAX: usize = 64;
/// Number of consecutive words that count as a quote.
const QUOTE_WORDS: usize = 5;

/// Makes a checkpoint of counts, names of tools and paths of files, from the previous one and the turns since it.
pub fn outline(previous: Option<&Checkpoint>, turns: &[Candidate<'_>]) -> Checkpoint {
    let previous = previous.map(outline_of).unwrap_or_default();
    let mut counts = counts(&previous);
    for turn in turns {
        *counts.entry(format!("{TURNS}{}", turn.role)).or_default() += 1;
        let calls = turn.message.map(|message| pairing::pair([message]).calls).unwrap_or_default();
        for name in calls.iter().map(|call| call.name).filter(|name| is_tool_name(name)) {
            *counts.entry(format!("{CALLS}{name}")).or_default() += 1;
        }
    }
    write(counts, extract(Some(&previous), turns).relevant_files)
}

/// The part of a checkpoint that an outline keeps.
pub fn outline_of(checkpoint: &Checkpoint) -> Checkpoint {
    write(counts(checkpoint), checkpoint.relevant_files.clone())
}

fn write(counts: BTreeMap<String, u64>, relevant_files: Vec<String>) -> Checkpoint {
    let tools = counts.iter().filter(|(of, _)| of.starts_with(CALLS)).take(TOOLS_MAX);
    let counted = counts.iter().filter(|(of, _)| of.starts_with(TURNS)).chain(tools);
    let completed_work: Vec<String> = counted.map(|(of, count)| format!("{of}: {count}")).collect();
    let handoff_md = format!("{NOTE}\n\n- {}", completed_work.join("\n- "));
    Checkpoint { completed_work, relevant_files, handoff_md, ..Checkpoint::default() }
}

/// The counts in an outline. Other entries of a checkpoint have none.
fn counts(checkpoint: &Checkpoint) -> BTreeMap<String, u64> {
    let count = |entry: &String| {
        let (of, count) = entry.rsplit_once(": ")?;
        let is_count = match (of.strip_prefix(TURNS), of.strip_prefix(CALLS)) {
            (Some(role), _) => matches!(role, "user" | "assistant" | "system" | "tool"),
            (_, Some(tool)) => is_tool_name(tool),
            _ => false,
        };
        is_count.then_some((of.to_string(), count.parse().ok()?))
    };
    checkpoint.completed_work.iter().filter_map(count).collect()
}

fn is_tool_name(name: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/');
    !name.is_empty() && name.len() <= TOOL_BYTES_MAX && name.chars().all(is_part)
}

/// Refuses a checkpoint that repeats words of the turns that it covers.
pub fn check_unquoted(checkpoint: &Checkpoint, turns: &[Candidate<'_>]) -> Result<(), Error> {
    let mut spoken: HashSet<Vec<String>> = HashSet::new();
    for turn in turns {
        let texts = turn.message.map(|message| said(message, turn.role)).unwrap_or_default();
        for text in texts {
            spoken.extend(words(&text).windows(QUOTE_WORDS).map(<[String]>::to_vec));
        }
    }
    let Checkpoint { goal, handoff_md, critical_identifiers, .. } = checkpoint;
    let lists = [
        &checkpoint.user_constraints,
        &checkpoint.decisions,
        &checkpoint.discoveries,
        &checkpoint.completed_work,
        &checkpoint.pending_work,
        &checkpoint.unresolved_questions,
    ];
    for text in lists.into_iter().flatten().chain([goal, handoff_md]) {
        let words = words(text);
        if let Some(quote) = words.windows(QUOTE_WORDS).find(|run| spoken.contains(*run)) {
            let text = format!("it quotes {:?}; say it in other words", clip(&quote.join(" ")));
            return Err(Error::invalid("checkpoint.quotes", text));
        }
    }
    match critical_identifiers.is_empty() {
        true => Ok(()),
        false => {
            let text = "critical_identifiers must be empty: they repeat what was said";
            Err(Error::invalid("checkpoint.quotes", text))
        }
    }
}

fn words(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect()
}
