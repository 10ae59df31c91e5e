//! Applying one event to its conversation and the rows.

use super::body::{Compacted, StateBody, Summarized, SupersededBody, Trimmed};
use super::lookup::Turns;
use super::rows::{AssetReference, AssetRow, Changes, EchoRow, FactRow, SummaryRow};
use crate::Error;
use crate::asset::Asset;
use crate::chain::Head;
use crate::conversation::{BudgetRef, CheckpointRef, Conversation, Settings};
use crate::echo;
use crate::event::{Event, kind};
use crate::fact;
use crate::id::TurnId;
use crate::limits::PARTICIPANTS_MAX;
use crate::message;
use crate::turn::{Status, Successor, TurnBody, TurnRow};
use serde_json::Value;

/// Applies an event to its conversation and the rows. An imported event that lacks what its kind requires is
/// stored, but changes nothing.
pub fn fold(
    conversation: &mut Conversation,
    event: &Event,
    changes: &mut Changes,
    lookup: &dyn Turns,
) -> Result<(), Error> {
    match event.kind.as_str() {
        kind::CREATED | kind::UPDATED | kind::FORKED => {
            if let Some(settings) = event.read::<Settings>() {
                if settings.checkpoint.is_some() {
                    changes.summaries.push(SummaryRow { seq: event.seq, through_seq: 0 });
                }
                conversation.set(settings, event.seq);
            }
        }
        kind::STATE => {
            if let Some(body) = event.read::<StateBody>() {
                conversation.state = body.state;
            }
        }
        kind if kind::begins_turn(kind) => {
            // An imported event that names no turn is an event only.
            if let Some(row) = TurnRow::begun(event) {
                changes.turns.push(row);
                conversation.turns += 1;
                // Nothing is said after it was stored, whatever a client's clock states.
                conversation.note_turn(event.occurred_at.unwrap_or(event.at).min(event.at));
                refer(event, event.seq, changes);
            }
        }
        kind if kind::ends_turn(kind) => end_turn(event, changes, lookup)?,
        kind::SUPERSEDED => {
            if let (Some(id), Some(body)) = (event.turn, event.read::<SupersededBody>()) {
                supersede(event.seq, id, body.by, changes, lookup)?;
            }
        }
        kind::COMPACTION | kind::BUDGET => {
            let mut checkpoint = conversation.checkpoint;
            move_view(event, &mut checkpoint, &mut conversation.budget);
            conversation.set_checkpoint(checkpoint);
            changes.summaries.extend(summary(event));
        }
        kind::PROJECTION => changes.summaries.extend(summary(event)),
        kind if kind::is_fact(kind) => {
            if let Some((id, corrects)) = fact::told_by(event) {
                changes.facts.push(FactRow { id, seq: event.seq, source_turn: event.turn, corrects });
            }
        }
        kind::ASSET_ADDED => {
            if let Some(asset) = event.read::<Asset>() {
                changes.assets.push(AssetRow { id: asset.id, seq: event.seq, sha256: asset.sha256 });
            }
        }
        _ => {}
    }
    if echo::may_repeat(&event.kind) {
        let buckets = echo::buckets(event);
        changes.echoes.extend(buckets.into_iter().map(|bucket| EchoRow { seq: event.seq, bucket }));
    }
    if let Some(actor) = &event.actor
        && kind::is_of_turn(&event.kind)
        && conversation.participants.len() < PARTICIPANTS_MAX
        && !conversation.participants.contains(actor)
    {
        conversation.participants.push(actor.clone());
    }
    conversation.head = Head { seq: event.seq, hash: event.hash };
    conversation.updated = conversation.updated.max(event.at);
    Ok(())
}

/// Replaces a turn by another, which takes its place if that is the smaller one. A turn is replaced only once: two
/// replacements would have the same place.
fn supersede(
    seq: u64,
    turn: TurnId,
    by: TurnId,
    changes: &mut Changes,
    lookup: &dyn Turns,
) -> Result<(), Error> {
    let Some(mut row) = find_turn(turn, changes, lookup)? else { return Ok(()) };
    if matches!(row.superseded_by, Some(Successor::Turn(_))) {
        return Ok(());
    }
    let place = row.place;
    (row.superseded_by, row.superseded_seq) = (Some(Successor::Turn(by)), Some(seq));
    changes.turns.push(row);
    // The replacement may itself have been replaced; then its successors move as well. Aborted turns may replace each
    // other in a circle, which ends where nothing moves.
    let mut next = Some(by);
    while let Some(id) = next.take()
        && let Some(mut row) = find_turn(id, changes, lookup)?.filter(|row| place < row.place)
    {
        (row.place, row.placed_seq) = (place, Some(seq));
        if let Some(Successor::Turn(by)) = row.superseded_by {
            next = Some(by);
        }
        changes.turns.push(row);
    }
    Ok(())
}

fn end_turn(event: &Event, changes: &mut Changes, lookup: &dyn Turns) -> Result<(), Error> {
    let Some(id) = event.turn else { return Ok(()) };
    let Some(mut row) = find_turn(id, changes, lookup)? else { return Ok(()) };
    row.content_seq = Some(event.seq);
    row.status = match event.kind.as_str() {
        kind::COMMITTED => Status::Complete,
        kind::ABORTED => Status::Aborted,
        _ => Status::Interrupted,
    };
    if row.status == Status::Aborted {
        row.superseded_by = Some(Successor::Event(event.id));
        row.superseded_seq = Some(event.seq);
    }
    refer(event, row.seq, changes);
    changes.ended.push(row.seq);
    changes.turns.push(row);
    Ok(())
}

/// Records the assets that a turn's content refers to.
fn refer(event: &Event, turn_seq: u64, changes: &mut Changes) {
    // Most turns refer to none, and parsing each would slow every append.
    if !event.text().is_some_and(|text| text.contains("asset_")) {
        return;
    }
    let Some(message) = event.read::<TurnBody>().and_then(|body| body.message?.read::<Value>()) else {
        return;
    };
    for asset in message::asset_ids(&message) {
        changes.references.push(AssetReference { asset, turn_seq });
    }
}

pub(super) fn find_turn(id: TurnId, changes: &Changes, lookup: &dyn Turns) -> Result<Option<TurnRow>, Error> {
    match changes.turns.iter().rev().find(|row| row.id == id) {
        Some(row) => Ok(Some(row.clone())),
        None => lookup.turn(id),
    }
}

/// The row of an event that summarizes turns. A projection repeats the checkpoint that it was made with.
fn summary(event: &Event) -> Option<SummaryRow> {
    let through_seq = match event.kind.as_str() {
        kind::COMPACTION => {
            event.read::<Compacted>()?.summarized.map_or(0, |summarized| summarized.through_seq)
        }
        kind::PROJECTION => event.seq,
        _ => return None,
    };
    event.body.as_ref().map(|_| SummaryRow { seq: event.seq, through_seq })
}

/// Moves the start of the messages view for a compaction or a budget event.
pub fn move_view(event: &Event, checkpoint: &mut Option<CheckpointRef>, budget: &mut Option<BudgetRef>) {
    if event.kind == kind::COMPACTION
        && let Some(body) = event.read::<Compacted>()
    {
        match (body.reverts, body.summarized) {
            (Some(_), _) => {
                *checkpoint = body.restores;
                // Turns that are back have their events back.
                if let Some(budget) = budget {
                    budget.left = None;
                }
            }
            (None, Some(Summarized { through, through_seq, turns_before })) => {
                let (event, seq) = (event.id, event.seq);
                *checkpoint = Some(CheckpointRef { event, seq, through, through_seq, turns_before });
            }
            (None, None) => {}
        }
    }
    if event.kind == kind::BUDGET
        && let Some(body) = event.read::<Trimmed>()
    {
        let before = budget.map_or((0, 0), |b| (b.through_seq, b.turns_before));
        let (through_seq, turns_before) = body.trimmed.map_or(before, |t| (t.through_seq, t.turns_before));
        let left = body.left.or(budget.and_then(|budget| budget.left));
        *budget = Some(BudgetRef { seq: event.seq, through_seq, turns_before, left });
    }
}
