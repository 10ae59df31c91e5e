//! Lifecycle of a conversation: settings, state, forks, the end.

use super::{ConversationHandle, ConversationState, idempotency};
use crate::background;
use crate::context::check_projection;
use crate::ingest::{DraftKind, Ingested, NewTurn, redaction_mode};
use crate::tenant::NewConversation;
use crate::writer::Commit;
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::conversation::{
    Conversation, Lifecycle, POLICIES, Parent, Retention, Settings, SystemPrompt, Tombstone, fork_title,
};
use everturn_core::event::{Draft, Event, kind};
use everturn_core::id::{ConversationId, EventId, TurnId};
use everturn_core::json::Raw;
use everturn_core::limits::PAGE_ENTRIES_MAX;
use everturn_core::redaction::{RedactionMode, mask};
use everturn_core::time::Timestamp;
use everturn_core::turn::{Status, TurnBody};
use everturn_core::write::{Action, Idempotency, StateBody, SupersededBody, stale_seq};
use everturn_store::TurnQuery;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A change of settings and state. [`Settings`] or a [`Lifecycle`] converts into one.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// Title, metadata, retention, policy, system prompt, …
    pub settings: Settings,
    /// New state.
    pub state: Option<Lifecycle>,
    /// Reason for the new state.
    pub reason: Option<String>,
    /// Refuse unless the log ends at this `seq`: nobody has written since it was read.
    pub expected_seq: Option<u64>,
}

impl From<Settings> for Change {
    fn from(settings: Settings) -> Change {
        Change { settings, ..Change::default() }
    }
}

impl From<Lifecycle> for Change {
    fn from(state: Lifecycle) -> Change {
        Change { state: Some(state), ..Change::default() }
    }
}

/// Options of a fork. A `seq` converts into them.
#[derive(Clone, Debug, Default)]
pub struct ForkOptions {
    /// Last `seq` of the shared history; the newest event by default.
    pub at_seq: Option<u64>,
    /// Title; by default that of the conversation, with the place of the fork.
    pub title: Option<String>,
    /// A fork repeated with the same key returns the existing one.
    pub idempotency_key: Option<String>,
}

impl From<u64> for ForkOptions {
    fn from(at_seq: u64) -> ForkOptions {
        ForkOptions { at_seq: Some(at_seq), ..ForkOptions::default() }
    }
}

impl ConversationState<'_> {
    /// The system prompt: the current one, or an earlier one by its fingerprint.
    pub fn system_prompt(&self, sha256: Option<Hash>) -> Result<Option<SystemPrompt>, Error> {
        let conversation = self.0.shared().journal.index.conversation(self.0.key())?;
        let Some(wanted) = sha256.filter(|hash| conversation.system_prompt.is_none_or(|p| p.sha256 != *hash))
        else {
            return self.0.prompt_of(&conversation);
        };
        let mut after = 0;
        loop {
            let page = self.0.shared().journal.log.events(self.0.key(), after, PAGE_ENTRIES_MAX)?;
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
}

impl ConversationHandle {
    /// The conversation, with its budget; its metadata includes the text of the system prompt.
    pub fn get(&self) -> Result<Conversation, Error> {
        let mut conversation = self.shared().journal.shown(self.key())?;
        if let Some(prompt) = self.prompt_of(&conversation)? {
            conversation.metadata.insert("system_prompt".into(), Raw::of(&prompt)?);
        }
        conversation.transcript_budget = Some(self.transcript_budget(&conversation)?);
        Ok(conversation)
    }

    fn prompt_of(&self, conversation: &Conversation) -> Result<Option<SystemPrompt>, Error> {
        let Some(prompt) = conversation.system_prompt else { return Ok(None) };
        let events = self.shared().journal.log.events(self.key(), prompt.seq - 1, 1)?;
        Ok(events
            .first()
            .and_then(Event::read::<Settings>)
            .and_then(|settings| settings.system_prompt.flatten()))
    }

    /// Changes [`Settings`], or the [`Lifecycle`], or both in one step with a [`Change`]. A value that is set already adds no event.
    pub fn update(&self, change: impl Into<Change>) -> Commit<Conversation> {
        let change = change.into();
        let prepared = (|| {
            if change.state.is_some() || change.settings != Settings::default() {
                self.shared().journal.writable()?;
            }
            check_by_hand(&change.settings)?;
            if !change.settings.participants.is_empty() {
                let text =
                    "participants are declared when a conversation is created; later ones join by speaking";
                return Err(Error::invalid("settings.participants", text));
            }
            // Not the cached one: an expected `seq` was read from the index, which may be a moment ahead of the
            // cache.
            let current = self.shared().journal.index.conversation(self.key())?;
            let mut settings = change.settings.normalise()?.redacted(redaction_mode(&current))?;
            check_projection(&settings)?;
            if let Some(expected) = change.expected_seq.filter(|expected| *expected != current.head.seq) {
                return Err(stale_seq(current.head.seq, expected));
            }
            remove_unchanged(&mut settings, &current);
            settings.check_role(self.tenant.caller().role())?;
            let mut drafts = Vec::new();
            if settings != Settings::default() {
                drafts = self.tenant.setting_drafts(kind::UPDATED, &settings)?;
            }
            if let Some(state) = change.state.filter(|state| *state != current.state) {
                let body = StateBody { state, reason: change.reason };
                drafts.push(self.shared().draft(kind::STATE, &body)?);
            }
            let expected_seq = change.expected_seq;
            let is_stricter = current.retention == Retention::Full && settings.retention.is_some();
            let is_empty = drafts.is_empty();
            let action = Action::Append { drafts, expected_seq, prepared_for: None, idempotency: None };
            Ok((!is_empty).then_some((action, is_stricter)))
        })();
        match prepared {
            Ok(Some((action, is_stricter))) => {
                let updated = self.clone();
                self.write(Ok(action), move |committed| {
                    if is_stricter {
                        updated.compaction().restrict()?;
                        return updated.get();
                    }
                    Ok(Arc::unwrap_or_clone(committed.conversation))
                })
            }
            Ok(None) => Commit::ready(self.get()),
            Err(error) => Commit::ready(Err(error)),
        }
    }

    /// Starts over: a new conversation with the same settings that names this one as its predecessor; this one is closed.
    pub fn reset(&self) -> Result<ConversationHandle, Error> {
        let old = self.shared().journal.index.conversation(self.key())?;
        let settings = Settings { predecessor: Some(self.id()), ..self.settings_of(&old)? };
        let new =
            self.tenant.create_with(NewConversation { settings, ..NewConversation::default() }).wait()?;
        match self.update(Lifecycle::Closed).wait() {
            Ok(_) => Ok(new),
            Err(error) => {
                new.delete("the conversation that it starts over from could not be closed").wait()?;
                Err(error)
            }
        }
    }

    pub(crate) fn settings_of(&self, conversation: &Conversation) -> Result<Settings, Error> {
        let known = conversation.policy.iter().filter(|(name, _)| POLICIES.contains(&name.as_str()));
        Ok(Settings {
            owner: conversation.owner.clone().map(Some),
            title: conversation.title.clone().map(Some),
            metadata: conversation.metadata.clone(),
            ttl: conversation.ttl.map(Some),
            retention: Some(conversation.retention).filter(|retention| *retention != Retention::Full),
            policy: known.map(|(name, raw)| (name.clone(), raw.clone())).collect(),
            system_prompt: self.prompt_of(conversation)?.map(Some),
            ..Settings::default()
        })
    }

    /// A new conversation that shares this one's history up to a `seq`, by default up to the newest event, without
    /// copying it. Later events on one side do not show on the other, except erasures, because shared text is stored
    /// once.
    pub fn fork(&self, options: impl Into<ForkOptions>) -> Commit<ConversationHandle> {
        match self.shared().journal.source.ulid() {
            Ok(new) => self.fork_as(ConversationId(new), options.into()),
            Err(error) => Commit::ready(Err(error)),
        }
    }

    /// Forks under a derived id.
    pub(crate) fn fork_as(
        &self,
        new: ConversationId,
        ForkOptions { at_seq, title, idempotency_key }: ForkOptions,
    ) -> Commit<ConversationHandle> {
        let prepared = (|| {
            let title =
                Settings { title: title.map(Some), ..Settings::default() }.normalise()?.title.flatten();
            let titled = title.as_ref().map(|title| format!(" {title:?}")).unwrap_or_default();
            let request = Hash::of(format!("fork {} {at_seq:?}{titled}", self.id()).as_bytes());
            let idempotency = idempotency(self.tenant.caller(), idempotency_key, Some(request))?;
            Ok(match self.fork_drafts(at_seq, title) {
                Ok((at, drafts)) => Action::Create { drafts, parent: Some(at), idempotency },
                // Deleted since, for example: the fork is there all the same.
                Err(error) => match idempotency {
                    None => return Err(error),
                    Some(asked) => {
                        let idempotency = Some(Idempotency { only_repeat: Some(error), ..asked });
                        Action::Create { drafts: Vec::new(), parent: None, idempotency }
                    }
                },
            })
        })();
        self.tenant.begun(new, prepared)
    }

    /// The origin of a fork and its first events.
    pub(super) fn fork_drafts(
        &self,
        at_seq: Option<u64>,
        title: Option<String>,
    ) -> Result<(Parent, Vec<Draft>), Error> {
        let parent = self.shared().journal.index.conversation(self.key())?;
        let at_seq = at_seq.unwrap_or(parent.head.seq);
        let at = Parent { conversation: self.owner_of(&parent, at_seq), at_seq };
        let (checkpoint, budget, [began, last_said]) = if at_seq < parent.head.seq {
            let fold = self.shared().fold(self.key(), at_seq)?;
            (fold.checkpoint, fold.budget, self.first_and_last_said(at_seq)?)
        } else {
            (parent.checkpoint, parent.budget, [parent.began, parent.last_said])
        };
        let own = self.settings_of(&parent)?;
        let given = title.is_some();
        let mut settings = Settings {
            title: title.map(Some).or(own.title.clone()),
            parent: Some(at),
            participants: parent.participants.clone(),
            checkpoint,
            budget,
            began,
            last_said,
            ..own
        }
        .redacted(redaction_mode(&parent))?;
        // In an event of its own, so that erasing the turn it was made from leaves the other settings.
        let named = |title: String| if given { title } else { fork_title(&title, at_seq) };
        let title = settings.title.take().map(|title| title.map(named));
        let mut drafts = vec![self.shared().draft(kind::FORKED, &settings)?];
        if title.is_some() {
            let titled = Settings { title, ..Settings::default() };
            drafts.push(self.shared().draft(kind::UPDATED, &titled)?);
        }
        self.cut_open_turns(&parent, at_seq, &mut drafts)?;
        Ok((at, drafts))
    }

    /// Adds copies of the turns that are open at a fork point, with their text so far; they continue only in the parent. The
    /// copy of a turn that has ended since has no text, because its text at that point is unknown.
    fn cut_open_turns(
        &self,
        parent: &Conversation,
        at_seq: u64,
        drafts: &mut Vec<Draft>,
    ) -> Result<(), Error> {
        let shared = self.shared();
        let fold = shared.fold(self.key(), at_seq)?;
        if !fold.open.is_empty() {
            background::flush(shared);
        }
        for open in &fold.open {
            let stored = shared.journal.index.stored_turn_in(self.key(), open.turn)?;
            let key = stored.events.first().and_then(|event| event.key.clone());
            let turn = shared.journal.index.turn_in(self.key(), open.turn)?;
            if turn.status != Status::Pending {
                continue;
            }
            let text = shared.journal.log.open_text(self.key(), turn.id)?;
            if text.is_empty() {
                continue;
            }
            let copy = TurnId(shared.journal.source.ulid()?);
            let body = TurnBody {
                model: turn.model.clone(),
                metadata: turn.metadata.clone(),
                audience: turn.audience.clone(),
                copy_of: vec![turn.id],
                ..TurnBody::default()
            };
            let said_at = Some(turn.occurred_at.unwrap_or(turn.created));
            drafts.push(Draft {
                id: EventId(copy.0),
                turn: Some(copy),
                occurred_at: said_at,
                actor: turn.actor.clone(),
                role: Some(turn.role),
                visibility: turn.visibility,
                key: key.clone(),
                ..shared.draft(kind::OPENED, &body)?
            });
            let new = NewTurn {
                actor: turn.actor,
                visibility: Some(turn.visibility),
                audience: turn.audience,
                model: turn.model,
                metadata: turn.metadata,
                occurred_at: said_at,
                ..NewTurn::text(turn.role, &text)
            };
            let mut ingested = Ingested { drafts: Vec::new(), uploads: Vec::new() };
            let end = DraftKind::Cut(copy, vec![turn.id]);
            shared.ingest(parent, new, end, &mut ingested)?;
            drafts.extend(ingested.drafts.into_iter().map(|draft| Draft { key: key.clone(), ..draft }));
            let replaced = shared.draft(kind::SUPERSEDED, &SupersededBody { by: copy })?;
            drafts.push(Draft { turn: Some(turn.id), ..replaced });
        }
        Ok(())
    }

    /// Times of the first and of the last turn up to a `seq`.
    fn first_and_last_said(&self, seq: u64) -> Result<[Option<Timestamp>; 2], Error> {
        let said = |descending| {
            let query = TurnQuery {
                before: Some(seq.saturating_add(1)),
                descending,
                whole_log: true,
                limit: 1,
                ..TurnQuery::default()
            };
            let found = self.shared().journal.index.turns(self.key(), &query)?;
            Ok::<_, Error>(
                found.first().map(|turn| turn.occurred_at.unwrap_or(turn.created).min(turn.created)),
            )
        };
        Ok([said(false)?, said(true)?])
    }

    /// The conversation in which the event at a `seq` was written. A fork within inherited history is a fork of that
    /// ancestor, so that the ancestor's file suffices for an import.
    fn owner_of(&self, conversation: &Conversation, seq: u64) -> ConversationId {
        match conversation.parent.filter(|parent| seq <= parent.at_seq) {
            Some(parent) => {
                match self.shared().journal.index.conversation(&self.tenant.key(parent.conversation)) {
                    Ok(above) => self.owner_of(&above, seq),
                    // Deleted: its events remain for its forks only.
                    Err(_) => conversation.id,
                }
            }
            None => conversation.id,
        }
    }

    /// Deletes the conversation. A tombstone stays: id, head hash, time and reason. Forks keep what they inherited.
    pub fn delete(&self, reason: &str) -> Commit<Tombstone> {
        let masks = self
            .shared()
            .journal
            .conversation(self.key())
            .is_ok_and(|c| redaction_mode(&c) == RedactionMode::Mask);
        let reason = if masks { mask(reason, &mut Vec::new()).into_owned() } else { reason.to_string() };
        let at = self.shared().now();
        let action = Action::Delete { at, reason: reason.clone(), only_expired: false };
        let deleted = self.clone();
        self.write(Ok(action), move |committed| {
            let forgotten = crate::recall::indexer::forget_erased(deleted.shared(), deleted.tenant.name());
            deleted.delete_copies()?;
            forgotten?;
            Ok(Tombstone { id: deleted.id(), head: committed.conversation.head, deleted: at, reason })
        })
    }
}

/// Refuses settings that only Everturn may write: a forged parent would show another conversation's events.
pub(crate) fn check_by_hand(settings: &Settings) -> Result<(), Error> {
    if settings.parent.is_some()
        || settings.predecessor.is_some()
        || !settings.transcript.is_empty()
        || settings.checkpoint.is_some()
        || settings.budget.is_some()
        || settings.began.is_some()
        || settings.last_said.is_some()
    {
        return Err(Error::invalid(
            "settings.reserved",
            "parent, predecessor, checkpoint, budget, began, last_said and transcript are written by Everturn itself; leave them out",
        ));
    }
    Ok(())
}

/// Removes settings that the conversation already has.
fn remove_unchanged(settings: &mut Settings, current: &Conversation) {
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
