//! Custom events, and superseding.

use super::{AppendOptions, Appended, ConversationHandle};
use crate::ingest::{DraftKind, NewTurn};
use crate::writer::Commit;
use everturn_core::Error;
use everturn_core::approval::is_about_approval;
use everturn_core::event::{Draft, Event, Visibility, kind};
use everturn_core::id::TurnId;
use everturn_core::json::Raw;
use everturn_core::write::{Action, SupersededBody};

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
            self.check_scratchpads(kind, &body)?;
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

    /// Replaces a turn: the new one is appended, the old one points to it. Nothing is changed or lost.
    /// A private turn stays private, unless the new one says otherwise.
    pub fn supersede(&self, turn: TurnId, mut with: NewTurn) -> Commit<Appended> {
        self.append_with(AppendOptions::default(), Ok(None), |conversation, ingested| {
            let old = self.visible_turn(turn)?;
            if with.visibility.is_none() && with.audience.is_empty() && old.visibility == Visibility::Private
            {
                (with.visibility, with.audience) = (Some(Visibility::Private), old.audience);
                with.actor = with.actor.or(old.actor);
            }
            self.shared().ingest(conversation, with, DraftKind::Whole, ingested)?;
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
