//! Background work after appends: stores folds, compacts conversations over their policy, and extracts facts where
//! the policy asks for it.
//!
//! A conversation is checked once it has been quiet for a moment, or after many events, so that a burst of appends is
//! not slowed down by a check after each.

use super::budget::Budgets;
use crate::everturn::Shared;
use crate::journal::{Observed, Observer};
use crate::load;
use crate::tenant::Tenant;
use everturn_core::Error;
use everturn_core::id::Key;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Quiet time after which a conversation is checked.
const QUIET: Duration = Duration::from_millis(200);
/// Number of events after which a conversation is checked even while more come.
const EVENTS_MAX: u64 = 1000;
/// Number of events after which a check cannot wait for a quiet moment: the conversation will soon be full, and an
/// append would have to compact it.
const EVENTS_URGENT: u64 = 3000;
/// While requests keep coming, a check that can wait is delayed for at most this long.
const REST_MAX: Duration = Duration::from_secs(10);
/// Conversations checked in parallel: most of the time is spent waiting for a summarizer.
pub const WORKERS: usize = 2;

/// Conversations to check, and the state shared by appends that reach a limit.
#[derive(Default)]
pub struct Compactions {
    pub budgets: Budgets,
    /// Whether this process compacts automatically.
    automatic: bool,
    waiting: Mutex<HashMap<Key, Waiting>>,
    news: Condvar,
}

struct Waiting {
    last: Instant,
    events: u64,
    /// Last `seq` covered by a checkpoint that was erased.
    lost: Option<u64>,
    /// A worker is checking it.
    busy: bool,
}

impl Observer for Compactions {
    fn committed(&self, commit: &Observed<'_>) {
        if commit.deleted {
            self.budgets.forget(commit.key);
            self.waiting().remove(commit.key);
        } else if self.automatic && !commit.events().is_empty() {
            self.note(commit.key, commit.events().len());
        }
    }
}

impl Compactions {
    pub fn new(automatic: bool) -> Compactions {
        Compactions { automatic, ..Compactions::default() }
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<Key, Waiting>> {
        self.waiting.lock()
    }

    /// Notes an append.
    fn note(&self, key: &Key, events: usize) {
        let mut waiting = self.waiting();
        if let Some(known) = waiting.get_mut(key) {
            known.last = Instant::now();
            known.events += events as u64;
            return;
        }
        waiting.insert(
            key.clone(),
            Waiting { last: Instant::now(), events: events as u64, lost: None, busy: false },
        );
        drop(waiting);
        self.news.notify_one();
    }

    /// Notes that an erased checkpoint must be replaced.
    pub fn note_lost(&self, key: &Key, through_seq: u64) {
        self.note(key, 1);
        if let Some(known) = self.waiting().get_mut(key) {
            known.lost = known.lost.max(Some(through_seq));
        }
    }

    fn take_lost(&self, key: &Key) -> Option<u64> {
        self.waiting().get_mut(key).and_then(|known| known.lost.take())
    }

    /// Wakes the workers, so that they see the store closing.
    pub fn wake(&self) {
        // A worker that has checked the flag but does not wait yet would miss the notification.
        drop(self.waiting());
        self.news.notify_all();
    }

    /// The next conversation to check. Blocks until there is one, and before `rest` also while requests keep coming.
    /// `None` at the end.
    fn next(&self, shared: &Shared, rest: Instant) -> Option<Key> {
        let mut waiting = self.waiting();
        loop {
            if shared.pauses.ended() {
                return None;
            }
            let now = Instant::now();
            let rest = shared.load.pause_before(rest, now);
            let idle = waiting.iter_mut().filter(|(_, entry)| !entry.busy && entry.events > 0);
            let mut soonest: Option<Duration> = None;
            for (key, entry) in idle {
                let quiet = QUIET.saturating_sub(now.duration_since(entry.last));
                let due = if entry.events >= EVENTS_MAX { Duration::ZERO } else { quiet };
                let left = if entry.events >= EVENTS_URGENT { Duration::ZERO } else { due.max(rest) };
                if left.is_zero() {
                    (entry.busy, entry.events) = (true, 0);
                    return Some(key.clone());
                }
                soonest = Some(soonest.map_or(left, |soonest| soonest.min(left)));
            }
            match soonest {
                Some(left) => drop(self.news.wait_for(&mut waiting, left)),
                None => self.news.wait(&mut waiting),
            }
        }
    }

    fn done(&self, key: &Key) {
        let mut waiting = self.waiting();
        if let Some(entry) = waiting.get_mut(key) {
            entry.busy = false;
            if entry.events == 0 {
                waiting.remove(key);
            }
        }
    }
}

/// Checks conversations until the store closes.
pub fn run(shared: &Arc<Shared>) {
    let mut rest = Instant::now();
    while let Some(key) = shared.compaction.next(shared, rest) {
        let began = Instant::now();
        look(shared, &key, true);
        shared.compaction.done(&key);
        rest = Instant::now() + load::rest_after(began.elapsed(), REST_MAX);
    }
}

/// The last check before the store closes, unless it would wait for a model.
pub fn finish(shared: &Arc<Shared>) {
    if shared.options.summarizers.is_empty() {
        let left: Vec<Key> = shared.compaction.waiting().drain().map(|(key, _)| key).collect();
        left.iter().for_each(|key| look(shared, key, false));
    }
}

fn look(shared: &Arc<Shared>, key: &Key, with_models: bool) {
    let conversation = Tenant::within(shared.clone(), key.tenant.clone()).conversation(key.id);
    let looked = (|| -> Result<(), Error> {
        conversation.settle_if_due()?;
        let head = shared.journal.index.conversation(key)?.head.seq;
        shared.fold(key, head)?;
        if let Some(through_seq) = shared.compaction.take_lost(key) {
            conversation.summarize_through(through_seq)?;
        }
        {
            // An append that needs room now would do the same work, so it waits; but it must not wait for a model.
            let _alone = shared.options.summarizers.is_empty().then(|| shared.compaction.budgets.alone(key));
            conversation.renew_if_edited()?;
            while conversation.compact_if_due()?.is_some() {}
        }
        let goes_on = || with_models && !shared.pauses.ended();
        while goes_on() && conversation.extract_if_due()? {}
        Ok(())
    })();
    match looked {
        // It has just been deleted, or compacted by somebody else.
        Ok(()) | Err(Error::NotFound(_) | Error::Conflict(_)) => {}
        Err(error) => {
            tracing::warn!(%error, conversation = %key.id, "compaction or fact extraction failed; it is retried after the next append")
        }
    }
}
