//! Projection of a conversation: the part of its messages view for the next request.

use super::ConversationContexts;
use crate::compaction::CompactOptions;
use crate::conversation::ConversationHandle;
use crate::writer::closed;
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::conversation::Settings;
use everturn_core::event::{Draft, Event, Visibility, kind};
use everturn_core::json::Raw;
use everturn_core::turn::Role;
use everturn_core::viewer::Viewer;
use everturn_core::write::Action;
use everturn_views::projection::{Shown, ViewOptions};
use everturn_views::state::Fold;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A view of a conversation.
#[derive(Clone, Debug)]
#[non_exhaustive]
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
pub(super) struct ProjectionBody {
    /// Explanation of the view.
    pub text: String,
    /// The result without its messages.
    pub metadata: Value,
    /// Place after which the projected turns begin.
    pub after_seq: u64,
    /// `seq` as of which they are read.
    pub through_seq: u64,
    /// Only messages before this place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
    /// Whether the messages are those of a prompt, which the receipt after it makes again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub of_receipt: bool,
    /// Actors whose private turns were visible; absent if all were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub viewer: Option<Vec<String>>,
    /// Actors that may see the view, where it holds private turns; absent if everyone may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audience: Option<Vec<String>>,
}

impl ConversationContexts<'_> {
    /// Projects the messages view. Nothing is written.
    pub fn project(&self, options: &ViewOptions) -> Result<Projection, Error> {
        let key = self.0.key();
        let head = self.0.shared().journal.index.conversation(key)?.head.seq;
        let fold = self.0.shared().fold(key, head)?;
        let options = options.clone().redacted(self.0.redaction()?)?;
        let options = options.with_scratchpads(&self.0.scratchpads(&fold)?);
        let summary = self.0.public_summary(&fold)?;
        let previous = self.0.previous_projection(&fold)?;
        self.0.with_transcript(&fold, |transcript| {
            let (after_seq, is_public) = (transcript.after_seq, transcript.is_public);
            let (view, _) = transcript.project(summary.as_deref(), &options, previous.as_ref())?;
            Ok(Projection {
                result: Raw::of(&view)?,
                messages: view.messages.iter().map(|shown| shown.raw().clone()).collect(),
                prefix_hash: view.prefix_hash.clone(),
                body: ProjectionBody {
                    text: view.reason.clone(),
                    metadata: view.event()["metadata"].take(),
                    after_seq,
                    through_seq: head,
                    before: None,
                    of_receipt: false,
                    viewer: self.0.tenant.viewer().names(),
                    audience: (!is_public).then(|| self.0.tenant.viewer().names().unwrap_or_default()),
                },
            })
        })
    }

    /// Projects for a request: compacts first if that is due, records the decision, and notifies subscribers.
    pub fn project_turn(&self, options: &ViewOptions) -> Result<(Projection, Event), Error> {
        self.0.compact_before_call()?;
        let projection = self.project(options)?;
        let draft = self.0.projection_draft(&projection.body);
        let action = draft.map(|draft| Action::append(vec![draft]));
        let committed = self.0.write(action, |mut committed| committed.events.pop().ok_or_else(closed));
        Ok((projection, committed.wait()?))
    }

    /// The projection of this conversation's policy, if it has one.
    pub fn default_projection(&self) -> Result<Option<ViewOptions>, Error> {
        let conversation = self.0.shared().journal.conversation(self.0.key())?;
        let value = conversation.policy.get(PROJECTION).and_then(Raw::read::<Value>);
        value.as_ref().map(crate::script::options).transpose()
    }

    /// Rebuilds a recorded view from the log. An error names the difference if the hash is not the recorded one.
    pub fn replay_projection(&self, seq: u64) -> Result<Vec<Raw>, Error> {
        let event = self.0.event_at(seq)?.filter(|event| event.kind == kind::PROJECTION);
        if event.as_ref().is_some_and(|event| event.body.is_none() && !event.hidden) {
            let text = format!("the projection at seq {seq} was erased with words that it showed");
            return Err(Error::not_found("projection.erased", text));
        }
        let body = event.and_then(|event| event.read::<ProjectionBody>()).ok_or_else(|| {
            Error::not_found(
                "projection.absent",
                format!("{} has no transcript.projection at seq {seq}", self.0.id()),
            )
        })?;
        if body.of_receipt {
            let text = format!(
                "the projection at seq {seq} is of the prompt in the receipt that follows it; replay that receipt"
            );
            return Err(Error::invalid("projection.of_receipt", text));
        }
        let shown = |messages: &[Shown<'_>]| messages.iter().map(|shown| shown.raw().clone()).collect();
        let viewer = body.viewer.map_or(Viewer::Owner, Viewer::actors);
        let maker = self.0.seen_by(viewer.clone());
        let check = |is_public: bool| match is_public || self.0.tenant.viewer().includes(&viewer) {
            true => Ok(()),
            false => {
                let text =
                    "the view contains private turns that you may not see; ask someone with access to them";
                Err(Error::not_found("projection.private", text))
            }
        };
        let transcript = maker.read_transcript(body.after_seq, body.through_seq)?;
        check(transcript.is_public)?;
        Ok(shown(&transcript.replay(body.before, &body.metadata)?.0.messages))
    }
}

/// Name of the policy that holds a conversation's default projection.
const PROJECTION: &str = "projection";

/// Refuses settings with a default projection that cannot be made.
pub(crate) fn check_projection(settings: &Settings) -> Result<(), Error> {
    let value = settings.policy.get(PROJECTION).filter(|raw| raw.get() != "null");
    let Some(value) = value.and_then(Raw::read::<Value>) else { return Ok(()) };
    crate::script::options(&value)?.check_projector()
}

impl ConversationHandle {
    pub(super) fn projection_draft(&self, body: &ProjectionBody) -> Result<Draft, Error> {
        let mut draft = Draft { role: Some(Role::System), ..self.shared().draft(kind::PROJECTION, body)? };
        if body.audience.is_some() {
            draft.visibility = Visibility::Private;
        }
        Ok(draft)
    }

    /// Compacts before a model call if the policy says so. A summarizer is not waited for: with one, the background does
    /// it.
    pub(crate) fn compact_before_call(&self) -> Result<(), Error> {
        let options = &self.shared().options;
        if !options.auto_compaction || !options.summarizers.is_empty() {
            return Ok(());
        }
        let extractive = CompactOptions { extractive: true, ..CompactOptions::default() };
        match self.compact_if_due(&extractive) {
            // Somebody else has just compacted, which is as good.
            Ok(_) | Err(Error::Conflict(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The metadata of the last projection's event.
    pub(crate) fn previous_projection(&self, fold: &Fold) -> Result<Option<Value>, Error> {
        let Some(seq) = fold.projection else { return Ok(None) };
        Ok(self.event_at(seq)?.and_then(|event| event.read::<ProjectionBody>()).map(|body| body.metadata))
    }
}

/// The hash of a rendered prompt: its system part and its messages, line by line.
pub(crate) fn prompt_hash(system: Option<&Raw>, messages: &[Raw]) -> Hash {
    let lines: Vec<&str> = system.into_iter().chain(messages).map(Raw::get).collect();
    Hash::of(lines.join("\n").as_bytes())
}
