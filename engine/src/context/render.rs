//! Rendering a context in the shape of its provider.

use super::options::ContextOptions;
use crate::conversation::ConversationHandle;
use everturn_core::Error;
use everturn_core::asset::Asset;
use everturn_core::json::Raw;
use everturn_core::viewer::Viewer;
use everturn_formats::provider::{self, Media, Provider};
use everturn_views::context::{self, Assembled, ContextMessage, Section};
use everturn_views::tokens::{PART_TOKENS, TokenizerFamily};
use serde_json::{Value, json};
use std::borrow::Cow;

impl ConversationHandle {
    /// `asked` see the private turns that are to be answered, and their media.
    pub(super) fn render(
        &self,
        provider: Provider,
        assembled: &Assembled<'_>,
        asked: &[String],
    ) -> Result<provider::Rendered, Error> {
        let system: Vec<provider::SystemSection<'_>> = assembled
            .texts
            .iter()
            .map(|text| provider::SystemSection { name: text.section.as_str(), text: &text.text })
            .collect();
        let messages: Vec<RenderInput<'_>> =
            assembled.messages.iter().map(|said| RenderInput(said)).collect();
        let reader = match self.tenant.viewer().names().filter(|_| !asked.is_empty()) {
            Some(names) => self.seen_by(Viewer::actors(names.into_iter().chain(asked.iter().cloned()))),
            None => self.clone(),
        };
        let media = StoredMedia { conversation: &reader };
        let input = provider::Input { system: &system, messages: &messages, media: &media };
        provider::render(provider, &input)
    }
}

/// A message for the renderers: its exact text, and its content even if a number in it does not fit a double.
struct RenderInput<'a>(&'a ContextMessage);

impl provider::MessageSource for RenderInput<'_> {
    fn text(&self) -> Cow<'_, str> {
        Cow::Borrowed(self.0.raw.get())
    }

    fn value(&self) -> Option<Cow<'_, Value>> {
        Some(Cow::Borrowed(&self.0.message))
    }
}

/// The bytes of a conversation's assets, for the renderers.
pub(crate) struct StoredMedia<'a> {
    pub(crate) conversation: &'a ConversationHandle,
}

impl StoredMedia<'_> {
    fn asset(&self, id: &str) -> Option<Asset> {
        self.conversation.assets().get(id).ok()
    }
}

impl Media for StoredMedia<'_> {
    fn bytes(&self, id: &str) -> Option<(String, Vec<u8>)> {
        let asset = self.asset(id)?;
        let bytes = self.conversation.tenant.assets().bytes(&asset).ok()?;
        Some((asset.mime_type, bytes))
    }

    fn label(&self, id: &str) -> Option<String> {
        self.asset(id).map(|asset| asset.label())
    }
}

/// Marks for Anthropic's cache what the next prompt is likely to begin with: up to the end of the system prompt, of
/// the state, and of the tail. Adds no marks if the caller's tools or turns have some, since only four are allowed.
pub(super) fn mark_cache(
    options: &ContextOptions,
    assembled: &Assembled,
    rendered: &mut provider::Rendered,
) -> Result<(), Error> {
    if options.tools.iter().any(|tool| tool.get().contains("\"cache_control\"")) {
        return Ok(());
    }
    let spoken = assembled.texts.iter().filter(|text| !text.text.trim().is_empty());
    let stable = |text: &context::Text| matches!(text.section, Section::System | Section::State);
    let ends: Vec<usize> = spoken.enumerate().filter(|(_, text)| stable(text)).map(|(n, _)| n).collect();
    provider::mark_cache(rendered, &ends, assembled.tail)
}

/// Token count of a rendered prompt without its frame.
pub(super) fn rendered_cost(family: TokenizerFamily, rendered: &provider::Rendered) -> u64 {
    let cost =
        |raw: &Raw| raw.read::<Value>().map_or_else(|| family.count(raw.get()), |m| family.message(&m));
    let system = rendered.system.as_ref().map_or(0, |system| match system.read::<Value>() {
        Some(Value::String(text)) => family.count(&text) + PART_TOKENS,
        Some(Value::Array(blocks)) => family.message(&json!({"role": "system", "content": blocks})),
        Some(other) => family.message(&other),
        None => family.count(system.get()),
    });
    system + rendered.messages.iter().map(cost).sum::<u64>()
}
