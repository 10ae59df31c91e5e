//! Hard limits of the messages view. An append that would exceed one is refused, or room is made first.
//!
//! Under the policy `reject`, `core::write` refuses what goes over the number of turns or events. Under the others, the
//! engine makes room first: it compacts or trims the view. It also counts bytes, which takes reading the turns.

use super::ConversationCompaction;
use super::compact::Purpose;
use crate::conversation::ConversationHandle;
use everturn_core::Error;
use everturn_core::budget::{Action, Policy, Recovery, Usage};
use everturn_core::conversation::{Conversation, Retention};
use everturn_core::error::code;
use everturn_core::event::{Draft, kind};
use everturn_core::id::Key;
use everturn_core::json::Raw;
use everturn_core::limits::BATCH_EVENTS_MAX;
use everturn_core::pairing;
use everturn_core::time::Timestamp;
use everturn_core::turn::{Status, Turn, TurnBody};
use everturn_core::write::{self, Summarized, Write};
use everturn_store::TurnQuery;
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::ControlFlow;

/// Most compactions for one append.
const ROUNDS_MAX: usize = 16;
/// Rejections for the same reason are recorded at most once in this time.
const REJECTION_RECORDED_EVERY_US: i64 = 60 * 1_000_000;
/// Number of locks that conversations share.
const LOCKS: usize = 16;

/// State shared by appends that reach a limit at the same time.
#[derive(Default)]
pub struct Budgets {
    /// Held while room is made; each lock serves several conversations.
    making_room: [Mutex<()>; LOCKS],
    /// Time of the last recorded rejection, by conversation and limit. Entries older than a minute are dropped.
    rejections: Mutex<HashMap<(Key, &'static str), Timestamp>>,
}

impl Budgets {
    /// Lock held while room is made in a conversation, so that it is made once.
    pub fn alone(&self, key: &Key) -> MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let lock = &self.making_room[hasher.finish() as usize % LOCKS];
        lock.lock()
    }

    /// Whether to record a rejection now; at most one a minute is.
    fn records(&self, key: &Key, limit: &'static str, now: Timestamp) -> bool {
        let mut rejections = self.rejections.lock();
        rejections.retain(|_, at| is_recent(*at, now));
        match rejections.entry((key.clone(), limit)) {
            std::collections::hash_map::Entry::Occupied(_) => false,
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(now);
                true
            }
        }
    }

    /// Drops the state of a deleted conversation.
    pub fn forget(&self, key: &Key) {
        let mut rejections = self.rejections.lock();
        rejections.retain(|(of, _), _| of != key);
    }
}

fn is_recent(at: Timestamp, now: Timestamp) -> bool {
    (0..REJECTION_RECORDED_EVERY_US).contains(&now.0.saturating_sub(at.0))
}

impl ConversationCompaction<'_> {
    /// Usage of a conversation's messages view.
    pub fn usage(&self) -> Result<Usage, Error> {
        let conversation = self.0.shared().journal.index.conversation(self.0.key())?;
        let (start, _) = conversation.view_start();
        let turns = self.0.view_turns(start)?;
        Ok(retained(&conversation, start, &standing(&turns, start)))
    }
}

impl ConversationHandle {
    /// Makes room for drafts, or refuses them if the policy is to reject. The returned events go before the drafts,
    /// in the same batch.
    pub(crate) fn make_room(
        &self,
        conversation: &Conversation,
        drafts: &[Draft],
        source: &str,
    ) -> Result<Vec<Draft>, Error> {
        // A batch that is too large is refused for that reason; advice about the budget would not help.
        if drafts.len() > BATCH_EVENTS_MAX {
            return Ok(Vec::new());
        }
        let policy = conversation.limits();
        let incoming = incoming(drafts, policy.max_bytes.is_some());
        if fits(conversation, &policy, incoming) {
            return Ok(Vec::new());
        }
        if policy.exceeded(&self.counted(conversation, &policy)?.plus(incoming)).is_none() {
            return Ok(Vec::new());
        }
        let key = self.tenant.key(conversation.id);
        let _alone = self.shared().compaction.budgets.alone(&key);
        match self.make_room_alone(drafts, incoming, source) {
            // Damaged turns can be neither summarized nor paired, and must not block appends.
            Err(error @ Error::Corrupt(_)) if !policy.rejects() => {
                tracing::warn!(%error, conversation = %key.id, "no room made; the append goes over the budget");
                Ok(Vec::new())
            }
            made => made,
        }
    }

    fn make_room_alone(&self, drafts: &[Draft], incoming: Usage, source: &str) -> Result<Vec<Draft>, Error> {
        let conversation = self.shared().journal.index.conversation(self.key())?;
        let policy = conversation.limits();
        let before = self.tenant.conversation(self.key().id).compaction().usage()?;
        let attempted = before.plus(incoming);
        if policy.exceeded(&attempted).is_none() {
            return Ok(Vec::new());
        }
        let mut action = Action {
            action: Recovery::Reject.as_str().into(),
            source: source.into(),
            reason: policy.over(&attempted),
            policy: serde_json::to_value(policy).unwrap_or_default(),
            usage_before: before,
            usage_attempted: attempted,
            usage_after: before,
            removed_messages: 0,
            removed_events: 0,
            trimmed: None,
        };
        let never_fits = policy.exceeded(&incoming).is_some();
        let (compacts, keep_last) = match policy.recovery {
            Some(Recovery::Compact { keep_last }) if !never_fits => (true, keep_last),
            Some(Recovery::Trim { keep_last }) if !never_fits => (false, keep_last),
            _ => {
                let error = match never_fits && !policy.rejects() {
                    true => policy.refuse_alone(&incoming),
                    false => policy.refuse(&attempted),
                };
                return Err(self.reject(&conversation, &policy, action, error));
            }
        };
        if compacts {
            self.tenant.conversation(self.key().id).compact_for(&policy, keep_last, incoming)?;
        }
        let mut after = self.tenant.conversation(self.key().id).compaction().usage()?;
        if policy.exceeded(&after.plus(incoming)).is_some() {
            let conversation = self.shared().journal.index.conversation(self.key())?;
            match self.trim(&conversation, &policy, keep_last, incoming, messages(drafts))? {
                Some((trimmed, left)) => (action.trimmed, after) = (Some(trimmed), left),
                // A single pair of tool call and result spans the whole view, or the excess is in events and not in
                // turns.
                None => return Ok(Vec::new()),
            }
        }
        let what = if action.trimmed.is_some() { "trim" } else { "compact" };
        action.action = what.into();
        action.removed_messages = before.messages.saturating_sub(after.messages);
        action.removed_events = before.events.saturating_sub(after.events);
        // This event is in the view as well.
        action.usage_after = Usage { events: after.events + 1, ..after };
        metrics::counter!("everturn_budget_actions_total", "action" => what).increment(1);
        let draft = self.shared().draft(kind::BUDGET, &action)?;
        match action.trimmed.filter(|_| conversation.retention == Retention::Ephemeral) {
            None => Ok(vec![draft]),
            // Turns that leave the window are erased, once the log records that they left.
            Some(trimmed) => {
                let action = write::Action::append(vec![draft]);
                self.write(Ok(action), |_| Ok(())).wait()?;
                self.compaction().apply_retention(trimmed.through_seq)?;
                Ok(Vec::new())
            }
        }
    }

    /// Compacts until there is room or nothing more can be covered. An append never waits for a model, so checkpoints
    /// are extractive.
    fn compact_for(&self, policy: &Policy, keep_last: u64, incoming: Usage) -> Result<(), Error> {
        let keep_last = usize::try_from(keep_last).unwrap_or(usize::MAX);
        for _ in 0..ROUNDS_MAX {
            let options = super::CompactOptions {
                keep_last: Some(keep_last),
                extractive: true,
                ..super::CompactOptions::default()
            };
            match self.compaction().compact_with(options, Purpose::Cover) {
                Ok(_) | Err(Error::Conflict(_)) => {}
                Err(error) if error.is(code::NOTHING_TO_COMPACT) => return Ok(()),
                Err(error) => return Err(error),
            }
            if policy.exceeded(&self.compaction().usage()?.plus(incoming)).is_none() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Error for an append over the limit. It is also recorded as an event, at most once a minute for each limit:
    /// `last_action` survives a restart, and a client that keeps retrying does not fill the log.
    fn reject(
        &self,
        conversation: &Conversation,
        policy: &Policy,
        mut action: Action,
        error: Error,
    ) -> Error {
        metrics::counter!("everturn_budget_actions_total", "action" => "reject").increment(1);
        action.reason = error.text().to_string();
        let limit = policy.exceeded(&action.usage_attempted).map_or("", |(name, ..)| name);
        let (key, now) = (self.tenant.key(conversation.id), self.shared().now());
        let recorded = (|| {
            if !self.shared().compaction.budgets.records(&key, limit, now) {
                return Ok(());
            }
            // Another process, or this one before a restart, may have recorded it.
            let last = conversation.budget.map(|budget| self.event_at(budget.seq)).transpose()?.flatten();
            let is_same = |last: &Action| last.action == action.action && names(&last.reason, limit);
            if last
                .is_some_and(|event| is_recent(event.at, now) && event.read().as_ref().is_some_and(is_same))
            {
                return Ok(());
            }
            let drafts = vec![self.shared().draft(kind::BUDGET, &action)?];
            let action = write::Action::append(drafts);
            let answer = self.shared().journal.submit_now(Write { key: key.clone(), action })?;
            answer.recv().map_err(|_| crate::writer::closed())?.map(drop)
        })();
        if let Err(error) = recorded {
            tracing::warn!(%error, conversation = %key.id, "a rejection was not recorded");
        }
        error
    }

    /// The `seq` after which the view must begin to retain the turns that are to be kept, or fewer if those do not
    /// fit. Pairs of tool call and result stay together, including those that the drafts complete. Also returns the
    /// resulting usage.
    fn trim(
        &self,
        conversation: &Conversation,
        policy: &Policy,
        keep_last: u64,
        incoming: Usage,
        said: Vec<Value>,
    ) -> Result<Option<(Summarized, Usage)>, Error> {
        let (start, before) = conversation.view_start();
        let all = self.tenant.conversation(conversation.id).view_turns(start)?;
        let standing = standing(&all, start);
        let mut values: Vec<Value> = standing.iter().map(|turn| turn.value().unwrap_or_default()).collect();
        values.extend(said);
        let pairs = pairing::pair(&values);
        let keep = usize::try_from(keep_last).unwrap_or(usize::MAX);
        let wanted = pairs.cut_at_or_before(standing.len().saturating_sub(keep));
        let mut cut = pairs.cut_at_or_after(wanted.max(1), values.len());
        loop {
            // A view without turns would be useless.
            let last = (1..values.len()).contains(&cut).then(|| standing.get(cut - 1)).flatten();
            let Some(last) = last else { return Ok(None) };
            let turns = all.iter().filter(|turn| turn.seq <= last.place).count() as u64;
            let trimmed =
                Summarized { through: last.id, through_seq: last.place, turns_before: before + turns };
            let after = retained(conversation, last.place, &standing[cut..]);
            if policy.exceeded(&after.plus(incoming)).is_none() {
                return Ok(Some((trimmed, after)));
            }
            cut = pairs.cut_at_or_after(cut + 1, values.len());
        }
    }

    /// As `usage`, but counts bytes only where they are limited: otherwise no turn needs to be read.
    fn counted(&self, conversation: &Conversation, policy: &Policy) -> Result<Usage, Error> {
        if policy.max_bytes.is_some() {
            return self.tenant.conversation(conversation.id).compaction().usage();
        }
        let start = conversation.view_start().0;
        let fallen = self.shared().journal.index.fallen_after(&self.tenant.key(conversation.id), start)?;
        Ok(write::usage(conversation, fallen))
    }

    /// Refuses a change after which the view of this conversation is over its budget.
    pub(super) fn check_view(&self, changed: &Conversation) -> Result<(), Error> {
        let (start, policy) = (changed.view_start().0, changed.limits());
        let all = self.view_turns(start)?;
        let usage = retained(changed, start, &standing(&all, start));
        match policy.exceeded(&usage) {
            Some(_) => Err(Error::too_large(
                "budget.exceeded",
                format!("{}; raise the limit first", policy.over(&usage)),
            )),
            None => Ok(()),
        }
    }

    fn view_turns(&self, after: u64) -> Result<Vec<Turn>, Error> {
        let mut turns: Vec<Turn> = Vec::new();
        let query = TurnQuery { after: Some(after), whole_log: true, ..TurnQuery::default() };
        self.each_turn(query, |turn| {
            turns.push(turn);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(turns)
    }

    /// The budget with its usage and the last action; in a transcript value, `metadata.transcript_budget`.
    pub(crate) fn transcript_budget(&self, conversation: &Conversation) -> Result<Raw, Error> {
        let _key = self.tenant.key(conversation.id);
        let last = match conversation.budget {
            Some(budget) => self.event_at(budget.seq)?.and_then(|event| event.read::<Action>()),
            None => None,
        };
        let policy = conversation.limits();
        let usage = self.counted(conversation, &policy)?;
        let usage = match policy.max_bytes {
            Some(_) => json!(usage),
            None => json!({"messages": usage.messages, "events": usage.events}),
        };
        Raw::of(&json!({"policy": policy, "usage": usage, "last_action": last}))
    }
}

/// Also counts superseded turns, which costs nothing and settles nearly every append.
fn fits(conversation: &Conversation, policy: &Policy, incoming: Usage) -> bool {
    let roughly = write::usage(conversation, 0).plus(incoming);
    policy.max_bytes.is_none() && policy.exceeded(&roughly).is_none()
}

/// Whether a reason is about this limit: see [`Policy::refuse`].
fn names(reason: &str, limit: &str) -> bool {
    reason.strip_prefix("policy.budget.").is_some_and(|rest| rest.starts_with(limit))
}

/// Usage of a view that begins after `start` and contains these turns.
fn retained(conversation: &Conversation, start: u64, standing: &[&Turn]) -> Usage {
    Usage {
        messages: standing.len() as u64,
        events: conversation.head.seq.saturating_sub(start),
        bytes: standing.iter().filter_map(|t| t.message.as_ref()).map(|m| m.get().len() as u64).sum(),
    }
}

/// The turns of a view that begins after `start`, in reading order.
fn standing(turns: &[Turn], start: u64) -> Vec<&Turn> {
    let stands =
        |turn: &&Turn| turn.superseded_by.is_none() && turn.status != Status::Aborted && turn.place > start;
    let mut standing: Vec<&Turn> = turns.iter().filter(stands).collect();
    standing.sort_by_key(|turn| turn.place);
    standing
}

/// Usage that drafts would add.
fn incoming(drafts: &[Draft], with_bytes: bool) -> Usage {
    let mut usage = Usage { events: drafts.len() as u64, ..Usage::default() };
    let mut superseded = 0;
    for draft in drafts {
        usage.messages += u64::from(kind::begins_turn(&draft.kind));
        superseded += u64::from(draft.kind == kind::SUPERSEDED);
        if with_bytes && kind::is_of_turn(&draft.kind) {
            let body: TurnBody = serde_json::from_str(&draft.body.text).unwrap_or_default();
            usage.bytes += body.message.map_or(0, |message| message.get().len() as u64);
        }
    }
    usage.messages = usage.messages.saturating_sub(superseded);
    usage
}

/// Messages of drafts.
fn messages(drafts: &[Draft]) -> Vec<Value> {
    let turns = drafts.iter().filter(|draft| kind::begins_turn(&draft.kind));
    let body = |draft: &Draft| serde_json::from_str::<TurnBody>(&draft.body.text).ok()?.message?.read();
    turns.map(|draft| body(draft).unwrap_or_default()).collect()
}
