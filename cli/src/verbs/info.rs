//! `everturn info`

use crate::args::Args;
use crate::output::{self, Failure};
use crate::{dates, open, show};
use clap::Args as ClapArgs;
use everturn_api::conversations::GetConversation;
use everturn_api::usage::GetTokenUsage;
use everturn_core::conversation::{Conversation, Retention};
use everturn_core::json::Raw;
use everturn_engine::DayUsage;
use everturn_formats::render::thousands;
use serde_json::Value;

#[derive(ClapArgs)]
#[command(
    after_help = "Examples:\n  everturn info @last\n  everturn info conv_01J9 --json\n\nTimes are local."
)]
pub struct Info {
    /// Conversation: id, beginning of an id, or @last
    #[arg(value_name = "CONV")]
    conversation: String,
}

/// Number of days whose model calls are counted: the maximum of a request.
const DAYS_MAX: u64 = 3660;

const DIM: anstyle::Style = anstyle::Style::new().dimmed();
const BOLD: anstyle::Style = anstyle::Style::new().bold();

pub fn run(args: &Args, verb: &Info) -> Result<(), Failure> {
    let store = open::reading(args)?;
    let id = store.resolve(&verb.conversation)?;
    let conversation = store.call(GetConversation { conversation: id.into() })?;
    if args.json {
        return output::json(&conversation);
    }
    let title = show::title(&conversation);
    output::text(format!("{BOLD}{}{BOLD:#}", show::one_line(title)))?;
    // The file of a subagent may be imported without that of its session.
    let works_for = conversation
        .works_for()
        .filter(|id| store.call(GetConversation { conversation: (*id).into() }).is_ok())
        .map(|id| id.to_string());
    let used = store.call(GetTokenUsage { days: Some(DAYS_MAX), conversation: Some(id.into()) })?;
    for (name, value) in facts(&conversation, works_for, &used.days) {
        output::text(format!("  {DIM}{name:<13}{DIM:#} {value}"))?;
    }
    Ok(())
}

fn facts(
    conversation: &Conversation,
    works_for: Option<String>,
    used: &[DayUsage],
) -> Vec<(&'static str, String)> {
    let mut facts = vec![("id", conversation.id.to_string()), ("state", conversation.state.to_string())];
    let mut add = |name, value: Option<String>| facts.extend(value.map(|value| (name, value)));
    add("agent", conversation.agent().map(|agent| show::one_line(&agent)));
    add("project", conversation.project().map(|project| show::one_line(&project)));
    add("branch", conversation.git_branch().map(|branch| show::one_line(&branch)));
    add("owner", conversation.owner.as_deref().map(show::one_line));
    let participants: Vec<String> =
        conversation.participants.iter().map(|name| show::one_line(name)).collect();
    add("participants", Some(participants.join(", ")).filter(|names| !names.is_empty()));
    add("turns", Some(conversation.turns.to_string()));
    let mut models: Vec<String> =
        used.iter().filter_map(|day| day.model.as_deref().map(show::one_line)).collect();
    models.sort_unstable();
    models.dedup();
    add("models", Some(models.join(", ")).filter(|models| !models.is_empty()));
    let sum = |tokens: fn(&DayUsage) -> u64| used.iter().map(tokens).sum::<u64>();
    let (prompt, completion) = (sum(|day| day.spent.prompt), sum(|day| day.spent.completion));
    let tokens = format!("{} in, {} out", thousands(prompt), thousands(completion));
    add("tokens", Some(tokens).filter(|_| prompt + completion > 0));
    add("began", conversation.began.map(dates::to_second));
    add("last turn", conversation.last_said.map(dates::to_second));
    add("created", Some(dates::to_second(conversation.created)));
    add("changed", Some(dates::to_second(conversation.updated)));
    let parent = conversation.parent.map(|parent| format!("{} at #{}", parent.conversation, parent.at_seq));
    add("fork of", parent);
    add("works for", works_for);
    add("continues", conversation.predecessor.map(|id| id.to_string()));
    let summarized = conversation.checkpoint.map(|checkpoint| {
        format!("{} up to #{}", show::count(checkpoint.turns_before, "turn"), checkpoint.through_seq)
    });
    add("summarized", summarized);
    add("budget", budget(conversation));
    add(
        "retention",
        Some(conversation.retention).filter(|it| *it != Retention::Full).map(|it| it.to_string()),
    );
    add("deleted on", conversation.expires().map(dates::to_second));
    add("log", Some(format!("#{}, head {}", conversation.head.seq, conversation.head.hash)));
    facts
}

/// Use of a conversation's own limits, and the last action that kept it within one.
fn budget(conversation: &Conversation) -> Option<String> {
    let told: Value = conversation.transcript_budget.as_ref()?.read()?;
    let own = conversation.policy.get("budget").and_then(Raw::read::<Value>).unwrap_or_default();
    let limits = ["messages", "events", "bytes"].into_iter().filter_map(|what| {
        let limit = own[format!("max_{what}")].as_u64()?;
        Some(format!("{} of {} {what}", thousands(told["usage"][what].as_u64()?), thousands(limit)))
    });
    let last =
        told["last_action"]["action"].as_str().map(|action| format!("last: {}", show::one_line(action)));
    Some(limits.chain(last).collect::<Vec<_>>().join(", ")).filter(|budget| !budget.is_empty())
}
