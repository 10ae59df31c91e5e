//! `everturn recall`

use crate::args::Args;
use crate::client::Client;
use crate::output::{self, Failure};
use crate::{dates, open, show};
use clap::Args as ClapArgs;
use everturn_api::recall as api;
use everturn_api::turns::ListTurns;
use everturn_core::Error;
use everturn_core::conversation::project_name;
use everturn_core::id::ConversationId;
use everturn_core::turn::Turn;
use everturn_engine::{HistoryEntry, HistoryQuery, Hit, Matched, Order, RecallOptions};
use everturn_server::settings::Flag;
use everturn_views::recall::{RecallMode, UNRELATED_BELOW, words_of};
use everturn_views::speech::{self, Speech};
use serde_json::json;
use std::collections::BTreeMap;

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn recall which port did we choose\n  \
    everturn recall '\"connection refused\" sqlite.rs' --role tool --limit 3\n  \
    everturn recall build_con* --conversation @last --mode lexical\n  \
    everturn recall which port did we choose --context 2      (with two turns before and after)\n  \
    everturn recall deployment --since yesterday --json\n  \
    everturn recall decorators --project web --agent codex\n  \
    everturn recall --index")]
pub struct Recall {
    /// Query: words, "phrases", prefix*
    #[arg(required_unless_present = "index", value_name = "QUERY")]
    query: Vec<String>,
    /// Only in this conversation
    #[arg(long, short, value_name = "CONV")]
    conversation: Option<String>,
    /// Only in conversations of this project: its name, or a folder that it is in
    #[arg(long, short, value_name = "NAME | DIR")]
    project: Option<String>,
    /// Only in conversations of this agent: codex, claude, …
    #[arg(long, short, value_name = "NAME")]
    agent: Option<String>,
    /// Only by this actor; may be repeated
    #[arg(long)]
    actor: Vec<String>,
    /// Only in this role: user, assistant, system or tool; may be repeated
    #[arg(long)]
    role: Vec<String>,
    /// Only what was said then or later: 2026-01-31, yesterday, 7d, …
    #[arg(long, visible_alias = "after", value_name = "DATE")]
    since: Option<String>,
    /// Only what was said before then
    #[arg(long, value_name = "DATE")]
    before: Option<String>,
    /// Only turns, or only facts
    #[arg(long)]
    kind: Vec<String>,
    /// Maximum number of hits, up to 1000
    #[arg(long, short, default_value_t = 10, value_name = "N")]
    limit: usize,
    /// Number of turns to show before and after each hit, up to 100
    #[arg(long, short = 'C', default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u16).range(..=100))]
    context: u16,
    /// Search mode: lexical, vector (by embedding), or hybrid (both)
    #[arg(long, default_value = "hybrid")]
    mode: String,
    /// Include superseded turns
    #[arg(long, visible_alias = "superseded")]
    all: bool,
    /// First index and embed everything, however long that takes; a server does it by itself
    #[arg(long)]
    index: bool,
    /// Embedding model instead of the configured one: builtin, none, the name of one under [embedders], or
    /// folder:PATH in a program that is built with the feature bert
    #[arg(long, value_name = "NAME")]
    embedder: Option<String>,
    /// Rerank the best 50 hits with a better model: the name of one under [embedders], or folder:PATH
    #[arg(long, value_name = "NAME")]
    rerank: Option<String>,
}

const DIM: anstyle::Style = anstyle::Style::new().dimmed();
const BOLD: anstyle::Style = anstyle::Style::new().bold();
const MARK: anstyle::Style = anstyle::AnsiColor::Yellow.on_default().bold();

/// Number of characters shown of a turn around a hit.
const CONTEXT_CHARS: usize = 160;

pub fn run(args: &Args, verb: &Recall) -> Result<(), Failure> {
    let models =
        [("recall.embedder", "--embedder", &verb.embedder), ("recall.rerank", "--rerank", &verb.rerank)];
    let flags =
        models.into_iter().filter_map(|(key, flag, value)| Some(Flag { key, flag, value: value.clone()? }));
    let store = open::recalling(args, flags.collect(), verb.index)?;
    if verb.index {
        index(&store)?;
        if verb.query.is_empty() {
            return output::text("everything is indexed");
        }
    }
    let conversation = verb.conversation.as_deref().map(|name| store.resolve(name)).transpose()?;
    let options = RecallOptions {
        conversation: None,
        project: verb.project.as_deref().map(super::list::project),
        agent: verb.agent.clone(),
        actors: verb.actor.clone(),
        roles: verb.role.iter().map(|role| show::option("--role", role)).collect::<Result<_, _>>()?,
        after: verb.since.as_deref().map(dates::parse).transpose()?,
        before: verb.before.as_deref().map(dates::parse).transpose()?,
        kinds: verb.kind.iter().map(|kind| show::option("--kind", kind)).collect::<Result<_, _>>()?,
        limit: verb.limit,
        mode: show::option("--mode", &verb.mode)?,
        include_superseded: verb.all,
    };
    let recalled = store.recall(api::Recall {
        query: verb.query.join(" "),
        conversation: conversation.map(Into::into),
        options,
    })?;
    // Inherited turns are shown in the fork.
    let place = |hit: &Hit| conversation.unwrap_or(hit.conversation);
    if args.json && (verb.context == 0 || recalled.data.is_empty()) {
        output::json(&recalled)?;
        return if recalled.data.is_empty() { Err(Failure::Reported) } else { Ok(()) };
    }
    if args.json {
        let mut value = json!(recalled);
        for (hit, value) in recalled.data.iter().zip(value["data"].as_array_mut().into_iter().flatten()) {
            let (before, after) = around(&store, place(hit), read_at(hit), verb.context.into())?;
            (value["before"], value["after"]) = (json!(before), json!(after));
        }
        return output::json(&value);
    }
    if let Some(note) = &recalled.note {
        eprintln!("note: {note}");
    }
    if recalled.behind.vectors > 0 && recalled.mode != RecallMode::Lexical {
        let left = match recalled.behind.vectors {
            1 => "1 turn or fact is".to_string(),
            more => format!("{more} turns and facts are"),
        };
        eprintln!("note: {left} found by words only, until embedded");
    }
    if recalled.data.is_empty() {
        let filters = verb.actor.len() + verb.role.len() + verb.kind.len();
        let places = [&verb.conversation, &verb.project, &verb.agent, &verb.since, &verb.before];
        let filtered = filters > 0 || places.iter().any(|place| place.is_some());
        eprintln!(
            "nothing found; try other words, or {}",
            if filtered { "search more (with fewer options)" } else { "leave some out" }
        );
        return Err(Failure::Reported);
    }
    for (at, (id, hits)) in by_conversation(&recalled.data, place).iter().enumerate() {
        if at > 0 {
            output::text("")?;
        }
        output::text(heading(*id, hits))?;
        match verb.context {
            0 => hits.iter().try_for_each(|hit| output::text(shown(hit, hits)))?,
            around => output::text(in_context(&store, *id, hits, around.into())?)?,
        }
    }
    Ok(())
}

/// Indexes and embeds everything, with a progress bar.
pub fn index(store: &Client) -> Result<(), Error> {
    let bar = output::progress(0, "made findable");
    store.index(&mut |behind| {
        let left = behind.events.max(behind.vectors);
        bar.set_length(bar.length().unwrap_or(0).max(left));
        bar.set_position(bar.length().unwrap_or(0) - left);
    })?;
    bar.finish_and_clear();
    Ok(())
}

/// The hits grouped by conversation, in the order of the best of each.
fn by_conversation(hits: &[Hit], place: impl Fn(&Hit) -> ConversationId) -> Vec<(ConversationId, Vec<&Hit>)> {
    let mut groups: Vec<(ConversationId, Vec<&Hit>)> = Vec::new();
    for hit in hits {
        match groups.iter_mut().find(|(id, _)| *id == place(hit)) {
            Some((_, group)) => group.push(hit),
            None => groups.push((place(hit), vec![hit])),
        }
    }
    groups
}

fn heading(id: ConversationId, hits: &[&Hit]) -> String {
    let own = hits.iter().find(|hit| hit.conversation == id);
    let title = own.and_then(|hit| hit.title.as_deref());
    let title = title.map(|title| format!("  {}", show::one_line(title))).unwrap_or_default();
    let project = own.and_then(|hit| hit.project.as_deref()).map(project_name);
    let project = project.map(|name| format!("  {DIM}{}{DIM:#}", show::one_line(name))).unwrap_or_default();
    format!("{BOLD}{id}{title}{BOLD:#}{project}")
}

/// Actor, location, time and reason on one line, the text below. If the reason is a neighbouring turn that is not
/// shown itself, its text comes first.
fn shown(hit: &Hit, all: &[&Hit]) -> String {
    let head = match (&hit.fact, hit.role) {
        (None, Some(role)) => {
            show::head(Speech { role, notice: None }, hit.actor.as_deref(), hit.at, hit.seq)
        }
        _ => format!("{BOLD}fact{BOLD:#}  {DIM}#{}  {}{DIM:#}", hit.seq, dates::to_second(hit.at)),
    };
    let mut out = format!("  {head}  {DIM}{}{DIM:#}", why(&hit.matched));
    if let (Some(seq), Some(beside)) = (hit.matched.beside, &hit.beside)
        && !all.iter().any(|other| other.seq == seq)
    {
        let line = beside.marked(&MARK.to_string(), &format!("{MARK:#}{DIM}"));
        out += &format!("\n    {DIM}#{seq} says: {line}{DIM:#}");
    }
    out += &format!("\n    {}", hit.snippet.marked(&MARK.to_string(), &format!("{MARK:#}")));
    out
}

/// The reason for a hit.
fn why(matched: &Matched) -> String {
    let near = matched.vector.filter(|meaning| meaning.score >= UNRELATED_BELOW);
    let own = match (matched.lexical, near) {
        (Some(words), Some(meaning)) if words.rank == 1 && meaning.rank == 1 => {
            "best by words and by meaning"
        }
        (Some(words), Some(_)) if words.rank == 1 => "best by words, near in meaning",
        (Some(_), Some(meaning)) if meaning.rank == 1 => "nearest in meaning, shares words",
        (Some(_), Some(_)) => "shares words, near in meaning",
        (Some(words), None) if words.rank == 1 => "best by words",
        (Some(_), None) => "shares words",
        (None, Some(meaning)) if meaning.rank == 1 => "nearest in meaning",
        (None, Some(_)) => "near in meaning",
        (None, None) if matched.beside.is_some() || matched.in_period => "",
        // A neighbour of something better: its own lexical rank is too low to be listed.
        (None, None) => "shares words",
    };
    let own = Some(own.to_string()).filter(|own| !own.is_empty());
    let beside = matched.beside.map(|seq| format!("beside #{seq}"));
    let then = matched.in_period.then(|| "from that time".to_string());
    own.into_iter().chain(beside).chain(then).collect::<Vec<_>>().join(", ")
}

/// Place of a hit in its conversation.
fn read_at(hit: &Hit) -> u64 {
    hit.place.unwrap_or(hit.seq)
}

/// The turns before and after a place, each in order.
fn around(
    store: &Client,
    id: ConversationId,
    place: u64,
    limit: usize,
) -> Result<(Vec<Turn>, Vec<Turn>), Failure> {
    let turns = |query| match store.call(ListTurns { conversation: id.into(), query }) {
        // Deleted; a fork of it still has this turn.
        Err(Error::NotFound(_)) => Ok(Vec::new()),
        Err(error) => Err(Failure::from(error)),
        Ok(page) => {
            let turn = |entry| if let HistoryEntry::Turn(turn) = entry { Some(*turn) } else { None };
            Ok(page.data.into_iter().filter_map(turn).collect())
        }
    };
    let near = HistoryQuery { limit, ..HistoryQuery::default() };
    let before = HistoryQuery { before: Some(place), order: Order::Descending, ..near.clone() };
    let after = HistoryQuery { after: Some(place), order: Order::Ascending, ..near };
    let mut before: Vec<Turn> = turns(before)?;
    before.reverse();
    Ok((before, turns(after)?))
}

/// Hits of one conversation with the turns around them, in order.
fn in_context(store: &Client, id: ConversationId, hits: &[&Hit], limit: usize) -> Result<String, Failure> {
    let mut lines: BTreeMap<u64, String> = BTreeMap::new();
    // From the first to the last turn around each hit.
    let mut blocks: Vec<(u64, u64)> = Vec::new();
    for hit in hits {
        let at = read_at(hit);
        let (before, after) = around(store, id, at, limit)?;
        let first = before.first().map_or(at, |turn| turn.place);
        let last = after.last().map_or(at, |turn| turn.place);
        blocks.push((first, last));
        for turn in before.iter().chain(&after) {
            lines.entry(turn.place).or_insert_with(|| beside(turn));
        }
        lines.insert(at, shown(hit, hits));
    }
    let mut out: Vec<String> = Vec::new();
    let mut previous = None;
    for (place, line) in lines {
        let follows = |previous| {
            blocks.iter().any(|(first, last)| (first..=last).contains(&&previous) && place <= *last)
        };
        if previous.is_some_and(|previous| !follows(previous)) {
            out.push(format!("  {DIM}--{DIM:#}"));
        }
        out.push(line);
        previous = Some(place);
    }
    Ok(out.join("\n"))
}

/// A turn around a hit, on one line.
fn beside(turn: &Turn) -> String {
    let speech = speech::of_turn(turn);
    let who = turn.actor.as_deref().map_or(speech.name().to_string(), show::one_line);
    let text = words_of(turn, &[speech.role]).unwrap_or_default();
    let line = show::one_line(&text);
    let text = show::clipped(&line, CONTEXT_CHARS);
    format!("  {DIM}{who}  #{}  {text}{DIM:#}", turn.seq)
}
