//! Appending: checks drafts and chains them into events.

use super::body::Compacted;
use super::fold::{find_turn, fold};
use super::lookup::{ForkPoint, Lookup};
use super::refusal::{self, absent, absent_turn, no_such_seq, not_open, still_open};
use super::{Changes, PlannedAppend};
use crate::Error;
use crate::budget::Usage;
use crate::chain::{self, Head};
use crate::conversation::{Conversation, Lifecycle, Parent, Settings};
use crate::error::code;
use crate::event::{Draft, Event, kind};
use crate::id::{Key, TurnId};
use crate::time::Timestamp;
use crate::turn::{Status, Successor, TurnRow};
use std::collections::BTreeMap;

/// Upper bound of the events that are shown although they are before the start of the view: pins, scratchpads, approvals and
/// tools that are pending or given up.
const EVENTS_IN_FORCE_MAX: u64 = 5000;

/// A conversation before its first event. A fork begins at a point of its parent.
pub fn new_conversation(key: &Key, created: Timestamp, fork: Option<(Parent, ForkPoint)>) -> Conversation {
    let head = fork.map_or(Head::genesis(key.id), |(_, point)| point.head);
    let mut conversation = Conversation::new(key.id, key.tenant.clone(), created, head);
    if let Some((parent, point)) = fork {
        conversation.turns = point.turns;
        conversation.parent = Some(parent);
    }
    conversation
}

/// Checks the parent of a fork.
pub(super) fn begin(
    key: &Key,
    created: Timestamp,
    parent: Option<Parent>,
    lookup: &dyn Lookup,
) -> Result<Conversation, Error> {
    let Some(parent) = parent else { return Ok(new_conversation(key, created, None)) };
    let found = lookup
        .fork_parent(parent)?
        .ok_or_else(|| absent(&Key { tenant: key.tenant.clone(), id: parent.conversation }))?;
    refusal::check_fork_depth(found.levels)?;
    let point = found.point.ok_or_else(|| no_such_seq(&found.conversation, parent.at_seq))?;
    Ok(new_conversation(key, created, Some((parent, point))))
}

pub(super) fn append(
    mut conversation: Conversation,
    drafts: Vec<Draft>,
    lookup: &dyn Lookup,
) -> Result<PlannedAppend, Error> {
    if drafts.is_empty() {
        return Err(refusal::empty());
    }
    let mut events = Vec::with_capacity(drafts.len());
    let mut changes = Changes::default();
    for draft in drafts {
        admit(&conversation, &draft, &changes, lookup)?;
        let event = chain::next_event(conversation.id, conversation.head, draft);
        fold(&mut conversation, &event, &mut changes, lookup)?;
        events.push(event);
    }
    conversation.check()?;
    // A call that no longer waits does not hold compaction back.
    let ends_wait = |kind: &str| matches!(kind, kind::TOOL_ABANDONED | kind::APPROVAL_RESOLVED);
    let grows = |kind: &str| kind::begins_turn(kind) || !kind::RESERVED.contains(&kind) && !ends_wait(kind);
    // What begins as an import was accepted elsewhere; its budget holds from then on.
    let is_carried_on = events[0].seq == 1 && events.iter().any(|event| event.kind == kind::IMPORT_FINISHED);
    // A fork begins with what its parent had; the text of a turn that is open there is no more.
    let is_fork = events[0].kind == kind::FORKED
        && !events.iter().any(|event| matches!(event.kind.as_str(), kind::MESSAGE | kind::TOOL_RESULT));
    if !is_carried_on && !is_fork && events.iter().any(|event| grows(&event.kind)) {
        check_budget(&conversation, &changes, lookup)?;
    }
    Ok(PlannedAppend::new(conversation, events, changes))
}

/// The origin of the fork that an event begins.
pub(super) fn origin(first: &Event) -> Option<Parent> {
    (first.kind == kind::FORKED).then(|| first.read::<Settings>()?.parent).flatten()
}

pub(super) fn restore(
    key: &Key,
    existing: Option<&Conversation>,
    events: Vec<Event>,
    lookup: &dyn Lookup,
) -> Result<PlannedAppend, Error> {
    let Some(first) = events.first() else { return Err(refusal::empty()) };
    let mut conversation = match existing {
        Some(conversation) => conversation.clone(),
        None => begin(key, first.at, origin(first), lookup)?,
    };
    let mut changes = Changes::default();
    let mut added = Vec::new();
    for event in events {
        if event.conversation != key.id {
            return Err(Error::invalid(
                "restore.foreign",
                format!("seq {} belongs to {}, not {}", event.seq, event.conversation, key.id),
            ));
        }
        if event.seq <= conversation.head.seq {
            if lookup.hash_at(event.seq)? != Some(event.hash) {
                return Err(Error::conflict(
                    code::DIVERGED,
                    format!(
                        "{} differs from what is here at seq {}; import it under another tenant or store",
                        key.id, event.seq
                    ),
                ));
            }
            continue;
        }
        chain::Verifier::after(conversation.id, conversation.head).push(&event)?;
        if kind::begins_turn(&event.kind) && find_turn(TurnId(event.id.0), &changes, lookup)?.is_some() {
            let text = format!(
                "seq {}: {} exists already; the file was not written by Everturn",
                event.seq,
                TurnId(event.id.0)
            );
            return Err(Error::corrupt("restore.turn_twice", text));
        }
        fold(&mut conversation, &event, &mut changes, lookup)?;
        added.push(event);
    }
    Ok(PlannedAppend::new(conversation, added, changes))
}

/// Messages and events in the messages view, without bytes. `fallen` is the number of superseded turns, which
/// do not count.
pub fn usage(conversation: &Conversation, fallen: u64) -> Usage {
    let (_, turns_before) = conversation.view_start();
    Usage {
        messages: conversation.turns.saturating_sub(turns_before).saturating_sub(fallen),
        events: conversation.view_events(),
        bytes: 0,
    }
}

/// Whether this many drafts that were prepared for a conversation would be prepared in another way now.
pub fn is_outdated(known: &Conversation, now: &Conversation, drafts: usize) -> bool {
    known.policy != now.policy || !has_room_for(now, drafts)
}

/// Whether this many events, each of which may begin a turn, certainly fit, without counting the view.
pub fn has_room_for(conversation: &Conversation, events: usize) -> bool {
    let incoming = Usage { messages: events as u64, events: events as u64, ..Usage::default() };
    surely_fits(conversation, incoming)
}

/// Whether an append certainly fits, without counting the view. Counts superseded turns, and as many events as can be in
/// force since before its start, which costs nothing and settles nearly every append.
pub fn surely_fits(conversation: &Conversation, incoming: Usage) -> bool {
    let (limits, roughly) = (conversation.budget_as_given(), usage(conversation, 0));
    let events = conversation.head.seq.min(roughly.events + EVENTS_IN_FORCE_MAX);
    limits.max_bytes.is_none() && limits.exceeded(&Usage { events, ..roughly }.plus(incoming)).is_none()
}

/// Refuses an append over the conversation's budget, if its policy is to reject. The engine counts bytes, and
/// makes room under the other policies: concurrent appends may exceed the limit by their number until the next
/// one makes room.
fn check_budget(conversation: &Conversation, changes: &Changes, lookup: &dyn Lookup) -> Result<(), Error> {
    // Counting superseded turns too costs nothing and settles nearly every append.
    if conversation.budget_as_given().exceeded(&usage(conversation, 0)).is_none() {
        return Ok(());
    }
    let policy = conversation.limits();
    if !policy.rejects() {
        return Ok(());
    }
    let start = conversation.view_start().0;
    let fallen = |row: &TurnRow| row.seq > start && (row.superseded_by.is_some() || row.place <= start);
    let changed: BTreeMap<u64, &TurnRow> = changes.turns.iter().map(|row| (row.seq, row)).collect();
    let mut now = lookup.fallen_after(start)?;
    for row in changed.into_values().filter(|row| fallen(row)) {
        now += u64::from(!lookup.turn(row.id)?.is_some_and(|before| fallen(&before)));
    }
    let usage = usage(conversation, now);
    if policy.exceeded(&usage).is_some() { Err(policy.refuse(&usage)) } else { Ok(()) }
}

/// Refuses a draft that the state of the conversation or of its turn does not allow.
fn admit(
    conversation: &Conversation,
    draft: &Draft,
    changes: &Changes,
    lookup: &dyn Lookup,
) -> Result<(), Error> {
    let kind = &*draft.kind;
    let refuse = |advice: &str| {
        Err(Error::conflict(
            "conversation.not_active",
            format!("{} is {}; {advice}", conversation.id, conversation.state),
        ))
    };
    // No turn, prompt, pin, approval or tool comes after the end; what is said about the conversation still does: settings,
    // facts and checkpoints, which retention needs, and erasure.
    // The end of an open turn may carry assets.
    let brought = kind == kind::ASSET_ADDED && draft.turn.is_some();
    let about_it = matches!(kind, kind::ERASED | kind::UPDATED | kind::COMPACTION | kind::RECEIPT)
        || kind::ends_turn(kind)
        || kind::is_fact(kind)
        || kind == kind::FACTS_READ
        || brought;
    match conversation.state {
        Lifecycle::Active => {}
        Lifecycle::Archived | Lifecycle::Abandoned if about_it || kind == kind::STATE => {}
        Lifecycle::Archived | Lifecycle::Abandoned => {
            return refuse("set its state to active first (`everturn archive --undo`)");
        }
        Lifecycle::Closed if about_it => {}
        Lifecycle::Closed => {
            return refuse("it cannot be continued: `reset` starts a new one, `fork` goes on from a copy");
        }
    }
    if kind::ends_turn(kind) {
        let row = about_turn(draft.turn, changes, lookup)?;
        if row.status != Status::Pending {
            return Err(not_open(row.id, row.status));
        }
    }
    if kind::is_fact(kind) && draft.turn.is_some() {
        let row = about_turn(draft.turn, changes, lookup)?;
        if row.status == Status::Pending {
            return Err(still_open(row.id));
        }
    }
    if kind == kind::COMPACTION
        && let Ok(body) = serde_json::from_str::<Compacted>(&draft.body.text)
        && body.previous != conversation.checkpoint
    {
        return Err(Error::conflict(
            code::COMPACTION_STALE,
            "another compaction finished first; nothing is lost, and there may be nothing left to compact",
        ));
    }
    if kind == kind::SUPERSEDED {
        let row = about_turn(draft.turn, changes, lookup)?;
        // An aborted turn refers to the event that ended it until a turn replaces it.
        if let Some(by @ Successor::Turn(_)) = row.superseded_by {
            return Err(Error::conflict(
                "turn.superseded",
                format!("{} is superseded by {by} already; supersede that one", row.id),
            ));
        }
        if row.status == Status::Pending {
            return Err(still_open(row.id));
        }
    }
    Ok(())
}

fn about_turn(turn: Option<TurnId>, changes: &Changes, lookup: &dyn Lookup) -> Result<TurnRow, Error> {
    let id = turn.ok_or_else(|| Error::invalid("turn.missing", "the event names no turn"))?;
    find_turn(id, changes, lookup)?.ok_or_else(|| absent_turn(id))
}
