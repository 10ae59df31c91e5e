//! `summary_prefix`: replaces the beginning by a summary.

use super::part::{Cut, protected_with_partners};
use super::{Message, Shown, Signatures, ViewOptions, pair};
use everturn_core::Error;
use everturn_core::pairing;
use serde_json::json;

pub(super) fn cut(
    shown: &[Shown<'_>],
    summary: Option<&str>,
    options: &ViewOptions,
) -> Result<(Cut, &'static str), Error> {
    if options.keep_last >= shown.len() {
        return Ok((Cut::default(), "summary_prefix_noop_short_history"));
    }
    let cut = shown.len() - options.keep_last;
    let cut = pairing::cut_at_or_before(shown.len(), |index| shown[index].value(), cut);
    let mut dropped = vec![false; shown.len()];
    dropped[..cut].fill(true);
    if options.signatures == Signatures::PerTurn {
        let keep = protected_with_partners(shown, &pair(shown));
        dropped.iter_mut().zip(keep).for_each(|(dropped, keep)| *dropped &= !keep);
    }
    let count = dropped.iter().filter(|dropped| **dropped).count();
    if count == 0 {
        return Ok((Cut::default(), "summary_prefix_noop_nothing_to_replace"));
    }
    let summary = options.summary.as_deref().or(summary.filter(|summary| !summary.trim().is_empty()));
    let summary = match summary {
        Some(summary) => summary.to_string(),
        None => format!("[{count} earlier messages are not shown]"),
    };
    let front = Message::of(json!({
        "role": "system",
        "content": summary,
        "_harn_projection": {"synthetic": true, "policy": "summary_prefix"},
    }))?;
    Ok((Cut { dropped, front: Some(front), ..Cut::default() }, "summary_prefix"))
}
