//! `everturn list`

use crate::args::Args;
use crate::output::{self, Failure};
use crate::{open, show};
use clap::Args as ClapArgs;
use everturn_api::ConversationName;
use everturn_api::conversations::ListConversations;

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  everturn list\n  everturn list --query build --state active --json\n  \
    everturn list --url http://127.0.0.1:7317       (the same, at a server)")]
pub struct List {
    /// Only those whose title contains this text
    #[arg(long, short)]
    query: Option<String>,
    /// Only those in this state: active, archived, abandoned or closed
    #[arg(long)]
    state: Option<String>,
    /// Maximum number of conversations
    #[arg(long, short, default_value_t = 20, value_name = "N")]
    limit: usize,
    /// Only forks of this conversation
    #[arg(long, value_name = "CONV")]
    forked_from: Option<String>,
    /// Continue after a page: the `next` of the previous page
    #[arg(long, value_name = "NEXT")]
    after: Option<String>,
}

pub fn run(args: &Args, verb: &List) -> Result<(), Failure> {
    let store = open::reading(args)?;
    let page = store.call(ListConversations {
        query: verb.query.clone(),
        state: verb.state.as_deref().map(str::parse).transpose()?,
        forked_from: verb.forked_from.clone().map(ConversationName),
        after: verb.after.clone(),
        limit: Some(verb.limit),
    })?;
    if args.json {
        return output::json(&page);
    }
    if page.data.is_empty() {
        return output::text("no conversations; `everturn new` creates one");
    }
    for conversation in &page.data {
        output::text(show::conversation(conversation))?;
    }
    if let Some(next) = page.next {
        output::text(format!("more: everturn list --after {next}"))?;
    }
    Ok(())
}
