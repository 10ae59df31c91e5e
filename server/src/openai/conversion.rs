//! Conversion of request fields other than messages between providers.

use super::error::RequestError;
use super::tools::Choice;
use everturn_core::Error;
use everturn_core::json::Raw;
use everturn_engine::model::Provider;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Additional fields of a request, for the provider. If it uses the same API, all of them as they came; else
/// those that have an equivalent.
pub fn extra(
    from: Provider,
    to: Provider,
    rest: &BTreeMap<String, Raw>,
) -> Result<BTreeMap<String, Raw>, RequestError> {
    if from == to {
        return Ok(rest.clone());
    }
    Ok(CommonFields::read(from, rest)?.write(to)?)
}

const PENALTIES: [&str; 2] = ["presence_penalty", "frequency_penalty"];

/// Fields that most providers have.
#[derive(Default)]
struct CommonFields {
    top_p: Option<Value>,
    choice: Option<Choice>,
    parallel: Option<bool>,
    /// In the format of Responses.
    format: Option<Value>,
    effort: Option<Value>,
    verbosity: Option<Value>,
    stop: Option<Value>,
    user: Option<Value>,
    /// Presence and frequency, which only chat completions have.
    penalties: [Option<Value>; 2],
}

impl CommonFields {
    fn read(from: Provider, rest: &BTreeMap<String, Raw>) -> Result<CommonFields, RequestError> {
        let get =
            |name: &str| -> Option<Value> { rest.get(name)?.read().filter(|value: &Value| !value.is_null()) };
        let within =
            |name: &str, inner: &str| get(name)?.get(inner).cloned().filter(|value| !value.is_null());
        let choice = get("tool_choice")
            .map(|value| {
                Choice::read(&value).ok_or_else(|| {
                    RequestError::field(
                        "tool_choice",
                        "the server of this model does not know this tool choice; name a function, or send auto, none or required",
                    )
                })
            })
            .transpose()?;
        let user = get("safety_identifier").or_else(|| get("user"));
        let penalties = PENALTIES.map(get);
        let mut wants = CommonFields { top_p: get("top_p"), choice, penalties, ..CommonFields::default() };
        match from {
            Provider::OpenaiResponses => {
                wants.parallel = get("parallel_tool_calls").and_then(|value| value.as_bool());
                wants.format = within("text", "format");
                wants.verbosity = within("text", "verbosity");
                wants.effort = within("reasoning", "effort");
                wants.user = user;
            }
            Provider::Anthropic => {
                let alone = within("tool_choice", "disable_parallel_tool_use");
                wants.parallel = alone.and_then(|value| value.as_bool()).map(|alone| !alone);
                wants.format = within("output_config", "format").map(|format| {
                    json!({"type": "json_schema", "name": "answer", "schema": format["schema"], "strict": true})
                });
                wants.effort = within("output_config", "effort");
                wants.stop = get("stop_sequences");
                wants.user = within("metadata", "user_id");
            }
            _ => {
                wants.parallel = get("parallel_tool_calls").and_then(|value| value.as_bool());
                wants.format = get("response_format").map(|format| match format.get("json_schema") {
                    Some(Value::Object(inner)) => {
                        let mut flat = inner.clone();
                        flat.insert("type".into(), json!("json_schema"));
                        Value::Object(flat)
                    }
                    _ => format,
                });
                wants.verbosity = get("verbosity");
                wants.effort = get("reasoning_effort");
                wants.stop = get("stop");
                wants.user = user;
            }
        }
        Ok(wants)
    }

    fn write(self, to: Provider) -> Result<BTreeMap<String, Raw>, Error> {
        let format = self.format.filter(|format| format["type"] != "text");
        let schema = format.as_ref().filter(|format| format["type"] == "json_schema");
        let mut fields: Vec<(&str, Option<Value>)> = vec![("top_p", self.top_p)];
        let choice = self.choice.map(|choice| choice.write(to));
        match to {
            Provider::Anthropic => {
                let mut choice = choice;
                if self.parallel == Some(false) {
                    let choice = choice.get_or_insert(json!({"type": "auto"}));
                    choice["disable_parallel_tool_use"] = json!(true);
                }
                let output = schema
                    .map(|format| json!({"format": {"type": "json_schema", "schema": format["schema"]}}));
                let stop = self.stop.map(|stop| if stop.is_array() { stop } else { json!([stop]) });
                fields.push(("tool_choice", choice));
                fields.push(("output_config", output));
                fields.push(("stop_sequences", stop));
                fields.push(("metadata", self.user.map(|user| json!({"user_id": user}))));
            }
            Provider::OpenaiResponses => {
                let mut text = serde_json::Map::new();
                text.extend(format.map(|format| ("format".to_string(), format)));
                text.extend(self.verbosity.map(|verbosity| ("verbosity".to_string(), verbosity)));
                fields.push(("tool_choice", choice));
                fields.push(("parallel_tool_calls", self.parallel.map(Value::from)));
                fields.push(("text", (!text.is_empty()).then_some(Value::Object(text))));
                fields.push(("reasoning", self.effort.map(|effort| json!({"effort": effort}))));
                fields.push(("safety_identifier", self.user));
            }
            _ => {
                let nested = schema.and_then(Value::as_object).map(|schema| {
                    let mut inner = schema.clone();
                    inner.shift_remove("type");
                    json!({"type": "json_schema", "json_schema": inner})
                });
                fields.push(("tool_choice", choice));
                fields.push(("parallel_tool_calls", self.parallel.map(Value::from)));
                fields.push(("response_format", nested.or(format)));
                fields.extend(PENALTIES.into_iter().zip(self.penalties));
                fields.push(("verbosity", self.verbosity));
                fields.push(("reasoning_effort", self.effort));
                fields.push(("stop", self.stop));
                fields.push(("user", self.user));
            }
        }
        let given = fields.into_iter().filter_map(|(name, value)| Some((name, value?)));
        given.map(|(name, value)| Ok((name.to_string(), Raw::of(&value)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(value: Value) -> BTreeMap<String, Raw> {
        let fields = value.as_object().unwrap().iter();
        fields.map(|(name, value)| (name.clone(), Raw::of(value).unwrap())).collect()
    }

    #[test]
    fn everyone_is_asked_in_their_own_words() {
        let format =
            json!({"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": true});
        let asked = fields(json!({
            "top_p": 0.5, "tool_choice": {"type": "function", "name": "f"}, "parallel_tool_calls": false,
            "text": {"format": format, "verbosity": "low"}, "reasoning": {"effort": "high"}, "user": "u", "presence_penalty": 0.25, "odd": 1,
        }));
        for (to, expected) in [
            (
                Provider::OpenaiChat,
                json!({"top_p": 0.5, "tool_choice": {"type": "function", "function": {"name": "f"}},
                    "parallel_tool_calls": false, "reasoning_effort": "high", "verbosity": "low", "user": "u",
                    "presence_penalty": 0.25,
                    "response_format": {"type": "json_schema",
                        "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": true}}}),
            ),
            (
                Provider::Anthropic,
                json!({"top_p": 0.5, "metadata": {"user_id": "u"},
                    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": true},
                    "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}}),
            ),
        ] {
            assert_eq!(extra(Provider::OpenaiResponses, to, &asked).unwrap(), fields(expected), "{to}");
        }
        let same = extra(Provider::OpenaiResponses, Provider::OpenaiResponses, &asked).unwrap();
        assert_eq!(same, asked);
    }

    #[test]
    fn plain_text_is_nothing_to_ask_for() {
        let asked = fields(json!({"response_format": {"type": "text"}}));
        assert!(extra(Provider::OpenaiChat, Provider::Anthropic, &asked).unwrap().is_empty());
    }
}
