//! What of a transcript the next request sees.
//!
//! Projection is pure: messages in, a view out, the messages untouched. A message that a view shows unchanged is the
//! message itself, not a copy; one that is changed keeps every byte that the change does not concern. Whatever a policy
//! leaves out, a call and its result leave together, and signed reasoning stays whole.
//!
//! [`project`] makes a view, [`Memo`] makes the next one of a growing transcript, `message` is what views are made of, `options` says how one is asked for, `repair`, `summary`, `reachability`, `clearing` and
//! `custom` are the policies, `part` takes messages and parts out, `pointer` finds what was reclaimed, `record` makes
//! a view again from its event.

mod clearing;
mod custom;
mod edit;
mod hash;
mod memo;
mod message;
mod options;
mod part;
mod pointer;
mod reachability;
mod record;
mod repair;
mod summary;
mod told;

pub use custom::Projector;
pub use memo::Memo;
pub use message::Message;
pub use options::{Clearing, Options, POLICIES_MAX, Policy, Reachability, Signatures, Trigger};
pub use pointer::{Pointed, Pointer, resolve_pointer, strip_markers};
pub use record::replay;
pub use told::session_update;

use crate::Error;
use crate::json::Raw;
use crate::pairing::{Pairs, pair_known};
use edit::Edit;
use record::Recorded;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use std::borrow::Cow;

/// A message in a view.
#[derive(Clone, Debug)]
pub struct Shown<'a> {
    message: Cow<'a, Message>,
    source: Option<usize>,
    /// What was done to the message of the transcript.
    edit: Edit,
    /// The text is not from the transcript: a summary, or what a projector wrote.
    foreign: bool,
}

impl<'a> Shown<'a> {
    /// The text, the one that came in if nothing was changed.
    pub fn raw(&self) -> &Raw {
        self.message.raw()
    }

    /// What it says.
    pub fn value(&self) -> &Value {
        self.message.value()
    }

    /// Its index in the transcript; none if it is synthetic.
    pub fn source(&self) -> Option<usize> {
        self.source
    }

    /// Whether it is the transcript's message, byte for byte.
    pub fn is_unchanged(&self) -> bool {
        matches!(self.message, Cow::Borrowed(_))
    }

    fn raw_from(index: usize, message: &'a Message) -> Shown<'a> {
        Shown { message: Cow::Borrowed(message), source: Some(index), edit: Edit::default(), foreign: false }
    }

    fn written(message: Message, source: Option<usize>) -> Shown<'a> {
        Shown { message: Cow::Owned(message), source, edit: Edit::default(), foreign: true }
    }

    fn is_same(&self, other: &Shown<'_>) -> bool {
        self.is_unchanged() && other.is_unchanged() && self.source == other.source
            || self.raw() == other.raw()
    }
}

impl Serialize for Shown<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.raw().serialize(serializer)
    }
}

/// What the next request sees, and what was decided on the way there. Serialises to the result object.
#[derive(Clone, Debug, Serialize)]
pub struct View<'a> {
    /// What was asked for; several policies are joined by `+`.
    pub policy: String,
    /// Why it is as it is.
    pub reason: String,
    /// The messages.
    pub messages: Vec<Shown<'a>>,
    /// For each message its index in the transcript; none if it is synthetic.
    pub source_indices: Vec<Option<usize>>,
    /// The transcript's messages that are in the view, if only in part.
    pub kept_indices: Vec<usize>,
    /// Those that are not.
    pub dropped_indices: Vec<usize>,
    /// Those of which a body was reclaimed.
    pub redacted_indices: Vec<usize>,
    /// How many were kept.
    pub kept_count: usize,
    /// How many were dropped.
    pub dropped_count: usize,
    /// How many bodies were reclaimed.
    pub redacted_count: usize,
    /// The characters of what is not shown: bodies, parts, whole messages. What stands in their place is not counted.
    pub reclaimed_chars: usize,
    /// An estimate: a quarter of the characters of each.
    pub reclaimed_tokens: usize,
    /// `sha256:` and the hash of the messages' canonical JSON.
    pub prefix_hash: String,
    /// The policy would have broken signed reasoning, so the view is raw.
    pub provider_safety_blocked: bool,
    /// The kinds of roots that `reachability_gc` looked at.
    pub roots_consulted: Vec<String>,
    /// Where the reclaimed bodies are.
    pub redaction_pointers: Vec<Pointer>,
    /// The first message that differs from the raw transcript's; up to it a provider's prompt cache still holds.
    pub first_changed_index: Option<usize>,
    /// How many tokens at the start are as in the previous view, if one was given; an estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unchanged_leading_tokens: Option<usize>,
    /// The event that records it: `{kind, role, visibility, text, metadata}`.
    pub event: Value,
}

/// Makes a view. `summary` is the transcript's.
pub fn project<'a>(
    messages: &'a [Message],
    summary: Option<&str>,
    options: &Options,
) -> Result<View<'a>, Error> {
    Memo::default().project(messages, summary, options, None)
}

/// Makes a view that comes after another. `previous` is the metadata of that one's event: with `freeze`, its decisions
/// are kept until enough can be gained, and the view says how much of its beginning is unchanged.
pub fn project_after<'a>(
    messages: &'a [Message],
    summary: Option<&str>,
    options: &Options,
    previous: Option<&Value>,
) -> Result<View<'a>, Error> {
    Memo::default().project(messages, summary, options, previous)
}

fn made<'a>(
    messages: &'a [Message],
    summary: Option<&str>,
    options: &Options,
    previous: Option<&Value>,
    memo: &mut Memo,
) -> Result<View<'a>, Error> {
    let decided = guarded(messages, summary, options, memo)?;
    let Some(previous) = previous else { return Ok(decided.view(messages, options, memo)) };
    let recorded = Recorded::read(previous)?;
    let earlier = recorded.as_ref().and_then(|recorded| recorded.shown(messages, memo).ok());
    let (Some(recorded), Some(earlier)) = (recorded, earlier) else {
        return Ok(decided.view_after(messages, options, &[], memo));
    };
    if memo.hash(&earlier) != recorded.prefix_hash {
        // The messages are others than then, as after a compaction: nothing that was decided applies to them.
        return Ok(decided.view_after(messages, options, &[], memo));
    }
    if let Some(gain) = options.freeze
        && !decided.blocked
        && recorded.is_of(options)
    {
        let mut frozen = earlier.clone();
        frozen.extend((recorded.messages..messages.len()).map(|i| Shown::raw_from(i, &messages[i])));
        let (fresh, kept) = (reclaimed(messages, &decided.shown).1, reclaimed(messages, &frozen).1);
        // A call that was hidden while it waited may have its result by now; then the decisions cannot stand.
        if (fresh.saturating_sub(kept) as u64) < gain && part::is_valid(messages, &frozen) {
            let reason = format!("{}_frozen", options.name());
            let frozen = Decided { shown: frozen, reasons: vec![reason], ..decided };
            return Ok(frozen.view_after(messages, options, &earlier, memo));
        }
    }
    Ok(decided.view_after(messages, options, &earlier, memo))
}

/// What the policies left.
struct Decided<'a> {
    shown: Vec<Shown<'a>>,
    reasons: Vec<String>,
    roots: Vec<String>,
    blocked: bool,
    /// A projector said itself what it kept and dropped.
    claim: Option<(Vec<usize>, Vec<usize>)>,
}

fn raw(messages: &[Message]) -> Vec<Shown<'_>> {
    messages.iter().enumerate().map(|(index, message)| Shown::raw_from(index, message)).collect()
}

/// The policies' view, or the raw one if theirs breaks signed reasoning.
fn guarded<'a>(
    messages: &'a [Message],
    summary: Option<&str>,
    options: &Options,
    memo: &mut Memo,
) -> Result<Decided<'a>, Error> {
    let decided = decide(messages, summary, options, memo)?;
    if options.signatures == Signatures::Ignore {
        return Ok(decided);
    }
    let mut whole = vec![false; messages.len()];
    for source in decided.shown.iter().filter(|shown| shown.is_unchanged()).filter_map(Shown::source) {
        whole[source] = true;
    }
    let broken = (0..messages.len()).find(|index| !whole[*index] && messages[*index].is_signed());
    let Some(index) = broken else { return Ok(decided) };
    Ok(Decided {
        shown: raw(messages),
        reasons: vec![format!("provider_safety_blocked: message {index} carries signed reasoning")],
        roots: Vec::new(),
        blocked: true,
        claim: None,
    })
}

fn decide<'a>(
    messages: &'a [Message],
    summary: Option<&str>,
    options: &Options,
    memo: &mut Memo,
) -> Result<Decided<'a>, Error> {
    let mut decided =
        Decided { shown: raw(messages), reasons: Vec::new(), roots: Vec::new(), blocked: false, claim: None };
    for policy in if options.policies.is_empty() { &[Policy::Raw][..] } else { &options.policies } {
        decided.claim = None;
        let reason = match policy {
            Policy::Raw => "raw_passthrough".to_string(),
            Policy::CleanToolRepair | Policy::SquashFailedCalls => {
                let cut = repair::cut(&decided.shown, *policy, options);
                decided.shown = cut.apply(messages, decided.shown, memo)?;
                policy.name().to_string()
            }
            Policy::SummaryPrefix => {
                let (cut, reason) = summary::cut(&decided.shown, summary, options)?;
                decided.shown = cut.apply(messages, decided.shown, memo)?;
                reason.to_string()
            }
            Policy::ReachabilityGc => {
                let (cut, reason) = reachability::cut(&decided.shown, options, &mut decided.roots, memo);
                decided.shown = cut.apply(messages, decided.shown, memo)?;
                reason.to_string()
            }
            Policy::ClearToolUses => {
                let (cut, reason) = clearing::cut(&decided.shown, options, memo);
                decided.shown = cut.apply(messages, decided.shown, memo)?;
                reason.to_string()
            }
            Policy::Custom => custom::run(messages, &mut decided, options, memo)?,
        };
        if !decided.reasons.contains(&reason) {
            decided.reasons.push(reason);
        }
    }
    Ok(decided)
}

/// The characters and tokens that a view does not show.
fn reclaimed(messages: &[Message], shown: &[Shown<'_>]) -> (usize, usize) {
    let mut dropped = vec![true; messages.len()];
    let mut total = (0, 0);
    let mut add = |chars: usize| total = (total.0 + chars, total.1 + chars / 4);
    for shown in shown {
        if let Some(slot) = shown.source.and_then(|source| dropped.get_mut(source)) {
            *slot = false;
        }
        add(shown.edit.removed_chars);
        shown.edit.pointers.iter().for_each(|pointer| add(pointer.content_chars));
    }
    for (message, _) in messages.iter().zip(&dropped).filter(|(_, dropped)| **dropped) {
        add(message.chars());
    }
    total
}

/// What belongs together in a view.
fn pair<'v>(shown: &'v [Shown<'_>]) -> Pairs<'v> {
    pair_known(shown.iter().map(|shown| shown.message.paired()))
}

impl<'a> Decided<'a> {
    fn view_after(
        self,
        messages: &[Message],
        options: &Options,
        earlier: &[Shown<'_>],
        memo: &mut Memo,
    ) -> View<'a> {
        let same = self.shown.iter().zip(earlier).take_while(|(now, then)| now.is_same(then));
        let chars: usize = same.map(|(now, _)| now.message.chars()).sum();
        let mut view = self.view(messages, options, memo);
        view.unchanged_leading_tokens = Some(chars / 4);
        view.event["metadata"]["unchanged_leading_tokens"] = (chars / 4).into();
        view
    }

    fn view(self, messages: &[Message], options: &Options, memo: &mut Memo) -> View<'a> {
        let reason = match &options.reason {
            Some(reason) if !self.blocked => reason.clone(),
            _ => self.reasons.join("; "),
        };
        let shown = self.shown;
        let mut kept = vec![false; messages.len()];
        for source in shown.iter().filter_map(Shown::source) {
            kept[source] = true;
        }
        let (kept_indices, dropped_indices) =
            self.claim.unwrap_or_else(|| (0..messages.len()).partition(|index| kept[*index]));
        let pointers: Vec<_> = shown.iter().flat_map(|shown| &shown.edit.pointers).cloned().collect();
        let mut redacted_indices: Vec<_> = pointers.iter().map(|pointer| pointer.source_index).collect();
        redacted_indices.dedup();
        let unchanged = shown
            .iter()
            .enumerate()
            .take_while(|(index, shown)| shown.source == Some(*index) && shown.is_unchanged())
            .count();
        let (reclaimed_chars, reclaimed_tokens) = reclaimed(messages, &shown);
        let mut view = View {
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
            prefix_hash: memo.hash(&shown),
            provider_safety_blocked: self.blocked,
            roots_consulted: self.roots,
            redaction_pointers: pointers,
            first_changed_index: (unchanged < messages.len().max(shown.len())).then_some(unchanged),
            unchanged_leading_tokens: None,
            event: Value::Null,
            messages: shown,
        };
        view.event = view.to_event(messages.len(), options);
        view
    }
}

impl View<'_> {
    fn to_event(&self, messages: usize, options: &Options) -> Value {
        let summarizes = options.policies.contains(&Policy::SummaryPrefix);
        json!({
            "kind": "transcript.projection",
            "role": "system",
            "visibility": "internal",
            "text": self.reason,
            "metadata": {
                "policy": self.policy,
                "reason": self.reason,
                "source_indices": self.source_indices,
                "kept_indices": self.kept_indices,
                "dropped_indices": self.dropped_indices,
                "redacted_indices": self.redacted_indices,
                "kept_count": self.kept_count,
                "dropped_count": self.dropped_count,
                "redacted_count": self.redacted_count,
                "reclaimed_chars": self.reclaimed_chars,
                "reclaimed_tokens": self.reclaimed_tokens,
                "prefix_hash": self.prefix_hash,
                "provider_safety_blocked": self.provider_safety_blocked,
                "roots_consulted": self.roots_consulted,
                "redaction_pointers": self.redaction_pointers,
                "first_changed_index": self.first_changed_index,
                "respects_provider_signatures": options.signatures != Signatures::Ignore,
                "summary_keep_last": summarizes.then_some(options.keep_last),
                "options": options.record,
                "decisions": record::decisions(&self.messages, messages),
            },
        })
    }
}
