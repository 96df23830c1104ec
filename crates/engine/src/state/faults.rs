//! Delivery of faults, what they wait for, and which pages are lost.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use folioswap_sys::uffd::Userfaultfd;

use crate::state::device_faults::DeviceFaults;
use crate::state::lost_pages::Lost;
use crate::state::read_queue::ReadQueue;

/// The userfaultfd of an arena, its queues of faults and readahead, and its lost pages.
pub(crate) struct Faults {
    uffd: Arc<Userfaultfd>,
    lost: Lost,
    reads: ReadQueue,
    /// Held by the monitor thread that polls for the next fault instead of sleeping.
    on_watch: Mutex<()>,
    device_faults: DeviceFaults,
    /// How long a thread waits for a frame before it looks for the cause.
    patience: Duration,
    /// 1 + the count of freed frames at the last message about waiting for devices: each stall is reported once.
    stall_said: AtomicU64,
}

impl Faults {
    pub fn new(uffd: Arc<Userfaultfd>, patience: Duration) -> Self {
        Faults {
            uffd,
            lost: Lost::default(),
            reads: ReadQueue::new(),
            on_watch: Mutex::default(),
            device_faults: DeviceFaults::default(),
            patience,
            stall_said: AtomicU64::new(0),
        }
    }

    pub fn uffd(&self) -> &Userfaultfd {
        &self.uffd
    }

    pub fn lost(&self) -> &Lost {
        &self.lost
    }

    pub fn reads(&self) -> &ReadQueue {
        &self.reads
    }

    pub fn device_faults(&self) -> &DeviceFaults {
        &self.device_faults
    }

    /// Lets one monitor thread poll for the next fault while it holds the result.
    pub fn try_watch(&self) -> Option<MutexGuard<'_, ()>> {
        self.on_watch.try_lock().ok()
    }

    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// Notes that no frame was freed for long. `freed`: the count of freed frames. `false`: this stall was reported.
    pub fn begin_stall(&self, freed: u32) -> bool {
        let stall = u64::from(freed) + 1;
        self.stall_said.swap(stall, Ordering::Relaxed) != stall
    }

    /// Whether a stall was reported.
    #[cfg(test)]
    pub fn has_said_stall(&self) -> bool {
        self.stall_said.load(Ordering::SeqCst) > 0
    }
}
