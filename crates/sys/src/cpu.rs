//! The CPU that a thread is on, and the time it has taken.

use std::time::Duration;

/// The CPU on which the calling thread is; it may be another one a moment later.
#[must_use]
pub fn current_cpu() -> usize {
    // SAFETY: takes no pointers.
    unsafe { libc::sched_getcpu() }.max(0) as usize
}

/// CPU time of this process so far, all threads together.
#[must_use]
pub fn process_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a timespec that the call fills in; the clock exists.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
