//! `everturn export`

use crate::args::Args;
use crate::client::Client;
use crate::output::{self, Failure};
use crate::{dates, open, show};
use clap::{Args as ClapArgs, ValueEnum};
use everturn_api::conversations::{GetConversation, ListConversations};
use everturn_core::Error;
use everturn_core::conversation::Conversation;
use everturn_core::id::ConversationId;
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
    /// Conversation: id, beginning of an id, or @last
    #[arg(value_name = "CONV", required_unless_present = "all", conflicts_with = "all")]
    conversation: Option<String>,
    /// Write every conversation into this folder, each to a file named after its day, its title and its id
    #[arg(long, value_name = "DIR", conflicts_with = "output")]
    all: Option<PathBuf>,
    /// Format of the file; by default as its name ends (.md, .html), else jsonl
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Mask secrets and personal data, and leave out files and images; not for jsonl, which would not verify
    #[arg(long)]
    redacted: bool,
    /// Write to this file instead of standard output
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
    fn format(&self) -> Format {
        let ending = self.output.as_ref().and_then(|path| path.extension()?.to_str());
        self.format.unwrap_or(match ending.map(str::to_ascii_lowercase).as_deref() {
            Some("md" | "markdown") => Format::Markdown,
            Some("html" | "htm") => Format::Html,
            _ => Format::Jsonl,
        })
    }
}

impl From<Format> for everturn::Format {
    fn from(format: Format) -> everturn::Format {
        match format {
            Format::Jsonl => everturn::Format::Jsonl,
            Format::Session => everturn::Format::Session,
            Format::Transcript => everturn::Format::Transcript,
            Format::OpenaiChat => everturn::Format::OpenaiChat,
            Format::OpenaiResponses => everturn::Format::OpenaiResponses,
            Format::Anthropic => everturn::Format::Anthropic,
            Format::Gemini => everturn::Format::Gemini,
            Format::Markdown => everturn::Format::Markdown,
            Format::Html => everturn::Format::Html,
        }
    }
}

pub fn run(args: &Args, verb: &Export) -> Result<(), Failure> {
    let store = open::reading(args)?;
    if let Some(folder) = &verb.all {
        return all(&store, verb, folder);
    }
    let id = store.resolve(verb.conversation.as_deref().unwrap_or("@last"))?;
    let bar = output::progress(store.call(GetConversation { conversation: id.into() })?.head.seq, "events");
    match &verb.output {
        None => write(&store, id, verb, &mut BufWriter::new(io::stdout().lock()), &bar),
        Some(path) => {
            into_file(&store, id, verb, path, &bar)?;
            eprintln!("wrote {}", path.display());
            Ok(())
        }
    }
}

/// Writes every conversation of the tenant. Files that are there already are left, unless they are to be replaced.
fn all(store: &Client, verb: &Export, folder: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(folder)
        .map_err(|e| Error::invalid("file.cannot_write", format!("cannot make {}: {e}", folder.display())))?;
    let bar = output::progress(0, "conversations");
    let (mut written, mut left, mut after) = (0, 0, None);
    loop {
        let query =
            ListConversations { after, limit: Some(PAGE_ENTRIES_MAX), ..ListConversations::default() };
        let page = store.call(query)?;
        bar.inc_length(page.data.len() as u64);
        for conversation in &page.data {
            let path = folder.join(file_name(conversation, verb));
            bar.inc(1);
            if path.exists() && !verb.force {
                left += 1;
                continue;
            }
            match into_file(store, conversation.id, verb, &path, &ProgressBar::hidden()) {
                Ok(()) => written += 1,
                // Deleted meanwhile.
                Err(Failure::Error(Error::NotFound(_))) => {}
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
    eprintln!("wrote {} to {}{kept}", show::count(written, "file"), folder.display());
    Ok(())
}

/// `2026-11-15_fix-the-build_conv_….html`: sorted by day, and unique.
fn file_name(conversation: &Conversation, verb: &Export) -> String {
    let day = dates::to_day(conversation.began.unwrap_or(conversation.created));
    // A title may have what is to be redacted.
    let title = conversation.title.as_deref().filter(|_| !verb.redacted).unwrap_or_default().to_lowercase();
    let words: Vec<&str> =
        title.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let title: String = words.join("-").chars().take(NAME_CHARS).collect();
    let title = if title.is_empty() { title } else { format!("{}_", title.trim_end_matches('-')) };
    format!("{day}_{title}{}.{}", conversation.id, everturn::Format::from(verb.format()).extension())
}

fn write(
    store: &Client,
    id: ConversationId,
    verb: &Export,
    out: &mut dyn Write,
    bar: &ProgressBar,
) -> Result<(), Failure> {
    store.export(id, verb.format().into(), verb.redacted, out, &mut |done| bar.set_position(done))?;
    bar.finish_and_clear();
    if verb.format() == Format::Transcript {
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
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(|e| cannot(&e))?;
    write(store, id, verb, &mut BufWriter::new(file.as_file_mut()), bar)?;
    file.as_file().sync_all().map_err(|e| cannot(&e))?;
    match verb.force {
        true => drop(file.persist(path).map_err(|e| cannot(&e))?),
        false => drop(file.persist_noclobber(path).map_err(|e| cannot(&e))?),
    }
    Ok(())
}
