//! `everturn history`

use crate::args::Args;
use crate::output::{self, Failure};
use crate::{open, show};
use clap::Args as ClapArgs;
use everturn_engine::{Entry, HistoryQuery, Order};

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn history @last\n  \
    everturn history @last --limit 10 --before 120\n  \
    everturn history @last --ids                        (what `everturn erase` takes)\n  \
    everturn history @last --events --json | jq '.data[].kind'")]
pub struct History {
    /// The conversation
    #[arg(value_name = "CONV")]
    conversation: String,
    /// At most this many entries, counted from the end (or from --after)
    #[arg(long, short, default_value_t = 50, value_name = "N")]
    limit: usize,
    /// Only what comes before this place
    #[arg(long, value_name = "SEQ")]
    before: Option<u64>,
    /// Only what comes after this place
    #[arg(long, value_name = "SEQ")]
    after: Option<u64>,
    /// Only turns of this actor; may be given several times
    #[arg(long, value_name = "ACTOR")]
    actor: Vec<String>,
    /// Also turns that others took the place of
    #[arg(long)]
    superseded: bool,
    /// Also events that are not turns
    #[arg(long)]
    events: bool,
    /// Show the id of each turn, for `everturn erase`
    #[arg(long)]
    ids: bool,
    /// Show tool calls, their results and reasoning in full
    #[arg(long)]
    full: bool,
}

pub fn run(args: &Args, verb: &History) -> Result<(), Failure> {
    let store = open::reading(args)?;
    let id = store.resolve(&verb.conversation)?;
    // The newest page, unless a starting point is given; shown oldest first either way.
    let order = if verb.after.is_some() { Order::Ascending } else { Order::Descending };
    let query = HistoryQuery {
        before: verb.before,
        after: verb.after,
        limit: verb.limit,
        order,
        actors: verb.actor.clone(),
        include_superseded: verb.superseded,
        include_events: verb.events,
    };
    let mut page = store.history(id, query)?;
    if order == Order::Descending {
        page.data.reverse();
    }
    if args.json {
        return output::json_list(&page.data, page.next.map(|seq| seq.to_string()));
    }
    let assets = store.assets(id)?;
    let more = page.next.map(|seq| match order {
        Order::Descending => format!("earlier: everturn history {id} --before {seq}\n"),
        Order::Ascending => format!("more: everturn history {id} --after {seq}"),
    });
    if let (Some(more), Order::Descending) = (&more, order) {
        output::text(more)?;
    }
    let detail = show::Detail { full: verb.full, ids: verb.ids };
    for entry in &page.data {
        match entry {
            Entry::Turn(turn) => output::text(show::turn(turn, &assets, detail))?,
            Entry::Event(event) => output::text(show::event(event))?,
        }
    }
    match (&more, order) {
        (Some(more), Order::Ascending) => output::text(more),
        _ if page.data.is_empty() => output::text("nothing was said yet; `everturn append` adds a turn"),
        _ => Ok(()),
    }
}
