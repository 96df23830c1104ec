//! Sleeping on a word until another thread changes it. Private to the process; errno is kept. For use in signal
//! handlers.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

fn futex(word: &AtomicU32, operation: i32, value: u32, timeout: *const libc::timespec) {
    // SAFETY: errno is this thread's own. The word is four aligned bytes that outlive the call; the timeout is null or
    // a timespec that does. Failures (interrupted, changed, timed out) are for the caller's loop to see.
    unsafe {
        let errno = *libc::__errno_location();
        libc::syscall(libc::SYS_futex, word.as_ptr(), operation | libc::FUTEX_PRIVATE_FLAG, value, timeout);
        *libc::__errno_location() = errno;
    }
}

/// Sleeps while the word is `expected`. May return without reason: call it in a loop.
pub fn wait(word: &AtomicU32, expected: u32) {
    futex(word, libc::FUTEX_WAIT, expected, std::ptr::null());
}

/// The same, for `limit` at most.
pub fn wait_timeout(word: &AtomicU32, expected: u32, limit: Duration) {
    let timeout = libc::timespec {
        tv_sec: limit.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(limit.subsec_nanos() as i32),
    };
    futex(word, libc::FUTEX_WAIT, expected, &raw const timeout);
}

/// Wakes all who sleep on the word.
pub fn wake_all(word: &AtomicU32) {
    futex(word, libc::FUTEX_WAKE, i32::MAX as u32, std::ptr::null());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;
    use std::time::Instant;

    #[test]
    fn a_waiter_wakes_when_the_word_changes_and_only_then() {
        let word = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while word.load(Ordering::SeqCst) == 0 {
                    wait(&word, 0);
                }
                word.store(2, Ordering::SeqCst);
                wake_all(&word);
            });
            word.store(1, Ordering::SeqCst);
            wake_all(&word);
            while word.load(Ordering::SeqCst) != 2 {
                wait(&word, 1);
            }
        });
        let begun = Instant::now();
        wait_timeout(&word, 2, Duration::from_millis(20));
        assert!(begun.elapsed() >= Duration::from_millis(15));
    }
}
