//! What never leaves the house: our own marks on a message, and blocks that are private.
//!
//! Payloads that were moved into assets are put back first, so that what follows sees the message as it was given.

use super::Media;
use super::text::{array, elements, fields, object};
use everturn_core::{Error, asset, json};
use std::borrow::Cow;

/// Fields that we put on messages and blocks; no provider knows them.
const OURS: [&str; 4] = ["_harn_projection", "redaction_pointers", "visibility", "asset_id"];
/// Fields that hold blocks, which may hold blocks. Arguments and other JSON of tools are not looked into: a `visibility`
/// there is the tool's own.
const NESTS: [&str; 5] = ["content", "parts", "tool_calls", "tool_results", "output"];

/// A message ready to be read.
pub struct Clean<'a> {
    /// Its text without our marks and without private blocks; `None` if all of it is private.
    pub text: Option<Cow<'a, str>>,
    /// Whether a private block was taken out.
    pub lost: bool,
    /// Whether the text is another one than before.
    pub changed: bool,
}

/// The message with its payloads, without our marks.
pub fn clean<'a>(text: Cow<'a, str>, media: &dyn Media) -> Result<Clean<'a>, Error> {
    let restores = text.contains("asset:asset_");
    let text = match restores {
        true => Cow::Owned(asset::restore(&text, |id| media.bytes(id).map(|(_, bytes)| bytes))?),
        false => text,
    };
    // Most messages carry none of our marks and are not taken apart. An escape could hide one.
    if !text.contains("\\u") && !OURS.iter().any(|field| text.contains(field)) {
        return Ok(Clean { text: Some(text), lost: false, changed: restores });
    }
    let mut lost = false;
    let cleaned = match object_without_marks(&text, true, &mut lost) {
        Some(Cow::Owned(cleaned)) => cleaned,
        Some(Cow::Borrowed(_)) => return Ok(Clean { text: Some(text), lost, changed: restores }),
        None => return Ok(Clean { text: None, lost: true, changed: true }),
    };
    Ok(Clean { text: Some(Cow::Owned(cleaned)), lost, changed: true })
}

/// `None` if it is private.
fn object_without_marks<'a>(text: &'a str, whole: bool, lost: &mut bool) -> Option<Cow<'a, str>> {
    let fields = fields(text);
    if fields.iter().any(|(key, value)| key == "visibility" && json::unescape(value) == "\"private\"") {
        return None;
    }
    let mut changed = false;
    let mut kept = Vec::with_capacity(fields.len());
    for (key, value) in &fields {
        // A block that only refers to its bytes is resolved by the reader, which needs the reference.
        if OURS.contains(&&**key) && (whole || key != "asset_id") {
            changed = true;
            continue;
        }
        let value = match value.as_bytes() {
            [b'[', ..] if NESTS.contains(&&**key) => blocks(value, key.starts_with("tool_"), lost),
            [b'{', ..] if NESTS.contains(&&**key) && is_block(value) => {
                object_without_marks(value, false, lost).unwrap_or_else(|| {
                    *lost = true;
                    Cow::Owned("null".into())
                })
            }
            _ => Cow::Borrowed(*value),
        };
        changed |= matches!(value, Cow::Owned(_));
        kept.push((&**key, value.into_owned()));
    }
    Some(if changed { Cow::Owned(object(kept)) } else { Cow::Borrowed(text) })
}

fn blocks<'a>(text: &'a str, all: bool, lost: &mut bool) -> Cow<'a, str> {
    let mut changed = false;
    let mut kept = Vec::new();
    for block in elements(text) {
        let looks = block.starts_with('{') && (all || is_block(block));
        match if looks { object_without_marks(block, false, lost) } else { Some(Cow::Borrowed(block)) } {
            Some(block) => {
                changed |= matches!(block, Cow::Owned(_));
                kept.push(block.into_owned());
            }
            None => (changed, *lost) = (true, true),
        }
    }
    if changed { Cow::Owned(array(&kept)) } else { Cow::Borrowed(text) }
}

/// Whether an object is a block and not data of a tool.
fn is_block(text: &str) -> bool {
    const MARKS: [&str; 6] = ["type", "text", "functionCall", "functionResponse", "inlineData", "fileData"];
    fields(text).iter().any(|(key, _)| MARKS.contains(&&**key))
}
