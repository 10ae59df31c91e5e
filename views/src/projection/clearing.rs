//! `clear_tool_uses`: removes the bodies of old tool results, with the options of Anthropic's context editing.

use super::edit::MARKER;
use super::options::Trigger;
use super::part::Cut;
use super::pointer::{INPUT_CLEARED, Pointed, Pointer};
use super::{ProjectionPolicy, Shown, Signatures, ViewOptions};
use everturn_core::message::field;
use everturn_core::pairing::{CallRef, PairedResult, Pairs};
use serde_json::Value;

/// Size in the unit of the trigger.
pub(super) fn size(shown: &[Shown<'_>], pairs: &Pairs<'_>, trigger: Trigger) -> u64 {
    match trigger {
        Trigger::ToolUses(_) => pairs.calls.len() as u64,
        Trigger::InputTokens(_) => shown.iter().map(|shown| shown.message.chars() as u64 / 4).sum(),
    }
}

/// `size` is that of the whole view, even if `shown` is only its end. Nothing is cleared if that would remove fewer
/// than `at_least` tokens.
pub(super) fn cut(
    shown: &[Shown<'_>],
    pairs: &Pairs<'_>,
    size: u64,
    at_least: u64,
    options: &ViewOptions,
) -> (Cut, &'static str) {
    let knobs = &options.clearing;
    if !knobs.trigger.is_exceeded(size) {
        return (Cut::default(), "clear_tool_uses_below_trigger");
    }
    let stays = |index: usize| options.signatures == Signatures::PerTurn && shown[index].is_signed();
    let mut cut = Cut::default();
    let old = pairs.results.len().saturating_sub(knobs.keep);
    for result in &pairs.results[..old] {
        let excluded = result.name.is_some_and(|name| knobs.exclude_tools.iter().any(|tool| tool == name));
        if excluded || stays(result.message) {
            continue;
        }
        let Some(pointer) = body_pointer(shown, pairs, result, ProjectionPolicy::ClearToolUses) else {
            continue;
        };
        // Replacing a body shorter than the replacement would make the view longer.
        if pointer.content_chars <= pointer.line().len() {
            continue;
        }
        cut.reclaimed.push((result.message, pointer));
        if knobs.clear_inputs
            && let Some(call) = result.call.map(|call| &pairs.calls[call]).filter(|call| !stays(call.message))
            && let Some(pointer) = input_pointer(shown, call)
        {
            cut.reclaimed.push((call.message, pointer));
        }
    }
    let tokens: usize = cut.reclaimed.iter().map(|(_, pointer)| pointer.estimated_tokens_reclaimed).sum();
    match tokens as u64 {
        tokens if tokens < at_least => (Cut::default(), "clear_tool_uses_below_clear_at_least"),
        _ => (cut, "clear_tool_uses"),
    }
}

/// The body of a result as it is stored, and its field.
pub(super) fn body<'a>(result: &PairedResult<'a>) -> Option<(&'static str, &'a Value)> {
    ["content", "output", "result"].into_iter().find_map(|name| Some((name, field(result.whole(), name)?)))
}

/// A pointer to a result's body, if it has one that is still there and belongs to the transcript.
pub(super) fn body_pointer(
    shown: &[Shown<'_>],
    pairs: &Pairs<'_>,
    result: &PairedResult<'_>,
    policy: ProjectionPolicy,
) -> Option<Pointer> {
    let message = &shown[result.message];
    let source = message.source.filter(|_| !message.foreign)?;
    let (key, body) = body(result).filter(|(_, body)| !body.is_null() && *body != "")?;
    if field(result.whole(), MARKER).is_some() {
        return None;
    }
    let call = result.call.map(|call| &pairs.calls[call]);
    let place = message.edit().origin(result.place);
    let id = result.id.or(call.and_then(|call| call.id));
    let reason = match policy {
        ProjectionPolicy::ReachabilityGc => "stale_tool_result_unreachable",
        _ => "old_tool_result_cleared",
    };
    let pointed = Pointed {
        policy: policy.name().into(),
        tool_call_id: id.map(str::to_string),
        tool_name: result.name.map(str::to_string),
        reason: reason.into(),
        ..Pointed::new(source, place, key, body)
    };
    Some(pointed.into())
}

/// A pointer to a call's arguments, unless they are empty.
fn input_pointer(shown: &[Shown<'_>], call: &CallRef<'_>) -> Option<Pointer> {
    let message = &shown[call.message];
    let source = message.source.filter(|_| !message.foreign)?;
    let input = call.arguments()?;
    let empty = match input {
        Value::Object(fields) => fields.is_empty(),
        Value::String(text) => text.len() <= 2,
        _ => true,
    };
    if empty || call.whole().get(MARKER).is_some() {
        return None;
    }
    let (outer, inside) = match call.whole().get("function") {
        Some(function) => ("function.", function),
        None => ("", call.whole()),
    };
    let field = ["arguments", "input", "args"].into_iter().find(|field| inside.get(field).is_some())?;
    let pointed = Pointed {
        policy: ProjectionPolicy::ClearToolUses.name().into(),
        tool_call_id: call.id.map(str::to_string),
        tool_name: Some(call.name.to_string()),
        reason: INPUT_CLEARED.into(),
        ..Pointed::new(source, message.edit().origin(call.place), &format!("{outer}{field}"), input)
    };
    Some(pointed.into())
}
