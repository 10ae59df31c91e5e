//! Turns: saying, streaming, replacing and erasing.

use super::{AppendOptions, Appended, NewStream, Scope, idempotency};
use crate::ingest::{NewTurn, Place};
use crate::writer::Commit;
use everturn_core::Error;
use everturn_core::chain::{Hash, Head};
use everturn_core::conversation::Retention;
use everturn_core::event::{Draft, Event, Visibility, kind};
use everturn_core::id::{ConversationId, EventId, Key, TurnId};
use everturn_core::json::Raw;
use everturn_core::turn::{Role, Status, Turn, TurnBody};
use everturn_core::write::{Action, ErasedBody, SupersededBody, not_open};
use everturn_store::TurnQuery;
use serde_json::{Value, json};
use std::ops::ControlFlow;

impl Scope {
    /// Appends turns as one atomic batch.
    pub fn append(
        &self,
        id: ConversationId,
        turns: Vec<NewTurn>,
        options: AppendOptions,
    ) -> Commit<Appended> {
        let request = match &options.idempotency_key {
            Some(_) => Raw::of(&turns).map(|raw| Some(Hash::of(raw.get().as_bytes()))),
            None => Ok(None),
        };
        self.append_with(id, options, request, |conversation, ingested| {
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
            everturn_core::state::check(kind, &body)?;
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

    /// Ends an open turn. Without a message, what came in chunks is its content. In a message, `role` may be left out.
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
            if last.message.is_empty() {
                last.message = NewTurn::text(open.role, &open.text).message;
            }
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

    /// Erases a turn's content from every file of the store. Its envelope and hash stay: the chain still verifies.
    /// Summaries that cover it may repeat its words: they are erased as well, and written anew from what is left.
    pub fn erase(&self, id: ConversationId, turn: TurnId, by: Option<String>, reason: &str) -> Commit<Head> {
        let found = (|| {
            // Erasing is the way to go on from a damaged body, so it does not read it.
            let (seq, message) = match self.shared().index.turn_in(&self.key(id), turn) {
                Ok(said) => (said.seq, said.value().unwrap_or_default()),
                Err(Error::Corrupt(_)) => {
                    let stored = self.shared().index.stored_turn_in(&self.key(id), turn)?;
                    (stored.row.seq, Value::Null)
                }
                Err(error) => return Err(error),
            };
            let results = everturn_core::pairing::pair([&message]).results;
            let answered = results.iter().filter_map(|result| result.id.map(str::to_string)).collect();
            let (checkpoints, before) = self.checkpoints_over(&self.key(id), seq)?;
            let events = checkpoints.iter().map(|at| at.seq).collect();
            let current = self.shared().index.conversation(&self.key(id))?.checkpoint;
            let current = current.filter(|current| checkpoints.contains(current));
            Ok((Erasure { turns: vec![turn], answered, events }, current, before))
        })();
        match found {
            Err(error) => Commit::ready(Err(error)),
            Ok((erasure, None, _)) => self.erase_turns(id, erasure, by, reason),
            Ok((erasure, Some(current), before)) => {
                let erased = self.erase_turns(id, erasure, by, reason).wait();
                Commit::ready(erased.and_then(|_| self.summarize_anew(id, current, before)))
            }
        }
    }

    fn erase_turns(
        &self,
        id: ConversationId,
        Erasure { turns, events, answered }: Erasure,
        by: Option<String>,
        reason: &str,
    ) -> Commit<Head> {
        let prepared = (|| {
            for turn in &turns {
                if self.shared().open_turn(&self.key(id), *turn).is_some() {
                    return Err(Error::conflict(
                        "turn.open",
                        format!("{turn} is still open; commit or abort it first"),
                    ));
                }
            }
            let mut learned = Vec::new();
            for turn in &turns {
                learned.extend(self.shared().index.learned_from(&self.tenant, *turn)?);
            }
            let body = ErasedBody { turns: turns.clone(), reason: reason.to_string(), answered, learned };
            let turn = turns.first().copied().filter(|_| turns.len() == 1);
            let draft = Draft { actor: by, turn, ..self.shared().draft(kind::ERASED, &body)? };
            draft.check()?;
            Ok(Action::Erase { turns, events, draft })
        })();
        let shared = self.shared().clone();
        self.write(id, prepared, move |committed| {
            crate::indexer::forget_erased(&shared);
            Ok(committed.conversation.head)
        })
    }

    /// What retention asks for once everything up to `through` is covered by a summary: with `audit-only` or `ephemeral`
    /// the bodies of those turns are erased; with `full` nothing happens. Inherited turns are their owner's to keep.
    /// Gives how many were erased.
    pub fn apply_retention(&self, id: ConversationId, through: u64) -> Result<usize, Error> {
        let conversation = self.shared().index.conversation(&self.key(id))?;
        if conversation.retention == Retention::Full {
            return Ok(0);
        }
        let query = TurnQuery {
            after: conversation.parent.map(|parent| parent.at_seq),
            before: Some(through.saturating_add(1)),
            include_superseded: true,
            ..TurnQuery::default()
        };
        let mut due: Vec<TurnId> = Vec::new();
        self.each_turn(&self.key(id), query, |turn| {
            if !turn.erased && turn.status != Status::Pending {
                due.push(turn.id);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        for turns in due.chunks(RETENTION_TURNS_MAX) {
            let erasure = Erasure { turns: turns.to_vec(), ..Erasure::default() };
            let reason = format!("retention {}", conversation.retention);
            self.erase_turns(id, erasure, None, &reason).wait()?;
        }
        Ok(due.len())
    }
}

/// What is erased in one step.
#[derive(Default)]
struct Erasure {
    turns: Vec<TurnId>,
    /// The places of checkpoints that cover them.
    events: Vec<u64>,
    /// The calls that the turns answered.
    answered: Vec<String>,
}

/// Turns whose bodies one retention step erases.
const RETENTION_TURNS_MAX: usize = 500;
