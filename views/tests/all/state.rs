//! The state is a fold: it equals a plain account of the events, at every point, however it is caught up.

use crate::sample::{conversation_id, draft, link, turn_id};
use everturn_core::chain::Head;
use everturn_core::event::{Draft, Event, kind};
use everturn_core::json::Raw;
use everturn_core::turn::Role;
use everturn_views::state::{self, Fold};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Steps that change a state. The numbers choose among what is there.
#[derive(Clone, Debug)]
enum Step {
    Say,
    Call { shape: u8, count: u8, ids: bool },
    Answer { shape: u8, which: u8 },
    Open,
    Commit { which: u8, calls: bool },
    Abort { which: u8 },
    Supersede { which: u8 },
    Pin { name: u8 },
    Unpin { name: u8 },
    Note { name: u8 },
    Clear { name: u8 },
    Ask { id: u8 },
    Resolve { id: u8 },
    Start { id: u8 },
    Finish { id: u8 },
    Abandon { which: u8 },
    Late { which: u8 },
    Other,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Say),
        4 => (0..4u8, 1..4u8, prop::bool::weighted(0.8)).prop_map(|(shape, count, ids)| Step::Call { shape, count, ids }),
        5 => (0..4u8, any::<u8>()).prop_map(|(shape, which)| Step::Answer { shape, which }),
        1 => Just(Step::Open),
        1 => (any::<u8>(), any::<bool>()).prop_map(|(which, calls)| Step::Commit { which, calls }),
        1 => any::<u8>().prop_map(|which| Step::Abort { which }),
        1 => any::<u8>().prop_map(|which| Step::Supersede { which }),
        2 => (0..5u8).prop_map(|name| Step::Pin { name }),
        1 => (0..5u8).prop_map(|name| Step::Unpin { name }),
        2 => (0..5u8).prop_map(|name| Step::Note { name }),
        1 => (0..5u8).prop_map(|name| Step::Clear { name }),
        2 => (0..5u8).prop_map(|id| Step::Ask { id }),
        2 => (0..5u8).prop_map(|id| Step::Resolve { id }),
        1 => (0..5u8).prop_map(|id| Step::Start { id }),
        1 => (0..5u8).prop_map(|id| Step::Finish { id }),
        1 => any::<u8>().prop_map(|which| Step::Abandon { which }),
        1 => any::<u8>().prop_map(|which| Step::Late { which }),
        1 => Just(Step::Other),
    ]
}

/// A plain account of the same, computed in the most obvious way.
#[derive(Default)]
struct Account {
    drafts: Vec<Draft>,
    /// Every call: its id, its tool, the turn that made it, and its `seq`.
    calls: Vec<(Option<String>, String, u64, u64)>,
    open: Vec<(u64, u64)>,
    standing: Vec<(u64, u64)>,
    pins: BTreeMap<String, u64>,
    scratchpads: BTreeMap<String, u64>,
    approvals: Vec<(String, u64)>,
    started: Vec<(String, u64)>,
    /// Ids of abandoned calls, and the turns that made them.
    abandoned: Vec<(String, u64)>,
    next_call: u64,
}

impl Account {
    fn seq(&self) -> u64 {
        self.drafts.len() as u64 + 1
    }

    fn add(&mut self, kind: &'static str, body: Value) -> u64 {
        let seq = self.seq();
        self.drafts.push(draft(seq, kind, body.to_string()));
        seq
    }

    fn turn(&mut self, kind: &'static str, role: Role, body: Value) -> u64 {
        let seq = self.add(kind, body);
        let last = self.drafts.last_mut().unwrap();
        (last.role, last.turn) = (Some(role), Some(turn_id(seq)));
        seq
    }

    fn about(&mut self, kind: &'static str, turn: u64, body: Value) -> u64 {
        let seq = self.add(kind, body);
        self.drafts.last_mut().unwrap().turn = Some(turn_id(turn));
        seq
    }

    /// A message with calls, in one of the shapes.
    fn message(&mut self, shape: u8, count: u8, ids: bool) -> (Value, Vec<(Option<String>, String)>) {
        let calls: Vec<(Option<String>, String)> = (0..count)
            .map(|_| {
                self.next_call += 1;
                (ids.then(|| format!("c{}", self.next_call)), format!("tool{}", self.next_call))
            })
            .collect();
        let with_id = |mut call: Value, key: &str, id: &Option<String>| {
            if let Some(id) = id {
                call[key] = json!(id);
            }
            call
        };
        let message = match shape {
            0 => {
                json!({"role": "assistant", "content": "I call.", "tool_calls": calls.iter().map(|(id, name)|
                with_id(json!({"type": "function", "function": {"name": name, "arguments": "{}"}}), "id", id)).collect::<Vec<_>>()})
            }
            1 => json!({"role": "assistant", "content": calls.iter().map(|(id, name)|
                with_id(json!({"type": "tool_use", "name": name, "input": {}}), "id", id)).collect::<Vec<_>>()}),
            2 => {
                let (id, name) = &calls[0];
                with_id(json!({"type": "function_call", "name": name, "arguments": "{}"}), "call_id", id)
            }
            _ => json!({"role": "assistant", "content": calls.iter().map(|(id, name)|
                with_id(json!({"type": "tool_call", "name": name, "arguments": {}}), "id", id)).collect::<Vec<_>>()}),
        };
        let calls = if shape == 2 { calls[..1].to_vec() } else { calls };
        (message, calls)
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Say => {
                let seq = self.turn(
                    kind::MESSAGE,
                    Role::User,
                    json!({"message": {"role": "user", "content": "hi"}}),
                );
                self.standing.push((seq, seq));
            }
            Step::Call { shape, count, ids } => {
                let (message, calls) = self.message(shape, count, ids);
                let seq = self.turn(kind::MESSAGE, Role::Assistant, json!({"message": message}));
                self.standing.push((seq, seq));
                self.calls.extend(calls.into_iter().map(|(id, name)| (id, name, seq, seq)));
            }
            Step::Answer { shape, which } => {
                if self.calls.is_empty() {
                    return;
                }
                let (id, name, ..) = self.calls.remove(which as usize % self.calls.len());
                let mut result = match shape {
                    0 => json!({"role": "tool", "name": name, "content": "done"}),
                    1 => json!({"type": "tool_result", "name": name, "content": "done"}),
                    2 => json!({"type": "function_call_output", "name": name, "output": "done"}),
                    _ => json!({"role": "tool_result", "name": name, "content": "done"}),
                };
                if let Some(id) = &id {
                    result[["tool_call_id", "tool_use_id", "call_id", "tool_call_id"][shape as usize]] =
                        json!(id);
                    self.started.retain(|(started, _)| started != id);
                }
                let message = if shape == 1 { json!({"role": "user", "content": [result]}) } else { result };
                let seq = self.turn(kind::TOOL_RESULT, Role::Tool, json!({"message": message}));
                self.standing.push((seq, seq));
            }
            Step::Open => {
                let seq = self.turn(kind::OPENED, Role::Assistant, json!({}));
                self.open.push((seq, seq));
            }
            Step::Commit { which, calls } => {
                if self.open.is_empty() {
                    return;
                }
                let (turn, began) = self.open.remove(which as usize % self.open.len());
                let (message, calls) = self.message(0, u8::from(calls), true);
                let message =
                    if calls.is_empty() { json!({"role": "assistant", "content": "said"}) } else { message };
                self.about(kind::COMMITTED, turn, json!({"message": message}));
                self.standing.push((turn, began));
                self.calls.extend(calls.into_iter().map(|(id, name)| (id, name, turn, began)));
            }
            Step::Abort { which } => {
                if self.open.is_empty() {
                    return;
                }
                let (turn, _) = self.open.remove(which as usize % self.open.len());
                self.about(kind::ABORTED, turn, json!({"message": {"role": "assistant", "content": "sa"}}));
            }
            Step::Supersede { which } => {
                if self.standing.is_empty() {
                    return;
                }
                let (turn, _) = self.standing.remove(which as usize % self.standing.len());
                self.about(kind::SUPERSEDED, turn, json!({"by": turn_id(1)}));
                // What was given up stays so, for an edit that brings it back.
                self.calls.retain(|(_, _, by, _)| *by != turn);
            }
            Step::Pin { name } => {
                let seq = self.add(kind::PIN, json!({"name": format!("p{name}"), "value": self.seq()}));
                self.pins.insert(format!("p{name}"), seq);
            }
            Step::Unpin { name } => {
                self.add(kind::UNPIN, json!({"name": format!("p{name}")}));
                self.pins.remove(&format!("p{name}"));
            }
            Step::Note { name } => {
                let body = json!({"name": format!("s{name}"), "value": {"step": self.seq()}});
                let seq = self.add(kind::SCRATCHPAD_SET, body);
                self.scratchpads.insert(format!("s{name}"), seq);
            }
            Step::Clear { name } => {
                self.add(kind::SCRATCHPAD_CLEAR, json!({"name": format!("s{name}")}));
                self.scratchpads.remove(&format!("s{name}"));
            }
            Step::Ask { id } => {
                let id = format!("a{id}");
                let seq = self.add(kind::APPROVAL_REQUESTED, json!({"approval_id": id}));
                self.approvals.retain(|(known, _)| *known != id);
                self.approvals.push((id, seq));
            }
            Step::Resolve { id } => {
                let id = format!("a{id}");
                self.add(kind::APPROVAL_RESOLVED, json!({"approval_id": id, "state": "approved"}));
                self.approvals.retain(|(known, _)| *known != id);
            }
            Step::Start { id } => {
                let id = format!("s{id}");
                let seq = self.add(kind::TOOL_STARTED, json!({"tool_call_id": id, "tool_name": "slow"}));
                if !self.started.iter().any(|(known, _)| *known == id) {
                    self.started.push((id, seq));
                }
            }
            Step::Finish { id } => {
                let id = format!("s{id}");
                self.add(kind::TOOL_FINISHED, json!({"tool_call_id": id}));
                self.started.retain(|(known, _)| *known != id);
            }
            Step::Abandon { which } => {
                let with_id: Vec<usize> =
                    (0..self.calls.len()).filter(|at| self.calls[*at].0.is_some()).collect();
                if with_id.is_empty() {
                    return;
                }
                let (id, _, turn, _) = self.calls.remove(with_id[which as usize % with_id.len()]);
                let id = id.unwrap();
                self.add(kind::TOOL_ABANDONED, json!({"tool_call_id": id, "reason": "it takes too long"}));
                self.abandoned.push((id, turn));
            }
            Step::Late { which } => {
                if self.abandoned.is_empty() {
                    return;
                }
                let (id, _) = self.abandoned.remove(which as usize % self.abandoned.len());
                let result = json!({"role": "tool", "tool_call_id": id, "content": "done"});
                let seq = self.turn(kind::TOOL_RESULT, Role::Tool, json!({"message": result}));
                self.standing.push((seq, seq));
            }
            Step::Other => drop(self.add("snapshot_created", json!({"tool_call": "not one"}))),
        }
    }

    fn check(&mut self, fold: &Fold) {
        let pending: Vec<(Option<String>, String, u64)> =
            fold.tools.iter().map(|tool| (tool.id.clone(), tool.name.clone(), tool.seq)).collect();
        let calls = self.calls.iter().map(|(id, name, _, seq)| (id.clone(), name.clone(), *seq));
        let started = self.started.iter().map(|(id, seq)| (Some(id.clone()), "slow".to_string(), *seq));
        let mut wanted: Vec<_> = calls.chain(started).collect();
        let mut got = pending.clone();
        wanted.sort();
        got.sort();
        assert_eq!(got, wanted, "what is pending");
        let abandoned = fold.abandoned.iter().filter_map(|given_up| given_up.tool.id.clone());
        let wanted_abandoned: Vec<String> = self.abandoned.iter().map(|(id, _)| id.clone()).collect();
        assert_eq!(abandoned.collect::<Vec<_>>(), wanted_abandoned);
        assert_eq!(fold.pins, self.pins);
        assert_eq!(fold.scratchpads, self.scratchpads);
        let approvals: Vec<_> = fold.approvals.iter().map(|w| (w.id.clone(), w.seq)).collect();
        assert_eq!(approvals, self.approvals);
        assert_eq!(
            fold.open.iter().map(|p| p.seq).collect::<Vec<_>>(),
            self.open.iter().map(|o| o.1).collect::<Vec<_>>()
        );
        let mut standing: Vec<u64> = self.standing.iter().map(|(_, seq)| *seq).collect();
        standing.sort();
        let newest = &standing[standing.len().saturating_sub(fold.recent.len())..];
        assert_eq!(fold.recent.iter().map(|p| p.seq).collect::<Vec<_>>(), newest);
        let barrier = wanted
            .iter()
            .map(|w| w.2)
            .chain(self.approvals.iter().map(|a| a.1))
            .chain(self.open.iter().map(|o| o.1));
        assert_eq!(fold.barrier(), barrier.min(), "nothing that is pending may be summarized");
    }
}

fn events(account: &Account) -> Vec<Event> {
    let id = conversation_id(1);
    link(id, Head::genesis(id), account.drafts.clone())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// A fold caught up in one go, event by event, or from a stored one is the same; and it equals a plain
    /// account of the same events.
    #[test]
    fn a_state_is_the_fold_of_its_events_at_every_point(steps in prop::collection::vec(step(), 1..60), keep in 1..20usize) {
        let mut account = Account::default();
        let mut caught_up = Fold::new();
        let mut kept = Fold::new();
        for (n, step) in steps.into_iter().enumerate() {
            let before = account.drafts.len();
            account.take(step);
            let events = events(&account);
            events[before..].iter().for_each(|event| caught_up.apply(event));
            if n % keep == 0 {
                // As read back from a store.
                kept = serde_json::from_str(&serde_json::to_string(&caught_up).unwrap()).unwrap();
            }
            account.check(&caught_up);
            let mut from_kept = kept.clone();
            events[kept.through_seq as usize..].iter().for_each(|event| from_kept.apply(event));
            let mut from_the_start = Fold::new();
            events.iter().for_each(|event| from_the_start.apply(event));
            prop_assert_eq!(&from_kept, &caught_up);
            prop_assert_eq!(&from_the_start, &caught_up);
        }
    }
}

/// Erasing a tool result erases the only evidence that its call was answered; a state folded after that must
/// not show the call as pending again, where it would block every compaction.
#[test]
fn erasing_an_answer_does_not_make_its_call_pending_again() {
    let mut account = Account::default();
    account.take(Step::Call { shape: 0, count: 1, ids: true });
    account.take(Step::Answer { shape: 0, which: 0 });
    account.add(kind::ERASED, json!({"turns": [turn_id(2)], "reason": "asked", "answered": ["c1"]}));
    let mut events = events(&account);
    events[1].body = None;
    let mut fold = Fold::new();
    events.iter().for_each(|event| fold.apply(event));
    assert_eq!((fold.tools.len(), fold.barrier()), (0, None));
}

/// An edit that kept the id of its call had it pending for ever, although its result stood behind it.
#[test]
fn a_call_that_an_edit_keeps_is_answered_or_given_up_as_it_was() {
    let calling = |ids: &[&str]| {
        let call = |id: &&str| json!({"type": "tool_use", "id": id, "name": "run", "input": {}});
        json!({"message": {"role": "assistant", "content": ids.iter().map(call).collect::<Vec<_>>()}})
    };
    let mut account = Account::default();
    let mut said = account.turn(kind::MESSAGE, Role::Assistant, calling(&["c1", "c2", "c3"]));
    let result = json!({"role": "tool", "tool_call_id": "c1", "content": "done"});
    account.turn(kind::TOOL_RESULT, Role::Tool, json!({"message": result}));
    account.add(kind::TOOL_ABANDONED, json!({"tool_call_id": "c2"}));
    for ids in [&["c1", "c2", "c3", "c4"][..], &["c1", "c2"], &["c1", "c3"]] {
        let by = account.turn(kind::MESSAGE, Role::Assistant, calling(ids));
        account.about(kind::SUPERSEDED, said, json!({"by": turn_id(by)}));
        said = by;
    }
    let wanted: [(&[&str], &[&str]); 4] =
        [(&["c3"], &["c2"]), (&["c3", "c4"], &["c2"]), (&[], &["c2"]), (&["c3"], &["c2"])];
    let ends = [3, 5, 7, 9];
    let mut fold = Fold::new();
    for event in events(&account) {
        fold.apply(&event);
        if let Some(at) = ends.iter().position(|end| *end == event.seq) {
            let pending: Vec<&str> = fold.tools.iter().filter_map(|tool| tool.id.as_deref()).collect();
            let given_up = fold.abandoned.iter().filter_map(|given_up| given_up.tool.id.as_deref());
            assert_eq!((&pending[..], &given_up.collect::<Vec<_>>()[..]), wanted[at], "at {}", event.seq);
            assert!(fold.abandoned.iter().all(|given_up| given_up.tool.place == 1));
        }
    }
    assert_eq!(fold.barrier(), Some(1));
}

/// The result stands behind the turn also while the turn has no call: it waited for ever for the result that it had.
#[test]
fn a_call_that_an_edit_brings_back_is_answered_or_given_up_as_it_was() {
    let calling = |ids: &[&str]| {
        let call = |id: &&str| json!({"type": "tool_use", "id": id, "name": "run", "input": {}});
        json!({"message": {"role": "assistant", "content": ids.iter().map(call).collect::<Vec<_>>()}})
    };
    let mut account = Account::default();
    let mut said = account.turn(kind::MESSAGE, Role::Assistant, calling(&["c1", "c2", "c3"]));
    let result = json!({"role": "tool", "tool_call_id": "c1", "content": "done"});
    account.turn(kind::TOOL_RESULT, Role::Tool, json!({"message": result}));
    account.add(kind::TOOL_ABANDONED, json!({"tool_call_id": "c2"}));
    for ids in [&[][..], &["c9"], &["c1", "c2", "c3"]] {
        let by = account.turn(kind::MESSAGE, Role::Assistant, calling(ids));
        account.about(kind::SUPERSEDED, said, json!({"by": turn_id(by)}));
        said = by;
    }
    let mut fold = Fold::new();
    events(&account).iter().for_each(|event| fold.apply(event));
    let ids =
        |tools: Vec<&state::Tool>| tools.into_iter().filter_map(|tool| tool.id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(fold.tools.iter().collect()), ["c3"]);
    assert_eq!(ids(fold.abandoned.iter().map(|given_up| &given_up.tool).collect()), ["c2"]);
    assert_eq!(fold.abandoned[0].tool.turn, Some(turn_id(said)));
}

/// Such a turn is not among the recent ones any more, and its results are as old as it is.
#[test]
fn the_edit_of_an_old_call_does_not_wait_for_its_result() {
    let mut account = Account::default();
    let call = json!([{"type": "tool_use", "id": "c1", "name": "run", "input": {}}]);
    let call = json!({"message": {"role": "assistant", "content": call}});
    account.turn(kind::MESSAGE, Role::Assistant, call.clone());
    let result = json!({"role": "tool", "tool_call_id": "c1", "content": "done"});
    account.turn(kind::TOOL_RESULT, Role::Tool, json!({"message": result}));
    (0..state::RECENT_TURNS_MAX).for_each(|_| account.take(Step::Say));
    let by = account.turn(kind::MESSAGE, Role::Assistant, call);
    account.about(kind::SUPERSEDED, 1, json!({"by": turn_id(by)}));
    let mut fold = Fold::new();
    events(&account).iter().for_each(|event| fold.apply(event));
    assert_eq!((fold.tools.len(), fold.answered.len(), fold.barrier()), (0, 0, None));
}

#[test]
fn what_would_never_show_is_refused_with_what_to_write() {
    for (kind, body, says) in [
        (kind::PIN, json!({"value": 1}), "must be {\"name\": …, \"value\": …}"),
        (kind::PIN, json!({"name": "x"}), "has no value"),
        (kind::PIN, json!({"name": "", "value": 1}), "empty"),
        (kind::PIN, json!({"name": "x", "value": "y".repeat(5000)}), "PIN_BYTES_MAX is 4096, this is 5002"),
        (kind::UNPIN, json!([]), "must be {\"name\": …}"),
        (kind::SCRATCHPAD_SET, json!({"name": "x"}), "has no value; scratchpad.clear removes a scratchpad"),
        (
            kind::SCRATCHPAD_SET,
            json!({"name": "x", "value": "y".repeat(20_000)}),
            "SCRATCHPAD_BYTES_MAX is 16384, this is 20002",
        ),
        (kind::SCRATCHPAD_CLEAR, json!([]), "the name of a scratchpad"),
        (kind::APPROVAL_REQUESTED, json!({"question": "?"}), "must have an approval_id"),
        (kind::APPROVAL_RESOLVED, json!({"approval_id": "a"}), "approved, denied, cancelled or expired"),
        (kind::APPROVAL_RESOLVED, json!({"approval_id": "a", "state": "pending"}), "approved, denied"),
        (kind::TOOL_STARTED, json!({"tool_name": "x"}), "must have a tool_call_id"),
        (kind::TOOL_FINISHED, json!({}), "must have a tool_call_id"),
        (kind::TOOL_ABANDONED, json!({"reason": "slow"}), "must have a tool_call_id"),
    ] {
        let error = state::check(kind, &Raw::of(&body).unwrap()).unwrap_err();
        assert!(error.text().contains(says), "{kind}: {error}");
    }
    assert!(state::check("mask_generated", &Raw::of(&json!({})).unwrap()).is_ok());
}
