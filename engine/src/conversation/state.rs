//! The state of a conversation: pins, scratchpads, approvals, tools.

use super::ConversationHandle;
use crate::writer::Commit;
use everturn_core::Error;
use everturn_core::approval::{self, Approval, ApprovalBody};
use everturn_core::conversation::CheckpointRef;
use everturn_core::event::{Draft, Event, Visibility, kind};
use everturn_core::id::clip;
use everturn_core::json::{self, Raw};
use everturn_core::limits::APPROVALS_PENDING_MAX;
use everturn_core::pairing;
use everturn_core::time::Timestamp;
use everturn_core::viewer::{audience_of, audience_of_event};
use everturn_core::write::Action;
use everturn_views::compaction::{Checkpoint, CompactionBody};
use everturn_views::state::{
    Fold, PINS_MAX, PendingApproval, PendingTool, PinBody, PinnedValue, SCRATCHPADS_MAX, Scratchpad, State,
    Tool, ToolBody, VERSION, Waiting,
};
use std::collections::{BTreeMap, BTreeSet};

/// The outcome of an approval.
#[derive(Clone, Debug)]
pub struct ApprovalOutcome {
    /// The approval.
    pub approval_id: String,
    /// Approved, denied, cancelled or expired.
    pub state: Approval,
    /// Actor that decides.
    pub actor: Option<String>,
    /// Reason for the outcome.
    pub reason: Option<String>,
}

impl ApprovalOutcome {
    /// An outcome without an actor and a reason.
    pub fn new(approval_id: impl Into<String>, state: Approval) -> ApprovalOutcome {
        ApprovalOutcome { approval_id: approval_id.into(), state, actor: None, reason: None }
    }
}

/// The state of a conversation.
pub struct ConversationState<'a>(pub(crate) &'a ConversationHandle);

impl ConversationState<'_> {
    /// State as of the last event.
    pub fn read(&self) -> Result<State, Error> {
        let conversation = self.0.shared().journal.index.conversation(self.0.key())?;
        let fold = self.0.fold_now(&conversation)?;
        self.0.read_state(&fold, self.0.shared().now())
    }

    /// State as of a `seq`.
    pub fn at(&self, seq: u64) -> Result<State, Error> {
        let conversation = self.0.shared().journal.index.conversation(self.0.key())?;
        if seq == 0 || seq > conversation.head.seq {
            return Err(everturn_core::write::no_such_seq(&conversation, seq));
        }
        let fold = self.0.shared().fold(self.0.key(), seq)?;
        self.0.read_state(&fold, fold.updated)
    }

    /// Pins a value: every prompt includes it until it is unpinned or replaced, even after a compaction.
    pub fn pin(&self, name: &str, value: impl serde::Serialize) -> Commit<Event> {
        self.0.set(kind::PIN, name, value)
    }

    /// Removes a pin.
    pub fn unpin(&self, name: &str) -> Commit<Event> {
        self.0.state_event(kind::UNPIN, &PinBody { name: name.to_string(), value: None })
    }

    /// Sets a scratchpad, the working memory of an agent. Every prompt carries it until it is cleared, and
    /// projections with `reachability_gc` keep the tool results that it names.
    pub fn set_scratchpad(&self, name: &str, value: impl serde::Serialize) -> Commit<Event> {
        self.0.set(kind::SCRATCHPAD_SET, name, value)
    }

    /// Clears a scratchpad.
    pub fn clear_scratchpad(&self, name: &str) -> Commit<Event> {
        self.0.state_event(kind::SCRATCHPAD_CLEAR, &PinBody { name: name.to_string(), value: None })
    }

    /// Requests an approval: it is pending until [`resolve_approval`](ConversationState::resolve_approval), or until its
    /// deadline.
    pub fn request_approval(&self, request: ApprovalBody, actor: Option<String>) -> Commit<Event> {
        self.0.log().append(kind::APPROVAL_REQUESTED, actor, &request)
    }

    /// Resolves an approval. Of two resolutions, the first wins; the other is a conflict that names it.
    pub fn resolve_approval(&self, resolution: ApprovalOutcome) -> Commit<Event> {
        let ApprovalOutcome { approval_id, state, actor, reason } = resolution;
        let body = ApprovalBody { approval_id, state: Some(state), reason, ..ApprovalBody::default() };
        self.0.log().append(kind::APPROVAL_RESOLVED, actor, &body)
    }

    /// Records that a tool runs: it is pending until [`tool_finished`](ConversationState::tool_finished), or until a
    /// turn brings its result.
    pub fn tool_started(&self, tool: ToolBody) -> Commit<Event> {
        self.0.state_event(kind::TOOL_STARTED, &tool)
    }

    /// Records that a tool has finished, or will never return a result.
    pub fn tool_finished(&self, tool: ToolBody) -> Commit<Event> {
        self.0.state_event(kind::TOOL_FINISHED, &tool)
    }

    /// Gives up a pending tool call: nothing waits for its result any longer, and prompts contain a result that says so.
    /// A result that comes later counts. `call` is the call's id, or the name of the tool if the call has none.
    pub fn abandon_tool(
        &self,
        call: &str,
        actor: Option<String>,
        reason: Option<&str>,
    ) -> Result<Event, Error> {
        let head = self.0.shared().journal.conversation(self.0.key())?.head.seq;
        let fold = self.0.shared().fold(self.0.key(), head)?;
        let waiting = self.0.also_as(actor.as_ref())?.pending_tools(&fold.tools)?;
        let is_it = |tool: &&Tool| tool.id.as_deref().unwrap_or(&tool.name) == call;
        let tool = waiting.iter().map(|(tool, _)| *tool).find(is_it).ok_or_else(|| {
            let named = |(tool, _): &(&Tool, PendingTool)| match &tool.id {
                Some(id) => format!("{} ({})", clip(id), clip(&tool.name)),
                None => clip(&tool.name),
            };
            let others: Vec<String> = waiting.iter().map(named).collect();
            let others = match others.is_empty() {
                true => "none does".to_string(),
                false => format!("these do: {}", others.join(", ")),
            };
            let text = format!("no tool call {:?} waits for a result; {others}", clip(call));
            Error::not_found("tool_call.absent", text)
        })?;
        let mut events = self.0.abandon(std::slice::from_ref(tool), actor, reason)?;
        events.pop().ok_or_else(crate::writer::closed)
    }
}

impl ConversationHandle {
    /// Adds the text from the log to a fold. Erased text is absent, and so are approvals that have expired by then.
    pub(crate) fn read_state(&self, fold: &Fold, now: Timestamp) -> Result<State, Error> {
        let checkpoint = self.checkpoint(fold.checkpoint)?;
        let after = fold.checkpoint.map_or(0, |at| at.through_seq);
        let pins = self.named(&fold.pins, |value, seq| PinnedValue { value, seq })?;
        let mut pending_approvals = Vec::new();
        for waiting in fold.approvals.iter().filter(|waiting| !waiting.is_due(now)) {
            let event = self.event_at(waiting.seq)?;
            if event.as_ref().is_none_or(|event| !event.hidden) {
                pending_approvals.push(PendingApproval::read(waiting, event.as_ref()));
            }
        }
        let waiting = fold.tools_in_order();
        let pending_tools = self.pending_tools(waiting)?.into_iter().map(|(_, tool)| tool).collect();
        Ok(State {
            version: VERSION,
            through_seq: fold.through_seq,
            recent_turn_ids: fold.recent.iter().filter(|p| p.place > after).map(|place| place.turn).collect(),
            summarized_through: fold.checkpoint.map(|at| at.through),
            checkpoint,
            pending_approvals,
            pending_tools,
            pins,
            scratchpads: self.scratchpads(fold)?,
            open_turns: fold.open.iter().map(|place| place.turn).collect(),
            updated: fold.updated,
        })
    }

    /// Those of these tool calls without a result that the caller may see.
    pub(crate) fn pending_tools<'a>(
        &self,
        tools: impl IntoIterator<Item = &'a Tool>,
    ) -> Result<Vec<(&'a Tool, PendingTool)>, Error> {
        let mut pending = Vec::new();
        for tool in tools {
            pending.extend(self.pending_tool(tool)?.map(|shown| (tool, shown)));
        }
        Ok(pending)
    }

    /// A tool call without a result; `None` if the caller may not see it. Not even the name of a private call is for others.
    pub(crate) fn pending_tool(&self, tool: &Tool) -> Result<Option<PendingTool>, Error> {
        let Some(turn) = tool.turn else {
            let event = self.event_at(tool.seq)?;
            let is_hidden = event.as_ref().is_some_and(|event| event.hidden);
            return Ok((!is_hidden).then(|| PendingTool::announced(tool, event.as_ref())));
        };
        let turn = self.tenant.viewer().turn(self.shared().journal.index.turn_in(self.key(), turn)?);
        let message = turn.value();
        let is_shown = !turn.hidden
            || message.as_ref().is_some_and(|message| {
                let calls = pairing::pair([message]).calls;
                calls.iter().any(|call| call.id == tool.id.as_deref() && call.name == tool.name)
            });
        Ok(is_shown.then(|| PendingTool::called(tool, message.as_ref())))
    }

    /// The scratchpads in force.
    pub(crate) fn scratchpads(&self, fold: &Fold) -> Result<BTreeMap<String, Scratchpad>, Error> {
        self.named(&fold.scratchpads, |value, seq| Scratchpad { value, seq })
    }

    /// Pins or scratchpads with their values, read from the events that set them. Erased ones are absent.
    fn named<T>(
        &self,
        seqs: &BTreeMap<String, u64>,
        of: fn(Raw, u64) -> T,
    ) -> Result<BTreeMap<String, T>, Error> {
        let mut named = BTreeMap::new();
        for (name, seq) in seqs {
            if let Some(PinBody { value: Some(value), .. }) = self.event_at(*seq)?.and_then(|e| e.read()) {
                named.insert(name.clone(), of(value, *seq));
            }
        }
        Ok(named)
    }

    /// Checkpoint of a compaction; `None` if there was none, or it was erased.
    pub(crate) fn checkpoint(&self, at: Option<CheckpointRef>) -> Result<Option<Checkpoint>, Error> {
        let Some(at) = at else { return Ok(None) };
        let body = self.event_at(at.seq)?.and_then(|event| event.read::<CompactionBody>());
        Ok(body.and_then(|body| body.checkpoint))
    }

    pub(crate) fn event_at(&self, seq: u64) -> Result<Option<Event>, Error> {
        let page = self.events(seq.saturating_sub(1), 1)?;
        Ok(page.into_iter().next().filter(|event| event.seq == seq))
    }

    /// The request to store a request or resolution of an approval. The store decides which of two comes first; a conflict that
    /// is visible already is refused here.
    pub(super) fn approve(&self, mut drafts: Vec<Draft>, body: &Raw) -> Result<Action, Error> {
        let draft = drafts.last_mut().ok_or_else(crate::writer::closed)?;
        let head = self.shared().journal.index.conversation(self.key())?.head.seq;
        let fold = self.shared().fold(self.key(), head)?;
        let about: ApprovalBody = body.read().unwrap_or_default();
        if draft.kind == kind::APPROVAL_REQUESTED {
            check_segment("approval_id", &about.approval_id)?;
        }
        if draft.kind == kind::APPROVAL_REQUESTED
            && about.deadline.is_some_and(|deadline| deadline <= draft.at)
        {
            let text = "the deadline has passed already; give a later time";
            return Err(Error::invalid("approval.deadline", text));
        }
        let waiting = fold.approvals.iter().filter(|waiting| !waiting.is_due(draft.at)).count();
        if draft.kind == kind::APPROVAL_REQUESTED && waiting >= APPROVALS_PENDING_MAX {
            let (limit, got) = (APPROVALS_PENDING_MAX as u64, waiting as u64 + 1);
            return Err(Error::limit("APPROVALS_PENDING_MAX", limit, got, "resolve some first"));
        }
        let of = |list: &[Waiting]| list.iter().find(|at| at.id == about.approval_id).map(|at| at.seq);
        let (pending, resolved) = (of(&fold.approvals), of(&fold.resolved));
        let (chat, is_unbound) =
            (self.also_as(draft.actor.as_ref())?, self.tenant.caller().actors().is_empty());
        let at = |seq: Option<u64>| seq.map(|seq| chat.event_at(seq)).transpose().map(Option::flatten);
        let last_seq = resolved.or(pending);
        let (last, request) = (at(last_seq)?, at(pending)?);
        if last.as_ref().is_some_and(|last| last.hidden) {
            return Err(match draft.kind == kind::APPROVAL_REQUESTED {
                true => approval::exists(&about.approval_id),
                false => approval::absent(&about.approval_id),
            });
        }
        let audience = match &request {
            Some(request) => audience_of_event(request),
            None => {
                let is_it = |tool: &&Tool| tool.id.is_some() && tool.id == about.tool_call_id;
                match fold.tools.iter().find(is_it) {
                    // For a bound caller that cannot see the call, it is as any other id.
                    Some(tool) if is_unbound || chat.pending_tool(tool)?.is_some() => {
                        self.audience_of_call(tool)?
                    }
                    _ => None,
                }
            }
        };
        if let Some(audience) = audience {
            let audience: BTreeSet<String> = audience.into_iter().collect();
            // Of a private call, not even the question is for others.
            let others = json::fields(body.get()).into_iter().filter(|(name, _)| name != "audience");
            let mut fields: Vec<_> = others.map(|(name, value)| (name, value.to_string())).collect();
            fields.push(("audience".into(), Raw::of(&audience)?.get().to_string()));
            let fields = fields.iter().map(|(name, value)| (&**name, value.clone()));
            (draft.body.text, draft.visibility) = (json::object(fields), Visibility::Private);
        }
        approval::admit(draft, last.as_ref(), request.as_ref())?;
        Ok(Action::Approve { drafts, request: pending, last: last_seq, seen: fold.through_seq })
    }

    /// The actors that may know of a pending call, if it is not for everyone.
    fn audience_of_call(&self, tool: &Tool) -> Result<Option<Vec<String>>, Error> {
        if self.for_everyone().pending_tool(tool)?.is_some() {
            return Ok(None);
        }
        let Some(turn) = tool.turn else {
            let page = self.shared().journal.log.events(self.key(), tool.seq.saturating_sub(1), 1)?;
            return Ok(page.first().and_then(audience_of_event));
        };
        Ok(audience_of(&self.shared().journal.index.turn_in(self.key(), turn)?))
    }

    /// Refuses a pin or scratchpad above the limit. Checked for every event that sets one.
    pub(crate) fn check_room(&self, kind: &str, body: &Raw) -> Result<(), Error> {
        type Names = fn(&Fold) -> &BTreeMap<String, u64>;
        let (names, limit, max, advice): (Names, _, _, _) = match kind {
            kind::PIN => (|fold| &fold.pins, "PINS_MAX", PINS_MAX, "unpin values that are no longer needed"),
            kind::SCRATCHPAD_SET => {
                let advice = "clear a scratchpad that is no longer needed";
                (|fold| &fold.scratchpads, "SCRATCHPADS_MAX", SCRATCHPADS_MAX, advice)
            }
            _ => return Ok(()),
        };
        let Some(PinBody { name, .. }) = body.read() else { return Ok(()) };
        check_segment("name", &name)?;
        let head = self.shared().journal.conversation(self.key())?.head.seq;
        let fold = self.shared().fold(self.key(), head)?;
        let names = names(&fold);
        if names.len() >= max && !names.contains_key(&name) {
            return Err(Error::limit(limit, max as u64, names.len() as u64 + 1, advice));
        }
        Ok(())
    }

    fn set(&self, kind: &str, name: &str, value: impl serde::Serialize) -> Commit<Event> {
        match Raw::of(&value) {
            Ok(value) => self.state_event(kind, &PinBody { name: name.to_string(), value: Some(value) }),
            Err(error) => Commit::ready(Err(error)),
        }
    }

    fn state_event(&self, kind: &str, body: &impl serde::Serialize) -> Commit<Event> {
        match Raw::of(body) {
            Ok(body) => self.log().append(kind, None, body),
            Err(error) => Commit::ready(Err(error)),
        }
    }
}

/// Refuses a name that no URL can contain: a client would leave it out of the path.
fn check_segment(what: &str, name: &str) -> Result<(), Error> {
    match name {
        "." | ".." => Err(Error::invalid(
            "name.malformed",
            format!("{what} is {name:?}, which cannot be part of a URL path; choose another"),
        )),
        _ => Ok(()),
    }
}
