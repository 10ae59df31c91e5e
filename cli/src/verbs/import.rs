//! `everturn import`

mod dry_run;
mod find;
mod joined;
mod tool_results;
mod watch;

use crate::args::Args;
use crate::client::Client;
use crate::output::{self, Failure};
use crate::{open as store, show};
use clap::Args as ClapArgs;
use everturn_api::conversations::GetConversation;
use everturn_api::turns::ListTurns;
use everturn_core::Error;
use everturn_core::id::ConversationId;
use everturn_core::limits::PAGE_ENTRIES_MAX;
use everturn_engine::{Format, HistoryEntry, HistoryQuery, ImportOptions, Imported};
use find::{Inputs, find, is_standard_input};
use indicatif::ProgressBar;
use serde::Serialize;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn import                               (all sessions of agents on this machine)\n  \
    everturn import --dry-run                     (only count, import nothing)\n  \
    everturn import session.jsonl transcript.json\n  \
    everturn import ~/.claude/projects -v         (a line for each file)\n  \
    everturn import ~/.claude/projects --watch\n  \
    everturn import - < session.jsonl\n\n\
    The format is detected from the content: files that `export` wrote, session files, transcript values, sessions of \
    Claude Code, Codex, Gemini CLI, pi, Droid, Qwen Code, Copilot CLI, Kimi CLI, Kimi Code, Cursor and opencode, lists of OpenAI or Anthropic messages, \
    and one message a line; all also as .zst or .gz. Importing again adds only what is new. Files are read in the order of their first timestamp. See docs/import.md.")]
pub struct Import {
    /// Files and folders; - is standard input [default: the session folders of Claude Code, Codex, Gemini CLI,
    /// pi, Droid, Qwen Code, Copilot CLI, Kimi CLI, Kimi Code and Cursor]
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Only count conversations, turns and bytes
    #[arg(long)]
    dry_run: bool,
    /// Keep running, and import what is added until Ctrl-C
    #[arg(long, conflicts_with = "dry_run")]
    watch: bool,
}

const DIM: anstyle::Style = anstyle::Style::new().dimmed();

/// Maximum number of types of other lines that are named.
const KINDS_SHOWN: usize = 5;
/// Number of bytes of a file read at a time.
const PIECE_BYTES: usize = 64 * 1024;

#[derive(Serialize)]
struct Report {
    path: String,
    #[serde(flatten)]
    imported: Option<Imported>,
    /// Conversations that an earlier import made of some of its turns.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    contained: Vec<ConversationId>,
    /// Number of attached files.
    #[serde(skip_serializing_if = "is_zero")]
    attached: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Reason for importing nothing, if that is expected.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<String>,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

pub fn run(args: &Args, verb: &Import) -> Result<(), Failure> {
    if verb.dry_run {
        return dry_run::run(args, find(&verb.paths)?);
    }
    if verb.watch {
        return watch::run(args, verb);
    }
    let found = find(&verb.paths)?;
    let store = store::importing(args, verb.paths.iter().any(|path| is_standard_input(path)))?;
    let bar = output::progress(found.files.iter().map(|file| file.bytes).sum(), "bytes");
    let (nothing, count) = (found.nothing(), found.files.len());
    let mut reports = Vec::new();
    // For a folder, only the files that need attention.
    let each = args.verbose > 0 || found.places.is_empty();
    for files in joined::join(found.files) {
        let paths: Vec<PathBuf> = files.into_iter().map(|file| file.path).collect();
        let report = one(&store, &paths, false, &bar);
        if !args.json && (each || !report.is_clean() || report.late() > 0 || !report.contained.is_empty()) {
            bar.suspend(|| match report.error {
                Some(_) => {
                    anstream::eprintln!("{}", report.text());
                    Ok(())
                }
                None => output::text(report.text()),
            })?;
        }
        reports.push(report);
    }
    bar.finish_and_clear();
    if !args.json && args.verbose > 0 {
        for path in &found.unknown {
            output::text(format!("not read  {}: its format is not known", show::printable(path)))?;
        }
    }
    let added = reports.iter().filter_map(|report| report.imported.as_ref()).any(|it| it.added > 0);
    if added && store.is_local() {
        // A server indexes by itself. Locally it is done here, so that recall finds what was imported.
        super::recall::index(&store)?;
    }
    if args.json {
        output::json_list(&reports, None)?;
    } else if let Some(text) = nothing {
        output::text(text)?;
    } else if count > 1 || !found.places.is_empty() {
        output::text(total(&store, &reports, (count, found.unknown.len()), each)?)?;
    }
    if reports.iter().all(Report::is_clean) { Ok(()) } else { Err(Failure::Reported) }
}

/// Summary line of an import of several files.
fn total(
    store: &Client,
    reports: &[Report],
    (files, unknown): (usize, usize),
    each: bool,
) -> Result<String, Error> {
    let imported = || reports.iter().filter_map(|report| report.imported.as_ref());
    // As of the last of its files.
    let mut turns_of: HashMap<ConversationId, u64> =
        imported().map(|it| (it.conversation.id, it.conversation.turns)).collect();
    for id in imported().flat_map(|it| &it.linked) {
        if !turns_of.contains_key(id) {
            let conversation = store.call(GetConversation { conversation: (*id).into() })?;
            turns_of.insert(*id, conversation.turns);
        }
    }
    let sum = |number: fn(&Imported) -> u64| imported().map(number).sum::<u64>();
    // A turn may be in several files, and one that a fork inherits in several conversations.
    let turns = sum(|it| it.turns).min(turns_of.values().sum());
    let mut out = format!(
        "{}: {}, {}, {}",
        show::count(files as u64, "file"),
        show::count(turns_of.len() as u64, "conversation"),
        show::count(turns, "turn"),
        show::count(sum(|it| it.added), "new event"),
    );
    let left_out = reports.iter().filter(|report| report.left_out.is_some()).count();
    let failed = reports.iter().filter(|report| report.error.is_some()).count();
    let odd = imported().filter(|it| !it.problems.is_empty()).count();
    let said = [
        (left_out, "left out"),
        (odd, "with problems"),
        (failed, "failed"),
        (unknown, "more of unknown format"),
    ];
    let said: Vec<String> = said
        .iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, what)| format!("{number} {what}"))
        .collect();
    if !said.is_empty() {
        out += &format!(" ({})", said.join(", "));
    }
    if !each && files > 1 {
        out += &format!("\n{DIM}-v shows a line for each file{DIM:#}");
    }
    Ok(out)
}

/// Imports one file, or several that are read as one. A bad file does not stop the others.
fn one(store: &Client, paths: &[PathBuf], watched: bool, bar: &ProgressBar) -> Report {
    let mut report = Report {
        path: shown(paths),
        imported: None,
        contained: Vec::new(),
        attached: 0,
        error: None,
        left_out: None,
    };
    match take(store, paths, watched, bar) {
        Ok(imported) => report.imported = Some(imported),
        Err(error) if matches!(error.code(), "import.deleted" | "import.archived" | "import.no_turns") => {
            report.left_out = Some(error.text().to_string());
        }
        Err(error) => report.error = Some(error.to_string()),
    }
    if let Some(imported) = &mut report.imported {
        report.contained = contained(store, paths, imported);
        for path in paths {
            match tool_results::attach(store, path, imported) {
                Ok(attached) => report.attached += attached,
                Err(error) => imported.problems.push(error.to_string()),
            }
        }
    }
    report
}

/// Conversations that an earlier import made of one of these files alone, and that have got no turns since.
fn contained(store: &Client, paths: &[PathBuf], imported: &Imported) -> Vec<ConversationId> {
    let later = paths.iter().skip(1).filter_map(|path| open(std::slice::from_ref(path)).ok());
    let alone = later.flat_map(|file| dry_run::count(file).0.turns_of);
    let is_other = |id: &ConversationId| *id != imported.conversation.id && !imported.linked.contains(id);
    let has_no_more = |(id, turns): &(ConversationId, u64)| {
        let conversation = store.call(GetConversation { conversation: (*id).into() });
        is_other(id)
            && conversation.is_ok_and(|conversation| conversation.turns <= *turns)
            && !has_turns_of_its_own(store, *id).unwrap_or(true)
    };
    alone.filter(has_no_more).map(|(id, _)| id).collect()
}

/// Whether a conversation has turns that were not imported.
fn has_turns_of_its_own(store: &Client, id: ConversationId) -> Result<bool, Error> {
    let mut query =
        HistoryQuery { limit: PAGE_ENTRIES_MAX, include_superseded: true, ..HistoryQuery::default() };
    loop {
        let page = store.call(ListTurns { conversation: id.into(), query: query.clone() })?;
        let is_own =
            |entry: &HistoryEntry| matches!(entry, HistoryEntry::Turn(turn) if turn.adapter.is_none());
        if page.data.iter().any(is_own) {
            return Ok(true);
        }
        match page.next.and_then(|next| next.parse().ok()) {
            Some(next) => query.after = Some(next),
            None => return Ok(false),
        }
    }
}

fn take(store: &Client, paths: &[PathBuf], watched: bool, bar: &ProgressBar) -> Result<Imported, Error> {
    let Some(path) = paths.first().filter(|path| !is_standard_input(path)) else {
        let mut input = Some(open(paths)?);
        return store.import(ImportOptions::default(), &mut || {
            // What was read of it cannot be read again.
            Ok(input.take().map(|input| Box::new(BufReader::new(input)) as Box<dyn BufRead + Send>))
        });
    };
    let name = std::fs::canonicalize(path).map_err(cannot_open)?;
    let name = name.to_str().map_or_else(|| format!("{name:?}"), str::to_string);
    let start = bar.position();
    store.import(ImportOptions { name: Some(&name), watched, ..ImportOptions::default() }, &mut || {
        bar.set_position(start);
        let file = BufReader::with_capacity(PIECE_BYTES, bar.wrap_read(open(paths)?));
        Ok(Some(Box::new(file)))
    })
}

/// Files that are read as one; `-` is standard input.
fn open(paths: &[PathBuf]) -> Result<Box<dyn Read + Send>, Error> {
    const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
    let mut all: Box<dyn Read + Send> = Box::new(std::io::empty());
    for (at, path) in paths.iter().enumerate() {
        let mut file: Box<dyn BufRead + Send> = match is_standard_input(path) {
            true => Box::new(BufReader::new(std::io::stdin())),
            false => Box::new(BufReader::new(File::open(path).map_err(cannot_open)?)),
        };
        if at == 0 {
            all = Box::new(file);
            continue;
        }
        // After another file it would be part of a line.
        if file.fill_buf().map_err(cannot_open)?.starts_with(BYTE_ORDER_MARK) {
            file.consume(BYTE_ORDER_MARK.len());
        }
        // The last line of a file may have no end.
        all = Box::new(all.chain(&b"\n"[..]).chain(file));
    }
    Ok(all)
}

/// The names of files that are read as one.
fn shown(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" and ")
}

fn cannot_open(e: std::io::Error) -> Error {
    Error::invalid("file.cannot_open", format!("cannot open it: {e}"))
}

impl Inputs {
    /// The message if nothing was found.
    fn nothing(&self) -> Option<String> {
        let places: Vec<String> = self.places.iter().map(|place| place.display().to_string()).collect();
        let unknown = match self.unknown.len() {
            0 => String::new(),
            unknown => format!(" ({} of unknown format)", show::count(unknown as u64, "file")),
        };
        let others = if self.is_usual { "; nor in the folders of other agents" } else { "" };
        self.files.is_empty().then(|| format!("nothing to import in {}{others}{unknown}", places.join(", ")))
    }
}

impl Report {
    fn is_clean(&self) -> bool {
        self.left_out.is_some() || self.imported.as_ref().is_some_and(|imported| imported.problems.is_empty())
    }

    fn late(&self) -> u64 {
        self.imported.as_ref().map_or(0, |imported| imported.late)
    }

    fn text(&self) -> String {
        if let Some(reason) = &self.left_out {
            return format!("left out  {}: {reason}", self.path);
        }
        let Some(imported) = &self.imported else {
            let style = anstyle::AnsiColor::Red.on_default().bold();
            return format!(
                "{style}failed{style:#}  {}: {}",
                self.path,
                self.error.as_deref().unwrap_or_default()
            );
        };
        // Each line of Everturn's own files is an event.
        let noun =
            if Format::ALL.iter().any(|own| own.as_str() == imported.format) { "event" } else { "line" };
        let mut out = format!(
            "{}  {} ({}): {} in the file, {}, {}",
            imported.conversation.id,
            self.path,
            imported.format,
            show::count(imported.events, noun),
            show::count(imported.turns, "turn"),
            show::count(imported.added, "new event"),
        );
        if imported.late > 0 {
            let late = show::count(imported.late, "turn");
            // An earlier beginning gives its own title.
            let title = show::one_line(show::title(&imported.conversation));
            out += &format!(
                "\n  {late} said before what was imported earlier: appended at the end; the title is {title:?}"
            );
        }
        for id in &self.contained {
            out += &format!(
                "\n  {id} has the turns of one of these files alone, from an earlier import; `everturn delete {id}` removes it"
            );
        }
        for linked in &imported.linked {
            out += &format!("\n  also {linked}");
        }
        if !imported.kept.is_empty() {
            let mut kept: Vec<(&String, &u64)> = imported.kept.iter().collect();
            kept.sort_by_key(|(_, number)| std::cmp::Reverse(**number));
            let more = kept.len().saturating_sub(KINDS_SHOWN);
            let shown = kept.iter().take(KINDS_SHOWN).map(|(what, number)| format!("{what} {number}"));
            let shown: Vec<String> =
                shown.chain((more > 0).then(|| format!("and {more} other types"))).collect();
            out += &format!("\n  kept as events import.line: {}", shown.join(", "));
        }
        if self.attached > 0 {
            out += &format!("\n  attached {} beside it", show::count(self.attached as u64, "file"));
        }
        imported.problems.iter().for_each(|problem| out += &format!("\n  {problem}"));
        out
    }
}
