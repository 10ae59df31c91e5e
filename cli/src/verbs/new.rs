//! `everturn new`

use crate::args::{Args, New};
use crate::output::{self, Failure};
use crate::{open, show};
use everturn_core::Error;
use everturn_core::conversation::{Settings, SystemPrompt};
use everturn_core::json::Raw;
use std::collections::BTreeMap;

pub fn run(args: &Args, verb: &New) -> Result<(), Failure> {
    let mut settings = Settings {
        title: verb.title.clone().map(Some),
        owner: verb.owner.clone().map(Some),
        ttl: verb.ttl.map(Some),
        retention: verb.retention.as_deref().map(str::parse).transpose()?,
        system_prompt: verb.system_prompt.clone().map(SystemPrompt::new).map(Some),
        ..Settings::default()
    };
    if let Some(text) = &verb.metadata {
        settings.metadata = object("--metadata", text)?;
    }
    if let Some(text) = &verb.policy {
        settings.policy = object("--policy", text)?;
    }
    if let Some(mode) = &verb.redaction {
        settings.policy.insert("redaction".into(), Raw::of(mode)?);
    }
    let conversation = open::writing(args)?.create(settings)?;
    if args.json {
        return output::json(&conversation);
    }
    output::text(show::conversation(&conversation))?;
    eprintln!("next: everturn append @last 'hello'   then: everturn history @last");
    Ok(())
}

fn object(option: &str, text: &str) -> Result<BTreeMap<String, Raw>, Error> {
    let raw = Raw::new(text.to_string()).map_err(|e| e.at(option))?;
    raw.read().ok_or_else(|| {
        Error::invalid("json.not_an_object", format!("{option} must be a JSON object such as {{\"a\":1}}"))
    })
}
