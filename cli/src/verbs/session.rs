//! `everturn session`: session files, which need no store.

use crate::args::Args;
use crate::output::{self, Failure};
use crate::show;
use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use everturn_core::Error;
use everturn_core::error::code;
use everturn_core::json::Raw;
use everturn_core::time::Timestamp;
use everturn_engine::{SystemWorld, World};
use everturn_formats::jsonl::LINE_BYTES_MAX;
use everturn_formats::session::{self, Entry, Fsync, NewSession, Report, SessionFields, SessionOptions};
use serde::Serialize;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

#[derive(ClapArgs)]
#[command(after_help = "A session file is one JSON object per line; cat, grep and jq read it.\n\
    Example:\n  \
    file=$(everturn session start photos/img_1 --subject-key image_id)\n  \
    everturn session append $file photographer_message --text 'warmer, please'\n  \
    everturn session end $file\n  \
    jq -r .type $file")]
pub struct Session {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Create the file of a new session and print its path
    Start(Start),
    /// Append entries to a session
    Append(Append),
    /// Write the end of a session
    End(End),
    /// Report problems in session files
    Check(Check),
}

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn session start photos/img_1 --subject-key image_id --agent-provider claude-sonnet \\\n    \
    --context taste.md,brief.md\n  \
    everturn session start work/ticket-7 --data '{\"branch\":\"main\"}' --json")]
struct Start {
    /// Folder of the session's subject; the file goes into its `sessions`
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Name of the subject in the header
    #[arg(long, default_value = "subject", value_name = "KEY")]
    subject_key: String,
    /// Id of the session; by default a new random one
    #[arg(long, value_name = "ID")]
    session_id: Option<String>,
    /// Model of the agent
    #[arg(long, value_name = "NAME")]
    agent_provider: Option<String>,
    /// Temperature of the model
    #[arg(long, value_name = "NUMBER")]
    agent_temperature: Option<f64>,
    /// What the agent has read, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "FILES")]
    context: Vec<String>,
    /// Hash of the state of the work at the beginning
    #[arg(long, value_name = "HASH")]
    starting_snapshot_hash: Option<String>,
    /// Additional fields of the header, as a JSON object
    #[arg(long, value_name = "JSON")]
    data: Option<String>,
    /// Start time; by default now
    #[arg(long, value_name = "TIME")]
    at: Option<Timestamp>,
}

#[derive(Clone, Copy, ValueEnum)]
enum When {
    /// Before the next line is read
    Always,
    /// Within a second
    Interval,
    /// At the end of the input
    Close,
}

#[derive(ClapArgs)]
#[command(
    after_help = "Types with a meaning: agent_thinking, agent_tool_call, tool_result, photographer_message,\n\
    snapshot_created, mask_generated, vocabulary_gap_logged, taste_proposal, taste_confirmation. Any other is kept.\n\n\
    Examples:\n  \
    everturn session append $file photographer_message --text 'warmer, please'\n  \
    everturn session append $file snapshot_created --data '{\"hash\":\"9f2c\",\"label\":\"v1\"}'\n  \
    my-agent --events | everturn session append $file -"
)]
struct Append {
    /// Session file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Type of the entry; - reads entries from standard input, one JSON object a line with `type` and
    /// `timestamp` (by default now)
    #[arg(value_name = "TYPE")]
    kind: String,
    /// The field `text` of the entry
    #[arg(long)]
    text: Option<String>,
    /// Fields of the entry, as a JSON object
    #[arg(long, value_name = "JSON")]
    data: Option<String>,
    /// Time of the entry; by default now
    #[arg(long, value_name = "TIME")]
    at: Option<Timestamp>,
    /// When lines of standard input are made durable
    #[arg(long, value_enum, default_value_t = When::Interval)]
    fsync: When,
}

#[derive(ClapArgs)]
#[command(after_help = "Example:\n  everturn session end $file --data '{\"snapshots\":3}'")]
struct End {
    /// Session file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Additional fields, as a JSON object
    #[arg(long, value_name = "JSON")]
    data: Option<String>,
    /// End time; by default now
    #[arg(long, value_name = "TIME")]
    at: Option<Timestamp>,
}

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn session check photos/*/sessions/*.jsonl\n  \
    everturn session check $file --json | jq .data[0].by_type\n\n\
    Exits with 1 if lines are missing, torn or unreadable. A session without an end is not an error.")]
struct Check {
    /// Session files
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

pub fn run(args: &Args, verb: &Session) -> Result<(), Failure> {
    match &verb.verb {
        Verb::Start(verb) => start(args, verb),
        Verb::Append(verb) => append(args, verb),
        Verb::End(verb) => end(args, verb),
        Verb::Check(verb) => check(args, verb),
    }
}

fn start(args: &Args, verb: &Start) -> Result<(), Failure> {
    let subject = verb.folder.file_name().and_then(|name| name.to_str()).ok_or_else(|| {
        let text = format!("{} names no folder; write it as photos/img_1", verb.folder.display());
        Error::invalid("session.subject", text)
    })?;
    let session_id = verb.session_id.clone().map_or_else(uuid, Ok)?;
    let new = NewSession {
        subject_key: verb.subject_key.clone(),
        agent_provider: verb.agent_provider.clone(),
        agent_temperature: verb.agent_temperature,
        context_loaded: verb.context.clone(),
        starting_snapshot_hash: verb.starting_snapshot_hash.clone(),
        extra: data(verb.data.as_deref())?,
        ..NewSession::about(subject, session_id, at(verb.at))
    };
    let root = verb.folder.parent().unwrap_or(Path::new(""));
    let session = session::Session::start(root, &new, SessionOptions { fsync: Fsync::Always })?;
    let path = session.path().unwrap_or(&verb.folder);
    if !args.json {
        return output::text(path.display());
    }
    #[derive(Serialize)]
    struct Started<'a> {
        path: &'a Path,
        session_id: &'a str,
    }
    output::json(&Started { path, session_id: &new.session_id })
}

fn append(args: &Args, verb: &Append) -> Result<(), Failure> {
    let fsync = match verb.fsync {
        When::Always => Fsync::Always,
        When::Interval => SessionOptions::default().fsync,
        When::Close => Fsync::Close,
    };
    let mut appended = 0;
    if verb.kind == "-" {
        if verb.text.is_some() || verb.data.is_some() || verb.at.is_some() {
            let text = "with - everything comes from standard input; leave out --text, --data and --at";
            return Err(Error::invalid("session.input", text).into());
        }
        let session = resume(&verb.file, SessionOptions { fsync })?;
        let mut input = std::io::stdin().lock();
        while let Some(entry) = next_entry(&mut input, appended + 1)? {
            session.append(&entry).map_err(|e| place(e, appended + 1))?;
            appended += 1;
        }
        session.sync()?;
    } else {
        let mut fields = data(verb.data.as_deref())?;
        if let Some(text) = &verb.text {
            fields.0.insert(0, ("text".into(), Raw::of(text)?));
        }
        let session = resume(&verb.file, SessionOptions { fsync: Fsync::Always })?;
        session.append(&Entry { kind: verb.kind.clone(), at: at(verb.at), fields })?;
        appended = 1;
    }
    if args.json {
        return output::json(&serde_json::json!({ "appended": appended }));
    }
    let noun = if appended == 1 { "entry" } else { "entries" };
    output::text(format!("appended {appended} {noun}"))
}

/// The next line of the input as an entry; lines are counted from 1.
fn next_entry(input: &mut impl BufRead, line: u64) -> Result<Option<Entry>, Failure> {
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        let read = input.by_ref().take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut bytes)?;
        if read == 0 {
            return Ok(None);
        }
        if read > LINE_BYTES_MAX {
            let limit = LINE_BYTES_MAX as u64;
            return Err(place(Error::limit("LINE_BYTES_MAX", limit, read as u64, "split it"), line).into());
        }
        if !bytes.trim_ascii().is_empty() {
            break;
        }
    }
    let text = std::str::from_utf8(&bytes)
        .map_err(|_| place(Error::invalid("input.not_utf8", "it is not UTF-8; convert it first"), line))?;
    let mut fields = SessionFields::parse(text.trim()).map_err(|e| place(e, line))?;
    let kind: Option<String> = fields.take("type").and_then(|raw| raw.read());
    let wrong = |text: &str| place(Error::invalid("session.input", text), line);
    let kind = kind.ok_or_else(|| wrong("it has no type; give each entry one"))?;
    let at = match fields.take("timestamp") {
        None => SystemWorld.now(),
        Some(raw) => raw.read().ok_or_else(|| wrong("its timestamp is not an RFC 3339 time"))?,
    };
    Ok(Some(Entry { kind, at, fields }))
}

fn place(error: Error, line: u64) -> Error {
    error.at(format!("entry {line} of standard input (those before it are kept)"))
}

fn end(args: &Args, verb: &End) -> Result<(), Failure> {
    let extra = data(verb.data.as_deref())?;
    let session = match resume(&verb.file, SessionOptions { fsync: Fsync::Close }) {
        // Ending it again is harmless.
        Err(Failure::Error(error)) if error.is(code::SESSION_ENDED) => {
            eprintln!("{} was ended already; nothing was written", verb.file.display());
            return Ok(());
        }
        session => session?,
    };
    let summary = session.end(at(verb.at), &extra)?;
    if args.json {
        return output::json(&summary);
    }
    let noun = if summary.entries == 1 { "entry" } else { "entries" };
    output::text(format!("ended after {} {noun} and {} s", summary.entries, summary.duration_s))
}

/// Resumes a file, and reports whether it had to be repaired.
fn resume(file: &Path, options: SessionOptions) -> Result<session::Session, Failure> {
    let session = session::Session::resume(file, options)?;
    if let Some(mended) = session.mended() {
        let bytes = show::count(mended.tail.bytes, "byte");
        eprintln!("the last line is incomplete; its {bytes} are in {}", mended.torn.display());
    }
    Ok(session)
}

/// Result of checking one file.
#[derive(Serialize)]
struct Verdict<'a> {
    path: &'a Path,
    ok: bool,
    #[serde(flatten)]
    report: Option<Report>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

fn check(args: &Args, verb: &Check) -> Result<(), Failure> {
    let one = |path: &Path| {
        let cannot = |e| Error::invalid("file.cannot_open", format!("cannot open it: {e}"));
        session::check(BufReader::new(File::open(path).map_err(cannot)?))
    };
    let verdicts: Vec<Verdict> = verb
        .files
        .iter()
        .map(|path| match one(path) {
            Ok(report) => Verdict { path, ok: report.is_ok(), report: Some(report), error: None },
            Err(error) => Verdict { path, ok: false, report: None, error: Some(error.to_string()) },
        })
        .collect();
    if args.json {
        output::json_list(&verdicts, None)?;
    } else {
        verdicts.iter().try_for_each(|verdict| output::text(verdict.text()))?;
    }
    if verdicts.iter().all(|verdict| verdict.ok) { Ok(()) } else { Err(Failure::Reported) }
}

impl Verdict<'_> {
    fn text(&self) -> String {
        let style =
            if self.ok { anstyle::AnsiColor::Green } else { anstyle::AnsiColor::Red }.on_default().bold();
        let word = if self.ok { "ok" } else { "BROKEN" };
        let mut out = format!("{style}{word}{style:#}  {}", self.path.display());
        let Some(report) = &self.report else {
            return format!("{out}: {}", self.error.as_deref().unwrap_or_default());
        };
        let noun = if report.entries == 1 { "entry" } else { "entries" };
        out += &format!("  {} {noun}", report.entries);
        if report.unclosed {
            out += ", not ended";
        }
        for line in &report.corrupt_lines {
            out += &format!("\n  line {}: {}", line.line, line.reason);
        }
        if let Some(tail) = &report.truncated_tail {
            let bytes = show::count(tail.bytes, "byte");
            out += &format!(
                "\n  the last line is incomplete: {bytes} from byte {}; `session append` repairs it",
                tail.byte_offset
            );
        }
        for problem in &report.problems {
            out += &format!("\n  line {}: {}", problem.line, problem.text);
        }
        let listed = (report.corrupt_lines.len() + report.problems.len()) as u64;
        let more = report.corrupt + report.wrong - listed;
        if more > 0 {
            out += &format!("\n  and {more} more");
        }
        for note in &report.notes {
            let place = if note.line == 0 { String::new() } else { format!("line {}: ", note.line) };
            out += &format!("\n  note: {place}{}", note.text);
        }
        if report.conversation.is_some() {
            out += "\n  note: this is the file of a conversation; `everturn verify` checks its chain";
        }
        out
    }
}

fn at(given: Option<Timestamp>) -> Timestamp {
    given.unwrap_or_else(|| SystemWorld.now())
}

fn data(text: Option<&str>) -> Result<SessionFields, Error> {
    text.map_or(Ok(SessionFields::default()), SessionFields::parse).map_err(|e| e.at("--data"))
}

/// A random UUID, version 4.
pub fn uuid() -> Result<String, Error> {
    let mut bytes = [0; 16];
    SystemWorld.fill(&mut bytes)?;
    Ok(uuid::Builder::from_random_bytes(bytes).into_uuid().to_string())
}
