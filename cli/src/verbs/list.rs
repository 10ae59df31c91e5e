//! `everturn list`

use crate::args::{Args, List};
use crate::output::{self, Failure};
use crate::store::{self, Cursor};
use crate::{open, show};
use everturn_core::Error;
use everturn_engine::ListQuery;

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
