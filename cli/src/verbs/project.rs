//! `everturn project`

use crate::args::Args;
use crate::output::{self, Failure};
use crate::{open, show};
use clap::Args as ClapArgs;
use everturn_api::projections::{ProjectConversation, ProjectionOptions, View};
use everturn_core::Error;
use everturn_core::json::Raw;
use everturn_core::message;
use everturn_engine::script;
use everturn_formats::transcript;
use everturn_views::projection;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn project @last --policy clean_tool_repair\n  \
    everturn project transcript.json --policy reachability_gc --options '{\"root_window\": 6}'\n  \
    cat messages.json | everturn project - --policy squash_failed_calls --messages\n  \
    everturn project @last --policy custom --script drop-tracebacks.rhai")]
pub struct Project {
    /// A transcript value or a list of messages in a file, a conversation, or - for standard input
    #[arg(value_name = "FILE | CONV | -", default_value = "-")]
    source: String,
    /// Policy: raw, clean_tool_repair, squash_failed_calls, summary_prefix, reachability_gc, clear_tool_uses or
    /// custom; several are applied in order, separated by commas
    #[arg(long, value_name = "P")]
    policy: Option<String>,
    /// Additional options, as a JSON object
    #[arg(long, value_name = "JSON")]
    options: Option<String>,
    /// Projector for custom: a script in a file
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
    /// Print only the messages
    #[arg(long)]
    messages: bool,
}

pub fn run(args: &Args, verb: &Project) -> Result<(), Failure> {
    let asked = asked(verb)?;
    let options = script::options(&Value::Object(asked.clone()))?;
    let Some(text) = given(&verb.source)? else {
        let store = open::reading(args)?;
        let conversation = store.resolve(&verb.source)?.into();
        let View(view) =
            store.call(ProjectConversation { conversation, options: ProjectionOptions(asked) })?;
        return print(args, verb, &messages(&view), &view);
    };
    let value = Raw::new(text.trim_start_matches('\u{feff}').trim().to_string())?;
    let (messages, summary) = transcript::messages(&value)?;
    let view = projection::project(&messages, summary.as_deref(), &options)?;
    let view = Raw::of(&view)?;
    print(args, verb, &self::messages(&view), &view)
}

/// Number of characters shown of a message.
const SHOWN_CHARS: usize = 100;

/// A line for each message on a terminal, JSON anywhere else.
fn print(args: &Args, verb: &Project, messages: &[Raw], view: &Raw) -> Result<(), Failure> {
    if args.json || !std::io::stdout().is_terminal() {
        return if verb.messages { output::json(&messages) } else { output::json(view) };
    }
    for message in messages.iter().filter_map(Raw::read::<Value>) {
        let role = message::role(&message).map_or("message", |role| role.as_str());
        let text = show::clipped(&message::render(&message, |_| None), SHOWN_CHARS);
        output::text(format!("{role:<9}  {text}"))?;
    }
    output::text(format!("{}; --json prints the whole result", show::count(messages.len() as u64, "message")))
}

/// Only the messages of a result object.
fn messages(view: &Raw) -> Vec<Raw> {
    #[derive(Deserialize)]
    struct Messages {
        messages: Vec<Raw>,
    }
    view.read::<Messages>().map(|view| view.messages).unwrap_or_default()
}

fn asked(verb: &Project) -> Result<Map<String, Value>, Error> {
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
            let text = "the policy is in --policy and in --options; give it once";
            return Err(Error::invalid("projection.policy", text));
        }
    }
    if let Some(path) = &verb.script {
        let source = std::fs::read_to_string(path).map_err(|e| {
            Error::invalid("file.cannot_read", format!("cannot read {}: {e}", path.display()))
        })?;
        fields.insert("projector".into(), json!(source));
    }
    Ok(fields)
}

/// The content of a file or standard input; `None` for a conversation.
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
