//! The budget of RAM: its zones, the memory of their frames, and the demand for them.
//!
//! [`super::take`] takes frames and gives them memory, [`super::zeroed`] keeps some of them zeroed, and
//! [`super::mlock`] is for a locked budget.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use folioswap_core::{BLOCK_PAGES, FrameId, List, Neighbours, NodeId, Order, PAGE_SIZE, Zone, Zones};

use crate::config::error::Error;
use crate::memory::backing::Backing;
use crate::memory::demand::Demand;
use crate::memory::frames::Frames;
use crate::memory::mapper::Mapper;
use crate::memory::stock::ZeroedStock;
use crate::memory::zones::Zoning;
use crate::process::cpu::current_cpu;
use crate::process::shared_stats::StatsHome;
use crate::process::wakeup::Event;

/// Share of RAM from which small folios on the active list are worth protection.
const IN_USE_SHARE: usize = 16;

/// An arena's RAM.
pub(crate) struct Ram {
    zones: Zones,
    /// NUMA node of each zone; empty if a zone covers several nodes.
    zone_nodes: Box<[NodeId]>,
    backing: Backing,
    demand: Demand,
    stock: ZeroedStock,
    nr_evictions: AtomicU32,
    /// Pages that came back soon after they had left by themselves, since a block was divided for that.
    nr_soon: AtomicUsize,
    /// What is read around touched pages; `leave` reports what was not used.
    neighbours: Neighbours,
    stats: Arc<StatsHome>,
    budget_bytes: AtomicU64,
    /// Serializes growth of a locked budget.
    pub(super) growing: Mutex<()>,
}

impl Ram {
    pub fn new(zoning: Zoning, backing: Backing, stats: Arc<StatsHome>, budget_bytes: u64) -> Result<Self, Error> {
        let nr_cpus = folioswap_sys::cpu::nr_cpus();
        let zone_nodes = zoning.nodes.clone();
        let zones = zoning.zones(backing.frames().nr_pageblocks(), nr_cpus);
        backing.frames().open(budget_bytes as usize / Order::HUGE.bytes())?;
        zones.set_limit(budget_bytes as usize / PAGE_SIZE);
        let demand = Demand::default();
        Ok(Ram {
            stock: ZeroedStock::new(zones.all().len(), Arc::clone(demand.background())),
            zones,
            zone_nodes,
            backing,
            demand,
            nr_evictions: AtomicU32::new(0),
            nr_soon: AtomicUsize::new(0),
            neighbours: Neighbours::default(),
            stats,
            budget_bytes: AtomicU64::new(budget_bytes),
            growing: Mutex::new(()),
        })
    }

    pub fn zones(&self) -> &Zones {
        &self.zones
    }

    pub fn budget_pages(&self) -> usize {
        self.budget_blocks() * BLOCK_PAGES
    }

    /// What is read around a touched page.
    pub fn neighbours(&self) -> &Neighbours {
        &self.neighbours
    }

    pub fn zone(&self, frame: FrameId) -> &Zone {
        self.zones.of(frame)
    }

    /// Puts a folio on a list of its zone, from whichever it is on.
    pub fn put(&self, frame: FrameId, list: List) {
        self.zone(frame).insert(frame, list);
    }

    /// The node of a frame. `None` if its zone spans several nodes.
    pub fn node_of(&self, frame: FrameId) -> Option<NodeId> {
        self.zone_nodes.get(self.zones.index_of(frame)).copied()
    }

    pub fn backing(&self) -> &Backing {
        &self.backing
    }

    pub fn frames(&self) -> &Frames {
        self.backing.frames()
    }

    pub fn mapper(&self) -> &dyn Mapper {
        self.backing.mapper()
    }

    pub fn demand(&self) -> &Demand {
        &self.demand
    }

    pub fn stock(&self) -> &ZeroedStock {
        &self.stock
    }

    /// The budget in bytes, as it was set.
    pub fn budget_bytes(&self) -> u64 {
        self.budget_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn note_budget(&self, bytes: u64) {
        self.budget_bytes.store(bytes, Ordering::Relaxed);
    }

    pub fn budget_blocks(&self) -> usize {
        self.zones.counts().limit / Order::HUGE.nr_pages()
    }

    /// Changes a budget that is not locked. Reclaim then frees the surplus.
    pub fn set_budget(&self, bytes: u64) -> Result<(), Error> {
        let nr_frames = (bytes as usize / PAGE_SIZE).min(self.zones.nr_frames_max());
        // Each zone uses its first pageblocks, up to its share of the limit.
        self.frames().open(nr_frames / Order::HUGE.nr_pages())?;
        self.note_budget(bytes);
        self.zones.set_limit(nr_frames);
        self.reclaim_wanted().signal();
        Ok(())
    }

    /// Signalled when frames run short: wakes reclaim.
    pub fn reclaim_wanted(&self) -> &Event {
        self.demand.reclaim_wanted()
    }

    /// Signalled when a frame was freed or a folio became clean.
    pub fn frame_freed(&self) -> &Event {
        self.demand.frame_freed()
    }

    /// Frees the frames of a folio.
    pub fn release(&self, frame: FrameId) {
        self.zone(frame).give_on(current_cpu(), frame);
        self.frame_freed().signal();
    }

    pub fn release_unpopulated(&self, pageblock: FrameId) {
        self.zone(pageblock).pageblocks().give_unpopulated(pageblock);
        self.note_resident();
    }

    /// Whether small folios that are touched again and again take a good part of RAM.
    pub fn has_pages_in_use(&self) -> bool {
        let counts = self.zones.counts();
        counts.small.active >= counts.limit / IN_USE_SHARE
    }

    /// Counts pages that leave RAM. Returns the count before; it wraps.
    pub fn note_evicted(&self, nr_pages: usize) -> u32 {
        self.nr_evictions.fetch_add(nr_pages as u32, Ordering::Relaxed)
    }

    /// Pages evicted so far; wraps.
    pub fn nr_evictions(&self) -> u32 {
        self.nr_evictions.load(Ordering::Relaxed)
    }

    /// Counts a page that came back soon after it had left by itself.
    pub fn note_soon(&self) {
        self.nr_soon.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether as many pages have come back soon as a block has. They are counted anew then.
    pub fn take_soon(&self) -> bool {
        self.nr_soon.load(Ordering::Relaxed) >= BLOCK_PAGES && self.nr_soon.swap(0, Ordering::Relaxed) >= BLOCK_PAGES
    }

    /// Updates the statistics after the number of frames with memory changed.
    pub fn note_resident(&self) {
        self.stats.resident_bytes.set((self.zones.counts().populated * PAGE_SIZE) as u64);
    }
}
