//! Projection of a conversation: which slice of its messages view the next request sees.

use super::ConversationContexts;
use crate::conversation::ConversationHandle;
use crate::load::Slot;
use crate::writer::Commit;
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::conversation::view_start;
use everturn_core::event::{Event, Visibility, kind};
use everturn_core::json::Raw;
use everturn_core::viewer::{Viewer, is_for_everyone};
use everturn_core::write::Action;
use everturn_store::TurnQuery;
use everturn_views::projection::{self, Message, Options};
use everturn_views::state::Fold;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::ops::ControlFlow;

/// Conversations above this are projected a few at a time.
const LARGE_BYTES: u64 = 4 * 1024 * 1024;

/// A view of a conversation.
#[derive(Clone, Debug)]
pub struct Projection {
    /// The result object: messages, indices, counts, hash, pointers, event.
    pub result: Raw,
    /// Just the messages.
    pub messages: Vec<Raw>,
    /// The hash of the messages.
    pub prefix_hash: String,
    body: ProjectionBody,
}

/// The body of a `transcript.projection` event.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct ProjectionBody {
    /// Why the view is as it is.
    text: String,
    /// The result without its messages.
    metadata: Value,
    /// The messages are the turns after this place …
    after_seq: u64,
    /// … up to this one, as they stood then.
    through_seq: u64,
    /// Actors whose private turns were visible; absent if all were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    viewer: Option<Vec<String>>,
    /// Actors that may see the view, where it holds private turns; absent if everyone may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    audience: Option<Vec<String>>,
}

impl ConversationContexts<'_> {
    /// Projects the messages view. Nothing is written.
    pub fn project(&self, options: &Options) -> Result<Projection, Error> {
        let key = self.0.key();
        let head = self.0.shared().journal.index.conversation(key)?.head.seq;
        let fold = self.0.shared().fold(key, head)?;
        let (after_seq, _) = view_start(fold.checkpoint, fold.budget);
        let (messages, is_public, _slot) = self.0.messages(after_seq, head)?;
        let summary = self.0.checkpoint(fold.checkpoint)?.map(|checkpoint| checkpoint.handoff_md);
        let previous = self.0.previous_projection(&fold)?;
        let options = options.clone().with_scratchpads(&self.0.scratchpads(&fold)?);
        let view = projection::project_after(&messages, summary.as_deref(), &options, previous.as_ref())?;
        Ok(Projection {
            result: Raw::of(&view)?,
            messages: view.messages.iter().map(|shown| shown.raw().clone()).collect(),
            prefix_hash: view.prefix_hash.clone(),
            body: ProjectionBody {
                text: view.reason.clone(),
                metadata: view.event()["metadata"].take(),
                after_seq,
                through_seq: head,
                viewer: self.0.tenant.viewer().names(),
                audience: (!is_public).then(|| self.0.tenant.viewer().names().unwrap_or_default()),
            },
        })
    }

    /// Projects for a request: the decision is recorded, and whoever follows the conversation is told.
    pub fn project_turn(&self, options: &Options) -> Result<(Projection, Event), Error> {
        let projection = self.0.contexts().project(options)?;
        let event = self.0.record_projection(&projection).wait()?;
        Ok((projection, event))
    }

    /// Makes a recorded view again from the log. Its hash is the recorded one, or the error says what is different.
    pub fn replay_projection(&self, seq: u64) -> Result<Vec<Raw>, Error> {
        let _key = self.0.key();
        let event = self.0.event_at(seq)?.filter(|event| event.kind == kind::PROJECTION);
        let body = event.and_then(|event| event.read::<ProjectionBody>()).ok_or_else(|| {
            Error::not_found(
                "projection.absent",
                format!("{} has no transcript.projection at seq {seq}", self.0.id()),
            )
        })?;
        let viewer = body.viewer.map_or(Viewer::Owner, Viewer::actors);
        let maker = self.0.seen_by(viewer.clone());
        let (messages, is_public, _slot) = maker.messages(body.after_seq, body.through_seq)?;
        if !is_public && !self.0.tenant.viewer().includes(&viewer) {
            let text = "the view holds private turns that are not yours; ask someone who may see them";
            return Err(Error::not_found("projection.private", text));
        }
        let view = projection::replay(&messages, &body.metadata)?;
        Ok(view.messages.iter().map(|shown| shown.raw().clone()).collect())
    }
}

impl ConversationHandle {
    fn record_projection(&self, projection: &Projection) -> Commit<Event> {
        let draft = self.shared().draft(kind::PROJECTION, &projection.body).map(|mut draft| {
            draft.role = Some(everturn_core::turn::Role::System);
            if projection.body.audience.is_some() {
                draft.visibility = Visibility::Private;
            }
            draft
        });
        let action =
            draft.map(|draft| Action::Append { drafts: vec![draft], expected_seq: None, idempotency: None });
        self.write(action, |mut committed| committed.events.pop().ok_or_else(crate::writer::closed))
    }

    /// The metadata of the last projection's event.
    pub(crate) fn previous_projection(&self, fold: &Fold) -> Result<Option<Value>, Error> {
        let Some(seq) = fold.projection else { return Ok(None) };
        Ok(self.event_at(seq)?.and_then(|event| event.read::<ProjectionBody>()).map(|body| body.metadata))
    }

    /// The messages of the turns after a place that stood when the log ended at another, and whether everyone may see them
    /// all. If they are large, also the slot that they take up as long as they are in memory.
    fn messages(&self, after: u64, through: u64) -> Result<(Vec<Message>, bool, Option<Slot<'_>>), Error> {
        let (mut messages, mut is_public, mut slot) = (Vec::new(), true, None);
        let query = TurnQuery { after: Some(after), as_of: Some(through), ..TurnQuery::default() };
        let mut bytes = 0;
        self.each_turn(query, |turn| {
            bytes += turn.message.as_ref().map_or(0, |message| message.get().len() as u64);
            self.shared().check_whole(bytes)?;
            if bytes > LARGE_BYTES && slot.is_none() {
                slot = Some(self.shared().wholes.take());
            }
            is_public &= turn.hidden || is_for_everyone(&turn);
            messages.extend(turn.message.map(Message::read).transpose()?);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok((messages, is_public, slot))
    }
}

/// The hash of a rendered prompt: its system part and its messages, line by line.
pub(crate) fn prompt_hash(system: Option<&Raw>, messages: &[Raw]) -> Hash {
    let lines: Vec<&str> = system.into_iter().chain(messages).map(Raw::get).collect();
    Hash::of(lines.join("\n").as_bytes())
}
