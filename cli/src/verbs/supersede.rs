//! `everturn supersede`

use super::append::{input, said, standard_input};
use crate::args::Args;
use crate::client::turn_place;
use crate::output::{self, Failure};
use crate::{open, show};
use clap::Args as ClapArgs;
use everturn_api::ConversationName;
use everturn_api::turns::{EditAndBranch, GetTurn, SupersedeTurn};
use everturn_core::Error;
use everturn_core::turn::Role;
use everturn_engine::NewTurn;

#[derive(ClapArgs)]
#[command(
    after_help = "`everturn history CONV --ids` shows the ids of turns; the old turn stays in the log.\n\n\
    Examples:\n  \
    everturn supersede @last#4 'I meant Porto'\n  \
    everturn supersede turn_01J9… 'I meant Porto' --branch\n  \
    cat better.json | everturn supersede turn_01J9… --message -"
)]
pub struct Supersede {
    /// Id of the turn, or its place, as in @last#4
    #[arg(value_name = "TURN")]
    turn: String,
    /// New text; - reads it from standard input
    #[arg(value_name = "TEXT", default_value = "-")]
    text: String,
    /// Role; by default that of the old turn
    #[arg(long)]
    role: Option<String>,
    /// Actor; by default that of the old turn
    #[arg(long)]
    actor: Option<String>,
    /// TEXT is a message as JSON, in any provider's shape; it is stored unchanged
    #[arg(long, conflicts_with = "role")]
    message: bool,
    /// Branch from there: a fork with everything before the turn, and the new text; the conversation stays as it is
    #[arg(long)]
    branch: bool,
    /// Fork in which to edit an inherited turn; by default where the turn was said
    #[arg(long = "in", value_name = "CONV")]
    conversation: Option<String>,
}

pub fn run(args: &Args, verb: &Supersede) -> Result<(), Failure> {
    // Checked before anything is read.
    turn_place(&verb.turn)?;
    let role: Option<Role> = verb.role.as_deref().map(|role| show::option("--role", role)).transpose()?;
    let text = if verb.text == "-" { standard_input()? } else { verb.text.clone() };
    if text.trim().is_empty() && !verb.message {
        let text = "there is no new text: it is empty; give it as TEXT, or on standard input";
        return Err(Error::invalid("append.empty", text).into());
    }
    let store = open::writing(args)?;
    let turn = store.turn(&verb.turn)?;
    let conversation = verb.conversation.as_deref().map(|name| store.resolve(name)).transpose()?;
    let conversation = conversation.map(ConversationName::from);
    let old = store.call(GetTurn { turn, conversation: conversation.clone() })?;
    let mut with = match verb.message {
        true => NewTurn::message(text),
        false => NewTurn::text(role.unwrap_or(old.role), text.trim_end_matches('\n')),
    };
    with.actor = verb.actor.clone().or(old.actor.clone());
    let with = input(with)?;
    let appended = match verb.branch {
        true => store.call(EditAndBranch { turn, conversation, with })?,
        false => store.call(SupersedeTurn { turn, conversation, with })?,
    };
    appended.turns.iter().try_for_each(|turn| said(args, turn))?;
    match appended.turns.first().filter(|_| !args.json) {
        Some(new) if verb.branch => {
            output::text(format!("branched into {}; {} stays as it was", new.conversation, old.conversation))
        }
        Some(_) => output::text(format!("replaces #{}, which stays in the log", old.seq)),
        None => Ok(()),
    }
}
