//! Messages of any shape, as a provider accepts them.
//!
//! [`render`] takes a list of messages in any mixture of shapes (OpenAI chat, Anthropic blocks, Responses items, Gemini
//! contents, our own blocks) and returns a list that the provider accepts:
//!
//! - Every result stands right after the message that called; a result without its call is left out, and so is a call
//!   without its result, unless the list ends with it and nothing of its message was answered yet. Parallel calls stay
//!   together. What is left out is named in [`Rendered::left_out`].
//! - A message that already has the provider's shape is passed on in its own bytes, unknown fields included. Our own marks
//!   (`_harn_projection`, `visibility`, `asset_id`) are taken off, and fields that are known to be another's: `cache_control`
//!   for OpenAI chat, fields of agents, and whatever Anthropic would refuse beside `role` and `content`; blocks that are `private` never leave, `internal` ones are meant for the
//!   model and do.
//! - A block that the provider does not know (a search result, the output of a tool that another provider ran, an unknown
//!   type) is shown as the text in it.
//! - Ids stay. One is made up (`call_1`, …) where it is missing, and rewritten where it repeats or the provider would
//!   refuse it; names of tools likewise. The same input gives the same bytes.
//! - Anthropic and Gemini want to hear the user first. If someone else speaks first, [`CONTINUES`] is put before it.
//! - System messages inside the list stay `system` (or `developer`) for OpenAI chat and become `developer` for Responses.
//!   Anthropic and Gemini have no place for them: those that lead the list, as a synthetic summary does, go into the
//!   system field after the sections; later ones become a message of the user, wrapped in `<system>…</system>`.
//! - The name of a speaker stays where the provider has a field for it and accepts it; else it stands before the words.
//! - Pictures, sound and files are converted, assets put back inline, links kept where the provider follows links. Where it
//!   takes none, `<image:label>` stands in its place; a plain text document is shown as its text. Where results can only be
//!   text (OpenAI chat, Gemini), the pictures in them follow in a message of the user.
//!
//! **Reasoning.** Signed or encrypted reasoning goes, byte for byte, to the provider that signed it. If its turn cannot be
//! shown there as it was (a call in it has no result, a block is private), the whole turn is left out. Any other provider
//! could not verify it: there the reasoning is left out as a whole and the rest of the turn stays, since nothing is
//! checked against it. Reasoning without a signature is of use only in `neutral`.
//!
//! **Neutral** is our own plain shape: `{role: user | assistant | system, content, name?}` and, for each result,
//! `{role: tool, tool_call_id, name, content, is_error?}`. Content is a string or blocks: `{type: text, text}`,
//! `{type: tool_call, id, name, arguments: {…}}`, `{type: reasoning, text}` and
//! `{type: image | audio | video | file, mime_type?, data | url, name?}`.
//!
//! It knows no model. Gemini 3 wants a signature on calls of the current turn also if another provider made them; the
//! caller that sends the request knows the value that skips that check.

mod anthropic;
mod cache;
mod chat;
mod clean;
mod gemini;
mod ids;
pub(crate) mod media;
mod neutral;
mod plan;
pub(crate) mod read;
mod responses;
mod stretch;
mod write;

pub use cache::mark_cache;
pub use stretch::{Renderer, WAIT_MESSAGES_MAX};

use everturn_core::Error;
use everturn_core::id::clip;
use everturn_core::json::{self, Raw, quote};
use plan::RenderStep;
use read::{Item, Kind, Source};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use write::{Out, Writer};

/// First message of the user where the list begins with another role.
pub const CONTINUES: &str = "(The conversation continues.)";

/// Provider whose message format is used.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Provider {
    /// OpenAI chat completions, and the many servers that speak it.
    OpenaiChat,
    /// OpenAI Responses.
    OpenaiResponses,
    /// Anthropic Messages.
    Anthropic,
    /// Gemini `generateContent`.
    Gemini,
    /// Our own plain shape.
    Neutral,
}

impl Provider {
    /// All of them.
    pub const ALL: [Provider; 5] = [
        Provider::OpenaiChat,
        Provider::OpenaiResponses,
        Provider::Anthropic,
        Provider::Gemini,
        Provider::Neutral,
    ];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Provider::OpenaiChat => "openai-chat",
            Provider::OpenaiResponses => "openai-responses",
            Provider::Anthropic => "anthropic",
            Provider::Gemini => "gemini",
            Provider::Neutral => "neutral",
        }
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Provider {
    type Err = Error;

    fn from_str(text: &str) -> Result<Provider, Error> {
        Provider::ALL.into_iter().find(|provider| provider.as_str() == text).ok_or_else(|| {
            let names: Vec<&str> = Provider::ALL.into_iter().map(Provider::as_str).collect();
            Error::invalid("provider.unknown", format!("{:?} is not one of {}", clip(text), names.join(", ")))
        })
    }
}

/// Input of [`render`]. Messages are [`Value`]s, or [`Raw`]s where numbers must keep their spelling.
#[derive(Clone, Copy)]
pub struct Input<'a, M = Value> {
    /// System material, in order: system prompt, state, facts, recalled turns, digests.
    pub system: &'a [SystemSection<'a>],
    /// Messages of the conversation, in any mixture of shapes.
    pub messages: &'a [M],
    /// Source of asset bytes.
    pub media: &'a dyn Media,
}

/// One piece of system material.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SystemSection<'a> {
    /// Name given by the caller; not rendered.
    pub name: &'a str,
    /// Text of the section.
    pub text: &'a str,
}

/// Source of asset bytes.
pub trait Media {
    /// Media type and bytes; `None` if they are not available.
    fn bytes(&self, asset_id: &str) -> Option<(String, Vec<u8>)>;
    /// Display name of the asset.
    fn label(&self, asset_id: &str) -> Option<String>;
}

/// No assets at all.
pub struct NoMedia;

impl Media for NoMedia {
    fn bytes(&self, _: &str) -> Option<(String, Vec<u8>)> {
        None
    }

    fn label(&self, _: &str) -> Option<String> {
        None
    }
}

/// A message as callers have it: parsed, or as its exact text.
pub trait MessageSource {
    /// Its text.
    fn text(&self) -> Cow<'_, str>;
    /// The same, parsed; `None` if it cannot be: a number beyond every range.
    fn value(&self) -> Option<Cow<'_, Value>>;
}

impl MessageSource for Value {
    fn text(&self) -> Cow<'_, str> {
        Cow::Owned(self.to_string())
    }

    fn value(&self) -> Option<Cow<'_, Value>> {
        Some(Cow::Borrowed(self))
    }
}

impl MessageSource for Raw {
    fn text(&self) -> Cow<'_, str> {
        Cow::Borrowed(self.get())
    }

    fn value(&self) -> Option<Cow<'_, Value>> {
        self.read().map(Cow::Owned)
    }
}

impl<M: MessageSource> MessageSource for &M {
    fn text(&self) -> Cow<'_, str> {
        (**self).text()
    }

    fn value(&self) -> Option<Cow<'_, Value>> {
        (**self).value()
    }
}

/// System material and messages of a request.
#[derive(Clone, PartialEq, Debug)]
pub struct Rendered {
    /// Value of the field that [`request_fields`] names: for Anthropic a list of text blocks and for Gemini a content
    /// with parts, one for each section that has text; for Responses and neutral a string. `None` if there is no
    /// text, and for OpenAI chat, where it is the first message.
    pub system: Option<Raw>,
    /// The messages, items or contents.
    pub messages: Vec<Raw>,
    /// Parts of the input that were left out, in its order.
    pub left_out: Vec<UnrenderedPart>,
    /// For each rendered message the (first) input message that it came from; `None` for one that we added.
    pub sources: Vec<Option<usize>>,
}

impl Rendered {
    /// Whether no message of the input is left: there is nothing that a model could reply to.
    pub fn is_empty(&self) -> bool {
        self.sources.iter().all(Option::is_none)
    }
}

/// The answer to a request whose prompt would be empty.
pub fn nothing_to_reply_to() -> Error {
    Error::invalid("generate.nothing", "there is nothing to reply to; give some input")
}

/// A part of the input that could not be rendered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnrenderedPart {
    /// The index of its message in the input.
    pub message: usize,
    /// Description of the part, and the reason.
    pub what: String,
    /// Whether the part is unreadable (an unknown role or type, a number out of range), so that its sender should be told.
    pub unread: bool,
}

/// Names of the request fields: for messages, and for system material if there is one.
pub fn request_fields(provider: Provider) -> (&'static str, Option<&'static str>) {
    match provider {
        Provider::OpenaiChat => ("messages", None),
        Provider::OpenaiResponses => ("input", Some("instructions")),
        Provider::Anthropic | Provider::Neutral => ("messages", Some("system")),
        Provider::Gemini => ("contents", Some("systemInstruction")),
    }
}

/// Renders for a provider. Linear in the size of the input; an error is a bug of ours, never a fault of the input.
pub fn render<M: MessageSource>(provider: Provider, input: &Input<'_, M>) -> Result<Rendered, Error> {
    let mut renderer = Renderer::new(provider, input.system, input.media);
    renderer.stretch(input.messages, true)
}

fn write_step(writer: &dyn Writer, step: &RenderStep, items: &[Item<'_>], out: &mut Out) {
    match step {
        RenderStep::Say(group) => match group.as_slice() {
            [only] if items[*only].is_whole() && !items[*only].answers() && writer.fits(&items[*only]) => {
                out.push(items[*only].text.to_string(), Some(items[*only].source));
            }
            group => writer.say(&group.iter().map(|i| &items[*i]).collect::<Vec<_>>(), out),
        },
        RenderStep::Answers(places) => {
            let answers: Vec<_> = places.iter().map(|(i, p)| (&items[*i], &items[*i].pieces[*p])).collect();
            writer.answers(&answers, out);
        }
        RenderStep::Whole(i) => out.push(items[*i].text.to_string(), Some(items[*i].source)),
    }
}

/// A message ready to be read; one without text if it cannot be, which `leave` is told.
pub(crate) fn source<'a, M: MessageSource>(
    message: &'a M,
    media: &dyn Media,
    leave: &mut dyn FnMut(String, bool),
) -> Source<'a> {
    let nothing = Source { text: "".into(), own: Cow::Owned(Value::Null), view: None, lost: false };
    let Some(given) = message.value() else {
        leave("it has a number that is out of every range".into(), true);
        return nothing;
    };
    let clean = match clean::clean(message.text(), media) {
        Ok(clean) => clean,
        Err(error) => {
            leave(error.text().to_string(), true);
            return nothing;
        }
    };
    let Some(text) = clean.text else {
        leave("it is private".into(), false);
        return nothing;
    };
    if clean.lost {
        leave("a private block".into(), false);
    }
    let own = match clean.changed {
        false => given,
        true => Cow::Owned(serde_json::from_str(&text).unwrap_or_default()),
    };
    let view = read::view_of_gemini(&own, &text);
    Source { text, own, view, lost: clean.lost }
}

/// Parses rendered JSON. Arguments that came as text are nested deeper in it than they were before, so the depth
/// limit of stored messages does not apply.
fn raw(text: &str) -> Result<Raw, Error> {
    serde_json::from_str(text).map_err(|error| {
        Error::internal("provider.malformed", format!("the renderer wrote {error}; please report it"))
    })
}

/// Text of a system message.
fn system_words(step: &RenderStep, items: &[Item<'_>]) -> String {
    let RenderStep::Say(group) = step else { return String::new() };
    let words = group.iter().flat_map(|i| items[*i].said()).filter_map(|piece| match &piece.kind {
        Kind::Text(text) => Some(text.to_string()),
        Kind::Media(blob) => Some(blob.in_words()),
        _ => None,
    });
    words.collect()
}

fn system(provider: Provider, texts: &[Cow<'_, str>]) -> Result<Option<Raw>, Error> {
    if texts.is_empty() {
        return Ok(None);
    }
    let joined = || quote(&texts.join("\n\n"));
    let text = match provider {
        Provider::OpenaiChat => return Ok(None),
        Provider::OpenaiResponses | Provider::Neutral => joined(),
        Provider::Anthropic => {
            let blocks: Vec<String> = texts
                .iter()
                .map(|text| json::object([("type", quote("text")), ("text", quote(text))]))
                .collect();
            json::array(&blocks)
        }
        Provider::Gemini => {
            let parts: Vec<String> = texts.iter().map(|text| json::object([("text", quote(text))])).collect();
            json::object([("parts", json::array(&parts))])
        }
    };
    raw(&text).map(Some)
}
