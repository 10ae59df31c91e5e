//! `everturn update`, `archive`, `close` and `reset`

use super::new::object;
use crate::args::Args;
use crate::output::{self, Failure};
use crate::{open, show};
use clap::Args as ClapArgs;
use everturn_api::conversations::{ChangeConversation, ResetConversation};
use everturn_core::Error;
use everturn_core::conversation::Lifecycle;

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn update @last --title 'Lisbon in May'\n  \
    everturn update @last --retention audit-only --ttl 86400\n  \
    everturn update @last --metadata '{\"project\": null, \"team\": \"web\"}'     (null removes a key)\n  \
    everturn update @last --policy '{\"compaction\": {\"trigger\": {\"turns\": 40}}}'\n  \
    everturn update @last --ttl none")]
pub struct Update {
    /// Conversation: id, beginning of an id, or @last
    #[arg(value_name = "CONV")]
    conversation: String,
    /// Title; an empty one removes it
    #[arg(long)]
    title: Option<String>,
    /// Owner within the tenant; an empty one removes it
    #[arg(long)]
    owner: Option<String>,
    /// Metadata to set, merged key by key; null removes a key
    #[arg(long, value_name = "JSON")]
    metadata: Option<String>,
    /// Time to live: seconds after the last change until it is deleted, or none
    #[arg(long, value_name = "SECONDS")]
    ttl: Option<String>,
    /// Retention of content: full, audit-only or ephemeral
    #[arg(long)]
    retention: Option<String>,
    /// Policies to set (compaction, budget, facts, redaction), merged key by key; null removes a key
    #[arg(long, value_name = "JSON")]
    policy: Option<String>,
    /// Instructions for the whole conversation; an empty text removes them
    #[arg(long, value_name = "TEXT")]
    system_prompt: Option<String>,
    /// Refuse unless the log ends at this seq: it may have changed meanwhile
    #[arg(long, value_name = "SEQ")]
    expected_seq: Option<u64>,
}

pub fn update(args: &Args, verb: &Update) -> Result<(), Failure> {
    let text = |given: &Option<String>| given.clone().map(|text| Some(text).filter(|text| !text.is_empty()));
    let ttl = match verb.ttl.as_deref() {
        None => None,
        Some("none") => Some(None),
        Some(seconds) => Some(Some(
            seconds
                .parse()
                .map_err(|_| Error::invalid("ttl.malformed", "--ttl is a number of seconds, or none"))?,
        )),
    };
    let change = ChangeConversation {
        title: text(&verb.title),
        owner: text(&verb.owner),
        metadata: verb
            .metadata
            .as_deref()
            .map(|text| object("--metadata", text))
            .transpose()?
            .unwrap_or_default(),
        ttl,
        retention: verb.retention.as_deref().map(str::parse).transpose()?,
        policy: verb.policy.as_deref().map(|text| object("--policy", text)).transpose()?.unwrap_or_default(),
        system_prompt: text(&verb.system_prompt),
        expected_seq: verb.expected_seq,
        ..ChangeConversation::default()
    };
    run(args, &verb.conversation, change)
}

#[derive(ClapArgs)]
#[command(
    after_help = "Examples:\n  everturn rename @last 'Lisbon in May'\n  everturn rename conv_01J9 ''     (no title)"
)]
pub struct Rename {
    /// Conversation: id, beginning of an id, or @last
    #[arg(value_name = "CONV")]
    conversation: String,
    /// New title; an empty one removes it
    #[arg(value_name = "TITLE", required = true)]
    title: Vec<String>,
}

pub fn rename(args: &Args, verb: &Rename) -> Result<(), Failure> {
    let title = Some(Some(verb.title.join(" ")).filter(|title| !title.trim().is_empty()));
    run(args, &verb.conversation, ChangeConversation { title, ..ChangeConversation::default() })
}

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  everturn archive @last\n  everturn archive conv_01J9 --undo")]
pub struct Archive {
    /// Conversation: id, beginning of an id, or @last
    #[arg(value_name = "CONV")]
    conversation: String,
    /// Resume it
    #[arg(long)]
    undo: bool,
    /// Reason; kept in the log
    #[arg(long)]
    reason: Option<String>,
}

pub fn archive(args: &Args, verb: &Archive) -> Result<(), Failure> {
    let state = Some(if verb.undo { Lifecycle::Active } else { Lifecycle::Archived });
    let change = ChangeConversation { state, reason: verb.reason.clone(), ..ChangeConversation::default() };
    run(args, &verb.conversation, change)
}

#[derive(ClapArgs)]
#[command(
    after_help = "A closed conversation can be read, exported and forked. No more turns, approvals, pins or prompts are added to\n\
    it, for ever. What is said about it still can be: title, metadata and retention, facts, summaries, erasure.\n\n\
    Example:\n  everturn close @last --reason 'the trip is over'"
)]
pub struct Close {
    /// Conversation: id, beginning of an id, or @last
    #[arg(value_name = "CONV")]
    conversation: String,
    /// Reason; kept in the log
    #[arg(long)]
    reason: Option<String>,
}

pub fn close(args: &Args, verb: &Close) -> Result<(), Failure> {
    let state = Some(Lifecycle::Closed);
    let change = ChangeConversation { state, reason: verb.reason.clone(), ..ChangeConversation::default() };
    run(args, &verb.conversation, change)
}

#[derive(ClapArgs)]
#[command(
    after_help = "Example:\n  everturn reset @last     (a new one with the same settings; this one is closed)"
)]
pub struct Reset {
    /// Conversation: id, beginning of an id, or @last
    #[arg(value_name = "CONV")]
    conversation: String,
}

pub fn reset(args: &Args, verb: &Reset) -> Result<(), Failure> {
    let store = open::writing(args)?;
    let conversation = store.resolve(&verb.conversation)?.into();
    let new = store.call(ResetConversation { conversation })?;
    if args.json { output::json(&new) } else { output::text(show::conversation(&new)) }
}

fn run(args: &Args, name: &str, change: ChangeConversation) -> Result<(), Failure> {
    let store = open::writing(args)?;
    let conversation = store.resolve(name)?.into();
    let changed = store.call(ChangeConversation { conversation, ..change })?;
    if args.json { output::json(&changed) } else { output::text(show::conversation(&changed)) }
}
