//! Priority of requests over background work.
//!
//! A request in progress is noted with [`Load::note`]. Background work is done in slices, and after each one it
//! [pauses](give_way) while requests keep coming, for a time that depends on the length of the slice. So it runs at
//! full speed on an idle machine, takes a known share of a busy one, and never stops.

use crate::everturn::Shared;
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// While requests keep coming, each background thread works for one part in this many of the time.
pub const BACKGROUND_SHARE: u32 = 10;

/// Time without a request after which background work continues.
pub const QUIET: Duration = Duration::from_millis(20);

/// Longest pause of background work between two slices.
pub const GIVE_WAY_MAX: Duration = Duration::from_secs(1);

/// Number of heavy operations at once on the smallest machine: a recall may be waiting for a model.
const HEAVY_MIN: usize = 2;

/// Priority of background threads below that of requests, as a `nice` value.
const BACKGROUND_NICE: i32 = 10;

/// Time of the last request.
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
    /// Notes a request in progress.
    pub fn note(&self) {
        self.last_us.store(self.now_us(), Ordering::Relaxed);
    }

    /// Whether requests keep coming.
    pub fn is_busy(&self) -> bool {
        self.idle().is_some_and(|idle| idle < QUIET)
    }

    /// Pause before checking again whether background work may go on: not past `rest`, nor once it is quiet.
    pub fn pause_before(&self, rest: Instant, now: Instant) -> Duration {
        pause_of(self.idle(), rest.saturating_duration_since(now))
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

/// Limits concurrency: callers beyond the limit wait.
pub struct Slots {
    free: Mutex<usize>,
    freed: Condvar,
}

/// A slot, free again when dropped.
pub struct Slot<'a>(&'a Slots);

impl Slots {
    pub fn new(slots: usize) -> Slots {
        Slots { free: Mutex::new(slots), freed: Condvar::new() }
    }

    /// Blocks until one is free.
    pub fn take(&self) -> Slot<'_> {
        let mut free = self.free.lock();
        self.freed.wait_while(&mut free, |free| *free == 0);
        *free -= 1;
        Slot(self)
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        *self.0.free.lock() += 1;
        self.0.freed.notify_one();
    }
}

/// Pause after a request this long ago, with this much left of the rest.
fn pause_of(idle: Option<Duration>, rest: Duration) -> Duration {
    idle.map_or(Duration::ZERO, |idle| QUIET.saturating_sub(idle)).min(rest)
}

/// Most concurrent operations that each take a processor and much memory, such as a recall with its connection's
/// cache: more of them would all be slower.
pub fn heavy_max() -> usize {
    std::thread::available_parallelism().map_or(HEAVY_MIN, usize::from).max(HEAVY_MIN)
}

/// Pause after a slice of this length, while requests keep coming.
pub fn rest_after(slice: Duration, most: Duration) -> Duration {
    (slice * (BACKGROUND_SHARE - 1)).min(most)
}

/// Called by a background thread after a slice of this length: pauses while requests keep coming, within limits.
pub fn give_way(shared: &Shared, slice: Duration) {
    let rest = Instant::now() + rest_after(slice, GIVE_WAY_MAX);
    while !shared.pauses.ended() {
        let time = shared.load.pause_before(rest, Instant::now());
        if time.is_zero() {
            return;
        }
        shared.pauses.sleep(time);
    }
}

/// Runs a slice of background work, then pauses.
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
        for (idle, rest, expected, why) in [
            (None, ms(900), ms(0), "nobody ever asked"),
            (Some(QUIET), ms(900), ms(0), "nobody asks any more"),
            (Some(ms(0)), ms(900), QUIET, "a request has just come"),
            (Some(ms(15)), ms(900), ms(5), "until it would be quiet"),
            (Some(ms(0)), ms(5), ms(5), "no longer than the rest"),
            (Some(ms(0)), ms(0), ms(0), "it has rested"),
        ] {
            assert_eq!(pause_of(idle, rest), expected, "{why}");
        }
    }

    #[test]
    fn the_rest_follows_from_the_slice_and_has_an_end() {
        let hour = ms(3_600_000);
        assert_eq!(rest_after(ms(10), GIVE_WAY_MAX), ms(90));
        assert_eq!(rest_after(hour, GIVE_WAY_MAX), GIVE_WAY_MAX);
    }
}
