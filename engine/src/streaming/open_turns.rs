//! Open turns: text that grows chunk by chunk, published at once and made durable with a debounce; with redaction `mask`,
//! neither happens before the end.

use crate::ingest::redaction_mode;
use crate::journal::{Observed, Observer};
use crate::streaming::hub::{Chunk, Hub, Update};
use everturn_core::Error;
use everturn_core::conversation::Conversation;
use everturn_core::event::{Event, Visibility, kind};
use everturn_core::id::{Key, TurnId};
use everturn_core::json::{self, Raw};
use everturn_core::limits::STREAM_BYTES_MAX;
use everturn_core::redaction;
use everturn_core::time::Timestamp;
use everturn_core::turn::{Role, Turn, TurnBody};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Every open turn of this process, and those of others that have readers here.
#[derive(Default)]
pub struct Streams {
    /// Held while text is handed to the writer: closing waits until it is there.
    pub flushing: Mutex<()>,
    /// By conversation and turn: the same turn may be open in two tenants, if one imported it from the other.
    open: Mutex<HashMap<(Key, TurnId), Open>>,
    /// Signalled when a stream has text that is not durable yet.
    pub(crate) dirty: Condvar,
}

impl Observer for Streams {
    fn committed(&self, commit: &Observed<'_>) {
        for event in commit.events() {
            let Some(turn) = event.turn else { continue };
            if event.kind == kind::OPENED {
                let open = Open::new(event, &commit.committed.conversation);
                self.open().insert((commit.key.clone(), turn), open);
            } else if kind::ends_turn(&event.kind) {
                self.open().remove(&(commit.key.clone(), turn));
            }
        }
        if commit.deleted {
            self.open().retain(|(of, _), _| of != commit.key);
        }
    }
}

/// One open turn.
#[derive(Clone, Debug)]
pub struct Open {
    pub seq: u64,
    /// Id of the access key that opened it.
    pub key: Option<String>,
    pub actor: Option<String>,
    pub role: Role,
    pub visibility: Visibility,
    pub audience: Vec<String>,
    pub model: Option<String>,
    pub metadata: BTreeMap<String, Raw>,
    pub text: String,
    /// Length of the text as JSON, which must fit into an event at the end.
    pub json_bytes: usize,
    /// Bytes of the text handed to the writer.
    pub durable: usize,
    /// Time of the first chunk that is not durable yet.
    pub dirty_since: Option<Timestamp>,
    pub last: Timestamp,
    /// Open in another process, and here only for its readers.
    pub foreign: bool,
    /// Secrets are masked before anything is stored or published, which needs the whole text: both happen at the end.
    pub masked: bool,
}

impl Open {
    fn new(event: &Event, conversation: &Conversation) -> Open {
        let opened: TurnBody = event.read().unwrap_or_default();
        Open {
            seq: event.seq,
            key: event.key.clone(),
            actor: event.actor.clone(),
            role: event.role.unwrap_or(Role::Assistant),
            visibility: event.visibility,
            audience: opened.audience,
            model: opened.model,
            metadata: opened.metadata,
            text: String::new(),
            json_bytes: 0,
            durable: 0,
            dirty_since: None,
            last: event.at,
            foreign: false,
            masked: redaction_mode(conversation) == redaction::RedactionMode::Mask,
        }
    }
}

impl Open {
    /// The actors that may see it; `None` for everyone.
    fn addressed(&self) -> Option<Arc<[String]>> {
        let is_private = self.visibility == Visibility::Private;
        is_private.then(|| self.actor.iter().chain(&self.audience).cloned().collect())
    }
}

/// Text of an open turn so far.
pub struct OpenText {
    pub turn: TurnId,
    pub seq: u64,
    pub text: String,
    pub audience: Option<Arc<[String]>>,
}

impl OpenText {
    /// Text after an offset, as one piece. The whole text, if it has no such offset: the subscriber's part is then
    /// from elsewhere.
    pub fn chunk_after(&self, offset: u64) -> Chunk {
        let rest = usize::try_from(offset).ok().and_then(|offset| self.text.get(offset..));
        let (offset, text) = rest.map_or((0, self.text.as_str()), |rest| (offset, rest));
        let audience = self.audience.clone();
        Chunk { turn: self.turn, turn_seq: self.seq, offset, text: text.into(), audience }
    }
}

/// Text to make durable.
pub struct UnwrittenText {
    pub key: Key,
    pub turn: TurnId,
    pub offset: u64,
    pub text: String,
}

impl Streams {
    /// An open turn as it is now.
    pub fn get(&self, key: &Key, turn: TurnId) -> Option<Open> {
        self.open().get(&(key.clone(), turn)).filter(|open| !open.foreign).cloned()
    }

    /// Checks an open turn, if it is open here.
    pub fn check<E>(
        &self,
        key: &Key,
        turn: TurnId,
        check: impl FnOnce(&Open) -> Result<(), E>,
    ) -> Result<(), E> {
        self.open().get(&(key.clone(), turn)).map_or(Ok(()), check)
    }

    /// Wakes the thread that makes chunks durable, so that it sees the store closing.
    pub fn wake(&self) {
        // A thread that has checked the flag but does not wait yet holds the lock; it would miss a notification sent
        // without it.
        drop(self.open());
        self.dirty.notify_all();
    }

    pub(crate) fn open(&self) -> MutexGuard<'_, HashMap<(Key, TurnId), Open>> {
        self.open.lock()
    }

    /// Adds a piece at an offset and publishes it. Returns the new length, or `None` if the turn is not open here.
    pub fn chunk(
        &self,
        hub: &Hub,
        key: &Key,
        turn: TurnId,
        offset: Option<u64>,
        delta: &str,
        now: Timestamp,
    ) -> Result<Option<u64>, Error> {
        let mut streams = self.open();
        let Some(open) = streams.get_mut(&(key.clone(), turn)).filter(|open| !open.foreign) else {
            return Ok(None);
        };
        let length = open.text.len() as u64;
        let offset = offset.unwrap_or(length);
        let wrong = |what: &str| {
            let text = format!("{turn} has {length} bytes and this chunk is at {offset}; {what}");
            Err(Error::conflict("chunk.offset", text))
        };
        // A repeated part must be equal to the text; only the rest is new.
        let Some(repeated) = length.checked_sub(offset) else {
            return wrong(&format!("send what is missing from {length} on"));
        };
        let repeated = (repeated as usize).min(delta.len());
        let start = offset as usize;
        if open.text.as_bytes()[start..start + repeated] != delta.as_bytes()[..repeated] {
            return wrong("it differs from the text that is already there");
        }
        // Equal bytes up to the end of one valid text end at a character boundary in the other.
        let fresh = &delta[repeated..];
        if fresh.is_empty() {
            return Ok(Some(length));
        }
        let json_bytes = open.json_bytes + json::quote(fresh).len() - "\"\"".len();
        if json_bytes > STREAM_BYTES_MAX {
            let got = json_bytes as u64;
            return Err(Error::limit(
                "STREAM_BYTES_MAX",
                STREAM_BYTES_MAX as u64,
                got,
                "commit this turn and open another",
            ));
        }
        open.text.push_str(fresh);
        open.json_bytes = json_bytes;
        open.last = now;
        if open.masked {
            return Ok(Some(open.text.len() as u64));
        }
        if open.dirty_since.is_none() {
            open.dirty_since = Some(now);
            self.dirty.notify_one();
        }
        let (text, audience) = (Arc::from(fresh), open.addressed());
        let chunk = Chunk { turn, turn_seq: open.seq, offset: length, text, audience };
        // Under the lock, so that a snapshot and the ring agree on the order.
        hub.publish(key, std::iter::once(Update::Chunk(chunk)));
        Ok(Some(open.text.len() as u64))
    }

    /// Publishes the new part of a turn that is open in another process.
    pub fn follow(&self, hub: &Hub, key: &Key, turn: Turn, text: &str) {
        let mut streams = self.open();
        let open = streams.entry((key.clone(), turn.id)).or_insert_with(|| Open {
            seq: turn.seq,
            key: None,
            actor: turn.actor,
            role: turn.role,
            visibility: turn.visibility,
            audience: turn.audience,
            model: turn.model,
            metadata: turn.metadata,
            text: String::new(),
            json_bytes: 0,
            durable: 0,
            dirty_since: None,
            last: turn.created,
            foreign: true,
            masked: false,
        });
        let Some(fresh) = text.strip_prefix(open.text.as_str()).filter(|fresh| !fresh.is_empty()) else {
            return;
        };
        let offset = open.text.len() as u64;
        let (text, audience) = (Arc::from(fresh), open.addressed());
        let chunk = Chunk { turn: turn.id, turn_seq: open.seq, offset, text, audience };
        open.text.push_str(fresh);
        // Under the lock, so that a snapshot and the ring agree on the order.
        hub.publish(key, std::iter::once(Update::Chunk(chunk)));
    }

    /// Forgets turns of other processes, except these.
    pub fn keep_foreign(&self, kept: &[(Key, TurnId)]) {
        self.open().retain(|place, open| !open.foreign || kept.contains(place));
    }

    /// Notes work on a turn that has no new text, so that it does not count as idle.
    pub fn touch(&self, key: &Key, turn: TurnId, now: Timestamp) {
        if let Some(open) = self.open().get_mut(&(key.clone(), turn)) {
            open.last = now;
        }
    }

    /// Published text of a conversation's open turns, and the result of `with` at the same moment.
    pub fn snapshot<T>(&self, key: &Key, with: impl FnOnce() -> T) -> (Vec<OpenText>, T) {
        let streams = self.open();
        let mut open: Vec<OpenText> = streams
            .iter()
            .filter(|((of, _), open)| of == key && !open.masked)
            .map(|((_, turn), open)| OpenText {
                turn: *turn,
                seq: open.seq,
                text: open.text.clone(),
                audience: open.addressed(),
            })
            .collect();
        open.sort_by_key(|open| open.seq);
        (open, with())
    }

    /// Takes the pieces that are not durable yet.
    pub fn take_dirty(&self) -> Vec<UnwrittenText> {
        let mut streams = self.open();
        let dirty = streams.iter_mut().filter(|(_, open)| open.dirty_since.is_some());
        dirty
            .map(|((key, turn), open)| {
                let piece = UnwrittenText {
                    key: key.clone(),
                    turn: *turn,
                    offset: open.durable as u64,
                    text: open.text[open.durable..].to_string(),
                };
                open.durable = open.text.len();
                open.dirty_since = None;
                piece
            })
            .collect()
    }

    /// Marks a piece as not durable again after a failed write, if its turn is still open.
    pub fn not_written(&self, piece: &UnwrittenText, now: Timestamp) {
        if let Some(open) = self.open().get_mut(&(piece.key.clone(), piece.turn)) {
            open.durable = open.durable.min(piece.offset as usize);
            open.dirty_since = Some(now);
        }
    }
}
