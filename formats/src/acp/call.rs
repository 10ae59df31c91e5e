//! A tool call, assembled from its updates.

use super::content;
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// Longest raw output that is kept beside the content, in bytes of JSON: metadata is small.
const RAW_OUTPUT_BYTES_MAX: usize = 16 * 1024;

/// The current state of a tool call.
pub struct Call {
    pub id: String,
    /// Whether the call itself was recorded.
    pub is_written: bool,
    /// Whether its result was recorded.
    pub is_ended: bool,
    /// The latest value of each field.
    fields: Map<String, Value>,
}

/// State of a call after an update.
pub enum Merged {
    Running,
    Ended,
    /// It had ended before.
    Late,
}

impl Call {
    pub fn new(id: &str) -> Call {
        Call { id: id.to_string(), is_written: false, is_ended: false, fields: Map::new() }
    }

    pub fn merge(&mut self, update: &Value) -> Merged {
        if self.is_ended {
            return Merged::Late;
        }
        for (name, value) in update.as_object().into_iter().flatten() {
            if !value.is_null() && !matches!(name.as_str(), "sessionUpdate" | "toolCallId") {
                self.fields.insert(name.clone(), value.clone());
            }
        }
        match self.text("status") {
            Some("completed" | "failed") => Merged::Ended,
            _ => Merged::Running,
        }
    }

    /// Whether its input is known, or it runs: some agents announce a call before they know its input.
    pub fn is_known(&self) -> bool {
        let has_input = self.fields.get("rawInput").is_some_and(|input| *input != json!({}));
        has_input || self.text("status") == Some("in_progress")
    }

    /// Name of the tool; if the agent does not give it, the kind of tool.
    pub fn tool(&self) -> &str {
        self.text("name").or_else(|| self.text("kind")).unwrap_or("tool")
    }

    pub fn title(&self) -> Option<&str> {
        self.text("title")
    }

    /// The content of the turn that calls it.
    pub fn request(&self) -> Value {
        let input = match self.fields.get("rawInput") {
            Some(input @ Value::Object(_)) => input.clone(),
            Some(input) => json!({ "input": input }),
            None => {
                let known = ["title", "locations"].into_iter();
                Value::Object(
                    known.filter_map(|name| Some((name.into(), self.fields.get(name)?.clone()))).collect(),
                )
            }
        };
        json!([{"type": "tool_call", "id": self.id, "name": self.tool(), "arguments": input}])
    }

    /// The content of the turn with its result.
    pub fn result(&self, terminals: &HashMap<String, String>, missing: Option<&str>) -> Value {
        let shown: Vec<Value> = self.content().iter().map(|part| self::shown(part, terminals)).collect();
        let content = match (shown.is_empty(), self.fields.get("rawOutput"), missing) {
            (false, ..) => Value::Array(shown),
            (true, Some(output @ Value::String(_)), _) => output.clone(),
            (true, Some(output), _) => json!([{"type": "text", "text": output.to_string()}]),
            (true, None, Some(missing)) => json!(missing),
            (true, None, None) => json!(""),
        };
        let is_error = missing.is_some() || self.text("status") == Some("failed");
        json!([{
            "type": "tool_result", "tool_use_id": self.id, "name": self.tool(), "content": content, "is_error": is_error
        }])
    }

    /// Whether any output is known.
    pub fn has_output(&self) -> bool {
        !self.content().is_empty() || self.fields.contains_key("rawOutput")
    }

    /// Metadata: fields that the messages have no place for.
    pub fn about(&self) -> Value {
        let mut about = Map::new();
        for name in ["title", "kind", "status", "locations"] {
            if let Some(value) = self.fields.get(name) {
                about.insert(name.into(), value.clone());
            }
        }
        // Otherwise the output is the content.
        let output = self.fields.get("rawOutput").filter(|_| self.is_ended && !self.content().is_empty());
        if let Some(output) = output.filter(|output| output.to_string().len() <= RAW_OUTPUT_BYTES_MAX) {
            about.insert("raw_output".into(), output.clone());
        }
        Value::Object(about)
    }

    fn content(&self) -> &[Value] {
        self.fields.get("content").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.fields.get(name)?.as_str().filter(|text| !text.is_empty())
    }
}

/// A part of a result as a block of text or media.
fn shown(part: &Value, terminals: &HashMap<String, String>) -> Value {
    match part["type"].as_str() {
        Some("content") => content::block(part["content"].clone()),
        Some("diff") => {
            let path = part["path"].as_str().unwrap_or_default();
            let lines = |sign: char, text: &Value| -> String {
                text.as_str().unwrap_or_default().lines().map(|line| format!("{sign}{line}\n")).collect()
            };
            let text = format!(
                "--- {path}\n+++ {path}\n{}{}",
                lines('-', &part["oldText"]),
                lines('+', &part["newText"])
            );
            json!({"type": "text", "text": text})
        }
        Some("terminal") => {
            let id = part["terminalId"].as_str().unwrap_or_default();
            let output = terminals.get(id).cloned().unwrap_or_else(|| format!("[terminal {id}]"));
            json!({"type": "text", "text": output})
        }
        _ => json!({"type": "text", "text": part.to_string()}),
    }
}
