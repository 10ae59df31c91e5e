//! `everturn supersede`

use super::append::{input, said, standard_input};
use crate::args::Args;
use crate::open;
use crate::output::Failure;
use clap::Args as ClapArgs;
use everturn::NewTurn;
use everturn_api::ConversationName;
use everturn_api::turns::{EditAndBranch, GetTurn, SupersedeTurn};
use everturn_core::Error;
use everturn_core::id::TurnId;
use everturn_core::turn::Role;

#[derive(ClapArgs)]
#[command(
    after_help = "`everturn history CONV --ids` shows the ids of turns; the old turn stays in the log.\n\n\
    Examples:\n  \
    everturn supersede turn_01J9… 'I meant Porto'\n  \
    everturn supersede turn_01J9… 'I meant Porto' --branch\n  \
    cat better.json | everturn supersede turn_01J9… --message -"
)]
pub struct Supersede {
    /// Id of the turn
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
    let turn: TurnId = verb.turn.parse()?;
    let role: Option<Role> = verb.role.as_deref().map(str::parse).transpose()?;
    let text = if verb.text == "-" { standard_input()? } else { verb.text.clone() };
    if text.trim().is_empty() && !verb.message {
        let text = "there is no new text: it is empty; give it as TEXT, or on standard input";
        return Err(Error::invalid("append.empty", text).into());
    }
    let store = open::writing(args)?;
    let conversation = verb.conversation.as_deref().map(|name| store.resolve(name)).transpose()?;
    let conversation = conversation.map(ConversationName::from);
    let old = store.call(GetTurn { turn, conversation: conversation.clone() })?;
    let mut with = match verb.message {
        true => NewTurn::message(text),
        false => NewTurn::text(role.unwrap_or(old.role), text.trim_end_matches('\n')),
    };
    with.actor = verb.actor.clone().or(old.actor);
    let with = input(with)?;
    let appended = match verb.branch {
        true => store.call(EditAndBranch { turn, conversation, with })?,
        false => store.call(SupersedeTurn { turn, conversation, with })?,
    };
    appended.turns.iter().try_for_each(|turn| said(args, turn))
}
