//! One file per verb.

pub mod acp;
pub mod append;
pub mod backup;
pub mod change;
pub mod compact;
pub mod completions;
pub mod context;
pub mod copy;
pub mod delete;
pub mod demo;
pub mod doctor;
pub mod erase;
pub mod export;
pub mod facts;
pub mod fork;
pub mod generate;
pub mod history;
pub mod import;
pub mod info;
pub mod keys;
pub mod list;
pub mod man;
pub mod mcp;
pub mod new;
pub mod open;
pub mod project;
pub mod recall;
pub mod record;
pub mod restore;
pub mod serve;
pub mod session;
pub mod state;
pub mod summarize;
pub mod supersede;
pub mod sweep;
pub mod tail;
pub mod verify;

use crate::args::Args;
use crate::output::{self, Failure};
use clap::CommandFactory;

/// Verbs that the overview leaves out.
const FURTHER: [&str; 23] = [
    "info",
    "supersede",
    "scratchpad",
    "generate",
    "request-approval",
    "approve",
    "deny",
    "abandon-call",
    "summarize",
    "update",
    "rename",
    "archive",
    "close",
    "reset",
    "delete",
    "erase",
    "sweep",
    "open",
    "copy",
    "acp",
    "record",
    "completions",
    "man",
];

/// Without a verb: an overview on one screen.
pub fn overview() -> Result<(), Failure> {
    let further = FURTHER.join(", ");
    // One heading is enough here, and no empty line above the usage.
    let command =
        Args::command().help_template(crate::args::ONE_SCREEN).mut_args(|arg| arg.help_heading(None::<&str>));
    let command = command.mut_arg("tenant", |tenant| tenant.hide(true));
    let command =
        FURTHER.iter().fold(command, |command, verb| command.mut_subcommand(verb, |verb| verb.hide(true)));
    let after = format!("More: {further}. {}", command.get_after_help().cloned().unwrap_or_default());
    output::text(command.after_help(after).render_help().ansi().to_string().trim_end())
}
