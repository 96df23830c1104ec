//! The only source of atomics and mutexes: the standard library's, or the model checker's under `cfg(loom)`.
//!
//! Nothing outside this module uses `std::sync` where interleavings matter. Three things stay the standard library's
//! under loom: [`OnceLock`], set before a model starts its threads; the counters of [`crate::stats`], which order
//! nothing and must keep their layout; and the [`Mark`]s of frames, which only the thread that holds the frame changes,
//! and of which the smallest zone has hundreds.

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

/// Locks a mutex and ignores poisoning. The thread that panicked has reported it, and the engine aborts on a panic; a
/// second panic here could happen in a signal handler.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Locks a mutex unless another thread holds it; never waits.
pub fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
