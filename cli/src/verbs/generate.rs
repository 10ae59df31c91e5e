//! `everturn generate`

use crate::args::{Args, Model};
use crate::client::Client;
use crate::output::{self, Failure};
use crate::{model, open, show};
use clap::Args as ClapArgs;
use everturn_api::generations as api;
use everturn_api::state::GetState;
use everturn_api::turns::TurnInput;
use everturn_core::Error;
use everturn_core::json::Raw;
use everturn_core::turn::Role;
use everturn_engine::{Options, Regenerate};
use std::collections::BTreeMap;

#[derive(ClapArgs)]
#[command(
    mut_arg("base_url", |arg| arg.help("URL of the model's server; with --url, the server's own models are used")),
    mut_arg("model", |arg| arg.help("Name of the model; with --url, its name in the server's configuration")),
    after_help = "Examples:\n  \
    everturn generate @last 'And then?' --base-url http://localhost:8080/v1 --model qwen3\n  \
    everturn generate @last --url http://127.0.0.1:7317     (answer what the conversation ends with)\n  \
    everturn generate @last --regenerate --url http://127.0.0.1:7317     (another answer in place of the last)\n  \
    everturn generate @last --regenerate=@last#4 --url http://127.0.0.1:7317     (in place of turn 4)"
)]
pub struct Generate {
    /// Conversation: id, beginning of an id, or @last
    #[arg(value_name = "CONV")]
    conversation: String,
    /// Text of a new user turn; without it, the model replies to the end of the conversation
    #[arg(value_name = "TEXT")]
    text: Option<String>,
    /// Actor of the new turn
    #[arg(long)]
    actor: Option<String>,
    /// Generate an answer anew, in its place: the last one, or the turn with this id or place (--regenerate=@last#4)
    #[arg(long, value_name = "TURN", num_args = 0..=1, require_equals = true, default_missing_value = "last", conflicts_with = "text")]
    regenerate: Option<String>,
    /// Maximum number of tokens of the reply
    #[arg(long, value_name = "N")]
    max_tokens: Option<u64>,
    #[command(flatten)]
    model: Model,
}

pub fn run(args: &Args, verb: &Generate) -> Result<(), Failure> {
    let servers_own = "a server uses its own models, from its configuration";
    let options = Options { create: false, ..open::options(args)? };
    let has_models = verb.model.model.is_some() || !options.models.is_empty();
    let store = model::open(args, options, &verb.model, servers_own)?;
    // The process that owns the store has models of its own.
    if store.is_local() && !has_models {
        let text = "no model is named; pass --base-url and --model (or EVERTURN_MODEL_URL and EVERTURN_MODEL), or describe one under [models.NAME] in the configuration";
        return Err(Error::invalid("model.absent", text).into());
    }
    let input = match &verb.text {
        Some(text) => vec![TurnInput {
            role: Some(Role::User),
            content: Some(Raw::of(text)?),
            actor: verb.actor.clone(),
            ..TurnInput::default()
        }],
        None => Vec::new(),
    };
    let conversation = store.resolve(&verb.conversation)?;
    let regenerate = match verb.regenerate.as_deref() {
        Some("last") => Some(Regenerate::Last),
        Some(turn) => Some(Regenerate::Turn(store.turn(turn)?)),
        None => None,
    };
    let pending = store.call(GetState { conversation: conversation.into(), at: None })?.pending_approvals;
    if !pending.is_empty() {
        let ids: Vec<String> =
            pending.into_iter().map(|approval| show::one_line(&approval.approval_id)).collect();
        // If this process owns the store, `approve` goes through its socket.
        eprintln!("the model is asked once {} is resolved", ids.join(", "));
    }
    let answer = store.call(api::Generate {
        conversation: conversation.into(),
        input,
        regenerate,
        expected_seq: None,
        // Without a server, this model is the default.
        model: verb.model.model.clone().filter(|_| matches!(store, Client::Remote(_))),
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
