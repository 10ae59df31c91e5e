//! Hard limits: what happens when an append would make a conversation's messages view too large.
//!
//! `core::write` refuses what goes over the number of turns or events, whoever writes. Here it is seen coming: the view is
//! trimmed or compacted first where the policy says so, and bytes are counted, which takes reading the turns.

use crate::Scope;
use everturn_core::Error;
use everturn_core::budget::{Action, Policy, Recovery, Usage};
use everturn_core::conversation::Conversation;
use everturn_core::event::{Draft, kind};
use everturn_core::id::ConversationId;
use everturn_core::json::Raw;
use everturn_core::pairing;
use everturn_core::turn::{Status, Turn, TurnBody};
use everturn_core::write::{self, Summarized};
use everturn_store::TurnQuery;
use serde_json::{Value, json};
use std::ops::ControlFlow;

/// Compactions that may be needed until there is room.
const ROUNDS_MAX: usize = 16;

impl Scope {
    /// Makes room for drafts, where the policy asks for that. What it gives goes in front of the drafts, in the same batch.
    pub(crate) fn make_room(
        &self,
        conversation: &Conversation,
        drafts: &[Draft],
        source: &str,
    ) -> Result<Vec<Draft>, Error> {
        let policy = conversation.limits();
        let incoming = incoming(drafts, policy.max_bytes.is_some());
        if fits(conversation, &policy, incoming) {
            return Ok(Vec::new());
        }
        let before = self.usage(conversation.id)?;
        let attempted = before.plus(incoming);
        if policy.exceeded(&attempted).is_none() {
            return Ok(Vec::new());
        }
        let mut action = Action {
            action: policy.recovery.as_str().into(),
            source: source.into(),
            reason: policy.refuse(&attempted).text().to_string(),
            policy: serde_json::to_value(policy).unwrap_or_default(),
            usage_before: before,
            usage_attempted: attempted,
            usage_after: before,
            removed_messages: 0,
            removed_events: 0,
            trimmed: None,
        };
        let mut trimmed = None;
        match policy.recovery {
            Recovery::Reject => self.relieve(conversation.id, &policy, incoming)?,
            Recovery::Trim { keep_last } => {
                trimmed = self.trim(conversation, &policy, keep_last, incoming, messages(drafts))?;
            }
            Recovery::Compact { keep_last } => {
                let keep_last = usize::try_from(keep_last).unwrap_or(usize::MAX);
                let options = crate::CompactOptions { keep_last: Some(keep_last), ..Default::default() };
                self.compact(conversation.id, options).map(drop).or_else(|error| match error.code() {
                    // Then it is refused below, with the numbers.
                    "compaction.nothing" => Ok(()),
                    _ => Err(error),
                })?;
            }
        }
        let after = match trimmed {
            Some((_, after)) => after,
            None => self.usage(conversation.id)?,
        };
        action.trimmed = trimmed.map(|(trimmed, _)| trimmed);
        if policy.exceeded(&after.plus(incoming)).is_some() {
            action.action = Recovery::Reject.as_str().into();
            metrics::counter!("everturn_budget_actions_total", "action" => "reject").increment(1);
            let error = policy.refuse(&after.plus(incoming));
            self.shared().refused().insert(self.key(conversation.id), action);
            return Err(error);
        }
        if policy.recovery == Recovery::Reject {
            return Ok(Vec::new());
        }
        action.removed_messages = before.messages.saturating_sub(after.messages);
        action.removed_events = before.events.saturating_sub(after.events);
        // The event itself is in the view as well.
        action.usage_after = Usage { events: after.events + 1, ..after };
        let what = policy.recovery.as_str();
        metrics::counter!("everturn_budget_actions_total", "action" => what).increment(1);
        Ok(vec![self.shared().draft(kind::BUDGET, &action)?])
    }

    /// With automatic compaction on, a view only fills up when appends are faster than it: then they wait for it, and no
    /// model is asked.
    fn relieve(&self, id: ConversationId, policy: &Policy, incoming: Usage) -> Result<(), Error> {
        for _ in 0..ROUNDS_MAX {
            let conversation = self.shared().index.conversation(&self.key(id))?;
            let full = policy.exceeded(&self.usage(id)?.plus(incoming)).is_some();
            if !full || !self.shared().options.auto_compaction || !conversation.compaction().auto {
                return Ok(());
            }
            let options = crate::CompactOptions { extractive: true, ..Default::default() };
            match self.compact(id, options) {
                Ok(_) | Err(Error::Conflict(_)) => {}
                Err(error) if error.code() == "compaction.nothing" => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Where the view must begin so that the last turns that are to be kept stay, and fewer if they do not fit either. Pairs
    /// stay together, also those of which one half is only coming now. Gives also what the view retains then.
    fn trim(
        &self,
        conversation: &Conversation,
        policy: &Policy,
        keep_last: u64,
        incoming: Usage,
        said: Vec<Value>,
    ) -> Result<Option<(Summarized, Usage)>, Error> {
        let (start, before) = conversation.view_start();
        let all = self.view_turns(conversation.id, start)?;
        let standing: Vec<&Turn> = all.iter().filter(|turn| stands(turn)).collect();
        let mut values: Vec<Value> = standing.iter().map(|turn| turn.value().unwrap_or_default()).collect();
        values.extend(said);
        let pairs = pairing::pair(&values);
        let keep = usize::try_from(keep_last).unwrap_or(usize::MAX);
        let wanted = pairs.cut_at_or_before(standing.len().saturating_sub(keep));
        let mut cut = pairs.cut_at_or_after(wanted.max(1), values.len());
        loop {
            let Some(last) = standing.get(cut - 1) else { return Ok(None) };
            let turns = all.iter().filter(|turn| turn.seq <= last.seq).count() as u64;
            let trimmed =
                Summarized { through: last.id, through_seq: last.seq, turns_before: before + turns };
            let after = retained(conversation, last.seq, &standing[cut..]);
            if policy.exceeded(&after.plus(incoming)).is_none() {
                return Ok(Some((trimmed, after)));
            }
            cut = pairs.cut_at_or_after(cut + 1, values.len());
        }
    }

    /// What the messages view of a conversation retains.
    pub fn usage(&self, id: ConversationId) -> Result<Usage, Error> {
        let conversation = self.shared().index.conversation(&self.key(id))?;
        let (start, _) = conversation.view_start();
        let turns = self.view_turns(id, start)?;
        let standing: Vec<&Turn> = turns.iter().filter(|turn| stands(turn)).collect();
        Ok(retained(&conversation, start, &standing))
    }

    fn view_turns(&self, id: ConversationId, after: u64) -> Result<Vec<Turn>, Error> {
        let mut turns: Vec<Turn> = Vec::new();
        let query = TurnQuery { after: Some(after), include_superseded: true, ..TurnQuery::default() };
        self.each_turn(&self.key(id), query, |turn| {
            turns.push(turn);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(turns)
    }

    /// `metadata.transcript_budget`: the policy, what is used of it, and what was done about it last.
    pub(crate) fn budget_metadata(&self, conversation: &Conversation) -> Result<Raw, Error> {
        let key = self.key(conversation.id);
        let refused = self.shared().refused().get(&key).cloned();
        let last = match (refused, conversation.budget) {
            (Some(action), _) => Some(action),
            (None, Some(budget)) => self.event_at(&key, budget.seq)?.and_then(|event| event.read::<Action>()),
            (None, None) => None,
        };
        let policy = conversation.limits();
        let usage = match policy.max_bytes {
            Some(_) => json!(self.usage(conversation.id)?),
            // Counting bytes takes reading every turn of the view, which nobody asked for.
            None => {
                let fallen = self.shared().index.fallen_after(&key, conversation.view_start().0)?;
                let Usage { messages, events, .. } = write::usage(conversation, fallen);
                json!({"messages": messages, "events": events})
            }
        };
        Raw::of(&json!({"policy": policy, "usage": usage, "last_action": last}))
    }
}

/// Whether so many turns surely fit, without counting what the view retains.
pub(crate) fn has_room_for(conversation: &Conversation, turns: usize) -> bool {
    let incoming = Usage { messages: turns as u64, events: turns as u64, ..Usage::default() };
    fits(conversation, &conversation.limits(), incoming)
}

/// Counted too high and for nothing: enough for nearly every append.
fn fits(conversation: &Conversation, policy: &Policy, incoming: Usage) -> bool {
    let roughly = write::usage(conversation, 0).plus(incoming);
    policy.max_bytes.is_none() && policy.exceeded(&roughly).is_none()
}

/// What a view that begins after a place retains, with these turns standing in it.
fn retained(conversation: &Conversation, start: u64, standing: &[&Turn]) -> Usage {
    Usage {
        messages: standing.len() as u64,
        events: conversation.head.seq.saturating_sub(start),
        bytes: standing.iter().filter_map(|t| t.message.as_ref()).map(|m| m.get().len() as u64).sum(),
    }
}

/// Whether a turn is in the view.
fn stands(turn: &Turn) -> bool {
    turn.superseded_by.is_none() && turn.status != Status::Aborted
}

/// What drafts would add.
fn incoming(drafts: &[Draft], with_bytes: bool) -> Usage {
    let mut usage = Usage { events: drafts.len() as u64, ..Usage::default() };
    let mut superseded = 0;
    for draft in drafts {
        usage.messages += u64::from(kind::begins_turn(&draft.kind));
        superseded += u64::from(draft.kind == kind::SUPERSEDED);
        if with_bytes && (kind::begins_turn(&draft.kind) || kind::ends_turn(&draft.kind)) {
            let body: TurnBody = serde_json::from_str(&draft.body.text).unwrap_or_default();
            usage.bytes += body.message.map_or(0, |message| message.get().len() as u64);
        }
    }
    usage.messages = usage.messages.saturating_sub(superseded);
    usage
}

/// What drafts say.
fn messages(drafts: &[Draft]) -> Vec<Value> {
    let turns = drafts.iter().filter(|draft| kind::begins_turn(&draft.kind));
    let body = |draft: &Draft| serde_json::from_str::<TurnBody>(&draft.body.text).ok()?.message?.read();
    turns.map(|draft| body(draft).unwrap_or_default()).collect()
}
