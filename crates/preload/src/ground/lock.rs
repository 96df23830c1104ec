//! The locks of this library.
//!
//! **Locking.** Signals are blocked from before a lock is taken until it is given up: a handler of the program's that
//! interrupted its holder could make a call that needs the same lock, or leave by a jump. Where a guard blocks them
//! already, this costs no system call. Locks are given up before the guard under which they were taken.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard};

use crate::ground::guard::{self, Guard};

pub struct Lock<T>(Mutex<T>);

pub struct Locked<T: 'static> {
    // Fields are dropped in this order.
    value: MutexGuard<'static, T>,
    _guard: Guard,
}

impl<T> Lock<T> {
    pub const fn new(value: T) -> Lock<T> {
        Lock(Mutex::new(value))
    }

    pub fn lock(&'static self) -> Locked<T> {
        let guard = guard::enter();
        Locked { value: self.0.lock().expect("nothing panics under this lock"), _guard: guard }
    }

    /// `None`: another thread holds it.
    pub fn try_lock(&'static self) -> Option<Locked<T>> {
        let guard = guard::enter();
        Some(Locked { value: self.0.try_lock().ok()?, _guard: guard })
    }
}

impl<T> Deref for Locked<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Locked<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_blocks_signals() {
        static LOCK: Lock<u32> = Lock::new(1);
        *LOCK.lock() += 1;
        assert!(!guard::inside());
        let held = LOCK.lock();
        assert!(guard::inside());
        assert_eq!(*held, 2);
        drop(held);
        assert!(!guard::inside());
    }
}
