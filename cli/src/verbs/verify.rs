//! `everturn verify`

use super::backup::beside_the_store;
use super::restore::{self, Archives};
use crate::args::Args;
use crate::client::Client;
use crate::output::{self, Failure};
use crate::{open, show};
use clap::Args as ClapArgs;
use everturn_api::conversations::{GetConversation, ListConversations};
use everturn_api::transfer as api;
use everturn_core::Error;
use everturn_core::chain::{ChainReport, Hash};
use everturn_core::id::ConversationId;
use everturn_core::limits::PAGE_ENTRIES_MAX;
use everturn_engine::Options;
use everturn_engine::backup::{all_archives_of, check};
use everturn_formats::jsonl;
use serde::Serialize;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn verify @last\n  \
    everturn verify --all\n  \
    everturn verify session.jsonl            (offline, needs no store)\n  \
    everturn verify @last --head 9f2c…       (does it still contain what you noted?)\n  \
    everturn verify monday.jsonl.zst         (a backup, or a folder of them: is it whole?)\n  \
    everturn verify full.zst increment.zst   (an increment, after the archives before it)\n  \
    everturn verify --against /var/backups/everturn    (does the store still have what was backed up?)")]
pub struct Verify {
    /// A conversation, an exported file, a backup (an increment with the archives before it), or a folder of
    /// backups
    #[arg(value_name = "CONV | FILE", required_unless_present_any = ["all", "against"])]
    targets: Vec<String>,
    /// Verify every conversation of the tenant
    #[arg(long, conflicts_with = "targets")]
    all: bool,
    /// Also check that the log contains this head hash, noted earlier
    #[arg(long, value_name = "HASH", conflicts_with = "all")]
    head: Option<String>,
    /// Check that the store still has everything of a backup, of all tenants: a folder, or archives in order
    #[arg(long, value_name = "BACKUP", num_args = 1.., conflicts_with_all = ["targets", "all", "head"])]
    against: Vec<String>,
}

/// Result of a verification, for people and as JSON.
#[derive(Serialize)]
struct Verdict {
    #[serde(skip_serializing_if = "Option::is_none")]
    conversation: Option<ConversationId>,
    ok: bool,
    #[serde(flatten)]
    report: Option<ChainReport>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<String>,
}

pub fn run(args: &Args, verb: &Verify) -> Result<(), Failure> {
    if !verb.against.is_empty() {
        return against(args, &verb.against);
    }
    let backups = !verb.targets.is_empty() && verb.targets.iter().all(|target| is_backup(Path::new(target)));
    let target = match &verb.targets[..] {
        [folder] if backups => return backup(args, all_archives_of(Path::new(folder))?),
        archives if backups => return backup(args, vec![archives.iter().map(PathBuf::from).collect()]),
        [] => None,
        [target] => Some(target.as_str()),
        _ => {
            let text =
                "verify one conversation or file at a time; only a backup and its increments go together";
            return Err(Error::invalid("verify.several", text).into());
        }
    };
    let head: Option<Hash> = verb.head.as_deref().map(str::parse).transpose()?;
    let verdicts = match target {
        None => all(args)?,
        Some(target) if Path::new(target).is_file() => vec![file(Path::new(target), head)?],
        Some(target) if Path::new(target).exists() && target.contains(['.', '/']) => {
            let text =
                format!("{target} is not a regular file; name an exported file, a backup or a conversation");
            return Err(Error::invalid("verify.no_file", text).into());
        }
        // An id contains none of these characters.
        Some(target) if target.contains(['.', '/']) => {
            let text =
                format!("there is no file {target}; name an exported file, a backup or a conversation");
            return Err(Error::not_found("verify.absent", text).into());
        }
        Some(target) => {
            let store = open::reading(args)?;
            let id = store.resolve(target)?;
            let head_seq = store.call(GetConversation { conversation: id.into() })?.head.seq;
            let bar = output::progress(head_seq, "events");
            vec![Verdict::new(id, checked(&store, id, head, move |done| bar.set_position(done)))]
        }
    };
    if verdicts.is_empty() && !args.json {
        return output::text("there are no conversations here: nothing was verified");
    }
    let good = verdicts.iter().all(|verdict| verdict.ok);
    match (args.json, verb.all) {
        (true, true) => output::json_list(&verdicts, None)?,
        (true, false) => verdicts.iter().try_for_each(output::json)?,
        (false, _) => verdicts.iter().try_for_each(|verdict| output::text(verdict.text()))?,
    }
    if good { Ok(()) } else { Err(Failure::Reported) }
}

/// First bytes of every Zstandard file, and of no text file.
const ZSTANDARD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

fn is_backup(path: &Path) -> bool {
    let mut start = [0; 4];
    path.is_dir()
        || File::open(path).and_then(|mut file| file.read_exact(&mut start)).is_ok() && start == ZSTANDARD
}

/// Reads backups to their end, each a full archive with its increments.
fn backup(args: &Args, backups: Vec<Vec<PathBuf>>) -> Result<(), Failure> {
    let mut good = true;
    for archives in backups {
        match check(&archives) {
            Ok(found) if args.json => output::json(&found)?,
            Ok(found) => {
                let style = anstyle::AnsiColor::Green.on_default().bold();
                output::text(format!("{style}ok{style:#}  {}, id {}", restore::summary(&found), found.id))?;
            }
            // The others may still be complete.
            Err(error) => {
                good = false;
                output::error(&error, args.json);
            }
        }
    }
    if good { Ok(()) } else { Err(Failure::Reported) }
}

/// Compares the store with a backup.
fn against(args: &Args, names: &[String]) -> Result<(), Failure> {
    beside_the_store(args, "verify --against")?;
    let archives = Archives::find(names, None)?;
    let store = open::store(args, Options { read_only: true, ..Options::default() })?;
    let bar = output::progress(0, "events");
    let found = store.compare(&archives.paths, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let found = found.map_err(|error| archives.without_copy(error))?;
    let good = found.differences.is_empty();
    if args.json {
        output::json(&found)?;
    } else {
        for difference in &found.differences {
            let style = anstyle::AnsiColor::Red.on_default().bold();
            let about = difference.conversation.map(|id| format!("{id} ")).unwrap_or_default();
            let text =
                format!("{style}DIFFERS{style:#}  {}  {about}{}", difference.tenant, difference.problem);
            output::text(text)?;
        }
        let since = [(found.erased, "erased"), (found.deleted, "deleted"), (found.revoked, "revoked")];
        let since = since.iter().filter(|(number, _)| *number > 0);
        let since: String = since.map(|(number, what)| format!(", {number} {what} since")).collect();
        let checked = format!(
            "{}, {}, {}, {}{since}",
            show::count(found.conversations, "conversation"),
            show::count(found.events, "event"),
            show::count(found.assets, "asset"),
            show::count(found.keys, "key"),
        );
        output::text(match good {
            true => format!("the store has everything that the backup has: {checked}"),
            false => format!("of what the backup has, the store has {checked}"),
        })?;
    }
    if good { Ok(()) } else { Err(Failure::Reported) }
}

/// Verifies the chain of a conversation.
fn checked(
    store: &Client,
    id: ConversationId,
    head: Option<Hash>,
    progress: impl Fn(u64) + Send + Sync + 'static,
) -> Result<ChainReport, Error> {
    let verify = api::Verify { conversation: id.into(), head: head.map(|head| head.to_string()) };
    store.call_telling(verify, progress)?.into_report()
}

fn all(args: &Args) -> Result<Vec<Verdict>, Failure> {
    let store = open::reading(args)?;
    let mut verdicts = Vec::new();
    let mut after = None;
    let bar = output::progress(0, "conversations");
    loop {
        let page = store.call(ListConversations {
            after,
            limit: Some(PAGE_ENTRIES_MAX),
            ..ListConversations::default()
        })?;
        bar.inc_length(page.data.len() as u64);
        for conversation in page.data {
            verdicts.push(Verdict::new(conversation.id, checked(&store, conversation.id, None, |_| {})));
            bar.inc(1);
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(verdicts),
        }
    }
}

fn file(path: &Path, head: Option<Hash>) -> Result<Verdict, Failure> {
    let cannot = |e| Error::invalid("file.cannot_open", format!("cannot open {}: {e}", path.display()));
    let found = jsonl::verify(BufReader::new(File::open(path).map_err(cannot)?), head)
        .map_err(|e| e.at(path.display()))?;
    let mut problems = Vec::new();
    problems.extend(found.broken.as_ref().map(|broken| format!("line {}: {}", broken.line, broken.text)));
    problems.extend(found.corrupt_lines.iter().map(|line| format!("line {}: {}", line.line, line.reason)));
    problems.extend(
        found.truncated_tail.as_ref().map(|t| format!("the last line is cut off at byte {}", t.byte_offset)),
    );
    if found.unclosed && problems.is_empty() {
        problems.push("the file has no session_end: it may be truncated".into());
    }
    let ok = found.is_ok() && problems.is_empty();
    let verdict = Verdict { conversation: Some(found.conversation), ok, report: Some(found.chain), problems };
    Ok(verdict.with_head())
}

impl Verdict {
    fn new(id: ConversationId, checked: Result<ChainReport, Error>) -> Verdict {
        let (report, problems) = match checked {
            Ok(report) => (Some(report), Vec::new()),
            Err(error) => (None, vec![error.to_string()]),
        };
        Verdict { conversation: Some(id), ok: problems.is_empty(), report, problems }.with_head()
    }

    /// A problem if the log does not contain the given head.
    fn with_head(mut self) -> Verdict {
        if self.report.as_ref().is_some_and(|report| report.contains_head == Some(false)) {
            self.ok = false;
            self.problems.push(
                "the log does not contain that head: it was truncated or rewritten, or the head belongs to another log"
                    .into(),
            );
        }
        self
    }

    fn text(&self) -> String {
        let id = self.conversation.map(|id| id.to_string()).unwrap_or_default();
        let style =
            if self.ok { anstyle::AnsiColor::Green } else { anstyle::AnsiColor::Red }.on_default().bold();
        let word = if self.ok { "ok" } else { "BROKEN" };
        let mut out = format!("{style}{word}{style:#}  {id}");
        if let Some(report) = &self.report {
            out += &format!("  {}", show::count(report.events, "event"));
            if report.erased > 0 {
                out += &format!(", {} erased", report.erased);
            }
            out += &format!(", head {}", report.head.hash);
        }
        self.problems.iter().for_each(|problem| out += &format!("\n  {problem}"));
        out
    }
}
