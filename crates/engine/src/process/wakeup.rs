//! Sleeping and waking, for the engine's threads and those that fault: events, and the gate that fork closes.
//!
//! All of it uses futexes on plain words, because signal handlers use it and must not allocate.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use folioswap_sys::futex;

/// An event that occurs repeatedly. A waiter reads [`Event::now`], checks whether it still has to wait, and waits for a
/// change from that count, so a signal in between is not lost.
#[derive(Default)]
pub(crate) struct Event {
    count: AtomicU32,
    waiters: AtomicU32,
}

impl Event {
    pub fn now(&self) -> u32 {
        self.count.load(Ordering::SeqCst)
    }

    pub fn signal(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) > 0 {
            futex::wake_all(&self.count);
        }
    }

    /// Sleeps until the event has occurred since `seen`.
    pub fn wait(&self, seen: u32) {
        self.waiters.fetch_add(1, Ordering::SeqCst);
        while self.now() == seen {
            futex::wait(&self.count, seen);
        }
        self.waiters.fetch_sub(1, Ordering::SeqCst);
    }

    /// In a forked child: nobody waits.
    pub fn forget_waiters(&self) {
        self.waiters.store(0, Ordering::SeqCst);
    }

    /// As [`Event::wait`], but for at most `limit`.
    pub fn wait_for(&self, seen: u32, limit: Duration) {
        self.waiters.fetch_add(1, Ordering::SeqCst);
        if self.now() == seen {
            futex::wait_timeout(&self.count, seen, limit);
        }
        self.waiters.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits until other threads make a condition true.
#[cfg(test)]
pub(crate) fn comes_true(what: &str, mut is_true: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !is_true() {
        assert!(begun.elapsed() < Duration::from_secs(120), "{what}");
        std::thread::yield_now();
    }
}

/// Whether a thread of this process sleeps, and for more than a short moment: that would be over by one of the looks.
#[cfg(test)]
pub(crate) fn sleeps(thread: u32) -> bool {
    let stat = || std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
    (0..1000).all(|_| stat().is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))))
}

const CLOSED: u32 = 1 << 31;

/// Every thread enters the gate before it changes the state of folios. A fork closes it meanwhile, so that the child's
/// copy of memory agrees with what the engine knows of it.
#[derive(Default)]
pub(crate) struct Gate {
    /// The number of threads inside, and [`CLOSED`].
    word: AtomicU32,
    /// The thread that closed it. Its own faults pass nevertheless.
    closer: AtomicU32,
    /// They did, since it was closed.
    used_by_closer: AtomicBool,
}

/// Held while inside.
pub(crate) struct Pass<'g>(Option<&'g Gate>);

impl Gate {
    /// Enters on behalf of `thread`. Sleeps while another thread keeps the gate closed.
    pub fn enter(&self, thread: u32) -> Pass<'_> {
        loop {
            if let Some(pass) = self.try_enter(thread) {
                return pass;
            }
            let word = self.word.load(Ordering::SeqCst);
            if word & CLOSED != 0 {
                futex::wait(&self.word, word);
            }
        }
    }

    /// Enters if that needs no sleep. For callers that hold something for which threads inside may wait.
    pub fn try_enter(&self, thread: u32) -> Option<Pass<'_>> {
        loop {
            let word = self.word.load(Ordering::SeqCst);
            if word & CLOSED != 0 {
                let is_closer = self.closer.load(Ordering::SeqCst) == thread;
                self.used_by_closer.fetch_or(is_closer, Ordering::Relaxed);
                return is_closer.then_some(Pass(None));
            }
            if self.word.compare_exchange(word, word + 1, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                return Some(Pass(Some(self)));
            }
        }
    }

    /// Closes the gate for all but `thread`, and waits until nobody is inside.
    pub fn close(&self, thread: u32) {
        loop {
            let word = self.word.load(Ordering::SeqCst);
            if word & CLOSED != 0 {
                futex::wait(&self.word, word); // another thread forks
            } else if self.word.compare_exchange(word, word | CLOSED, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                break;
            }
        }
        self.used_by_closer.store(false, Ordering::Relaxed);
        self.closer.store(thread, Ordering::SeqCst);
        loop {
            let word = self.word.load(Ordering::SeqCst);
            if word == CLOSED {
                return;
            }
            futex::wait(&self.word, word);
        }
    }

    /// Whether a thread keeps it closed, or waits for those inside to leave.
    pub fn is_closed(&self) -> bool {
        self.word.load(Ordering::SeqCst) & CLOSED != 0
    }

    /// Whether nobody is inside.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.word.load(Ordering::SeqCst) & !CLOSED == 0
    }

    /// Whether the thread that keeps it closed has passed since.
    pub fn was_used_by_closer(&self) -> bool {
        self.used_by_closer.load(Ordering::Relaxed)
    }

    /// In a forked child: keeps the gate closed for its only thread.
    pub fn inherit(&self, thread: u32) {
        self.closer.store(thread, Ordering::SeqCst);
    }

    pub fn open(&self) {
        self.closer.store(0, Ordering::SeqCst);
        self.word.fetch_and(!CLOSED, Ordering::SeqCst);
        futex::wake_all(&self.word);
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if let Some(gate) = self.0
            && gate.word.fetch_sub(1, Ordering::SeqCst) == CLOSED + 1
        {
            futex::wake_all(&gate.word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;

    #[test]
    fn a_signal_before_the_wait_is_not_lost() {
        let event = Event::default();
        let seen = event.now();
        event.signal();
        event.wait(seen);
    }

    #[test]
    fn a_closed_gate_keeps_others_out_and_lets_its_closer_in() {
        let gate = Arc::new(Gate::default());
        let inside = gate.enter(7);
        let closing = thread::spawn({
            let gate = Arc::clone(&gate);
            move || {
                gate.close(1);
                drop(gate.enter(1));
                assert!(gate.try_enter(1).is_some() && gate.try_enter(2).is_none());
                let late = thread::spawn({
                    let gate = Arc::clone(&gate);
                    move || drop(gate.enter(2))
                });
                assert!(gate.was_used_by_closer() && gate.is_closed());
                gate.open();
                late.join().unwrap();
            }
        });
        drop(inside);
        closing.join().unwrap();
        drop(gate.enter(3));
    }
}
