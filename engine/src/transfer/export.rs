//! Export of a conversation, in any format.

use super::redacted::{self, Redacted};
use crate::context::StoredMedia;
use crate::conversation::{ConversationHandle, HistoryEntry, HistoryQuery};
use everturn_core::Error;
use everturn_core::conversation::Conversation;
use everturn_core::id::clip;
use everturn_core::json::Raw;
use everturn_core::limits::PAGE_ENTRIES_MAX;
use everturn_core::message::{self, MessagePart};
use everturn_core::pairing;
use everturn_core::redaction::mask_text;
use everturn_core::turn::{Role, Successor, Turn};
use everturn_formats::provider::{Media, NoMedia, Provider};
use everturn_formats::render::{Document, Outline, Preamble, Style, document};
use everturn_views::context::GivenUp;
use everturn_views::state::Abandoned;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::Write;
use std::str::FromStr;

/// Format of an exported conversation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// One event a line, with its chain and the bytes of assets: everything.
    #[default]
    Jsonl,
    /// A session file, one entry a line, without the chain.
    Session,
    /// A transcript value, version 2.
    Transcript,
    /// OpenAI chat completions: `{"messages": […]}`.
    OpenaiChat,
    /// OpenAI Responses: `{"instructions": …, "input": […]}`.
    OpenaiResponses,
    /// Anthropic Messages: `{"system": […], "messages": […]}`.
    Anthropic,
    /// Gemini: `{"systemInstruction": …, "contents": […]}`.
    Gemini,
    /// Markdown, for reading.
    Markdown,
    /// A self-contained HTML page.
    Html,
}

impl Format {
    /// All of them.
    pub const ALL: [Format; 9] = [
        Format::Jsonl,
        Format::Session,
        Format::Transcript,
        Format::OpenaiChat,
        Format::OpenaiResponses,
        Format::Anthropic,
        Format::Gemini,
        Format::Markdown,
        Format::Html,
    ];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Format::Jsonl => "jsonl",
            Format::Session => "session",
            Format::Transcript => "transcript",
            Format::OpenaiChat => "openai-chat",
            Format::OpenaiResponses => "openai-responses",
            Format::Anthropic => "anthropic",
            Format::Gemini => "gemini",
            Format::Markdown => "markdown",
            Format::Html => "html",
        }
    }

    /// Its media type.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Jsonl | Format::Session => "application/jsonl",
            Format::Markdown => "text/markdown; charset=utf-8",
            Format::Html => "text/html; charset=utf-8",
            _ => "application/json",
        }
    }

    /// File extension.
    pub fn extension(self) -> &'static str {
        match self {
            Format::Jsonl | Format::Session => "jsonl",
            Format::Markdown => "md",
            Format::Html => "html",
            _ => "json",
        }
    }

    fn style(self) -> Option<Style> {
        match self {
            Format::Jsonl | Format::Transcript => None,
            Format::Session => Some(Style::Session),
            Format::OpenaiChat => Some(Style::Messages(Provider::OpenaiChat)),
            Format::OpenaiResponses => Some(Style::Messages(Provider::OpenaiResponses)),
            Format::Anthropic => Some(Style::Messages(Provider::Anthropic)),
            Format::Gemini => Some(Style::Messages(Provider::Gemini)),
            Format::Markdown => Some(Style::Markdown),
            Format::Html => Some(Style::Html),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Format {
    type Err = Error;

    fn from_str(text: &str) -> Result<Format, Error> {
        Format::ALL.into_iter().find(|format| format.as_str() == text).ok_or_else(|| {
            let names = Format::ALL.map(Format::as_str).join(", ");
            Error::invalid("format.unknown", format!("{:?} is not one of {names}", clip(text)))
        })
    }
}

/// Whether a turn calls a tool.
fn calls(turn: &Turn) -> bool {
    let is_call = |part: &MessagePart<'_>| matches!(part, MessagePart::Call { .. });
    turn.role == Role::Assistant
        && turn.value().is_some_and(|message| message::parts(&message).iter().any(is_call))
}

/// The messages that stand for the results of a turn's abandoned calls.
fn results_of(turn: &Turn, given_up: &[GivenUp]) -> Result<Vec<Raw>, Error> {
    let message = turn.value();
    let pairs = pairing::pair(&message);
    let of = |given_up: &&GivenUp| {
        let mut calls = pairs.calls.iter().filter(|call| call.result.is_none());
        calls.any(|call| given_up.is_of(Some(turn.id), call.id, call.name))
    };
    given_up.iter().filter(of).map(|given_up| Raw::of(&given_up.result())).collect()
}

impl ConversationHandle {
    /// Writes a conversation in any format, page by page. `progress` gets the number of events written.
    pub fn export(
        &self,
        format: Format,
        out: impl Write,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Error> {
        self.export_in(format, false, out, progress)
    }

    /// Exports with secrets and personal data (e-mail addresses, phone and card numbers) masked, and without the bytes of
    /// assets, which cannot be searched. Refused for `jsonl`, because its hashes are those of the original text.
    pub fn export_redacted(
        &self,
        format: Format,
        out: impl Write,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Error> {
        self.export_in(format, true, out, progress)
    }

    fn export_in(
        &self,
        format: Format,
        is_redacted: bool,
        out: impl Write,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Error> {
        match format.style() {
            Some(style) => self.export_as(style, is_redacted, out, progress),
            None if format == Format::Transcript => self.export_transcript(is_redacted, out, progress),
            None if is_redacted => Err(Error::invalid(
                "export.redacted",
                "a redacted jsonl would not verify, because its hashes are those of the original words; use another format",
            )),
            None => self.export_jsonl(out, progress),
        }
    }

    fn export_as(
        &self,
        style: Style,
        is_redacted: bool,
        out: impl Write,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Error> {
        let key = self.key();
        let mut conversation = self.shared().journal.shown(key)?;
        let mut system_prompt = self.state().system_prompt(None)?;
        let outline = match style {
            Style::Html => self.outline(conversation.head.seq, is_redacted)?,
            _ => Outline::default(),
        };
        let stored = StoredMedia { conversation: self };
        let mut media: &dyn Media = &stored;
        if is_redacted {
            conversation = redacted::conversation(conversation)?;
            system_prompt = system_prompt.as_ref().map(redacted::system_prompt);
            media = &NoMedia;
        }
        let given_up = match style {
            Style::Html | Style::Markdown => {
                match self.given_up_for_people(&conversation, is_redacted) {
                    // What comes before the damage can be read: the error is told there.
                    Err(Error::Corrupt(_)) => Vec::new(),
                    given_up => given_up?,
                }
            }
            _ => Vec::new(),
        };
        let about = Preamble {
            conversation: &conversation,
            system_prompt: system_prompt.as_ref(),
            outline: &outline,
            given_up: &given_up,
            media,
        };
        let mut document = document(style, out, about)?;
        if is_redacted {
            document = Box::new(Redacted(document));
        }
        // Up to the head of the moment it began, so that a busy conversation has an end as well. A request has nothing but
        // current turns.
        let has_all = !matches!(style, Style::Messages(_));
        let mut query = HistoryQuery {
            before: Some(conversation.head.seq + 1),
            limit: PAGE_ENTRIES_MAX,
            include_superseded: has_all,
            include_events: has_all,
            ..HistoryQuery::default()
        };
        // Read at the first call.
        let mut given_up: Option<Vec<GivenUp>> = None;
        loop {
            let page = self.history(query.clone())?;
            for entry in &page.data {
                match entry {
                    HistoryEntry::Turn(turn) if has_all => self.write_chain(turn, &mut *document)?,
                    HistoryEntry::Turn(turn) => {
                        document.turn(turn)?;
                        if !calls(turn) {
                            continue;
                        }
                        let all = match given_up.take() {
                            Some(all) => all,
                            None => self.all_given_up(&conversation)?,
                        };
                        for result in results_of(turn, &all)? {
                            let message = Some(result);
                            document.turn(&Turn { role: Role::Tool, message, ..(**turn).clone() })?;
                        }
                        given_up = Some(all);
                    }
                    HistoryEntry::Event(event) => document.event(event)?,
                }
            }
            progress(page.data.last().map_or(0, HistoryEntry::seq));
            match page.next {
                Some(next) => query.after = Some(next),
                None => break,
            }
        }
        document.finish()
    }

    /// Abandoned calls of turns.
    fn all_given_up(&self, conversation: &Conversation) -> Result<Vec<GivenUp>, Error> {
        let fold = self.fold_now(conversation)?;
        let with_turn = fold.abandoned.iter().filter(|abandoned| abandoned.tool.turn.is_some());
        with_turn.map(|abandoned| self.read_given_up(abandoned)).collect()
    }

    /// Abandoned calls, without private reasons.
    fn given_up_for_people(
        &self,
        conversation: &Conversation,
        is_redacted: bool,
    ) -> Result<Vec<GivenUp>, Error> {
        let fold = self.fold_now(conversation)?;
        let mut all = Vec::new();
        for Abandoned { tool, seq } in &fold.abandoned {
            if tool.turn.is_none() {
                continue;
            }
            let body = self.abandoned_body(*seq)?;
            let reason = body.filter(|body| body.reason_for.is_none()).and_then(|body| body.reason);
            let reason = if is_redacted { reason.as_deref().map(mask_text) } else { reason };
            all.push(GivenUp { turn: tool.turn, id: tool.id.clone(), name: tool.name.clone(), reason });
        }
        Ok(all)
    }

    /// Overview of the turns up to a `seq`.
    fn outline(&self, head: u64, is_redacted: bool) -> Result<Outline, Error> {
        let mut outline = Outline::default();
        let mut query =
            HistoryQuery { before: Some(head + 1), limit: PAGE_ENTRIES_MAX, ..HistoryQuery::default() };
        query.include_superseded = true;
        loop {
            let page = self.history(query.clone())?;
            for entry in &page.data {
                let HistoryEntry::Turn(turn) = entry else { continue };
                let by = match turn.superseded_by {
                    Some(Successor::Turn(by)) if turn.tokens.is_some() => match self.turn(by) {
                        Err(Error::NotFound(_)) => None,
                        by => Some(by?),
                    },
                    _ => None,
                };
                match is_redacted {
                    true => outline.note(&redacted::turn((**turn).clone())?, by.as_ref()),
                    false => outline.note(turn, by.as_ref()),
                }
            }
            match page.next {
                Some(next) => query.after = Some(next),
                None => return Ok(outline),
            }
        }
    }

    /// Writes a turn and those that replace it, if it is the first of them; the others are written with their first.
    fn write_chain(&self, first: &Turn, document: &mut dyn Document) -> Result<(), Error> {
        let mut seen = Vec::new();
        let mut next = Some(first.clone());
        while let Some(turn) = next.take().filter(|turn| turn.place == first.seq && !seen.contains(&turn.id))
        {
            document.turn(&turn)?;
            seen.push(turn.id);
            if let Some(Successor::Turn(by)) = turn.superseded_by {
                next = match self.turn(by) {
                    // A branch does not copy an erased edit, and yet what that replaced stays replaced.
                    Err(Error::NotFound(_)) => None,
                    by => Some(by?),
                };
            }
        }
        Ok(())
    }
}
