//! A list of any length, one stretch after the other.
//!
//! A list may be cut before a message with text of the user, if no call before it still waits: no rule of
//! any provider reaches across such a place. So the stretches together equal the rendered whole list, and
//! no more than one of them is in memory.

use super::ids::Taken;
use super::plan::{RenderStep, Stretch, plan};
use super::read::{Reader, Source, view_of_gemini};
use super::write::{Out, Writer};
use super::{
    CONTINUES, Media, MessageSource, Provider, Rendered, SystemSection, UnrenderedPart, anthropic, chat,
    gemini, neutral, raw, responses, source, system, system_words, write_step,
};
use everturn_core::Error;
use everturn_core::json::{self, Raw, quote};
use everturn_core::pairing;
use everturn_core::turn::Role;
use serde_json::Value;
use std::borrow::Cow;

/// Most messages between a call and its result in a list that comes message by message; a call that waits longer
/// counts as unanswered.
pub const WAIT_MESSAGES_MAX: usize = 1000;

/// Renders messages as they come. What it gives back, one after the other, is what [`render`](super::render) makes of the
/// whole list, with two exceptions for the sake of bounded memory: [`WAIT_MESSAGES_MAX`], and an id that was made up for a
/// call without one is not given again, also not to a later call that came with it.
pub struct Renderer<'m> {
    provider: Provider,
    media: &'m dyn Media,
    /// System material, written before the first message.
    texts: Vec<String>,
    first: bool,
    taken: Taken,
    waiting: Vec<Raw>,
    /// Number of messages before the waiting ones.
    before: usize,
    /// Number of waiting messages at which to look again for a place to cut.
    look_at: usize,
}

impl<'m> Renderer<'m> {
    /// Renderer for a provider, with its system material.
    pub fn new(provider: Provider, system: &[SystemSection<'_>], media: &'m dyn Media) -> Renderer<'m> {
        Renderer {
            provider,
            media,
            texts: system.iter().map(|section| section.text.to_string()).collect(),
            first: true,
            taken: Taken::default(),
            waiting: Vec::new(),
            before: 0,
            look_at: 1,
        }
    }

    /// Takes the next message; returns the messages that can be written by now. The first ones come with the system
    /// material.
    pub fn push(&mut self, message: Raw) -> Result<Option<Rendered>, Error> {
        let mut done = None;
        if self.waiting.len() >= self.look_at && speaks(&message) {
            if self.waiting.len() >= WAIT_MESSAGES_MAX || !waits(&self.waiting) {
                let messages = std::mem::take(&mut self.waiting);
                done = Some(self.stretch(&messages, false)?);
                self.before += messages.len();
                self.look_at = 1;
            } else {
                self.look_at = self.waiting.len() * 3 / 2 + 1;
            }
        }
        self.waiting.push(message);
        Ok(done)
    }

    /// Renders the waiting messages at the end of the list.
    pub fn rest(&mut self) -> Result<Rendered, Error> {
        let messages = std::mem::take(&mut self.waiting);
        self.stretch(&messages, true)
    }

    pub(super) fn stretch<M: MessageSource>(
        &mut self,
        messages: &[M],
        last: bool,
    ) -> Result<Rendered, Error> {
        let provider = self.provider;
        let mut left_out = Vec::new();
        let mut sources = Vec::with_capacity(messages.len());
        for (index, message) in messages.iter().enumerate() {
            let mut leave = |what, unread| left_out.push(UnrenderedPart { message: index, what, unread });
            sources.push(source(message, self.media, &mut leave));
        }
        let pairs = pairing::pair(sources.iter().map(Source::seen));
        let reader = Reader::new(&pairs, self.media);
        let mut items = Vec::with_capacity(sources.len());
        for (index, source) in sources.iter().enumerate().filter(|(_, source)| !source.text.is_empty()) {
            match reader.item(index, source) {
                Ok(item) => items.push(item),
                Err(what) => left_out.push(UnrenderedPart { message: index, what, unread: true }),
            }
        }
        let writer: &dyn Writer = match provider {
            Provider::OpenaiChat => &chat::Chat,
            Provider::OpenaiResponses => &responses::Responses,
            Provider::Anthropic => &anthropic::Anthropic,
            Provider::Gemini => &gemini::Gemini,
            Provider::Neutral => &neutral::Neutral,
        };
        let stretch = Stretch { last, taken: &mut self.taken };
        let steps = plan(provider, &mut items, &pairs, stretch, &|item| writer.fits(item), &mut left_out);
        let apart = matches!(provider, Provider::Anthropic | Provider::Gemini);
        let leads = |step: &RenderStep| matches!(step, RenderStep::Say(group) if items[group[0]].role == Role::System);
        let mut lead = 0;
        let mut out = Out::default();
        let mut given = None;
        if std::mem::take(&mut self.first) {
            lead = if apart { steps.iter().take_while(|step| leads(step)).count() } else { 0 };
            let mut texts: Vec<Cow<'_, str>> = self.texts.drain(..).map(Cow::Owned).collect();
            texts.extend(steps[..lead].iter().map(|step| Cow::Owned(system_words(step, &items))));
            texts.retain(|text| !text.trim().is_empty());
            let speaker = match steps.get(lead) {
                Some(RenderStep::Say(group)) => Some(items[group[0]].role),
                _ => None,
            };
            out.messages.extend(opening(provider, &texts, speaker));
            out.sources.resize(out.messages.len(), None);
            given = system(provider, &texts)?;
        }
        for step in &steps[lead..] {
            write_step(writer, step, &items, &mut out);
        }
        left_out.sort_by_key(|left| left.message);
        left_out.iter_mut().for_each(|left| left.message += self.before);
        out.sources.iter_mut().flatten().for_each(|source| *source += self.before);
        let messages = out.messages.iter().map(|text| raw(text)).collect::<Result<_, _>>()?;
        Ok(Rendered { system: given, messages, left_out, sources: out.sources })
    }
}

/// The message that a list begins with, where the provider wants one of ours.
fn opening(provider: Provider, texts: &[Cow<'_, str>], speaker: Option<Role>) -> Option<String> {
    match provider {
        Provider::OpenaiChat if !texts.is_empty() => {
            Some(json::object([("role", quote("system")), ("content", quote(&texts.join("\n\n")))]))
        }
        Provider::Anthropic if speaker == Some(Role::Assistant) => {
            Some(json::object([("role", quote("user")), ("content", quote(CONTINUES))]))
        }
        Provider::Gemini if speaker == Some(Role::Assistant) => {
            let part = json::object([("text", quote(CONTINUES))]);
            Some(json::object([("role", quote("user")), ("parts", json::array(&[part]))]))
        }
        _ => None,
    }
}

/// Whether it is a message of the user that every provider gets: only text, none of it private.
fn speaks(message: &Raw) -> bool {
    let Some(message) = message.read::<Value>() else { return false };
    let words =
        |value: Option<&Value>| value.and_then(Value::as_str).is_some_and(|text| !text.trim().is_empty());
    let block = |block: &Value| {
        let kind = block.get("type").is_none_or(|kind| kind == "text" || kind == "input_text");
        let plain =
            block.as_object().is_some_and(|fields| fields.keys().all(|key| key == "type" || key == "text"));
        kind && plain && words(block.get("text"))
    };
    let blocks = |value: Option<&Value>| {
        value.and_then(Value::as_array).is_some_and(|blocks| !blocks.is_empty() && blocks.iter().all(block))
    };
    let plain = message.as_object().is_some_and(|fields| {
        fields.keys().all(|key| matches!(key.as_str(), "role" | "content" | "parts" | "type" | "name"))
    });
    let content = message.get("content");
    let parts = message.get("parts");
    plain
        && message.get("role").is_some_and(|role| role == "user")
        && (content.is_some() != parts.is_some())
        && (words(content) || blocks(content) || blocks(parts))
}

/// Whether a call in these messages has no result yet.
fn waits(messages: &[Raw]) -> bool {
    let read = |raw: &Raw| {
        let message = raw.read::<Value>().unwrap_or_default();
        view_of_gemini(&message, raw.get()).unwrap_or(message)
    };
    let messages: Vec<Value> = messages.iter().map(read).collect();
    pairing::pair(messages.iter()).calls.iter().any(|call| call.result.is_none())
}
