//! Removes our own marks from a message, and its private blocks; neither may reach a provider.
//!
//! Payloads that were moved into assets are put back first, so that later steps see the original message.

use super::Media;
use everturn_core::json::{array, elements, fields, object};
use everturn_core::viewer::{NESTS, is_block, without_private};
use everturn_core::{Error, asset};
use std::borrow::Cow;

/// Fields that we add to messages and blocks; no provider knows them.
const OURS: [&str; 4] = ["_harn_projection", "redaction_pointers", "visibility", "asset_id"];

/// A message ready to be read.
pub struct Clean<'a> {
    /// Text without our marks and without private blocks; `None` if all of it is private.
    pub text: Option<Cow<'a, str>>,
    /// Whether a private block was removed.
    pub lost: bool,
    /// Whether the text differs from the original.
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
    let Some(public) = without_private(&text) else {
        return Ok(Clean { text: None, lost: true, changed: true });
    };
    let lost = matches!(public, Cow::Owned(_));
    let cleaned = match without_marks(&public, true) {
        Cow::Owned(cleaned) => Some(cleaned),
        Cow::Borrowed(_) if lost => Some(public.into_owned()),
        Cow::Borrowed(_) => None,
    };
    Ok(match cleaned {
        Some(cleaned) => Clean { text: Some(Cow::Owned(cleaned)), lost, changed: true },
        None => Clean { text: Some(text), lost, changed: restores },
    })
}

fn without_marks(text: &str, whole: bool) -> Cow<'_, str> {
    let fields = fields(text);
    let mut changed = false;
    let mut kept = Vec::with_capacity(fields.len());
    for (key, value) in &fields {
        // A block that only refers to its bytes is resolved by the reader, which needs the reference.
        if OURS.contains(&&**key) && (whole || key != "asset_id") {
            changed = true;
            continue;
        }
        let value = match value.as_bytes() {
            [b'[', ..] if NESTS.contains(&&**key) => blocks(value, key.starts_with("tool_")),
            [b'{', ..] if NESTS.contains(&&**key) && is_block(value) => without_marks(value, false),
            _ => Cow::Borrowed(*value),
        };
        changed |= matches!(value, Cow::Owned(_));
        kept.push((&**key, value.into_owned()));
    }
    if changed { Cow::Owned(object(kept)) } else { Cow::Borrowed(text) }
}

fn blocks(text: &str, all: bool) -> Cow<'_, str> {
    let mut changed = false;
    let mut kept = Vec::new();
    for block in elements(text) {
        let looks = block.starts_with('{') && (all || is_block(block));
        let block = if looks { without_marks(block, false) } else { Cow::Borrowed(block) };
        changed |= matches!(block, Cow::Owned(_));
        kept.push(block.into_owned());
    }
    if changed { Cow::Owned(array(&kept)) } else { Cow::Borrowed(text) }
}
