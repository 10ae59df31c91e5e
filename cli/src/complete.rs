//! Completions, made by the program itself when a shell asks for them: it knows the conversations.

use crate::args::Args;
use crate::{open, show};
use clap::{Arg, Command, CommandFactory};
use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use everturn_api::conversations::ListConversations;
use everturn_core::limits::PAGE_ENTRIES_MAX;
use std::ffi::OsStr;

/// Environment variable that a shell sets to ask for completions.
pub const VARIABLE: &str = "EVERTURN_COMPLETE";

/// Maximum number of characters of a title beside an id.
const TITLE_CHARS: usize = 50;

/// Answers a shell that asks for completions, and exits. Returns in every other run.
pub fn answer() {
    CompleteEnv::with_factory(Args::whole).var(VARIABLE).bin("everturn").complete();
}

/// The command, with completions for every argument that names a conversation.
pub fn with_conversations(command: Command) -> Command {
    let names_one = |arg: &Arg| arg.get_value_names().is_some_and(|names| names == ["CONV"]);
    command
        .mut_args(|arg| match names_one(&arg) {
            true => arg.add(ArgValueCompleter::new(conversations)),
            false => arg,
        })
        .mut_subcommands(with_conversations)
}

/// Conversations whose id begins with what is typed, latest first, with their titles.
fn conversations(typed: &OsStr) -> Vec<CompletionCandidate> {
    let typed = typed.to_string_lossy();
    let found = || {
        let words: Vec<_> = std::env::args_os().collect();
        let args = store_of(&words)?;
        let all = ListConversations { limit: Some(PAGE_ENTRIES_MAX), ..ListConversations::default() };
        open::reading(&args).ok()?.call(all).ok()
    };
    let listed = found().map(|page| page.data).unwrap_or_default();
    let named = listed.iter().map(|conversation| {
        let title = conversation.title.as_deref().map(|title| show::clipped(title, TITLE_CHARS));
        CompletionCandidate::new(conversation.id.to_string()).help(title.map(Into::into))
    });
    let last = CompletionCandidate::new("@last")
        .help(Some("the one with the latest turn, or a fork made of it since".into()));
    let begins =
        |candidate: &CompletionCandidate| candidate.get_value().to_string_lossy().starts_with(&*typed);
    named.chain([last]).filter(begins).collect()
}

/// The global options among the words of an unfinished command.
fn store_of(words: &[std::ffi::OsString]) -> Option<Args> {
    let mut given = vec!["everturn".into()];
    for (n, word) in words.iter().enumerate() {
        let text = word.to_string_lossy();
        let is = |flag: &&str| text == *flag || text.starts_with(&format!("{flag}="));
        if ["--store", "--url", "--key-file", "--tenant", "--config"].iter().any(is) {
            given.push(word.clone());
            given.extend(words.get(n + 1).filter(|_| !text.contains('=')).cloned());
        }
    }
    Args::read(&Args::command().try_get_matches_from(given).ok()?).ok()
}
