//! `everturn erase`

use crate::args::Args;
use crate::client::turn_place;
use crate::output::{self, Failure};
use crate::{open, show};
use clap::Args as ClapArgs;
use everturn_api::conversations::GetConversation;
use everturn_api::erasing::{EraseActor, EraseEvents, EraseTurn};
use everturn_api::turns::GetTurn;
use everturn_core::Error;
use everturn_core::turn::Turn;

#[derive(ClapArgs)]
#[command(after_help = "Examples:
  everturn erase turn_01J9… --reason 'asked by the customer' --actor dpo
  everturn erase conv_01J9… --event 7 --reason 'asked by the customer'
  everturn erase --said-by ann --reason 'asked by the customer' --actor dpo --yes

`everturn history CONV --ids` shows the ids of turns, and with --events the places of everything else.

What was exported before, and backups made before, still have the words; an incremental backup made afterwards carries the \
erasure. Copies of old titles and metadata may stay in unused space of the store's file until `everturn doctor --compact`.")]
pub struct Erase {
    /// Id of the turn, or its place, as in @last#4; with --event, the conversation
    #[arg(value_name = "TURN|CONV", required_unless_present = "said_by", conflicts_with = "said_by")]
    what: Option<String>,
    /// Erase the event at this seq, which is not a turn: a note, a fact, an imported line, a title
    #[arg(long, value_name = "SEQ", conflicts_with = "said_by")]
    event: Vec<u64>,
    /// Erase everything that this actor wrote, in all conversations of the tenant
    #[arg(long, value_name = "NAME")]
    said_by: Option<String>,
    /// Erase without asking; required with --said-by
    #[arg(long)]
    yes: bool,
    /// Reason; kept in the log
    #[arg(long)]
    reason: String,
    /// Person or program on whose behalf it is erased; kept in the log
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
            let before = store.call(GetConversation { conversation: id.into() })?;
            let after = store.call(EraseEvents {
                conversation: id.into(),
                seqs: verb.event.clone(),
                reason: verb.reason.clone(),
                by,
            })?;
            if args.json {
                return output::json(&after);
            }
            let events = show::count(verb.event.len() as u64, "event");
            if before.head == after.head {
                return output::text(format!("{events} of {id} had been erased before; nothing was added"));
            }
            output::text(format!(
                "erased {events} of {id}; envelopes and hashes stay, `everturn verify` still succeeds"
            ))?;
            output::text(LEFTOVERS)
        }
        (None, turn) => erase_turn(args, verb, turn.unwrap_or_default()),
    }
}

/// Limits of erasing: see `docs/log.md`.
const LEFTOVERS: &str = "copies of old titles and metadata may stay in unused space of the store's file; `everturn doctor --compact` removes them";

fn erase_turn(args: &Args, verb: &Erase, turn: &str) -> Result<(), Failure> {
    if !turn.starts_with("turn_") && !turn.contains('#') {
        let text = format!(
            "{turn:?} is not the id of a turn: `everturn history {turn} --ids` shows them; for an event that is no turn add --event SEQ, and to remove a whole conversation use `everturn delete`"
        );
        return Err(Error::invalid("erase.what", text).into());
    }
    turn_place(turn)?;
    let store = open::writing(args)?;
    let id = store.turn(turn)?;
    // A damaged turn cannot be read, but can be erased.
    let before = store.call(GetTurn { turn: id, conversation: None }).ok();
    let titled = |turn: &Turn| {
        Ok::<_, Error>(store.call(GetConversation { conversation: turn.conversation.into() })?.title)
    };
    let title = before.as_ref().map(titled).transpose()?;
    let erase = EraseTurn { turn: id, reason: verb.reason.clone(), by: verb.actor.clone() };
    let erased = store.call(erase)?;
    if args.json {
        return output::json(&erased);
    }
    if before.is_some_and(|turn| turn.erased) {
        return output::text(format!("{id} had been erased before"));
    }
    output::text(format!("erased {id}; its envelope and hash stay, `everturn verify` still succeeds"))?;
    match title == Some(titled(&erased)?) {
        true => Ok(()),
        false => output::text(LEFTOVERS),
    }
}

/// The tenant. Over HTTP, the key determines it.
fn tenant(args: &Args) -> Result<String, Failure> {
    Ok(match open::server(args)? {
        Some(_) => "the tenant of your key".into(),
        None => format!("tenant {}", args.tenant),
    })
}

fn erase_actor(args: &Args, verb: &Erase, actor: &str) -> Result<(), Failure> {
    if !verb.yes {
        let text = format!(
            "this erases everything that {actor} said, in all conversations of {}; add --yes to confirm",
            tenant(args)?
        );
        return Err(Error::invalid("erase.unconfirmed", text).into());
    }
    let store = open::writing(args)?;
    let bar = output::progress(0, "turns and events");
    let erase = EraseActor { actor: actor.into(), reason: verb.reason.clone(), by: verb.actor.clone() };
    let told = bar.clone();
    let erased = store.call_telling(erase, move |done| told.set_position(done));
    bar.finish_and_clear();
    let erased = erased?;
    if args.json {
        return output::json(&erased);
    }
    if erased.turns + erased.events == 0 {
        return output::text(format!(
            "nothing was erased: {} has nothing by {actor:?}, or all of it is erased already; names must match exactly",
            tenant(args)?
        ));
    }
    output::text(format!(
        "erased what {actor} said: {} and {} in {}; the name stays in envelopes, and exports and backups made before still contain the text",
        show::count(erased.turns, "turn"),
        show::count(erased.events, "other event"),
        show::count(erased.conversations, "conversation")
    ))?;
    output::text(LEFTOVERS)
}
