//! Conversion of tools, and of the choice among them, between providers.

use super::error::RequestError;
use everturn_core::id::clip;
use everturn_core::json::Raw;
use everturn_engine::model::Provider;
use serde_json::{Map, Value, json};

/// Converts tools to another provider's shape. Those that already have it keep their bytes; tools that only
/// their own provider can run are refused.
pub fn convert(from: Provider, to: Provider, tools: Vec<Raw>) -> Result<Vec<Raw>, RequestError> {
    if from == to {
        return Ok(tools);
    }
    tools
        .iter()
        .map(|raw| {
            let value: Value = raw.read().unwrap_or_default();
            Ok(Raw::of(&Function::read(from, to, &value)?.write(to))?)
        })
        .collect()
}

/// A tool that the caller runs.
struct Function<'a> {
    name: &'a str,
    description: Option<&'a str>,
    parameters: Value,
    strict: Option<bool>,
}

impl<'a> Function<'a> {
    fn read(from: Provider, to: Provider, tool: &'a Value) -> Result<Function<'a>, RequestError> {
        let kind = tool.get("type").and_then(Value::as_str);
        let (function, parameters) = match (from, kind) {
            (Provider::OpenaiResponses, Some("function")) => (tool, "parameters"),
            (Provider::OpenaiChat, Some("function") | None) => (&tool["function"], "parameters"),
            (Provider::Anthropic, Some("custom") | None) => (tool, "input_schema"),
            (_, kind) => return Err(not_here(kind.unwrap_or("without type"), to)),
        };
        let name = function.get("name").and_then(Value::as_str).filter(|name| !name.is_empty());
        Ok(Function {
            name: name.ok_or_else(|| RequestError::field("tools", "a tool has no name; give each one"))?,
            description: function.get("description").and_then(Value::as_str),
            parameters: match function.get(parameters) {
                Some(schema @ Value::Object(_)) => schema.clone(),
                _ => json!({"type": "object", "properties": {}}),
            },
            strict: function.get("strict").and_then(Value::as_bool),
        })
    }

    fn write(self, to: Provider) -> Value {
        let Function { name, description, parameters, strict } = self;
        let mut fields = Map::new();
        if to == Provider::OpenaiResponses {
            fields.insert("type".into(), json!("function"));
        }
        fields.insert("name".into(), json!(name));
        fields.extend(description.map(|text| ("description".to_string(), json!(text))));
        match to {
            Provider::Anthropic => {
                fields.insert("input_schema".into(), parameters);
                Value::Object(fields)
            }
            Provider::OpenaiResponses => {
                fields.insert("parameters".into(), parameters);
                // There it would be strict by default, which not every schema allows.
                fields.insert("strict".into(), json!(strict.unwrap_or(false)));
                Value::Object(fields)
            }
            _ => {
                fields.insert("parameters".into(), parameters);
                fields.extend(strict.map(|strict| ("strict".to_string(), json!(strict))));
                json!({"type": "function", "function": fields})
            }
        }
    }
}

fn not_here(kind: &str, to: Provider) -> RequestError {
    RequestError::field(
        "tools",
        format!(
            "the tool {:?} cannot be given to this model, whose server speaks {to}; give function tools, or choose a model \
             whose server has it",
            clip(kind)
        ),
    )
}

pub enum Choice {
    Auto,
    None,
    Required,
    Named(String),
}

impl Choice {
    /// Parses the field `tool_choice`; `None` if only its own provider supports it.
    pub fn read(value: &Value) -> Option<Choice> {
        let word = value.as_str().or_else(|| value.get("type")?.as_str())?;
        let name = value.get("name").or_else(|| value.get("function")?.get("name")).and_then(Value::as_str);
        match (word, name) {
            ("function" | "tool", Some(name)) => Some(Choice::Named(name.to_string())),
            ("auto", _) => Some(Choice::Auto),
            ("none", _) => Some(Choice::None),
            ("required" | "any", _) => Some(Choice::Required),
            _ => None,
        }
    }

    /// The field for a provider.
    pub fn write(&self, to: Provider) -> Value {
        match (to, self) {
            (Provider::Anthropic, Choice::Auto) => json!({"type": "auto"}),
            (Provider::Anthropic, Choice::None) => json!({"type": "none"}),
            (Provider::Anthropic, Choice::Required) => json!({"type": "any"}),
            (Provider::Anthropic, Choice::Named(name)) => json!({"type": "tool", "name": name}),
            (_, Choice::Auto) => json!("auto"),
            (_, Choice::None) => json!("none"),
            (_, Choice::Required) => json!("required"),
            (Provider::OpenaiResponses, Choice::Named(name)) => json!({"type": "function", "name": name}),
            (_, Choice::Named(name)) => json!({"type": "function", "function": {"name": name}}),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Provider; 3] = [Provider::OpenaiChat, Provider::OpenaiResponses, Provider::Anthropic];

    #[test]
    fn a_function_survives_every_way_round() {
        let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}});
        let shapes = [
            json!({"type": "function", "function": {"name": "w", "description": "d", "parameters": schema}}),
            json!({"type": "function", "name": "w", "description": "d", "parameters": schema, "strict": false}),
            json!({"name": "w", "description": "d", "input_schema": schema}),
        ];
        for (from, shape) in ALL.into_iter().zip(&shapes) {
            for (to, expected) in ALL.into_iter().zip(&shapes) {
                let got = convert(from, to, vec![Raw::of(shape).unwrap()]).unwrap();
                let mut got: Value = got[0].read().unwrap();
                if from == Provider::OpenaiResponses && to == Provider::OpenaiChat {
                    assert_eq!(
                        got["function"].as_object_mut().unwrap().shift_remove("strict"),
                        Some(json!(false))
                    );
                }
                assert_eq!(got, *expected, "{from} to {to}");
            }
        }
    }

    #[test]
    fn a_hosted_tool_stays_with_its_provider() {
        let search = Raw::of(&json!({"type": "web_search"})).unwrap();
        assert!(convert(Provider::OpenaiResponses, Provider::OpenaiResponses, vec![search.clone()]).is_ok());
        assert!(convert(Provider::OpenaiResponses, Provider::Anthropic, vec![search]).is_err());
    }

    #[test]
    fn choices_are_understood_from_everyone() {
        for from in ALL {
            for choice in [Choice::Auto, Choice::None, Choice::Required, Choice::Named("f".into())] {
                let read = Choice::read(&choice.write(from)).unwrap();
                assert_eq!(read.write(Provider::Anthropic), choice.write(Provider::Anthropic));
            }
        }
        assert!(Choice::read(&json!({"type": "web_search"})).is_none());
    }
}
