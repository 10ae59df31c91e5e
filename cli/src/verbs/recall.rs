//! `everturn recall`

use crate::args::{Args, Recall};
use crate::output::{self, Failure};
use crate::{open, show};
use everturn_core::recall::Mode;
use everturn_engine::{Hit, RecallOptions};

const DIM: anstyle::Style = anstyle::Style::new().dimmed();
const MARK: anstyle::Style = anstyle::AnsiColor::Yellow.on_default().bold();

pub fn run(args: &Args, verb: &Recall) -> Result<(), Failure> {
    let store = open::recalling(args, &verb.embedder)?;
    if verb.index {
        let bar = output::progress(0, "turns and facts");
        store.index(&mut |behind| {
            bar.set_length(bar.length().unwrap_or(0).max(behind.vectors));
            bar.set_position(bar.length().unwrap_or(0) - behind.vectors);
        })?;
        bar.finish_and_clear();
        if verb.query.is_empty() {
            return Ok(());
        }
    }
    let conversation = verb.conversation.as_deref().map(|name| store.resolve(name)).transpose()?;
    let options = RecallOptions {
        conversation,
        actors: verb.actor.clone(),
        roles: verb.role.iter().map(|role| role.parse()).collect::<Result<_, _>>()?,
        after: verb.after.as_deref().map(str::parse).transpose()?,
        before: verb.before.as_deref().map(str::parse).transpose()?,
        kinds: verb.kind.iter().map(|kind| kind.parse()).collect::<Result<_, _>>()?,
        limit: verb.limit,
        mode: verb.mode.parse()?,
        include_superseded: verb.all,
    };
    let recalled = store.recall(&verb.query.join(" "), &options)?;
    if args.json {
        return output::json(&recalled);
    }
    if let Some(note) = &recalled.note {
        eprintln!("note: {note}");
    }
    if recalled.behind.events > 0 {
        eprintln!("note: {} not searched yet", show::count(recalled.behind.events, "event"));
    }
    if recalled.behind.vectors > 0 && recalled.mode != Mode::Lexical {
        let left = recalled.behind.vectors;
        eprintln!("note: {left} turns and facts are found by their words only, until they are embedded");
    }
    if recalled.data.is_empty() {
        return output::text("nothing found; try other words, or fewer");
    }
    recalled.data.iter().try_for_each(|hit| output::text(shown(hit)))
}

/// Where, who, when and why on one line; what was said below.
fn shown(hit: &Hit) -> String {
    let what = match &hit.fact {
        Some(_) => "fact".to_string(),
        None => {
            let role = hit.role.map(|role| role.to_string()).unwrap_or_default();
            hit.actor.as_ref().map_or(role.clone(), |actor| format!("{role} ({actor})"))
        }
    };
    let rank =
        |name: &str, rank: Option<everturn_engine::Rank>| rank.map(|rank| format!("{name} {}", rank.rank));
    let why = [rank("words", hit.matched.lexical), rank("meaning", hit.matched.vector)];
    let why: Vec<String> = why.into_iter().flatten().collect();
    let title = hit.title.as_deref().map(|title| format!("  {}", show::one_line(title))).unwrap_or_default();
    let (id, seq, at, why) = (hit.conversation, hit.seq, show::time(hit.at), why.join(", "));
    let mut out = format!("{id} #{seq}{title}  {DIM}{what}  {at}  {why}{DIM:#}");
    let marked = hit.snippet.marked(&MARK.to_string(), &format!("{MARK:#}"));
    marked.lines().filter(|line| !line.trim().is_empty()).for_each(|line| out += &format!("\n  {line}"));
    out
}
