//! Times a computation by the processor's time. The reference's binary includes this file too, so that both sides
//! measure alike.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// How often a call is timed at least.
const RUNS_MIN: usize = 30;

/// In microseconds.
pub struct Times {
    pub median_us: f64,
    pub min_us: f64,
    pub runs: usize,
}

/// Times a call for at least so long. What it returns is dropped after the clock has stopped.
///
/// The clock is that of the thread: it stands still while another thread has the processor, so that on a busy machine
/// the numbers of a computation stay what they are on an idle one.
pub fn time<T>(at_least: Duration, mut call: impl FnMut() -> T) -> Times {
    let mut times = Vec::new();
    let began = Instant::now();
    while times.len() < RUNS_MIN || began.elapsed() < at_least {
        let started = on_processor();
        let result = black_box(call());
        times.push((on_processor() - started).as_secs_f64() * 1e6);
        drop(result);
    }
    times.sort_by(f64::total_cmp);
    Times { median_us: times[times.len() / 2], min_us: times[0], runs: times.len() }
}

/// How long this thread has had a processor.
fn on_processor() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid for the call. A thread's own clock is always there, so the call does not fail.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
