//! Wakes the thread that compacts slots and empties failing devices (`compact::slots`).

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use folioswap_core::{Order, PIECE};

use crate::process::wakeup::Event;

/// The least order for which compaction is started when a folio finds no run of slots.
pub(crate) const LEAST_ORDER: Order = PIECE;

/// What the thread is wanted for.
pub(crate) struct SlotWork {
    wanted: Event,
    /// Slots of the folios that found no run since the thread last looked.
    nr_wanted: AtomicUsize,
    /// Whether slots are compacted.
    compacts: bool,
    /// A device has begun to fail, or there is new room for the content of one.
    is_evacuation_due: AtomicBool,
}

impl SlotWork {
    pub fn new(compacts: bool) -> Self {
        SlotWork {
            wanted: Event::default(),
            nr_wanted: AtomicUsize::new(0),
            compacts,
            is_evacuation_due: AtomicBool::new(false),
        }
    }

    /// Wakes the thread.
    pub fn wake(&self) {
        self.wanted.signal();
    }

    /// To be read before the work is looked at, and given to the wait that follows.
    pub fn now(&self) -> u32 {
        self.wanted.now()
    }

    /// Waits for work, for `limit` at most, unless the thread was woken since `seen`.
    pub fn wait(&self, seen: u32, limit: Option<Duration>) {
        match limit {
            Some(limit) => self.wanted.wait_for(seen, limit),
            None => self.wanted.wait(seen),
        }
    }

    /// Makes the thread empty failing devices now.
    pub fn evacuate(&self) {
        self.is_evacuation_due.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Notes that a folio of this order found no run of slots, and wakes the thread if free ones are scattered.
    pub fn want_runs(&self, order: Order, are_scattered: impl FnOnce() -> bool) {
        if self.compacts && order >= LEAST_ORDER && are_scattered() {
            self.nr_wanted.fetch_add(order.nr_pages(), Ordering::Relaxed);
            self.wake();
        }
    }

    /// The slots wanted in runs since the last call.
    pub fn take_wanted(&self) -> usize {
        self.nr_wanted.swap(0, Ordering::Relaxed)
    }

    /// Whether failing devices are to be emptied since the last call.
    pub fn take_evacuation(&self) -> bool {
        self.is_evacuation_due.swap(false, Ordering::SeqCst)
    }
}
