//! Running generations: their state, their end, and the updates for their readers.
//!
//! A reply belongs to its conversation and not to the caller: it continues when nobody listens, and ends when it is
//! stopped, when its turn is ended by somebody else, or when the store closes.

use crate::journal::{Observed, Observer};
use crate::model::{Delta, ModelReply, wait};
use crate::writer::closed;
use everturn_core::Error;
use everturn_core::event::kind;
use everturn_core::id::{ConversationId, GenerationId, Key, TenantName, TurnId};
use everturn_core::turn::Turn;
use futures_core::Stream;
use futures_util::StreamExt;
use futures_util::task::AtomicWaker;
use parking_lot::{Condvar, Mutex, MutexGuard};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// Most ended generations remembered; the oldest are dropped first.
const ENDED_MAX: usize = 1024;

/// Longest time that closing the store waits for generations to end.
const CLOSE_WAIT: Duration = Duration::from_secs(10);

/// A running generation: pieces of the reply, and finally the committed turns or an error. Dropping it does not stop
/// the generation: [`stop`](crate::TenantGenerations::stop) does.
///
/// A slow reader gets pieces of the same kind joined to longer ones.
#[non_exhaustive]
pub struct Generating {
    /// Id of the generation.
    pub id: GenerationId,
    /// The conversation.
    pub conversation: ConversationId,
    /// Turns appended as input.
    pub input: Vec<Turn>,
    /// Turn of the reply, open until the end.
    pub turn: TurnId,
    /// `seq` of the prompt's receipt.
    pub receipt_seq: u64,
    pub(crate) news: Arc<News>,
}

/// Next update of a generation.
#[derive(Clone, Debug)]
pub enum GenerationProgress {
    /// Another piece.
    Delta(Delta),
    /// The complete reply, durable; nothing follows.
    Done(Box<Generated>),
}

/// A committed reply.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Generated {
    /// Committed turns, oldest first. The first is the turn that was open; a reply of several items has one for each.
    pub turns: Vec<Turn>,
    /// The model's reply.
    pub answer: ModelReply,
    /// `seq` of the prompt's receipt: not the first one, if the prompt had to be shortened.
    pub receipt_seq: u64,
}

/// Status of a generation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Generation")]
#[non_exhaustive]
pub struct GenerationStatus {
    /// Its id.
    pub id: GenerationId,
    /// The conversation.
    pub conversation: ConversationId,
    /// Turn of the reply; null until it is open.
    pub turn: Option<TurnId>,
    /// State of the generation.
    #[serde(flatten)]
    pub state: GenerationState,
}

/// State of a generation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum GenerationState {
    /// The reply is being written.
    Running,
    /// Waits for approvals before the model is asked.
    Waiting {
        /// Ids of the approvals.
        waits_for: Vec<String>,
    },
    /// The reply is committed.
    Done,
    /// There is no reply.
    Failed {
        /// Error code.
        code: Cow<'static, str>,
        /// Error message.
        text: String,
    },
    /// Stopped on request.
    Stopped,
}

/// One object for all states: only a failure has `code` and `text`, and only a waiting one has `waits_for`.
impl JsonSchema for GenerationState {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "GenerationState".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "properties": {
                "state": {"type": "string", "enum": ["running", "waiting", "done", "failed", "stopped"]},
                "waits_for": {
                    "type": "array", "items": {"type": "string"}, "description": "Ids of the approvals that it waits for.",
                },
                "code": {"type": "string", "description": "Error code."},
                "text": {"type": "string", "description": "Error message."},
            },
            "required": ["state"],
        })
    }
}

/// Reason for which a reply ends before the model ends it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Halt {
    /// Stopped on request.
    Stopped,
    /// Its turn was ended by somebody else, or is gone.
    TurnEnded,
    /// The store closes.
    Closed,
}

impl Generating {
    /// The next update; blocks until there is one. `None` after the last.
    pub fn recv(&mut self) -> Result<Option<GenerationProgress>, Error> {
        wait(self.next()).transpose()
    }

    /// The committed reply; blocks until it is there.
    pub fn wait(mut self) -> Result<Generated, Error> {
        while let Some(progress) = self.recv()? {
            if let GenerationProgress::Done(generated) = progress {
                return Ok(*generated);
            }
        }
        Err(closed())
    }
}

impl Stream for Generating {
    type Item = Result<GenerationProgress, Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        // Registered before looking, so that an update in between wakes the task.
        self.news.waker.register(context.waker());
        let mut waiting = self.news.waiting();
        match waiting.steps.pop_front() {
            Some(step) => Poll::Ready(Some(step)),
            None if waiting.ended => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

impl Drop for Generating {
    fn drop(&mut self) {
        let mut waiting = self.news.waiting();
        waiting.unheard = true;
        waiting.steps.clear();
    }
}

impl fmt::Debug for Generating {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.id, self.conversation)
    }
}

/// Updates waiting for the reader. They take no more room than the reply does: see [`News::tell`].
#[derive(Default)]
pub struct News {
    waiting: Mutex<Waiting>,
    waker: AtomicWaker,
}

#[derive(Default)]
struct Waiting {
    steps: VecDeque<Result<GenerationProgress, Error>>,
    ended: bool,
    /// The reader is gone.
    unheard: bool,
}

impl News {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock()
    }

    /// Adds a piece. If the one before was not read yet, the two are joined: many small pieces must not take more
    /// room than their text.
    pub fn tell(&self, delta: Delta) {
        let mut waiting = self.waiting();
        if waiting.unheard || waiting.ended {
            return;
        }
        let left = match waiting.steps.back_mut() {
            Some(Ok(GenerationProgress::Delta(last))) => join(last, delta),
            _ => Some(delta),
        };
        waiting.steps.extend(left.map(|delta| Ok(GenerationProgress::Delta(delta))));
        drop(waiting);
        self.waker.wake();
    }

    /// Adds the end. A second one changes nothing.
    pub fn end(&self, last: Result<Generated, Error>) {
        let mut waiting = self.waiting();
        if !waiting.ended {
            waiting.ended = true;
            if !waiting.unheard {
                waiting.steps.push_back(last.map(|generated| GenerationProgress::Done(Box::new(generated))));
            }
        }
        drop(waiting);
        self.waker.wake();
    }
}

/// Joins a piece to the one before; returns it if the two do not belong together.
fn join(last: &mut Delta, next: Delta) -> Option<Delta> {
    match (last, next) {
        (Delta::Text(said), Delta::Text(more))
        | (Delta::Thinking(said), Delta::Thinking(more))
        | (Delta::Refusal(said), Delta::Refusal(more)) => said.push_str(&more),
        (
            Delta::Call { index, arguments, .. },
            Delta::Call { index: same, id: None, name: None, arguments: more },
        ) if *index == same => arguments.push_str(&more),
        (_, next) => return Some(next),
    }
    None
}

/// The generations of a store.
#[derive(Default)]
pub struct Generations {
    known: Mutex<Known>,
    left: Condvar,
    /// Changes with every resolved approval.
    resolved: watch::Sender<()>,
}

#[derive(Default)]
struct Known {
    running: HashMap<GenerationId, Running>,
    /// Oldest first.
    ended: VecDeque<(TenantName, GenerationStatus)>,
    /// Number of generations that still hold the store; an ended one does for a moment.
    at_work: usize,
    closed: bool,
}

struct Running {
    key: Key,
    turn: Option<TurnId>,
    /// Ids of the approvals that it waits for.
    waits_for: Vec<String>,
    /// Taken by the first to end it.
    halt: Option<oneshot::Sender<Halt>>,
}

impl Running {
    fn status(&self, id: GenerationId) -> GenerationStatus {
        let state = match self.waits_for.is_empty() {
            true => GenerationState::Running,
            false => GenerationState::Waiting { waits_for: self.waits_for.clone() },
        };
        GenerationStatus { id, conversation: self.key.id, turn: self.turn, state }
    }

    fn halt(&mut self, why: Halt) {
        if let Some(halt) = self.halt.take() {
            // It may have just ended.
            let _ = halt.send(why);
        }
    }
}

/// Registration of a running generation. The holder must release the store before dropping it.
pub struct Seat {
    generations: Arc<Generations>,
    id: GenerationId,
}

impl Observer for Generations {
    fn committed(&self, commit: &Observed<'_>) {
        let ended = commit.events().iter().filter(|event| kind::ends_turn(&event.kind));
        for turn in ended.filter_map(|event| event.turn) {
            self.turn_ended(commit.key, Some(turn));
        }
        if commit.deleted {
            self.turn_ended(commit.key, None);
        }
        if commit.has(|kind| kind == kind::APPROVAL_RESOLVED) {
            self.resolved.send_replace(());
        }
    }
}

impl Generations {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock()
    }

    /// Registers a generation, unless another one runs in that conversation.
    pub fn begin(
        self: &Arc<Self>,
        id: GenerationId,
        key: Key,
        parallel: bool,
    ) -> Result<(Seat, oneshot::Receiver<Halt>), Error> {
        let mut known = self.known();
        if known.closed {
            return Err(closed());
        }
        let other = known.running.iter().find(|(_, running)| running.key == key && !parallel);
        if let Some((other, _)) = other {
            let text = format!(
                "{other} is running in {}; wait for it, stop it, or ask for both with `parallel`",
                key.id
            );
            return Err(Error::conflict("generation.running", text));
        }
        let (halt, halted) = oneshot::channel();
        known.running.insert(id, Running { key, turn: None, waits_for: Vec::new(), halt: Some(halt) });
        known.at_work += 1;
        drop(known);
        Ok((Seat { generations: self.clone(), id }, halted))
    }

    /// Changes with every approval that is resolved from now on.
    pub fn resolutions(&self) -> watch::Receiver<()> {
        self.resolved.subscribe()
    }

    /// Notes the approvals that a generation waits for.
    pub fn waits(&self, id: GenerationId, waits_for: Vec<String>) {
        if let Some(running) = self.known().running.get_mut(&id) {
            running.waits_for = waits_for;
        }
    }

    /// Notes that the turn of the reply is open.
    pub fn opened(&self, id: GenerationId, turn: TurnId) {
        if let Some(running) = self.known().running.get_mut(&id) {
            running.turn = Some(turn);
        }
    }

    /// Notes that a generation has ended.
    pub fn ended(&self, id: GenerationId, state: GenerationState) {
        let mut known = self.known();
        let Some(running) = known.running.remove(&id) else { return };
        let status = GenerationStatus { state, ..running.status(id) };
        known.ended.push_back((running.key.tenant, status));
        if known.ended.len() > ENDED_MAX {
            known.ended.pop_front();
        }
    }

    /// Ends generations whose turn was ended, or whose conversation was deleted.
    pub fn turn_ended(&self, key: &Key, turn: Option<TurnId>) {
        let mut known = self.known();
        let of = |running: &&mut Running| running.key == *key && (turn.is_none() || running.turn == turn);
        known.running.values_mut().filter(of).for_each(|running| running.halt(Halt::TurnEnded));
    }

    /// Asks a generation to stop.
    pub fn stop(&self, tenant: &TenantName, id: GenerationId) -> Result<GenerationStatus, Error> {
        let mut known = self.known();
        if let Some(running) = known.running.get_mut(&id).filter(|running| running.key.tenant == *tenant) {
            running.halt(Halt::Stopped);
            return Ok(running.status(id));
        }
        let status = known.ended(tenant, id)?;
        Err(Error::conflict(
            "generation.ended",
            format!("{id} has ended already; read {}", status.conversation),
        ))
    }

    /// Status of a generation.
    pub fn status(&self, tenant: &TenantName, id: GenerationId) -> Result<GenerationStatus, Error> {
        let known = self.known();
        match known.running.get(&id).filter(|running| running.key.tenant == *tenant) {
            Some(running) => Ok(running.status(id)),
            None => known.ended(tenant, id),
        }
    }

    /// Generations that run in a conversation, oldest first.
    pub fn running(&self, key: &Key) -> Vec<GenerationStatus> {
        let known = self.known();
        let here = known.running.iter().filter(|(_, running)| running.key == *key);
        let mut here: Vec<GenerationStatus> = here.map(|(id, running)| running.status(*id)).collect();
        here.sort_by_key(|status| status.id);
        here
    }

    /// Ends all generations and waits until they release the store. Their turns stay open, for the recovery to end.
    pub fn close(&self) {
        let mut known = self.known();
        known.closed = true;
        known.running.values_mut().for_each(|running| running.halt(Halt::Closed));
        if self.left.wait_while_for(&mut known, |known| known.at_work > 0, CLOSE_WAIT).timed_out() {
            tracing::warn!("an answer did not end within {} s of closing", CLOSE_WAIT.as_secs());
        }
    }
}

impl Known {
    fn ended(&self, tenant: &TenantName, id: GenerationId) -> Result<GenerationStatus, Error> {
        let known = self.ended.iter().rev().find(|(of, status)| of == tenant && status.id == id);
        known.map(|(_, status)| status.clone()).ok_or_else(|| absent_generation(id))
    }
}

/// The error for a generation that is not known, or not to the caller.
pub fn absent_generation(id: GenerationId) -> Error {
    let text = format!(
        "no generation {id} here; known are the running ones, and the last {ENDED_MAX} that ended since the store was opened"
    );
    Error::not_found("generation.absent", text)
}

impl Drop for Seat {
    fn drop(&mut self) {
        let text = "the generation failed unexpectedly; ask again".to_string();
        // Only if no end was noted.
        self.generations.ended(self.id, GenerationState::Failed { code: "generation.broken".into(), text });
        self.generations.known().at_work -= 1;
        self.generations.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ulid::Ulid;

    fn key(tenant: &str) -> Key {
        Key { tenant: TenantName::new(tenant).unwrap(), id: ConversationId(Ulid::from_parts(1, 1)) }
    }

    fn id(n: u128) -> GenerationId {
        GenerationId(Ulid::from_parts(1, n))
    }

    #[test]
    fn pieces_that_nobody_took_yet_are_joined_and_others_are_not() {
        let news = News::default();
        let call = |index, id: Option<&str>, arguments: &str| Delta::Call {
            index,
            id: id.map(str::to_string),
            name: id.map(|_| "ls".to_string()),
            arguments: arguments.into(),
        };
        for delta in [
            Delta::Thinking("h".into()),
            Delta::Thinking("m".into()),
            Delta::Text("a".into()),
            Delta::Text("b".into()),
            call(0, Some("c0"), "{"),
            call(0, None, "}"),
            call(1, Some("c1"), ""),
        ] {
            news.tell(delta);
        }
        let steps: Vec<Delta> = news
            .waiting()
            .steps
            .drain(..)
            .filter_map(|step| match step {
                Ok(GenerationProgress::Delta(delta)) => Some(delta),
                _ => None,
            })
            .collect();
        let expected = [
            Delta::Thinking("hm".into()),
            Delta::Text("ab".into()),
            call(0, Some("c0"), "{}"),
            call(1, Some("c1"), ""),
        ];
        assert_eq!(steps, expected);
    }

    #[test]
    fn what_ended_is_remembered_in_bounds_and_by_its_tenant_only() {
        let generations = Arc::new(Generations::default());
        for n in 0..ENDED_MAX as u128 + 1 {
            let (seat, _) = generations.begin(id(n), key("a"), false).unwrap();
            generations.ended(id(n), GenerationState::Done);
            drop(seat);
        }
        let tenant = TenantName::new("a").unwrap();
        assert_eq!(generations.status(&tenant, id(0)).unwrap_err().code(), "generation.absent");
        assert_eq!(generations.status(&tenant, id(1)).unwrap().state, GenerationState::Done);
        let other = TenantName::new("b").unwrap();
        assert_eq!(generations.status(&other, id(1)).unwrap_err().code(), "generation.absent");
        assert_eq!(generations.stop(&other, id(1)).unwrap_err().code(), "generation.absent");
        assert_eq!(generations.stop(&tenant, id(1)).unwrap_err().code(), "generation.ended");
    }

    #[test]
    fn a_seat_that_is_left_without_a_word_counts_as_broken() {
        let generations = Arc::new(Generations::default());
        let (seat, _) = generations.begin(id(1), key("a"), false).unwrap();
        let refused = generations.begin(id(2), key("a"), false).map(drop).unwrap_err();
        assert!(refused.code() == "generation.running" && refused.text().contains(&id(1).to_string()));
        assert!(generations.begin(id(2), key("b"), false).is_ok(), "another tenant's");
        drop(seat);
        let status = generations.status(&TenantName::new("a").unwrap(), id(1)).unwrap();
        assert!(matches!(status.state, GenerationState::Failed { code, .. } if code == "generation.broken"));
        generations.close();
        assert_eq!(generations.begin(id(3), key("a"), true).map(drop).unwrap_err().code(), "store.closed");
    }
}
