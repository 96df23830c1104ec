//! What the background thread is wanted for on swap devices: it compacts slots and empties failing devices
//! (`compact::slots`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use folioswap_core::{Order, PIECE};

use crate::process::wakeup::Event;

/// The least order for which compaction is started when a folio finds no run of slots.
pub(crate) const LEAST_ORDER: Order = PIECE;

/// What the thread is wanted for.
pub(crate) struct SlotWork {
    background: Arc<Event>,
    /// Slots of the folios that found no run since the thread last looked.
    nr_wanted: AtomicUsize,
    compacts: bool,
    /// A device has begun to fail, or there is new room for the content of one.
    is_evacuation_due: AtomicBool,
}

impl SlotWork {
    pub fn new(compacts: bool, background: Arc<Event>) -> Self {
        SlotWork { background, nr_wanted: AtomicUsize::new(0), compacts, is_evacuation_due: AtomicBool::new(false) }
    }

    /// Makes the thread empty failing devices now.
    pub fn evacuate(&self) {
        self.is_evacuation_due.store(true, Ordering::SeqCst);
        self.background.signal();
    }

    /// Notes that a folio of this order found no run of slots, and wakes the thread if free ones are scattered.
    pub fn want_runs(&self, order: Order, are_scattered: impl FnOnce() -> bool) {
        if self.compacts && order >= LEAST_ORDER && are_scattered() {
            self.nr_wanted.fetch_add(order.nr_pages(), Ordering::Relaxed);
            self.background.signal();
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
