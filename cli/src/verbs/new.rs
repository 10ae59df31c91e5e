//! `everturn new`

use crate::args::Args;
use crate::output::{self, Failure};
use crate::{dates, open, show};
use clap::Args as ClapArgs;
use everturn_api::conversations::CreateConversation;
use everturn_core::Error;
use everturn_core::json::Raw;
use std::collections::BTreeMap;

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn new --title 'Fix the build'\n  \
    id=$(everturn new --json | jq -r .id)\n  \
    everturn new --system-prompt \"$(cat prompt.md)\" --retention audit-only")]
pub struct New {
    /// Title for people
    #[arg(long)]
    title: Option<String>,
    /// Owner within the tenant
    #[arg(long)]
    owner: Option<String>,
    /// Actor that takes part from the beginning; may be repeated
    #[arg(long = "participant", value_name = "ACTOR")]
    participants: Vec<String>,
    /// Instructions for the whole conversation
    #[arg(long, value_name = "TEXT")]
    system_prompt: Option<String>,
    /// Metadata, as a JSON object
    #[arg(long, value_name = "JSON")]
    metadata: Option<String>,
    /// Retention of content: full, audit-only or ephemeral
    #[arg(long)]
    retention: Option<String>,
    /// Time to live: delete it this long after its last change, in seconds or as in 12h, 7d
    #[arg(long, value_name = "TIME")]
    ttl: Option<String>,
    /// Treatment of secrets in turns: off, mark or mask
    #[arg(long, value_name = "MODE")]
    redaction: Option<String>,
    /// Policies as a JSON object: compaction, budget, facts, redaction, projection,
    /// abandon_tools_after_s
    #[arg(long, value_name = "JSON")]
    policy: Option<String>,
}

pub fn run(args: &Args, verb: &New) -> Result<(), Failure> {
    let mut new = CreateConversation {
        title: verb.title.clone(),
        owner: verb.owner.clone(),
        participants: verb.participants.clone(),
        ttl: verb.ttl.as_deref().map(|ttl| dates::seconds(ttl).map_err(|e| e.at("--ttl"))).transpose()?,
        retention: verb.retention.as_deref().map(|it| show::option("--retention", it)).transpose()?,
        system_prompt: verb.system_prompt.clone(),
        ..CreateConversation::default()
    };
    if let Some(text) = &verb.metadata {
        new.metadata = object("--metadata", text)?;
    }
    if let Some(text) = &verb.policy {
        new.policy = object("--policy", text)?;
    }
    if let Some(mode) = &verb.redaction {
        new.policy.insert("redaction".into(), Raw::of(mode)?);
    }
    let conversation = open::making(args)?.call(new)?;
    if args.json {
        return output::json(&conversation);
    }
    output::text(show::conversation(&conversation))?;
    let again = args.again();
    eprintln!("next: everturn append @last 'hello'{again}   then: everturn history @last{again}");
    Ok(())
}

pub fn object(option: &str, text: &str) -> Result<BTreeMap<String, Raw>, Error> {
    let wrong = |why: &str| {
        let text = format!("{option} must be a JSON object such as '{{\"a\": 1}}'{why}");
        Error::invalid("json.not_an_object", text)
    };
    let raw = Raw::new(text.to_string()).map_err(|e| wrong(&format!(": {}", e.text())))?;
    raw.read().ok_or_else(|| wrong(""))
}
