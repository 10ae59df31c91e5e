//! The state of a conversation, and what callers set in it: pins, scratchpads, approvals, tools.

use super::ConversationHandle;
use crate::writer::Commit;
use everturn_core::Error;
use everturn_core::conversation::CheckpointRef;
use everturn_core::event::{Event, kind};
use everturn_core::json::Raw;
use everturn_views::compaction::{Checkpoint, CompactionBody};
use everturn_views::state::{
    Approval, ApprovalBody, Fold, PINS_MAX, PendingApproval, PendingTool, Pin, PinBody, SCRATCHPADS_MAX,
    Scratchpad, State, ToolBody, VERSION,
};
use std::collections::BTreeMap;

/// The state of a conversation.
pub struct ConversationState<'a>(pub(crate) &'a ConversationHandle);

impl ConversationState<'_> {
    /// State as of the last event.
    pub fn read(&self) -> Result<State, Error> {
        let head = self.0.shared().journal.index.conversation(self.0.key())?.head.seq;
        let fold = self.0.shared().fold(self.0.key(), head)?;
        self.0.read_state(&fold)
    }

    /// State as of a `seq`.
    pub fn at(&self, seq: u64) -> Result<State, Error> {
        let conversation = self.0.shared().journal.index.conversation(self.0.key())?;
        if seq == 0 || seq > conversation.head.seq {
            return Err(everturn_core::write::no_such_seq(&conversation, seq));
        }
        let fold = self.0.shared().fold(self.0.key(), seq)?;
        self.0.read_state(&fold)
    }

    /// Pins a value: every prompt includes it until it is unpinned or replaced, whatever is summarized.
    pub fn pin(&self, name: &str, value: impl serde::Serialize) -> Commit<Event> {
        let pinned = (|| {
            let limit = ("PINS_MAX", PINS_MAX, "unpin what no longer holds");
            self.0.check_room(name, |fold| &fold.pins, limit)?;
            Raw::of(&PinBody { name: name.to_string(), value: Some(Raw::of(&value)?) })
        })();
        match pinned {
            Ok(body) => self.0.append_event(kind::PIN, None, body),
            Err(error) => Commit::ready(Err(error)),
        }
    }

    /// Removes a pin.
    pub fn unpin(&self, name: &str) -> Commit<Event> {
        self.0.state_event(kind::UNPIN, &PinBody { name: name.to_string(), value: None })
    }

    /// Sets a scratchpad, the working memory of an agent. Every prompt carries it until it is cleared, and
    /// projections with `reachability_gc` keep the tool results that it names.
    pub fn set_scratchpad(&self, name: &str, value: impl serde::Serialize) -> Commit<Event> {
        match Raw::of(&value) {
            Ok(value) => {
                let body = PinBody { name: name.to_string(), value: Some(value) };
                self.0.state_event(kind::SCRATCHPAD_SET, &body)
            }
            Err(error) => Commit::ready(Err(error)),
        }
    }

    /// Clears a scratchpad.
    pub fn clear_scratchpad(&self, name: &str) -> Commit<Event> {
        self.0.state_event(kind::SCRATCHPAD_CLEAR, &PinBody { name: name.to_string(), value: None })
    }

    /// Requests an approval: it is pending until [`resolve_approval`](ConversationState::resolve_approval).
    pub fn request_approval(&self, request: ApprovalBody) -> Commit<Event> {
        self.0.state_event(kind::APPROVAL_REQUESTED, &request)
    }

    /// Resolves an approval.
    pub fn resolve_approval(&self, approval_id: &str, state: Approval) -> Commit<Event> {
        let body =
            ApprovalBody { approval_id: approval_id.into(), state: Some(state), ..ApprovalBody::default() };
        self.0.state_event(kind::APPROVAL_RESOLVED, &body)
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
}

impl ConversationHandle {
    /// Adds the text from the log to a fold. Erased text is absent.
    pub(crate) fn read_state(&self, fold: &Fold) -> Result<State, Error> {
        let checkpoint = self.checkpoint(fold.checkpoint)?;
        let after = fold.checkpoint.map_or(0, |at| at.through_seq);
        let pins = self.named(&fold.pins, |value, seq| Pin { value, seq })?;
        let mut pending_approvals = Vec::new();
        for waiting in &fold.approvals {
            pending_approvals.push(PendingApproval::read(waiting, self.event_at(waiting.seq)?.as_ref()));
        }
        let mut pending_tools = Vec::new();
        for tool in &fold.tools {
            pending_tools.push(match tool.turn {
                Some(turn) => {
                    let whole = self.shared().journal.index.turn_in(self.key(), turn)?;
                    let turn = self.tenant.viewer().turn(whole.clone());
                    let is_in = |message: &Raw| tool.id.as_ref().is_some_and(|id| message.get().contains(id));
                    // Not even the name of a private call is for others.
                    if turn.message != whole.message && !turn.message.as_ref().is_some_and(is_in) {
                        continue;
                    }
                    PendingTool::called(tool, turn.value().as_ref())
                }
                None => PendingTool::announced(tool, self.event_at(tool.seq)?.as_ref()),
            });
        }
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

    /// Refuses to set a scratchpad that would be one too many. Checked for every such event, because the HTTP API
    /// sets scratchpads by appending events.
    pub(crate) fn check_scratchpads(&self, kind: &str, body: &Raw) -> Result<(), Error> {
        if kind != kind::SCRATCHPAD_SET {
            return Ok(());
        }
        let Some(PinBody { name, .. }) = body.read() else { return Ok(()) };
        let limit = ("SCRATCHPADS_MAX", SCRATCHPADS_MAX, "clear a scratchpad that is no longer needed");
        self.check_room(&name, |fold| &fold.scratchpads, limit)
    }

    /// Whether there is room for a pin or scratchpad of this name. `limit` is the name of the limit, its value and
    /// advice for the caller.
    fn check_room(
        &self,
        name: &str,
        list: fn(&Fold) -> &BTreeMap<String, u64>,
        (limit, max, advice): (&'static str, usize, &str),
    ) -> Result<(), Error> {
        let head = self.shared().journal.conversation(self.key())?.head.seq;
        let fold = self.shared().fold(self.key(), head)?;
        let list = list(&fold);
        if list.len() >= max && !list.contains_key(name) {
            return Err(Error::limit(limit, max as u64, list.len() as u64 + 1, advice));
        }
        Ok(())
    }

    fn state_event(&self, kind: &str, body: &impl serde::Serialize) -> Commit<Event> {
        match Raw::of(body) {
            Ok(body) => self.append_event(kind, None, body),
            Err(error) => Commit::ready(Err(error)),
        }
    }
}
