//! How long faults wait for a frame before they look for the cause, and which cause was reported.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub(crate) struct Patience {
    limit: Duration,
    /// 1 + the count of freed frames at the last message about waiting for devices: each stall is reported once.
    stall_said: AtomicU64,
}

impl Patience {
    pub fn new(limit: Duration) -> Self {
        Patience { limit, stall_said: AtomicU64::new(0) }
    }

    /// How long a thread waits for a frame before it looks for the cause.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Notes that no frame was freed for that long. `freed`: the count of freed frames. `false`: this stall was
    /// reported.
    pub fn begin_stall(&self, freed: u32) -> bool {
        let stall = u64::from(freed) + 1;
        self.stall_said.swap(stall, Ordering::Relaxed) != stall
    }

    #[cfg(test)]
    pub fn has_said_stall(&self) -> bool {
        self.stall_said.load(Ordering::SeqCst) > 0
    }
}
