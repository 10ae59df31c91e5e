//! Options of a context, including the material that the caller supplies.

use crate::ingest;
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::id::TurnId;
use everturn_core::json::{self, Raw};
use everturn_core::redaction::{self, RedactionMode};
use everturn_core::viewer::without_private;
use everturn_formats::provider::Provider;
use everturn_views::context::Sections;
use everturn_views::projection;
use everturn_views::tokens::TokenizerFamily;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::borrow::Cow;

/// Options of a context. Only the budget is required.
#[derive(Clone)]
pub struct ContextOptions {
    /// Most tokens.
    pub token_budget: u64,
    /// Most turns of the tail.
    pub last_n: Option<usize>,
    /// Actors whose turns are the assistant's; the others' are the user's.
    pub participants: Vec<String>,
    /// Projection of the tail.
    pub projection: Option<projection::ViewOptions>,
    /// Sections, and the share of the room that each may fill.
    pub sections: Sections,
    /// Instructions for this call, after the system prompt.
    pub instructions: Option<String>,
    /// Texts supplied by the caller: a work board, a memory, a scratchpad. The most important first.
    pub digests: Vec<Digest>,
    /// Input of this call, as messages of any shape. It is in the prompt, but not in the log: append it to keep it.
    ///
    /// ```
    /// # use everturn_engine as everturn;
    /// use everturn::{ContextOptions, Everturn, Raw};
    ///
    /// let store = Everturn::open("memory:")?;
    /// let chat = store.tenant("acme")?.create("A trip to Oslo").wait()?;
    /// chat.append("We leave on the 3rd of May.").by("alice").wait()?;
    ///
    /// let input = Raw::new(r#"{"role": "user", "content": "Which day do we leave?"}"#.into())?;
    /// let context = chat.contexts().build(&ContextOptions { input: vec![input], ..ContextOptions::new(8_000) })?;
    /// assert!(context.messages.last().is_some_and(|message| message.get().contains("Which day do we leave?")));
    /// assert_eq!(chat.get()?.turns, 1);
    /// # Ok::<(), everturn::Error>(())
    /// ```
    pub input: Vec<Raw>,
    /// Content blocks that go with the input: images, files.
    pub attachments: Vec<Raw>,
    /// Schemas of the tools sent along: they cost tokens and are in the receipt.
    pub tools: Vec<Raw>,
    /// Provider whose message shape is used.
    pub provider: Provider,
    /// Model that will read the context; selects the tokenizer.
    pub model: Option<String>,
    /// Recall of facts, and of turns older than the tail.
    pub recall: Option<RecallRequest>,
    /// Build the context as of this `seq`.
    pub at_seq: Option<u64>,
    /// Turns from this place on are the input: they are never left out, nor are the tool calls that they answer.
    pub input_from: Option<u64>,
    /// Only turns before this place, to regenerate an answer.
    pub before: Option<u64>,
    /// Actor of the reply. The prompt includes private turns that are addressed to it.
    pub replies_as: Option<String>,
    /// Private turns for the model to answer. The prompt includes them regardless of their audience.
    pub asked: Vec<TurnId>,
}

impl ContextOptions {
    /// Options with this budget and defaults for the rest.
    pub fn new(token_budget: u64) -> ContextOptions {
        ContextOptions {
            token_budget,
            last_n: None,
            participants: Vec::new(),
            projection: None,
            sections: Sections::default(),
            instructions: None,
            digests: Vec::new(),
            input: Vec::new(),
            attachments: Vec::new(),
            tools: Vec::new(),
            provider: Provider::Neutral,
            model: None,
            recall: None,
            at_seq: None,
            input_from: None,
            before: None,
            replies_as: None,
            asked: Vec::new(),
        }
    }

    /// Tokenizer family: the model's, else the provider's.
    pub fn family(&self) -> TokenizerFamily {
        match (&self.model, self.provider) {
            (Some(model), _) => TokenizerFamily::of_model(model),
            (None, Provider::Anthropic | Provider::Gemini) => TokenizerFamily::Estimate,
            (None, _) => TokenizerFamily::O200k,
        }
    }

    /// Input and attachments as messages.
    pub(super) fn input_messages(&self) -> Result<Vec<Raw>, Error> {
        let mut messages = self.input.clone();
        if !self.attachments.is_empty() {
            messages.push(Raw::of(&json!({"role": "user", "content": self.attachments}))?);
        }
        Ok(messages)
    }

    /// The options with the secrets of everything that the caller supplies masked: it is recorded with the call.
    pub(super) fn masked(mut self) -> Result<ContextOptions, Error> {
        let mask = |text: &str| redaction::mask(text, &mut Vec::new()).into_owned();
        self.instructions = self.instructions.as_deref().map(mask);
        let names = self.participants.iter_mut().chain(&mut self.replies_as).chain(&mut self.model);
        names.for_each(|name| *name = mask(name));
        for digest in &mut self.digests {
            *digest = Digest { title: mask(&digest.title), text: mask(&digest.text) };
        }
        for raw in self.input.iter_mut().chain(&mut self.attachments).chain(&mut self.tools) {
            ingest::redact(raw, RedactionMode::Mask)?;
        }
        Ok(self)
    }

    /// Removes `visibility` from private messages of the input, because the prompt of their own call includes them. Returns
    /// whether any input is private.
    pub(super) fn open_private(&mut self) -> Result<bool, Error> {
        let mut has_private = false;
        for raw in self.input.iter_mut().chain(&mut self.attachments) {
            let public = without_private(raw.get());
            has_private |= !matches!(public, Some(Cow::Borrowed(_)));
            if public.is_none() && json::field(raw.get(), "visibility").is_some() {
                let fields = json::fields(raw.get());
                let kept = fields.iter().filter(|(name, _)| name != "visibility");
                *raw = Raw::new(json::object(kept.map(|(name, value)| (&**name, value.to_string()))))?;
            }
        }
        Ok(has_private)
    }

    /// Everything that the caller supplied, by its hash.
    pub(super) fn given(&self) -> Vec<(Hash, String)> {
        let texts = self.instructions.iter().cloned().chain(self.digests.iter().map(Digest::piece));
        let raws = self.input_messages().unwrap_or_default().into_iter().chain(self.tools.iter().cloned());
        texts
            .chain(raws.map(|raw| raw.get().to_string()))
            .map(|text| (Hash::of(text.as_bytes()), text))
            .collect()
    }
}

/// Recall into a context.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "ContextRecall")]
pub struct RecallRequest {
    /// Most turns of this conversation, all older than the tail.
    pub turns: usize,
    /// Most facts.
    pub facts: usize,
    /// Query; by default the input, or the last user turn.
    #[serde(skip_serializing)]
    pub query: Option<String>,
}

/// A text supplied by the caller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Digest {
    /// Heading of the text.
    pub title: String,
    /// Plain text, or JSON.
    pub text: String,
}

impl Digest {
    /// A text under a heading.
    pub fn new(title: impl Into<String>, text: impl Into<String>) -> Digest {
        Digest { title: title.into(), text: text.into() }
    }

    /// The text under its heading, as the prompt shows it.
    pub(super) fn piece(&self) -> String {
        match self.title.as_str() {
            "" => self.text.clone(),
            title => format!("# {title}\n\n{}", self.text),
        }
    }
}
