//! The result of a projection.

use super::edit::Edit;
use super::pointer::Pointer;
use super::{Message, ProjectionPolicy, Signatures, ViewOptions, record};
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
    /// Changes to the original message.
    pub(super) edit: Option<Arc<Edit>>,
    /// The text is not from the transcript: a summary, or a projector's own message.
    pub(super) foreign: bool,
}

impl<'a> Shown<'a> {
    /// The JSON text; the original one if nothing was changed.
    pub fn raw(&self) -> &Raw {
        self.message.raw()
    }

    /// The parsed message.
    pub fn value(&self) -> &Value {
        self.message.value()
    }

    /// Index in the transcript; `None` if it is synthetic.
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

    pub(super) fn edit(&self) -> &Edit {
        static NOTHING: Edit = Edit { removed: Vec::new(), pointers: Vec::new(), removed_chars: 0 };
        self.edit.as_deref().unwrap_or(&NOTHING)
    }

    pub(super) fn is_signed(&self) -> bool {
        self.message.is_signed()
    }

    /// Whether it has the same text as another message of the same transcript.
    pub(super) fn is_same(&self, other: &Shown<'_>) -> bool {
        self.is_unchanged() && other.is_unchanged() && self.source == other.source
            || self.message.is(&other.message)
            || self.raw() == other.raw()
    }

    /// An owned version. The message is shared, not copied.
    pub(super) fn kept(&self) -> Shown<'static> {
        let Shown { message, source, edit, foreign } = self.clone();
        Shown { message: Cow::Owned(message.into_owned()), source, edit, foreign }
    }

    /// A borrowed version.
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

/// The view that the next request sees, and the decisions behind it.
#[derive(Clone, Debug, JsonSchema)]
#[schemars(transform = describe_event)]
#[schemars(rename = "View")]
pub struct ProjectedView<'a> {
    /// Policies applied, joined by `+`.
    pub policy: String,
    /// Reason for the view.
    pub reason: String,
    /// The messages.
    pub messages: Vec<Shown<'a>>,
    /// For each message, its index in the transcript; null if it is synthetic.
    pub source_indices: Vec<Option<usize>>,
    /// Indices of transcript messages that are in the view, at least in part.
    pub kept_indices: Vec<usize>,
    /// Indices of those that are not.
    pub dropped_indices: Vec<usize>,
    /// Indices of those with a reclaimed body.
    pub redacted_indices: Vec<usize>,
    /// Number of kept messages.
    pub kept_count: usize,
    /// Number of dropped messages.
    pub dropped_count: usize,
    /// Number of reclaimed bodies.
    pub redacted_count: usize,
    /// Characters that are not shown: bodies, parts, whole messages. Their replacements are not subtracted.
    pub reclaimed_chars: usize,
    /// Estimated tokens that are not shown: a quarter of the characters.
    pub reclaimed_tokens: usize,
    /// `sha256:` and the hash of the messages' canonical JSON.
    pub prefix_hash: String,
    /// Whether the policy would have broken signed reasoning, so that the view is raw.
    pub provider_safety_blocked: bool,
    /// Kinds of roots that `reachability_gc` used.
    pub roots_consulted: Vec<String>,
    /// Pointers to the reclaimed bodies.
    pub redaction_pointers: Vec<Pointer>,
    /// Index of the first message that differs from the raw transcript; before it, a provider's prompt cache is
    /// still valid.
    pub first_changed_index: Option<usize>,
    /// Estimated number of tokens at the start that are unchanged from the previous view, if one was given.
    #[schemars(skip_serializing_if = "Option::is_none")]
    pub unchanged_leading_tokens: Option<usize>,
    #[schemars(skip)]
    pub(super) asked: RecordedOptions,
    /// Number of messages in the transcript.
    #[schemars(skip)]
    pub(super) transcript: usize,
}

/// The options as recorded in the event.
#[derive(Clone, Debug)]
pub(super) struct RecordedOptions {
    respects_provider_signatures: bool,
    summary_keep_last: Option<usize>,
    options: Value,
}

impl RecordedOptions {
    pub(super) fn of(options: &ViewOptions) -> RecordedOptions {
        let summarizes = options.policies.contains(&ProjectionPolicy::SummaryPrefix);
        RecordedOptions {
            respects_provider_signatures: options.signatures != Signatures::Ignore,
            summary_keep_last: summarizes.then_some(options.keep_last),
            options: options.record.clone(),
        }
    }
}

impl ProjectedView<'_> {
    /// The event that records the view: `{kind, role, visibility, text, metadata}`.
    pub fn event(&self) -> Value {
        // Serialising text, numbers and parsed JSON does not fail.
        serde_json::to_value(Event(self)).unwrap_or_default()
    }

    /// The event's metadata, serialised without a copy.
    pub fn metadata(&self) -> Metadata<'_> {
        Metadata(self)
    }

    /// Serialises the fields that the result and the event have in common; the result also has the messages.
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

/// Describes `event`, which is computed from the other fields.
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

impl Serialize for ProjectedView<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("View", 19)?;
        self.tell(&mut out, true)?;
        out.serialize_field("event", &Event(self))?;
        out.end()
    }
}

/// Metadata of the event that records a view: everything except the messages, plus the request and the
/// decisions. Wraps the view itself, so that indices and pointers are serialised in place.
pub struct Metadata<'v>(&'v ProjectedView<'v>);

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

struct Event<'v>(&'v ProjectedView<'v>);

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
