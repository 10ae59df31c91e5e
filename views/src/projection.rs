//! Projection: the view of a transcript that the next request sees.
//!
//! Projection is pure: messages in, a view out, the messages untouched. A message that a view shows unchanged
//! is the message itself, not a copy; a changed one keeps every byte that the change does not concern. Whatever
//! a policy leaves out, a call and its result are left out together, and signed reasoning stays whole.
//!
//! [`project`] makes a view, [`Incremental`] a series of views of a growing transcript, `view` is the result,
//! `message` is the input, `options` parses requests, `repair`, `summary`, `reachability`, `clearing` and
//! `custom` are the policies, `part` and `edit` remove messages and parts, `pointer` locates reclaimed bodies,
//! `hash` computes the prefix hash, `record` rebuilds a view from its event.

mod clearing;
mod custom;
mod edit;
mod hash;
mod incremental;
mod message;
mod options;
mod part;
mod pointer;
mod reachability;
mod record;
mod repair;
mod summary;
mod view;

pub use custom::Projector;
pub use incremental::{Incremental, Previous};
pub use message::Message;
pub use options::{Clearing, POLICIES_MAX, ProjectionPolicy, Reachability, Signatures, Trigger, ViewOptions};
pub(crate) use part::without_parts;
pub use pointer::{Pointed, Pointer, resolve_pointer, strip_markers};
pub use record::replay;
pub use view::{Metadata, ProjectedView, Shown};

use everturn_core::Error;
use everturn_core::pairing::{self, Pairs};
use record::Earlier;
use serde_json::Value;

/// Makes a view. `summary` is the transcript's.
pub fn project<'a>(
    messages: &'a [Message],
    summary: Option<&str>,
    options: &ViewOptions,
) -> Result<ProjectedView<'a>, Error> {
    project_after(messages, summary, options, None)
}

/// Makes a view that follows another. `previous` is the metadata of that one's event: with `freeze`, its
/// decisions are kept until enough can be gained, and the view reports how much of its beginning is unchanged.
pub fn project_after<'a>(
    messages: &'a [Message],
    summary: Option<&str>,
    options: &ViewOptions,
    previous: Option<&Value>,
) -> Result<ProjectedView<'a>, Error> {
    let mut decided = guard(decide(messages, summary, options)?, messages, options);
    let earlier = previous.map(|metadata| Earlier::recorded(metadata, messages, options)).transpose()?;
    let unchanged = earlier.map(|earlier| earlier.keep(messages, options, &mut decided));
    let prefix_hash = hash::of_messages(decided.shown.iter().map(|shown| &*shown.message));
    Ok(decided.view(messages, options, prefix_hash, unchanged))
}

/// Result of the policies.
struct Decided<'a> {
    shown: Vec<Shown<'a>>,
    reasons: Vec<String>,
    roots: Vec<String>,
    blocked: bool,
    /// Indices that a projector reports as kept and dropped.
    claim: Option<(Vec<usize>, Vec<usize>)>,
}

fn raw(messages: &[Message]) -> Vec<Shown<'_>> {
    messages.iter().enumerate().map(|(index, message)| Shown::raw_from(index, message)).collect()
}

/// The policies' view, or the raw one if theirs breaks signed reasoning.
fn guard<'a>(decided: Decided<'a>, messages: &'a [Message], options: &ViewOptions) -> Decided<'a> {
    if options.signatures == Signatures::Ignore {
        return decided;
    }
    let mut whole = vec![false; messages.len()];
    for source in decided.shown.iter().filter(|shown| shown.is_unchanged()).filter_map(Shown::source) {
        whole[source] = true;
    }
    let broken = (0..messages.len()).find(|index| !whole[*index] && messages[*index].is_signed());
    let Some(index) = broken else { return decided };
    Decided {
        shown: raw(messages),
        reasons: vec![format!("provider_safety_blocked: message {index} carries signed reasoning")],
        roots: Vec::new(),
        blocked: true,
        claim: None,
    }
}

fn decide<'a>(
    messages: &'a [Message],
    summary: Option<&str>,
    options: &ViewOptions,
) -> Result<Decided<'a>, Error> {
    let mut decided =
        Decided { shown: raw(messages), reasons: Vec::new(), roots: Vec::new(), blocked: false, claim: None };
    for policy in if options.policies.is_empty() { &[ProjectionPolicy::Raw][..] } else { &options.policies } {
        decided.claim = None;
        let reason = match policy {
            ProjectionPolicy::Raw => "raw_passthrough".to_string(),
            ProjectionPolicy::CleanToolRepair | ProjectionPolicy::SquashFailedCalls => {
                let cut = repair::cut(&decided.shown, &pair(&decided.shown), *policy, options);
                decided.shown = cut.apply(messages, decided.shown)?;
                policy.name().to_string()
            }
            ProjectionPolicy::SummaryPrefix => {
                let (cut, reason) = summary::cut(&decided.shown, summary, options)?;
                decided.shown = cut.apply(messages, decided.shown)?;
                reason.to_string()
            }
            ProjectionPolicy::ReachabilityGc => {
                reachability::consult(options, decided.shown.len(), &mut decided.roots);
                let (cut, reason) = reachability::cut(&decided.shown, options);
                decided.shown = cut.apply(messages, decided.shown)?;
                reason.to_string()
            }
            ProjectionPolicy::ClearToolUses => {
                let pairs = pair(&decided.shown);
                let size = clearing::size(&decided.shown, &pairs, options.clearing.trigger);
                let at_least = options.clearing.clear_at_least;
                let (cut, reason) = clearing::cut(&decided.shown, &pairs, size, at_least, options);
                decided.shown = cut.apply(messages, decided.shown)?;
                reason.to_string()
            }
            ProjectionPolicy::Custom => custom::run(messages, &mut decided, options)?,
        };
        if !decided.reasons.contains(&reason) {
            decided.reasons.push(reason);
        }
    }
    Ok(decided)
}

/// Characters and tokens that a view does not show.
fn reclaimed(messages: &[Message], shown: &[Shown<'_>]) -> (usize, usize) {
    let mut dropped = vec![true; messages.len()];
    let mut total = (0, 0);
    let mut add = |chars: usize| total = (total.0 + chars, total.1 + chars / 4);
    for shown in shown {
        if let Some(slot) = shown.source.and_then(|source| dropped.get_mut(source)) {
            *slot = false;
        }
        add(shown.edit().removed_chars);
        shown.edit().pointers.iter().for_each(|pointer| add(pointer.content_chars));
    }
    for (message, _) in messages.iter().zip(&dropped).filter(|(_, dropped)| **dropped) {
        add(message.chars());
    }
    total
}

/// Pairs the calls and results of a view.
fn pair<'v>(shown: &'v [Shown<'_>]) -> Pairs<'v> {
    pairing::pair(shown.iter().map(Shown::value))
}

impl<'a> Decided<'a> {
    fn view(
        self,
        messages: &[Message],
        options: &ViewOptions,
        prefix_hash: String,
        unchanged_leading_tokens: Option<usize>,
    ) -> ProjectedView<'a> {
        let reason = match &options.reason {
            Some(reason) if !self.blocked => reason.clone(),
            _ => self.reasons.join("; "),
        };
        let shown = self.shown;
        let mut kept = vec![false; messages.len()];
        for source in shown.iter().filter_map(Shown::source) {
            kept[source] = true;
        }
        let those = |are: bool| {
            let mut indices = Vec::with_capacity(messages.len());
            indices.extend((0..messages.len()).filter(|index| kept[*index] == are));
            indices
        };
        let (kept_indices, dropped_indices) = self.claim.unwrap_or_else(|| (those(true), those(false)));
        let pointers: Vec<_> = shown.iter().flat_map(|shown| &shown.edit().pointers).cloned().collect();
        let mut redacted_indices: Vec<_> = pointers.iter().map(|pointer| pointer.source_index).collect();
        redacted_indices.dedup();
        let unchanged = shown
            .iter()
            .enumerate()
            .take_while(|(index, shown)| shown.source == Some(*index) && shown.is_unchanged())
            .count();
        let (reclaimed_chars, reclaimed_tokens) = reclaimed(messages, &shown);
        ProjectedView {
            policy: options.name(),
            reason,
            source_indices: shown.iter().map(Shown::source).collect(),
            kept_count: kept_indices.len(),
            dropped_count: dropped_indices.len(),
            redacted_count: pointers.len(),
            kept_indices,
            dropped_indices,
            redacted_indices,
            reclaimed_chars,
            reclaimed_tokens,
            prefix_hash,
            provider_safety_blocked: self.blocked,
            roots_consulted: self.roots,
            redaction_pointers: pointers,
            first_changed_index: (unchanged < messages.len().max(shown.len())).then_some(unchanged),
            unchanged_leading_tokens,
            asked: view::RecordedOptions::of(options),
            transcript: messages.len(),
            messages: shown,
        }
    }
}
