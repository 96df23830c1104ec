//! The state of an arena's compaction of frames: how far each zone was scanned, and who wants whole pageblocks.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use folioswap_core::compact::{Compaction, Stage};
use folioswap_core::{BLOCK_PAGES, Order, Zone};

use crate::compact::exchange::CompactionMeans;
use crate::process::wakeup::Event;

/// Scan progress in a zone. Separate for calm pageblocks: a run that skips the others has not scanned them.
pub(crate) struct Progress {
    pub in_calm: Compaction,
    pub everywhere: Compaction,
}

/// Compaction of one arena's frames.
pub(crate) struct Compactor {
    /// One per zone. Its lock admits one run at a time.
    states: Vec<Mutex<Progress>>,
    /// Signalled when whole folios find no place, and when freed frames may make whole pageblocks.
    pub(super) wanted: Event,
    /// Whole folios that found no contiguous frames since the thread last looked.
    pub(super) whole_wanted: AtomicUsize,
    /// Faults that compact, or wait for their turn.
    pub(super) nr_waiting: AtomicUsize,
    /// Requested runs, which wait for busy folios.
    pub(super) nr_explicit: AtomicUsize,
    /// `None`: compaction is off. For measurements.
    pub(super) stage: Option<Stage>,
    pub(super) means: CompactionMeans,
}

impl Compactor {
    pub fn new(zones: &[Zone], stage: Option<Stage>, means: CompactionMeans) -> Self {
        let compaction = |zone: &Zone| Compaction::new(zone.nr_frames_max() / BLOCK_PAGES, Order::HUGE);
        let state = |zone| Mutex::new(Progress { in_calm: compaction(zone), everywhere: compaction(zone) });
        Compactor {
            states: zones.iter().map(state).collect(),
            wanted: Event::default(),
            whole_wanted: AtomicUsize::new(0),
            nr_waiting: AtomicUsize::new(0),
            nr_explicit: AtomicUsize::new(0),
            stage,
            means,
        }
    }

    /// Asks the compaction thread for contiguous frames: a whole folio found none.
    pub fn want_whole(&self) {
        self.whole_wanted.fetch_add(1, Ordering::Relaxed);
        self.wake();
    }

    /// Wakes the compaction thread.
    pub fn wake(&self) {
        self.wanted.signal();
    }

    pub fn state(&self, zone: usize) -> MutexGuard<'_, Progress> {
        self.states[zone].lock().expect("nothing panics under this lock")
    }
}
