//! Appending turns.

use super::{ConversationHandle, idempotency, repeat_or};
use crate::ingest::{DraftKind, Ingested, NewTurn};
use crate::writer::{Commit, CommitFuture, PrepareAgain, Prepared, Submitted};
use everturn_core::Error;
use everturn_core::chain::{Hash, Head};
use everturn_core::conversation::Conversation;
use everturn_core::json::Raw;
use everturn_core::limits::ASSET_INLINE_BYTES_MAX;
use everturn_core::turn::Turn;
use everturn_core::write::{Action, Write, has_room_for};
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
#[non_exhaustive]
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
#[derive(Clone)]
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
    /// On a store that other processes write too, an append that must be prepared once more, because one of them changed
    /// the policy or filled the budget meanwhile, may be written after later appends that were submitted
    /// without waiting.
    pub fn submit(self) -> Commit<Appended> {
        self.try_submit().unwrap_or_else(|append| {
            let shared = append.conversation.shared().clone();
            appended(append.read_and_prepare().and_then(|(write, uploads)| shared.submit(write, uploads)))
        })
    }

    /// [`submit`](Append::submit)s if that does not block, as for nearly every append; otherwise returns the append,
    /// to be submitted on a thread that may block.
    pub fn try_submit(self) -> Result<Commit<Appended>, Box<Append>> {
        let bytes: usize = self.turns.iter().map(|turn| turn.message.len()).sum();
        // The calls that a bound caller answers are looked up first.
        let is_bound = !self.conversation.tenant.caller().actors().is_empty();
        let reads = is_bound && self.turns.iter().any(|turn| speaks_of_tools(&turn.message));
        let journal = &self.conversation.shared().journal;
        match journal.recent_conversation(self.conversation.key()) {
            Some(recent)
                if !reads && bytes <= ASSET_INLINE_BYTES_MAX && has_room_for(&recent, self.turns.len()) =>
            {
                Ok(self.submit_to(recent))
            }
            _ => Err(Box::new(self)),
        }
    }

    /// Prepares it for a conversation as it was a moment ago, with room for the turns. If that is outdated when it is
    /// written, because of another process, it is prepared once more.
    fn submit_to(self, recent: Arc<Conversation>) -> Commit<Appended> {
        let shared = self.conversation.shared().clone();
        let again = (!shared.journal.alone).then(|| self.clone());
        let prepared_for = again.is_some().then(|| recent.clone());
        let again = again.map(|append| -> PrepareAgain { Box::new(|| append.read_and_prepare()) });
        let room = Some(self.turns.len());
        let prepared = self.prepare(Ok(recent), prepared_for, room);
        appended(prepared.and_then(|(write, uploads)| shared.submit_prepared(write, uploads, again)))
    }

    fn read_and_prepare(self) -> Result<Prepared, Error> {
        let conversation = self.conversation.shared().journal.conversation(self.conversation.key());
        self.prepare(conversation, None, None)
    }

    fn prepare(
        self,
        conversation: Result<Arc<Conversation>, Error>,
        prepared_for: Option<Arc<Conversation>>,
        room: Option<usize>,
    ) -> Result<Prepared, Error> {
        let request = match &self.options.idempotency_key {
            Some(_) => Raw::of(&self.turns).map(|raw| Some(Hash::of(raw.get().as_bytes()))),
            None => Ok(None),
        };
        let shared = self.conversation.shared();
        let fill = |conversation: &Conversation, ingested: &mut Ingested| {
            let mut turns = self.turns.into_iter();
            turns.try_for_each(|turn| shared.ingest(conversation, turn, DraftKind::Whole, ingested))
        };
        self.conversation.prepare_turns(conversation, prepared_for, room, self.options, request, fill)
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
        let conversation = self.shared().journal.conversation(self.key());
        appended(self.submit_turns(conversation, options, request, fill))
    }

    /// Hands turns, with the events that belong to them, to the writer.
    pub(crate) fn submit_turns(
        &self,
        conversation: Result<Arc<Conversation>, Error>,
        options: AppendOptions,
        request: Result<Option<Hash>, Error>,
        fill: impl FnOnce(&Conversation, &mut Ingested) -> Result<(), Error>,
    ) -> Result<Submitted, Error> {
        let (write, uploads) = self.prepare_turns(conversation, None, None, options, request, fill)?;
        self.shared().submit(write, uploads)
    }

    /// Turns, with the events that belong to them, as a request to the writer. `room` is the number of events for which the
    /// conversation certainly has room, if known.
    fn prepare_turns(
        &self,
        conversation: Result<Arc<Conversation>, Error>,
        prepared_for: Option<Arc<Conversation>>,
        room: Option<usize>,
        options: AppendOptions,
        request: Result<Option<Hash>, Error>,
        fill: impl FnOnce(&Conversation, &mut Ingested) -> Result<(), Error>,
    ) -> Result<Prepared, Error> {
        let mut ingested = Ingested { drafts: Vec::new(), uploads: Vec::new() };
        let idempotency = idempotency(self.tenant.caller(), options.idempotency_key, request?)?;
        let asked = idempotency.clone();
        let prepared = (|| {
            let conversation = conversation?;
            fill(&conversation, &mut ingested)?;
            if room.is_none_or(|room| ingested.drafts.len() > room) {
                let made = self.make_room(&conversation, &ingested.drafts, "append", idempotency.as_ref())?;
                ingested.drafts.splice(..0, made);
            }
            let drafts = std::mem::take(&mut ingested.drafts);
            let expected_seq = options.expected_seq;
            let mut action = Action::Append { drafts, expected_seq, prepared_for, idempotency };
            self.tenant.prepare(self.key(), Some(&conversation), &mut action)?;
            Ok(action)
        })();
        match prepared.or_else(|error| repeat_or(error, asked)) {
            Ok(action) => Ok((Write { key: self.key().clone(), action }, ingested.uploads)),
            Err(error) => {
                self.shared().journal.uploaded(&ingested.uploads);
                Err(error)
            }
        }
    }
}

fn appended(submitted: Result<Submitted, Error>) -> Commit<Appended> {
    Commit::new(submitted, |committed| {
        Ok(Appended {
            turns: committed.events.iter().filter_map(Turn::begun).collect(),
            head: committed.conversation.head,
            repeated: committed.repeated,
        })
    })
}
