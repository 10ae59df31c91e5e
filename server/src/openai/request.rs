//! The request for a response.

use super::error::RequestError;
use super::fields::{Fields, check_metadata};
use everturn_core::id::ConversationId;
use everturn_core::json::{Raw, quote};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Fields that a response repeats from its request, with their defaults.
fn echoed() -> [(&'static str, Value); 22] {
    [
        ("background", json!(false)),
        ("frequency_penalty", json!(0.0)),
        ("instructions", Value::Null),
        ("max_output_tokens", Value::Null),
        ("max_tool_calls", Value::Null),
        ("metadata", json!({})),
        ("parallel_tool_calls", json!(true)),
        ("presence_penalty", json!(0.0)),
        ("previous_response_id", Value::Null),
        ("prompt_cache_key", Value::Null),
        ("reasoning", json!({"effort": null, "summary": null})),
        ("safety_identifier", Value::Null),
        ("service_tier", json!("default")),
        ("store", json!(true)),
        ("temperature", json!(1.0)),
        ("text", json!({"format": {"type": "text"}})),
        ("tool_choice", json!("auto")),
        ("tools", json!([])),
        ("top_logprobs", json!(0)),
        ("top_p", json!(1.0)),
        ("truncation", json!("auto")),
        ("user", Value::Null),
    ]
}

/// Fields that are handled here and not passed on.
const OURS: [&str; 6] =
    ["metadata", "stream_options", "context_management", "truncation", "prompt", "moderation"];

/// The request for a response.
pub struct ResponseRequest {
    /// The model, by any of its names.
    pub model: Option<String>,
    /// The conversation, if named.
    pub conversation: Option<ConversationId>,
    /// The response that this one continues.
    pub previous: Option<String>,
    pub input: Vec<Raw>,
    /// Instructions for this response only.
    pub instructions: Option<String>,
    /// The tools, as they came.
    pub tools: Vec<Raw>,
    /// Maximum number of tokens of the reply.
    pub max_output_tokens: Option<u64>,
    pub temperature: Option<f64>,
    /// Whether it can be retrieved later.
    pub store: bool,
    pub stream: bool,
    /// Whether it runs in the background.
    pub background: bool,
    /// Whether to refuse a prompt that has no room for all turns.
    pub whole: bool,
    /// Fields that the response repeats.
    pub echo: Map<String, Value>,
    /// Fields for the provider.
    pub rest: BTreeMap<String, Raw>,
}

impl ResponseRequest {
    pub fn read(mut body: Fields) -> Result<ResponseRequest, RequestError> {
        if body.0.get("prompt").is_some_and(|raw| raw.get() != "null") {
            return Err(RequestError::field(
                "prompt",
                "stored prompts are not supported; send their text as instructions",
            ));
        }
        let metadata: BTreeMap<String, String> = read(&body, "metadata")?.unwrap_or_default();
        check_metadata(&metadata)?;
        let mut echo = Map::new();
        for (name, otherwise) in echoed() {
            echo.insert(name.to_string(), whole(name, read(&body, name)?, otherwise));
        }
        let ask = ResponseRequest {
            model: body.take("model")?,
            conversation: body
                .take::<ConversationRef>("conversation")?
                .map(ConversationRef::id)
                .transpose()?,
            previous: body.take("previous_response_id")?,
            input: body.take::<Input>("input")?.map(Input::items).transpose()?.unwrap_or_default(),
            instructions: body.take("instructions")?,
            tools: body.take("tools")?.unwrap_or_default(),
            max_output_tokens: body.take("max_output_tokens")?,
            temperature: body.take("temperature")?,
            store: body.take("store")?.unwrap_or(true),
            stream: body.take("stream")?.unwrap_or(false),
            background: body.take("background")?.unwrap_or(false),
            whole: match echo.get("truncation").and_then(Value::as_str) {
                Some("auto") => false,
                Some("disabled") => true,
                _ => return Err(RequestError::field("truncation", "truncation is auto or disabled")),
            },
            echo,
            rest: rest(body, &OURS),
        };
        if ask.conversation.is_some() && ask.previous.is_some() {
            let text = "conversation and previous_response_id both name the earlier turns; give one of them";
            return Err(RequestError::field("previous_response_id", text));
        }
        if ask.background && !ask.store {
            return Err(RequestError::field(
                "background",
                "a background response must be stored; leave store out",
            ));
        }
        Ok(ask)
    }
}

/// A field as the response repeats it: parts that the request left out are there as well.
fn whole(name: &str, given: Option<Value>, otherwise: Value) -> Value {
    let fill = |given: &mut Value, name: &str, otherwise: Value| {
        if let Value::Object(fields) = given {
            fields.entry(name).or_insert(otherwise);
        }
    };
    let Some(mut given) = given else { return otherwise };
    match (name, &mut given) {
        ("tools", Value::Array(tools)) => {
            for tool in tools.iter_mut().filter(|tool| tool["type"] == "function") {
                ["description", "parameters", "strict"]
                    .into_iter()
                    .for_each(|part| fill(tool, part, Value::Null));
            }
        }
        ("text" | "reasoning", _) => {
            for (part, otherwise) in otherwise.as_object().into_iter().flatten() {
                fill(&mut given, part, otherwise.clone());
            }
            if let Some(format) = given.get_mut("format").filter(|format| format["type"] == "json_schema") {
                fill(format, "description", Value::Null);
                fill(format, "strict", Value::Bool(false));
            }
        }
        _ => {}
    }
    given
}

fn read<T: serde::de::DeserializeOwned>(
    body: &Fields,
    name: &'static str,
) -> Result<Option<T>, RequestError> {
    Fields(body.0.get_key_value(name).map(|(k, v)| (k.clone(), v.clone())).into_iter().collect()).take(name)
}

/// The remaining fields for the provider. Some refuse a tool choice without tools.
pub fn rest(body: Fields, without: &[&str]) -> BTreeMap<String, Raw> {
    let mut rest = body.0;
    rest.retain(|name, raw| !without.contains(&name.as_str()) && raw.get() != "null");
    rest
}

/// A conversation, as its id or as an object with it.
#[derive(Deserialize)]
#[serde(untagged)]
pub enum ConversationRef {
    Id(String),
    Object { id: String },
}

impl ConversationRef {
    /// The id; a malformed one is not found.
    pub fn id(self) -> Result<ConversationId, RequestError> {
        let (ConversationRef::Id(id) | ConversationRef::Object { id }) = self;
        id.parse().map_err(|_| {
            RequestError::absent(
                "conversation_not_found",
                format!("there is no conversation {:?}", everturn_core::id::clip(&id)),
            )
        })
    }
}

/// Input: text, or a list of items.
pub struct Input(Raw);

impl<'de> Deserialize<'de> for Input {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Input, D::Error> {
        Raw::deserialize(deserializer).map(Input)
    }
}

impl Input {
    /// The items, each with its bytes.
    pub fn items(self) -> Result<Vec<Raw>, RequestError> {
        if let Some(text) = self.0.read::<String>() {
            return Ok(vec![Raw::new(format!(r#"{{"role":"user","content":{}}}"#, quote(&text)))?]);
        }
        self.0.read().ok_or_else(|| RequestError::field("input", "input is neither text nor a list of items"))
    }
}
