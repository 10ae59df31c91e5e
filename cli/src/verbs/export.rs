//! `everturn export`

use crate::args::Args;
use crate::client::Client;
use crate::open;
use crate::output::{self, Failure};
use clap::{Args as ClapArgs, ValueEnum};
use everturn_api::conversations::GetConversation;
use everturn_core::Error;
use everturn_core::id::ConversationId;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn export @last -o session.jsonl\n  \
    everturn export @last --format html -o talk.html\n  \
    everturn export @last --format markdown --redacted\n  \
    everturn export @last --format anthropic | jq .messages")]
pub struct Export {
    /// Conversation: id, beginning of an id, or @last
    #[arg(value_name = "CONV")]
    conversation: String,
    /// Format of the file
    #[arg(long, value_enum, default_value_t = Format::Jsonl)]
    format: Format,
    /// Mask secrets and personal data, and leave out files and images; not for jsonl, which would not verify
    #[arg(long)]
    redacted: bool,
    /// Write to this file instead of standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace the file if it exists
    #[arg(long, requires = "output")]
    force: bool,
}

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
    let id = store.resolve(&verb.conversation)?;
    match &verb.output {
        None => write(&store, id, verb, &mut BufWriter::new(io::stdout().lock())),
        Some(path) => into_file(&store, id, verb, path),
    }
}

fn write(store: &Client, id: ConversationId, verb: &Export, out: &mut dyn Write) -> Result<(), Failure> {
    let bar = output::progress(store.call(GetConversation { conversation: id.into() })?.head.seq, "events");
    store.export(id, verb.format.into(), verb.redacted, out, &mut |done| bar.set_position(done))?;
    bar.finish_and_clear();
    if verb.format == Format::Transcript {
        writeln!(out)?;
    }
    Ok(out.flush()?)
}

/// Written to a temporary file and renamed when complete, so that a partial file is never mistaken for an
/// export.
fn into_file(store: &Client, id: ConversationId, verb: &Export, path: &Path) -> Result<(), Failure> {
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
    write(store, id, verb, &mut BufWriter::new(file.as_file_mut()))?;
    file.as_file().sync_all().map_err(|e| cannot(&e))?;
    match verb.force {
        true => drop(file.persist(path).map_err(|e| cannot(&e))?),
        false => drop(file.persist_noclobber(path).map_err(|e| cannot(&e))?),
    }
    eprintln!("wrote {}", path.display());
    Ok(())
}
