//! Hard limits of the messages view. An append that would exceed one is refused, or room is made first.
//!
//! Under the policy `reject`, `core::write` refuses what goes over the number of turns or events. Under the others, the
//! engine makes room first: it compacts or trims the view. It also counts bytes, which takes reading the turns.
//!
//! Events that are no turns leave the view when it has too many: all that nothing depends on any more. The others (values of
//! pins and scratchpads, pending approvals) stay, and an append that has no room beside them is refused. The view never shows
//! more events than its limit: of those that could leave, the newest for which there is room.

use super::ConversationCompaction;
use super::compact::Purpose;
use crate::conversation::{ConversationHandle, UNANSWERED, repeat_or};
use crate::locks::Locks;
use everturn_core::Error;
use everturn_core::budget::{BudgetAction, BudgetPolicy, BudgetRecovery, Usage};
use everturn_core::conversation::{Conversation, EventsLeft, Retention};
use everturn_core::error::code;
use everturn_core::event::{Draft, Event, kind};
use everturn_core::id::Key;
use everturn_core::json::Raw;
use everturn_core::limits::{BATCH_EVENTS_MAX, PAGE_ENTRIES_MAX};
use everturn_core::pairing;
use everturn_core::time::Timestamp;
use everturn_core::turn::{Status, Turn, TurnBody};
use everturn_core::write::{self, Idempotency, Summarized, Write};
use everturn_formats::transcript;
use everturn_store::TurnQuery;
use everturn_views::state::{Fold, PinBody, Tool};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Most compactions for one append.
const ROUNDS_MAX: usize = 16;
/// Rejections for the same reason are recorded at most once in this time.
const REJECTION_RECORDED_EVERY_US: i64 = 60 * 1_000_000;

/// State shared by appends that reach a limit at the same time.
#[derive(Default)]
pub struct Budgets {
    /// Held while room is made, so that it is made once.
    pub making_room: Locks,
    /// Time of the last recorded rejection, by conversation and limit. Entries older than a minute are dropped.
    rejections: Mutex<HashMap<(Key, &'static str), Timestamp>>,
}

impl Budgets {
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
        self.0.view_usage(&conversation)
    }
}

impl ConversationHandle {
    /// Makes room for drafts, or refuses them if the policy is to reject. The returned events go before the drafts,
    /// in the same batch. A request that was `asked` before needs no room.
    pub(crate) fn make_room(
        &self,
        conversation: &Conversation,
        drafts: &[Draft],
        source: &str,
        asked: Option<&Idempotency>,
    ) -> Result<Vec<Draft>, Error> {
        // A batch that is too large is refused for that reason; advice about the budget would not help.
        if drafts.len() > BATCH_EVENTS_MAX {
            return Ok(Vec::new());
        }
        // Where bytes are limited, nothing fits for sure.
        if write::surely_fits(conversation, incoming(drafts, false)) {
            return Ok(Vec::new());
        }
        let policy = conversation.limits();
        let incoming = incoming(drafts, policy.max_bytes.is_some());
        if policy.exceeded(&self.counted(conversation, &policy)?.plus(incoming)).is_none() {
            return Ok(Vec::new());
        }
        if let Some(asked) = asked
            && self.was_answered(asked)?
        {
            return Ok(Vec::new());
        }
        let key = self.tenant.key(conversation.id);
        let _alone = self.shared().compaction.budgets.making_room.of(&key);
        match self.make_room_alone(drafts, incoming, source) {
            // Damaged turns can be neither summarized nor paired, and must not block appends.
            Err(error @ Error::Corrupt(_)) if !policy.rejects() => {
                tracing::warn!(%error, conversation = %key.id, "no room made; the append goes over the budget");
                Ok(Vec::new())
            }
            made => made,
        }
    }

    /// Whether this request was answered before. An error if its key was used for another one.
    fn was_answered(&self, asked: &Idempotency) -> Result<bool, Error> {
        let unanswered = Error::not_found(UNANSWERED, "this request was not answered before");
        match self.write(repeat_or(unanswered, Some(asked.clone())), |_| Ok(())).wait() {
            Err(error) if error.is(UNANSWERED) => Ok(false),
            answer => answer.map(|()| true),
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
        let mut action = BudgetAction {
            action: BudgetRecovery::Reject.as_str().into(),
            source: source.into(),
            reason: policy.over(&attempted),
            policy: serde_json::to_value(policy).unwrap_or_default(),
            usage_before: before,
            usage_attempted: attempted,
            usage_after: before,
            removed_messages: 0,
            removed_events: 0,
            trimmed: None,
            left: None,
        };
        let never_fits = policy.exceeded(&incoming).is_some();
        let (compacts, keep_last) = match policy.recovery {
            Some(BudgetRecovery::Compact { keep_last }) if !never_fits => (true, keep_last),
            Some(BudgetRecovery::Trim { keep_last }) if !never_fits => (false, keep_last),
            _ => {
                let error = match never_fits && !policy.rejects() {
                    true => policy.refuse_alone(&incoming),
                    false => policy.refuse(&attempted),
                };
                return Err(self.reject(&conversation, &policy, action, error));
            }
        };
        let handle = self.tenant.conversation(self.key().id);
        let mut made = handle.view(&conversation)?.without_events(&policy, keep_last, incoming, drafts);
        let only_events = made.is_some();
        if !only_events && compacts {
            handle.compact_for(&policy, keep_last, incoming)?;
            let conversation = self.shared().journal.index.conversation(self.key())?;
            let view = handle.view(&conversation)?;
            let start = conversation.view_start().0;
            made = view.room(&policy, start, &view.standing(), incoming, drafts);
        }
        if made.is_none() {
            let conversation = self.shared().journal.index.conversation(self.key())?;
            made = handle.view(&conversation)?.trim(&policy, keep_last, incoming, drafts);
        }
        let Some(Room { after, trimmed, left }) = made else {
            // A single pair of tool call and result spans the whole view, or the append ends what takes the room.
            let counts = BudgetPolicy { max_events: None, ..policy };
            if counts.exceeded(&attempted).is_some() || drafts.iter().any(|draft| settles(&draft.kind)) {
                return Ok(Vec::new());
            }
            return Err(self.reject(&conversation, &policy, action, policy.refuse_events(&attempted)));
        };
        (action.trimmed, action.left) = (trimmed, left);
        let what = if trimmed.is_some() || only_events { "trim" } else { "compact" };
        action.action = what.into();
        action.removed_messages = before.messages.saturating_sub(after.messages);
        action.removed_events = before.events.saturating_sub(after.events);
        // This event is in the view as well, if there is room for it.
        action.usage_after = shown(&policy, Usage { events: after.events + 1, ..after });
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
    fn compact_for(&self, policy: &BudgetPolicy, keep_last: u64, incoming: Usage) -> Result<(), Error> {
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
        policy: &BudgetPolicy,
        mut action: BudgetAction,
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
            let is_same = |last: &BudgetAction| last.action == action.action && names(&last.reason, limit);
            // A full view has no room for more of them.
            let is_full = policy.max_events.is_some_and(|max| write::usage(conversation, 0).events > max);
            let is_told = |event: &Event| is_full || is_recent(event.at, now);
            if last.is_some_and(|event| is_told(&event) && event.read().as_ref().is_some_and(is_same)) {
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

    /// As `usage`, but counts bytes only where they are limited: otherwise no turn needs to be read.
    fn counted(&self, conversation: &Conversation, policy: &BudgetPolicy) -> Result<Usage, Error> {
        let handle = self.tenant.conversation(conversation.id);
        let start = conversation.view_start().0;
        if policy.max_bytes.is_some() || events_left(conversation) > start {
            return handle.view_usage(conversation);
        }
        let fallen = self.shared().journal.index.fallen_after(&self.tenant.key(conversation.id), start)?;
        let usage = write::usage(conversation, fallen);
        let earlier = match start {
            0 => 0,
            // Damage is told where turns are read; the rest of the log can still be read and written.
            _ => match handle.fold_now(conversation) {
                Err(Error::Corrupt(_)) => 0,
                fold => {
                    let fold = fold?;
                    in_force(&fold, start).range(..=start).count() as u64 + waiting_before(&fold, start)
                }
            },
        };
        Ok(shown(policy, Usage { events: usage.events + earlier, ..usage }))
    }

    fn view_usage(&self, conversation: &Conversation) -> Result<Usage, Error> {
        let view = self.view(conversation)?;
        let start = conversation.view_start().0;
        Ok(shown(&conversation.limits(), view.retained(start, &view.standing())))
    }

    fn view<'a>(&self, conversation: &'a Conversation) -> Result<View<'a>, Error> {
        let turns = self.view_turns(conversation.view_start().0)?;
        Ok(View { conversation, turns, fold: self.fold_now(conversation)? })
    }

    /// Refuses a change after which the view of this conversation is over its budget.
    pub(super) fn check_view(&self, changed: &Conversation) -> Result<(), Error> {
        let (start, policy) = (changed.view_start().0, changed.limits());
        let turns = self.view_turns(start)?;
        let fold = self.shared().fold(self.key(), changed.head.seq)?;
        let view = View { conversation: changed, turns, fold };
        let standing = view.standing();
        let usage = match policy.rejects() {
            true => view.retained(start, &standing),
            false => view.needed(start, &standing),
        };
        match policy.exceeded(&usage) {
            Some(_) => Err(Error::too_large(
                "budget.exceeded",
                format!("{}; raise the limit first", policy.over(&usage)),
            )),
            None => Ok(()),
        }
    }

    /// Events that a transcript value shows: the `seq` after which all are, and earlier ones that are nevertheless. Both
    /// together are no more than the limit, unless more are in force.
    pub(crate) fn shown_events(
        &self,
        conversation: &Conversation,
        fold: &Fold,
    ) -> Result<(u64, BTreeSet<u64>), Error> {
        let (head, start) = (conversation.head.seq, conversation.view_start().0);
        let mut needed = in_force(fold, start);
        let Some(max) = conversation.limits().max_events.filter(|max| head > *max) else {
            return Ok((0, needed));
        };
        let query = TurnQuery { after: Some(start), as_of: Some(head), ..TurnQuery::default() };
        self.each_turn(query, |turn| {
            needed.insert(turn.seq);
            Ok(ControlFlow::Continue(()))
        })?;
        let room = max.saturating_sub(needed.len() as u64 + waiting_before(fold, start));
        let first = events_left(conversation).max(start);
        let others = self.leaving_events(first, head, &needed)?;
        // Of the others, the newest are shown while there is room.
        let hidden = others.len().saturating_sub(usize::try_from(room).unwrap_or(usize::MAX));
        Ok((hidden.checked_sub(1).map_or(first, |last| others[last]), needed))
    }

    /// `seq` of the events in a range that a transcript value shows and does not need.
    fn leaving_events(&self, first: u64, head: u64, needed: &BTreeSet<u64>) -> Result<Vec<u64>, Error> {
        let (mut after, mut others) = (first, Vec::new());
        while after < head {
            let left = usize::try_from(head - after).unwrap_or(usize::MAX);
            let page = self.events(after, left.min(PAGE_ENTRIES_MAX))?;
            let Some(last) = page.last() else { break };
            after = last.seq;
            for event in page {
                let body = event.read::<Value>().unwrap_or_default();
                let is_given = body["event"].is_object();
                let is_content = matches!(event.kind.as_str(), kind::COMMITTED | kind::INTERRUPTED);
                match event.kind.as_str() {
                    // What the import of a value wrote by itself is no part of the value.
                    kind::IMPORT_FINISHED if !is_given && body["format"] == "transcript" => {
                        others.retain(|(_, is_given)| *is_given);
                    }
                    kind::STATE if body["reason"] == transcript::STATE_REASON => {}
                    _ if is_content || needed.contains(&event.seq) => {}
                    _ => others.push((event.seq, is_given)),
                }
            }
        }
        Ok(others.into_iter().map(|(seq, _)| seq).collect())
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
        let last = match conversation.budget {
            Some(budget) => self.event_at(budget.seq)?.and_then(|event| event.read::<BudgetAction>()),
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

/// Whether a reason is about this limit: see [`BudgetPolicy::refuse`].
fn names(reason: &str, limit: &str) -> bool {
    reason.strip_prefix("policy.budget.").is_some_and(|rest| rest.starts_with(limit))
}

/// The messages view of a conversation.
struct View<'a> {
    conversation: &'a Conversation,
    /// Its turns in order, superseded ones included.
    turns: Vec<Turn>,
    fold: Arc<Fold>,
}

/// Room that can be made in a view.
#[derive(Default)]
struct Room {
    /// The resulting usage.
    after: Usage,
    /// New start of the view.
    trimmed: Option<Summarized>,
    /// Events that leave it without their turns.
    left: Option<EventsLeft>,
}

impl View<'_> {
    /// The turns that are read, in reading order.
    fn standing(&self) -> Vec<&Turn> {
        let start = self.conversation.view_start().0;
        let stands = |turn: &&Turn| {
            turn.superseded_by.is_none() && turn.status != Status::Aborted && turn.place > start
        };
        let mut standing: Vec<&Turn> = self.turns.iter().filter(stands).collect();
        standing.sort_by_key(|turn| turn.place);
        standing
    }

    /// Usage if the view begins after `start` and contains these turns.
    fn retained(&self, start: u64, standing: &[&Turn]) -> Usage {
        let from = events_left(self.conversation).max(start);
        let earlier = in_force(&self.fold, start).range(..=from).count()
            + standing.iter().filter(|turn| turn.seq <= from).count();
        let since = self.conversation.head.seq.saturating_sub(from);
        let events = since + earlier as u64 + waiting_before(&self.fold, start);
        Usage { events, ..self.needed(start, standing) }
    }

    /// The same without the events that could leave.
    fn needed(&self, start: u64, standing: &[&Turn]) -> Usage {
        let events = in_force(&self.fold, start).len() + standing.len();
        Usage {
            messages: standing.len() as u64,
            events: events as u64 + waiting_before(&self.fold, start),
            bytes: standing.iter().filter_map(|t| t.message.as_ref()).map(|m| m.get().len() as u64).sum(),
        }
    }

    /// Room for drafts if the view begins after `start` and contains these turns; `None` if that is not enough.
    fn room(
        &self,
        policy: &BudgetPolicy,
        start: u64,
        standing: &[&Turn],
        incoming: Usage,
        drafts: &[Draft],
    ) -> Option<Room> {
        let retained = self.retained(start, standing);
        if policy.exceeded(&retained.plus(incoming)).is_none() {
            return Some(Room { after: retained, ..Room::default() });
        }
        let after = self.needed(start, standing);
        let ended = drafts.iter().filter(|draft| self.replaces(draft)).count() as u64;
        let events = after.events.saturating_sub(ended);
        let fits = policy.exceeded(&Usage { events, ..after }.plus(incoming)).is_none();
        let left = EventsLeft { through_seq: self.conversation.head.seq, kept: after.events };
        fits.then_some(Room { after, left: Some(left), trimmed: None })
    }

    /// Room if events leave and all turns stay; `None` if that is not enough. Unless there are no more turns than are to be
    /// kept, a quarter of the limit must become free: otherwise nearly every append would have to make room.
    fn without_events(
        &self,
        policy: &BudgetPolicy,
        keep_last: u64,
        incoming: Usage,
        drafts: &[Draft],
    ) -> Option<Room> {
        let standing = self.standing();
        let room = self.room(policy, self.conversation.view_start().0, &standing, incoming, drafts)?;
        let enough = policy.max_events.is_none_or(|max| room.after.plus(incoming).events <= max - max / 4);
        (enough || standing.len() as u64 <= keep_last).then_some(room)
    }

    /// Room if the view begins later and retains the turns that are to be kept, or fewer if those do not fit. Pairs of tool
    /// call and result stay together, including those that the drafts complete.
    fn trim(&self, policy: &BudgetPolicy, keep_last: u64, incoming: Usage, drafts: &[Draft]) -> Option<Room> {
        let (_, before) = self.conversation.view_start();
        let standing = self.standing();
        let mut values: Vec<Value> = standing.iter().map(|turn| turn.value().unwrap_or_default()).collect();
        values.extend(messages(drafts));
        let pairs = pairing::pair(&values);
        let keep = usize::try_from(keep_last).unwrap_or(usize::MAX);
        let wanted = pairs.cut_at_or_before(standing.len().saturating_sub(keep));
        let mut cut = pairs.cut_at_or_after(wanted.max(1), values.len());
        loop {
            // A view without turns would be useless.
            let last = (1..values.len()).contains(&cut).then(|| standing.get(cut - 1)).flatten()?;
            if let Some(room) = self.room(policy, last.place, &standing[cut..], incoming, drafts) {
                let turns = self.turns.iter().filter(|turn| turn.seq <= last.place).count() as u64;
                let (through, through_seq) = (last.id, last.place);
                let trimmed = Summarized { through, through_seq, turns_before: before + turns };
                return Some(Room { trimmed: Some(trimmed), ..room });
            }
            cut = pairs.cut_at_or_after(cut + 1, values.len());
        }
    }

    /// Whether a draft takes the place of an event that is in force.
    fn replaces(&self, draft: &Draft) -> bool {
        let set = match &*draft.kind {
            kind::PIN | kind::UNPIN => &self.fold.pins,
            kind::SCRATCHPAD_SET | kind::SCRATCHPAD_CLEAR => &self.fold.scratchpads,
            _ => return false,
        };
        serde_json::from_str::<PinBody>(&draft.body.text).is_ok_and(|body| set.contains_key(&body.name))
    }
}

/// Whether an event of this kind ends something that takes room: it is not refused for want of it.
fn settles(kind: &str) -> bool {
    let ends = [kind::UNPIN, kind::SCRATCHPAD_CLEAR, kind::TOOL_FINISHED, kind::TOOL_ABANDONED];
    kind == kind::TOOL_RESULT || ends.contains(&kind)
}

/// `seq` up to which events left the view without their turns.
fn events_left(conversation: &Conversation) -> u64 {
    conversation.budget.and_then(|budget| budget.left).map_or(0, |left| left.through_seq)
}

/// `seq` of the events other than turns that a view after `start` needs, wherever they are.
pub(crate) fn in_force(fold: &Fold, start: u64) -> BTreeSet<u64> {
    let set = fold.pins.values().chain(fold.scratchpads.values()).copied();
    let waiting = fold.approvals.iter().map(|waiting| waiting.seq);
    let tools = fold.tools.iter().filter(|tool| tool.turn.is_none()).map(|tool| tool.seq);
    let is_shown = |tool: &Tool| tool.turn.is_none() || tool.place > start;
    let abandoned = fold.abandoned.iter().filter(|abandoned| is_shown(&abandoned.tool));
    let abandoned = abandoned.filter_map(|abandoned| abandoned.seq);
    set.chain(waiting).chain(tools).chain(abandoned).chain(fold.checkpoint.map(|at| at.seq)).collect()
}

/// Number of calls before the view that wait for their result: an event tells each of them.
fn waiting_before(fold: &Fold, start: u64) -> u64 {
    fold.tools.iter().filter(|tool| tool.turn.is_some() && tool.place <= start).count() as u64
}

/// Usage as the view shows it, which leaves events out that there is no room for.
fn shown(policy: &BudgetPolicy, usage: Usage) -> Usage {
    Usage { events: policy.max_events.map_or(usage.events, |max| usage.events.min(max)), ..usage }
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
