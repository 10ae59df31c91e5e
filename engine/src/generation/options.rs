//! Options of a generation.

use crate::context::ContextOptions;
use crate::conversation::AppendOptions;
use crate::ingest::NewTurn;
use everturn_core::Error;
use everturn_core::id::TurnId;
use everturn_core::json::Raw;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize, Serializer};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Options of a generation.
#[derive(Clone)]
pub struct GenerateOptions {
    /// Turns to append first. Without any, the model replies to the end of the conversation.
    pub input: Vec<NewTurn>,
    /// The answer to generate anew, from what is read before it. Once the new one is complete it supersedes the old one
    /// and takes its place; until then, and if it fails, the old one stands.
    pub regenerate: Option<Regenerate>,
    /// Conditions of appending the input.
    pub append: AppendOptions,
    /// The configured model, by name.
    pub model: Option<String>,
    /// Model name sent to the provider, instead of the configured one.
    pub served_model: Option<String>,
    /// Options of the context. A `token_budget` of 0 is the model's context less the room for its reply. `provider`
    /// and `model` follow from the model; `at_seq` and `input_from` must be left out.
    pub context: ContextOptions,
    /// Most tokens of the reply.
    pub max_output_tokens: Option<u64>,
    /// Sampling temperature.
    pub temperature: Option<f64>,
    /// Further fields of the request to the provider.
    pub extra: BTreeMap<String, Raw>,
    /// Actor of the reply.
    pub actor: Option<String>,
    /// Metadata of the reply. `generation` is added: its id, receipt, end and usage.
    pub metadata: BTreeMap<String, Raw>,
    /// Start even while another generation runs in the conversation.
    pub parallel: bool,
    /// Refuse a prompt without room for every turn, instead of leaving turns out.
    pub whole: bool,
}

/// An answer to generate anew: `last`, or the id of a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Regenerate {
    /// The last answer.
    Last,
    /// This one.
    Turn(TurnId),
}

impl fmt::Display for Regenerate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Regenerate::Last => f.write_str("last"),
            Regenerate::Turn(turn) => turn.fmt(f),
        }
    }
}

impl FromStr for Regenerate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Regenerate, Error> {
        if text == "last" { Ok(Regenerate::Last) } else { text.parse().map(Regenerate::Turn) }
    }
}

impl Serialize for Regenerate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Regenerate {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Regenerate, D::Error> {
        Cow::<str>::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Regenerate {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Regenerate".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "examples": ["last", "turn_01JD0000000000000000000000"]})
    }
}

impl Default for GenerateOptions {
    fn default() -> GenerateOptions {
        GenerateOptions {
            input: Vec::new(),
            regenerate: None,
            append: AppendOptions::default(),
            model: None,
            served_model: None,
            context: ContextOptions::new(0),
            max_output_tokens: None,
            temperature: None,
            extra: BTreeMap::new(),
            actor: None,
            metadata: BTreeMap::new(),
            parallel: false,
            whole: false,
        }
    }
}
