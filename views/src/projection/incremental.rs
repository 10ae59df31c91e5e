//! Views of a growing transcript, where the cost of the next view depends on the new messages only.
//!
//! Most messages of a long transcript are settled: appending messages does not change a policy's decisions about
//! them. [`Incremental`] keeps those decisions and the state of the hash, and runs the policy on the end of the
//! transcript only. If a new message affects a settled one (a late result, a call that repairs an old one), it
//! runs the policy on everything. Either way the view equals that of [`project_after`](super::project_after).
//!
//! With several policies, `custom`, `summary_prefix` or `transitive`, every view is decided from scratch and only
//! the hash is kept.

use super::clearing::{self, body_pointer};
use super::edit::Edit;
use super::hash::Growing;
use super::part::{Cut, protected};
use super::pointer::Pointer;
use super::reachability::{self, Names, Plain};
use super::record::{Earlier, decisions, is_same_request};
use super::{
    Clearing, Decided, Message, ProjectedView, ProjectionPolicy, Shown, Signatures, ViewOptions, guard, pair,
    repair,
};
use everturn_core::Error;
use everturn_core::pairing::{self, BlockPath, Pairs};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Number of messages at the end that are never settled: most repairs of a call, and most references to a
/// result, follow soon after it.
const UNSETTLED: usize = 32;

/// A growing transcript, with the decisions of its last view. Its messages never change: one that is edited makes another
/// transcript.
#[derive(Default)]
pub struct Incremental {
    messages: Vec<Message>,
    settled: Settled,
    last: Option<Last>,
    hash: Growing,
}

/// The view that the next one follows. With `freeze` its decisions are kept; in any case the next view reports
/// how much of its beginning is unchanged.
#[derive(Clone, Copy, Debug)]
pub enum Previous<'p> {
    /// No view.
    None,
    /// A recorded view, by the metadata of its event.
    Recorded(&'p Value),
    /// The last view of this [`Incremental`], if there is one.
    Last,
}

/// The last view.
struct Last {
    shown: Vec<Kept>,
    /// Number of messages of the transcript at the time.
    messages: usize,
    policy: String,
    options: Value,
}

/// A message of the last view.
enum Kept {
    /// The message of the transcript at this index.
    Unchanged(usize),
    Changed(Shown<'static>),
}

impl Incremental {
    /// The messages so far.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Adds a message.
    pub fn push(&mut self, message: Message) {
        self.messages.push(message);
    }

    /// Makes the next view.
    pub fn project(
        &mut self,
        summary: Option<&str>,
        options: &ViewOptions,
        previous: Previous<'_>,
    ) -> Result<ProjectedView<'_>, Error> {
        let Incremental { messages, settled, last, hash } = self;
        let decided = match &options.policies[..] {
            [policy] if SettledOptions::is_settled(*policy, options) => {
                let end = settled.advance(messages, *policy, options);
                // Decisions that failed halfway must not be continued.
                let end = end.inspect_err(|_| *settled = Settled::default())?;
                let mut roots = Vec::new();
                if *policy == ProjectionPolicy::ReachabilityGc {
                    reachability::consult(options, messages.len(), &mut roots);
                }
                let (shown, reason) = (settled.shown(messages, end.shown), end.reason.to_string());
                Decided { shown, reasons: vec![reason], roots, blocked: false, claim: None }
            }
            _ => super::decide(messages, summary, options)?,
        };
        let mut decided = guard(decided, messages, options);
        let earlier = match previous {
            Previous::None => None,
            Previous::Recorded(metadata) => Some(Earlier::recorded(metadata, messages, options)?),
            Previous::Last => last.as_ref().map(|last| last.earlier(messages, options)),
        };
        let unchanged = earlier.map(|earlier| earlier.keep(messages, options, &mut decided));
        let same = last.as_ref().map_or(0, |last| last.same(messages, &decided.shown));
        let prefix_hash = hash.of_messages(same, decided.shown.iter().map(|shown| &*shown.message));
        let before = last.take().map(|last| last.shown).unwrap_or_default();
        *last = Some(Last::of(before, same, &decided.shown, messages.len(), options));
        Ok(decided.view(messages, options, prefix_hash, unchanged))
    }
}

impl Last {
    /// Reuses the first `same` messages of the previous view.
    fn of(
        mut before: Vec<Kept>,
        same: usize,
        shown: &[Shown<'_>],
        messages: usize,
        options: &ViewOptions,
    ) -> Last {
        before.truncate(same);
        before.extend(shown[same..].iter().map(|shown| match shown.source {
            Some(source) if shown.is_unchanged() => Kept::Unchanged(source),
            _ => Kept::Changed(shown.kept()),
        }));
        Last { shown: before, messages, policy: options.name(), options: options.record.clone() }
    }

    /// Number of unchanged messages at the start.
    fn same(&self, messages: &[Message], shown: &[Shown<'_>]) -> usize {
        let is_same = |(then, now): &(&Kept, &Shown<'_>)| match then {
            Kept::Unchanged(source) if now.is_unchanged() && now.source == Some(*source) => true,
            Kept::Unchanged(source) => Shown::raw_from(*source, &messages[*source]).is_same(now),
            Kept::Changed(then) => then.is_same(now),
        };
        self.shown.iter().zip(shown).take_while(is_same).count()
    }

    fn earlier<'a>(&self, messages: &'a [Message], options: &ViewOptions) -> Earlier<'a> {
        let shown = self.shown.iter().map(|kept| match kept {
            Kept::Unchanged(source) => Shown::raw_from(*source, &messages[*source]),
            Kept::Changed(shown) => shown.clone(),
        });
        let shown: Vec<_> = shown.collect();
        if decisions(&shown, self.messages).is_none() {
            return Earlier::default();
        }
        let is_same_request = is_same_request(&self.policy, &self.options, options);
        Earlier { shown, messages: self.messages, is_same_request }
    }
}

/// Options that settled decisions depend on. Roots and write barriers may differ from call to call.
#[derive(PartialEq)]
struct SettledOptions {
    policy: ProjectionPolicy,
    signatures: Signatures,
    min_chars: usize,
    clearing: Clearing,
}

impl SettledOptions {
    fn is_settled(policy: ProjectionPolicy, options: &ViewOptions) -> bool {
        match policy {
            ProjectionPolicy::CleanToolRepair
            | ProjectionPolicy::SquashFailedCalls
            | ProjectionPolicy::ClearToolUses => true,
            ProjectionPolicy::ReachabilityGc => {
                !options.reachability.transitive && !reachability::is_barred(options)
            }
            ProjectionPolicy::Raw | ProjectionPolicy::SummaryPrefix | ProjectionPolicy::Custom => false,
        }
    }

    fn of(policy: ProjectionPolicy, options: &ViewOptions) -> SettledOptions {
        let ViewOptions { signatures, reachability, clearing, .. } = options;
        SettledOptions {
            policy,
            signatures: *signatures,
            min_chars: reachability.min_chars,
            clearing: clearing.clone(),
        }
    }
}

/// Decisions about the settled messages at the start.
#[derive(Default)]
struct Settled {
    asked: Option<SettledOptions>,
    /// Number of settled messages.
    end: usize,
    /// Indices of dropped messages, ascending.
    dropped: Vec<usize>,
    /// Changed messages, by index.
    changed: BTreeMap<usize, Shown<'static>>,
    /// Ids of calls without a result. A late result changes the decisions.
    open: HashSet<String>,
    /// For `clean_tool_repair`: tools with a failed call that is shown until the tool succeeds.
    failing: HashSet<String>,
    /// For `clear_tool_uses`: size of the settled messages, and whether bodies are cleared.
    size: u64,
    clears: bool,
    /// For `reachability_gc`: tool names, and results that can be reclaimed.
    tools: Names,
    results: Results,
}

/// The part of a view that is not settled.
struct End<'a> {
    shown: Vec<Shown<'a>>,
    reason: &'static str,
}

impl Settled {
    /// Decides about the unsettled messages, and settles those that are old enough.
    fn advance<'a>(
        &mut self,
        messages: &'a [Message],
        policy: ProjectionPolicy,
        options: &ViewOptions,
    ) -> Result<End<'a>, Error> {
        let asked = SettledOptions::of(policy, options);
        if self.asked.as_ref() != Some(&asked) {
            *self = Settled { asked: Some(asked), ..Settled::default() };
        }
        let end: Vec<_> =
            (self.end..messages.len()).map(|index| Shown::raw_from(index, &messages[index])).collect();
        let pairs = pair(&end);
        let size = self.size + clearing::size(&end, &pairs, options.clearing.trigger);
        if self.end > 0 && !self.holds(&end, &pairs, size, policy, options) {
            *self = Settled::default();
            return self.advance(messages, policy, options);
        }
        let (cut, reason) = match policy {
            ProjectionPolicy::ReachabilityGc => {
                let (cut, roots) = reachability::cut_end(&end, &pairs, options, &self.tools);
                for (index, pointers) in self.results.reach(&roots) {
                    let mut shown = Shown::raw_from(index, &messages[index]);
                    if pointers.is_empty() {
                        self.changed.remove(&index);
                    } else {
                        shown.change(messages, Edit { pointers, ..Edit::default() })?;
                        self.changed.insert(index, shown.kept());
                    }
                }
                (cut, "reachability_gc")
            }
            ProjectionPolicy::ClearToolUses => {
                let at_least = if self.clears { 0 } else { options.clearing.clear_at_least };
                let (cut, reason) = clearing::cut(&end, &pairs, size, at_least, options);
                self.clears = reason == "clear_tool_uses";
                (cut, reason)
            }
            _ => (repair::cut(&end, &pairs, policy, options), policy.name()),
        };
        let count = settling(&end, &pairs, policy, options);
        self.note(&end[..count], &end, &pairs, &cut, policy, options);
        let mut shown = cut.apply(messages, end)?;
        let start = self.end;
        self.end += count;
        let rest = shown.split_off(shown.partition_point(|shown| shown.source < Some(self.end)));
        let kept: HashSet<usize> = shown.iter().filter_map(Shown::source).collect();
        self.dropped.extend((start..self.end).filter(|index| !kept.contains(index)));
        let changed = shown.iter().filter(|shown| !shown.is_unchanged());
        self.changed.extend(changed.filter_map(|shown| Some((shown.source?, shown.kept()))));
        Ok(End { shown: rest, reason })
    }

    /// Whether the policy would decide the same about the settled messages now.
    fn holds(
        &self,
        end: &[Shown<'_>],
        pairs: &Pairs<'_>,
        size: u64,
        policy: ProjectionPolicy,
        options: &ViewOptions,
    ) -> bool {
        let is_late = pairs.results.iter().any(|result| result.id.is_some_and(|id| self.open.contains(id)));
        let succeeds =
            |call: &pairing::CallRef<'_>| call.result.is_some_and(|result| !pairs.results[result].failed);
        !is_late
            && match policy {
                ProjectionPolicy::CleanToolRepair => {
                    !pairs.calls.iter().any(|call| self.failing.contains(call.name) && succeeds(call))
                }
                ProjectionPolicy::ClearToolUses => {
                    let Clearing { trigger, keep, .. } = &options.clearing;
                    pairs.results.len() >= *keep && trigger.is_exceeded(size) == self.clears
                }
                ProjectionPolicy::ReachabilityGc => end.len() >= options.reachability.root_window,
                _ => true,
            }
    }

    /// Records how later messages can affect `first`, the start of `end`.
    fn note(
        &mut self,
        first: &[Shown<'_>],
        end: &[Shown<'_>],
        pairs: &Pairs<'_>,
        cut: &Cut,
        policy: ProjectionPolicy,
        options: &ViewOptions,
    ) {
        let calls = pairs.calls.iter().take_while(|call| call.message < first.len());
        let open = calls.clone().filter(|call| call.result.is_none());
        self.open.extend(open.filter_map(|call| call.id.map(str::to_string)));
        let results = pairs.results.iter().take_while(|result| result.message < first.len());
        match policy {
            ProjectionPolicy::CleanToolRepair => {
                let stays = match options.signatures {
                    Signatures::PerTurn => protected(end, pairs),
                    _ => Vec::new(),
                };
                let removed: HashSet<(usize, BlockPath)> = cut.removed.iter().copied().collect();
                let is_gone = |message: usize, place| {
                    cut.dropped.get(message) == Some(&true) || removed.contains(&(message, place))
                };
                let failing = calls.filter(|call| {
                    let result = call.result.map(|result| &pairs.results[result]);
                    result.is_some_and(|result| {
                        let stays = |index: usize| stays.get(index) == Some(&true);
                        result.failed
                            && !stays(call.message)
                            && !stays(result.message)
                            && !is_gone(call.message, call.place)
                    })
                });
                self.failing.extend(failing.map(|call| call.name.to_string()));
            }
            ProjectionPolicy::ClearToolUses => {
                self.size += match options.clearing.trigger {
                    super::Trigger::ToolUses(_) => calls.count() as u64,
                    trigger => clearing::size(first, pairs, trigger),
                }
            }
            ProjectionPolicy::ReachabilityGc => {
                self.tools.extend(reachability::tools_of(pairs));
                let reclaimed: HashMap<(usize, BlockPath), &Pointer> =
                    cut.reclaimed.iter().map(|(index, pointer)| ((*index, pointer.place), pointer)).collect();
                for result in results.filter(|r| reachability::is_candidate(r, &end[r.message], options)) {
                    let known = reclaimed.get(&(result.message, result.place)).copied();
                    let pointer = known.cloned().or_else(|| body_pointer(end, pairs, result, policy));
                    let names = reachability::identifiers(result, end, pairs);
                    if let Some(pointer) = pointer {
                        self.results.add(pointer, names, known.is_none());
                    }
                }
            }
            _ => {}
        }
    }

    /// The whole view.
    fn shown<'a>(&'a self, messages: &'a [Message], end: Vec<Shown<'a>>) -> Vec<Shown<'a>> {
        let mut shown = Vec::with_capacity(self.end + end.len());
        let mut changed = self.changed.iter().peekable();
        let mut dropped = self.dropped.iter().peekable();
        for (index, message) in messages[..self.end].iter().enumerate() {
            match changed.next_if(|(at, _)| **at == index) {
                Some((_, changed)) => shown.push(changed.lent()),
                None if dropped.next_if_eq(&&index).is_some() => {}
                None => shown.push(Shown::raw_from(index, message)),
            }
        }
        shown.extend(end);
        shown
    }
}

/// Number of messages of `end` that can be settled: none of their calls has its result after them, and a later
/// message can answer one only by its id.
fn settling(end: &[Shown<'_>], pairs: &Pairs<'_>, policy: ProjectionPolicy, options: &ViewOptions) -> usize {
    let recent = match policy {
        ProjectionPolicy::ReachabilityGc => options.reachability.root_window,
        ProjectionPolicy::ClearToolUses => {
            let kept = pairs.results.len().checked_sub(options.clearing.keep);
            let first =
                kept.map_or(0, |kept| pairs.results.get(kept).map_or(end.len(), |first| first.message));
            end.len() - first
        }
        _ => 0,
    };
    let open = pairs.calls.iter().find(|call| call.result.is_none()).map_or(end.len(), |call| call.message);
    let thoughts: HashSet<usize> = pairs.reasoning.iter().map(|(start, _)| start + 1).collect();
    let is_fit = |at: usize| {
        // Reasoning may belong to the message after it, and a result without an id answers a call of the same turn.
        !thoughts.contains(&at) && (at <= open || pairing::is_assistant_message(end[at].value()))
    };
    let mut at = end.len().saturating_sub(recent.max(UNSETTLED));
    while at > 0 {
        at = pairs.cut_at_or_before(at);
        if at == 0 || is_fit(at) {
            break;
        }
        at -= 1;
    }
    at
}

/// Results that `reachability_gc` reclaims unless a root refers to them, indexed by name.
#[derive(Default)]
struct Results {
    /// Pointers in order of their messages, each with whether the body is shown.
    all: Vec<(Pointer, bool)>,
    /// For each name, its last entry in `named`.
    last: HashMap<u64, usize, Plain>,
    /// A result, and the previous entry with the same name: linked lists in one vector.
    named: Vec<(usize, Option<usize>)>,
}

impl Results {
    fn add(&mut self, pointer: Pointer, names: Names, is_shown: bool) {
        for name in names {
            let before = self.last.insert(name, self.named.len());
            self.named.push((self.all.len(), before));
        }
        self.all.push((pointer, is_shown));
    }

    /// Updates what is shown. Returns the messages that change, each with the bodies that are reclaimed in it.
    fn reach(&mut self, roots: &Names) -> Vec<(usize, Vec<Pointer>)> {
        let mut reached = vec![false; self.all.len()];
        for name in roots {
            let mut next = self.last.get(name).copied();
            while let Some((result, before)) = next.map(|at| self.named[at]) {
                reached[result] = true;
                next = before;
            }
        }
        let mut messages = Vec::new();
        for ((pointer, is_shown), reached) in self.all.iter_mut().zip(&reached) {
            if std::mem::replace(is_shown, *reached) != *reached
                && messages.last() != Some(&pointer.source_index)
            {
                messages.push(pointer.source_index);
            }
        }
        let pointers = |index: usize| {
            let first = self.all.partition_point(|(pointer, _)| pointer.source_index < index);
            let of_message =
                self.all[first..].iter().take_while(|(pointer, _)| pointer.source_index == index);
            of_message.filter(|(_, is_shown)| !is_shown).map(|(pointer, _)| pointer.clone()).collect()
        };
        messages.into_iter().map(|index| (index, pointers(index))).collect()
    }
}
