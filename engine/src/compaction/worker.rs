//! Background work after appends: stores folds, compacts conversations over their policy, and extracts facts where
//! the policy asks for it.
//!
//! A conversation is checked once it has been quiet for a moment, or after many events, so that a burst of appends is
//! not slowed down by a check after each. Where several processes share the store, the one that appended checks first; the
//! others look some seconds later whether that was done.

use super::CompactOptions;
use super::budget::Budgets;
use crate::everturn::Shared;
use crate::journal::{Observed, Observer};
use crate::load;
use crate::tenant::Tenant;
use everturn_core::Error;
use everturn_core::id::Key;
use everturn_core::time::Timestamp;
use everturn_store::{ChangeFeed, ChangedConversation, Leases, WorkDone, WorkState};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
/// Time after a change by any process at which this one looks whether it was checked. Longer than the silence after which
/// a process is taken for dead.
const TAKE_OVER: Duration = Duration::from_secs(6);
/// Pause before the next look at a conversation that another process is checking.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Age of changes that a process looks at when it begins; shorter than the time for which finished checks are known.
const LOOK_BACK_S: u64 = 30 * 60;
const LOOK_BACK_MAX: usize = 10_000;
/// Conversations looked up at once.
const LOOK_MAX: usize = 1000;
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
    /// Changed conversations that another process may check: when to look, and the head.
    later: Mutex<HashMap<Key, (Instant, u64)>>,
    looked_back: AtomicBool,
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

    fn changed_elsewhere(&self, change: &ChangedConversation) {
        if change.deleted {
            self.later.lock().remove(&change.key);
        } else if self.automatic {
            self.look_later(&change.key, change.head_seq, TAKE_OVER);
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

    fn has_lost(&self, key: &Key) -> bool {
        self.waiting().get(key).is_some_and(|known| known.lost.is_some())
    }

    fn look_later(&self, key: &Key, head: u64, pause: Duration) {
        self.later.lock().insert(key.clone(), (Instant::now() + pause, head));
    }

    /// Notes conversations that changed shortly before this process began: another that has ended may not have checked them.
    fn look_back(&self, leases: &dyn Leases, now: Timestamp) -> Result<(), Error> {
        if self.automatic {
            let since = Timestamp(now.0.saturating_sub_unsigned(LOOK_BACK_S * 1_000_000));
            for (key, head) in leases.changed_since(since, LOOK_BACK_MAX)? {
                self.look_later(&key, head, TAKE_OVER);
            }
        }
        Ok(())
    }

    /// Takes over checks that another process should have done by now.
    pub fn take_over(&self, leases: &dyn Leases, time: Timestamp) -> Result<(), Error> {
        if !self.looked_back.load(Ordering::SeqCst) {
            self.look_back(leases, time)?;
            self.looked_back.store(true, Ordering::SeqCst);
        }
        let now = Instant::now();
        let later = self.later.lock();
        let due = later.iter().filter(|(_, (due, _))| *due <= now).take(LOOK_MAX);
        let due: Vec<(Key, u64)> = due.map(|(key, (_, head))| (key.clone(), *head)).collect();
        drop(later);
        if due.is_empty() {
            return Ok(());
        }
        for ((key, head), work) in due.iter().zip(leases.work_left(&due)?) {
            if work == WorkState::Taken {
                self.look_later(key, *head, LOOK_AGAIN);
                continue;
            }
            self.later.lock().remove(key);
            if work == WorkState::Free || self.has_lost(key) {
                self.note(key, 1);
            }
        }
        Ok(())
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
            // Another process had it: what was lost is replaced later.
            if entry.events == 0 && entry.lost.is_none() {
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

/// Longest time for the last checks: no conversation is begun after it.
const FINISH_MAX: Duration = Duration::from_secs(2);

/// The last checks before the store closes, unless they would wait for a model. What is left is checked after the next append,
/// or by another process.
pub fn finish(shared: &Arc<Shared>) {
    if shared.options.summarizers.is_empty() {
        let began = Instant::now();
        let left: Vec<Key> = shared.compaction.waiting().drain().map(|(key, _)| key).collect();
        left.iter().take_while(|_| began.elapsed() < FINISH_MAX).for_each(|key| look(shared, key, false));
    }
}

/// Work on a conversation that this process has; ended when dropped.
struct Taken<'a> {
    leases: &'a dyn ChangeFeed,
    key: &'a Key,
    done: Option<WorkDone>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.leases.end_work(self.key, self.done) {
            tracing::debug!(%error, "the end of a check was not noted; another process may check again");
        }
    }
}

/// Checks a conversation, unless another process does or did.
fn look(shared: &Arc<Shared>, key: &Key, with_models: bool) {
    let Some(leases) = shared.elsewhere.as_deref() else {
        look_alone(shared, key, with_models);
        return;
    };
    // Deleted meanwhile, unless there is one.
    let Ok(through) = shared.journal.index.conversation(key).map(|found| found.head.seq) else { return };
    match leases.take_work(key) {
        Ok(None) => shared.compaction.look_later(key, through, LOOK_AGAIN),
        Ok(Some(done)) => {
            let mut taken = Taken { leases, key, done: None };
            if done < through || shared.compaction.has_lost(key) {
                // Failed work counts as done: the next append has it done again.
                taken.done = Some(WorkDone { through, due: None });
                taken.done = Some(WorkDone { through, due: look_alone(shared, key, with_models) });
            }
        }
        Err(error) => {
            tracing::debug!(%error, "whether a conversation needs a check is not known; looking again");
            shared.compaction.look_later(key, through, LOOK_AGAIN);
        }
    }
}

/// Checks a conversation, and returns its next deadline.
fn look_alone(shared: &Arc<Shared>, key: &Key, with_models: bool) -> Option<Timestamp> {
    let conversation = Tenant::within(shared.clone(), key.tenant.clone()).conversation(key.id);
    let mut due = None;
    let looked = (|| -> Result<(), Error> {
        due = conversation.settle_if_due()?;
        let head = shared.journal.index.conversation(key)?.head.seq;
        shared.fold(key, head)?;
        if let Some(through_seq) = shared.compaction.take_lost(key) {
            conversation.summarize_through(through_seq)?;
        }
        {
            // An append that needs room now would do the same work, so it waits; but it must not wait for a model.
            let _alone =
                shared.options.summarizers.is_empty().then(|| shared.compaction.budgets.making_room.of(key));
            conversation.renew_if_edited()?;
            while conversation.compact_if_due(&CompactOptions::default())?.is_some() {}
        }
        let goes_on = || with_models && !shared.pauses.ended();
        while goes_on() && conversation.extract_if_due()? {}
        Ok(())
    })();
    match looked {
        // It has just been deleted, or compacted by somebody else.
        Ok(()) | Err(Error::NotFound(_) | Error::Conflict(_)) => {}
        Err(error) => {
            tracing::warn!(code = error.code(), conversation = %key.id, "compaction or fact extraction failed; it is retried after the next append")
        }
    }
    due
}
