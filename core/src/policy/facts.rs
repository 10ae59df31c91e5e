//! The facts policy of a conversation.

use crate::Error;
use crate::json::Raw;
use serde::Serialize;
use serde_json::{Map, Value};

/// `policy.facts` of a conversation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct FactsPolicy {
    /// Whether facts are extracted automatically. Extraction can always be requested.
    pub extract: bool,
    /// Whether e-mail addresses, phone and card numbers are removed before anything is stored. Secrets always
    /// are.
    pub redact: bool,
    /// Instructions for a separate step in which a model redacts further content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redact_prompt: Option<String>,
    /// Model that reads the turns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Timeout of one attempt of the model, in seconds.
    pub timeout_s: u64,
}

impl Default for FactsPolicy {
    fn default() -> FactsPolicy {
        FactsPolicy { extract: false, redact: false, redact_prompt: None, model: None, timeout_s: 60 }
    }
}

impl FactsPolicy {
    /// Parses `policy.facts`. An absent field has its default; an unknown field or value is an error that names
    /// it.
    pub fn parse(raw: &Raw) -> Result<FactsPolicy, Error> {
        let fields: Map<String, Value> =
            raw.read().ok_or_else(|| Error::invalid("policy.facts", "policy.facts must be an object"))?;
        let mut policy = FactsPolicy::default();
        for (field, value) in &fields {
            let yes = || value.as_bool().ok_or_else(|| wrong(field, value, "true or false"));
            let text = |what| {
                let text = value.as_str().filter(|text| !text.trim().is_empty());
                text.map(|text| Some(text.to_string())).ok_or_else(|| wrong(field, value, what))
            };
            match field.as_str() {
                "extract" => policy.extract = yes()?,
                "redact" => policy.redact = yes()?,
                "redact_prompt" => policy.redact_prompt = text("a text with instructions on what to remove")?,
                "model" => policy.model = text("the name of a model")?,
                "timeout_s" => {
                    let seconds = value.as_u64().filter(|seconds| *seconds > 0);
                    policy.timeout_s = seconds.ok_or_else(|| wrong(field, value, "at least one second"))?;
                }
                _ => {
                    let text = format!(
                        "policy.facts.{} is unknown; known are extract, redact, redact_prompt, model and timeout_s",
                        crate::id::clip(field)
                    );
                    return Err(Error::invalid("policy.facts", text));
                }
            }
        }
        if policy.redact_prompt.is_some() && !policy.redact {
            let text = "policy.facts.redact_prompt needs \"redact\": true; set it, or leave the prompt out";
            return Err(Error::invalid("policy.facts", text));
        }
        Ok(policy)
    }
}

fn wrong(field: &str, value: &Value, expected: &str) -> Error {
    let shown = crate::id::clip(&value.to_string());
    Error::invalid("policy.facts", format!("policy.facts.{field} is {shown}; give {expected}"))
}
