//! Custom events, and superseding.

use super::{AppendOptions, Appended, ConversationHandle, repeat_or};
use crate::ingest::{DraftKind, Ingested, NewTurn};
use crate::proof::ConversationLog;
use crate::writer::Commit;
use everturn_core::Error;
use everturn_core::approval::is_about_approval;
use everturn_core::conversation::Conversation;
use everturn_core::error::code;
use everturn_core::event::{Draft, Event, Visibility, kind};
use everturn_core::id::{ConversationId, EventId, TurnId};
use everturn_core::json::Raw;
use everturn_core::turn::{Successor, Turn, TurnBody};
use everturn_core::viewer::Viewer;
use everturn_core::write::{Action, Idempotency, SupersededBody};
use everturn_store::TurnQuery;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// Most edits of one turn that are followed.
const EDITS_MAX: usize = 1000;
/// Most attempts to branch while turns that would be copied are erased.
const BRANCH_TRIES: usize = 8;

impl ConversationLog<'_> {
    /// Appends an event of a custom kind: an audit note, a snapshot, anything that is not a turn.
    pub fn append(&self, kind: &str, actor: Option<String>, body: impl serde::Serialize) -> Commit<Event> {
        let prepared = self.0.event_action(kind, actor, body, None);
        self.0.write(prepared, |mut committed| committed.events.pop().ok_or_else(crate::writer::closed))
    }
}

impl ConversationHandle {
    /// The request that appends an event of a custom kind.
    pub(crate) fn event_action(
        &self,
        kind: &str,
        actor: Option<String>,
        body: impl serde::Serialize,
        idempotency: Option<Idempotency>,
    ) -> Result<Action, Error> {
        let asked = idempotency.clone();
        self.new_event_action(kind, actor, body, idempotency).or_else(|error| repeat_or(error, asked))
    }

    fn new_event_action(
        &self,
        kind: &str,
        actor: Option<String>,
        body: impl serde::Serialize,
        idempotency: Option<Idempotency>,
    ) -> Result<Action, Error> {
        let mut body = Raw::of(&body)?;
        // Also here: names in the body, such as that of an approval, are compared with masked ones.
        crate::ingest::redact(&mut body, self.redaction()?)?;
        if kind::RESERVED.contains(&kind) {
            let text = format!("{kind} is written by Everturn itself; choose a kind of your own");
            return Err(Error::invalid("kind.reserved", text));
        }
        everturn_views::state::check(kind, &body)?;
        self.check_room(kind, &body)?;
        let draft = Draft { actor, ..self.shared().draft(kind.to_string(), &body)? };
        draft.check()?;
        let conversation = self.shared().journal.conversation(self.key())?;
        // An answer is never refused for want of room: it lets the conversation go on.
        let mut drafts = match kind {
            kind::APPROVAL_RESOLVED => Vec::new(),
            _ => self.make_room(
                &conversation,
                std::slice::from_ref(&draft),
                "append_event",
                idempotency.as_ref(),
            )?,
        };
        drafts.push(draft);
        if is_about_approval(kind) {
            return self.approve(drafts, &body);
        }
        Ok(Action::Append { drafts, expected_seq: None, prepared_for: None, idempotency })
    }

    /// Edits a turn in place: the new turn is appended and read in place of the old one, and later turns stay. The old
    /// one points to it; nothing is changed or lost. A private turn stays private, unless the new one says
    /// otherwise.
    pub fn supersede(&self, turn: TurnId, mut with: NewTurn) -> Commit<Appended> {
        let mut place = None;
        let appended = self.append_with(AppendOptions::default(), Ok(None), |conversation, ingested| {
            place = Some(self.inherit(turn, &mut with)?);
            self.shared().ingest(conversation, with, DraftKind::Whole, ingested)?;
            let by = last_turn(ingested)?;
            self.replace(turn, by, ingested)
        });
        let conversation = self.clone();
        appended.map(move |appended| {
            // Not read from the store: it is written, so nothing may fail any more.
            let placed =
                |turn: Turn| conversation.viewed(Turn { place: place.unwrap_or(turn.place), ..turn });
            let turns = appended.turns.into_iter().map(placed).collect::<Result<_, _>>()?;
            Ok(Appended { turns, ..appended })
        })
    }

    /// Edits a turn and goes on from there: a fork with everything that is read before the turn, and the new one instead
    /// of it. This conversation stays as it is.
    pub fn edit_and_branch(
        &self,
        turn: TurnId,
        mut with: NewTurn,
    ) -> Result<(ConversationHandle, Appended), Error> {
        let place = self.inherit(turn, &mut with)?;
        for _ in 1..BRANCH_TRIES {
            match self.branch(place, with.clone()) {
                // Something that was read before is not copied after its erasure.
                Err(error) if error.is(code::SOURCE_ERASED) => {}
                branched => return branched,
            }
        }
        self.branch(place, with)
    }

    /// Makes the fork in one step.
    fn branch(&self, place: u64, with: NewTurn) -> Result<(ConversationHandle, Appended), Error> {
        let journal = &self.shared().journal;
        let mark = journal.index.erasures(&self.key().tenant)?;
        let fork = self.tenant.conversation(ConversationId(journal.source.ulid()?));
        let (parent, drafts) = self.fork_drafts(Some(place - 1), None)?;
        let (mut ingested, mut copies) = (Ingested { drafts, uploads: Vec::new() }, BTreeMap::new());
        let prepared = (|| {
            let conversation = journal.conversation(self.key())?;
            for (edit, replaced) in self.edits_before(place)? {
                let mut by = Some(edit.id).filter(|_| edit.seq < place || edit.message.is_none());
                for old in replaced {
                    let row = journal.index.stored_turn_in(self.key(), old)?.row;
                    if row.as_of(place - 1).superseded_by.is_some() {
                        continue;
                    }
                    let by = match by {
                        Some(by) => by,
                        None => *by.insert(self.copy(&conversation, &edit, &mut ingested, &mut copies)?),
                    };
                    self.replace(old, by, &mut ingested)?;
                }
            }
            self.shared().ingest(&conversation, with, DraftKind::Whole, &mut ingested)
        })();
        if let Err(error) = prepared {
            journal.uploaded(&ingested.uploads);
            return Err(error);
        }
        let action = Action::Branch { drafts: ingested.drafts, parent, copies, mark };
        let submitted = self.tenant.submit(fork.key().clone(), action, ingested.uploads);
        let appended = Commit::new(submitted, |committed| {
            Ok(Appended {
                turns: committed.events.last().and_then(Turn::begun).into_iter().collect(),
                head: committed.conversation.head,
                repeated: false,
            })
        });
        Ok((fork, appended.wait()?))
    }

    /// The turns that are read before a place and came there later, each with those from before that place that it
    /// replaces.
    fn edits_before(&self, place: u64) -> Result<Vec<(Turn, Vec<TurnId>)>, Error> {
        // Private turns are copied too, and stay private.
        let all = self.seen_by(Viewer::Owner);
        let mut edits: Vec<(Turn, Vec<TurnId>)> = Vec::new();
        let query = TurnQuery { before: Some(place), moved_after: Some(place - 1), ..TurnQuery::default() };
        all.each_turn(query, |edit| {
            edits.push((edit, Vec::new()));
            Ok(ControlFlow::Continue(()))
        })?;
        let Some((first, _)) = edits.first() else { return Ok(edits) };
        let before = TurnQuery {
            after: Some(first.place - 1),
            before: Some(place),
            whole_log: true,
            ..TurnQuery::default()
        };
        all.each_turn(before, |turn| {
            let (mut way, mut next) = (vec![turn.id], turn.superseded_by);
            // Aborted turns may replace each other in a circle.
            while let Some(Successor::Turn(by)) = next.filter(|_| way.len() <= EDITS_MAX) {
                way.push(by);
                next = match all.turn(by) {
                    Ok(turn) => turn.superseded_by,
                    // A branch does not copy an erased edit, and yet what it replaced stays replaced.
                    Err(Error::NotFound(_)) => None,
                    Err(error) => return Err(error),
                };
            }
            let end = edits.iter_mut().find(|(edit, _)| way.len() > 1 && way.last() == Some(&edit.id));
            if let Some((_, replaced)) = end {
                replaced.push(turn.id);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(edits)
    }

    /// Gives an edit the actor of the old turn, and makes that of a private turn private, unless it says otherwise. Whoever may
    /// not act as that actor edits a public turn in its own name. Returns the place of the turn.
    fn inherit(&self, turn: TurnId, with: &mut NewTurn) -> Result<u64, Error> {
        let old = self.visible_turn(turn)?;
        let mut stays_private = false;
        if with.visibility.is_none() && with.audience.is_empty() && old.visibility == Visibility::Private {
            (with.visibility, with.audience) = (Some(Visibility::Private), old.audience);
            stays_private = true;
        }
        let may_act = |actor: &String| stays_private || self.tenant.caller().check(actor).is_ok();
        with.actor = with.actor.take().or(old.actor.filter(may_act));
        Ok(old.place)
    }

    /// Adds a copy of a turn. It keeps its author and the key that wrote it, and names the turns that it is a copy of.
    fn copy(
        &self,
        conversation: &Conversation,
        turn: &Turn,
        ingested: &mut Ingested,
        copies: &mut BTreeMap<EventId, u64>,
    ) -> Result<TurnId, Error> {
        let (seq, role, turn) = (turn.seq, turn.role, turn.clone());
        let stored = self.shared().journal.index.stored_turn_in(self.key(), turn.id)?;
        let bodies = stored.events.iter().filter_map(Event::read::<TurnBody>);
        let origins = std::iter::once(turn.id).chain(bodies.flat_map(|body| body.copy_of)).collect();
        let key = stored.events.first().and_then(|event| event.key.clone());
        let new = NewTurn {
            message: turn.message.map(|message| message.get().to_string()).unwrap_or_default(),
            actor: turn.actor,
            visibility: Some(turn.visibility),
            audience: turn.audience,
            tokens: turn.tokens,
            model: turn.model,
            adapter: turn.adapter,
            metadata: turn.metadata,
            occurred_at: turn.occurred_at,
        };
        self.shared().ingest(conversation, new, DraftKind::Copied(role, origins), ingested)?;
        let draft = ingested.drafts.last_mut().ok_or_else(crate::writer::closed)?;
        draft.key = key;
        copies.insert(draft.id, seq);
        Ok(TurnId(draft.id.0))
    }

    /// Adds the event that has a turn replace another.
    fn replace(&self, old: TurnId, by: TurnId, ingested: &mut Ingested) -> Result<(), Error> {
        let draft = self.shared().draft(kind::SUPERSEDED, &SupersededBody { by })?;
        ingested.drafts.push(Draft { turn: Some(old), ..draft });
        Ok(())
    }
}

/// The turn that the last draft begins.
fn last_turn(ingested: &Ingested) -> Result<TurnId, Error> {
    ingested.drafts.last().map(|draft| TurnId(draft.id.0)).ok_or_else(crate::writer::closed)
}
