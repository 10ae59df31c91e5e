//! The state of a conversation: a fold over the log with the minimum needed to continue.
//!
//! [`Fold`] holds only `seq` numbers and ids. It can be stored anywhere and caught up with newer events:
//! erasing a turn's text leaves nothing of it in a fold. [`State`] is what callers get: the same with the
//! texts, read from the log at that moment.

use crate::compaction::{self, Checkpoint};
use everturn_core::Error;
use everturn_core::approval::{Approval, ApprovalBody, check_request};
use everturn_core::conversation::{BudgetRef, CheckpointRef, Settings};
use everturn_core::event::{Event, kind};
use everturn_core::fact::ReadBody;
use everturn_core::id::{TurnId, clip};
use everturn_core::json::Raw;
use everturn_core::pairing::{self, CallRef};
use everturn_core::time::Timestamp;
use everturn_core::turn::{Role, TurnBody};
use everturn_core::write::{ErasedBody, SupersededBody};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Version of [`State`] and of a stored [`Fold`]; a fold of another version is rebuilt from the log.
pub const VERSION: u32 = 1;
/// Maximum number of turns in [`State::recent_turn_ids`].
pub const RECENT_TURNS_MAX: usize = 64;
/// Maximum number of pins of one conversation.
pub const PINS_MAX: usize = 100;
/// Maximum size of a pin, in bytes of JSON: every prompt carries it.
pub const PIN_BYTES_MAX: usize = 4 * 1024;
/// Maximum number of scratchpads of one conversation.
pub const SCRATCHPADS_MAX: usize = 16;
/// Maximum size of a scratchpad, in bytes of JSON: every prompt carries it.
pub const SCRATCHPAD_BYTES_MAX: usize = 16 * 1024;
/// Maximum number of pending approvals and of pending tools; the oldest are dropped.
pub const PENDING_MAX: usize = 1000;
/// Maximum number of pending approvals in a prompt.
const APPROVALS_SHOWN_MAX: usize = 10;
/// Maximum length of the question or the id of an approval in a prompt, in bytes.
const QUESTION_SHOWN_BYTES_MAX: usize = 300;
/// Maximum number of resolved approvals that a fold remembers.
pub const RESOLVED_MAX: usize = 256;

/// The fold of a conversation's events, without their text.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Fold {
    /// Version, see [`VERSION`].
    pub version: u32,
    /// `seq` of the last event it covers.
    pub through_seq: u64,
    /// Time of that event.
    pub updated: Timestamp,
    /// The newest turns that are neither superseded, aborted nor open, in reading order.
    pub recent: Vec<TurnPlace>,
    /// Open turns.
    pub open: Vec<TurnPlace>,
    /// The last aborted turns that no turn has replaced.
    pub aborted: Vec<TurnPlace>,
    /// Pins, by the `seq` of the event that set each.
    pub pins: BTreeMap<String, u64>,
    /// Scratchpads, by the `seq` of the event that set each, which is their version.
    pub scratchpads: BTreeMap<String, u64>,
    /// Pending approvals, by id and the `seq` of the request.
    pub approvals: Vec<Waiting>,
    /// The last resolved approvals, by id and the `seq` of the resolution.
    pub resolved: Vec<Waiting>,
    /// Calls without a result, and tools that started and did not finish.
    pub tools: Vec<Tool>,
    /// Calls that were given up and have no result yet, also those that an edit left out: another may bring them back.
    pub abandoned: Vec<Abandoned>,
    /// Calls of recent turns that have their result, for an edit that keeps them or brings them back.
    pub answered: Vec<Tool>,
    /// The checkpoint in force.
    pub checkpoint: Option<CheckpointRef>,
    /// The last budget action.
    pub budget: Option<BudgetRef>,
    /// `seq` of the event that set the system prompt in force.
    pub prompt: Option<u64>,
    /// `seq` of the last receipt.
    pub receipt: Option<u64>,
    /// `seq` of the last projection since the last edit. Earlier decisions may concern edited messages.
    pub projection: Option<u64>,
    /// Current statements about facts, corrections and retractions. Those learned from superseded or aborted
    /// turns are not among them.
    pub facts: Vec<StatementRef>,
    /// Ranges of the log that were read for facts: first and last `seq`, in order, with gaps between.
    pub read: Vec<(u64, u64)>,
}

/// A statement about a fact.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StatementRef {
    /// `seq` of the statement.
    pub seq: u64,
    /// The turn that it was learned from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
}

/// A turn, its `seq` and its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TurnPlace {
    /// The turn.
    pub turn: TurnId,
    /// `seq` of its first event.
    pub seq: u64,
    /// Its place in reading order: the smallest `seq` among it and the turns that it replaces. See
    /// [`reading`](crate::reading).
    pub place: u64,
}

impl TurnPlace {
    /// A turn that replaces nothing.
    fn new(turn: TurnId, seq: u64) -> TurnPlace {
        TurnPlace { turn, seq, place: seq }
    }
}

/// A pending or resolved approval.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Waiting {
    /// Its id.
    pub id: String,
    /// `seq` of the request or resolution.
    pub seq: u64,
    /// Time at which it expires, while it is pending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
}

impl Waiting {
    /// Whether it has expired by then.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }
}

/// A tool call without a result.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Tool {
    /// Id of the call; absent if the caller gave none.
    pub id: Option<String>,
    /// Name of the tool.
    pub name: String,
    /// The turn that called it; absent for one that was only announced as started.
    pub turn: Option<TurnId>,
    /// `seq` of the call, or of its start.
    pub seq: u64,
    /// The place of its turn in reading order.
    pub place: u64,
    /// Time at which the store accepted it.
    pub at: Timestamp,
}

impl Tool {
    /// Whether it waits longer than this by then.
    pub fn is_due(&self, now: Timestamp, after_s: u64) -> bool {
        self.at.plus_s(after_s) <= now
    }

    /// Whether it is the call that this `tool.abandoned` event is about. One without an id is known by its turn and name.
    fn is_given_up_by(&self, event: &Event, body: &AbandonedBody) -> bool {
        match &body.tool_call_id {
            Some(id) => self.id.as_ref() == Some(id),
            None => {
                self.id.is_none() && self.turn == event.turn && body.tool_name.as_ref() == Some(&self.name)
            }
        }
    }
}

/// A tool call that was given up.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Abandoned {
    /// The call.
    pub tool: Tool,
    /// `seq` of the event that gave it up; absent where its time has passed and no event says so yet.
    pub seq: Option<u64>,
}

/// The body of `state.pin` and `scratchpad.set`; of `state.unpin` and `scratchpad.clear` without the value.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PinBody {
    /// Name of the pin or scratchpad.
    pub name: String,
    /// Its value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Raw>,
}

/// The body of `tool.started` and `tool.finished`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ToolBody {
    /// Id that pairs the two, and pairs them with a call.
    pub tool_call_id: String,
    /// Name of the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_name: Option<String>,
    /// Description of the work, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
}

/// The body of `tool.abandoned`. For a call without an id, the envelope names its turn.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct AbandonedBody {
    /// Id of the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Name of the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_name: Option<String>,
    /// Reason given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Actors that may read id and reason, where the call is private; absent if everyone may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason_for: Option<Vec<String>>,
}

/// Checks the body of an event that changes the state, so that a typo is not stored as a pin that is never
/// shown.
pub fn check(kind: &str, body: &Raw) -> Result<(), Error> {
    // A list could be read by position.
    fn read<T: DeserializeOwned>(body: &Raw) -> Option<T> {
        body.get().trim_start().starts_with('{').then(|| body.read())?
    }
    let wrong = |what: &str| Error::invalid("state.malformed", format!("the body of {kind} {what}"));
    let set = |what: &str, removed_by: &str, limit: (&'static str, usize, &str)| {
        let set: PinBody = read(body).ok_or_else(|| wrong("must be {\"name\": …, \"value\": …}"))?;
        everturn_core::event::check_name(what, &set.name)?;
        let value =
            set.value.ok_or_else(|| wrong(&format!("has no value; {removed_by} removes a {what}")))?;
        let (limit, max, advice) = limit;
        match value.get().len() {
            bytes if bytes > max => Err(Error::limit(limit, max as u64, bytes as u64, advice)),
            _ => Ok(()),
        }
    };
    let removed = |what: &str| {
        let wrong = || wrong(&format!("must be {{\"name\": …}}, the name of a {what}"));
        read::<PinBody>(body).map(drop).ok_or_else(wrong)
    };
    match kind {
        kind::PIN => {
            let advice = "pin the name of it and keep the rest in a turn";
            set("pin", kind::UNPIN, ("PIN_BYTES_MAX", PIN_BYTES_MAX, advice))
        }
        kind::UNPIN => removed("pin"),
        kind::SCRATCHPAD_SET => {
            let advice = "keep what the next steps need and the rest in a turn";
            set("scratchpad", kind::SCRATCHPAD_CLEAR, ("SCRATCHPAD_BYTES_MAX", SCRATCHPAD_BYTES_MAX, advice))
        }
        kind::SCRATCHPAD_CLEAR => removed("scratchpad"),
        kind::APPROVAL_REQUESTED => read::<ApprovalBody>(body)
            .ok_or_else(|| wrong("must have an approval_id; tool_call_id, tool_name and question are texts, deadline is a time"))
            .and_then(|request| check_request(&request)),
        kind::APPROVAL_RESOLVED => read::<ApprovalBody>(body)
            .and_then(|body| body.state.filter(|state| *state != Approval::Pending))
            .map(drop)
            .ok_or_else(|| {
                wrong("must have an approval_id and a state: approved, denied, cancelled or expired")
            }),
        kind::TOOL_STARTED | kind::TOOL_FINISHED => read::<ToolBody>(body)
            .map(drop)
            .ok_or_else(|| wrong("must have a tool_call_id; tool_name and summary are texts")),
        kind::TOOL_ABANDONED => read::<AbandonedBody>(body)
            .and_then(|body| body.tool_call_id)
            .map(drop)
            .ok_or_else(|| wrong("must have a tool_call_id; tool_name and reason are texts")),
        _ => Ok(()),
    }
}

impl Fold {
    /// The fold before the first event.
    pub fn new() -> Fold {
        Fold { version: VERSION, ..Fold::default() }
    }

    /// The first `seq` that a compaction must not pass: that of the oldest pending item.
    pub fn barrier(&self) -> Option<u64> {
        let approvals = self.approvals.iter().map(|waiting| waiting.seq);
        let tools = self.tools.iter().map(|tool| tool.place);
        approvals.chain(tools).chain(self.open.iter().map(|open| open.place)).min()
    }

    /// Tools that have not answered: first those that were only announced as started, then calls, in reading order.
    pub fn tools_in_order(&self) -> Vec<&Tool> {
        let mut tools: Vec<&Tool> = self.tools.iter().collect();
        tools.sort_by_key(|tool| (tool.turn.is_some(), tool.place));
        tools
    }

    /// Applies the next event. An event without the fields that its kind requires changes nothing.
    pub fn apply(&mut self, event: &Event) {
        match event.kind.as_str() {
            kind::CREATED | kind::UPDATED => self.settings(event),
            kind::FORKED => {
                // It has all settings of the fork, so what it does not name is not set. An imported record has none.
                if event.read::<Settings>().is_some_and(|settings| settings.parent.is_some()) {
                    self.prompt = None;
                }
                self.settings(event);
                // A turn that was open in the parent is never finished in the fork.
                self.open.clear();
            }
            kind::MESSAGE | kind::TOOL_RESULT => {
                if let Some(turn) = event.turn.filter(|turn| turn.0 == event.id.0) {
                    self.said(TurnPlace::new(turn, event.seq), event);
                }
            }
            kind::OPENED => {
                if let Some(turn) = event.turn.filter(|turn| turn.0 == event.id.0) {
                    self.open.push(TurnPlace::new(turn, event.seq));
                }
            }
            kind::COMMITTED | kind::ABORTED | kind::INTERRUPTED => {
                match event.turn.and_then(|turn| take(&mut self.open, turn)) {
                    Some(place) if event.kind == kind::ABORTED => {
                        if self.aborted.len() == RECENT_TURNS_MAX {
                            self.aborted.remove(0);
                        }
                        self.aborted.push(place);
                    }
                    Some(place) => self.said(place, event),
                    None => {}
                }
            }
            kind::SUPERSEDED => {
                if let (Some(turn), Some(SupersededBody { by })) = (event.turn, event.read()) {
                    self.tools.retain(|tool| tool.turn != Some(turn));
                    self.keep_calls(turn, by);
                    self.facts.retain(|fact| fact.turn != Some(turn));
                    self.replace(turn, by);
                    self.projection = None;
                }
            }
            kind::ERASED => {
                if let Some(ErasedBody { turns, answered, .. }) = event.read() {
                    self.facts.retain(|fact| fact.turn.is_none_or(|turn| !turns.contains(&turn)));
                    turns.into_iter().for_each(|turn| self.forget(turn));
                    // Their results were erased: they stay answered, also in an edit that keeps them.
                    let is_answered =
                        |tool: &mut Tool| tool.id.as_ref().is_some_and(|id| answered.contains(id));
                    let of_erased = self.tools.extract_if(.., is_answered);
                    self.answered.extend(of_erased.filter(|tool| tool.turn.is_some()));
                }
            }
            kind::PIN => {
                if let Some(PinBody { name, value: Some(_) }) = event.read() {
                    self.pins.insert(name, event.seq);
                }
            }
            kind::UNPIN => {
                if let Some(PinBody { name, .. }) = event.read() {
                    self.pins.remove(&name);
                }
            }
            kind::SCRATCHPAD_SET => {
                if let Some(PinBody { name, value: Some(_) }) = event.read() {
                    self.scratchpads.insert(name, event.seq);
                }
            }
            kind::SCRATCHPAD_CLEAR => {
                if let Some(PinBody { name, .. }) = event.read() {
                    self.scratchpads.remove(&name);
                }
            }
            kind::APPROVAL_REQUESTED => {
                if let Some(ApprovalBody { approval_id: id, deadline, .. }) = event.read() {
                    self.approvals.retain(|waiting| waiting.id != id);
                    self.resolved.retain(|resolved| resolved.id != id);
                    push(&mut self.approvals, Waiting { id, seq: event.seq, deadline });
                }
            }
            kind::APPROVAL_RESOLVED => {
                if let Some(ApprovalBody { approval_id: id, .. }) = event.read()
                    && let Some(index) = self.approvals.iter().position(|waiting| waiting.id == id)
                {
                    self.approvals.remove(index);
                    if self.resolved.len() == RESOLVED_MAX {
                        self.resolved.remove(0);
                    }
                    self.resolved.push(Waiting { id, seq: event.seq, deadline: None });
                }
            }
            kind::TOOL_STARTED => {
                if let Some(ToolBody { tool_call_id, tool_name, .. }) = event.read()
                    && !self.tools.iter().any(|tool| tool.id.as_deref() == Some(&tool_call_id))
                {
                    let name = tool_name.unwrap_or_else(|| "tool".into());
                    let (seq, at) = (event.seq, event.at);
                    let tool = Tool { id: Some(tool_call_id), name, turn: None, seq, place: seq, at };
                    let given_up = self.revived(|given_up| given_up.id == tool.id);
                    // The call runs again, since now.
                    let tool = match given_up.map(|index| self.abandoned.remove(index)) {
                        Some(abandoned) => Tool { at, ..abandoned.tool },
                        None => tool,
                    };
                    push(&mut self.tools, tool);
                }
            }
            kind::TOOL_ABANDONED => {
                if let Some(body) = event.read::<AbandonedBody>()
                    && let Some(index) = self.tools.iter().position(|tool| tool.is_given_up_by(event, &body))
                {
                    let abandoned = Abandoned { tool: self.tools.remove(index), seq: Some(event.seq) };
                    push(&mut self.abandoned, abandoned);
                }
            }
            kind::TOOL_FINISHED => {
                if let Some(ToolBody { tool_call_id, .. }) = event.read() {
                    let is_it = |tool: &mut Tool| tool.id.as_deref() == Some(&tool_call_id);
                    let finished = self.tools.extract_if(.., is_it);
                    self.answered.extend(finished.filter(|tool| tool.turn.is_some()));
                }
            }
            kind::COMPACTION | kind::BUDGET => {
                everturn_core::write::move_view(event, &mut self.checkpoint, &mut self.budget)
            }
            kind if kind::is_fact(kind) => {
                self.facts.push(StatementRef { seq: event.seq, turn: event.turn });
            }
            kind::FACTS_READ => {
                if let Some(ReadBody { from_seq, to_seq, .. }) = event.read() {
                    self.mark_read(from_seq, to_seq.min(event.seq));
                }
            }
            kind::RECEIPT => self.receipt = Some(event.seq),
            kind::PROJECTION => self.projection = Some(event.seq),
            _ => {}
        }
        self.through_seq = event.seq;
        self.updated = self.updated.max(event.at);
    }

    /// Records a finished turn: its calls are pending from now on, and the calls that it answers no longer are.
    fn said(&mut self, place: TurnPlace, event: &Event) {
        self.insert_recent(place);
        // Most turns have neither calls nor results, and parsing each would slow every fold.
        if event.role != Some(Role::Tool) && !event.text().is_some_and(speaks_of_tools) {
            return;
        }
        let Some(message) = event.read::<TurnBody>().and_then(|body| body.message?.read::<Value>()) else {
            return;
        };
        let pairs = pairing::pair([&message]);
        for result in pairs.results.iter().filter(|result| result.call.is_none()) {
            let named = |tool: &Tool| result.name.is_none_or(|name| name == tool.name);
            let answers = |tool: &Tool| match result.id {
                Some(id) => tool.id.as_deref() == Some(id),
                None => tool.id.is_none() && named(tool),
            };
            if let Some(answered) = self.tools.iter().position(answers) {
                self.answered.push(self.tools.remove(answered));
            } else if let Some(revived) = self.revived(answers) {
                self.answered.push(self.abandoned.remove(revived).tool);
            } else if result.id.is_none() && matches!(&self.tools[..], [only] if named(only)) {
                // Without an id, it belongs to the only call that waits.
                self.answered.append(&mut self.tools);
            }
        }
        for CallRef { id, name, .. } in pairs.calls.iter().filter(|call| call.result.is_none()) {
            let id = id.map(str::to_string);
            // It may have been announced as started before the turn that called it was complete.
            self.tools.retain(|tool| id.is_none() || tool.id != id);
            let TurnPlace { turn, seq, place } = place;
            let tool = Tool { id, name: name.to_string(), turn: Some(turn), seq, place, at: event.at };
            push(&mut self.tools, tool);
        }
    }

    /// The abandoned call that a late result answers: of several with its id the nearest, as in prompts.
    fn revived(&self, answers: impl Fn(&Tool) -> bool) -> Option<usize> {
        let those = self.abandoned.iter().enumerate().filter(|(_, given_up)| answers(&given_up.tool));
        let nearest = those.clone().filter(|(_, given_up)| given_up.tool.id.is_some());
        nearest.max_by_key(|(_, given_up)| given_up.tool.place).or(those.clone().next()).map(|(at, _)| at)
    }

    /// Adds a turn to the recent ones. A streamed turn, or one that replaces another, may belong before turns that
    /// are here already.
    fn insert_recent(&mut self, place: TurnPlace) {
        let at = self.recent.partition_point(|other| other.place < place.place);
        self.recent.insert(at, place);
        if self.recent.len() > RECENT_TURNS_MAX {
            self.recent.remove(0);
            self.answered.retain(|tool| self.recent.iter().any(|place| Some(place.turn) == tool.turn));
        }
    }

    /// Has the calls that an edit keeps answered or given up as they were: their results stand behind the new turn. So do
    /// those of calls that it leaves out, for another edit that brings them back.
    fn keep_calls(&mut self, turn: TurnId, by: TurnId) {
        let is_listed = |list: &[TurnPlace]| list.iter().any(|place| place.turn == turn);
        if !is_listed(&self.recent) && !is_listed(&self.aborted) {
            // It is older than all recent turns, and so are its results.
            self.tools.retain(|tool| tool.turn != Some(by));
        }
        let mut kept: Vec<Tool> = self.tools.extract_if(.., |tool| tool.turn == Some(by)).collect();
        let given_up = self.abandoned.iter_mut().map(|abandoned| &mut abandoned.tool);
        for old in self.answered.iter_mut().chain(given_up).filter(|old| old.turn == Some(turn)) {
            match kept.iter().position(|new| new.id == old.id && new.name == old.name) {
                Some(at) => *old = kept.remove(at),
                None => old.turn = Some(by),
            }
        }
        self.tools.append(&mut kept);
    }

    /// Applies the next event, and returns the calls that it answers, finishes or gives up.
    pub fn settle(&mut self, event: &Event) -> Vec<Tool> {
        let (tools, abandoned) = (self.tools.clone(), self.abandoned.clone());
        self.apply(event);
        let waits = |tool: &Tool| {
            let is_same = |other: &Tool| other == tool || other.id.is_some() && other.id == tool.id;
            self.tools.iter().any(is_same)
        };
        let revived = abandoned.into_iter().filter(|abandoned| !self.abandoned.contains(abandoned));
        tools.into_iter().chain(revived.map(|revived| revived.tool)).filter(|tool| !waits(tool)).collect()
    }

    /// Moves a turn to the place of the one that it replaces; see [`reading`](crate::reading).
    fn replace(&mut self, turn: TurnId, by: TurnId) {
        // A turn that is not listed here is older than all recent ones.
        let replaced = take(&mut self.recent, turn).or_else(|| take(&mut self.aborted, turn));
        let before = replaced.map_or(0, |replaced| replaced.place);
        let given_up = self.abandoned.iter_mut().map(|abandoned| &mut abandoned.tool);
        for tool in self.tools.iter_mut().chain(given_up).filter(|tool| tool.turn == Some(by)) {
            tool.place = tool.place.min(before);
        }
        for waiting in self.open.iter_mut().chain(&mut self.aborted).filter(|waiting| waiting.turn == by) {
            waiting.place = waiting.place.min(before);
        }
        if let Some(successor) = take(&mut self.recent, by).filter(|_| replaced.is_some()) {
            self.insert_recent(TurnPlace { place: successor.place.min(before), ..successor });
        }
    }

    /// Ranges of the log up to `through` that were not read for facts.
    pub fn unread(&self, through: u64) -> Vec<(u64, u64)> {
        let mut parts = Vec::new();
        let mut from = 1;
        for (first, last) in &self.read {
            parts.push((from, through.min(first.saturating_sub(1))));
            from = last.saturating_add(1);
        }
        parts.push((from, through));
        parts.retain(|(from, to)| from <= to);
        parts
    }

    fn mark_read(&mut self, from: u64, to: u64) {
        if from > to {
            return;
        }
        self.read.push((from, to));
        self.read.sort_unstable();
        let parts = std::mem::take(&mut self.read);
        for (from, to) in parts {
            match self.read.last_mut() {
                Some((_, end)) if from <= end.saturating_add(1) => *end = to.max(*end),
                _ => self.read.push((from, to)),
            }
        }
    }

    /// The fold as of a time: approvals whose deadline has passed no longer wait, and calls that wait longer than `after_s`
    /// are given up. What the log says of them later is the same.
    pub fn as_of(mut self, now: Timestamp, after_s: Option<u64>) -> Fold {
        self.approvals.retain(|waiting| !waiting.is_due(now));
        if let Some(after_s) = after_s {
            let due = self.tools.extract_if(.., |tool| tool.is_due(now, after_s));
            self.abandoned.extend(due.map(|tool| Abandoned { tool, seq: None }));
        }
        self
    }

    /// Removes the calls of an erased turn.
    fn forget(&mut self, turn: TurnId) {
        self.tools.retain(|tool| tool.turn != Some(turn));
        self.answered.retain(|tool| tool.turn != Some(turn));
        self.abandoned.retain(|abandoned| abandoned.tool.turn != Some(turn));
    }

    fn settings(&mut self, event: &Event) {
        let Some(settings) = event.read::<Settings>() else { return };
        if let Some(prompt) = &settings.system_prompt {
            self.prompt = prompt.as_ref().map(|_| event.seq);
        }
    }
}

/// Whether a message or body may have tool calls or results, or be about some.
pub fn speaks_of_tools(text: &str) -> bool {
    // The last is for Gemini's `functionCall` and `functionResponse`.
    text.contains("tool") || text.contains("_call") || text.contains("\"function")
}

/// Removes a turn from a list of turns.
fn take(list: &mut Vec<TurnPlace>, turn: TurnId) -> Option<TurnPlace> {
    list.iter().position(|place| place.turn == turn).map(|at| list.remove(at))
}

fn push<T>(list: &mut Vec<T>, entry: T) {
    if list.len() == PENDING_MAX {
        list.remove(0);
    }
    list.push(entry);
}

/// State of a conversation: the minimum needed to continue.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct State {
    /// The version of this format.
    pub version: u32,
    /// `seq` of the last event it covers.
    pub through_seq: u64,
    /// The newest turns that no checkpoint covers, oldest first; at most 64.
    pub recent_turn_ids: Vec<TurnId>,
    /// The last turn that a checkpoint covers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summarized_through: Option<TurnId>,
    /// The checkpoint in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
    /// Approvals that are not answered yet.
    pub pending_approvals: Vec<PendingApproval>,
    /// Tool calls without a result.
    pub pending_tools: Vec<PendingTool>,
    /// Pins, by name: values that must stay exact.
    pub pins: BTreeMap<String, PinnedValue>,
    /// Scratchpads, by name: working memory of agents.
    pub scratchpads: BTreeMap<String, Scratchpad>,
    /// Open turns.
    pub open_turns: Vec<TurnId>,
    /// Time of the last event.
    pub updated: Timestamp,
}

/// A pending approval.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct PendingApproval {
    /// Its id.
    pub approval_id: String,
    /// Id of the call that waits for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Name of the tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_name: Option<String>,
    /// Question for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    /// Actor that requested it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested_by: Option<String>,
    /// Time at which it expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// Always `pending`: resolved ones are not in the list.
    pub state: Approval,
    /// `seq` of the request.
    pub requested_seq: u64,
}

/// A tool call without a result.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct PendingTool {
    /// Id of the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Name of the tool.
    pub tool_name: String,
    /// Description of the call.
    pub summary: String,
    /// `seq` of the call, or of its start.
    pub since_seq: u64,
}

/// A pinned value.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Pin")]
pub struct PinnedValue {
    /// The value.
    pub value: Raw,
    /// `seq` of the event that set it.
    pub seq: u64,
}

/// Working memory of an agent.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Scratchpad {
    /// The value.
    pub value: Raw,
    /// `seq` of the event that set it, which is its version.
    pub seq: u64,
}

impl PendingApproval {
    /// Reads it from the event that requested it.
    #[doc(hidden)]
    pub fn read(waiting: &Waiting, event: Option<&Event>) -> PendingApproval {
        let body = event.and_then(Event::read::<ApprovalBody>).unwrap_or_default();
        PendingApproval {
            approval_id: waiting.id.clone(),
            tool_call_id: body.tool_call_id,
            tool_name: body.tool_name,
            question: body.question,
            requested_by: event.and_then(|event| event.actor.clone()),
            deadline: waiting.deadline,
            state: Approval::Pending,
            requested_seq: waiting.seq,
        }
    }
}

impl PendingTool {
    /// Reads it from the turn that called it.
    #[doc(hidden)]
    pub fn called(tool: &Tool, message: Option<&Value>) -> PendingTool {
        let arguments = message.and_then(|message| {
            let calls = pairing::pair([message]).calls;
            let call = calls.iter().find(|call| call.name == tool.name && call.id == tool.id.as_deref())?;
            call.arguments().map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_string))
        });
        PendingTool::new(tool, arguments)
    }

    /// Reads it from the event that announced it.
    #[doc(hidden)]
    pub fn announced(tool: &Tool, event: Option<&Event>) -> PendingTool {
        PendingTool::new(tool, event.and_then(Event::read::<ToolBody>).and_then(|body| body.summary))
    }

    fn new(tool: &Tool, summary: Option<String>) -> PendingTool {
        PendingTool {
            tool_call_id: tool.id.clone(),
            tool_name: tool.name.clone(),
            summary: clip(&summary.unwrap_or_default()),
            since_seq: tool.seq,
        }
    }
}

impl State {
    /// The state as text: first the checkpoint, then pins and pending items.
    pub fn render(&self) -> String {
        self.render_within(usize::MAX, usize::MAX)
    }

    /// The state as text for a prompt, which is the same with few short approvals. Frozen: receipts are replayed with it.
    #[doc(hidden)]
    pub fn render_for_prompt(&self) -> String {
        self.render_within(APPROVALS_SHOWN_MAX, QUESTION_SHOWN_BYTES_MAX)
    }

    fn render_within(&self, approvals: usize, text_bytes: usize) -> String {
        let mut sections = Vec::new();
        if let Some(checkpoint) = &self.checkpoint {
            sections.push(format!("## Summary of earlier turns\n\n{}", compaction::render(checkpoint)));
        }
        let mut list = |title: &str, lines: Vec<String>| {
            if !lines.is_empty() {
                sections.push(format!("## {title}\n\n{}", lines.join("\n")));
            }
        };
        let pins = self.pins.iter();
        list(
            "Pinned: true now, whatever was said before",
            pins.map(|(name, pin)| format!("- {name}: {}", plain(&pin.value))).collect(),
        );
        let scratchpads = self.scratchpads.iter();
        list(
            "Scratchpads",
            scratchpads.map(|(name, pad)| format!("### {name}\n\n{}\n", plain(&pad.value))).collect(),
        );
        let approval = |waiting: &PendingApproval| {
            let what =
                waiting.question.as_deref().or(waiting.tool_name.as_deref()).unwrap_or("no question given");
            let shown = |text: &str| match text.floor_char_boundary(text_bytes) {
                end if end < text.len() => format!("{} …", &text[..end]),
                _ => text.to_string(),
            };
            format!("- {} ({})", shown(what), shown(&waiting.approval_id))
        };
        let mut waiting: Vec<String> = self.pending_approvals.iter().take(approvals).map(approval).collect();
        if self.pending_approvals.len() > approvals {
            waiting.push(format!("- … and {} more", self.pending_approvals.len() - approvals));
        }
        list("Approvals that wait for an answer", waiting);
        let tool = |tool: &PendingTool| {
            let id = tool.tool_call_id.as_ref().map(|id| format!(" ({id})")).unwrap_or_default();
            format!("- {}{id}: {}", tool.tool_name, tool.summary)
        };
        list("Tools that have not answered yet", self.pending_tools.iter().map(tool).collect());
        sections.join("\n\n")
    }
}

/// The value of a pin or scratchpad: a string without its quotes, anything else as JSON.
fn plain(value: &Raw) -> String {
    value.read::<String>().unwrap_or_else(|| value.get().to_string())
}
