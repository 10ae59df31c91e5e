//! `everturn recall`

use crate::args::Args;
use crate::output::{self, Failure};
use crate::{open, show};
use clap::Args as ClapArgs;
use everturn_core::recall::Mode;
use everturn_engine::{Hit, RecallOptions};

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn recall which port did we choose\n  \
    everturn recall '\"connection refused\" sqlite.rs' --role tool --limit 3\n  \
    everturn recall build_con* --conversation @last --mode lexical\n  \
    everturn recall deployment --after 2026-01-01T00:00:00Z --json\n  \
    everturn recall --index")]
pub struct Recall {
    /// What to look for: words, "phrases", begin*
    #[arg(required_unless_present = "index", value_name = "QUERY")]
    query: Vec<String>,
    /// Only in this conversation
    #[arg(long, short, value_name = "CONV")]
    conversation: Option<String>,
    /// Only what this actor said; may be repeated
    #[arg(long)]
    actor: Vec<String>,
    /// Only what was said in this role: user, assistant, system or tool; may be repeated
    #[arg(long)]
    role: Vec<String>,
    /// Only what was said at this time or later
    #[arg(long, value_name = "TIME")]
    after: Option<String>,
    /// Only what was said before this time
    #[arg(long, value_name = "TIME")]
    before: Option<String>,
    /// Only turns, or only facts
    #[arg(long)]
    kind: Vec<String>,
    /// At most this many
    #[arg(long, short, default_value_t = 10, value_name = "N")]
    limit: usize,
    /// By words (lexical), by meaning (vector), or both (hybrid)
    #[arg(long, default_value = "hybrid")]
    mode: String,
    /// Also turns that others took the place of
    #[arg(long)]
    all: bool,
    /// First make everything findable, by words and by meaning, however long that takes; a server does it by itself
    #[arg(long)]
    index: bool,
    /// Embedding model: builtin, none, or folder:PATH in a program that is built with the feature bert
    #[arg(
        long,
        env = "EVERTURN_RECALL_EMBEDDER",
        hide_env_values = true,
        default_value = "builtin",
        value_name = "NAME"
    )]
    embedder: String,
}

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
    let beside = hit.matched.beside.map(|seq| format!("beside #{seq}"));
    let why: Vec<String> = why.into_iter().flatten().chain(beside).collect();
    let title = hit.title.as_deref().map(|title| format!("  {}", show::one_line(title))).unwrap_or_default();
    let (id, seq, at, why) = (hit.conversation, hit.seq, show::time(hit.at), why.join(", "));
    let mut out = format!("{id} #{seq}{title}  {DIM}{what}  {at}  {why}{DIM:#}");
    let marked = hit.snippet.marked(&MARK.to_string(), &format!("{MARK:#}"));
    marked.lines().filter(|line| !line.trim().is_empty()).for_each(|line| out += &format!("\n  {line}"));
    out
}
