//! `everturn list`

use crate::args::Args;
use crate::output::{self, Failure};
use crate::store::{self, Cursor};
use crate::{open, show};
use clap::Args as ClapArgs;
use everturn_core::Error;
use everturn_engine::ListQuery;

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  everturn list\n  everturn list --query build --state active --json\n  \
    everturn list --url http://127.0.0.1:7317       (the same, at a server)")]
pub struct List {
    /// Only those whose title contains this
    #[arg(long, short)]
    query: Option<String>,
    /// Only those that are active, archived, abandoned or closed
    #[arg(long)]
    state: Option<String>,
    /// At most this many
    #[arg(long, short, default_value_t = 20, value_name = "N")]
    limit: usize,
    /// Go on after a page: the `next` of the page before
    #[arg(long, value_name = "NEXT")]
    after: Option<String>,
}

pub fn run(args: &Args, verb: &List) -> Result<(), Failure> {
    let store = open::reading(args)?;
    let after = verb.after.as_deref().map(cursor).transpose()?;
    let query = ListQuery {
        text: verb.query.clone(),
        state: verb.state.as_deref().map(str::parse).transpose()?,
        after,
        limit: verb.limit,
    };
    let page = store.list(query)?;
    let next = page.next.map(|(updated, id)| format!("{updated}/{id}"));
    if args.json {
        return output::json_list(&page.data, next);
    }
    if page.data.is_empty() {
        return output::text("no conversations; `everturn new` begins one");
    }
    for conversation in &page.data {
        output::text(show::conversation(conversation))?;
    }
    if let Some(next) = next {
        output::text(format!("more: everturn list --after {next}"))?;
    }
    Ok(())
}

fn cursor(text: &str) -> Result<Cursor, Error> {
    store::cursor(text).ok_or_else(|| {
        Error::invalid("list.after", "--after is not the `next` of a page; copy it from there")
    })
}
