//! Requests before background work.
//!
//! Whoever serves somebody says so with [`Load::note`]. Background work is done in slices, and after each one it
//! [gives way](give_way) while requests keep coming, for a time that follows from how long the slice took. So it is done at once on a
//! quiet machine, takes a known part of a busy one, and never stands still.

use crate::Shared;
use crate::background::pause;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// While requests keep coming, each background thread works for one part in this many of the time.
pub const BACKGROUND_SHARE: u32 = 10;

/// Without a request for this long, background work goes on.
pub const QUIET: Duration = Duration::from_millis(20);

/// Background work never gives way for longer than this between two slices.
pub const GIVE_WAY_MAX: Duration = Duration::from_secs(1);

/// On the smallest machine, so many recalls still run at once: one may be waiting for a model.
const RECALLS_MIN: usize = 2;

/// How much lower than that of requests the priority of background threads is, as `nice` counts it.
const BACKGROUND_NICE: i32 = 10;

/// When a request was last seen.
pub struct Load {
    since: Instant,
    /// Microseconds after `since`; 0 before the first request.
    last_us: AtomicU64,
}

impl Default for Load {
    fn default() -> Load {
        Load { since: Instant::now(), last_us: AtomicU64::new(0) }
    }
}

impl Load {
    /// Somebody is being served at this moment.
    pub fn note(&self) {
        self.last_us.store(self.now_us(), Ordering::Relaxed);
    }

    /// Time since the last request; `None` if there was none.
    fn idle(&self) -> Option<Duration> {
        match self.last_us.load(Ordering::Relaxed) {
            0 => None,
            last => Some(Duration::from_micros(self.now_us().saturating_sub(last))),
        }
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_micros()).unwrap_or(u64::MAX).max(1)
    }
}

/// Bounds how many do something at once: the others wait for their turn.
pub struct Slots {
    free: Mutex<usize>,
    freed: Condvar,
}

/// The right to go on, until it is dropped.
pub struct Slot<'a>(&'a Slots);

impl Slots {
    pub fn new(slots: usize) -> Slots {
        Slots { free: Mutex::new(slots), freed: Condvar::new() }
    }

    /// Blocks until one is free.
    pub fn take(&self) -> Slot<'_> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free = self.freed.wait_while(free, |free| *free == 0).unwrap_or_else(PoisonError::into_inner);
        *free -= 1;
        Slot(self)
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.freed.notify_one();
    }
}

/// Recalls that run at once: each takes a processor and connections with their caches, so more of them would all be slower.
pub fn recalls_max() -> usize {
    std::thread::available_parallelism().map_or(RECALLS_MIN, usize::from).max(RECALLS_MIN)
}

/// Called by a background thread after a slice of work that took this long: waits while requests keep coming, within limits.
pub fn give_way(shared: &Shared, slice: Duration) {
    let began = Instant::now();
    while let Some(time) = next_pause(shared.load.idle(), began.elapsed(), slice) {
        if shared.stopping.load(Ordering::SeqCst) {
            return;
        }
        pause(shared, time);
    }
}

/// How long to pause before looking again, after a slice and having `waited`; `None` to go on.
fn next_pause(idle: Option<Duration>, waited: Duration, slice: Duration) -> Option<Duration> {
    let until_quiet = QUIET.checked_sub(idle?).filter(|left| !left.is_zero())?;
    let most = (slice * (BACKGROUND_SHARE - 1)).min(GIVE_WAY_MAX);
    let left = most.checked_sub(waited).filter(|left| !left.is_zero())?;
    Some(left.min(until_quiet))
}

/// Does a slice of background work, then gives way.
pub fn slice<T>(shared: &Shared, work: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let done = work();
    give_way(shared, began.elapsed());
    done
}

/// Lowers the priority of the calling thread: where cores are scarce, requests get them first.
pub fn lower_priority() {
    // SAFETY: takes three numbers and touches no memory of ours. On Linux, 0 is the calling thread. If it fails, the thread
    // competes with requests as all others do.
    #[cfg(target_os = "linux")]
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, BACKGROUND_NICE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn background_work_gives_way_to_requests_and_only_for_a_while() {
        let hour = ms(3_600_000);
        for (idle, waited, slice, expected, why) in [
            (None, ms(0), hour, None, "nobody ever asked"),
            (Some(QUIET), ms(0), hour, None, "nobody asks any more"),
            (Some(ms(0)), ms(0), ms(10), Some(QUIET), "a request has just come"),
            (Some(ms(15)), ms(0), ms(10), Some(ms(5)), "until it would be quiet"),
            (Some(ms(0)), ms(85), ms(10), Some(ms(5)), "no longer than nine times the slice"),
            (Some(ms(0)), ms(90), ms(10), None, "it has waited nine times the slice"),
            (Some(ms(0)), ms(999), hour, Some(ms(1)), "a second at most"),
            (Some(ms(0)), GIVE_WAY_MAX, hour, None, "it has waited a second"),
        ] {
            assert_eq!(next_pause(idle, waited, slice), expected, "{why}");
        }
    }
}
