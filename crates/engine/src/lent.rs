//! Things that threads borrow for a moment, one thread each: buffers, places to make pages in, what compressing takes.
//!
//! Who finds none sleeps until one is given back. It does not spin: a thread of a real-time priority would keep its CPU
//! from the very thread that is to give one back.

use std::sync::{Mutex, MutexGuard};

use crate::wakeup::Event;

/// What there is to borrow.
pub(crate) struct Lent<T> {
    here: Mutex<Vec<T>>,
    given_back: Event,
}

impl<T> Lent<T> {
    pub fn new(all: impl IntoIterator<Item = T>) -> Self {
        Lent { here: Mutex::new(all.into_iter().collect()), given_back: Event::default() }
    }

    /// Takes one; sleeps while all are lent. Whoever takes one gives it back, and waits for nothing of the same kind before.
    pub fn take(&self) -> T {
        loop {
            let seen = self.given_back.now();
            if let Some(one) = self.here().pop() {
                return one;
            }
            self.given_back.wait(seen);
        }
    }

    /// Gives one back. Allocates nothing: there was room for it before.
    pub fn give_back(&self, one: T) {
        self.here().push(one);
        self.given_back.signal();
    }

    /// Works with one.
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        let mut one = self.take();
        let done = work(&mut one);
        self.give_back(one);
        done
    }

    fn here(&self) -> MutexGuard<'_, Vec<T>> {
        self.here.lock().expect("nothing panics under this lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wakeup::comes_true;
    use std::sync::mpsc;

    /// What a thread of this process does, as the kernel says: R while it runs or wants to, S while it sleeps.
    fn state_of(thread: u32) -> Option<char> {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    }

    #[test]
    fn who_finds_nothing_sleeps_until_something_is_given_back() {
        let lent = Lent::new([1, 2]);
        let (first, second) = (lent.take(), lent.take());
        let (tell, told) = mpsc::channel();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                tell.send(folioswap_sys::signals::thread_id()).unwrap();
                lent.with(|one| *one)
            });
            let thread = told.recv().unwrap();
            // It sleeps for good: a moment of sleep on the way there would be over when it is looked at again and again.
            comes_true("it sleeps", || (0..1000).all(|_| state_of(thread) == Some('S')));
            lent.give_back(first);
            assert_eq!(waiting.join().unwrap(), first);
        });
        lent.give_back(second);
        assert!(lent.take() != lent.take());
    }
}
