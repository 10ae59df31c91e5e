//! An entry of a session file: a type, a time, and fields.

use super::FRAME_TYPES;
use super::map::{CALL_ID, PARAMETERS, TEXT, TOOL};
use crate::jsonl::LINE_BYTES_MAX;
use everturn_core::Error;
use everturn_core::event::check_name;
use everturn_core::id::clip;
use everturn_core::json::{self, Raw};
use everturn_core::time::Timestamp;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::json;
use std::borrow::Cow;
use std::fmt;

/// The fields of a JSON object, in the order and the spelling in which they were given.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SessionFields(pub Vec<(String, Raw)>);

impl SessionFields {
    /// The fields of an object. Line breaks between its tokens are taken out, so that it stays on one line.
    pub fn of(value: &impl Serialize) -> Result<SessionFields, Error> {
        let text =
            serde_json::to_string(value).map_err(|e| Error::invalid("json.malformed", e.to_string()))?;
        SessionFields::parse(&text)
    }

    /// The fields of an object that is given as text.
    pub fn parse(text: &str) -> Result<SessionFields, Error> {
        json::check(text)?;
        let line = on_one_line(text.to_string());
        serde_json::from_str(&line).map_err(|_| {
            Error::invalid(
                "session.not_an_object",
                format!("this must be a JSON object, not {}", clip(&line)),
            )
        })
    }

    /// The value of a field.
    pub fn get(&self, name: &str) -> Option<&Raw> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// Takes a field out.
    pub fn take(&mut self, name: &str) -> Option<Raw> {
        let at = self.0.iter().position(|(key, _)| key == name)?;
        Some(self.0.remove(at).1)
    }
}

/// Any object.
impl JsonSchema for SessionFields {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Fields".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "object", "additionalProperties": true})
    }
}

impl Serialize for SessionFields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

impl<'de> Deserialize<'de> for SessionFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SessionFields, D::Error> {
        struct Ordered;

        impl<'de> Visitor<'de> for Ordered {
            type Value = SessionFields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<SessionFields, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(SessionFields(fields))
            }
        }
        deserializer.deserialize_map(Ordered)
    }
}

/// One line between the header and the end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its `type`: one of the known ones, or any other.
    pub kind: String,
    /// Its `timestamp`.
    pub at: Timestamp,
    /// The rest.
    pub fields: SessionFields,
}

impl Entry {
    /// An entry of any type. `payload` becomes the fields: anything that is written as a JSON object.
    pub fn new(kind: impl Into<String>, at: Timestamp, payload: &impl Serialize) -> Result<Entry, Error> {
        Ok(Entry { kind: kind.into(), at, fields: SessionFields::of(payload)? })
    }

    /// An entry of a known type.
    pub fn of<P: EntryPayload>(at: Timestamp, payload: &P) -> Result<Entry, Error> {
        Entry::new(P::TYPE, at, payload)
    }

    /// The same with one more field.
    pub fn with(mut self, name: impl Into<String>, value: &impl Serialize) -> Result<Entry, Error> {
        self.fields.0.push((name.into(), Raw::of(value)?));
        Ok(self)
    }

    /// The payload, if the entry is of that type and has its fields. Further ones do not matter.
    pub fn read<P: EntryPayload>(&self) -> Option<P> {
        if self.kind != P::TYPE {
            return None;
        }
        Raw::of(&self.fields).ok()?.read()
    }

    /// The line, line break included. Refuses entries that a reader would not return.
    pub fn line(&self) -> Result<String, Error> {
        check_name("type", &self.kind)?;
        if FRAME_TYPES.contains(&self.kind.as_str()) {
            let advice = match self.kind.as_str() {
                super::END => "end the session instead",
                super::START => "start a session instead",
                _ => "choose another type",
            };
            let text = format!("an entry cannot be of type {:?}; {advice}", self.kind);
            return Err(Error::invalid("session.frame_type", text));
        }
        check(&self.kind, &self.fields)?;
        line(&self.kind, self.at, &self.fields)
    }
}

/// Checks that an entry of a known type has the fields of that type, under any of the names that programs give them.
/// Other types may have any fields.
pub(crate) fn check(kind: &str, fields: &SessionFields) -> Result<(), Error> {
    type Fits = fn(&Raw) -> bool;
    let is_text: Fits = |raw| raw.read::<String>().is_some_and(|text| !text.is_empty());
    let is_speech: Fits = |raw| raw.get().starts_with(['"', '[']);
    let is_name: Fits = |raw| raw.get().starts_with('"') && raw.get() != "\"\"";
    let is_any: Fits = |_| true;
    let required: &[(&[&str], &str, Fits)] = match kind {
        AgentThinking::TYPE => &[(&TEXT, "a text", |raw| raw.get().starts_with('"'))],
        AgentToolCall::TYPE => &[(&TOOL, "a text", is_name), (&PARAMETERS, "any JSON", is_any)],
        PhotographerMessage::TYPE => &[(&TEXT, "a text", is_speech)],
        SnapshotCreated::TYPE => &[(&["hash"], "a text", is_text)],
        MaskGenerated::TYPE => &[
            (&["name"], "a text", is_text),
            (&["provider"], "a text", is_text),
            (&["target"], "a text", is_text),
        ],
        VocabularyGapLogged::TYPE => &[(&["description"], "a text", is_text)],
        TasteProposal::TYPE | TasteConfirmation::TYPE => &[(&["update"], "any JSON", is_any)],
        // Every field besides the names of tool and call is the result.
        ToolResult::TYPE => {
            let others = ["type", "timestamp", "is_error"];
            let is_payload = |name: &str| {
                ![&TOOL[..], &CALL_ID[..], &others[..]].iter().any(|names| names.contains(&name))
            };
            return match fields.0.iter().any(|(name, _)| is_payload(name)) {
                true => Ok(()),
                false => Err(lacks(kind, "result", "any JSON")),
            };
        }
        _ => &[],
    };
    // An erased entry has lost its fields.
    let required = if fields.get("erased").is_some() { &[] } else { required };
    for (names, what, fits) in required {
        if !names.iter().any(|name| fields.get(name).is_some_and(fits)) {
            return Err(lacks(kind, names[0], what));
        }
    }
    Ok(())
}

/// Whether entries of a type need some fields.
pub(super) fn needs_fields(kind: &str) -> bool {
    check(kind, &SessionFields::default()).is_err()
}

fn lacks(kind: &str, name: &str, what: &str) -> Error {
    Error::invalid("session.field", format!("{kind} needs `{name}`, {what}; add it, or choose another type"))
}

/// A line of the file: `type` and `timestamp`, then the fields in their order.
pub(crate) fn line(kind: &str, at: Timestamp, fields: &SessionFields) -> Result<String, Error> {
    struct Line<'a>(&'a str, Timestamp, &'a SessionFields);

    impl Serialize for Line<'_> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let mut map = serializer.serialize_map(None)?;
            map.serialize_entry("type", self.0)?;
            map.serialize_entry("timestamp", &self.1)?;
            for (key, value) in &self.2.0 {
                map.serialize_entry(key, value)?;
            }
            map.end()
        }
    }
    at.check()?;
    // A reader takes a line with this field for an event of a conversation's file, damaged.
    if fields.get("body_hash").is_some() {
        let text = "a field cannot be called body_hash, which marks the events of a conversation; rename it";
        return Err(Error::invalid("session.reserved_field", text));
    }
    let line = serde_json::to_string(&Line(kind, at, fields))
        .map_err(|e| Error::invalid("json.malformed", e.to_string()))?;
    if line.len() > LINE_BYTES_MAX {
        let (limit, got) = (LINE_BYTES_MAX as u64, line.len() as u64);
        return Err(Error::limit("LINE_BYTES_MAX", limit, got, "keep the large part in a file beside it"));
    }
    json::check(&line)?;
    let mut line = on_one_line(line);
    line.push('\n');
    Ok(line)
}

/// Removes line breaks from valid JSON. In strings they are escaped, so the removed ones are between tokens.
fn on_one_line(mut json: String) -> String {
    // One character is looked for much faster than one of several.
    if json.contains('\n') || json.contains('\r') {
        json.retain(|c| !matches!(c, '\n' | '\r'));
    }
    json
}

/// Fields of an entry of a known type.
pub trait EntryPayload: Serialize + for<'de> Deserialize<'de> {
    /// Its `type`.
    const TYPE: &'static str;
}

/// The agent's reasoning, where its provider shows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AgentThinking {
    /// The reasoning.
    pub text: String,
}

/// The agent calls a tool.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AgentToolCall {
    /// Name of the tool.
    pub tool: String,
    /// Arguments of the call.
    pub parameters: Raw,
    /// Id that pairs the call with its result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
}

/// A tool answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ToolResult {
    /// Name of the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Return value of the tool.
    pub result: Raw,
    /// Id of the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    /// Whether the tool failed, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_error: Option<bool>,
}

impl ToolResult {
    /// The result of a call for which none was recorded.
    pub fn missing(tool: String, call_id: String) -> Result<ToolResult, Error> {
        let result = Raw::of(&json!({"error": "the session ended before a result was recorded"}))?;
        Ok(ToolResult { tool: Some(tool), result, call_id: Some(call_id), is_error: Some(true) })
    }
}

/// A message of the user.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PhotographerMessage {
    /// Text of the message.
    pub text: String,
}

/// A state of the work was kept.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SnapshotCreated {
    /// Its address.
    pub hash: String,
    /// Its name, for people.
    pub label: Option<String>,
}

/// A mask was made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MaskGenerated {
    /// Its name.
    pub name: String,
    /// Program or model that made the mask.
    pub provider: String,
    /// Part of the picture that the mask covers.
    pub target: String,
}

/// A gap in the vocabulary: something could not be expressed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VocabularyGapLogged {
    /// Missing expression.
    pub description: String,
    /// Replacement that was used.
    pub workaround: Option<String>,
}

/// The agent proposes to remember a preference.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TasteProposal {
    /// The update that waits for an answer.
    pub update: Raw,
}

/// The person agreed to remember a preference.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TasteConfirmation {
    /// The update.
    pub update: Raw,
}

impl EntryPayload for AgentThinking {
    const TYPE: &'static str = "agent_thinking";
}
impl EntryPayload for AgentToolCall {
    const TYPE: &'static str = "agent_tool_call";
}
impl EntryPayload for ToolResult {
    const TYPE: &'static str = "tool_result";
}
impl EntryPayload for PhotographerMessage {
    const TYPE: &'static str = "photographer_message";
}
impl EntryPayload for SnapshotCreated {
    const TYPE: &'static str = "snapshot_created";
}
impl EntryPayload for MaskGenerated {
    const TYPE: &'static str = "mask_generated";
}
impl EntryPayload for VocabularyGapLogged {
    const TYPE: &'static str = "vocabulary_gap_logged";
}
impl EntryPayload for TasteProposal {
    const TYPE: &'static str = "taste_proposal";
}
impl EntryPayload for TasteConfirmation {
    const TYPE: &'static str = "taste_confirmation";
}
