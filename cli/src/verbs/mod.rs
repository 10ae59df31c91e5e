//! One file a verb.

pub mod append;
pub mod backup;
pub mod compact;
pub mod completions;
pub mod context;
pub mod delete;
pub mod doctor;
pub mod erase;
pub mod export;
pub mod facts;
pub mod fork;
pub mod history;
pub mod import;
pub mod keys;
pub mod list;
pub mod mcp;
pub mod new;
pub mod project;
pub mod recall;
pub mod restore;
pub mod serve;
pub mod session;
pub mod state;
pub mod tail;
pub mod verify;

use crate::args::Args;
use crate::output::{self, Failure};
use clap::CommandFactory;

/// Without a verb: what there is, in one screen.
pub fn overview() -> Result<(), Failure> {
    output::text(Args::command().render_help().ansi().to_string().trim_end())
}
