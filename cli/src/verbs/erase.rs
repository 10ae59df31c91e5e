//! `everturn erase`

use crate::args::Args;
use crate::output::{self, Failure};
use crate::{open, show};
use clap::Args as ClapArgs;
use everturn_core::Error;
use everturn_core::id::TurnId;

#[derive(ClapArgs)]
#[command(after_help = "Examples:
  everturn erase turn_01J9… --reason 'asked by the customer' --actor dpo
  everturn erase conv_01J9… --event 7 --reason 'asked by the customer'
  everturn erase --said-by ann --reason 'asked by the customer' --actor dpo --yes

What was exported before, and backups made before, still have the words; an incremental backup made afterwards carries the
erasure.")]
pub struct Erase {
    /// The turn's id; with --event, the conversation
    #[arg(value_name = "TURN|CONV", required_unless_present = "said_by", conflicts_with = "said_by")]
    what: Option<String>,
    /// Erase the event at this place, which is no turn: a note, a fact, an imported line, a title
    #[arg(long, value_name = "SEQ", conflicts_with = "said_by")]
    event: Vec<u64>,
    /// Erase everything that this actor said, in all conversations of the tenant
    #[arg(long, value_name = "NAME")]
    said_by: Option<String>,
    /// Do not ask back: needed with --said-by
    #[arg(long)]
    yes: bool,
    /// Why; kept in the log
    #[arg(long)]
    reason: String,
    /// On whose behalf; kept in the log
    #[arg(long)]
    actor: Option<String>,
}

pub fn run(args: &Args, verb: &Erase) -> Result<(), Failure> {
    let by = verb.actor.clone();
    match (&verb.said_by, verb.what.as_deref()) {
        (Some(actor), _) => erase_actor(args, verb, actor),
        (None, Some(conversation)) if !verb.event.is_empty() => {
            let store = open::writing(args)?;
            let id = store.resolve(conversation)?;
            let conversation = store.erase_events(id, &verb.event, by, &verb.reason)?;
            if args.json {
                return output::json(&conversation);
            }
            let events = show::count(verb.event.len() as u64, "event");
            output::text(format!(
                "erased {events} of {id}; envelopes and hashes stay, `everturn verify` still holds"
            ))
        }
        (None, turn) => {
            let id: TurnId = turn.unwrap_or_default().parse()?;
            let erased = open::writing(args)?.erase(id, by, &verb.reason)?;
            if args.json {
                return output::json(&erased);
            }
            output::text(format!("erased {id}; its envelope and hash stay, `everturn verify` still holds"))
        }
    }
}

fn erase_actor(args: &Args, verb: &Erase, actor: &str) -> Result<(), Failure> {
    if !verb.yes {
        let text = format!(
            "this erases everything that {actor} said, in all conversations of tenant {}; add --yes if that is meant",
            args.tenant
        );
        return Err(Error::invalid("erase.unconfirmed", text).into());
    }
    let store = open::writing(args)?;
    let bar = output::progress(0, "turns");
    let erased =
        store.erase_actor(actor, verb.actor.clone(), &verb.reason, &mut |done| bar.set_position(done.turns));
    bar.finish_and_clear();
    let erased = erased?;
    if args.json {
        return output::json(&erased);
    }
    output::text(format!(
        "erased what {actor} said: {} and {} in {}; the name stays in envelopes, and exports and backups made before still have the words",
        show::count(erased.turns, "turn"),
        show::count(erased.events, "other event"),
        show::count(erased.conversations, "conversation")
    ))
}
