//! Conversations: beginning, changing, forking and ending them.

use super::{Change, ListQuery, NewConversation, Page, Tenant, idempotency, more, page_limit};
use crate::writer::Commit;
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::conversation::{
    Conversation, Parent, Retention, Settings, State, SystemPrompt, Tombstone,
};
use everturn_core::event::{Draft, Event, kind};
use everturn_core::id::ConversationId;
use everturn_core::json::Raw;
use everturn_core::limits::PAGE_ENTRIES_MAX;
use everturn_core::time::Timestamp;
use everturn_core::turn::Role;
use everturn_core::write::{Action, StateBody, stale_seq};
use everturn_store::ConversationQuery;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Tenant {
    /// Begins a conversation.
    pub fn create(&self, new: NewConversation) -> Commit<Conversation> {
        match check_by_hand(&new.settings) {
            Ok(()) => self.create_with(new),
            Err(error) => Commit::ready(Err(error)),
        }
    }

    fn create_with(&self, new: NewConversation) -> Commit<Conversation> {
        let prepared = (|| {
            let settings = new.settings.normalise()?;
            let request = new
                .idempotency_key
                .is_some()
                .then(|| Hash::of(Raw::of(&settings).unwrap_or_else(|_| null()).get().as_bytes()));
            let idempotency = idempotency(new.idempotency_key, request)?;
            let id = match new.id {
                Some(id) => id,
                None => ConversationId(self.shared().source.ulid()?),
            };
            let drafts = self.setting_drafts(kind::CREATED, &settings)?;
            Ok((id, Action::Create { drafts, parent: None, idempotency }))
        })();
        match prepared {
            Ok((id, action)) => {
                self.write(id, Ok(action), |committed| Ok(Arc::unwrap_or_clone(committed.conversation)))
            }
            Err(error) => {
                Commit::new(Err(error), |committed| Ok(Arc::unwrap_or_clone(committed.conversation)))
            }
        }
    }

    /// The events for new settings: the prompt's fingerprint leads, where one is set.
    pub(crate) fn setting_drafts(
        &self,
        kind: &'static str,
        settings: &Settings,
    ) -> Result<Vec<Draft>, Error> {
        let mut drafts = Vec::new();
        if let Some(Some(prompt)) = &settings.system_prompt {
            let fingerprint = serde_json::json!({"sha256": prompt.sha256, "bytes": prompt.bytes});
            drafts.push(Draft {
                role: Some(Role::System),
                ..self.shared().draft(kind::SYSTEM_PROMPT, &fingerprint)?
            });
        }
        drafts.push(self.shared().draft(kind, settings)?);
        drafts.iter().try_for_each(Draft::check)?;
        Ok(drafts)
    }

    /// A conversation; its metadata shows the system prompt with its text.
    pub fn get(&self, id: ConversationId) -> Result<Conversation, Error> {
        let mut conversation = self.shared().index.conversation(&self.key(id))?;
        if let Some(prompt) = self.prompt_of(&conversation)? {
            conversation.metadata.insert("system_prompt".into(), Raw::of(&prompt)?);
        }
        let budget = self.budget_metadata(&conversation)?;
        conversation.metadata.insert("transcript_budget".into(), budget);
        Ok(conversation)
    }

    fn prompt_of(&self, conversation: &Conversation) -> Result<Option<SystemPrompt>, Error> {
        let Some(prompt) = conversation.system_prompt else { return Ok(None) };
        let events = self.shared().log.events(&self.key(conversation.id), prompt.seq - 1, 1)?;
        Ok(events
            .first()
            .and_then(Event::read::<Settings>)
            .and_then(|settings| settings.system_prompt.flatten()))
    }

    /// The system prompt: the current one, or an earlier one by its fingerprint.
    pub fn system_prompt(
        &self,
        id: ConversationId,
        sha256: Option<Hash>,
    ) -> Result<Option<SystemPrompt>, Error> {
        let conversation = self.shared().index.conversation(&self.key(id))?;
        let Some(wanted) = sha256.filter(|hash| conversation.system_prompt.is_none_or(|p| p.sha256 != *hash))
        else {
            return self.prompt_of(&conversation);
        };
        let mut after = 0;
        loop {
            let page = self.shared().log.events(&self.key(id), after, PAGE_ENTRIES_MAX)?;
            let Some(last) = page.last() else { return Ok(None) };
            after = last.seq;
            let settings = page
                .iter()
                .filter(|e| [kind::CREATED, kind::UPDATED, kind::FORKED].contains(&e.kind.as_str()));
            let mut prompts =
                settings.filter_map(Event::read::<Settings>).filter_map(|s| s.system_prompt.flatten());
            if let Some(prompt) = prompts.find(|prompt| prompt.sha256 == wanted) {
                return Ok(Some(prompt));
            }
        }
    }

    /// Conversations, last changed first.
    pub fn list(&self, query: ListQuery) -> Result<Page<Conversation, (Timestamp, ConversationId)>, Error> {
        let limit = page_limit(query.limit)?;
        let store_query =
            ConversationQuery { text: query.text, state: query.state, after: query.after, limit: limit + 1 };
        let mut data = self.shared().index.conversations(&self.tenant, &store_query)?;
        let next = more(&mut data, limit, |c: &Conversation| (c.updated, c.id));
        Ok(Page { data, next })
    }

    /// The id that a person means: a whole one, the beginning of one, or `@last` for the last changed.
    pub fn resolve(&self, text: &str) -> Result<ConversationId, Error> {
        if text == "@last" {
            let query = ConversationQuery { limit: 1, ..ConversationQuery::default() };
            let last = self.shared().index.conversations(&self.tenant, &query)?;
            return last.first().map(|c| c.id).ok_or_else(|| {
                Error::not_found(
                    "conversation.none",
                    "there is no conversation yet; `everturn new` begins one",
                )
            });
        }
        if let Ok(id) = text.parse::<ConversationId>() {
            return self.shared().index.conversation(&self.key(id)).map(|conversation| conversation.id);
        }
        let shown = everturn_core::id::clip(text);
        let found = if text.is_empty() {
            Vec::new()
        } else {
            self.shared().index.starting_with(&self.tenant, text, 4)?
        };
        match found.as_slice() {
            [id] => Ok(*id),
            [] => Err(Error::not_found(
                "conversation.absent",
                format!("no conversation begins with {shown:?}; `list` shows what there is"),
            )),
            several => {
                let ids: Vec<String> = several.iter().take(3).map(ToString::to_string).collect();
                let text = format!("{shown:?} could be {}; write more of it", ids.join(" or "));
                Err(Error::invalid("conversation.ambiguous", text))
            }
        }
    }

    /// Changes settings. What is set to what it is already adds nothing.
    pub fn update(&self, id: ConversationId, settings: Settings) -> Commit<Conversation> {
        self.change(id, Change { settings, ..Change::default() })
    }

    /// Changes settings and state in one step, if nothing else happened in between. What is so already adds nothing.
    pub fn change(&self, id: ConversationId, change: Change) -> Commit<Conversation> {
        let prepared = (|| {
            check_by_hand(&change.settings)?;
            let mut settings = change.settings.normalise()?;
            // Not the one that is remembered: whoever names a place has read the index, which may be a moment ahead of it.
            let current = self.shared().index.conversation(&self.key(id))?;
            if let Some(expected) = change.expected_seq.filter(|expected| *expected != current.head.seq) {
                return Err(stale_seq(current.head.seq, expected));
            }
            leave_out_what_is_so(&mut settings, &current);
            let mut drafts = Vec::new();
            if settings != Settings::default() {
                drafts = self.setting_drafts(kind::UPDATED, &settings)?;
            }
            if let Some(state) = change.state.filter(|state| *state != current.state) {
                let body = StateBody { state, reason: change.reason };
                drafts.push(self.shared().draft(kind::STATE, &body)?);
            }
            let expected_seq = change.expected_seq;
            Ok((!drafts.is_empty()).then_some(Action::Append { drafts, expected_seq, idempotency: None }))
        })();
        match prepared {
            Ok(Some(action)) => {
                self.write(id, Ok(action), |committed| Ok(Arc::unwrap_or_clone(committed.conversation)))
            }
            Ok(None) => Commit::ready(self.get(id)),
            Err(error) => Commit::ready(Err(error)),
        }
    }

    /// Puts it away; [`resume`](Tenant::resume) brings it back.
    pub fn archive(&self, id: ConversationId) -> Commit<Conversation> {
        self.set_state(id, State::Archived, None)
    }

    /// Opens it for turns again.
    pub fn resume(&self, id: ConversationId) -> Commit<Conversation> {
        self.set_state(id, State::Active, None)
    }

    /// Gives it up, with a reason; [`resume`](Tenant::resume) brings it back.
    pub fn abandon(&self, id: ConversationId, reason: Option<String>) -> Commit<Conversation> {
        self.set_state(id, State::Abandoned, reason)
    }

    /// Ends it for good. It stays readable.
    pub fn close(&self, id: ConversationId) -> Commit<Conversation> {
        self.set_state(id, State::Closed, None)
    }

    fn set_state(&self, id: ConversationId, state: State, reason: Option<String>) -> Commit<Conversation> {
        let draft = self.shared().draft(kind::STATE, &StateBody { state, reason });
        let action =
            draft.map(|draft| Action::Append { drafts: vec![draft], expected_seq: None, idempotency: None });
        self.write(id, action, |committed| Ok(Arc::unwrap_or_clone(committed.conversation)))
    }

    /// Starts over: a new conversation with the same settings that names this one as its predecessor; this one is closed.
    pub fn reset(&self, id: ConversationId) -> Result<Conversation, Error> {
        let old = self.shared().index.conversation(&self.key(id))?;
        let settings = Settings { predecessor: Some(id), ..self.settings_of(&old)? };
        let new = self.create_with(NewConversation { settings, ..NewConversation::default() }).wait()?;
        if old.state != State::Closed {
            self.close(id).wait()?;
        }
        Ok(new)
    }

    pub(super) fn settings_of(&self, conversation: &Conversation) -> Result<Settings, Error> {
        Ok(Settings {
            owner: conversation.owner.clone().map(Some),
            title: conversation.title.clone().map(Some),
            metadata: conversation.metadata.clone(),
            ttl: conversation.ttl.map(Some),
            retention: Some(conversation.retention).filter(|retention| *retention != Retention::Full),
            policy: conversation.policy.clone(),
            system_prompt: self.prompt_of(conversation)?.map(Some),
            ..Settings::default()
        })
    }

    /// A new conversation that shares this one's history up to a place, without copying it. What happens on one side
    /// afterwards does not show on the other; only an erasure does, because the words are kept once.
    pub fn fork(&self, id: ConversationId, at_seq: u64) -> Commit<Conversation> {
        self.fork_once(id, Some(at_seq), None)
    }

    /// The same, by default up to the newest event. Repeated with the same key it gives the fork that is there.
    pub fn fork_once(
        &self,
        id: ConversationId,
        at_seq: Option<u64>,
        idempotency_key: Option<String>,
    ) -> Commit<Conversation> {
        match self.shared().source.ulid() {
            Ok(new) => self.fork_as(ConversationId(new), id, at_seq, idempotency_key),
            Err(error) => Commit::ready(Err(error)),
        }
    }

    /// The same, under an id that follows from something else.
    pub(crate) fn fork_as(
        &self,
        new: ConversationId,
        id: ConversationId,
        at_seq: Option<u64>,
        idempotency_key: Option<String>,
    ) -> Commit<Conversation> {
        let prepared = (|| {
            let request = Hash::of(format!("fork {id} {at_seq:?}").as_bytes());
            let idempotency = idempotency(idempotency_key, Some(request))?;
            let parent = self.shared().index.conversation(&self.key(id))?;
            let at_seq = at_seq.unwrap_or(parent.head.seq);
            let at = Parent { conversation: self.owner_of(&parent, at_seq), at_seq };
            let (checkpoint, budget) = if at_seq < parent.head.seq {
                let fold = self.shared().fold(&self.key(id), at_seq)?;
                (fold.checkpoint, fold.budget)
            } else {
                (parent.checkpoint, parent.budget)
            };
            let mut settings = Settings {
                parent: Some(at),
                participants: parent.participants.clone(),
                checkpoint,
                budget,
                ..self.settings_of(&parent)?
            };
            // In an event of its own, so that erasing the turn that it was made of leaves the rest.
            let title = settings.title.take();
            let mut drafts = vec![self.shared().draft(kind::FORKED, &settings)?];
            if title.is_some() {
                let titled = Settings { title, ..Settings::default() };
                drafts.push(self.shared().draft(kind::UPDATED, &titled)?);
            }
            Ok(Action::Create { drafts, parent: Some(at), idempotency })
        })();
        match prepared {
            Ok(action) => {
                self.write(new, Ok(action), |committed| Ok(Arc::unwrap_or_clone(committed.conversation)))
            }
            Err(error) => Commit::ready(Err(error)),
        }
    }

    /// The conversation that the event at a place was written in. A fork that leaves its parent within what that one
    /// inherited itself is a fork of the ancestor: its file then holds everything that an import needs.
    fn owner_of(&self, conversation: &Conversation, seq: u64) -> ConversationId {
        match conversation.parent.filter(|parent| seq <= parent.at_seq) {
            Some(parent) => match self.shared().index.conversation(&self.key(parent.conversation)) {
                Ok(above) => self.owner_of(&above, seq),
                // Deleted: its events are there for its forks only.
                Err(_) => conversation.id,
            },
            None => conversation.id,
        }
    }

    /// Deletes it whole. A tombstone stays: id, head hash, when and why. Forks of it keep what they inherited.
    pub fn delete(&self, id: ConversationId, reason: &str) -> Commit<Tombstone> {
        let (at, reason) = (self.shared().now(), reason.to_string());
        let action = Action::Delete { at, reason: reason.clone(), only_expired: false };
        let scope = self.clone();
        self.write(id, Ok(action), move |committed| {
            let forgotten = crate::recall::indexer::forget_erased(scope.shared(), &scope.tenant);
            scope.delete_copies(id)?;
            forgotten?;
            Ok(Tombstone { id, head: committed.conversation.head, deleted: at, reason })
        })
    }

    /// What was deleted.
    pub fn tombstones(&self) -> Result<Vec<Tombstone>, Error> {
        self.shared().index.tombstones(&self.tenant)
    }
}

/// Settings carry also what only we may write: a parent that was made up would show another conversation's events.
fn check_by_hand(settings: &Settings) -> Result<(), Error> {
    if settings.parent.is_some()
        || settings.predecessor.is_some()
        || !settings.participants.is_empty()
        || !settings.transcript.is_empty()
        || settings.checkpoint.is_some()
        || settings.budget.is_some()
    {
        return Err(Error::invalid(
            "settings.reserved",
            "parent, predecessor, participants, checkpoint, budget and transcript are written by Everturn itself; leave them out",
        ));
    }
    Ok(())
}

/// Takes out of new settings what the conversation has already.
fn leave_out_what_is_so(settings: &mut Settings, current: &Conversation) {
    settings.owner.take_if(|owner| *owner == current.owner);
    settings.title.take_if(|title| *title == current.title);
    settings.ttl.take_if(|ttl| *ttl == current.ttl);
    settings.retention.take_if(|retention| *retention == current.retention);
    let fingerprint = current.system_prompt.map(|prompt| prompt.sha256);
    settings.system_prompt.take_if(|prompt| prompt.as_ref().map(|prompt| prompt.sha256) == fingerprint);
    let is_news = |now: &BTreeMap<String, Raw>, key: &String, value: &Raw| match now.get(key) {
        Some(known) => known != value,
        None => value.get() != "null",
    };
    settings.metadata.retain(|key, value| is_news(&current.metadata, key, value));
    settings.policy.retain(|key, value| is_news(&current.policy, key, value));
}

fn null() -> Raw {
    Raw::of(&()).expect("null is JSON")
}
