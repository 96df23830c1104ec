//! The one door to atomics and mutexes: the standard library's, or the model checker's under `cfg(loom)`.
//!
//! Outside this module nothing names `std::sync` for a thing whose interleavings matter. Two things stay the standard
//! library's in both worlds: [`OnceLock`] (set up before threads run in every model), the counters of [`crate::stats`],
//! which carry no ordering and have to keep their layout, and the [`Mark`]s of frames, which are changed by who has the
//! frame and order nothing either: there are hundreds in the smallest zone.

#[cfg(loom)]
pub use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, fence},
};
#[cfg(not(loom))]
pub use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, fence},
};

pub use std::sync::{OnceLock, atomic::AtomicU8 as Mark, atomic::Ordering};

use std::sync::TryLockError;

/// Locks a mutex. A panic under it has been reported by whoever panicked; the engine aborts on one, so what is left to
/// do here is not to turn it into a second one inside a signal handler.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The same for a mutex that nobody holds; never waits.
pub fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
