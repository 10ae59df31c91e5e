//! The state of a conversation, and what callers set in it: pins, approvals, tools.

use super::Tenant;
use crate::writer::Commit;
use everturn_core::Error;
use everturn_core::conversation::CheckpointRef;
use everturn_core::event::{Event, kind};
use everturn_core::id::{ConversationId, Key};
use everturn_core::json::Raw;
use everturn_views::compaction::{Checkpoint, CompactionBody};
use everturn_views::state::{
    Approval, ApprovalBody, Fold, PINS_MAX, PendingApproval, PendingTool, Pin, PinBody, Scratchpad, State,
    ToolBody, VERSION,
};
use std::collections::BTreeMap;

impl Tenant {
    /// What the conversation needs to go on, as of its last event.
    pub fn state(&self, id: ConversationId) -> Result<State, Error> {
        let head = self.shared().index.conversation(&self.key(id))?.head.seq;
        let fold = self.shared().fold(&self.key(id), head)?;
        self.read_state(&self.key(id), &fold)
    }

    /// The same as it was when the log ended at a place.
    pub fn state_at(&self, id: ConversationId, seq: u64) -> Result<State, Error> {
        let conversation = self.shared().index.conversation(&self.key(id))?;
        if seq == 0 || seq > conversation.head.seq {
            return Err(everturn_core::write::no_such_seq(&conversation, seq));
        }
        let fold = self.shared().fold(&self.key(id), seq)?;
        self.read_state(&self.key(id), &fold)
    }

    /// Puts the words back to a fold. What was erased since is absent.
    pub(crate) fn read_state(&self, key: &Key, fold: &Fold) -> Result<State, Error> {
        let checkpoint = self.checkpoint(key, fold.checkpoint)?;
        let after = fold.checkpoint.map_or(0, |at| at.through_seq);
        let pins = self.named(key, &fold.pins, |value, seq| Pin { value, seq })?;
        let mut pending_approvals = Vec::new();
        for waiting in &fold.approvals {
            pending_approvals.push(PendingApproval::read(waiting, self.event_at(key, waiting.seq)?.as_ref()));
        }
        let mut pending_tools = Vec::new();
        for tool in &fold.tools {
            pending_tools.push(match tool.turn {
                Some(turn) => {
                    let turn = self.shared().index.turn_in(key, turn)?;
                    PendingTool::called(tool, turn.value().as_ref())
                }
                None => PendingTool::announced(tool, self.event_at(key, tool.seq)?.as_ref()),
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
            scratchpads: self.scratchpads(key, fold)?,
            open_turns: fold.open.iter().map(|place| place.turn).collect(),
            updated: fold.updated,
        })
    }

    /// The live scratchpads.
    pub(crate) fn scratchpads(&self, key: &Key, fold: &Fold) -> Result<BTreeMap<String, Scratchpad>, Error> {
        self.named(key, &fold.scratchpads, |value, seq| Scratchpad { value, seq })
    }

    /// Pins or scratchpads with their values, read from the events that set them. Erased ones are absent.
    fn named<T>(
        &self,
        key: &Key,
        places: &BTreeMap<String, u64>,
        of: fn(Raw, u64) -> T,
    ) -> Result<BTreeMap<String, T>, Error> {
        let mut named = BTreeMap::new();
        for (name, seq) in places {
            if let Some(PinBody { value: Some(value), .. }) = self.event_at(key, *seq)?.and_then(|e| e.read())
            {
                named.insert(name.clone(), of(value, *seq));
            }
        }
        Ok(named)
    }

    /// What a compaction said; `None` if there was none, or it was erased.
    pub(crate) fn checkpoint(
        &self,
        key: &Key,
        at: Option<CheckpointRef>,
    ) -> Result<Option<Checkpoint>, Error> {
        let Some(at) = at else { return Ok(None) };
        let body = self.event_at(key, at.seq)?.and_then(|event| event.read::<CompactionBody>());
        Ok(body.and_then(|body| body.checkpoint))
    }

    pub(crate) fn event_at(&self, key: &Key, seq: u64) -> Result<Option<Event>, Error> {
        let page = self.shared().log.events(key, seq.saturating_sub(1), 1)?;
        Ok(page.into_iter().next().filter(|event| event.seq == seq))
    }

    /// Pins a truth: every prompt says it until it is unpinned or pinned anew, whatever is summarized.
    pub fn pin(&self, id: ConversationId, name: &str, value: Raw) -> Commit<Event> {
        let pinned = (|| {
            let head = self.shared().conversation(&self.key(id))?.head.seq;
            let fold = self.shared().fold(&self.key(id), head)?;
            if fold.pins.len() >= PINS_MAX && !fold.pins.contains_key(name) {
                let advice = "unpin what is not true any more";
                return Err(Error::limit("PINS_MAX", PINS_MAX as u64, fold.pins.len() as u64 + 1, advice));
            }
            Raw::of(&PinBody { name: name.to_string(), value: Some(value) })
        })();
        match pinned {
            Ok(body) => self.append_event(id, kind::PIN, None, body),
            Err(error) => Commit::ready(Err(error)),
        }
    }

    /// Takes a pin away.
    pub fn unpin(&self, id: ConversationId, name: &str) -> Commit<Event> {
        self.state_event(id, kind::UNPIN, &PinBody { name: name.to_string(), value: None })
    }

    /// Asks for an approval: it is pending until [`resolve_approval`](Tenant::resolve_approval).
    pub fn request_approval(&self, id: ConversationId, request: ApprovalBody) -> Commit<Event> {
        self.state_event(id, kind::APPROVAL_REQUESTED, &request)
    }

    /// Answers an approval.
    pub fn resolve_approval(&self, id: ConversationId, approval_id: &str, state: Approval) -> Commit<Event> {
        let body =
            ApprovalBody { approval_id: approval_id.into(), state: Some(state), ..ApprovalBody::default() };
        self.state_event(id, kind::APPROVAL_RESOLVED, &body)
    }

    /// A tool works on something: it is pending until [`tool_finished`](Tenant::tool_finished), or until a turn brings its
    /// result.
    pub fn tool_started(&self, id: ConversationId, tool: ToolBody) -> Commit<Event> {
        self.state_event(id, kind::TOOL_STARTED, &tool)
    }

    /// A tool is done, or will never answer.
    pub fn tool_finished(&self, id: ConversationId, tool: ToolBody) -> Commit<Event> {
        self.state_event(id, kind::TOOL_FINISHED, &tool)
    }

    fn state_event(&self, id: ConversationId, kind: &str, body: &impl serde::Serialize) -> Commit<Event> {
        match Raw::of(body) {
            Ok(body) => self.append_event(id, kind, None, body),
            Err(error) => Commit::ready(Err(error)),
        }
    }
}
