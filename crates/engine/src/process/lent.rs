//! Pools of objects that threads borrow for a moment: buffers, addresses for making pages, compression state.
//!
//! A thread that finds none sleeps until one is given back. It does not spin: a real-time thread would keep its CPU
//! from the very thread that is to give one back.

use std::sync::{Mutex, MutexGuard};

use crate::process::wakeup::Event;

/// A pool of objects.
pub(crate) struct Lent<T> {
    here: Mutex<Vec<T>>,
    given_back: Event,
}

impl<T> Lent<T> {
    pub fn new(all: impl IntoIterator<Item = T>) -> Self {
        Lent { here: Mutex::new(all.into_iter().collect()), given_back: Event::default() }
    }

    /// Takes an object. Sleeps while all are lent. The caller must give it back before it waits for another one of this
    /// kind.
    pub fn take(&self) -> T {
        loop {
            let seen = self.given_back.now();
            if let Some(one) = self.try_take() {
                return one;
            }
            self.given_back.wait(seen);
        }
    }

    /// Takes an object, unless all are lent.
    pub fn try_take(&self) -> Option<T> {
        self.here().pop()
    }

    /// Gives an object back. Does not allocate: the pool had room for it before.
    pub fn give_back(&self, one: T) {
        self.here().push(one);
        self.given_back.signal();
    }

    /// Calls `work` with an object.
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
    use crate::process::wakeup::{comes_true, sleeps};
    use std::sync::mpsc;

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
            comes_true("it sleeps", || sleeps(thread));
            lent.give_back(first);
            assert_eq!(waiting.join().unwrap(), first);
        });
        lent.give_back(second);
        assert!(lent.take() != lent.take());
    }
}
