//! `everturn completions`

use crate::args::Args;
use crate::output::{self, Failure};
use clap::{Args as ClapArgs, CommandFactory};

#[derive(ClapArgs)]
#[command(
    after_help = "Example:\n  everturn completions bash > ~/.local/share/bash-completion/completions/everturn"
)]
pub struct Completions {
    /// Shell to print completions for
    #[arg(value_enum)]
    shell: clap_complete::Shell,
}

pub fn run(verb: &Completions) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(verb.shell, &mut Args::command(), "everturn", &mut script);
    output::text(String::from_utf8_lossy(&script).trim_end())
}
