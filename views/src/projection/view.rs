//! What comes out.

use super::edit::Edit;
use super::pointer::Pointer;
use super::{Message, Options, Policy, Signatures, record};
use everturn_core::json::Raw;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::sync::Arc;

/// A message in a view.
#[derive(Clone, Debug)]
pub struct Shown<'a> {
    pub(super) message: Cow<'a, Message>,
    pub(super) source: Option<usize>,
    /// What was done to the message of the transcript.
    pub(super) edit: Option<Arc<Edit>>,
    /// The text is not from the transcript: a summary, or what a projector wrote.
    pub(super) foreign: bool,
}

impl<'a> Shown<'a> {
    /// The text, the one that came in if nothing was changed.
    pub fn raw(&self) -> &Raw {
        self.message.raw()
    }

    /// What it says.
    pub fn value(&self) -> &Value {
        self.message.value()
    }

    /// Its index in the transcript; none if it is synthetic.
    pub fn source(&self) -> Option<usize> {
        self.source
    }

    /// Whether it is the transcript's message, byte for byte.
    pub fn is_unchanged(&self) -> bool {
        self.edit.is_none() && !self.foreign
    }

    pub(super) fn raw_from(index: usize, message: &'a Message) -> Shown<'a> {
        Shown { message: Cow::Borrowed(message), source: Some(index), edit: None, foreign: false }
    }

    pub(super) fn written(message: Message, source: Option<usize>) -> Shown<'a> {
        Shown { message: Cow::Owned(message), source, edit: None, foreign: true }
    }

    /// What was done to it.
    pub(super) fn edit(&self) -> &Edit {
        static NOTHING: Edit = Edit { removed: Vec::new(), pointers: Vec::new(), removed_chars: 0 };
        self.edit.as_deref().unwrap_or(&NOTHING)
    }

    pub(super) fn is_signed(&self) -> bool {
        self.message.is_signed()
    }

    /// Whether it reads as another of the same transcript.
    pub(super) fn is_same(&self, other: &Shown<'_>) -> bool {
        self.is_unchanged() && other.is_unchanged() && self.source == other.source
            || self.message.is(&other.message)
            || self.raw() == other.raw()
    }

    /// The same without a borrow. A message is shared, not copied.
    pub(super) fn kept(&self) -> Shown<'static> {
        let Shown { message, source, edit, foreign } = self.clone();
        Shown { message: Cow::Owned(message.into_owned()), source, edit, foreign }
    }

    /// The same, borrowed.
    pub(super) fn lent(&self) -> Shown<'_> {
        let Shown { message, source, edit, foreign } = self;
        Shown { message: Cow::Borrowed(message), source: *source, edit: edit.clone(), foreign: *foreign }
    }
}

impl Serialize for Shown<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.raw().serialize(serializer)
    }
}

/// A message in the provider's shape: any JSON.
impl JsonSchema for Shown<'_> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Shown".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Raw::json_schema(generator)
    }
}

/// What the next request sees, and what was decided on the way there.
#[derive(Clone, Debug, JsonSchema)]
#[schemars(transform = describe_event)]
pub struct View<'a> {
    /// What was asked for; several policies are joined by `+`.
    pub policy: String,
    /// Why it is as it is.
    pub reason: String,
    /// The messages.
    pub messages: Vec<Shown<'a>>,
    /// For each message its index in the transcript; null if it is synthetic.
    pub source_indices: Vec<Option<usize>>,
    /// The transcript's messages that are in the view, if only in part.
    pub kept_indices: Vec<usize>,
    /// Those that are not.
    pub dropped_indices: Vec<usize>,
    /// Those of which a body was reclaimed.
    pub redacted_indices: Vec<usize>,
    /// How many were kept.
    pub kept_count: usize,
    /// How many were dropped.
    pub dropped_count: usize,
    /// How many bodies were reclaimed.
    pub redacted_count: usize,
    /// The characters of what is not shown: bodies, parts, whole messages. What stands in their place is not counted.
    pub reclaimed_chars: usize,
    /// An estimate: a quarter of the characters of each.
    pub reclaimed_tokens: usize,
    /// `sha256:` and the hash of the messages' canonical JSON.
    pub prefix_hash: String,
    /// The policy would have broken signed reasoning, so the view is raw.
    pub provider_safety_blocked: bool,
    /// The kinds of roots that `reachability_gc` looked at.
    pub roots_consulted: Vec<String>,
    /// Where the reclaimed bodies are.
    pub redaction_pointers: Vec<Pointer>,
    /// The first message that differs from the raw transcript's; up to it a provider's prompt cache still holds.
    pub first_changed_index: Option<usize>,
    /// How many tokens at the start are as in the previous view, if one was given; an estimate.
    #[schemars(skip_serializing_if = "Option::is_none")]
    pub unchanged_leading_tokens: Option<usize>,
    #[schemars(skip)]
    pub(super) asked: Asked,
    /// How many messages the transcript has.
    #[schemars(skip)]
    pub(super) transcript: usize,
}

/// What the event says of the options.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    respects_provider_signatures: bool,
    summary_keep_last: Option<usize>,
    options: Value,
}

impl Asked {
    pub(super) fn of(options: &Options) -> Asked {
        let summarizes = options.policies.contains(&Policy::SummaryPrefix);
        Asked {
            respects_provider_signatures: options.signatures != Signatures::Ignore,
            summary_keep_last: summarizes.then_some(options.keep_last),
            options: options.record.clone(),
        }
    }
}

impl View<'_> {
    /// The event that records it: `{kind, role, visibility, text, metadata}`.
    pub fn event(&self) -> Value {
        // Text, numbers and what was JSON before can always be written.
        serde_json::to_value(Event(self)).unwrap_or_default()
    }

    /// What the event says, to be written without a copy.
    pub fn metadata(&self) -> Metadata<'_> {
        Metadata(self)
    }

    /// The fields that the result and the event have in common; the result has the messages among them.
    fn tell<S: SerializeStruct>(&self, out: &mut S, has_messages: bool) -> Result<(), S::Error> {
        out.serialize_field("policy", &self.policy)?;
        out.serialize_field("reason", &self.reason)?;
        if has_messages {
            out.serialize_field("messages", &self.messages)?;
        }
        out.serialize_field("source_indices", &self.source_indices)?;
        out.serialize_field("kept_indices", &self.kept_indices)?;
        out.serialize_field("dropped_indices", &self.dropped_indices)?;
        out.serialize_field("redacted_indices", &self.redacted_indices)?;
        out.serialize_field("kept_count", &self.kept_count)?;
        out.serialize_field("dropped_count", &self.dropped_count)?;
        out.serialize_field("redacted_count", &self.redacted_count)?;
        out.serialize_field("reclaimed_chars", &self.reclaimed_chars)?;
        out.serialize_field("reclaimed_tokens", &self.reclaimed_tokens)?;
        out.serialize_field("prefix_hash", &self.prefix_hash)?;
        out.serialize_field("provider_safety_blocked", &self.provider_safety_blocked)?;
        out.serialize_field("roots_consulted", &self.roots_consulted)?;
        out.serialize_field("redaction_pointers", &self.redaction_pointers)?;
        out.serialize_field("first_changed_index", &self.first_changed_index)?;
        match &self.unchanged_leading_tokens {
            Some(tokens) => out.serialize_field("unchanged_leading_tokens", tokens),
            None => Ok(()),
        }
    }
}

/// The event is written from the other fields.
fn describe_event(schema: &mut Schema) {
    let event =
        json!({"type": "object", "additionalProperties": true, "description": "The event that records it."});
    if let Some(fields) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        fields.insert("event".into(), event);
    }
    if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
        required.push("event".into());
    }
}

impl Serialize for View<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("View", 19)?;
        self.tell(&mut out, true)?;
        out.serialize_field("event", &Event(self))?;
        out.end()
    }
}

/// What the event that records a view says: all of it but the messages, what was asked for, and what was decided.
/// It is the view itself, so that indices and pointers are written from where they are.
pub struct Metadata<'v>(&'v View<'v>);

impl Serialize for Metadata<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Metadata(view) = self;
        let mut out = serializer.serialize_struct("Metadata", 21)?;
        view.tell(&mut out, false)?;
        out.serialize_field("respects_provider_signatures", &view.asked.respects_provider_signatures)?;
        out.serialize_field("summary_keep_last", &view.asked.summary_keep_last)?;
        out.serialize_field("options", &view.asked.options)?;
        out.serialize_field("decisions", &record::decisions(&view.messages, view.transcript))?;
        out.end()
    }
}

struct Event<'v>(&'v View<'v>);

impl Serialize for Event<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("Event", 5)?;
        out.serialize_field("kind", "transcript.projection")?;
        out.serialize_field("role", "system")?;
        out.serialize_field("visibility", "internal")?;
        out.serialize_field("text", &self.0.reason)?;
        out.serialize_field("metadata", &self.0.metadata())?;
        out.end()
    }
}
