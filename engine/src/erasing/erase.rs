//! Erasure: removes text from every file of the store, together with everything that repeats it. Envelopes and hashes
//! stay.

use crate::compaction::ConversationCompaction;
use crate::context::is_given;
use crate::conversation::ConversationHandle;
use crate::erasing::erasures::{Erasures, Gone};
use crate::erasing::records::{Erased, Records};
use crate::mirror::{Change, Mirror};
use crate::proof::ConversationLog;
use crate::tenant::Tenant;
use crate::writer::Commit;
use everturn_core::Error;
use everturn_core::asset::Asset;
use everturn_core::chain::{self, Head, Verifier};
use everturn_core::conversation::{Conversation, Lifecycle, Retention, Settings};
use everturn_core::echo::Words;
use everturn_core::error::code;
use everturn_core::event::{Draft, Event, kind};
use everturn_core::id::{ConversationId, TurnId};
use everturn_core::json::Raw;
use everturn_core::limits::PAGE_ENTRIES_MAX;
use everturn_core::turn::Status;
use everturn_core::viewer::{audience_of, audience_of_event};
use everturn_core::write::{Action, ErasedBody, EventAddress, StateBody, Write, no_such_seq, still_open};
use everturn_store::{Committed, TurnQuery};
use everturn_views::compaction::CompactionBody;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::Path;

/// Turns erased in one step.
const TURNS_AT_ONCE: usize = 500;

/// Result of erasing everything of an actor.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct ErasedActor {
    /// The actor. Its name stays in the envelopes.
    pub actor: String,
    /// Conversations in which something was erased.
    pub conversations: u64,
    /// Turns.
    pub turns: u64,
    /// Other events: facts added by hand, pins, notes.
    pub events: u64,
}

/// Content to erase in one step.
#[derive(Default)]
pub(crate) struct Erasure {
    turns: Vec<TurnId>,
    /// Other events.
    events: Vec<EventAddress>,
    /// Tool calls that the turns answered.
    answered: Vec<String>,
    /// Whether checkpoints that cover the turns are erased as well.
    summaries: bool,
    /// Text of the turns and events.
    words: Vec<Words>,
    /// Actors that may read the reason; `None` for everyone.
    reason_for: Option<Vec<String>>,
}

impl Erasure {
    /// Restricts the reason to the audience of this content.
    fn confide(&mut self, audience: Option<Vec<String>>) {
        let Some(audience) = audience else { return };
        match &mut self.reason_for {
            Some(readers) => readers.retain(|reader| audience.contains(reader)),
            none => *none = Some(audience),
        }
    }
}

impl Tenant {
    /// Erases everything that an actor said in any conversation of the tenant, with everything that repeats it. Open
    /// turns are aborted first. `progress` is called after each step. Repeating it is harmless, and completes an
    /// erasure that a crash interrupted.
    pub fn erase_actor(
        &self,
        actor: &str,
        by: Option<String>,
        reason: &str,
        progress: &mut dyn FnMut(&ErasedActor),
    ) -> Result<ErasedActor, Error> {
        everturn_core::event::check_name("actor", actor)?;
        let mut done = ErasedActor { actor: actor.to_string(), ..ErasedActor::default() };
        let mut conversations = BTreeSet::new();
        let mut after = 0;
        while let Some(page) = self.shared().journal.index.written_by(self.name(), actor, after)? {
            after = page.through;
            let mut found: BTreeMap<ConversationId, (BTreeSet<TurnId>, Vec<u64>)> = BTreeMap::new();
            for written in page.events {
                let (turns, events) = found.entry(written.seen_in).or_default();
                match written.turn {
                    Some(turn) if kind::is_of_turn(&written.kind) => drop(turns.insert(turn)),
                    _ if kind::has_words(&written.kind) => events.push(written.place.seq),
                    _ => {}
                }
            }
            for (id, (turns, events)) in found {
                for turn in &turns {
                    if self.shared().streams.get(&self.key(id), *turn).is_some() {
                        self.conversation(id).open_turn(*turn).abort("erased", None).wait()?;
                    }
                }
                let turns: Vec<TurnId> = turns.into_iter().collect();
                for turns in turns.chunks(TURNS_AT_ONCE) {
                    self.conversation(id).erase_turns(turns.to_vec(), by.clone(), reason)?;
                }
                for events in events.chunks(TURNS_AT_ONCE) {
                    self.conversation(id).erase_places(events, by.clone(), reason)?;
                }
                if !turns.is_empty() || !events.is_empty() {
                    conversations.insert(id);
                }
                done.turns += turns.len() as u64;
                done.events += events.len() as u64;
                done.conversations = conversations.len() as u64;
                progress(&done);
            }
        }
        self.erase_in_mirrors(conversations)?;
        Ok(done)
    }

    /// Session files of the tenant below a folder. From now on erasures cover them, including those by other processes.
    pub fn records_in(&self, folder: &Path) -> Result<Records, Error> {
        self.shared().note_records(folder)?;
        Ok(Records::of(folder, self.name()))
    }

    fn records(&self) -> Result<Vec<Records>, Error> {
        let folders = self.shared().copies.records()?;
        Ok(folders.iter().map(|folder| Records::of(folder, self.name())).collect())
    }

    fn erase_in_records(&self, erased: &Erased) -> Result<(), Error> {
        self.records()?.iter().try_for_each(|records| {
            records.note_erasure()?;
            records.erase(erased)
        })
    }

    /// Removes erased text from mirrors, also those that no process keeps up to date at the moment.
    fn erase_in_mirrors(&self, ids: impl IntoIterator<Item = ConversationId>) -> Result<(), Error> {
        self.change_mirrors(ids, Change { erased: true, deleted: false })
    }

    fn change_mirrors(
        &self,
        ids: impl IntoIterator<Item = ConversationId>,
        change: Change,
    ) -> Result<(), Error> {
        let changes: Vec<_> = ids.into_iter().map(|id| (self.key(id), change)).collect();
        Mirror::update_others(self.shared(), &changes)?;
        if let Some(mirror) = &self.shared().mirror {
            changes.iter().for_each(|(key, _)| mirror.wait_for(key));
        }
        Ok(())
    }

    /// Writes the settings of a conversation again, because an event that holds some of them will be erased.
    fn restate(&self, event: &Event, change: impl FnOnce(&Conversation, &mut Settings)) -> Result<(), Error> {
        let key = self.key(event.conversation);
        let conversation = match self.shared().journal.index.conversation(&key) {
            // Only forks still read it, and they have their own settings.
            Err(Error::NotFound(_)) => return Ok(()),
            conversation => conversation?,
        };
        let held: Settings = event.read().unwrap_or_default();
        let mut settings = Settings {
            transcript: held.transcript,
            ..self.conversation(conversation.id).settings_of(&conversation)?
        };
        if event.kind == kind::FORKED {
            settings.participants = conversation.participants.clone();
            settings.checkpoint = conversation.checkpoint;
            settings.budget = conversation.budget;
            (settings.began, settings.last_said) = (conversation.began, conversation.last_said);
        }
        settings.predecessor = conversation.predecessor;
        change(&conversation, &mut settings);
        let drafts = self.setting_drafts(kind::UPDATED, &settings)?;
        let action = Action::append(drafts);
        self.conversation(conversation.id).write_for_erasure(action)
    }

    /// Unsets the settings of an event, as far as they are still in force.
    fn unset(&self, event: &Event) -> Result<(), Error> {
        // A damaged event may have set any of them.
        let held: Settings = event.read().unwrap_or_default();
        let null = Raw::of(&())?;
        self.restate(event, |conversation, settings| {
            if held.title.is_some_and(|title| title == conversation.title) {
                settings.title = Some(None);
            }
            for (name, value) in &held.metadata {
                if conversation.metadata.get(name) == Some(value) {
                    settings.metadata.insert(name.clone(), null.clone());
                }
            }
            let prompt = conversation.system_prompt.map(|prompt| prompt.sha256);
            if held.system_prompt.flatten().is_some_and(|held| Some(held.sha256) == prompt) {
                settings.system_prompt = Some(None);
            }
        })
    }
}

impl ConversationCompaction<'_> {
    /// Applies retention once everything up to `through` is summarized, or trimmed from an ephemeral conversation: with
    /// `audit-only` or `ephemeral` the bodies of those turns are erased; with `full` nothing happens. Inherited turns are left to their owner.
    /// Returns the number of erased turns.
    pub fn apply_retention(&self, through: u64) -> Result<usize, Error> {
        let conversation = self.0.shared().journal.index.conversation(self.0.key())?;
        if conversation.retention == Retention::Full {
            return Ok(0);
        }
        let query = TurnQuery {
            after: conversation.parent.map(|parent| parent.at_seq),
            whole_log: true,
            ..TurnQuery::default()
        };
        let (mut due, mut copies) = (Vec::<TurnId>::new(), BTreeSet::new());
        // Read only if something is due: trimming comes here with every append.
        let mut given: Option<GivenTexts> = None;
        self.0.each_turn(query, |turn| {
            if turn.place <= through && !turn.erased && turn.status != Status::Pending {
                due.push(turn.id);
                let given = match &mut given {
                    Some(given) => given,
                    none => none.insert(self.0.given_texts()?),
                };
                copies.extend(given.repeating(&Words::of(&turn.value().unwrap_or_default())));
            }
            Ok(ControlFlow::Continue(()))
        })?;
        let reason = retention_reason(conversation.retention);
        for turns in due.chunks(TURNS_AT_ONCE) {
            // The summary is meant to remain.
            let mut erasure = Erasure { turns: turns.to_vec(), ..Erasure::default() };
            for turn in turns {
                erasure.events.extend(self.0.echoes(*turn)?);
            }
            self.0.commit_erasure(erasure, None, &reason)?;
        }
        // A projection may repeat in a given summary what it was about.
        if !due.is_empty() {
            copies.extend(self.0.own_events(&conversation, kind::PROJECTION)?.iter().map(place_of));
        }
        let copies: Vec<EventAddress> = copies.into_iter().collect();
        for events in copies.chunks(TURNS_AT_ONCE) {
            let erasure = Erasure { events: events.to_vec(), ..Erasure::default() };
            self.0.commit_erasure(erasure, None, &reason)?;
        }
        if !due.is_empty() {
            self.0.tenant.erase_in_mirrors([self.0.id()])?;
        }
        Ok(due.len())
    }

    /// Applies a stricter retention to turns that are summarized already: makes their checkpoints again, without quotes,
    /// and erases the turns.
    pub(crate) fn restrict(&self) -> Result<(), Error> {
        let conversation = self.0.shared().journal.index.conversation(self.0.key())?;
        let Some(lost) = conversation.checkpoint else { return Ok(()) };
        let compactions = self.0.own_events(&conversation, kind::COMPACTION)?;
        let mut events: Vec<EventAddress> = compactions.iter().map(place_of).collect();
        events.extend(self.0.lines_of(&conversation, &compactions)?);
        let reason = retention_reason(conversation.retention);
        for events in events.chunks(TURNS_AT_ONCE) {
            let erasure = Erasure { events: events.to_vec(), ..Erasure::default() };
            self.0.commit_erasure(erasure, None, &reason)?;
        }
        // An inherited checkpoint is left to its owner.
        if self.0.checkpoint(Some(lost))?.is_none() {
            self.0.summarize_anew(lost)?;
        }
        self.0.tenant.erase_in_mirrors([self.0.id()])
    }
}

/// Texts that were given for model calls, with the events that hold them.
struct GivenTexts(Vec<(EventAddress, Value)>);

impl GivenTexts {
    /// Events whose text repeats these words.
    fn repeating(&self, words: &Words) -> impl Iterator<Item = EventAddress> {
        let repeats = |text: &Value| words.stand_in(text) || Words::of(text) == *words;
        self.0.iter().filter(move |(_, text)| repeats(text)).map(|(at, _)| *at)
    }
}

impl ConversationLog<'_> {
    /// Erases events that are not turns, by `seq`: notes, pins, facts, imported lines, settings. Title, metadata and
    /// system prompt set by an erased event are unset.
    pub fn erase(&self, places: &[u64], by: Option<String>, reason: &str) -> Result<Head, Error> {
        let head = self.0.erase_places(places, by, reason)?;
        self.0.tenant.erase_in_mirrors([self.0.id()])?;
        Ok(head)
    }
}

impl ConversationHandle {
    /// Erases a turn's content from every file of the store. Its envelope and hash stay: the chain still verifies.
    /// Everything that repeats its text is erased as well, here and in forks: checkpoints that cover it (written
    /// again from what is left), facts learned from it with their corrections, titles made from it, and imported
    /// lines that repeat it. A turn that was erased before gets no second record; only copies outside the store are
    /// searched again.
    pub fn erase(&self, turn: TurnId, by: Option<String>, reason: &str) -> Commit<Head> {
        let erased = self.erase_turns(vec![turn], by, reason);
        Commit::ready(erased.and_then(|head| self.tenant.erase_in_mirrors([self.id()]).map(|()| head)))
    }

    fn erase_places(&self, places: &[u64], by: Option<String>, reason: &str) -> Result<Head, Error> {
        let conversation = self.shared().journal.index.conversation(self.key())?;
        let (mut events, mut gone) = (Vec::with_capacity(places.len()), Vec::new());
        for seq in places {
            let stored = self.shared().journal.log.stored_events(self.key(), seq.saturating_sub(1), 1)?.pop();
            let stored = stored.filter(|event| event.seq == *seq);
            let mut event = stored.ok_or_else(|| no_such_seq(&conversation, *seq))?;
            gone.extend(Gone::of(&event));
            match chain::check(&event) {
                // Erasing is the remedy for a damaged body, so it does without one.
                Err(error) if error.is(code::BODY_MISMATCH) => event.body = None,
                checked => checked?,
            }
            events.push(event);
        }
        events.iter().try_for_each(check_event)?;
        let erased_before = self.erased_before(gone)?;
        events.retain(|event| !erased_before.contains(&place_of(event)));
        if events.is_empty() {
            self.tenant.erase_in_records(&Erased { ids: vec![self.id().to_string()], words: Vec::new() })?;
            return Ok(conversation.head);
        }
        for event in &events {
            match event.kind.as_str() {
                kind if kind::is_settings(kind) => self.tenant.unset(event)?,
                kind::STATE => self.tenant.conversation(event.conversation).restate_state()?,
                _ => {}
            }
        }
        let words = events.iter().filter_map(Event::read::<Value>).map(|body| Words::of(&body)).collect();
        let mut erasure = Erasure {
            events: events.iter().map(place_of).collect(),
            words,
            summaries: true,
            ..Erasure::default()
        };
        events.iter().for_each(|event| erasure.confide(audience_of_event(event)));
        self.commit_erasure(erasure, by, reason).map(|conversation| conversation.head)
    }

    fn erase_turns(&self, turns: Vec<TurnId>, by: Option<String>, reason: &str) -> Result<Head, Error> {
        let key = self.key();
        let mut erasure = Erasure { summaries: true, ..Erasure::default() };
        let (given, mut copies, mut first) = (self.given_texts()?, BTreeSet::new(), u64::MAX);
        for turn in &turns {
            // Erasing is the remedy for a damaged body, so it does without one.
            let (status, place, message) = match self.shared().journal.index.turn_in(key, *turn) {
                Ok(said) if said.erased => {
                    erasure.confide(audience_of(&said));
                    let place = EventAddress { conversation: said.conversation, seq: said.seq };
                    let gone = Gone { place, kind: kind::MESSAGE.into(), turn: Some(*turn) };
                    if !self.erased_before([gone])?.is_empty() {
                        // A branch may have copied it before that was committed.
                        erasure.events.extend(self.echoes(*turn)?);
                        continue;
                    }
                    (said.status, said.place, Value::Null)
                }
                Ok(said) => {
                    erasure.confide(audience_of(&said));
                    (said.status, said.place, said.value().unwrap_or_default())
                }
                Err(Error::Corrupt(_)) => {
                    let stored = self.shared().journal.index.stored_turn_in(key, *turn)?;
                    (stored.row.status, stored.row.seq, Value::Null)
                }
                Err(error) => return Err(error),
            };
            if status == Status::Pending {
                return Err(still_open(*turn));
            }
            let results = everturn_core::pairing::pair([&message]).results;
            erasure.answered.extend(results.iter().filter_map(|result| result.id.map(str::to_string)));
            let words = Words::of(&message);
            copies.extend(given.repeating(&words));
            erasure.words.push(words);
            erasure.events.extend(self.echoes(*turn)?);
            erasure.turns.push(*turn);
            first = first.min(place);
        }
        let conversation = self.shared().journal.index.conversation(key)?;
        if conversation.checkpoint.is_some() && !erasure.turns.is_empty() {
            let mut compactions = self.own_events(&conversation, kind::COMPACTION)?;
            let covers = |body: CompactionBody| body.covers.to_seq >= first;
            compactions.retain(|event| event.read::<CompactionBody>().is_some_and(covers));
            copies.extend(self.lines_of(&conversation, &compactions)?);
        }
        erasure.events.extend(copies);
        erasure.events.sort_unstable();
        erasure.events.dedup();
        if erasure.turns.is_empty() && erasure.events.is_empty() {
            // A crash may have come between the erasure and this step.
            let ids = turns.iter().map(TurnId::to_string).chain([self.id().to_string()]).collect();
            self.tenant.erase_in_records(&Erased { ids, words: Vec::new() })?;
            return Ok(self.shared().journal.index.conversation(key)?.head);
        }
        let before = self.shared().journal.index.conversation(key)?.checkpoint;
        let before = before.filter(|_| matches!(self.checkpoint(before), Ok(Some(_))));
        let reason_for = erasure.reason_for.clone();
        let mut after = self.commit_erasure(erasure, by.clone(), reason)?;
        // No branch copies an erased turn, but one may have just before.
        for turn in &turns {
            let events = self.echoes(*turn)?;
            if !events.is_empty() {
                let reason_for = reason_for.clone();
                let late = Erasure { events, summaries: true, reason_for, ..Erasure::default() };
                after = self.commit_erasure(late, by.clone(), reason)?;
            }
        }
        match before {
            Some(lost) if self.checkpoint(before)?.is_none() => self.summarize_anew(lost),
            _ => Ok(after.head),
        }
    }

    fn commit_erasure(
        &self,
        Erasure { turns, events, answered, summaries, words, reason_for }: Erasure,
        by: Option<String>,
        reason: &str,
    ) -> Result<Conversation, Error> {
        let prepared = (|| {
            let mut learned = Vec::new();
            for turn in &turns {
                learned.extend(self.shared().journal.index.learned_from(&self.key().tenant, *turn)?);
            }
            let (turns, events) = (turns.clone(), events.clone());
            let turn = turns.first().copied().filter(|_| turns.len() == 1);
            let reason = reason.to_string();
            let body = ErasedBody { turns, reason, reason_for, answered, learned, events };
            let draft = Draft { actor: by, turn, ..self.shared().draft(kind::ERASED, &body)? };
            draft.check()?;
            Ok(draft)
        })();
        let action = prepared.map(|draft| Action::Erase { turns: turns.clone(), events, summaries, draft });
        self.carry_out(&turns, words, || self.write(action, Ok).wait())
            .map(|committed| (*committed.conversation).clone())
    }

    /// Commits an erasure of these turns and words, and removes them from files outside the log.
    fn carry_out(
        &self,
        turns: &[TurnId],
        words: Vec<Words>,
        commit: impl FnOnce() -> Result<Committed, Error>,
    ) -> Result<Committed, Error> {
        let mut ids: Vec<String> = turns.iter().map(TurnId::to_string).collect();
        ids.push(self.id().to_string());
        let mut erased = Erased { ids, words };
        self.shared().journal.writable()?;
        // Also before the commit: if the process is killed right after it, nothing searches for this text again.
        self.tenant.records()?.iter().try_for_each(|records| records.erase(&erased))?;
        let committed = commit()?;
        let forgotten = crate::recall::indexer::forget_erased(self.shared(), &self.key().tenant);
        let places: BTreeSet<ConversationId> =
            committed.erased.iter().map(|place| place.conversation).collect();
        erased.ids.extend(places.iter().map(ConversationId::to_string));
        self.tenant.erase_in_records(&erased)?;
        forgotten.map(|()| committed)
    }

    /// Remaining content to which an erasure recorded in another store applies, and whether any of it was written in this
    /// conversation rather than in an ancestor; `None` if nothing remains. A record does not apply to other conversations:
    /// their logs do not confirm it.
    pub(crate) fn named_by(&self, recorded: &Event) -> Result<Option<(Erasure, bool)>, Error> {
        let Some(body) = recorded.read::<ErasedBody>() else { return Ok(None) };
        let conversation = self.shared().journal.index.conversation(self.key())?;
        // The summary of what retention erases is meant to remain.
        let is_retention = conversation.retention != Retention::Full
            && body.reason == retention_reason(conversation.retention);
        let mut erasure = Erasure { summaries: !is_retention, ..Erasure::default() };
        let inherited = conversation.parent.map_or(0, |parent| parent.at_seq);
        let mut is_own = false;
        for turn in body.turns {
            let message = match self.shared().journal.index.turn_in(self.key(), turn) {
                Ok(said) if said.erased => continue,
                Ok(said) => {
                    is_own |= said.seq > inherited;
                    said.value().unwrap_or_default()
                }
                // Erasing is the remedy for a damaged body.
                Err(Error::Corrupt(_)) => Value::Null,
                Err(Error::NotFound(_)) => continue,
                Err(error) => return Err(error),
            };
            erasure.words.push(Words::of(&message));
            erasure.turns.push(turn);
        }
        for place in body.events {
            let log = &self.shared().journal.log;
            let stored = log.stored_events(self.key(), place.seq.saturating_sub(1), 1)?.pop();
            let stored = stored.filter(|event| place_of(event) == place && event.body.is_some());
            let Some(event) = stored else { continue };
            is_own |= event.seq > inherited;
            erasure.words.extend(event.read::<Value>().map(|body| Words::of(&body)));
            erasure.events.push(place);
        }
        let is_empty = erasure.turns.is_empty() && erasure.events.is_empty();
        Ok((!is_empty).then_some((erasure, is_own)))
    }

    /// Applies an erasure recorded in another store. Its event is appended unchanged, so that both logs stay the same. Events that
    /// followed it there, such as a new checkpoint, follow in the imported file.
    pub(crate) fn erase_as_recorded(
        &self,
        recorded: Event,
        mut erasure: Erasure,
    ) -> Result<Conversation, Error> {
        let head = self.shared().journal.index.conversation(self.key())?.head;
        Verifier::after(self.id(), head).push(&recorded)?;
        let (hash, Some(body)) = (recorded.hash, recorded.body) else {
            return Err(Error::internal("erase.record", "the record of an erasure has no body"));
        };
        for turn in &erasure.turns {
            // Of the copies here, the other log knows nothing.
            erasure.events.extend(self.echoes_where(*turn, |event| event.conversation != self.id())?);
        }
        let draft = Draft {
            id: recorded.id,
            at: recorded.at,
            occurred_at: recorded.occurred_at,
            kind: recorded.kind.into(),
            actor: recorded.actor,
            role: recorded.role,
            visibility: recorded.visibility,
            turn: recorded.turn,
            key: recorded.key,
            body,
        };
        let Erasure { turns, events, summaries, words, .. } = erasure;
        let action = Action::Erase { turns: turns.clone(), events, summaries, draft };
        let write = Write { key: self.key().clone(), action };
        let committed = self.carry_out(&turns, words, || {
            Commit::new(self.shared().submit_beyond_quota(write, Vec::new()), Ok).wait()
        })?;
        self.tenant.erase_in_mirrors([self.id()])?;
        if committed.events.last().map(|event| event.hash) != Some(hash) {
            let text = format!("{} was written to while the file was imported; import it again", self.id());
            return Err(Error::conflict("import.changed", text));
        }
        Ok((*committed.conversation).clone())
    }

    /// The conversation's own events of a kind that are not erased.
    fn own_events(&self, conversation: &Conversation, kind: &str) -> Result<Vec<Event>, Error> {
        let mut after = conversation.parent.map_or(0, |parent| parent.at_seq);
        let mut found = Vec::new();
        loop {
            // Erasing is the remedy for a damaged event, so it does not stop at one.
            let page = self.shared().journal.log.stored_events(self.key(), after, PAGE_ENTRIES_MAX)?;
            let Some(last) = page.last() else { return Ok(found) };
            after = last.seq;
            found.extend(page.into_iter().filter(|event| event.kind == kind && event.body.is_some()));
        }
    }

    /// Imported lines from which these checkpoints were made: they repeat them.
    fn lines_of(
        &self,
        conversation: &Conversation,
        compactions: &[Event],
    ) -> Result<Vec<EventAddress>, Error> {
        let told = compactions.iter().filter_map(Event::read::<CompactionBody>);
        let texts = told.filter_map(|body| Some(Value::String(body.checkpoint?.handoff_md)));
        let words: Vec<Words> = texts.map(|text| Words::of(&text)).collect();
        if words.is_empty() {
            return Ok(Vec::new());
        }
        let mut lines = self.own_events(conversation, kind::IMPORT_LINE)?;
        lines.retain(|line| words.iter().any(|words| words.are_repeated_by(line)));
        Ok(lines.iter().map(place_of).collect())
    }

    /// The texts given for model calls of the conversation.
    fn given_texts(&self) -> Result<GivenTexts, Error> {
        let mut texts = Vec::new();
        for event in self.shared().journal.index.stored_assets(self.key())? {
            let Some(asset) = event.read::<Asset>().filter(|asset| is_given(&asset.id)) else { continue };
            // Bytes that are missing repeat nothing.
            let Ok(bytes) = self.tenant.assets().bytes(&asset) else { continue };
            let text = String::from_utf8_lossy(&bytes).into_owned();
            texts.push((place_of(&event), serde_json::from_str(&text).unwrap_or(Value::String(text))));
        }
        Ok(GivenTexts(texts))
    }

    /// Of events without a body, those whose erasure is recorded.
    fn erased_before(&self, gone: impl IntoIterator<Item = Gone>) -> Result<BTreeSet<EventAddress>, Error> {
        let (mut erasures, mut recorded) = (None, BTreeSet::new());
        for gone in gone {
            let erasures = match &mut erasures {
                Some(erasures) => erasures,
                none => none.insert(Erasures::of(self.shared())?),
            };
            if erasures.explain_in(self.key(), &gone)? {
                recorded.insert(gone.place);
            }
        }
        Ok(recorded)
    }

    /// Removes a deleted conversation from records and mirrors.
    pub(crate) fn delete_copies(&self) -> Result<(), Error> {
        self.tenant.erase_in_records(&Erased { ids: vec![self.id().to_string()], words: Vec::new() })?;
        self.tenant.change_mirrors([self.id()], Change { erased: false, deleted: true })
    }

    /// Events that repeat a turn: titles, imported lines, and copies in branches. A title among them is unset first, so that no fork inherits it;
    /// the other settings of that event are written again.
    fn echoes(&self, turn: TurnId) -> Result<Vec<EventAddress>, Error> {
        self.echoes_where(turn, |_| true)
    }

    fn echoes_where(
        &self,
        turn: TurnId,
        is_meant: impl Fn(&Event) -> bool,
    ) -> Result<Vec<EventAddress>, Error> {
        let find = || {
            let mut found = self.shared().journal.index.echoes(self.key(), turn)?;
            found.retain(&is_meant);
            Ok::<Vec<Event>, Error>(found)
        };
        let mut found = find()?;
        let titles: Vec<Event> =
            found.iter().filter(|event| kind::is_settings(&event.kind)).cloned().collect();
        for event in &titles {
            let title = event.read::<Settings>().and_then(|settings| settings.title);
            self.tenant.restate(event, |conversation, settings| {
                if title == Some(conversation.title.clone()) {
                    settings.title = Some(None);
                }
            })?;
        }
        if !titles.is_empty() {
            // A fork may have been made meanwhile.
            found = find()?;
        }
        Ok(found.iter().map(place_of).collect())
    }

    /// Writes the lifecycle state again, without its reason.
    fn restate_state(&self) -> Result<(), Error> {
        let state = self.shared().journal.index.conversation(self.key())?.state;
        // A closed conversation has a later state event, without a reason.
        if state == Lifecycle::Closed {
            return Ok(());
        }
        let draft = self.shared().draft(kind::STATE, &StateBody { state, reason: None })?;
        let action = Action::append(vec![draft]);
        self.write_for_erasure(action)
    }

    fn write_for_erasure(&self, action: Action) -> Result<(), Error> {
        let mut action = action;
        self.tenant.prepare(self.key(), None, &mut action)?;
        let write = Write { key: self.key().clone(), action };
        Commit::new(self.shared().submit_beyond_quota(write, Vec::new()), |_| Ok(())).wait()
    }
}

/// Reason in the record of what retention erased. Frozen: it is stored in the log.
fn retention_reason(retention: Retention) -> String {
    format!("retention {retention}")
}

fn place_of(event: &Event) -> EventAddress {
    EventAddress { conversation: event.conversation, seq: event.seq }
}

/// Refuses events that cannot be erased by `seq`.
fn check_event(event: &Event) -> Result<(), Error> {
    match event.turn {
        Some(turn) if kind::is_of_turn(&event.kind) => {
            let text = format!("seq {} is part of {turn}; erase that turn", event.seq);
            Err(Error::invalid("erase.turn", text))
        }
        _ if !kind::is_of_turn(&event.kind) && !kind::has_words(&event.kind) => {
            let text = format!("seq {} is a {}, which holds no text; it stays", event.seq, event.kind);
            Err(Error::invalid("erase.wordless", text))
        }
        _ => Ok(()),
    }
}
