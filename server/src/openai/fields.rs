//! The fields of a request, also those that are unknown here: each keeps its bytes.

use super::error::RequestError;
use everturn_api::decode::from_json;
use everturn_core::json::Raw;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;

/// The fields of a request.
#[derive(Deserialize, Clone)]
#[serde(transparent)]
pub struct Fields(pub BTreeMap<String, Raw>);

impl Fields {
    /// Takes a field out; `null` means absent.
    pub fn take<T: DeserializeOwned>(&mut self, name: &'static str) -> Result<Option<T>, RequestError> {
        let Some(raw) = self.0.remove(name).filter(|raw| raw.get() != "null") else { return Ok(None) };
        from_json(raw.get())
            .map(Some)
            .map_err(|e| RequestError::field(name, format!("{name} is invalid: {e}")))
    }

    /// The same, for a required field.
    pub fn need<T: DeserializeOwned>(&mut self, name: &'static str) -> Result<T, RequestError> {
        self.take(name)?.ok_or_else(|| RequestError::field(name, format!("{name} is missing; give it")))
    }
}

/// Checks metadata against OpenAI's limits: 16 pairs, 64 characters for a key, 512 for a value.
pub fn check_metadata(metadata: &BTreeMap<String, String>) -> Result<(), RequestError> {
    const PAIRS_MAX: usize = 16;
    const KEY_CHARS_MAX: usize = 64;
    const VALUE_CHARS_MAX: usize = 512;
    let too_long = |(key, value): (&String, &String)| {
        key.chars().count() > KEY_CHARS_MAX || value.chars().count() > VALUE_CHARS_MAX
    };
    if metadata.len() > PAIRS_MAX || metadata.iter().any(too_long) {
        return Err(RequestError::field(
            "metadata",
            format!(
                "metadata may have {PAIRS_MAX} pairs, keys of {KEY_CHARS_MAX} and values of {VALUE_CHARS_MAX} characters; \
                 this has {} pairs, or one that is longer",
                metadata.len()
            ),
        ));
    }
    Ok(())
}
