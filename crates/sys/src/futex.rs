//! Futex waits and wakes within one process.
//!
//! No call here allocates, and errno is preserved: all of them run in signal handlers.

use std::ptr;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::{errno, set_errno};

/// Sleeps while `word` holds `expected`, until woken. May return early, so the caller must check again.
pub fn wait(word: &AtomicU32, expected: u32) {
    call(word, libc::FUTEX_WAIT, expected, ptr::null());
}

/// The same, for at most `limit`; `false` if that time is over.
pub fn wait_timeout(word: &AtomicU32, expected: u32, limit: Duration) -> bool {
    let seconds = libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX);
    let limit = libc::timespec { tv_sec: seconds, tv_nsec: libc::c_long::from(limit.subsec_nanos() as i32) };
    call(word, libc::FUTEX_WAIT, expected, &limit) != libc::ETIMEDOUT
}

/// Wakes all threads that sleep on `word`.
pub fn wake_all(word: &AtomicU32) {
    call(word, libc::FUTEX_WAKE, i32::MAX as u32, ptr::null());
}

/// Wakes one thread that sleeps on `word`.
pub fn wake_one(word: &AtomicU32) {
    call(word, libc::FUTEX_WAKE, 1, ptr::null());
}

/// Sleeps for this long. Unlike the C library's sleep it is not a cancellation point.
pub fn sleep(time: Duration) {
    wait_timeout(&AtomicU32::new(0), 0, time);
}

/// 0 or the error number.
fn call(word: &AtomicU32, operation: libc::c_int, value: u32, limit: *const libc::timespec) -> i32 {
    let kept = errno();
    let operation = operation | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word is borrowed for the whole call. `limit` is null or points to a timespec in the caller's frame.
    let result = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, limit) };
    let number = if result == -1 { errno() } else { 0 };
    set_errno(kept);
    number
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_changed_word_does_not_wait_and_a_limit_ends_the_wait() {
        let word = AtomicU32::new(1);
        set_errno(libc::EXDEV);
        wait(&word, 2);
        assert!(wait_timeout(&word, 2, Duration::from_secs(60)));
        assert!(!wait_timeout(&word, 1, Duration::from_millis(2)));
        sleep(Duration::from_micros(10));
        assert_eq!(errno(), libc::EXDEV);
    }

    #[test]
    fn sleepers_are_woken() {
        let word = Arc::new(AtomicU32::new(0));
        let sleepers: Vec<_> = (0..3)
            .map(|_| {
                let word = Arc::clone(&word);
                std::thread::spawn(move || {
                    while word.load(Ordering::Acquire) == 0 {
                        wait(&word, 0);
                    }
                })
            })
            .collect();
        word.store(1, Ordering::Release);
        wake_one(&word);
        wake_all(&word);
        sleepers.into_iter().for_each(|sleeper| sleeper.join().unwrap());
    }
}
