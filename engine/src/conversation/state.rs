//! The state of a conversation, and what callers set in it: pins, approvals, tools.

use super::ConversationHandle;
use crate::writer::Commit;
use everturn_core::Error;
use everturn_core::conversation::CheckpointRef;
use everturn_core::event::{Event, kind};
use everturn_core::json::Raw;
use everturn_views::compaction::{Checkpoint, CompactionBody};
use everturn_views::state::{
    Approval, ApprovalBody, Fold, PINS_MAX, PendingApproval, PendingTool, Pin, PinBody, State, ToolBody,
    VERSION,
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
            let head = self.0.shared().journal.conversation(self.0.key())?.head.seq;
            let fold = self.0.shared().fold(self.0.key(), head)?;
            if fold.pins.len() >= PINS_MAX && !fold.pins.contains_key(name) {
                let advice = "unpin what no longer holds";
                return Err(Error::limit("PINS_MAX", PINS_MAX as u64, fold.pins.len() as u64 + 1, advice));
            }
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
        let mut pins = BTreeMap::new();
        for (name, seq) in &fold.pins {
            if let Some(PinBody { value: Some(value), .. }) = self.event_at(*seq)?.and_then(|e| e.read()) {
                pins.insert(name.clone(), Pin { value, seq: *seq });
            }
        }
        let mut pending_approvals = Vec::new();
        for waiting in &fold.approvals {
            pending_approvals.push(PendingApproval::read(waiting, self.event_at(waiting.seq)?.as_ref()));
        }
        let mut pending_tools = Vec::new();
        for tool in &fold.tools {
            pending_tools.push(match tool.turn {
                Some(turn) => {
                    let turn = self.shared().journal.index.turn_in(self.key(), turn)?;
                    PendingTool::called(tool, turn.value().as_ref())
                }
                None => PendingTool::announced(tool, self.event_at(tool.seq)?.as_ref()),
            });
        }
        Ok(State {
            version: VERSION,
            through_seq: fold.through_seq,
            recent_turn_ids: fold.recent.iter().filter(|p| p.seq > after).map(|place| place.turn).collect(),
            summarized_through: fold.checkpoint.map(|at| at.through),
            checkpoint,
            pending_approvals,
            pending_tools,
            pins,
            open_turns: fold.open.iter().map(|place| place.turn).collect(),
            updated: fold.updated,
        })
    }

    /// Checkpoint of a compaction; `None` if there was none, or it was erased.
    pub(crate) fn checkpoint(&self, at: Option<CheckpointRef>) -> Result<Option<Checkpoint>, Error> {
        let Some(at) = at else { return Ok(None) };
        let body = self.event_at(at.seq)?.and_then(|event| event.read::<CompactionBody>());
        Ok(body.and_then(|body| body.checkpoint))
    }

    pub(crate) fn event_at(&self, seq: u64) -> Result<Option<Event>, Error> {
        let page = self.shared().journal.log.events(self.key(), seq.saturating_sub(1), 1)?;
        Ok(page.into_iter().next().filter(|event| event.seq == seq))
    }

    fn state_event(&self, kind: &str, body: &impl serde::Serialize) -> Commit<Event> {
        match Raw::of(body) {
            Ok(body) => self.append_event(kind, None, body),
            Err(error) => Commit::ready(Err(error)),
        }
    }
}
