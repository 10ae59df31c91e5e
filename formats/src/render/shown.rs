//! Turns for display, from messages of any shape.

use super::prose::pretty;
use crate::provider::media::{Blob, Data};
use crate::provider::read::{Arguments, ContentPart, Kind, Reader, Source};
use crate::provider::{Media, source};
use crate::render::Preamble;
use everturn_core::event::Visibility;
use everturn_core::id::TurnId;
use everturn_core::turn::{Role, Status, Turn};
use everturn_core::{json, message, pairing};
use everturn_views::context::GivenUp;
use everturn_views::speech;
use serde_json::Value;
use std::collections::HashMap;

/// A turn, split into parts for display.
pub struct Shown {
    /// Speaker: the actor, else the name in the message, else the role.
    pub who: String,
    /// Role; `None` if `who` is the role.
    pub role: Option<&'static str>,
    /// Notes on the turn: superseded, interrupted, erased, private.
    pub notes: Vec<&'static str>,
    pub superseded: bool,
    pub parts: Vec<Part>,
}

impl Shown {
    /// Whether it is nothing but tool results and notices.
    pub fn is_answer(&self) -> bool {
        let answer = |part: &Part| matches!(part, Part::ToolResult { .. } | Part::Notice { .. });
        !self.parts.is_empty() && self.parts.iter().all(answer)
    }
}

/// A part of a turn.
pub enum Part {
    /// Text, which may be Markdown.
    Words(String),
    /// Reasoning; `None` if its provider does not show it.
    Thinking(Option<String>),
    /// A tool is called with these arguments.
    Call {
        name: String,
        /// JSON over several lines, or text that is not JSON.
        arguments: String,
        /// Set if it was given up, with the reason if one was stated.
        given_up: Option<Option<String>>,
    },
    /// A tool answered.
    ToolResult {
        /// Name of the tool, if known.
        name: Option<String>,
        failed: bool,
        /// Text that is not Markdown, and media.
        content: Vec<Part>,
    },
    /// Text that a program wrote in the name of the user.
    Notice { kind: &'static str, text: String },
    /// A picture, sound or file.
    Media(Attachment),
    /// A block of an unknown type, as JSON.
    Other { kind: String, json: String },
}

/// A picture, sound or file.
pub struct Attachment {
    /// `image`, `audio`, `video`, `file`, …
    pub kind: String,
    /// Display name.
    pub label: String,
    /// Media type; empty if unknown.
    pub mime: String,
    pub content: Content,
}

/// Content of an [`Attachment`].
pub enum Content {
    /// The bytes, in Base64.
    Base64(String),
    Text(String),
    /// The address, unchecked.
    Url(String),
    /// Not available.
    Gone,
}

impl Attachment {
    /// Whether it is a picture in a format that every viewer shows and none executes.
    pub fn is_picture(&self) -> bool {
        matches!(self.mime.as_str(), "image/png" | "image/jpeg" | "image/gif" | "image/webp" | "image/avif")
    }
}

/// Shows turns, one after the other.
pub struct Shower<'m> {
    media: &'m dyn Media,
    given_up: &'m [GivenUp],
    /// Tools of the calls without a result so far: most results do not name theirs.
    called: HashMap<String, String>,
}

impl<'m> Shower<'m> {
    pub fn new(about: &Preamble<'m>) -> Shower<'m> {
        Shower { media: about.media, given_up: about.given_up, called: HashMap::new() }
    }

    pub fn show(&mut self, turn: &Turn) -> Shown {
        let mut notes = Vec::new();
        if turn.superseded_by.is_some() {
            notes.push(if turn.status == Status::Aborted { "given up" } else { "superseded" });
        }
        match turn.status {
            Status::Interrupted => notes.push("interrupted"),
            Status::Pending => notes.push("still being written"),
            Status::Complete | Status::Aborted => {}
        }
        if turn.erased {
            notes.push("erased");
        }
        let private = turn.visibility == Visibility::Private || (turn.hidden && turn.message.is_none());
        if private {
            notes.push("private, left out");
        }
        let speech = speech::of_turn(turn);
        let mut name = None;
        let parts = match turn.message.as_ref().filter(|_| !private) {
            None => Vec::new(),
            Some(message) => {
                let mut hidden = false;
                let source = source(message, self.media, &mut |_, _| hidden = true);
                if hidden {
                    notes.push("in part private, left out");
                }
                self.parts(turn.id, &source, message.get(), hidden, speech.role, &mut name)
            }
        };
        let parts = match speech.notice {
            Some(kind) => parts.into_iter().map(|part| noticed(kind, part)).collect(),
            None => parts,
        };
        let role = match speech.role {
            _ if speech.notice.is_some() => "Notice",
            Role::User => "User",
            Role::Assistant => "Assistant",
            Role::System => "System",
            Role::Tool => "Tool",
        };
        let who = turn.actor.clone().or(name).filter(|who| !who.trim().is_empty());
        Shown {
            role: who.is_some().then_some(role),
            who: who.unwrap_or_else(|| role.to_string()),
            notes,
            superseded: turn.superseded_by.is_some(),
            parts,
        }
    }

    fn parts(
        &mut self,
        turn: TurnId,
        source: &Source<'_>,
        raw: &str,
        hidden: bool,
        role: Role,
        name: &mut Option<String>,
    ) -> Vec<Part> {
        let whole = || vec![Part::Other { kind: "message".into(), json: pretty(raw) }];
        if source.text.is_empty() {
            // Nothing is left once private parts are removed, or it cannot be read.
            return if hidden { Vec::new() } else { whole() };
        }
        let pairs = pairing::pair([source.seen()]);
        let reader = Reader::new(&pairs, self.media);
        let Ok(item) = reader.item(0, source) else { return whole() };
        *name = item.name.map(str::to_string);
        for call in &pairs.calls {
            if let Some(id) = call.id {
                self.called.insert(id.to_string(), call.name.to_string());
            }
        }
        let (mut parts, mut texts): (Vec<Part>, _) = (Vec::new(), speech::Texts::default());
        for piece in &item.pieces {
            let part = match &piece.kind {
                Kind::ToolResult { answer, content, failed, .. } => {
                    let result = &pairs.results[*answer];
                    let called = result.id.and_then(|id| self.called.remove(id));
                    Part::ToolResult {
                        name: called.or(result.name.map(str::to_string)),
                        failed: *failed,
                        content: content.iter().filter_map(part).map(decoded).collect(),
                    }
                }
                kind => match (part(piece), kind) {
                    (Some(Part::Call { name, arguments, .. }), Kind::Call { call, .. }) => {
                        let call = &pairs.calls[*call];
                        let is_it = |given_up: &&GivenUp| given_up.is_of(Some(turn), call.id, call.name);
                        let given_up = self.given_up.iter().find(is_it);
                        let given_up = given_up.map(|given_up| given_up.reason.clone());
                        Part::Call { name, arguments, given_up }
                    }
                    (Some(part), _) => part,
                    (None, _) => continue,
                },
            };
            let split = if role == Role::User { split(part, &mut texts) } else { vec![part] };
            for part in split {
                // Text blocks follow each other without a space between them, so they are joined.
                match (parts.last_mut(), part) {
                    (Some(Part::Words(before)), Part::Words(words)) => before.push_str(&words),
                    (Some(Part::Notice { kind, text }), Part::Notice { kind: next, text: more })
                        if *kind == next =>
                    {
                        text.push('\n');
                        text.push_str(&more);
                    }
                    (_, part) => parts.push(part),
                }
            }
        }
        parts
    }
}

fn part(piece: &ContentPart<'_>) -> Option<Part> {
    Some(match &piece.kind {
        Kind::Text(text) if text.trim().is_empty() => return None,
        Kind::Text(text) => Part::Words(text.to_string()),
        Kind::Reasoning { text, .. } => {
            Part::Thinking(Some(text.clone()).filter(|text| !text.trim().is_empty()))
        }
        Kind::Call { name, arguments, .. } => {
            let arguments = match *arguments {
                Arguments::Json(json) => pretty(json),
                Arguments::Text(text) if json::check(text).is_ok() => pretty(text),
                Arguments::Text(text) => text.to_string(),
            };
            Part::Call { name: name.to_string(), arguments, given_up: None }
        }
        Kind::Media(blob) => Part::Media(attachment(blob)),
        Kind::Hosted(_) | Kind::Unknown(_) => {
            let kind = piece.own.get("type").and_then(|kind| kind.as_str()).unwrap_or("block");
            Part::Other { kind: kind.to_string(), json: pretty(piece.raw) }
        }
        Kind::ToolResult { .. } => return None,
    })
}

fn noticed(kind: &'static str, part: Part) -> Part {
    match part {
        Part::Words(text) => Part::Notice { kind, text: speech::without_tags(&text).into_owned() },
        part => part,
    }
}

/// A part of a person's turn, split into text of a program and the person's words.
fn split(part: Part, texts: &mut speech::Texts) -> Vec<Part> {
    let Part::Words(text) = &part else { return vec![part] };
    let stretches = texts.stretches(text);
    if let [words] = stretches[..]
        && words.notice.is_none()
        && words.text == text.trim()
    {
        return vec![part];
    }
    let shown = |stretch: &speech::Stretch<'_>| match stretch.notice {
        Some(kind) => noticed(kind, Part::Words(stretch.text.to_string())),
        None => Part::Words(stretch.text.to_string()),
    };
    stretches.iter().map(shown).collect()
}

/// Part of a tool result, with JSON in its text laid out for reading.
fn decoded(part: Part) -> Part {
    match part {
        Part::Words(text) => Part::Words(match message::json_output(&text) {
            Some(Value::String(output)) => output,
            Some(_) => pretty(&text),
            None => text,
        }),
        part => part,
    }
}

fn attachment(blob: &Blob<'_>) -> Attachment {
    let content = match &blob.data {
        Data::Base64(data) => Content::Base64(data.to_string()),
        Data::Text(text) => Content::Text(text.to_string()),
        Data::Url(url) => Content::Url(url.to_string()),
        Data::OpenaiFile(_) | Data::Gone => Content::Gone,
    };
    let label = match (&blob.label, &blob.data) {
        (Some(label), _) => label.to_string(),
        (None, Data::OpenaiFile(id)) => id.to_string(),
        (None, _) => String::new(),
    };
    Attachment { kind: blob.kind.to_string(), label, mime: blob.mime().to_ascii_lowercase(), content }
}
