//! Relief of devices that compress, which are fronts of the devices behind them (`relocate::write_back`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::process::wakeup::Event;

/// Eighths of a front's memory at which writeback begins.
pub(crate) const HIGH: u64 = 7;

/// Wakes the thread that relieves fronts (`relocate::write_back`).
#[derive(Default)]
pub(crate) struct Relief {
    /// A front is about to be full.
    filled: Event,
    /// Whether the thread waits to be told of it.
    is_wanted: AtomicBool,
}

impl Relief {
    /// To be read before the fronts are looked at, and given to the wait that follows.
    pub fn now(&self) -> u32 {
        self.filled.now()
    }

    /// Waits until a front is about to be full, unless one has been since `seen`.
    pub fn wait(&self, seen: u32) {
        self.is_wanted.store(true, Ordering::SeqCst);
        self.filled.wait(seen);
    }

    /// Waits for this long. A front that fills meanwhile need not wake the thread: there is no room behind it.
    pub fn pause(&self, seen: u32, limit: Duration) {
        self.is_wanted.store(false, Ordering::SeqCst);
        self.filled.wait_for(seen, limit);
    }

    /// Whether the thread waits for a front that is about to be full.
    pub fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Relaxed)
    }

    pub fn wake(&self) {
        self.filled.signal();
    }
}
