//! Live updates: events from the log, then new ones, without a gap and without a repeat.
//!
//! A followed conversation has one ring of its latest updates, shared by all its subscribers, so that a subscriber
//! costs a position and not a queue. One that falls behind the ring is told where to resume and dropped.

use crate::everturn::Shared;
use crate::journal::{Observed, Observer};
use crate::tenant::Tenant;
use event_listener::{EventListener, Listener};
use everturn_core::Error;
use everturn_core::error::code;
use everturn_core::event::Event;
use everturn_core::id::{Key, TenantName, TurnId, clip};
use everturn_core::limits::{SUBSCRIBER_LAG_BYTES_MAX, SUBSCRIBER_LAG_EVENTS_MAX};
use everturn_core::viewer::Viewer;
use everturn_core::write::EventAddress;
use futures_core::Stream;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// An update for a subscriber.
#[derive(Clone, Debug)]
pub enum Update {
    /// An event of the log. Each comes exactly once, in order of `seq`.
    Event(Arc<Event>),
    /// A piece of an open turn. Not part of the log: its end will be an event.
    Chunk(Chunk),
    /// The subscriber was too slow and is dropped; subscribe again from here.
    Lagged {
        /// The first event that it did not get.
        resume_from: u64,
    },
    /// The conversation was deleted.
    Deleted,
}

/// A piece of an open turn's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The turn.
    pub turn: TurnId,
    /// `seq` of the turn.
    pub turn_seq: u64,
    /// Bytes of its text before this piece.
    pub offset: u64,
    /// The piece.
    pub text: Arc<str>,
    /// The actors that may see it; `None` for everyone.
    pub audience: Option<Arc<[String]>>,
}

/// Position of a subscriber: pass it to [`ConversationHandle::subscribe`](crate::ConversationHandle::subscribe) to go
/// on.
///
/// As text it is `seq`, or `seq.offset` in the middle of an open turn, or `seq.offset.turn_seq` where that turn is not
/// what `seq` opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Position {
    /// Last event that was received.
    pub seq: u64,
    /// Part of an open turn received since.
    pub chunk: Option<ChunkPosition>,
}

/// After the event at this `seq`; 0 is the beginning.
impl From<u64> for Position {
    fn from(seq: u64) -> Position {
        Position { seq, chunk: None }
    }
}

/// Received part of an open turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ChunkPosition {
    /// `seq` of the turn.
    pub turn_seq: u64,
    /// Bytes of its text.
    pub offset: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.chunk {
            None => write!(f, "{}", self.seq),
            Some(chunk) if chunk.turn_seq == self.seq => write!(f, "{}.{}", self.seq, chunk.offset),
            Some(chunk) => write!(f, "{}.{}.{}", self.seq, chunk.offset, chunk.turn_seq),
        }
    }
}

impl FromStr for Position {
    type Err = Error;

    fn from_str(text: &str) -> Result<Position, Error> {
        let numbers: Option<Vec<u64>> = text
            .split('.')
            .map(|part| part.parse().ok().filter(|_| part.bytes().all(|b| b.is_ascii_digit())))
            .collect();
        let chunk = |offset, turn_seq| Some(ChunkPosition { turn_seq, offset });
        match numbers.as_deref() {
            Some([seq]) => Ok(Position { seq: *seq, chunk: None }),
            Some([seq, offset]) => Ok(Position { seq: *seq, chunk: chunk(*offset, *seq) }),
            Some([seq, offset, turn]) => Ok(Position { seq: *seq, chunk: chunk(*offset, *turn) }),
            _ => {
                let text = format!("{:?} is not a position in a log; write it as 42 or 42.1024", clip(text));
                Err(Error::invalid("position.malformed", text))
            }
        }
    }
}

/// Conversations that have subscribers.
#[derive(Default)]
pub struct Hub {
    topics: Mutex<HashMap<Key, Arc<Topic>>>,
    /// Number of erasures. Updates taken from a ring before the last one must not be handed out any more.
    erasures: AtomicU64,
}

struct Topic {
    state: Mutex<Ring>,
    changed: event_listener::Event,
}

#[derive(Default)]
struct Ring {
    updates: VecDeque<Update>,
    /// The position of the first update in the ring; positions only grow.
    first: u64,
    bytes: usize,
    subscribers: usize,
    closed: bool,
    /// The last event that was published here, for [`Hub::followed`].
    head: u64,
}

impl Ring {
    fn end(&self) -> u64 {
        self.first + self.updates.len() as u64
    }

    fn push(&mut self, update: Update) {
        if let Update::Event(event) = &update {
            self.head = self.head.max(event.seq);
        }
        self.bytes += weight(&update);
        self.updates.push_back(update);
        while self.updates.len() > SUBSCRIBER_LAG_EVENTS_MAX
            || (self.bytes > SUBSCRIBER_LAG_BYTES_MAX && self.updates.len() > 1)
        {
            let Some(oldest) = self.updates.pop_front() else { break };
            self.bytes -= weight(&oldest);
            self.first += 1;
        }
    }
}

fn weight(update: &Update) -> usize {
    match update {
        Update::Event(event) => event.text().map_or(0, str::len),
        Update::Chunk(chunk) => chunk.text.len(),
        _ => 0,
    }
}

impl Topic {
    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.state.lock()
    }
}

impl Observer for Hub {
    fn committed(&self, commit: &Observed<'_>) {
        let key = commit.key;
        if !commit.committed.erased.is_empty() {
            self.erase(&key.tenant, &commit.committed.erased);
        }
        if commit.deleted {
            self.publish(key, std::iter::once(Update::Deleted));
        } else if self.is_followed(key) {
            let events = commit.events().iter().map(|event| Update::Event(Arc::new(event.clone())));
            self.publish(key, events);
        }
    }
}

impl Hub {
    fn topics(&self) -> MutexGuard<'_, HashMap<Key, Arc<Topic>>> {
        self.topics.lock()
    }

    /// Publishes updates to every subscriber of a conversation.
    pub fn publish(&self, key: &Key, updates: impl Iterator<Item = Update>) {
        let Some(topic) = self.topics().get(key).cloned() else { return };
        let mut ring = topic.ring();
        updates.for_each(|update| ring.push(update));
        drop(ring);
        topic.changed.notify(usize::MAX);
    }

    /// Removes erased text from queued updates. Once it returns, no subscriber gets that text any more.
    pub fn erase(&self, tenant: &TenantName, erased: &[EventAddress]) {
        let topics: Vec<(Key, Arc<Topic>)> = self
            .topics()
            .iter()
            .filter(|(key, _)| key.tenant == *tenant)
            .map(|(key, topic)| (key.clone(), topic.clone()))
            .collect();
        for (key, topic) in topics {
            let gone = |conversation, seq| erased.contains(&EventAddress { conversation, seq });
            for update in &mut topic.ring().updates {
                match update {
                    Update::Event(event) if gone(event.conversation, event.seq) => {
                        Arc::make_mut(event).body = None;
                    }
                    Update::Chunk(chunk) if gone(key.id, chunk.turn_seq) => chunk.text = Arc::from(""),
                    _ => {}
                }
            }
        }
        self.erasures.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether a conversation has subscribers.
    pub fn is_followed(&self, key: &Key) -> bool {
        self.topics().contains_key(key)
    }

    /// Every conversation with subscribers, and its last published event.
    pub fn followed(&self) -> Vec<(Key, u64)> {
        self.topics().iter().map(|(key, topic)| (key.clone(), topic.ring().head)).collect()
    }

    /// Ends every subscription.
    pub fn close(&self) {
        for (_, topic) in self.topics().drain() {
            topic.ring().closed = true;
            topic.changed.notify(usize::MAX);
        }
    }

    fn join(&self, key: &Key, head: u64) -> Arc<Topic> {
        let mut topics = self.topics();
        let topic = topics.entry(key.clone()).or_insert_with(|| {
            let ring = Ring { head, ..Ring::default() };
            Arc::new(Topic { state: Mutex::new(ring), changed: event_listener::Event::new() })
        });
        topic.ring().subscribers += 1;
        metrics::gauge!("everturn_subscribers").increment(1);
        topic.clone()
    }

    fn leave(&self, key: &Key, topic: &Topic) {
        let mut topics = self.topics();
        let mut ring = topic.ring();
        ring.subscribers -= 1;
        metrics::gauge!("everturn_subscribers").decrement(1);
        if ring.subscribers == 0 && !ring.closed {
            topics.remove(key);
        }
    }
}

/// Events read from the log at a time while catching up.
const CATCH_UP_PAGE: usize = 256;

/// Follows one conversation. Blocking callers use [`recv`](Subscription::recv), async ones the [`Stream`].
pub struct Subscription {
    shared: Arc<Shared>,
    key: Key,
    /// The subscriber.
    viewer: Viewer,
    topic: Arc<Topic>,
    next_seq: u64,
    /// Position after the last update that was handed out.
    position: Position,
    /// Part of an open turn that the subscriber already has, until the texts of open turns are handed out.
    known: Option<ChunkPosition>,
    ready: VecDeque<Update>,
    /// Number of erasures before `ready` was filled.
    erasures: u64,
    place: Stage,
    listener: Option<EventListener>,
}

enum Stage {
    /// Reading the log. The ring keeps updates from `joined` on, so none is missed meanwhile.
    CatchingUp { joined: u64 },
    /// At this position of the ring; chunks before `chunks_from` were in the snapshot.
    Live { position: u64, chunks_from: u64 },
    /// The subscription has ended.
    Ended,
}

/// Longest time for which a stream waits for a database that restarts, and the pause between two attempts.
const OUTAGE: Duration = Duration::from_secs(10);
const OUTAGE_PAUSE: Duration = Duration::from_millis(100);

/// Reads for a stream, again while the database cannot be reached or has no connection left.
pub(super) fn through_outages<T>(
    shared: &Shared,
    mut read: impl FnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    let began = Instant::now();
    loop {
        match read() {
            Err(error)
                if (error.is(code::STORE_UNREACHABLE) || error.is(code::STORE_FULL))
                    && began.elapsed() < OUTAGE
                    && !shared.pauses.ended() =>
            {
                shared.pauses.sleep(OUTAGE_PAUSE);
            }
            answer => return answer,
        }
    }
}

impl Subscription {
    pub(crate) fn new(tenant: &Tenant, key: Key, after: Position) -> Result<Subscription, Error> {
        let shared = tenant.shared().clone();
        // Joined before the head is read, so that nothing is missed in between.
        let topic = shared.hub.join(&key, 0);
        let joined = topic.ring().end();
        let subscription = Subscription {
            key,
            viewer: tenant.viewer().clone(),
            topic,
            next_seq: after.seq.saturating_add(1),
            position: after,
            known: after.chunk,
            ready: VecDeque::new(),
            erasures: shared.hub.erasures.load(Ordering::SeqCst),
            place: Stage::CatchingUp { joined },
            listener: None,
            shared,
        };
        let head = subscription.shared.journal.index.conversation(&subscription.key)?.head.seq;
        let mut ring = subscription.topic.ring();
        ring.head = ring.head.max(head);
        drop(ring);
        Ok(subscription)
    }

    /// The next update; blocks until there is one. `None` when the store is closed or the subscriber was dropped.
    pub fn recv(&mut self) -> Result<Option<Update>, Error> {
        loop {
            match self.advance() {
                Advance::Ready(update) => return Ok(update),
                Advance::Read => self.read_ahead()?,
                Advance::Wait(listener) => listener.wait(),
            }
        }
    }

    /// Like [`recv`](Subscription::recv), with a timeout: `Ok(None)` then too.
    pub fn recv_timeout(&mut self, patience: Duration) -> Result<Option<Update>, Error> {
        let deadline = Instant::now() + patience;
        loop {
            match self.advance() {
                Advance::Ready(update) => return Ok(update),
                Advance::Read => self.read_ahead()?,
                Advance::Wait(listener) => {
                    if listener.wait_deadline(deadline).is_none() {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Position after the last update that was received.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Whether the next update comes from the log, so that asking for it reads the disk. An async caller then calls
    /// [`read_ahead`](Subscription::read_ahead) on a thread that may block.
    pub fn is_behind(&self) -> bool {
        if self.ready.is_empty() {
            return matches!(self.place, Stage::CatchingUp { .. });
        }
        // After an erasure, ready updates are read again.
        self.shared.hub.erasures.load(Ordering::SeqCst) != self.erasures
    }

    /// Reads the next updates from the log, if they come from there.
    pub fn read_ahead(&mut self) -> Result<(), Error> {
        self.forget_erased();
        while self.ready.is_empty()
            && let Stage::CatchingUp { joined } = self.place
        {
            let shared = self.shared.clone();
            if let Err(error) = through_outages(&shared, || self.catch_up(joined)) {
                self.place = Stage::Ended;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Waits until there is an update, the end, or something to read from the log: see [`is_behind`](Subscription::is_behind).
    /// Reads nothing itself.
    pub async fn changed(&mut self) {
        while self.ready.is_empty()
            && let Stage::Live { position, chunks_from } = self.place
        {
            // Listen before looking, so that an update in between wakes the listener.
            let listener = self.topic.changed.listen();
            if !self.look(position, chunks_from) {
                listener.await;
            }
        }
    }

    /// One step: an update, the end, or something to read or to wait for.
    fn advance(&mut self) -> Advance {
        loop {
            self.forget_erased();
            if let Some(update) = self.ready.pop_front() {
                let Some(update) = self.seen(update) else { continue };
                match &update {
                    Update::Event(event) => self.position = Position { seq: event.seq, chunk: None },
                    Update::Chunk(chunk) => {
                        let offset = chunk.offset + chunk.text.len() as u64;
                        self.position.chunk = Some(ChunkPosition { turn_seq: chunk.turn_seq, offset });
                    }
                    Update::Lagged { .. } | Update::Deleted => {}
                }
                return Advance::Ready(Some(update));
            }
            match self.place {
                Stage::Ended => return Advance::Ready(None),
                Stage::CatchingUp { .. } => return Advance::Read,
                Stage::Live { position, chunks_from } => {
                    // Listen before looking, so that an update in between wakes the listener.
                    let listener = self.topic.changed.listen();
                    if !self.look(position, chunks_from) {
                        return Advance::Wait(listener);
                    }
                }
            }
        }
    }

    /// An update as the subscriber sees it; `None` for a piece of a turn that is not for it.
    fn seen(&self, update: Update) -> Option<Update> {
        match update {
            _ if self.viewer == Viewer::Owner => Some(update),
            Update::Event(event) => {
                Some(Update::Event(Arc::new(self.viewer.event(Arc::unwrap_or_clone(event)))))
            }
            Update::Chunk(chunk) => {
                let addressed =
                    |audience: &Arc<[String]>| audience.iter().any(|name| self.viewer.is(Some(name)));
                chunk.audience.as_ref().is_none_or(addressed).then_some(Update::Chunk(chunk))
            }
            Update::Lagged { .. } | Update::Deleted => Some(update),
        }
    }

    /// After an erasure, queued updates may hold its text: they are read again.
    fn forget_erased(&mut self) {
        let erasures = self.shared.hub.erasures.load(Ordering::SeqCst);
        if erasures == self.erasures {
            return;
        }
        self.erasures = erasures;
        let has_words = |update: &Update| matches!(update, Update::Event(_) | Update::Chunk(_));
        if self.ready.iter().any(has_words) {
            self.ready.clear();
            self.next_seq = self.position.seq.saturating_add(1);
            self.known = self.position.chunk;
            self.place = Stage::CatchingUp { joined: self.topic.ring().end() };
        }
    }

    fn catch_up(&mut self, joined: u64) -> Result<(), Error> {
        let page = match self.shared.journal.log.events(&self.key, self.next_seq - 1, CATCH_UP_PAGE) {
            Ok(page) => page,
            Err(Error::NotFound(_)) => {
                self.ready.push_back(Update::Deleted);
                self.place = Stage::Ended;
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        if let Some(last) = page.last() {
            self.next_seq = last.seq + 1;
            self.ready.extend(page.into_iter().map(|event| Update::Event(Arc::new(event))));
            return Ok(());
        }
        // The log is read to its end. The text of open turns is taken together with the ring's end, so that each later
        // chunk is behind that end and each earlier one is in the text.
        let topic = &self.topic;
        let (open, end) = self.shared.streams.snapshot(&self.key, || topic.ring().end());
        let ring = self.topic.ring();
        if joined < ring.first {
            // Reading took so long that the ring moved on: read the rest, then look again.
            self.place = Stage::CatchingUp { joined: ring.end() };
            return Ok(());
        }
        for position in joined..end {
            match ring.updates.get((position - ring.first) as usize) {
                Some(Update::Event(event)) if event.seq == self.next_seq => {
                    self.next_seq += 1;
                    self.ready.push_back(Update::Event(event.clone()));
                }
                Some(Update::Deleted) => {
                    self.ready.push_back(Update::Deleted);
                    self.place = Stage::Ended;
                    return Ok(());
                }
                _ => {}
            }
        }
        drop(ring);
        let known = self.known.take();
        let known = |seq| known.filter(|known| known.turn_seq == seq).map_or(0, |known| known.offset);
        let chunks = open.into_iter().map(|open| open.chunk_after(known(open.seq)));
        self.ready.extend(chunks.filter(|chunk| !chunk.text.is_empty()).map(Update::Chunk));
        self.place = Stage::Live { position: end, chunks_from: end };
        Ok(())
    }

    /// Takes new updates from the ring; false if there are none.
    fn look(&mut self, position: u64, chunks_from: u64) -> bool {
        let ring = self.topic.ring();
        if position < ring.first {
            self.ready.push_back(Update::Lagged { resume_from: self.next_seq });
            self.place = Stage::Ended;
            return true;
        }
        if position == ring.end() {
            if ring.closed {
                self.place = Stage::Ended;
            }
            return ring.closed;
        }
        let taken = ring.updates.iter().skip((position - ring.first) as usize).take(CATCH_UP_PAGE);
        let mut at = position;
        for update in taken {
            match update {
                Update::Event(event) if event.seq == self.next_seq => {
                    self.next_seq += 1;
                    self.ready.push_back(update.clone());
                }
                Update::Event(event) if event.seq > self.next_seq => {
                    // Never skip: the missing events are in the log.
                    self.place = Stage::CatchingUp { joined: at };
                    return true;
                }
                Update::Chunk(chunk) if at >= chunks_from && !chunk.text.is_empty() => {
                    self.ready.push_back(update.clone())
                }
                Update::Deleted => {
                    self.ready.push_back(Update::Deleted);
                    self.place = Stage::Ended;
                    return true;
                }
                _ => {}
            }
            at += 1;
        }
        self.place = Stage::Live { position: at, chunks_from };
        true
    }
}

enum Advance {
    Ready(Option<Update>),
    /// The next update is in the log.
    Read,
    Wait(EventListener),
}

impl Subscription {
    /// Bytes of the events that were read and not yet handed out.
    pub fn waiting_bytes(&self) -> usize {
        let length = |update: &Update| match update {
            Update::Event(event) => event.text().map_or(0, str::len),
            _ => 0,
        };
        self.ready.iter().map(length).sum()
    }
}

impl Stream for Subscription {
    type Item = Result<Update, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(listener) = &mut self.listener {
                if Pin::new(listener).poll(context).is_pending() {
                    return Poll::Pending;
                }
                self.listener = None;
            }
            match self.advance() {
                Advance::Ready(update) => return Poll::Ready(update.map(Ok)),
                Advance::Wait(listener) => self.listener = Some(listener),
                // An outage is not waited for: the thread may have other tasks.
                Advance::Read => {
                    if let Stage::CatchingUp { joined } = self.place
                        && let Err(error) = self.catch_up(joined)
                    {
                        self.place = Stage::Ended;
                        return Poll::Ready(Some(Err(error)));
                    }
                }
            }
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.shared.hub.leave(&self.key, &self.topic);
    }
}
