//! Custom events, and superseding.

use super::{AppendOptions, Appended, ConversationHandle, ForkOptions};
use crate::ingest::{DraftKind, Ingested, NewTurn};
use crate::writer::Commit;
use everturn_core::Error;
use everturn_core::approval::is_about_approval;
use everturn_core::conversation::Conversation;
use everturn_core::event::{Draft, Event, Visibility, kind};
use everturn_core::id::TurnId;
use everturn_core::json::Raw;
use everturn_core::turn::{Successor, Turn};
use everturn_core::viewer::Viewer;
use everturn_core::write::{Action, SupersededBody};
use everturn_store::TurnQuery;
use std::ops::ControlFlow;

/// Most edits of one turn that are followed.
const EDITS_MAX: usize = 1000;

impl ConversationHandle {
    /// Appends an event of a custom kind: an audit note, a snapshot, anything that is not a turn.
    pub fn append_event(
        &self,
        kind: &str,
        actor: Option<String>,
        body: impl serde::Serialize,
    ) -> Commit<Event> {
        let prepared = (|| {
            let body = Raw::of(&body)?;
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
                _ => self.make_room(&conversation, std::slice::from_ref(&draft), "append_event")?,
            };
            drafts.push(draft);
            if is_about_approval(kind) {
                return self.approve(drafts, &body);
            }
            Ok(Action::Append { drafts, expected_seq: None, idempotency: None })
        })();
        self.write(prepared, |mut committed| committed.events.pop().ok_or_else(crate::writer::closed))
    }

    /// Edits a turn in place: the new one is appended and read where the old one stood, and what follows stays. The old
    /// one points to it; nothing is changed or lost. A private turn stays private, unless the new one says
    /// otherwise.
    pub fn supersede(&self, turn: TurnId, mut with: NewTurn) -> Commit<Appended> {
        let appended = self.append_with(AppendOptions::default(), Ok(None), |conversation, ingested| {
            self.inherit_visibility(turn, &mut with)?;
            self.shared().ingest(conversation, with, DraftKind::Whole, ingested)?;
            let by = last_turn(ingested)?;
            self.replace(turn, by, ingested)
        });
        let conversation = self.clone();
        appended.map(move |mut appended| {
            // Its place is that of the old one.
            for turn in &mut appended.turns {
                *turn = conversation.turn(turn.id)?;
            }
            Ok(appended)
        })
    }

    /// Edits a turn and goes on from there: a fork with everything that is read before the turn, and the new one instead
    /// of it. This conversation stays as it is.
    pub fn edit_and_branch(
        &self,
        turn: TurnId,
        mut with: NewTurn,
    ) -> Result<(ConversationHandle, Appended), Error> {
        let place = self.visible_turn(turn)?.place;
        self.inherit_visibility(turn, &mut with)?;
        let conversation = self.shared().journal.conversation(self.key())?;
        // A turn that the fork would refuse is refused before the fork is made.
        let mut trial = Ingested { drafts: Vec::new(), uploads: Vec::new() };
        let accepted = self.shared().ingest(&conversation, with.clone(), DraftKind::Whole, &mut trial);
        self.shared().journal.uploaded(&trial.uploads);
        accepted?;
        let edits = self.edits_before(place)?;
        let fork = self.fork(ForkOptions { at_seq: Some(place - 1), idempotency_key: None }).wait()?;
        let appended = fork.append_with(AppendOptions::default(), Ok(None), |conversation, ingested| {
            for (edit, replaced) in edits {
                let mut by = Some(edit.id).filter(|_| edit.seq < place);
                for old in replaced {
                    if fork.turn(old)?.superseded_by.is_some() {
                        continue;
                    }
                    let by = match by {
                        Some(by) => by,
                        None => *by.insert(self.copy(conversation, &edit, ingested)?),
                    };
                    self.replace(old, by, ingested)?;
                }
            }
            self.shared().ingest(conversation, with, DraftKind::Whole, ingested)
        });
        let mut appended = appended.wait()?;
        appended.turns.drain(..appended.turns.len() - 1);
        Ok((fork, appended))
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
                next = all.turn(by)?.superseded_by;
            }
            let end = edits.iter_mut().find(|(edit, _)| way.len() > 1 && way.last() == Some(&edit.id));
            if let Some((_, replaced)) = end {
                replaced.push(turn.id);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(edits)
    }

    /// Makes the edit of a private turn private, unless it says otherwise.
    fn inherit_visibility(&self, turn: TurnId, with: &mut NewTurn) -> Result<(), Error> {
        let old = self.visible_turn(turn)?;
        if with.visibility.is_none() && with.audience.is_empty() && old.visibility == Visibility::Private {
            (with.visibility, with.audience) = (Some(Visibility::Private), old.audience);
            with.actor = with.actor.take().or(old.actor);
        }
        Ok(())
    }

    /// Adds a copy of a turn.
    fn copy(
        &self,
        conversation: &Conversation,
        turn: &Turn,
        ingested: &mut Ingested,
    ) -> Result<TurnId, Error> {
        let turn = turn.clone();
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
        self.shared().ingest(conversation, new, DraftKind::Said(turn.role), ingested)?;
        last_turn(ingested)
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
