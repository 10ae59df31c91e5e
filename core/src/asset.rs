//! Assets: large or non-text payloads, kept beside the log and addressed by their hash.
//!
//! A turn that arrives with a big base64 payload is stored without it: the payload becomes an asset, the string that
//! held it becomes `asset:ID`, and its block gets an `asset_id`. [`restore`] is the way back, for a provider.

use crate::Error;
use crate::chain::Hash;
use crate::event::Visibility;
use crate::json;
use crate::limits::{ASSET_INLINE_BYTES_MAX, ASSET_PIECE_BYTES};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Value of `type` in an asset descriptor, in our JSON and in transcript values.
pub const TYPE: &str = "transcript_asset";
/// Prefix of the string that replaces a payload in a message.
const REFERENCE: &str = "asset:";

/// Descriptor of an asset.
// The body of `asset.added`; unknown fields of an imported descriptor stay in that body.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Asset {
    /// Always `transcript_asset`.
    #[serde(rename = "_type", default)]
    pub marker: String,
    /// `asset_` and a ULID; an imported one keeps the id it came with.
    pub id: String,
    /// `image`, `audio`, `video` or `file`.
    #[serde(default)]
    pub kind: String,
    /// Media type.
    #[serde(default)]
    pub mime_type: String,
    /// Name given by its author.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Size; absent where only the descriptor was imported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Hash, which is also its address; absent where only the descriptor was imported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Hash>,
    /// SHA-256 of each piece of 1 MiB; the last piece may be shorter. Empty for an asset of one piece, and where an
    /// imported descriptor lists none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pieces: Vec<Hash>,
    /// Audience of the asset.
    #[serde(default = "internal")]
    pub visibility: Visibility,
    /// Actors that may see a private asset.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub audience: Vec<String>,
    /// Location of the bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,
}

fn internal() -> Visibility {
    Visibility::Internal
}

/// Location of an asset's bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Storage {
    /// Path relative to the asset folder of the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// URL of bytes stored elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// Hashes of an asset's pieces; empty for an asset of one piece.
pub fn pieces(bytes: &[u8]) -> Vec<Hash> {
    match bytes.len() > ASSET_PIECE_BYTES {
        true => bytes.chunks(ASSET_PIECE_BYTES).map(Hash::of).collect(),
        false => Vec::new(),
    }
}

impl Asset {
    /// Label for people: the name, else the file name, else the id.
    pub fn label(&self) -> String {
        let file = |s: &Storage| {
            let place = s.path.as_deref().or(s.url.as_deref())?;
            place.rsplit('/').next().filter(|name| !name.is_empty()).map(str::to_string)
        };
        self.name.clone().or_else(|| self.storage.as_ref().and_then(file)).unwrap_or_else(|| self.id.clone())
    }
}

/// A payload found inside a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Payload {
    /// Decoded bytes.
    pub bytes: Vec<u8>,
    /// Media type, as far as the message states it.
    pub mime_type: String,
    /// Name, as far as the message states it.
    pub name: Option<String>,
}

impl Payload {
    /// `image`, `audio`, `video` or `file`.
    pub fn kind(&self) -> &'static str {
        match self.mime_type.split('/').next() {
            Some("image") => "image",
            Some("audio") => "audio",
            Some("video") => "video",
            _ => "file",
        }
    }
}

/// A message without its payloads, and the payloads by id.
pub type Extracted = (String, Vec<(String, Payload)>);

/// Moves large payloads out of a message; `id` assigns each its id. Returns `None` if there are none.
pub fn extract(message: &str, mut id: impl FnMut(&Payload) -> String) -> Result<Option<Extracted>, Error> {
    if message.len() <= ASSET_INLINE_BYTES_MAX {
        return Ok(None);
    }
    let mut found = Vec::new();
    let mut mime_types: HashMap<Option<usize>, &str> = HashMap::new();
    let mut names: HashMap<Option<usize>, &str> = HashMap::new();
    let mut referring = Vec::new();
    json::scan(message, |s| match s.key {
        Some("media_type" | "mime_type" | "mimeType") => drop(mime_types.insert(s.block, s.raw)),
        Some("filename" | "file_name" | "name" | "title") => drop(names.insert(s.block, s.raw)),
        Some("asset_id") => referring.push(s.block),
        _ if s.raw.len() > ASSET_INLINE_BYTES_MAX && !s.is_key => found.push(s),
        _ => {}
    })?;
    let mut edits: Vec<(usize, usize, String)> = Vec::new();
    let mut payloads = Vec::new();
    for s in found {
        let text = json::unescape(s.raw);
        let (head, encoded) = match text.split_once(";base64,") {
            Some((head, encoded)) if head.starts_with("data:") => (format!("{head};base64,"), encoded),
            _ if matches!(s.key, Some("data" | "file_data" | "b64_json" | "base64" | "bytes")) => {
                (String::new(), &*text)
            }
            _ => continue,
        };
        // Move only what encodes back to the same text: this alphabet, with proper padding.
        let Ok(bytes) = BASE64.decode(encoded) else { continue };
        if BASE64.encode(&bytes) != encoded {
            continue;
        }
        let declared = head.strip_prefix("data:").and_then(|h| h.split(';').next()).filter(|m| !m.is_empty());
        let mime_type = declared.or(mime_types.get(&s.block).copied()).unwrap_or("application/octet-stream");
        let name = names.get(&s.block).map(|name| json::unescape(name).into_owned());
        let payload = Payload { bytes, mime_type: mime_type.to_string(), name };
        let id = id(&payload);
        edits.push((s.start, s.end, json::quote(&format!("{head}{REFERENCE}{id}"))));
        if let Some(block) = s.block
            && !referring.contains(&s.block)
        {
            referring.push(s.block);
            edits.push((block, block, asset_id_field(&id)));
        }
        payloads.push((id, payload));
    }
    if payloads.is_empty() {
        return Ok(None);
    }
    Ok(Some((edit(message, edits), payloads)))
}

/// Puts payloads back into a message. `fetch` returns an asset's bytes; an asset that is gone stays a
/// reference.
pub fn restore(message: &str, mut fetch: impl FnMut(&str) -> Option<Vec<u8>>) -> Result<String, Error> {
    let mut edits = Vec::new();
    json::scan(message, |s| {
        let Some((head, id)) = reference(s.raw).filter(|_| !s.is_key) else { return };
        let Some(bytes) = fetch(id) else { return };
        edits.push((
            s.start,
            s.end,
            json::quote(&format!("{}{}", json::unescape(head), BASE64.encode(bytes))),
        ));
        let field = asset_id_field(id);
        if let Some(block) = s.block
            && message[block..].starts_with(&field)
        {
            edits.push((block, block + field.len(), String::new()));
        }
    })?;
    Ok(edit(message, edits))
}

/// The id of the asset that a string refers to, and the text before the reference.
pub fn reference(text: &str) -> Option<(&str, &str)> {
    let at = match text.find(";base64,") {
        Some(at) if text.starts_with("data:") => at + ";base64,".len(),
        _ => 0,
    };
    let id = text[at..].strip_prefix(REFERENCE)?;
    (id.starts_with("asset_") && id.len() < 64).then_some((&text[..at], id))
}

fn asset_id_field(id: &str) -> String {
    format!("\"asset_id\":{},", json::quote(id))
}

/// Replaces spans of the text. Spans must not overlap.
pub(crate) fn edit(text: &str, mut edits: Vec<(usize, usize, String)>) -> String {
    edits.sort_by_key(|(start, ..)| *start);
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    for (start, end, with) in edits {
        out.push_str(&text[at..start]);
        out.push_str(&with);
        at = end;
    }
    out.push_str(&text[at..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn big(byte: u8) -> String {
        BASE64.encode(vec![byte; 9000])
    }

    #[test]
    fn payloads_of_every_shape_move_out_and_come_back() {
        let data = big(7);
        for (message, mime) in [
            (
                format!(
                    r#"{{"role":"user","content":[{{"type":"image","source":{{"type":"base64","media_type":"image/png","data":"{data}"}}}}]}}"#
                ),
                "image/png",
            ),
            (
                format!(
                    r#"{{"role":"user","content":[{{"type":"image_url","image_url":{{"url":"data:image/jpeg;base64,{data}"}}}}]}}"#
                ),
                "image/jpeg",
            ),
            (
                format!(
                    r#"{{"role":"user", "content":[{{"type":"input_file","filename":"a.pdf","file_data":"data:application/pdf;base64,{data}"}}], "n": 1.0}}"#
                ),
                "application/pdf",
            ),
            (
                format!(
                    r#"{{"role":"user","content":[{{"type":"input_audio","input_audio":{{"data":"{data}","format":"wav"}}}}]}}"#
                ),
                "application/octet-stream",
            ),
        ] {
            let (small, payloads) = extract(&message, |_| "asset_X".into()).unwrap().expect("a payload");
            assert_eq!(payloads.len(), 1);
            assert_eq!(payloads[0].1.mime_type, mime);
            assert_eq!(payloads[0].1.bytes, vec![7; 9000]);
            assert!(small.len() < 300 && json::check(&small).is_ok(), "{small}");
            let value: serde_json::Value = serde_json::from_str(&small).unwrap();
            assert_eq!(crate::message::asset_ids(&value), ["asset_X"]);
            assert_eq!(restore(&small, |id| (id == "asset_X").then(|| vec![7; 9000])).unwrap(), message);
        }
    }

    #[test]
    fn long_text_and_odd_base64_stay_where_they_are() {
        let words = "words ".repeat(3000);
        assert!(
            extract(&format!(r#"{{"role":"tool","content":"{words}"}}"#), |_| unreachable!())
                .unwrap()
                .is_none()
        );
        let odd = format!("{}=", big(1).trim_end_matches('='));
        assert!(
            extract(&format!(r#"{{"role":"user","content":[{{"data":"{odd}"}}]}}"#), |_| unreachable!())
                .unwrap()
                .is_none()
        );
        assert!(
            extract(&format!(r#"{{"role":"tool","content":"{}"}}"#, big(1)), |_| unreachable!())
                .unwrap()
                .is_none()
        );
    }

    proptest! {
        #[test]
        fn two_payloads_in_one_block_come_back(a in any::<u8>(), b in any::<u8>()) {
            let message = format!(r#"{{"content":[{{"x":{{"data":"{}"}},"y":{{"data":"{}"}}}}]}}"#, big(a), big(b));
            let mut n = 0;
            let (small, payloads) = extract(&message, |_| { n += 1; format!("asset_{n}") }).unwrap().unwrap();
            let back = restore(&small, |id| payloads.iter().find(|p| p.0 == id).map(|p| p.1.bytes.clone())).unwrap();
            prop_assert_eq!(back, message);
            let value: serde_json::Value = serde_json::from_str(&small).unwrap();
            prop_assert_eq!(crate::message::asset_ids(&value), vec!["asset_1".to_string(), "asset_2".to_string()]);
        }
    }
}
