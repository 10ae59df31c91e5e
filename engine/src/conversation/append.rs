//! Appending turns.

use super::{ConversationHandle, idempotency};
use crate::compaction::budget::has_room_for;
use crate::ingest::{DraftKind, Ingested, NewTurn};
use crate::writer::{Commit, CommitFuture, Submitted};
use everturn_core::Error;
use everturn_core::chain::{Hash, Head};
use everturn_core::conversation::Conversation;
use everturn_core::json::Raw;
use everturn_core::limits::ASSET_INLINE_BYTES_MAX;
use everturn_core::turn::Turn;
use everturn_core::write::Action;
use everturn_views::state::speaks_of_tools;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::future::IntoFuture;
use std::sync::Arc;

/// Conditions of an append.
#[derive(Clone, Debug, Default)]
pub struct AppendOptions {
    /// Refuse unless the log ends at this `seq`.
    pub expected_seq: Option<u64>,
    /// An append repeated with the same key, also after a restart, returns the first result and writes nothing.
    pub idempotency_key: Option<String>,
}

/// Result of an append.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Appended {
    /// The turns, with their ids and `seq`.
    pub turns: Vec<Turn>,
    /// New end of the log.
    pub head: Head,
    /// Whether this was appended before, under the same idempotency key.
    pub repeated: bool,
}

/// Turns to append as one atomic batch, by [`ConversationHandle::append`]. A sync caller [`wait`](Append::wait)s, an async one `.await`s.
#[must_use = "nothing is appended before `wait`, `submit` or `.await`"]
pub struct Append {
    conversation: ConversationHandle,
    turns: Vec<NewTurn>,
    options: AppendOptions,
}

impl Append {
    /// Sets the actor of each turn that has none.
    pub fn by(mut self, actor: impl Into<String>) -> Append {
        let actor = actor.into();
        self.turns.iter_mut().for_each(|turn| _ = turn.actor.get_or_insert_with(|| actor.clone()));
        self
    }

    /// Sets the conditions.
    pub fn with(mut self, options: AppendOptions) -> Append {
        self.options = options;
        self
    }

    /// Appends, and blocks until it is durable.
    pub fn wait(self) -> Result<Appended, Error> {
        self.submit().wait()
    }

    /// Hands the turns to the writer. Blocks only to prepare them: if the conversation must be read first, payloads
    /// become assets or room has to be made.
    pub fn submit(self) -> Commit<Appended> {
        let conversation = self.conversation.shared().journal.conversation(self.conversation.key());
        self.submit_to(conversation)
    }

    /// [`submit`](Append::submit)s if that does not block, as for nearly every append; otherwise returns the append,
    /// to be submitted on a thread that may block.
    pub fn try_submit(self) -> Result<Commit<Appended>, Box<Append>> {
        let bytes: usize = self.turns.iter().map(|turn| turn.message.len()).sum();
        // The calls that a bound caller answers are looked up first.
        let is_bound = !self.conversation.tenant.caller().actors().is_empty();
        let reads = is_bound && self.turns.iter().any(|turn| speaks_of_tools(&turn.message));
        match self.conversation.shared().journal.known_conversation(self.conversation.key()) {
            Some(conversation)
                if !reads
                    && bytes <= ASSET_INLINE_BYTES_MAX
                    && has_room_for(&conversation, self.turns.len()) =>
            {
                Ok(self.submit_to(Ok(conversation)))
            }
            _ => Err(Box::new(self)),
        }
    }

    fn submit_to(self, conversation: Result<Arc<Conversation>, Error>) -> Commit<Appended> {
        let request = match &self.options.idempotency_key {
            Some(_) => Raw::of(&self.turns).map(|raw| Some(Hash::of(raw.get().as_bytes()))),
            None => Ok(None),
        };
        let shared = self.conversation.shared();
        self.conversation.append_to(conversation, self.options, request, |conversation, ingested| {
            let mut turns = self.turns.into_iter();
            turns.try_for_each(|turn| shared.ingest(conversation, turn, DraftKind::Whole, ingested))
        })
    }
}

impl IntoFuture for Append {
    type Output = Result<Appended, Error>;
    type IntoFuture = CommitFuture<Appended>;

    fn into_future(self) -> CommitFuture<Appended> {
        self.submit().into_future()
    }
}

impl ConversationHandle {
    /// Appends a turn: `chat.append("hello").by("alice").wait()?`. A text alone is a user's turn.
    pub fn append(&self, turn: impl Into<NewTurn>) -> Append {
        self.append_all([turn])
    }

    /// Appends turns as one atomic batch.
    pub fn append_all(&self, turns: impl IntoIterator<Item = impl Into<NewTurn>>) -> Append {
        Append {
            conversation: self.clone(),
            turns: turns.into_iter().map(Into::into).collect(),
            options: AppendOptions::default(),
        }
    }

    /// Appends turns, or ends an open one, in one batch with the events that belong to them.
    pub(crate) fn append_with(
        &self,
        options: AppendOptions,
        request: Result<Option<Hash>, Error>,
        fill: impl FnOnce(&Conversation, &mut Ingested) -> Result<(), Error>,
    ) -> Commit<Appended> {
        self.append_to(self.shared().journal.conversation(self.key()), options, request, fill)
    }

    fn append_to(
        &self,
        conversation: Result<Arc<Conversation>, Error>,
        options: AppendOptions,
        request: Result<Option<Hash>, Error>,
        fill: impl FnOnce(&Conversation, &mut Ingested) -> Result<(), Error>,
    ) -> Commit<Appended> {
        Commit::new(self.submit_turns(conversation, options, request, fill), |committed| {
            Ok(Appended {
                turns: committed.events.iter().filter_map(Turn::begun).collect(),
                head: committed.conversation.head,
                repeated: committed.repeated,
            })
        })
    }

    /// Hands turns, with the events that belong to them, to the writer.
    pub(crate) fn submit_turns(
        &self,
        conversation: Result<Arc<Conversation>, Error>,
        options: AppendOptions,
        request: Result<Option<Hash>, Error>,
        fill: impl FnOnce(&Conversation, &mut Ingested) -> Result<(), Error>,
    ) -> Result<Submitted, Error> {
        let mut ingested = Ingested { drafts: Vec::new(), uploads: Vec::new() };
        let prepared = (|| {
            let idempotency = idempotency(options.idempotency_key, request?)?;
            let conversation = conversation?;
            fill(&conversation, &mut ingested)?;
            let room = self.make_room(&conversation, &ingested.drafts, "append")?;
            ingested.drafts.splice(..0, room);
            Ok((idempotency, conversation))
        })();
        match prepared {
            Err(error) => {
                self.shared().journal.uploaded(&ingested.uploads);
                Err(error)
            }
            Ok((idempotency, conversation)) => {
                let drafts = ingested.drafts;
                let action = Action::Append { drafts, expected_seq: options.expected_seq, idempotency };
                self.tenant.submit_to(self.key().clone(), Some(&conversation), action, ingested.uploads)
            }
        }
    }
}
