//! The state of an arena's compaction of frames: how far each zone was scanned, and who wants whole pageblocks.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use folioswap_core::compact::{Compaction, Stage};
use folioswap_core::{Order, Zone};

use crate::process::wakeup::Event;

/// How folios get new homes.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum CompactionMeans {
    /// Free pages move between homes.
    Migration,
    /// Free pages are exchanged with the kernel.
    Exchange,
}

/// Scan progress in a zone. Separate for calm pageblocks: a run that skips the others has not scanned them.
pub(crate) struct Progress {
    pub in_calm: Compaction,
    pub everywhere: Compaction,
}

/// Compaction of one arena's frames.
pub(crate) struct Compactor {
    /// One per zone. Its lock admits one run at a time.
    states: Vec<Mutex<Progress>>,
    /// How often whole folios found no place, or freed frames might have made whole pageblocks.
    nr_woken: AtomicU32,
    /// Freed frames need not wake the background thread.
    sleeps: AtomicBool,
    background: Arc<Event>,
    /// Whole folios that found no contiguous frames since the background thread last looked.
    whole_wanted: AtomicUsize,
    /// Faults that compact, or wait for their turn.
    nr_waiting: AtomicUsize,
    /// Requested runs, which wait for busy folios.
    nr_explicit: AtomicUsize,
    /// `None`: compaction is off. For measurements.
    stage: Option<Stage>,
    means: CompactionMeans,
}

impl Compactor {
    pub fn new(zones: &[Zone], stage: Option<Stage>, means: CompactionMeans, background: &Arc<Event>) -> Self {
        let compaction = |zone: &Zone| Compaction::new(zone.pageblocks().nr_max(), Order::HUGE);
        let state = |zone| Mutex::new(Progress { in_calm: compaction(zone), everywhere: compaction(zone) });
        Compactor {
            states: zones.iter().map(state).collect(),
            nr_woken: AtomicU32::new(0),
            sleeps: AtomicBool::new(false),
            background: Arc::clone(background),
            whole_wanted: AtomicUsize::new(0),
            nr_waiting: AtomicUsize::new(0),
            nr_explicit: AtomicUsize::new(0),
            stage,
            means,
        }
    }

    /// Asks for contiguous frames: a whole folio found none.
    pub fn want_whole(&self) {
        self.whole_wanted.fetch_add(1, Ordering::SeqCst);
        self.nr_woken.fetch_add(1, Ordering::SeqCst);
        self.background.signal();
    }

    /// Says that frames were freed which may make whole pageblocks.
    pub fn wake(&self) {
        self.nr_woken.fetch_add(1, Ordering::SeqCst);
        if !self.sleeps.load(Ordering::SeqCst) {
            self.background.signal();
        }
    }

    pub fn nr_woken(&self) -> u32 {
        self.nr_woken.load(Ordering::SeqCst)
    }

    /// Sets whether only whole folios that find no place wake the background thread.
    pub fn sleep(&self, sleeps: bool) {
        self.sleeps.store(sleeps, Ordering::SeqCst);
    }

    /// Whether whole folios found no contiguous frames since the last call.
    pub fn take_whole_wanted(&self) -> bool {
        self.whole_wanted.swap(0, Ordering::Relaxed) > 0
    }

    pub fn is_whole_wanted(&self) -> bool {
        self.whole_wanted.load(Ordering::Relaxed) > 0
    }

    pub fn stage(&self) -> Option<Stage> {
        self.stage
    }

    pub fn means(&self) -> CompactionMeans {
        self.means
    }

    /// A fault begins to compact. `false`: a requested run is in progress, which may wait for the block that the fault
    /// has locked, so the fault must not wait for that run.
    pub fn begin_direct(&self) -> bool {
        self.nr_waiting.fetch_add(1, Ordering::SeqCst);
        self.nr_explicit.load(Ordering::SeqCst) == 0
    }

    pub fn end_direct(&self) {
        self.nr_waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether faults compact, or wait for their turn.
    pub fn has_direct(&self) -> bool {
        self.nr_waiting.load(Ordering::SeqCst) > 0
    }

    /// A requested run begins: faults that begin now do not compact.
    pub fn begin_explicit(&self) {
        self.nr_explicit.fetch_add(1, Ordering::SeqCst);
    }

    pub fn end_explicit(&self) {
        self.nr_explicit.fetch_sub(1, Ordering::SeqCst);
    }

    pub fn state(&self, zone: usize) -> MutexGuard<'_, Progress> {
        self.states[zone].lock().expect("nothing panics under this lock")
    }
}
