//! Cache of messages between projections, so that the next one reads only new turns.

use crate::conversation::ConversationHandle;
use crate::journal::{Observed, Observer};
use crate::load::Slot;
use everturn_core::Error;
use everturn_core::conversation::view_start;
use everturn_core::event::{Event, kind};
use everturn_core::id::{Key, TurnId};
use everturn_core::limits::PAGE_ENTRIES_MAX;
use everturn_core::pairing;
use everturn_core::turn::Turn;
use everturn_core::viewer::{Viewer, is_for_everyone};
use everturn_store::TurnQuery;
use everturn_views::context::{Seen, seen_by};
use everturn_views::projection::{
    Incremental, Message, Previous, ProjectedView, ViewOptions, project_after, replay,
};
use everturn_views::reading;
use everturn_views::state::Fold;
use parking_lot::Mutex;
use serde_json::Value;
use std::ops::ControlFlow;

/// Conversations above this are projected a few at a time.
const LARGE_BYTES: u64 = 4 * 1024 * 1024;
/// Most conversations that are kept.
const KEPT_MAX: usize = 32;
/// Most bytes of messages of a conversation that is kept.
const KEPT_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// The messages of the turns in a range of places, as they stood at a `seq`, in reading order.
pub(crate) struct Transcript<'a> {
    /// The first turn is after this place.
    pub after_seq: u64,
    /// `seq` as of which they stood.
    pub through_seq: u64,
    /// The turn of each message, and its place.
    turns: Vec<(TurnId, u64)>,
    /// Whether turns of the range were superseded: then what a later call or result belongs to is not known here.
    edited: bool,
    /// Whether everyone may see all of it.
    pub is_public: bool,
    bytes: u64,
    messages: Incremental,
    /// Hash of the last view.
    shown: Option<String>,
    /// Held while a large transcript is in memory.
    slot: Option<Slot<'a>>,
}

/// A view, and the turn of each message of the transcript with its place.
type Projected<'a> = (ProjectedView<'a>, &'a [(TurnId, u64)]);

impl Transcript<'_> {
    /// Makes the view that follows a recorded one. Also returns the turn of each message, and its place.
    pub fn project(
        &mut self,
        summary: Option<&str>,
        options: &ViewOptions,
        recorded: Option<&Value>,
    ) -> Result<Projected<'_>, Error> {
        let Transcript { messages, turns, shown, .. } = self;
        let is_last = |recorded: &Value| {
            shown.as_deref().is_some_and(|hash| recorded["prefix_hash"].as_str() == Some(hash))
        };
        let previous = match recorded {
            None => Previous::None,
            Some(recorded) if is_last(recorded) => Previous::Last,
            Some(recorded) => Previous::Recorded(recorded),
        };
        let view = messages.project(summary, options, previous)?;
        *shown = Some(view.prefix_hash.clone());
        Ok((view, turns))
    }

    /// The same for the turns before a place.
    pub fn project_before(
        &self,
        place: u64,
        summary: Option<&str>,
        options: &ViewOptions,
    ) -> Result<Projected<'_>, Error> {
        Ok((project_after(self.before(place), summary, options, None)?, &self.turns))
    }

    /// Makes a recorded view again.
    pub fn replay(&self, before: Option<u64>, recorded: &Value) -> Result<Projected<'_>, Error> {
        Ok((replay(self.before(before.unwrap_or(u64::MAX)), recorded)?, &self.turns))
    }

    fn before(&self, place: u64) -> &[Message] {
        &self.messages.messages()[..self.turns.partition_point(|(_, at)| *at < place)]
    }

    fn add(&mut self, turn: &Turn, message: Message) {
        self.bytes += message.raw().get().len() as u64;
        self.turns.push((turn.id, turn.place));
        self.messages.push(message);
    }
}

/// Transcripts of the conversations that were projected last.
#[derive(Default)]
pub(crate) struct Transcripts(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    /// The last one first.
    transcripts: Vec<(Key, Transcript<'static>)>,
    /// Number of erasures and deletions so far: what was read before one is not kept.
    erasures: u64,
}

impl Observer for Transcripts {
    fn committed(&self, commit: &Observed<'_>) {
        if commit.deleted || !commit.committed.erased.is_empty() {
            let mut kept = self.0.lock();
            kept.erasures += 1;
            kept.transcripts.retain(|(key, _)| key.tenant != commit.key.tenant);
        }
    }

    fn forget_all(&self) {
        let mut kept = self.0.lock();
        kept.erasures += 1;
        kept.transcripts.clear();
    }
}

impl Transcripts {
    /// Takes the transcript that a view as of a `seq` can begin with. Also returns the number of erasures so far.
    fn take(&self, key: &Key, after: u64, through: u64) -> (u64, Option<Transcript<'static>>) {
        let mut kept = self.0.lock();
        let fits = |kept: &Transcript<'_>| kept.after_seq == after && kept.through_seq <= through;
        let found = kept.transcripts.iter().position(|(other, kept)| other == key && fits(kept));
        let found = found.map(|at| kept.transcripts.remove(at).1);
        (kept.erasures, found)
    }

    fn keep(&self, key: &Key, erasures: u64, transcript: Transcript<'_>) {
        let Transcript { after_seq, through_seq, turns, edited, is_public, bytes, messages, shown, slot } =
            transcript;
        drop(slot);
        let mut kept = self.0.lock();
        if bytes > KEPT_BYTES_MAX || kept.erasures != erasures {
            return;
        }
        let transcript = Transcript {
            after_seq,
            through_seq,
            turns,
            edited,
            is_public,
            bytes,
            messages,
            shown,
            slot: None,
        };
        let is_newer = |(other, kept): &(Key, Transcript<'_>)| other == key && kept.through_seq > through_seq;
        if kept.transcripts.iter().any(is_newer) {
            return;
        }
        kept.transcripts.retain(|(other, _)| other != key);
        kept.transcripts.insert(0, (key.clone(), transcript));
        kept.transcripts.truncate(KEPT_MAX);
    }
}

/// Whether a model does not see a turn.
fn is_hidden(turn: &Turn) -> bool {
    let message = turn.value();
    seen_by(&[], &[(turn, message.as_ref())]) == [Seen::Hidden]
}

impl ConversationHandle {
    /// Runs a closure on the messages view as of a fold. Reads only what is new since the last time.
    pub(crate) fn with_transcript<T>(
        &self,
        fold: &Fold,
        run: impl FnOnce(&mut Transcript<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let (after, _) = view_start(fold.checkpoint, fold.budget);
        // Only the owner's is kept: others see less of it.
        if *self.tenant.viewer() != Viewer::Owner {
            return run(&mut self.read_transcript(after, fold.through_seq)?);
        }
        let (erasures, kept) = self.shared().transcripts.take(self.key(), after, fold.through_seq);
        let grown = match kept {
            Some(kept) => self.grown(kept, fold.through_seq)?,
            None => None,
        };
        let mut transcript = match grown {
            Some(transcript) => transcript,
            None => self.read_transcript(after, fold.through_seq)?,
        };
        let done = run(&mut transcript)?;
        self.shared().transcripts.keep(self.key(), erasures, transcript);
        Ok(done)
    }

    /// The transcript with what came since; `None` if that is more than turns at its end.
    fn grown<'a>(
        &self,
        mut transcript: Transcript<'a>,
        through: u64,
    ) -> Result<Option<Transcript<'a>>, Error> {
        while transcript.through_seq < through {
            let left = usize::try_from(through - transcript.through_seq).unwrap_or(usize::MAX);
            let after = transcript.through_seq;
            let events = self.shared().journal.log.events(self.key(), after, left.min(PAGE_ENTRIES_MAX))?;
            let Some(last) = events.last().map(|event| event.seq) else { return Ok(None) };
            for event in &events {
                if !self.follows(&mut transcript, event)? {
                    return Ok(None);
                }
            }
            transcript.through_seq = last;
        }
        Ok((transcript.bytes <= KEPT_BYTES_MAX).then_some(transcript))
    }

    /// Adds the turn that an event completes. Returns whether the event changes nothing else.
    fn follows(&self, transcript: &mut Transcript<'_>, event: &Event) -> Result<bool, Error> {
        let turn = match event.kind.as_str() {
            kind::SUPERSEDED | kind::ERASED => return Ok(false),
            kind::COMMITTED | kind::INTERRUPTED => match event.turn {
                Some(turn) => self.turn(turn)?,
                None => return Ok(true),
            },
            kind if kind::begins_turn(kind) => match Turn::begun(event) {
                Some(turn) => turn,
                None => return Ok(true),
            },
            _ => return Ok(true),
        };
        let Some(raw) = turn.message.clone().filter(|_| !is_hidden(&turn)) else { return Ok(true) };
        let message = Message::read(raw)?;
        let pairs = pairing::pair([message.value()]);
        let alone = pairs.calls.is_empty() && pairs.results.is_empty();
        if transcript.turns.last().is_some_and(|(_, last)| turn.place <= *last) || transcript.edited && !alone
        {
            return Ok(false);
        }
        transcript.is_public &= is_for_everyone(&turn);
        transcript.add(&turn, message);
        Ok(true)
    }

    /// Reads the messages of the turns after a place, as they stood at a `seq`.
    pub(crate) fn read_transcript(&self, after_seq: u64, through_seq: u64) -> Result<Transcript<'_>, Error> {
        let (mut turns, mut bytes, mut slot) = (Vec::new(), 0, None);
        // With superseded turns: results of a call that was edited away are known by it.
        let query = TurnQuery {
            after: Some(after_seq),
            as_of: Some(through_seq),
            whole_log: true,
            ..TurnQuery::default()
        };
        self.each_turn(query, |turn| {
            bytes += turn.message.as_ref().map_or(0, |message| message.get().len() as u64);
            self.shared().check_whole(bytes)?;
            if bytes > LARGE_BYTES && slot.is_none() {
                slot = Some(self.shared().wholes.take());
            }
            if turn.place > after_seq && !is_hidden(&turn) {
                turns.push(turn);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        let mut transcript = Transcript {
            after_seq,
            through_seq,
            turns: Vec::new(),
            edited: turns.iter().any(|turn| turn.superseded_by.is_some()),
            is_public: turns.iter().all(|turn| turn.hidden || is_for_everyone(turn)),
            bytes: 0,
            messages: Incremental::default(),
            shown: None,
            slot,
        };
        for (index, message) in reading::messages(&turns)? {
            transcript.add(&turns[index], message);
        }
        Ok(transcript)
    }
}
