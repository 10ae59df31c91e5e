//! What a tenant can do. The tenant is in the handle: no call can reach another's data.

use crate::hub::Subscription;
use crate::ingest::{Ingested, NewTurn, Place};
use crate::writer::Commit;
use crate::{Inner, Shared};
use everturn_core::Error;
use everturn_core::asset::{Asset, Payload};
use everturn_core::chain::{Hash, Head};
use everturn_core::conversation::{
    Conversation, Parent, Retention, Settings, State, SystemPrompt, Tombstone,
};
use everturn_core::event::{Draft, Event, Visibility, check_name, kind};
use everturn_core::id::{ConversationId, EventId, Key, Tenant, TurnId};
use everturn_core::json::Raw;
use everturn_core::limits::PAGE_ENTRIES_MAX;
use everturn_core::time::Timestamp;
use everturn_core::turn::{Role, Status, Turn, TurnBody};
use everturn_core::write::{Action, ErasedBody, Idempotency, StateBody, SupersededBody, Write, not_open};
use everturn_store::{Committed, ConversationQuery, TurnQuery};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A tenant's view of the store.
#[derive(Clone)]
pub struct Scope {
    pub(crate) inner: Arc<Inner>,
    pub(crate) tenant: Tenant,
}

/// How a conversation begins.
#[derive(Clone, Debug, Default)]
pub struct NewConversation {
    /// Title, metadata, retention, policy, system prompt, …
    pub settings: Settings,
    /// Makes a repeated request harmless.
    pub idempotency_key: Option<String>,
    /// An id of the caller's choice; by default a new one.
    pub id: Option<ConversationId>,
}

/// How turns are appended.
#[derive(Clone, Debug, Default)]
pub struct AppendOptions {
    /// Refuse unless the log ends here.
    pub expected_seq: Option<u64>,
    /// Makes a repeated request harmless, also after a restart.
    pub idempotency_key: Option<String>,
}

/// What an append did.
#[derive(Clone, Debug, Serialize)]
pub struct Appended {
    /// The turns, with their ids and places.
    pub turns: Vec<Turn>,
    /// Where the log ends now.
    pub head: Head,
    /// Whether this had been appended before, under the same idempotency key.
    pub repeated: bool,
}

/// How a streamed turn begins.
#[derive(Clone, Debug, Default)]
pub struct NewStream {
    /// Who speaks.
    pub actor: Option<String>,
    /// In which role; the assistant's by default.
    pub role: Option<Role>,
    /// Which model speaks.
    pub model: Option<String>,
    /// Whatever else is to be kept with it.
    pub metadata: BTreeMap<String, Raw>,
}

/// In which direction a page goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Order {
    /// Oldest first.
    #[default]
    Ascending,
    /// Newest first.
    Descending,
}

/// Which part of a history to read.
#[derive(Clone, Debug)]
pub struct HistoryQuery {
    /// Only what comes before this place.
    pub before: Option<u64>,
    /// Only what comes after this place.
    pub after: Option<u64>,
    /// At most this many entries.
    pub limit: usize,
    /// In which direction.
    pub order: Order,
    /// Only turns of these actors, if any are named.
    pub actors: Vec<String>,
    /// Also turns that others took the place of.
    pub include_superseded: bool,
    /// Also events that are not turns.
    pub include_events: bool,
}

impl Default for HistoryQuery {
    fn default() -> HistoryQuery {
        HistoryQuery {
            before: None,
            after: None,
            limit: 50,
            order: Order::Ascending,
            actors: Vec::new(),
            include_superseded: false,
            include_events: false,
        }
    }
}

/// Which conversations to list: last changed first.
#[derive(Clone, Debug)]
pub struct ListQuery {
    /// Only those whose title contains this.
    pub text: Option<String>,
    /// Only those in this state.
    pub state: Option<State>,
    /// Where the page before ended.
    pub after: Option<(Timestamp, ConversationId)>,
    /// At most this many.
    pub limit: usize,
}

impl Default for ListQuery {
    fn default() -> ListQuery {
        ListQuery { text: None, state: None, after: None, limit: 50 }
    }
}

/// One entry of a history.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Entry {
    /// Something said.
    Turn(Box<Turn>),
    /// Something else that happened.
    Event(Box<Event>),
}

impl Entry {
    /// Its place in the log.
    pub fn seq(&self) -> u64 {
        match self {
            Entry::Turn(turn) => turn.seq,
            Entry::Event(event) => event.seq,
        }
    }
}

/// A part of a list, and where the next part begins.
#[derive(Clone, Debug, Serialize)]
pub struct Page<T, C = u64> {
    /// The entries.
    pub data: Vec<T>,
    /// Hand this in as `after` (or `before`, going backwards) to go on; `None` at the end.
    pub next: Option<C>,
}

impl Scope {
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    /// Whose view this is.
    pub fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    pub(crate) fn key(&self, id: ConversationId) -> Key {
        Key { tenant: self.tenant.clone(), id }
    }

    fn write<T: 'static>(
        &self,
        id: ConversationId,
        action: Result<Action, Error>,
        read: impl FnOnce(Committed) -> Result<T, Error> + Send + 'static,
    ) -> Commit<T> {
        let key = self.key(id);
        Commit::new(action.and_then(|action| self.shared().submit(Write { key, action }, Vec::new())), read)
    }

    /// Appends turns, or ends an open one, with everything that goes along.
    fn append_with(
        &self,
        id: ConversationId,
        options: AppendOptions,
        request: Result<Option<Hash>, Error>,
        fill: impl FnOnce(&Conversation, &mut Ingested) -> Result<(), Error>,
    ) -> Commit<Appended> {
        let mut ingested = Ingested { drafts: Vec::new(), uploads: Vec::new() };
        let prepared = (|| {
            let idempotency = idempotency(options.idempotency_key, request?)?;
            let conversation = self.shared().conversation(&self.key(id))?;
            fill(&conversation, &mut ingested)?;
            Ok(idempotency)
        })();
        let submitted = match prepared {
            Err(error) => {
                self.shared().uploaded(&ingested.uploads);
                Err(error)
            }
            Ok(idempotency) => {
                let action = Action::Append {
                    drafts: ingested.drafts,
                    expected_seq: options.expected_seq,
                    idempotency,
                };
                self.shared().submit(Write { key: self.key(id), action }, ingested.uploads)
            }
        };
        Commit::new(submitted, |committed| {
            Ok(Appended {
                turns: committed.events.iter().filter_map(Turn::begun).collect(),
                head: committed.conversation.head,
                repeated: committed.repeated,
            })
        })
    }

    // ---- conversations ----

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
        let prepared = (|| {
            check_by_hand(&settings)?;
            let mut settings = settings.normalise()?;
            let current = self.shared().conversation(&self.key(id))?;
            leave_out_what_is_so(&mut settings, &current);
            if settings == Settings::default() {
                return Ok(None);
            }
            let drafts = self.setting_drafts(kind::UPDATED, &settings)?;
            Ok(Some(Action::Append { drafts, expected_seq: None, idempotency: None }))
        })();
        match prepared {
            Ok(Some(action)) => {
                self.write(id, Ok(action), |committed| Ok(Arc::unwrap_or_clone(committed.conversation)))
            }
            Ok(None) => Commit::ready(self.get(id)),
            Err(error) => Commit::ready(Err(error)),
        }
    }

    /// Puts it away; [`resume`](Scope::resume) brings it back.
    pub fn archive(&self, id: ConversationId) -> Commit<Conversation> {
        self.set_state(id, State::Archived, None)
    }

    /// Opens it for turns again.
    pub fn resume(&self, id: ConversationId) -> Commit<Conversation> {
        self.set_state(id, State::Active, None)
    }

    /// Gives it up, with a reason; [`resume`](Scope::resume) brings it back.
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

    fn settings_of(&self, conversation: &Conversation) -> Result<Settings, Error> {
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
        let prepared = (|| {
            let parent = self.shared().index.conversation(&self.key(id))?;
            let at = Parent { conversation: self.owner_of(&parent, at_seq), at_seq };
            let settings = Settings {
                parent: Some(at),
                participants: parent.participants.clone(),
                ..self.settings_of(&parent)?
            };
            let draft = self.shared().draft(kind::FORKED, &settings)?;
            let new = ConversationId(self.shared().source.ulid()?);
            Ok((new, Action::Create { drafts: vec![draft], parent: Some(at), idempotency: None }))
        })();
        match prepared {
            Ok((new, action)) => {
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
        self.write(id, Ok(action), move |committed| {
            Ok(Tombstone { id, head: committed.conversation.head, deleted: at, reason })
        })
    }

    /// What was deleted.
    pub fn tombstones(&self) -> Result<Vec<Tombstone>, Error> {
        self.shared().index.tombstones(&self.tenant)
    }

    // ---- turns ----

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
            let draft = Draft { actor, ..self.shared().draft(kind.to_string(), &body)? };
            draft.check()?;
            Ok(Action::Append { drafts: vec![draft], expected_seq: None, idempotency: None })
        })();
        self.write(id, prepared, |mut committed| committed.events.pop().ok_or_else(crate::writer::closed))
    }

    /// Opens a turn whose text will come in chunks.
    pub fn append_open(&self, id: ConversationId, new: NewStream) -> Commit<Turn> {
        let prepared = (|| {
            let ulid = self.shared().source.ulid()?;
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
            Ok(Action::Append { drafts: vec![draft], expected_seq: None, idempotency: None })
        })();
        self.write(id, prepared, |committed| {
            committed.events.first().and_then(Turn::begun).ok_or_else(crate::writer::closed)
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
    pub fn erase(&self, id: ConversationId, turn: TurnId, by: Option<String>, reason: &str) -> Commit<Head> {
        self.erase_turns(id, vec![turn], by, reason)
    }

    fn erase_turns(
        &self,
        id: ConversationId,
        turns: Vec<TurnId>,
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
            let body = ErasedBody { turns: turns.clone(), reason: reason.to_string() };
            let turn = turns.first().copied().filter(|_| turns.len() == 1);
            let draft = Draft { actor: by, turn, ..self.shared().draft(kind::ERASED, &body)? };
            draft.check()?;
            Ok(Action::Erase { turns, draft })
        })();
        self.write(id, prepared, |committed| Ok(committed.conversation.head))
    }

    /// What retention asks for once everything up to `through` is covered by a summary: with `audit-only` or `ephemeral`
    /// the bodies of those turns are erased; with `full` nothing happens. Inherited turns are their owner's to keep.
    /// Gives how many were erased.
    pub fn apply_retention(&self, id: ConversationId, through: u64) -> Result<usize, Error> {
        let conversation = self.shared().index.conversation(&self.key(id))?;
        if conversation.retention == Retention::Full {
            return Ok(0);
        }
        let mut after = conversation.parent.map_or(0, |parent| parent.at_seq);
        let mut erased = 0;
        loop {
            let query = TurnQuery {
                after: Some(after),
                before: Some(through.saturating_add(1)),
                include_superseded: true,
                limit: RETENTION_PAGE,
                ..TurnQuery::default()
            };
            let page = self.shared().index.turns(&self.key(id), &query)?;
            let Some(last) = page.last() else { return Ok(erased) };
            after = last.seq;
            let due: Vec<TurnId> =
                page.iter().filter(|t| !t.erased && t.status != Status::Pending).map(|t| t.id).collect();
            if !due.is_empty() {
                erased += due.len();
                self.erase_turns(id, due, None, &format!("retention {}", conversation.retention)).wait()?;
            }
        }
    }

    // ---- reading ----

    /// One turn and what it says.
    pub fn turn(&self, id: TurnId) -> Result<Turn, Error> {
        self.shared().index.turn(&self.tenant, id)
    }

    /// One turn as a conversation sees it: a fork sees what it inherited as it was.
    pub fn turn_in(&self, conversation: ConversationId, id: TurnId) -> Result<Turn, Error> {
        self.shared().index.turn_in(&self.key(conversation), id)
    }

    /// A page of the history, summarized turns included.
    pub fn history(&self, id: ConversationId, query: HistoryQuery) -> Result<Page<Entry>, Error> {
        let limit = page_limit(query.limit)?;
        let descending = query.order == Order::Descending;
        if query.include_events {
            return self.history_with_events(id, &query, limit);
        }
        let turns = TurnQuery {
            before: query.before,
            after: query.after,
            descending,
            actors: query.actors,
            include_superseded: query.include_superseded,
            limit: limit + 1,
        };
        let mut data: Vec<Entry> = self
            .shared()
            .index
            .turns(&self.key(id), &turns)?
            .into_iter()
            .map(|turn| Entry::Turn(Box::new(turn)))
            .collect();
        let next = more(&mut data, limit, Entry::seq);
        Ok(Page { data, next })
    }

    /// With events there is an entry at every place, so a page is a range of places. Turns that were not asked for are
    /// left out of it, so that a page may be shorter than its limit and still not the last.
    fn history_with_events(
        &self,
        id: ConversationId,
        query: &HistoryQuery,
        limit: usize,
    ) -> Result<Page<Entry>, Error> {
        let head = self.shared().index.conversation(&self.key(id))?.head.seq;
        let (low, high) = (
            query.after.unwrap_or(0),
            query.before.map_or(head, |before| before.saturating_sub(1)).min(head),
        );
        let (from, through) = match query.order {
            Order::Ascending => (low, high.min(low.saturating_add(limit as u64))),
            Order::Descending => (low.max(high.saturating_sub(limit as u64)), high),
        };
        if from >= through {
            return Ok(Page { data: Vec::new(), next: None });
        }
        let turns = TurnQuery {
            before: Some(through + 1),
            after: Some(from),
            include_superseded: true,
            limit,
            ..TurnQuery::default()
        };
        let mut turns: BTreeMap<u64, Turn> = self
            .shared()
            .index
            .turns(&self.key(id), &turns)?
            .into_iter()
            .map(|turn| (turn.seq, turn))
            .collect();
        let events = self.shared().log.events(&self.key(id), from, (through - from) as usize)?;
        let asked_for = |turn: &Turn| {
            (query.include_superseded || turn.superseded_by.is_none())
                && (query.actors.is_empty()
                    || turn.actor.as_ref().is_some_and(|actor| query.actors.contains(actor)))
        };
        let mut data: Vec<Entry> = events
            .into_iter()
            .filter_map(|event| match turns.remove(&event.seq) {
                Some(turn) => asked_for(&turn).then(|| Entry::Turn(Box::new(turn))),
                None => Some(Entry::Event(Box::new(event))),
            })
            .collect();
        let next = match query.order {
            Order::Ascending => (through < high).then_some(through),
            Order::Descending => {
                data.reverse();
                (from > low).then_some(from + 1)
            }
        };
        Ok(Page { data, next })
    }

    /// Events after a place, oldest first.
    pub fn events(&self, id: ConversationId, after: u64, limit: usize) -> Result<Vec<Event>, Error> {
        self.shared().log.events(&self.key(id), after, page_limit(limit)?)
    }

    /// Everything from a place on, then what comes: no gap, no repeat.
    pub fn subscribe(&self, id: ConversationId, from_seq: u64) -> Result<Subscription, Error> {
        Subscription::new(self.shared().clone(), self.key(id), from_seq)
    }

    // ---- assets ----

    /// Adds an asset to a conversation, to be shown by a turn's `asset_id`.
    pub fn add_asset(
        &self,
        id: ConversationId,
        name: Option<String>,
        mime_type: &str,
        bytes: Vec<u8>,
    ) -> Result<Asset, Error> {
        self.shared().conversation(&self.key(id))?;
        check_name("mime_type", mime_type)?;
        let payload = Payload { bytes, mime_type: mime_type.to_string(), name };
        let mut uploads = Vec::new();
        let asset_id = crate::ingest::asset_id(self.shared().source.ulid()?);
        let draft = self.shared().asset_draft(&self.tenant, asset_id, payload, None, &mut uploads)?;
        let action = Action::Append { drafts: vec![draft], expected_seq: None, idempotency: None };
        let answer = self.shared().submit(Write { key: self.key(id), action }, uploads);
        Commit::new(answer, |committed| {
            committed.events.first().and_then(Event::read::<Asset>).ok_or_else(crate::writer::closed)
        })
        .wait()
    }

    /// The descriptors of a conversation's assets.
    pub fn assets(&self, id: ConversationId) -> Result<Vec<Asset>, Error> {
        let raw = self.shared().index.assets(&self.key(id))?;
        Ok(raw.iter().filter_map(|raw| raw.read()).collect())
    }

    /// An asset's bytes.
    pub fn asset_bytes(&self, asset: &Asset) -> Result<Vec<u8>, Error> {
        let sha256 = asset.sha256.ok_or_else(|| {
            Error::not_found(
                "asset.elsewhere",
                format!("the bytes of {} are not kept here; its storage says where", asset.id),
            )
        })?;
        self.shared().assets.get(&self.tenant, sha256)
    }
}

/// Turns whose bodies one retention step erases.
const RETENTION_PAGE: usize = 500;

/// Settings carry also what only we may write: a parent that was made up would show another conversation's events.
fn check_by_hand(settings: &Settings) -> Result<(), Error> {
    if settings.parent.is_some()
        || settings.predecessor.is_some()
        || !settings.participants.is_empty()
        || !settings.transcript.is_empty()
    {
        return Err(Error::invalid(
            "settings.reserved",
            "parent, predecessor, participants and transcript are written by fork, reset, append and import; leave them out",
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

fn idempotency(key: Option<String>, request: Option<Hash>) -> Result<Option<Idempotency>, Error> {
    let (Some(key), Some(request)) = (key, request) else { return Ok(None) };
    check_name("idempotency key", &key)?;
    Ok(Some(Idempotency { key, request }))
}

fn page_limit(limit: usize) -> Result<usize, Error> {
    match limit {
        0 => Err(Error::invalid("limit.zero", "limit is 0; ask for at least 1")),
        limit if limit > PAGE_ENTRIES_MAX => Err(Error::limit(
            "PAGE_ENTRIES_MAX",
            PAGE_ENTRIES_MAX as u64,
            limit as u64,
            "read in several pages",
        )),
        limit => Ok(limit),
    }
}

/// One entry more than wanted was read: if it is there, the page is not the last.
fn more<T, C>(data: &mut Vec<T>, limit: usize, cursor: impl Fn(&T) -> C) -> Option<C> {
    let more = data.len() > limit;
    data.truncate(limit);
    data.last().map(cursor).filter(|_| more)
}
