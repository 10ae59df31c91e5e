//! `everturn project`

use crate::args::{Args, Project};
use crate::open;
use crate::output::{self, Failure};
use everturn_core::Error;
use everturn_core::json::Raw;
use everturn_core::projection;
use everturn_engine::script;
use everturn_formats::transcript;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::io::Read;
use std::path::Path;

pub fn run(args: &Args, verb: &Project) -> Result<(), Failure> {
    let asked = asked(verb)?;
    let options = script::options(&asked)?;
    let Some(text) = given(&verb.source)? else {
        let store = open::reading(args)?;
        let view = store.project(store.resolve(&verb.source)?, &asked)?;
        return match verb.messages {
            true => output::json(&messages(&view)),
            false => output::json(&view),
        };
    };
    let value = Raw::new(text.trim_start_matches('\u{feff}').trim().to_string())?;
    let (messages, summary) = transcript::messages(&value)?;
    let view = projection::project(&messages, summary.as_deref(), &options)?;
    if verb.messages { output::json(&view.messages) } else { output::json(&view) }
}

/// Just the messages of a result object.
fn messages(view: &Raw) -> Vec<Raw> {
    #[derive(Deserialize)]
    struct View {
        messages: Vec<Raw>,
    }
    view.read::<View>().map(|view| view.messages).unwrap_or_default()
}

fn asked(verb: &Project) -> Result<Value, Error> {
    let mut fields = match &verb.options {
        Some(text) => serde_json::from_str::<Map<String, Value>>(text).map_err(|e| {
            Error::invalid("json.not_an_object", format!("--options must be a JSON object: {e}"))
        })?,
        None => Map::new(),
    };
    if let Some(policy) = &verb.policy {
        let mut policies: Vec<&str> = policy.split(',').map(str::trim).collect();
        let policy = if policies.len() == 1 { json!(policies.remove(0)) } else { json!(policies) };
        if fields.insert("policy".into(), policy).is_some() {
            let text = "the policy is in --policy and in --options; say it once";
            return Err(Error::invalid("projection.policy", text));
        }
    }
    if let Some(path) = &verb.script {
        let source = std::fs::read_to_string(path).map_err(|e| {
            Error::invalid("file.cannot_read", format!("cannot read {}: {e}", path.display()))
        })?;
        fields.insert("projector".into(), json!(source));
    }
    Ok(Value::Object(fields))
}

/// What a file or standard input says; `None` if a conversation is meant.
fn given(source: &str) -> Result<Option<String>, Error> {
    let cannot = |e: std::io::Error| Error::invalid("file.cannot_read", format!("cannot read {source}: {e}"));
    if source == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map_err(cannot)?;
        return Ok(Some(text));
    }
    if source.starts_with("conv_") || source.starts_with('@') || !Path::new(source).exists() {
        return Ok(None);
    }
    std::fs::read_to_string(source).map(Some).map_err(cannot)
}
