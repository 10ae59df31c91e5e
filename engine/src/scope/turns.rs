//! Turns: saying, streaming, replacing and erasing.

use super::{AppendOptions, Appended, NewStream, Tenant, idempotency};
use crate::compaction::budget::has_room_for;
use crate::ingest::{NewTurn, Place};
use crate::writer::Commit;
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::conversation::Conversation;
use everturn_core::event::{Draft, Event, Visibility, kind};
use everturn_core::id::{ConversationId, EventId, Key, TurnId};
use everturn_core::json::{Raw, quote};
use everturn_core::limits::ASSET_INLINE_BYTES_MAX;
use everturn_core::turn::{Role, Status, Turn, TurnBody};
use everturn_core::write::{Action, SupersededBody, not_open};
use serde_json::{Map, Value, json};
use std::sync::Arc;

impl Tenant {
    /// Appends turns as one atomic batch. Blocks while it prepares them, if the conversation must be read first, payloads
    /// become assets or room has to be made; then the [`Commit`] is waited for.
    pub fn append(
        &self,
        id: ConversationId,
        turns: Vec<NewTurn>,
        options: AppendOptions,
    ) -> Commit<Appended> {
        self.append_prepared(id, self.shared().conversation(&self.key(id)), turns, options)
    }

    /// The same if preparing it does not block, as for nearly every append; else the turns come back. For async callers, who
    /// then [`append`](Tenant::append) on a thread that may block.
    pub fn append_unless_blocking(
        &self,
        id: ConversationId,
        turns: Vec<NewTurn>,
        options: AppendOptions,
    ) -> Result<Commit<Appended>, (Vec<NewTurn>, AppendOptions)> {
        let bytes: usize = turns.iter().map(|turn| turn.message.len()).sum();
        match self.shared().known_conversation(&self.key(id)) {
            Some(conversation)
                if bytes <= ASSET_INLINE_BYTES_MAX && has_room_for(&conversation, turns.len()) =>
            {
                Ok(self.append_prepared(id, Ok(conversation), turns, options))
            }
            _ => Err((turns, options)),
        }
    }

    fn append_prepared(
        &self,
        id: ConversationId,
        conversation: Result<Arc<Conversation>, Error>,
        turns: Vec<NewTurn>,
        options: AppendOptions,
    ) -> Commit<Appended> {
        let request = match &options.idempotency_key {
            Some(_) => Raw::of(&turns).map(|raw| Some(Hash::of(raw.get().as_bytes()))),
            None => Ok(None),
        };
        self.append_to(id, conversation, options, request, |conversation, ingested| {
            turns
                .into_iter()
                .try_for_each(|turn| self.shared().ingest(conversation, turn, Place::Whole, ingested))
        })
    }

    /// Appends an event of the caller's own kind: an audit note, a snapshot, anything that is not a turn.
    pub fn append_event(
        &self,
        id: ConversationId,
        kind: &str,
        actor: Option<String>,
        body: Raw,
    ) -> Commit<Event> {
        let prepared = (|| {
            if kind::RESERVED.contains(&kind) {
                let text = format!("{kind} is written by Everturn itself; choose a kind of your own");
                return Err(Error::invalid("kind.reserved", text));
            }
            everturn_views::state::check(kind, &body)?;
            let draft = Draft { actor, ..self.shared().draft(kind.to_string(), &body)? };
            draft.check()?;
            let conversation = self.shared().conversation(&self.key(id))?;
            let mut drafts = self.make_room(&conversation, std::slice::from_ref(&draft), "append_event")?;
            drafts.push(draft);
            Ok(Action::Append { drafts, expected_seq: None, idempotency: None })
        })();
        self.write(id, prepared, |mut committed| committed.events.pop().ok_or_else(crate::writer::closed))
    }

    /// Opens a turn whose text will come in chunks.
    pub fn append_open(&self, id: ConversationId, new: NewStream) -> Commit<Turn> {
        let prepared = (|| {
            let ulid = self.shared().source.ulid()?;
            let request = Raw::of(&json!([new.actor, new.role, new.model, new.metadata]))?;
            let idempotency = idempotency(new.idempotency_key, Some(Hash::of(request.get().as_bytes())))?;
            let body = TurnBody { model: new.model, metadata: new.metadata, ..TurnBody::default() };
            let draft = Draft {
                id: EventId(ulid),
                turn: Some(TurnId(ulid)),
                actor: new.actor,
                role: Some(new.role.unwrap_or(Role::Assistant)),
                visibility: Visibility::Public,
                ..self.shared().draft(kind::OPENED, &body)?
            };
            draft.check()?;
            let conversation = self.shared().conversation(&self.key(id))?;
            let mut drafts = self.make_room(&conversation, std::slice::from_ref(&draft), "append_open")?;
            drafts.push(draft);
            Ok(Action::Append { drafts, expected_seq: None, idempotency })
        })();
        self.write(id, prepared, |committed| {
            committed.events.last().and_then(Turn::begun).ok_or_else(crate::writer::closed)
        })
    }

    /// Adds to an open turn: shown at once, durable within the debounce time. `offset` is the number of bytes before
    /// this piece, so that a repeated chunk changes nothing and a missing one is noticed; without it, it goes to the end.
    /// Gives the length afterwards.
    pub fn append_chunk(
        &self,
        id: ConversationId,
        turn: TurnId,
        offset: Option<u64>,
        delta: &str,
    ) -> Result<u64, Error> {
        let (key, shared) = (self.key(id), self.shared());
        match shared.streams.chunk(&shared.hub, &key, turn, offset, delta, shared.now())? {
            Some(length) => Ok(length),
            None => Err(self.not_open(&key, turn)),
        }
    }

    /// Why a turn is not open here.
    fn not_open(&self, key: &Key, turn: TurnId) -> Error {
        match self.shared().index.turn_in(key, turn) {
            Ok(turn) if turn.status == Status::Pending => {
                let text = format!("{} is open in another process; send its chunks there", turn.id);
                Error::conflict("turn.open_elsewhere", text)
            }
            Ok(turn) => not_open(turn.id, turn.status),
            Err(error) => error,
        }
    }

    /// Ends an open turn. Without a message, or in one without content, what came in chunks is its content. In a message, `role`
    /// may be left out.
    pub fn append_commit(&self, id: ConversationId, turn: TurnId, last: NewTurn) -> Commit<Turn> {
        self.end(id, turn, last, kind::COMMITTED, None, None)
    }

    /// Gives up an open turn; what was said so far is kept. Its `superseded_by` names the abort, or the turn given here.
    pub fn append_abort(
        &self,
        id: ConversationId,
        turn: TurnId,
        reason: &str,
        replacement: Option<TurnId>,
    ) -> Commit<Turn> {
        self.end(id, turn, NewTurn::default(), kind::ABORTED, Some(reason.to_string()), replacement)
    }

    fn end(
        &self,
        id: ConversationId,
        turn: TurnId,
        mut last: NewTurn,
        kind: &'static str,
        reason: Option<String>,
        replacement: Option<TurnId>,
    ) -> Commit<Turn> {
        let scope = self.clone();
        let key = self.key(id);
        let appended = self.append_with(id, AppendOptions::default(), Ok(None), |conversation, ingested| {
            let open = self.shared().open_turn(&key, turn).ok_or_else(|| self.not_open(&key, turn))?;
            last.message = match last.message.is_empty() {
                true => NewTurn::text(open.role, &open.text).message,
                false => with_words(last.message, &open.text),
            };
            last.actor = last.actor.or(open.actor);
            last.model = last.model.or(open.model);
            for (key, value) in open.metadata {
                last.metadata.entry(key).or_insert(value);
            }
            self.shared().ingest(conversation, last, Place::End(turn, open.role, kind, reason), ingested)?;
            if let Some(by) = replacement {
                if by == turn {
                    let text = format!("{turn} cannot replace itself; name another turn, or none");
                    return Err(Error::invalid("turn.replaces_itself", text));
                }
                self.shared().index.turn_in(&key, by)?;
                let body = SupersededBody { by };
                ingested
                    .drafts
                    .push(Draft { turn: Some(turn), ..self.shared().draft(kind::SUPERSEDED, &body)? });
            }
            Ok(())
        });
        appended.map(move |_| scope.turn_in(id, turn))
    }

    /// Replaces a turn: the new one is appended, the old one points to it. Nothing is changed or lost.
    pub fn supersede(&self, id: ConversationId, turn: TurnId, with: NewTurn) -> Commit<Appended> {
        self.append_with(id, AppendOptions::default(), Ok(None), |conversation, ingested| {
            self.shared().ingest(conversation, with, Place::Whole, ingested)?;
            let by =
                ingested.drafts.last().map(|draft| TurnId(draft.id.0)).ok_or_else(crate::writer::closed)?;
            ingested.drafts.push(Draft {
                turn: Some(turn),
                ..self.shared().draft(kind::SUPERSEDED, &SupersededBody { by })?
            });
            Ok(())
        })
    }
}

/// A message that says nothing itself, such as one with tool calls only, with the words that came in chunks.
fn with_words(message: String, text: &str) -> String {
    let fields: Option<Map<String, Value>> = serde_json::from_str(&message).ok();
    let Some(fields) = fields.filter(|_| !text.is_empty()) else { return message };
    if ["content", "parts", "type"].iter().any(|name| fields.contains_key(*name)) {
        return message;
    }
    let rest = message.trim_start().strip_prefix('{').unwrap_or_default();
    let comma = if fields.is_empty() { "" } else { "," };
    format!("{{\"content\":{}{comma}{rest}", quote(text))
}
