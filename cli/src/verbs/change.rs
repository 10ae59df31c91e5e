//! `everturn update`, `archive`, `close` and `reset`

use super::new::object;
use crate::args::Args;
use crate::output::{self, Failure};
use crate::{dates, open, show};
use clap::Args as ClapArgs;
use everturn_api::conversations::{ChangeConversation, ResetConversation};
use everturn_core::Error;
use everturn_core::conversation::{Conversation, Lifecycle};
use everturn_core::json::Raw;
use std::collections::BTreeMap;

/// Number of characters shown of a value.
const VALUE_CHARS: usize = 60;

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn update @last --title 'Lisbon in May'\n  \
    everturn update @last --retention audit-only --ttl 30d\n  \
    everturn update @last --metadata '{\"project\": null, \"team\": \"web\"}'     (null removes a key)\n  \
    everturn update @last --policy '{\"compaction\": {\"max_turns\": 40}}'\n  \
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
    /// Time to live: how long after the last change it is deleted, in seconds or as in 12h, 7d; or none
    #[arg(long, value_name = "TIME")]
    ttl: Option<String>,
    /// Retention of content: full, audit-only or ephemeral
    #[arg(long)]
    retention: Option<String>,
    /// Policies to set (compaction, budget, facts, redaction, projection, abandon_tools_after_s), merged key by key; null
    /// removes a key
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
        Some(time) => Some(Some(
            dates::seconds(time)
                .map_err(|e| e.reworded(|text| format!("--ttl: {text}, or none to remove it")))?,
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
        retention: verb.retention.as_deref().map(|it| show::option("--retention", it)).transpose()?,
        policy: verb.policy.as_deref().map(|text| object("--policy", text)).transpose()?.unwrap_or_default(),
        system_prompt: text(&verb.system_prompt),
        expected_seq: verb.expected_seq,
        ..ChangeConversation::default()
    };
    // Compared as JSON, as it is sent.
    let empty = ChangeConversation { expected_seq: verb.expected_seq, ..ChangeConversation::default() };
    if serde_json::to_value(&change).ok() == serde_json::to_value(&empty).ok() {
        let text =
            "nothing to change; give --title, --metadata or another option, see `everturn update --help`";
        return Err(Error::invalid("update.nothing", text).into());
    }
    let changed = changed(args, &verb.conversation, change)?;
    if args.json {
        return output::json(&changed);
    }
    output::text(show::conversation(&changed))?;
    shown_settings(verb, &changed)
}

/// The new values of changed settings that the line of a conversation does not show.
fn shown_settings(verb: &Update, now: &Conversation) -> Result<(), Failure> {
    let object = |fields: &BTreeMap<String, Raw>| {
        let fields: Vec<String> = fields
            .iter()
            .filter(|(name, _)| *name != "system_prompt")
            .map(|(name, raw)| format!("{name}: {}", show::clipped(raw.get(), VALUE_CHARS)))
            .collect();
        if fields.is_empty() { "none".to_string() } else { fields.join(", ") }
    };
    let expiry = || match (now.ttl, now.expires()) {
        (Some(ttl), Some(at)) => format!("{} ({})", show::count(ttl, "second"), dates::to_second(at)),
        _ => "none".to_string(),
    };
    let settings = [
        (verb.owner.is_some(), "owner", now.owner.clone().unwrap_or("none".into())),
        (verb.metadata.is_some(), "metadata", object(&now.metadata)),
        (verb.ttl.is_some(), "deleted after", expiry()),
        (verb.retention.is_some(), "retention", now.retention.to_string()),
        (verb.policy.is_some(), "policy", object(&now.policy)),
    ];
    let given = settings.into_iter().filter(|(given, ..)| *given);
    given.map(|(_, name, value)| format!("  {name}  {}", show::one_line(&value))).try_for_each(output::text)
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
    after_help = "A closed conversation can be read, exported and forked. Turns, approvals, pins and prompts can never be added to it again. Its title, metadata, retention, facts and summaries can still change, and its content can be erased.\n\n\
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
    if args.json {
        return output::json(&new);
    }
    output::text(show::conversation(&new))?;
    match new.predecessor {
        Some(old) => output::text(format!("starts over with the settings of {old}, which is closed now")),
        None => Ok(()),
    }
}

fn changed(args: &Args, name: &str, change: ChangeConversation) -> Result<Conversation, Failure> {
    let store = open::writing(args)?;
    let conversation = store.resolve(name)?.into();
    Ok(store.call(ChangeConversation { conversation, ..change })?)
}

fn run(args: &Args, name: &str, change: ChangeConversation) -> Result<(), Failure> {
    let changed = changed(args, name, change)?;
    if args.json { output::json(&changed) } else { output::text(show::conversation(&changed)) }
}
