//! `everturn completions`

use crate::complete::VARIABLE;
use crate::output::{self, Failure};
use clap::{Args as ClapArgs, ValueEnum};
use clap_complete::env::Shells;
use everturn_core::Error;

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn completions bash > ~/.local/share/bash-completion/completions/everturn\n  \
    everturn completions fish > ~/.config/fish/completions/everturn.fish\n  \
    source <(everturn completions zsh)            (in ~/.zshrc)\n\n\
    Verbs, options and ids of conversations are completed; the script asks `everturn` for them.")]
pub struct Completions {
    /// Shell to print the script for
    #[arg(value_enum)]
    shell: clap_complete::Shell,
}

pub fn run(verb: &Completions) -> Result<(), Failure> {
    let name = verb.shell.to_possible_value().map(|value| value.get_name().to_string()).unwrap_or_default();
    let shells = Shells::builtins();
    let shell = shells
        .completer(&name)
        .ok_or_else(|| Error::invalid("completions.shell", format!("there are no completions for {name}")))?;
    let mut script = Vec::new();
    shell.write_registration(VARIABLE, "everturn", "everturn", "everturn", &mut script)?;
    output::text(String::from_utf8_lossy(&script).trim_end())
}
