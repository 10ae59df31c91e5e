//! `everturn generate`

use crate::args::{Args, Model};
use crate::output::{self, Failure};
use crate::{model, open, show};
use clap::Args as ClapArgs;
use everturn::Options;
use everturn_api::generations as api;
use everturn_api::turns::TurnInput;
use everturn_core::json::Raw;
use everturn_core::turn::Role;
use std::collections::BTreeMap;

#[derive(ClapArgs)]
#[command(
    mut_arg("base_url", |arg| arg.help("The server of the model; with --url, the server's own models are asked")),
    mut_arg("model", |arg| arg.help("Which model; with --url, its name in the server's settings")),
    after_help = "Examples:\n  \
    everturn generate @last 'And then?' --base-url http://localhost:8080/v1 --model qwen3\n  \
    everturn generate @last --url http://127.0.0.1:7317     (answer what the conversation ends with)"
)]
pub struct Generate {
    /// The conversation
    #[arg(value_name = "CONV")]
    conversation: String,
    /// What is said first; without it, the model answers what the conversation ends with
    #[arg(value_name = "TEXT")]
    text: Option<String>,
    /// Who says it
    #[arg(long)]
    actor: Option<String>,
    /// Most tokens of the answer
    #[arg(long, value_name = "N")]
    max_tokens: Option<u64>,
    #[command(flatten)]
    model: Model,
}

pub fn run(args: &Args, verb: &Generate) -> Result<(), Failure> {
    let servers_own = "a server asks its own models, as its settings say";
    let models = model::models(args, &verb.model, servers_own)?;
    let remote = open::server(args)?.is_some();
    let store = open::with(args, Options { create: false, models, ..Options::default() })?;
    let input = match &verb.text {
        Some(text) => vec![TurnInput {
            role: Some(Role::User),
            content: Some(Raw::of(text)?),
            actor: verb.actor.clone(),
            ..TurnInput::default()
        }],
        None => Vec::new(),
    };
    let answer = store.call(api::Generate {
        conversation: store.resolve(&verb.conversation)?.into(),
        input,
        expected_seq: None,
        // Here the model is the one that was named; a server knows several.
        model: verb.model.model.clone().filter(|_| remote),
        served_model: None,
        context: None,
        max_output_tokens: verb.max_tokens,
        temperature: None,
        extra: BTreeMap::new(),
        actor: None,
        metadata: BTreeMap::new(),
        parallel: false,
        stream: false,
        idempotency_key: None,
    })?;
    if args.json {
        return output::json(&answer);
    }
    let text = answer.refusal.as_deref().unwrap_or(&answer.text);
    if !text.is_empty() {
        output::text(show::printable_lines(text))?;
    }
    for call in &answer.calls {
        output::text(format!("calls {}({})", show::one_line(&call.name), show::one_line(&call.arguments)))?;
    }
    Ok(())
}
