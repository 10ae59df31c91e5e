//! `everturn history`

use crate::args::Args;
use crate::client::Client;
use crate::output::{self, Failure};
use crate::{open, show};
use clap::Args as ClapArgs;
use everturn_api::assets::ListAssets;
use everturn_api::conversations::GetConversation;
use everturn_api::events::ListEvents;
use everturn_api::turns::ListTurns;
use everturn_core::error::code;
use everturn_core::event::kind;
use everturn_core::id::{ConversationId, TurnId};
use everturn_core::limits::PAGE_ENTRIES_MAX;
use everturn_core::turn::Turn;
use everturn_core::{Error, pairing};
use everturn_engine::{HistoryEntry, HistoryQuery, Order, Page};
use everturn_views::context::GivenUp;
use everturn_views::state::AbandonedBody;
use serde_json::Value;

/// Default number of entries of a page.
const LIMIT: usize = 50;

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn history @last\n  \
    everturn history @last --limit 10 --before 120\n  \
    everturn history @last --ids                        (what erase and supersede take)\n  \
    everturn history @last --events --json | jq '.data[].kind'")]
pub struct History {
    /// Conversation: id, beginning of an id, or @last
    #[arg(value_name = "CONV")]
    conversation: String,
    /// Maximum number of entries, up to 1000, counted from the end (or from --after)
    #[arg(long, short, default_value_t = LIMIT, value_name = "N")]
    limit: usize,
    /// Only entries before this seq
    #[arg(long, value_name = "SEQ")]
    before: Option<u64>,
    /// Only entries after this seq
    #[arg(long, value_name = "SEQ")]
    after: Option<u64>,
    /// Only turns of this actor; may be repeated
    #[arg(long, value_name = "ACTOR")]
    actor: Vec<String>,
    /// Include superseded and aborted turns, in the order of the log: an edit stands where it was made
    #[arg(long, visible_alias = "all")]
    superseded: bool,
    /// Include events that are not turns
    #[arg(long)]
    events: bool,
    /// Show the id of each turn, for erase and supersede
    #[arg(long)]
    ids: bool,
    /// Show tool calls, their results and reasoning in full
    #[arg(long)]
    full: bool,
}

impl History {
    /// The flags of the next page, beside its cursor.
    fn flags(&self) -> String {
        let mut flags = String::new();
        for (name, given) in [
            (" --superseded", self.superseded),
            (" --events", self.events),
            (" --ids", self.ids),
            (" --full", self.full),
        ] {
            flags += if given { name } else { "" };
        }
        if self.limit != LIMIT {
            flags += &format!(" --limit {}", self.limit);
        }
        self.actor.iter().for_each(|actor| flags += &format!(" --actor {}", show::quoted(actor)));
        flags
    }
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
    let mut page = match part(&store, id, query.clone()) {
        Ok(page) => Page { data: page.data.into_iter().map(Ok).collect(), next: page.next },
        Err(error) if is_damage(&error) => around_damage(&store, id, &query)?,
        Err(error) => return Err(error.into()),
    };
    if order == Order::Descending {
        page.data.reverse();
    }
    let damaged = page.data.iter().any(Result::is_err);
    let end = || if damaged { Err(Failure::Reported) } else { Ok(()) };
    if args.json {
        let entries: Vec<&HistoryEntry> = page.data.iter().flatten().collect();
        output::json_list(&entries, page.next.map(|seq| seq.to_string()))?;
        page.data
            .iter()
            .filter_map(|entry| entry.as_ref().err())
            .for_each(|error| output::error(error, true));
        return end();
    }
    let assets = match store.call(ListAssets { conversation: id.into() }) {
        // A damaged entry is reported among the events.
        Err(error) if is_damage(&error) => Vec::new(),
        assets => assets?.data,
    };
    let same = format!("everturn history {id}{}{}", verb.flags(), args.again());
    let more = page.next.map(|seq| match order {
        Order::Descending => format!("earlier: {same} --before {seq}\n"),
        Order::Ascending => format!("more: {same} --after {seq}"),
    });
    if let (Some(more), Order::Descending) = (&more, order) {
        output::text(more)?;
    }
    let is_filtered = !verb.actor.is_empty() || verb.before.is_some() || verb.after.is_some();
    let detail = show::Detail { full: verb.full, ids: verb.ids };
    let given_up = given_up(&store, id, &page.data)?;
    let mut called = show::ShownCalls { given_up, ..show::ShownCalls::default() };
    let shown = page.data.iter().flatten().filter_map(|entry| match entry {
        HistoryEntry::Turn(turn) => Some(&**turn),
        HistoryEntry::Event(_) => None,
    });
    look_back(&store, id, &shown.collect::<Vec<_>>(), &mut called)?;
    for entry in &page.data {
        match entry {
            Ok(HistoryEntry::Turn(turn)) => output::text(show::turn(turn, &assets, detail, &mut called))?,
            Ok(HistoryEntry::Event(event)) => output::text(show::event(event))?,
            Err(error) => output::error(error, false),
        }
    }
    let is_whole = more.is_none() && !is_filtered && !verb.superseded;
    let shown = page.data.iter().flatten().filter(|entry| matches!(entry, HistoryEntry::Turn(_))).count();
    if is_whole && !damaged {
        let all = store.call(GetConversation { conversation: id.into() })?.turns;
        let hidden = all.saturating_sub(shown as u64);
        if hidden > 0 {
            let hidden = show::count(hidden, "superseded or aborted turn");
            eprintln!("note: {hidden} not shown; --superseded shows all");
        }
    }
    match (&more, order) {
        (Some(more), Order::Ascending) => output::text(more)?,
        _ if page.data.is_empty() && is_filtered => {
            output::text(format!("no turns match; `everturn history {id}` shows all"))?;
        }
        _ if page.data.is_empty() => output::text("no turns yet; `everturn append` adds one")?,
        _ => {}
    }
    end()
}

/// Calls of the shown turns that were given up. The log is searched only if some have no result here.
fn given_up(
    store: &Client,
    id: ConversationId,
    entries: &[Result<HistoryEntry, Error>],
) -> Result<Vec<GivenUp>, Error> {
    let shown = entries.iter().flatten().filter_map(|entry| match entry {
        HistoryEntry::Turn(turn) => Some(((turn.id, turn.place), turn.value()?)),
        HistoryEntry::Event(_) => None,
    });
    let (turns, messages): (Vec<(TurnId, u64)>, Vec<Value>) = shown.unzip();
    let pairs = pairing::pair(&messages);
    let unanswered: Vec<&pairing::CallRef> =
        pairs.calls.iter().filter(|call| call.result.is_none()).collect();
    let mut from = unanswered.iter().map(|call| turns[call.message].1).min();
    let mut found = Vec::new();
    while from.is_some() {
        let (conversation, kinds) = (id.into(), vec![kind::TOOL_ABANDONED.to_string()]);
        let query = ListEvents { conversation, from, kinds, order: Order::Ascending, limit: None };
        let page = match store.call(query) {
            // Reported where it is shown.
            Err(error) if is_damage(&error) => break,
            page => page?,
        };
        for event in &page.data {
            let Some(AbandonedBody { tool_call_id, tool_name, reason, .. }) = event.read() else { continue };
            let name = tool_name.unwrap_or_default();
            let given_up = GivenUp { turn: None, id: tool_call_id, name, reason };
            // The last one before: a later call may have the same id.
            let is_it = |call: &&&pairing::CallRef| {
                let (turn, place) = turns[call.message];
                place < event.seq && given_up.is_of(Some(turn), call.id, call.name)
            };
            let call = unanswered.iter().filter(is_it).max_by_key(|call| turns[call.message].1);
            found.extend(call.map(|call| GivenUp { turn: Some(turns[call.message].0), ..given_up.clone() }));
        }
        from = page.next.and_then(|next| next.parse().ok());
    }
    Ok(found)
}

/// Number of turns that are searched for calls, in addition to those shown.
const CALLS_WITHIN: usize = 50;

/// Finds the tools of results whose calls are not shown: the calls are shortly before.
pub(super) fn look_back(
    store: &Client,
    id: ConversationId,
    shown: &[&Turn],
    called: &mut show::ShownCalls,
) -> Result<(), Error> {
    let (seqs, messages): (Vec<u64>, Vec<Value>) =
        shown.iter().filter_map(|turn| Some((turn.seq, turn.value()?))).unzip();
    let is_unknown = |result: &&pairing::PairedResult<'_>| {
        result.call.is_none() && result.id.is_some_and(|id| !called.tools.contains_key(id))
    };
    let pairs = pairing::pair(&messages);
    let Some(last) = pairs.results.iter().filter(is_unknown).map(|result| seqs[result.message]).max() else {
        return Ok(());
    };
    let query = HistoryQuery {
        before: Some(last),
        limit: (shown.len() + CALLS_WITHIN).min(PAGE_ENTRIES_MAX),
        order: Order::Descending,
        include_superseded: true,
        ..HistoryQuery::default()
    };
    let page = match part(store, id, query) {
        // Reported where it is shown.
        Err(error) if is_damage(&error) => return Ok(()),
        page => page?,
    };
    for entry in page.data.into_iter().rev() {
        let HistoryEntry::Turn(turn) = entry else { continue };
        for call in pairing::pair([&turn.value().unwrap_or_default()]).calls {
            called.tools.extend(call.id.map(|id| (id.to_string(), call.name.to_string())));
        }
    }
    Ok(())
}

fn part(store: &Client, id: ConversationId, query: HistoryQuery) -> Result<Page<HistoryEntry>, Error> {
    let page = store.call(ListTurns { conversation: id.into(), query })?;
    Ok(Page { data: page.data, next: page.next.and_then(|next| next.parse().ok()) })
}

/// Whether the error is that stored data does not match its hash.
fn is_damage(error: &Error) -> bool {
    error.is_chain_damage() || error.is(code::TURN_ROW)
}

/// A page with an error in place of each damaged entry. Locates damage by bisection.
fn around_damage(
    store: &Client,
    id: ConversationId,
    query: &HistoryQuery,
) -> Result<Page<Result<HistoryEntry, Error>>, Error> {
    let head = store.call(GetConversation { conversation: id.into() })?.head.seq;
    let last = query.before.map_or(head, |before| before.saturating_sub(1)).min(head);
    let mut data = Vec::new();
    // Ranges of `seq` without their first; the last range is read next.
    let mut unread = vec![(query.after.unwrap_or(0), last)];
    let mut next = None;
    while let Some((low, high)) = unread.pop() {
        if low >= high {
            continue;
        }
        if data.len() >= query.limit {
            next = Some(if query.order == Order::Ascending { low } else { high + 1 });
            break;
        }
        let limit = query.limit - data.len();
        let wanted = HistoryQuery { after: Some(low), before: Some(high + 1), limit, ..query.clone() };
        let (first, rest) = match part(store, id, wanted) {
            Ok(page) => {
                data.extend(page.data.into_iter().map(Ok));
                match (page.next, query.order) {
                    (None, _) => continue,
                    (Some(seq), Order::Ascending) => ((seq, high), None),
                    (Some(seq), Order::Descending) => ((low, seq - 1), None),
                }
            }
            Err(error) if !is_damage(&error) => return Err(error),
            Err(error) if high - low == 1 => {
                data.push(Err(error));
                continue;
            }
            Err(_) => {
                let middle = low + (high - low) / 2;
                match query.order {
                    Order::Ascending => ((low, middle), Some((middle, high))),
                    Order::Descending => ((middle, high), Some((low, middle))),
                }
            }
        };
        unread.extend(rest);
        unread.push(first);
    }
    Ok(Page { data, next })
}
