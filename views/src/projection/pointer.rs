//! Pointers from a view to bodies that it does not show.

use super::edit::{Fields, MARKER};
use super::{Message, hash};
use everturn_core::Error;
use everturn_core::id::clip;
use everturn_core::json::Raw;
use everturn_core::pairing::BlockPath;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::ops::Deref;
use std::sync::Arc;

/// A pointer from a reclaimed body to the raw transcript. Clones share the pointer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pointer(Arc<Spelled>);

#[derive(PartialEq, Eq, Debug)]
struct Spelled {
    pointed: Pointed,
    /// Its JSON, which is in the view and again in the event.
    json: Option<Raw>,
}

impl Deref for Pointer {
    type Target = Pointed;

    fn deref(&self) -> &Pointed {
        &self.0.pointed
    }
}

impl Serialize for Pointer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0.json {
            Some(json) => json.serialize(serializer),
            None => self.0.pointed.serialize(serializer),
        }
    }
}

impl JsonSchema for Pointer {
    fn inline_schema() -> bool {
        Pointed::inline_schema()
    }

    fn schema_name() -> Cow<'static, str> {
        Pointed::schema_name()
    }

    fn schema_id() -> Cow<'static, str> {
        Pointed::schema_id()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Pointed::json_schema(generator)
    }
}

impl From<Pointed> for Pointer {
    fn from(pointed: Pointed) -> Pointer {
        let json = Raw::of(&pointed).ok();
        Pointer(Arc::new(Spelled { pointed, json }))
    }
}

/// A pointer from a reclaimed body to the raw transcript.
// Fields are sorted by name, so that the serialised form is already canonical.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "RedactionPointer")]
pub struct Pointed {
    /// Length of the body in characters.
    pub content_chars: usize,
    /// `sha256:` and the hash of the body.
    pub content_hash: String,
    /// A quarter of its length.
    pub estimated_tokens_reclaimed: usize,
    /// The policy that reclaimed it.
    pub policy: Cow<'static, str>,
    /// Reason for reclaiming it.
    pub reason: Cow<'static, str>,
    /// `transcript.messages[N].content` or `transcript.messages[N].content[B].content`.
    pub source: String,
    /// `B`, if the body is in a block.
    pub source_block_index: Option<usize>,
    /// `N`.
    pub source_index: usize,
    /// Id of the call that it answers, or whose arguments it was.
    pub tool_call_id: Option<String>,
    /// Name of the tool.
    pub tool_name: Option<String>,
    #[serde(skip)]
    pub(super) place: BlockPath,
    /// Key of the body at that place; `function.arguments` is nested.
    #[serde(skip)]
    pub(super) field: String,
}

/// Record on a message or block whose body was reclaimed. Sorted by name, like a pointer.
#[derive(Serialize)]
struct Marker<'a> {
    policy: &'a str,
    redacted: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    redaction_pointer: Option<&'a Pointer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    redaction_pointers: Option<&'a [Pointer]>,
}

impl<'a> Marker<'a> {
    fn of(policy: &'a str) -> Marker<'a> {
        Marker { redacted: true, policy, redaction_pointer: None, redaction_pointers: None }
    }

    fn text(&self) -> String {
        // Serialising strings and numbers does not fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The fields of a serialised pointer: its place and its target.
#[derive(Deserialize)]
struct Written {
    policy: String,
    source: String,
    content_hash: String,
    content_chars: usize,
    tool_call_id: Option<String>,
    tool_name: Option<String>,
    reason: String,
}

impl Pointed {
    /// A pointer to `field` at `place` of message `index`.
    pub(super) fn new(index: usize, place: BlockPath, field: &str, body: &Value) -> Pointed {
        let (content_hash, content_chars) = hash::of_body(body);
        let at = match place {
            BlockPath::Message => String::new(),
            place => format!(".{place}"),
        };
        Pointed {
            policy: Cow::Borrowed(""),
            source: format!("transcript.messages[{index}]{at}.{field}"),
            source_index: index,
            source_block_index: match place {
                BlockPath::Block(block) => Some(block),
                _ => None,
            },
            content_hash,
            content_chars,
            estimated_tokens_reclaimed: content_chars / 4,
            tool_call_id: None,
            tool_name: None,
            reason: Cow::Borrowed(""),
            place,
            field: field.to_string(),
        }
    }
}

impl Pointer {
    /// Reads a pointer as it was recorded.
    pub(super) fn read(value: &Value) -> Result<Pointer, Error> {
        let written = Written::deserialize(value)
            .map_err(|e| Error::invalid("projection.pointer", format!("not a redaction pointer: {e}")))?;
        let unknown = || {
            let source = clip(&written.source);
            Error::invalid("projection.pointer", format!("source {source} is not transcript.messages[N]…"))
        };
        let rest = written.source.strip_prefix("transcript.messages[").ok_or_else(unknown)?;
        let (index, rest) = rest.split_once("].").ok_or_else(unknown)?;
        let index: usize = index.parse().map_err(|_| unknown())?;
        let (place, field) = match rest.split_once('.') {
            Some((place, field)) if BlockPath::read(place).is_some() => {
                (BlockPath::read(place).unwrap_or(BlockPath::Message), field)
            }
            _ => (BlockPath::Message, rest),
        };
        let block = match place {
            BlockPath::Block(block) => Some(block),
            _ => None,
        };
        Ok(Pointer::from(Pointed {
            source_index: index,
            source_block_index: block,
            place,
            field: field.to_string(),
            estimated_tokens_reclaimed: written.content_chars / 4,
            policy: written.policy.into(),
            content_hash: written.content_hash,
            content_chars: written.content_chars,
            tool_call_id: written.tool_call_id,
            tool_name: written.tool_name,
            reason: written.reason.into(),
            source: written.source,
        }))
    }

    /// The replacement in the view: one line for a body, an empty value of the same type for arguments.
    pub(super) fn replacement(&self, was: &Value) -> String {
        if self.is_input() {
            return if was.is_string() { "\"{}\"" } else { "{}" }.to_string();
        }
        everturn_core::json::quote(&self.line())
    }

    pub(super) fn is_input(&self) -> bool {
        self.reason == INPUT_CLEARED
    }

    pub(super) fn line(&self) -> String {
        format!(
            "[tool result reclaimed by {}; source_index={}; content_hash={}; tokens_reclaimed={}]",
            self.policy, self.source_index, self.content_hash, self.estimated_tokens_reclaimed
        )
    }

    pub(super) fn marker(&self) -> String {
        let marker = Marker { redaction_pointer: Some(self), ..Marker::of(&self.policy) };
        marker.text()
    }

    /// The marker of a message that contains reclaimed bodies.
    pub(super) fn markers(pointers: &[Pointer]) -> String {
        let policy = pointers.first().map_or("", |pointer| &pointer.policy);
        let marker = Marker { redaction_pointers: Some(pointers), ..Marker::of(policy) };
        marker.text()
    }

    fn find<'a>(&self, message: &'a RawValue) -> Option<&'a RawValue> {
        let get = |text: &'a RawValue, key: &str| {
            let fields: Fields<'a> = serde_json::from_str(text.get()).ok()?;
            fields.iter().find(|(_, name, _)| name == key).map(|(_, _, value)| value)
        };
        let at = |key: &str, n: usize| {
            let items: Vec<&'a RawValue> = serde_json::from_str(get(message, key)?.get()).ok()?;
            items.into_iter().nth(n)
        };
        let element = match self.place {
            BlockPath::Message => message,
            BlockPath::Block(n) => at("content", n)?,
            BlockPath::Part(n) => at("parts", n)?,
            BlockPath::ToolCall(n) => at("tool_calls", n)?,
            BlockPath::ToolResult(n) => at("tool_results", n)?,
            BlockPath::FunctionCall => get(message, "function_call")?,
        };
        self.field.split('.').try_fold(element, get)
    }
}

/// Reason recorded when `clear_tool_uses` clears the arguments of a call.
pub(super) const INPUT_CLEARED: &str = "old_tool_input_cleared";

/// The raw body that a pointer refers to, after checking its hash.
pub fn resolve_pointer(messages: &[Message], pointer: &Value) -> Result<Raw, Error> {
    let pointer = Pointer::read(pointer)?;
    let gone =
        || Error::not_found("projection.pointer_target", format!("nothing is at {}", clip(&pointer.source)));
    let message = messages.get(pointer.source_index).ok_or_else(gone)?;
    let whole: &RawValue = serde_json::from_str(message.raw().get())
        .map_err(|e| Error::corrupt("json.malformed", e.to_string()))?;
    let body = Raw::of(&pointer.find(whole).ok_or_else(gone)?)?;
    let found = hash::of_body(Message::read(body.clone())?.value()).0;
    if found != pointer.content_hash {
        return Err(Error::conflict(
            "projection.pointer_hash",
            format!(
                "{} is {found} but the pointer says {}; it points into another transcript",
                pointer.source,
                clip(&pointer.content_hash)
            ),
        ));
    }
    Ok(body)
}

/// The message without the markers of a projection, for a provider; `None` if it has none.
pub fn strip_markers(message: &Value) -> Option<Value> {
    const LISTS: [&str; 3] = ["content", "tool_calls", "tool_results"];
    let list = |key| message.get(key).and_then(Value::as_array).into_iter().flatten();
    let marked = |value: &Value| value.get(MARKER).is_some();
    let call = message.get("function_call").is_some_and(marked);
    if !marked(message) && !call && !LISTS.iter().any(|key| list(key).any(marked)) {
        return None;
    }
    let mut message = message.clone();
    let strip = |value: &mut Value| {
        if let Value::Object(fields) = value {
            fields.shift_remove(MARKER);
        }
    };
    strip(&mut message);
    for key in LISTS {
        message.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten().for_each(strip);
    }
    message.get_mut("function_call").into_iter().for_each(strip);
    Some(message)
}
