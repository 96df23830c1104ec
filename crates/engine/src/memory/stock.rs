//! The zeroed pageblocks in stock ([`super::zeroed`] fills it).

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use folioswap_core::{CpuId, FrameId, Order, Zone, Zones};

use crate::process::wakeup::Event;

/// Most blocks of a zone in stock, and the largest share of its limit: nobody else can use these frames.
const MOST: usize = 16;
const BUDGET_SHARE: usize = 32;

/// First touches for each block in stock, so that a program with only a few gets none.
const TOUCHES_EACH: usize = 4;

pub(crate) struct ZeroedStock {
    blocks: Mutex<Vec<FrameId>>,
    /// Number of blocks. Changed under the lock, read without it.
    pub nr: AtomicUsize,
    /// The CPU of the last first touch. The next blocks are taken near it.
    pub touched_on: AtomicU32,
    nr_touches: AtomicUsize,
    /// The number of first touches when reclaim last looked.
    nr_touches_seen: AtomicUsize,
    is_wanted: AtomicBool,
    background: Arc<Event>,
}

impl ZeroedStock {
    pub fn new(nr_zones: usize, background: Arc<Event>) -> Self {
        ZeroedStock {
            blocks: Mutex::new(Vec::with_capacity(MOST * nr_zones)), // never grows, so faults do not wait for that
            nr: AtomicUsize::new(0),
            touched_on: AtomicU32::new(0),
            nr_touches: AtomicUsize::new(0),
            nr_touches_seen: AtomicUsize::new(0),
            is_wanted: AtomicBool::new(false),
            background,
        }
    }

    /// The number of blocks of a zone to keep.
    pub fn target(&self, zone: &Zone) -> usize {
        let most = MOST.min(zone.counts().limit / Order::HUGE.nr_pages() / BUDGET_SHARE);
        most.min(self.nr_touches.load(Ordering::Relaxed) / TOUCHES_EACH)
    }

    pub fn want(&self) {
        self.is_wanted.store(true, Ordering::SeqCst);
        self.background.signal();
    }

    /// Whether it is to be filled, since the last call.
    pub fn take_wanted(&self) -> bool {
        self.is_wanted.swap(false, Ordering::SeqCst)
    }

    pub fn change<R>(&self, change: impl FnOnce(&mut Vec<FrameId>) -> R) -> R {
        let mut blocks = self.blocks.lock().expect("nothing panics under this lock");
        let result = change(&mut blocks);
        self.nr.store(blocks.len(), Ordering::Relaxed);
        result
    }

    pub fn pop(&self) -> Option<FrameId> {
        if self.nr.load(Ordering::Relaxed) == 0 { None } else { self.change(Vec::pop) }
    }

    /// Counts a first touch of a whole folio on a CPU, and takes a block for it from the CPU's zone. Also returns
    /// whether more blocks are wanted: half of the zone's are left.
    pub fn take_on(&self, zones: &Zones, cpu: CpuId) -> (Option<FrameId>, bool) {
        self.nr_touches.fetch_add(1, Ordering::Relaxed);
        let zone = zones.on(cpu);
        let (taken, nr_left) = self.pop_of(zones, zone);
        let wants_more = nr_left < self.target(zone).div_ceil(2); // once for several touches
        if wants_more {
            self.touched_on.store(cpu.get(), Ordering::Relaxed);
        }
        (taken, wants_more)
    }

    /// Whether there was no first touch since the last call.
    pub fn is_idle(&self) -> bool {
        let nr_touches = self.nr_touches.load(Ordering::Relaxed);
        self.nr_touches_seen.swap(nr_touches, Ordering::Relaxed) == nr_touches
    }

    /// Takes a block of a zone. Also returns how many of that zone are left.
    fn pop_of(&self, zones: &Zones, zone: &Zone) -> (Option<FrameId>, usize) {
        if self.nr.load(Ordering::Relaxed) == 0 {
            return (None, 0);
        }
        let is_here = |frame: &FrameId| std::ptr::eq(zones.of(*frame), zone);
        self.change(|blocks| {
            let found = blocks.iter().rposition(is_here).map(|at| blocks.swap_remove(at));
            (found, blocks.iter().filter(|frame| is_here(frame)).count())
        })
    }
}
