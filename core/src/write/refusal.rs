//! Refusals: one sentence on what is wrong and one on what to do.

use crate::Error;
use crate::conversation::Conversation;
use crate::error::code;
use crate::event::Draft;
use crate::id::{Key, TurnId};
use crate::limits::{BATCH_EVENTS_MAX, FORK_DEPTH_MAX};
use crate::turn::Status;

/// The conversation is absent, deleted or another tenant's.
pub fn absent(key: &Key) -> Error {
    Error::not_found("conversation.absent", format!("no conversation {}; `list` shows what there is", key.id))
}

/// The turn is absent or another tenant's.
pub fn absent_turn(id: TurnId) -> Error {
    Error::not_found("turn.absent", format!("no turn {id} here; `history` shows what there is"))
}

/// A chunk, a commit or an abort for a turn that has ended.
pub fn not_open(turn: TurnId, status: Status) -> Error {
    Error::conflict("turn.not_open", format!("{turn} is {status} already; open a new turn"))
}

/// The turn must have ended first.
pub fn still_open(turn: TurnId) -> Error {
    Error::conflict("turn.open", format!("{turn} is still open; commit or abort it first"))
}

/// The conversation has no event at `seq`.
pub fn no_such_seq(conversation: &Conversation, seq: u64) -> Error {
    let head = conversation.head.seq;
    Error::invalid(
        "seq.out_of_range",
        format!("{} has no seq {seq}; its events are 1 to {head}", conversation.id),
    )
}

/// The log does not end at the `seq` that the request expects.
pub fn stale_seq(head: u64, expected: u64) -> Error {
    let from = expected.min(head) + 1;
    Error::conflict(
        code::STALE_SEQ,
        format!("head is {head}, you expected {expected}; read from {from} and append again"),
    )
}

/// The drafts would be prepared in another way now.
pub(super) fn outdated() -> Error {
    Error::conflict(code::OUTDATED, "the conversation was changed meanwhile; try again")
}

pub(super) fn exists(conversation: &Conversation) -> Error {
    Error::conflict(
        code::CONVERSATION_EXISTS,
        format!(
            "{} exists already, with {} events; append to it instead",
            conversation.id, conversation.head.seq
        ),
    )
}

pub(super) fn not_due(conversation: &Conversation) -> Error {
    Error::conflict("delete.not_due", format!("{} is in use again; it stays", conversation.id))
}

pub(super) fn derived_from_erased() -> Error {
    Error::conflict(
        code::SOURCE_ERASED,
        "content that this is derived from was erased in the meantime; nothing was written, derive it again",
    )
}

pub(super) fn empty() -> Error {
    Error::invalid("append.empty", "nothing to append; give at least one turn")
}

pub(super) fn check_batch(drafts: &[Draft]) -> Result<(), Error> {
    if drafts.len() > BATCH_EVENTS_MAX {
        let (limit, got) = (BATCH_EVENTS_MAX as u64, drafts.len() as u64);
        return Err(Error::limit("BATCH_EVENTS_MAX", limit, got, "append in several batches"));
    }
    Ok(())
}

/// Refuses a fork that would have too many ancestors. `levels` counts its parent and the parent's ancestors.
pub(super) fn check_fork_depth(levels: usize) -> Result<(), Error> {
    if levels > FORK_DEPTH_MAX {
        let advice =
            "start over from its transcript value, imported under another tenant or into another store";
        return Err(Error::limit("FORK_DEPTH_MAX", FORK_DEPTH_MAX as u64, levels as u64, advice));
    }
    Ok(())
}
