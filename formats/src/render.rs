//! A conversation written out: as the messages of a provider's request, or as a document for people.
//!
//! A [`Document`] is handed one turn after the other, in order, and writes as it goes, so that the length of a
//! conversation does not matter. The same conversation gives the same bytes.
//!
//! - The lists (`openai-chat`, `openai-responses`, `anthropic`, `gemini`) are JSON with the fields of a request, one
//!   message a line: complete and interrupted turns that are neither superseded nor private, by the rules of
//!   [`provider`](crate::provider).
//! - `markdown` and `html` show everything: calls, results, reasoning and superseded turns are folded, and compactions
//!   are marked where they happened. Private content is left out, with a note. The HTML is one file without scripts that
//!   loads nothing from anywhere.
//! - `session` is the file of a session, one line for each message or event.
//!
//! None of them transfers a conversation without loss; [`jsonl`](crate::jsonl) does.

mod html;
mod list;
mod markdown;
mod prose;
mod session;
mod shown;

use crate::provider::{Media, Provider};
use everturn_core::Error;
use everturn_core::conversation::{Conversation, SystemPrompt};
use everturn_core::event::{Event, Visibility};
use everturn_core::message::{self, MessagePart};
use everturn_core::time::Timestamp;
use everturn_core::turn::{Role, Status, Tokens, Turn};
use everturn_core::viewer::without_private;
use everturn_views::compaction::{self, CompactionBody};
use everturn_views::context::GivenUp;
use everturn_views::speech;
use std::borrow::Cow;
use std::io::Write;

/// Form of a document.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Style {
    /// The messages of a request to this provider.
    Messages(Provider),
    /// For people, as text.
    Markdown,
    /// For people, as a page.
    Html,
    /// A session file.
    Session,
}

/// Everything known before the first turn.
#[derive(Clone, Copy)]
pub struct Preamble<'a> {
    /// The conversation as it is now.
    pub conversation: &'a Conversation,
    /// Its system prompt.
    pub system_prompt: Option<&'a SystemPrompt>,
    /// Overview of its turns; only [`Style::Html`] shows it.
    pub outline: &'a Outline,
    /// Tool calls that were given up and have no result. Documents for people mark them.
    pub given_up: &'a [GivenUp],
    /// Source of asset bytes.
    pub media: &'a dyn Media,
}

/// Overview of the turns for the head of a page. They are read for it before the first is written.
#[derive(Clone, Debug, Default)]
pub struct Outline {
    prompts: Vec<Prompt>,
    tokens: Tokens,
}

/// A person's turn, by its beginning.
#[derive(Clone, Debug)]
struct Prompt {
    seq: u64,
    place: u64,
    text: String,
}

/// Number of characters of a prompt in the outline.
const PROMPT_CHARS: usize = 100;

impl Outline {
    /// Takes note of a turn, and of the one that superseded it. What it cost is counted, unless that is a later version of it.
    pub fn note(&mut self, turn: &Turn, by: Option<&Turn>) {
        if !is_over(turn) || turn.visibility == Visibility::Private {
            return;
        }
        if let Some(tokens) = turn.tokens.filter(|_| !by.is_some_and(|by| by.is_version_of(turn))) {
            for (sum, more) in
                [(&mut self.tokens.prompt, tokens.prompt), (&mut self.tokens.completion, tokens.completion)]
            {
                *sum = more.map(|more| sum.unwrap_or(0).saturating_add(more)).or(*sum);
            }
        }
        if turn.superseded_by.is_none()
            && speech::of_turn(turn).role == Role::User
            && let Some(text) = prompt(turn)
        {
            let at = self.prompts.partition_point(|before| before.place < turn.place);
            self.prompts.insert(at, Prompt { seq: turn.seq, place: turn.place, text });
        }
    }
}

/// The beginning of a person's words, on one line.
fn prompt(turn: &Turn) -> Option<String> {
    let public = without_private(turn.message.as_ref()?.get())?;
    let message: serde_json::Value = serde_json::from_str(&public).ok()?;
    let mut texts = speech::Texts::default();
    let parts = message::parts(&message).into_iter();
    let words = parts
        .filter_map(|part| if let MessagePart::Text(text) = part { texts.words(text).ok() } else { None });
    let words: Vec<Cow<'_, str>> = words.collect();
    let line = words.iter().flat_map(|words| words.split_whitespace()).collect::<Vec<_>>().join(" ");
    let cut = line.char_indices().nth(PROMPT_CHARS).map(|(end, _)| format!("{}…", line[..end].trim_end()));
    Some(cut.unwrap_or(line)).filter(|line| !line.is_empty())
}

/// A document being written.
pub trait Document {
    /// Writes the next turn, or as much as can be written by now.
    fn turn(&mut self, turn: &Turn) -> Result<(), Error>;
    /// Takes an event that is not a turn.
    fn event(&mut self, event: &Event) -> Result<(), Error>;
    /// Writes the end and flushes.
    fn finish(self: Box<Self>) -> Result<(), Error>;
}

/// Begins a document. Turns follow in reading order. Unless it is a request, superseded turns come too, before their
/// replacements, and so do other events.
pub fn document<'a>(
    style: Style,
    out: impl Write + 'a,
    about: Preamble<'a>,
) -> Result<Box<dyn Document + 'a>, Error> {
    let out = Out(out);
    Ok(match style {
        Style::Messages(provider) => Box::new(list::List::new(provider, out, about)),
        Style::Markdown => Box::new(markdown::Markdown::begin(out, about)?),
        Style::Html => Box::new(html::Html::begin(out, about)?),
        Style::Session => Box::new(session::SessionDocument::new(out, about)),
    })
}

/// Output of a document.
struct Out<W>(W);

impl<W: Write> Out<W> {
    fn write(&mut self, text: &str) -> Result<(), Error> {
        self.0.write_all(text.as_bytes()).map_err(|error| crate::jsonl::failed("writing the export", &error))
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.0.flush().map_err(|error| crate::jsonl::failed("writing the export", &error))
    }
}

/// Whether a model call would continue from the turn: it is complete or interrupted, not superseded and
/// not private.
fn is_said(turn: &Turn) -> bool {
    is_over(turn) && turn.superseded_by.is_none() && turn.visibility != Visibility::Private
}

fn is_over(turn: &Turn) -> bool {
    matches!(turn.status, Status::Complete | Status::Interrupted)
}

/// Time of the turn.
fn time(turn: &Turn) -> Timestamp {
    turn.occurred_at.unwrap_or(turn.created)
}

/// Date and time of day, to the second, UTC.
fn day_and_time(at: Timestamp) -> (String, String) {
    let text = at.to_string();
    let (day, time) = text.split_once('T').unwrap_or((&text, ""));
    (day.to_string(), time.split('.').next().unwrap_or_default().to_string())
}

/// Title of a conversation; its id if it has none.
fn title(conversation: &Conversation) -> String {
    let title = conversation.title.as_deref().map(str::trim).filter(|title| !title.is_empty());
    title.map_or_else(|| conversation.id.to_string(), str::to_string)
}

/// `38,976`
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A number with its noun.
fn count(n: u64, thing: &str) -> String {
    format!("{n} {thing}{}", if n == 1 { "" } else { "s" })
}

/// Description of a compaction, and its checkpoint.
fn compaction(body: &CompactionBody) -> (String, Option<String>) {
    let checkpoint = body.checkpoint.as_ref().map(compaction::render);
    let said = match body.reverts {
        Some(_) => "A compaction was taken back here.".to_string(),
        None if body.covers.turns == 0 => {
            "From here on the model reads a checkpoint of earlier turns, which are not in this conversation."
                .to_string()
        }
        None => format!(
            "Compacted: from here on the model reads a checkpoint instead of {} (#{} to #{}).",
            count(body.covers.turns, "turn"),
            body.covers.from_seq,
            body.covers.to_seq,
        ),
    };
    (said, checkpoint)
}
