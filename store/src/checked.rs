//! Verified reads: nothing leaves a store unless it matches its hash.
//!
//! A backend returns events as it finds them. The traits here are the only way in which the engine reads: they
//! compare each body and each envelope with its hash, and derive turns and descriptors from the events that
//! passed. They are implemented for every backend at once, so that no backend can skip the check.

use crate::{Index, Log, StoredTurn, TurnQuery};
use everturn_core::Error;
use everturn_core::chain;
use everturn_core::conversation::Conversation;
use everturn_core::error::code;
use everturn_core::event::{Event, kind};
use everturn_core::id::{ConversationId, Key, TenantName, TurnId};
use everturn_core::json::Raw;
use everturn_core::turn::{Status, Successor, Turn, TurnRow};
use everturn_core::write::SupersededBody;

/// Verified events. `Corrupt` names the first one that does not match its hash.
pub trait CheckedLog: Log {
    /// Events of a conversation with `seq` greater than `after`, ascending, at most `limit`. For a fork, its parent's
    /// events come first, under the parent's conversation id.
    fn events(&self, key: &Key, after: u64, limit: usize) -> Result<Vec<Event>, Error> {
        let events = self.stored_events(key, after, limit)?;
        for (event, expected) in events.iter().zip(after.saturating_add(1)..) {
            if event.seq != expected {
                return Err(missing(key, expected));
            }
            chain::check(event)?;
        }
        Ok(events)
    }

    /// A conversation with its head's hash from its last event. Its row has it too, but no hash covers the row.
    fn with_head(&self, mut conversation: Conversation) -> Result<Conversation, Error> {
        let key = Key { tenant: conversation.tenant.clone(), id: conversation.id };
        let seq = conversation.head.seq;
        if let Some(before) = seq.checked_sub(1) {
            let last = self.events(&key, before, 1)?.pop();
            conversation.head.hash = last.ok_or_else(|| missing(&key, seq))?.hash;
        }
        Ok(conversation)
    }
}

fn missing(key: &Key, seq: u64) -> Error {
    Error::corrupt(
        "chain.missing_seq",
        format!(
            "{} has no event at seq {seq}; read what is after it with `after` {seq}, and restore it from a backup",
            key.id
        ),
    )
}

impl<T: Log> CheckedLog for T {}

/// Verified turns and asset descriptors. `Corrupt` names the first event that does not match its hash.
pub trait CheckedIndex: Index {
    /// Turns of a conversation, inherited ones included.
    fn turns(&self, key: &Key, query: &TurnQuery) -> Result<Vec<Turn>, Error> {
        self.stored_turns(key, query)?.into_iter().map(turn).collect()
    }

    /// One turn and the conversation that it was written in.
    fn turn(&self, tenant: &TenantName, id: TurnId) -> Result<Turn, Error> {
        turn(self.stored_turn(tenant, id)?)
    }

    /// One turn as a conversation sees it: a fork sees inherited turns as of the fork point.
    fn turn_in(&self, key: &Key, id: TurnId) -> Result<Turn, Error> {
        turn(self.stored_turn_in(key, id)?)
    }

    /// Several turns as their conversations see them, each by itself.
    fn turns_in(
        &self,
        tenant: &TenantName,
        turns: &[(ConversationId, TurnId)],
    ) -> Result<Vec<Result<Turn, Error>>, Error> {
        Ok(self.stored_turns_in(tenant, turns)?.into_iter().map(|stored| turn(stored?)).collect())
    }

    /// Descriptors of a conversation's assets, inherited ones included, in order.
    fn assets(&self, key: &Key) -> Result<Vec<Raw>, Error> {
        self.stored_assets(key)?.into_iter().filter_map(|event| descriptor(event).transpose()).collect()
    }

    /// Descriptor of one asset, inherited ones included.
    fn asset(&self, key: &Key, id: &str) -> Result<Option<Raw>, Error> {
        self.stored_asset(key, id)?.map_or(Ok(None), descriptor)
    }

    /// The conversations of a tenant in which an asset was added under this id, with its descriptor: one for
    /// each different content, at most `limit`. Generated ids are unique, but an imported asset keeps its own.
    fn assets_with_id(
        &self,
        tenant: &TenantName,
        id: &str,
        limit: usize,
    ) -> Result<Vec<(ConversationId, Raw)>, Error> {
        let found = self.stored_assets_with_id(tenant, id, limit)?.into_iter();
        let read = |(conversation, event)| Ok(descriptor(event)?.map(|raw| (conversation, raw)));
        found.filter_map(|found| read(found).transpose()).collect()
    }
}

impl<T: Index> CheckedIndex for T {}

/// The descriptor that an `asset.added` event carries; `None` if it was erased.
fn descriptor(event: Event) -> Result<Option<Raw>, Error> {
    chain::check(&event)?;
    event.body.map(|body| Raw::new(body.text)).transpose()
}

/// Derives a turn from its events. The row is trusted only where an event confirms it.
fn turn(stored: StoredTurn) -> Result<Turn, Error> {
    let StoredTurn { conversation, row, events } = stored;
    events.iter().try_for_each(chain::check)?;
    let at = |seq: u64| events.iter().find(|event| event.seq == seq);
    let wrong = |what: &str| {
        Error::corrupt(
            code::TURN_ROW,
            format!(
                "{conversation} seq {} ({}): {what}; `everturn doctor --rebuild` makes the index again from the log",
                row.seq, row.id
            ),
        )
    };
    let begun = at(row.seq).ok_or_else(|| wrong("the event that began the turn is missing"))?;
    let told = TurnRow::begun(begun).filter(|told| told.id == row.id);
    let told = told.ok_or_else(|| wrong("another event stands where the turn began"))?;
    let mut status = told.status;
    let mut content = begun;
    if let Some(seq) = row.content_seq {
        content = at(seq).ok_or_else(|| wrong("the event with its content is missing"))?;
        status = match content.kind.as_str() {
            kind::COMMITTED => Status::Complete,
            kind::ABORTED => Status::Aborted,
            kind::INTERRUPTED => Status::Interrupted,
            _ => return Err(wrong("another event stands where its content was")),
        };
        if content.turn != Some(row.id) {
            return Err(wrong("the event with its content is about another turn"));
        }
    } else if told.status == Status::Pending && row.status == Status::Interrupted {
        // A fork that began while the turn was open sees it as interrupted.
        status = Status::Interrupted;
    }
    if status != row.status {
        return Err(wrong("its status differs from the log"));
    }
    if let (Some(by), Some(seq)) = (row.superseded_by, row.superseded_seq) {
        let event = at(seq).ok_or_else(|| wrong("the event that superseded it is missing"))?;
        let is_so = event.turn == Some(row.id)
            && match by {
                Successor::Turn(by) => event.read::<SupersededBody>().is_none_or(|body| body.by == by),
                Successor::Event(id) => id == event.id,
            };
        if !is_so {
            return Err(wrong("it was not superseded as the index says"));
        }
    }
    let row = TurnRow { actor: told.actor, role: told.role, created: told.created, ..row };
    Ok(Turn::read(conversation, row, content))
}
