//! Background threads: they make chunks durable, delete expired conversations and end idle streams.

use crate::conversation::due;
use crate::everturn::Shared;
use crate::ingest::{DraftKind, Ingested, NewTurn};
use crate::streaming::changes;
use crate::streaming::hub::Update;
use crate::streaming::open_turns::UnwrittenText;
use everturn_core::Error;
use everturn_core::event::kind;
use everturn_core::id::{Key, TurnId};
use everturn_core::time::Timestamp;
use everturn_core::turn::Status;
use everturn_core::write::{Action, Write};
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Interruptible sleeps of the background threads; they end when the store closes.
#[derive(Default)]
pub struct Pauses {
    over: AtomicBool,
    idle: Mutex<()>,
    wake: Condvar,
}

impl Pauses {
    /// Whether the store is closing.
    pub fn ended(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Sleeps for `time`, or until the store closes.
    pub fn sleep(&self, time: Duration) {
        self.wake.wait_while_for(&mut self.idle.lock(), |_| !self.ended(), time);
    }

    /// Ends all sleeps.
    pub fn stop(&self) {
        self.over.store(true, Ordering::SeqCst);
        // A thread that has checked the flag but does not wait yet holds the lock; it would miss a notification sent
        // without it.
        drop(self.idle.lock());
        self.wake.notify_all();
    }
}

/// Result of a sweep.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Swept {
    /// Conversations deleted because their time to live had passed.
    pub expired: usize,
    /// Open turns ended because no chunk came in time.
    pub interrupted: usize,
    /// Tool calls given up because no result came in time.
    pub abandoned: usize,
    /// Approvals that expired without an answer.
    pub approvals: usize,
    /// Asset files deleted because nothing refers to them.
    pub collected: usize,
}

/// Conversations deleted in one round, so that a round stays short.
const EXPIRED_PER_ROUND: usize = 100;

/// Bytes without a referring event are kept this long: another process may be about to append the event.
const ORPHAN_AGE_S: u64 = 60 * 60;

/// Interval at which a process asks whether it does the work of the whole store, where others share it.
const LEAD_EVERY: Duration = Duration::from_secs(5);

/// Interval between two searches for unused bytes in a shared store: a list of all objects may be long, and cost money.
const COLLECT_EVERY: Duration = Duration::from_secs(60 * 60);

/// Interval at which a read-only process polls for events of another process.
const FOLLOW_EVERY: Duration = Duration::from_millis(100);

/// Events of another process read at a time.
const FOLLOW_PAGE: usize = 256;

/// Hands chunks to the writer once they have waited for the debounce time.
pub fn debounce(shared: &Shared) {
    let mut streams = shared.streams.open();
    while !shared.pauses.ended() {
        if !streams.values().any(|open| open.dirty_since.is_some()) {
            shared.streams.dirty.wait(&mut streams);
            continue;
        }
        // The first chunk starts the wait; chunks that arrive meanwhile are written with it.
        drop(streams);
        shared.pauses.sleep(shared.options.debounce);
        flush(shared);
        streams = shared.streams.open();
    }
}

/// Makes the text of open turns durable. Blocks until it is.
pub fn flush(shared: &Shared) {
    let _flushing = shared.streams.flushing.lock();
    let handed: Vec<(UnwrittenText, _)> = shared
        .streams
        .take_dirty()
        .into_iter()
        .map(|piece| {
            let action = Action::Chunk { turn: piece.turn, offset: piece.offset, text: piece.text.clone() };
            let answer = shared.journal.submit_now(Write { key: piece.key.clone(), action });
            (piece, answer)
        })
        .collect();
    for (piece, answer) in handed {
        let written = answer.and_then(|receiver| receiver.recv().map_err(|_| crate::writer::closed())?);
        if let Err(error) = written {
            // Usually the turn has just ended; otherwise the text is still in memory and is written in the next
            // round.
            tracing::debug!(%error, turn = %piece.turn, "a chunk was not written");
            shared.streams.not_written(&piece, shared.now());
        }
    }
}

/// Whether this process does the work of the whole store: always, unless others share the store.
pub fn leads(shared: &Shared) -> Result<bool, Error> {
    shared.elsewhere.as_ref().map_or(Ok(true), |elsewhere| elsewhere.leads("sweep"))
}

/// Sweeps at intervals, and deletes conversations when they expire.
pub fn sweeper(shared: &Arc<Shared>) {
    let (mut swept, mut collected) = (Instant::now(), None::<Instant>);
    loop {
        let mut patience = shared.options.sweep_every.saturating_sub(swept.elapsed());
        if shared.elsewhere.is_some() {
            patience = patience.min(LEAD_EVERY);
        }
        shared.expiry.wait(shared, patience);
        if shared.pauses.ended() {
            return;
        }
        let is_due = swept.elapsed() >= shared.options.sweep_every;
        if is_due {
            swept = Instant::now();
        }
        let done = leads(shared).and_then(|leads| match (is_due, leads) {
            (false, true) => delete_expired(shared),
            (false, false) => Ok(()),
            (true, true) if shared.elsewhere.is_none() => sweep(shared).map(drop),
            (true, true) => {
                sweep_conversations(shared)?;
                shared.elsewhere.as_ref().map_or(Ok(()), |elsewhere| elsewhere.forget_work())?;
                shared.journal.assets.claim()?;
                if collected.is_none_or(|at| at.elapsed() >= COLLECT_EVERY) {
                    collect_unused(shared)?;
                    collected = Some(Instant::now());
                }
                Ok(())
            }
            (true, false) => end_idle_streams(shared).map(drop),
        });
        if let Err(error) = done {
            tracing::warn!(%error, "sweep failed; the next round retries");
            shared.pauses.sleep(LEAD_EVERY.min(shared.options.sweep_every));
        }
    }
}

/// One round of the sweep.
pub fn sweep(shared: &Arc<Shared>) -> Result<Swept, Error> {
    let swept = sweep_conversations(shared)?;
    Ok(Swept { collected: collect_unused(shared)?, ..swept })
}

fn sweep_conversations(shared: &Arc<Shared>) -> Result<Swept, Error> {
    delete_expired(shared)?;
    let expired = std::mem::take(&mut *shared.expiry.deleted.lock());
    let interrupted = end_idle_streams(shared)?;
    let settled = due::settle_all(shared)?;
    Ok(Swept {
        expired,
        interrupted,
        abandoned: settled.abandoned,
        approvals: settled.expired,
        ..Swept::default()
    })
}

/// Deletes bytes that no event has referred to for a while, and returns their number.
fn collect_unused(shared: &Shared) -> Result<usize, Error> {
    let old = Timestamp(shared.now().0.saturating_sub_unsigned(ORPHAN_AGE_S * 1_000_000));
    shared.journal.assets.claim()?;
    let listed = shared.journal.assets.list()?.into_iter().filter(|(_, _, written)| *written < old);
    Ok(listed.map(|(tenant, sha256, _)| shared.journal.collect(&tenant, &[sha256])).sum())
}

/// Ends turns that are open in this process and got no chunk in time, and returns their number.
fn end_idle_streams(shared: &Shared) -> Result<usize, Error> {
    let now = shared.now();
    let mut interrupted = 0;
    let idle_us = i64::try_from(shared.options.stream_idle_max.as_micros()).unwrap_or(i64::MAX);
    let silent: Vec<(Key, TurnId)> = shared
        .streams
        .open()
        .iter()
        .filter(|(_, open)| !open.foreign && now.0.saturating_sub(open.last.0) >= idle_us)
        .map(|(place, _)| place.clone())
        .collect();
    for (key, turn) in silent {
        let reason = format!("nothing came for {} s", shared.options.stream_idle_max.as_secs());
        match shared.streams.get(&key, turn).map(|open| interrupt(shared, &key, turn, &open.text, &reason)) {
            Some(Ok(())) => interrupted += 1,
            // It has just ended.
            Some(Err(Error::Conflict(_) | Error::NotFound(_))) | None => {}
            Some(Err(error)) => return Err(error),
        }
    }
    Ok(interrupted)
}

/// Deletes conversations whose time to live has passed, at most [`EXPIRED_PER_ROUND`]. The next sweep reports their
/// number.
pub fn delete_expired(shared: &Shared) -> Result<(), Error> {
    let mut deleted = shared.expiry.deleted.lock();
    let now = shared.now();
    for key in shared.journal.index.expired(now, EXPIRED_PER_ROUND)? {
        *deleted += usize::from(delete_if_due(shared, key)?);
    }
    Ok(())
}

/// Deletes a conversation if its time to live has passed, and says whether it had.
pub fn delete_if_due(shared: &Shared, key: Key) -> Result<bool, Error> {
    let reason = "its time to live has passed".into();
    let action = Action::Delete { at: shared.now(), reason, only_expired: true };
    let answer = shared.journal.submit_now(Write { key, action })?;
    match answer.recv().map_err(|_| crate::writer::closed())? {
        Ok(_) => Ok(true),
        // There is none, or somebody else deleted it or changed its time to live.
        Err(Error::Conflict(_) | Error::NotFound(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Ends the turns that a crash left open, with the text that was durable.
pub fn recover(shared: &Shared) -> Result<(), Error> {
    let left_open = match &shared.elsewhere {
        None => shared.journal.index.open_turns()?,
        Some(elsewhere) => elsewhere.orphaned_turns()?,
    };
    for (key, turn) in left_open {
        let text = shared.journal.log.open_text(&key, turn)?;
        match interrupt(shared, &key, turn, &text, "the process that wrote it ended") {
            // Its conversation has expired.
            Err(Error::NotFound(_)) => {}
            // Another process was faster.
            Err(Error::Conflict(_)) if shared.elsewhere.is_some() => {}
            // The turn stays open; the rest of the store must still open.
            Err(error @ Error::Corrupt(_)) => tracing::warn!(%error, "an open turn cannot be ended"),
            ended => ended?,
        }
    }
    Ok(())
}

fn interrupt(shared: &Shared, key: &Key, turn: TurnId, text: &str, reason: &str) -> Result<(), Error> {
    let conversation = shared.journal.conversation(key)?;
    let opened = shared.journal.index.turn_in(key, turn)?;
    let new = NewTurn {
        actor: opened.actor,
        visibility: Some(opened.visibility),
        audience: opened.audience,
        model: opened.model,
        metadata: opened.metadata,
        ..NewTurn::text(opened.role, text)
    };
    let mut ingested = Ingested { drafts: Vec::new(), uploads: Vec::new() };
    let place = DraftKind::End(turn, opened.role, kind::INTERRUPTED, Some(reason.to_string()));
    shared.ingest(&conversation, new, place, &mut ingested)?;
    let action = Action::append(ingested.drafts);
    let answer = shared.journal.submit_now(Write { key: key.clone(), action })?;
    answer.recv().map_err(|_| crate::writer::closed())?.map(drop)
}

/// In a read-only process: publishes events of another process to subscribers.
pub fn follow(shared: &Shared) {
    while !shared.pauses.ended() {
        for (key, head) in shared.hub.followed() {
            match shared.journal.log.events(&key, head, FOLLOW_PAGE) {
                Ok(events) => {
                    shared.hub.publish(&key, events.into_iter().map(|event| Update::Event(Arc::new(event))))
                }
                Err(Error::NotFound(_)) => shared.hub.publish(&key, std::iter::once(Update::Deleted)),
                Err(error) => tracing::warn!(%error, "cannot read new events; retrying"),
            }
        }
        if let Err(error) = follow_open_turns(shared) {
            tracing::warn!(%error, "cannot read open turns; retrying");
        }
        if let Err(error) = changes::look_elsewhere(shared) {
            tracing::warn!(%error, "cannot read changed conversations; retrying");
        }
        shared.pauses.sleep(FOLLOW_EVERY);
    }
}

/// In a read-only process: publishes durable text of turns that are open in another process.
fn follow_open_turns(shared: &Shared) -> Result<(), Error> {
    let followed: HashMap<Key, u64> = shared.hub.followed().into_iter().collect();
    let mut open = Vec::new();
    if !followed.is_empty() {
        open = shared.journal.index.open_turns()?;
        open.retain(|(key, _)| followed.contains_key(key));
    }
    publish_open_turns(shared, &followed, open)
}

/// Publishes the new text of turns that are open in other processes.
pub fn publish_open_turns(
    shared: &Shared,
    followed: &HashMap<Key, u64>,
    open: Vec<(Key, TurnId)>,
) -> Result<(), Error> {
    shared.streams.keep_foreign(&open);
    for (key, turn) in open {
        let opened = shared.journal.index.turn_in(&key, turn)?;
        // Subscribers get the event that opens it first.
        if followed.get(&key).is_none_or(|head| *head < opened.seq) || opened.status != Status::Pending {
            continue;
        }
        let text = shared.journal.log.open_text(&key, turn)?;
        shared.streams.follow(&shared.hub, &key, opened, &text);
    }
    Ok(())
}
