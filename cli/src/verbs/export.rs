//! `everturn export`

use crate::args::Args;
use crate::client::Client;
use crate::output::{self, Failure};
use crate::{dates, open, show};
use clap::{Args as ClapArgs, ValueEnum};
use everturn_api::conversations::{GetConversation, ListConversations};
use everturn_core::Error;
use everturn_core::conversation::Conversation;
use everturn_core::id::{ConversationId, clip};
use everturn_core::limits::PAGE_ENTRIES_MAX;
use indicatif::ProgressBar;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn export @last -o session.jsonl\n  \
    everturn export @last -o talk.html\n  \
    everturn export @last --format markdown --redacted\n  \
    everturn export @last --format anthropic | jq .messages\n  \
    everturn export --all ~/conversations --format html     (a file for each conversation)")]
pub struct Export {
    /// Conversation: id, beginning of an id, or @last; or --all
    #[arg(value_name = "CONV", conflicts_with = "all")]
    conversation: Option<String>,
    /// Write every conversation into this folder, each to a file named after its day, its title and its id
    #[arg(long, value_name = "DIR", conflicts_with = "output")]
    all: Option<PathBuf>,
    /// Format of the file; by default as its name ends (.jsonl, .md, .html), and jsonl for standard output
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Mask secrets and personal data, and leave out files and images; not for jsonl, which would not verify
    #[arg(long)]
    redacted: bool,
    /// Write to this file; - is standard output, as without it
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace files that exist
    #[arg(long)]
    force: bool,
}

/// Maximum number of characters of a title in the name of a file.
const NAME_CHARS: usize = 50;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// One event a line, with its chain: verifies offline and can be imported again
    Jsonl,
    /// A session file: one entry a line, without the chain
    Session,
    /// A transcript value, version 2
    Transcript,
    /// The messages of a request for OpenAI chat completions
    OpenaiChat,
    /// The items of a request for OpenAI Responses
    OpenaiResponses,
    /// The messages of a request for Anthropic
    Anthropic,
    /// The contents of a request for Gemini
    Gemini,
    /// For people: text, with tool calls and thinking folded
    Markdown,
    /// For people: one page that needs no network and no scripts
    Html,
}

impl Export {
    /// The file to write; `None` for standard output.
    fn file(&self) -> Option<&Path> {
        self.output.as_deref().filter(|path| *path != Path::new("-"))
    }

    fn format(&self) -> Result<Format, Error> {
        let ending = || Some(self.file()?.extension()?.to_string_lossy().to_ascii_lowercase());
        if let Some(format) = self.format {
            return Ok(format);
        }
        match ending().as_deref() {
            None | Some("jsonl") => Ok(Format::Jsonl),
            Some("md" | "markdown") => Ok(Format::Markdown),
            Some("html" | "htm") => Ok(Format::Html),
            Some(other) => {
                let text = format!(
                    "no format has the ending .{}; end the name with .jsonl, .md or .html, or name a format with --format",
                    clip(other)
                );
                Err(Error::invalid("export.ending", text))
            }
        }
    }
}

impl From<Format> for everturn_engine::Format {
    fn from(format: Format) -> everturn_engine::Format {
        match format {
            Format::Jsonl => everturn_engine::Format::Jsonl,
            Format::Session => everturn_engine::Format::Session,
            Format::Transcript => everturn_engine::Format::Transcript,
            Format::OpenaiChat => everturn_engine::Format::OpenaiChat,
            Format::OpenaiResponses => everturn_engine::Format::OpenaiResponses,
            Format::Anthropic => everturn_engine::Format::Anthropic,
            Format::Gemini => everturn_engine::Format::Gemini,
            Format::Markdown => everturn_engine::Format::Markdown,
            Format::Html => everturn_engine::Format::Html,
        }
    }
}

pub fn run(args: &Args, verb: &Export) -> Result<(), Failure> {
    let format = verb.format()?;
    let store = open::reading(args)?;
    if let Some(folder) = &verb.all {
        return all(&store, verb, format, folder);
    }
    let Some(name) = &verb.conversation else {
        let text = "name a conversation (its id, the beginning of it, or @last), or write all of them with --all DIR";
        return Err(Error::invalid("export.conversation", text).into());
    };
    let id = store.resolve(name)?;
    let bar = output::progress(store.call(GetConversation { conversation: id.into() })?.head.seq, "events");
    match verb.file() {
        None => write(&store, id, verb, format, &mut BufWriter::new(io::stdout().lock()), &bar),
        Some(path) => {
            into_file(&store, id, verb, format, path, &bar)?;
            eprintln!("wrote {}", path.display());
            Ok(())
        }
    }
}

/// Writes every conversation of the tenant. Existing files are kept, unless they are to be replaced. One that
/// cannot be written is reported, and does not stop the others.
fn all(store: &Client, verb: &Export, format: Format, folder: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(folder)
        .map_err(|e| Error::invalid("file.cannot_write", format!("cannot make {}: {e}", folder.display())))?;
    let bar = output::progress(0, "conversations");
    let (mut written, mut left, mut failed, mut after) = (0, 0, 0, None);
    loop {
        let query =
            ListConversations { after, limit: Some(PAGE_ENTRIES_MAX), ..ListConversations::default() };
        let page = store.call(query)?;
        bar.inc_length(page.data.len() as u64);
        for conversation in &page.data {
            let path = folder.join(file_name(conversation, verb, format));
            bar.inc(1);
            if path.exists() && !verb.force {
                left += 1;
                continue;
            }
            match into_file(store, conversation.id, verb, format, &path, &ProgressBar::hidden()) {
                Ok(()) => written += 1,
                Err(Failure::Error(error)) => {
                    let gone = store.call(GetConversation { conversation: conversation.id.into() });
                    if matches!(gone, Err(Error::NotFound(_))) {
                        // Deleted meanwhile.
                        continue;
                    }
                    failed += 1;
                    bar.suspend(|| eprintln!("failed  {}: {error}", conversation.id));
                }
                Err(failure) => return Err(failure),
            }
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    bar.finish_and_clear();
    let kept = match left {
        0 => String::new(),
        left => format!("; {} there already, --force replaces them", show::count(left, "file")),
    };
    let lost = match failed {
        0 => String::new(),
        failed => format!("; {} failed", show::count(failed, "conversation")),
    };
    eprintln!("wrote {} to {}{kept}{lost}", show::count(written, "file"), folder.display());
    if failed == 0 { Ok(()) } else { Err(Failure::Reported) }
}

/// `2026-11-15_fix-the-build_conv_….html`: sorted by day, and unique.
fn file_name(conversation: &Conversation, verb: &Export, format: Format) -> String {
    let day = dates::to_day(conversation.began.unwrap_or(conversation.created));
    // A title may contain text that is to be redacted.
    let title = conversation.title.as_deref().filter(|_| !verb.redacted).unwrap_or_default().to_lowercase();
    let words: Vec<&str> =
        title.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let title: String = words.join("-").chars().take(NAME_CHARS).collect();
    let title = if title.is_empty() { title } else { format!("{}_", title.trim_end_matches('-')) };
    format!("{day}_{title}{}.{}", conversation.id, everturn_engine::Format::from(format).extension())
}

fn write(
    store: &Client,
    id: ConversationId,
    verb: &Export,
    format: Format,
    out: &mut dyn Write,
    bar: &ProgressBar,
) -> Result<(), Failure> {
    store.export(id, format.into(), verb.redacted, out, &mut |done| bar.set_position(done))?;
    bar.finish_and_clear();
    if format == Format::Transcript {
        writeln!(out)?;
    }
    Ok(out.flush()?)
}

/// Written to a temporary file and renamed when complete, so that a partial file is never mistaken for an
/// export.
fn into_file(
    store: &Client,
    id: ConversationId,
    verb: &Export,
    format: Format,
    path: &Path,
    bar: &ProgressBar,
) -> Result<(), Failure> {
    let cannot = |e: &dyn std::fmt::Display| {
        Error::invalid("file.cannot_write", format!("cannot write {}: {e}", path.display()))
    };
    if path.exists() && !verb.force {
        return Err(Error::conflict(
            "file.exists",
            format!("{} exists; --force replaces it", path.display()),
        )
        .into());
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return Err(cannot(&format_args!("there is no folder {}", folder.display())).into());
    }
    // The whole error names the temporary file.
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(|e| cannot(&e.kind()))?;
    write(store, id, verb, format, &mut BufWriter::new(file.as_file_mut()), bar)?;
    file.as_file().sync_all().map_err(|e| cannot(&e))?;
    match verb.force {
        true => drop(file.persist(path).map_err(|e| cannot(&e))?),
        false => drop(file.persist_noclobber(path).map_err(|e| cannot(&e))?),
    }
    Ok(())
}
