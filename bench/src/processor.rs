//! Measures a computation by processor time. The reference's binary includes this file too, so that both sides
//! measure alike.

use std::hint::black_box;
use std::time::Duration;

/// Times a call, in microseconds, and returns its result, so that it can be dropped when the clock has stopped.
///
/// The clock is that of the thread: it stops while another thread has the processor, so that on a busy machine
/// the numbers of a computation stay close to those of an idle one.
pub fn once<T>(call: impl FnOnce() -> T) -> (f64, T) {
    let started = on_processor();
    let result = black_box(call());
    ((on_processor() - started).as_secs_f64() * 1e6, result)
}

/// Processor time of this thread.
fn on_processor() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid for the call. A thread's own clock is always there, so the call does not fail.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
