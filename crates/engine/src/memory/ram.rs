//! The budget of RAM: its zones, the homes of their frames, and what maps them.
//!
//! [`super::take`] takes frames and gives them memory, [`super::zeroed`] keeps some of them zeroed, and
//! [`super::mlock`] is for a locked budget.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use folioswap_core::{FrameId, List, NodeId, Order, PAGE_SIZE, Size, Zone, Zones};

use crate::config::error::Error;
use crate::memory::frames::Frames;
use crate::memory::map_error::patiently;
use crate::memory::mapper::Mapper;
use crate::memory::stock::ZeroedStock;
use crate::memory::zones::Zoning;
use crate::process::cpu::{self, current_cpu};
use crate::process::shared_stats::StatsHome;
use crate::process::wakeup::Event;

/// Share of RAM from which small folios on the active list are worth protection.
const IN_USE_SHARE: usize = 16;

/// An arena's RAM.
pub(crate) struct Ram {
    pub(super) zones: Zones,
    /// NUMA node of each zone; empty if a zone covers several nodes.
    zone_nodes: Box<[NodeId]>,
    pub(super) frames: Frames,
    pub(super) mapper: Box<dyn Mapper>,
    pub(super) stock: ZeroedStock,
    pub(super) stats: Arc<StatsHome>,
    pub(super) budget_bytes: AtomicU64,
    /// Serializes growth of a locked budget.
    pub(super) growing: Mutex<()>,
    /// Pageblocks that keep their small pages before a huge page is tried again. Set when the kernel had no huge page.
    pub(super) huge_pages_short: AtomicUsize,
    nr_mapped: AtomicUsize,
    nr_evictions: AtomicU32,
    reclaim_wanted: Event,
    /// Shared with the swap space.
    background: Arc<Event>,
    frame_freed: Event,
    /// Pages that threads wait for which leave reclaim to others.
    nr_awaited: AtomicUsize,
    begin: OnceLock<Begin>,
    begins_when_short: AtomicBool,
    lacks_reclaim: AtomicBool,
}

/// A thread waits for frames for a folio of this order.
pub(crate) struct Awaited<'r> {
    ram: &'r Ram,
    order: Order,
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        self.ram.nr_awaited.fetch_sub(self.order.nr_pages(), Ordering::Relaxed);
    }
}

/// Starts what was not started before memory ran short.
pub(crate) type Begin = Box<dyn Fn() -> bool + Send + Sync>;

impl Ram {
    /// RAM of `budget_bytes` in `frames`.
    pub fn new(
        zoning: Zoning,
        frames: Frames,
        mapper: Box<dyn Mapper>,
        stats: Arc<StatsHome>,
        budget_bytes: u64,
        keeps_stock: bool,
    ) -> Result<Self, Error> {
        let nr_cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let zone_nodes = zoning.nodes.clone();
        let zones = zoning.zones(frames.nr_pageblocks(), nr_cpus);
        frames.open(budget_bytes as usize / Order::HUGE.bytes())?;
        zones.set_limit(budget_bytes as usize / PAGE_SIZE);
        let background = Arc::new(Event::default());
        Ok(Ram {
            stock: ZeroedStock::new(keeps_stock, zones.all().len(), Arc::clone(&background)),
            zones,
            zone_nodes,
            frames,
            mapper,
            stats,
            budget_bytes: AtomicU64::new(budget_bytes),
            growing: Mutex::new(()),
            huge_pages_short: AtomicUsize::new(0),
            nr_mapped: AtomicUsize::new(0),
            nr_evictions: AtomicU32::new(0),
            reclaim_wanted: Event::default(),
            background,
            frame_freed: Event::default(),
            nr_awaited: AtomicUsize::new(0),
            begin: OnceLock::new(),
            begins_when_short: AtomicBool::new(false),
            lacks_reclaim: AtomicBool::new(false),
        })
    }

    pub fn zones(&self) -> &Zones {
        &self.zones
    }

    /// The zone of a frame.
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

    pub fn frames(&self) -> &Frames {
        &self.frames
    }

    /// The addresses that are registered with the userfaultfd beside managed memory.
    pub fn registered(&self) -> Vec<Range<usize>> {
        let homes = self.mapper.registers_frames().then(|| self.frames.range());
        homes.into_iter().chain(self.frames.is_locked().then(|| self.frames.spare_pages())).collect()
    }

    /// Whether an address is among them.
    pub fn is_registered(&self, addr: usize) -> bool {
        self.mapper.registers_frames() && self.frames.range().contains(&addr)
            || self.frames.is_locked() && self.frames.spare_pages().contains(&addr)
    }

    /// In a forked child: nothing is locked, and no thread waits.
    pub fn begin_child(&self) {
        self.frames.forget_lock();
        self.mapper.forget_lock();
        self.reclaim_wanted.forget_waiters();
        self.background.forget_waiters();
        self.frame_freed.forget_waiters();
    }

    pub fn mapper(&self) -> &dyn Mapper {
        &*self.mapper
    }

    #[cfg(test)]
    pub fn stock(&self) -> &ZeroedStock {
        &self.stock
    }

    /// The budget in bytes, as it was set.
    pub fn budget_bytes(&self) -> u64 {
        self.budget_bytes.load(Ordering::Relaxed)
    }

    /// The budget in blocks.
    pub fn budget_blocks(&self) -> usize {
        self.zones.counts().limit / Order::HUGE.nr_pages()
    }

    /// Changes a budget that is not locked. Reclaim then frees the surplus.
    pub fn set_budget(&self, bytes: u64) -> Result<(), Error> {
        let nr_frames = (bytes as usize / PAGE_SIZE).min(self.zones.nr_frames_max());
        // Each zone uses its first pageblocks, up to its share of the limit.
        self.frames.open(nr_frames / Order::HUGE.nr_pages())?;
        self.budget_bytes.store(bytes, Ordering::Relaxed);
        self.zones.set_limit(nr_frames);
        self.reclaim_wanted().signal();
        Ok(())
    }

    /// Signalled when frames run short: wakes reclaim. The thread that asks for it may be the one that starts reclaim
    /// ([`Ram::begin_when_short`]).
    pub fn reclaim_wanted(&self) -> &Event {
        self.begin();
        &self.reclaim_wanted
    }

    /// Wakes the background thread.
    pub fn background(&self) -> &Arc<Event> {
        &self.background
    }

    /// Starts what has waited for its first need.
    pub(super) fn begin(&self) {
        if self.begins_when_short.load(Ordering::Relaxed) && self.begins_when_short.swap(false, Ordering::Relaxed) {
            let has_begun = self.begin.get().is_none_or(|begin| begin());
            self.begins_when_short.fetch_or(!has_begun, Ordering::Relaxed);
        }
    }

    /// Notes that no thread reclaims: whoever needs frames has to.
    pub fn note_no_reclaim(&self) {
        self.lacks_reclaim.store(true, Ordering::Relaxed);
    }

    /// Whether no thread reclaims.
    pub fn lacks_reclaim(&self) -> bool {
        self.lacks_reclaim.load(Ordering::Relaxed)
    }

    /// Has the reclaim threads free frames for a folio of this order besides those that they keep free, as long as the
    /// result lives.
    pub fn await_frames(&self, order: Order) -> Awaited<'_> {
        self.nr_awaited.fetch_add(order.nr_pages(), Ordering::Relaxed);
        self.reclaim_wanted().signal();
        Awaited { ram: self, order }
    }

    /// Pages that reclaim is to free besides those that it keeps free.
    pub fn nr_awaited(&self) -> usize {
        self.nr_awaited.load(Ordering::Relaxed)
    }

    /// Has reclaim and the making of zeroed pages started by `begin` when frames first run short, or a zeroed page is
    /// first wanted. Any thread may call `begin`, which returns `false` if it must be called again.
    pub fn begin_when_short(&self, begin: Begin) {
        let _ = self.begin.set(begin); // the parent's parent may have set the same
        self.begins_when_short.store(true, Ordering::Relaxed);
    }

    /// Signalled when a frame was freed or a folio became clean.
    pub fn frame_freed(&self) -> &Event {
        &self.frame_freed
    }

    /// From now on this thread serves `thread`, and takes frames near that thread's CPU. With one zone all are equal.
    pub fn work_for(&self, thread: u32) {
        if self.zones.all().len() >= 2 {
            cpu::work_for(thread);
        }
    }

    /// Frees the frames of a folio.
    pub fn release(&self, frame: FrameId) {
        self.zone(frame).give_on(current_cpu(), frame);
        self.frame_freed.signal();
    }

    /// Frees a pageblock that has no memory.
    pub fn release_unpopulated(&self, pageblock: FrameId) {
        self.zone(pageblock).give_unpopulated(pageblock);
        self.note_resident();
    }

    /// Puts pages back at a home that has lost its own.
    ///
    /// # Safety
    /// The frames belong to the caller alone, as for [`Mapper`].
    pub unsafe fn repopulate(&self, frame: FrameId, order: Order) {
        // SAFETY: the home of frames that belong to the caller alone (its promise).
        patiently("made again", || unsafe { self.mapper.repopulate(self.frames.home(frame), order.bytes()) });
    }

    /// Whether the kernel had no huge page lately.
    pub fn lacks_huge_pages(&self) -> bool {
        self.huge_pages_short.load(Ordering::Relaxed) > 0
    }

    /// Counts pages that were mapped.
    pub fn note_mapped(&self, nr_pages: usize) {
        self.nr_mapped.fetch_add(nr_pages, Ordering::Relaxed);
    }

    /// Counts pages that are no longer mapped.
    pub fn note_unmapped(&self, nr_pages: usize) {
        self.nr_mapped.fetch_sub(nr_pages, Ordering::Relaxed);
    }

    pub fn mapped_bytes(&self) -> u64 {
        (self.nr_mapped.load(Ordering::Relaxed) * PAGE_SIZE) as u64
    }

    /// Whether small folios that are touched again and again take a good part of RAM.
    pub fn has_pages_in_use(&self) -> bool {
        self.zones.class_counts(Size::Small).active >= self.zones.counts().limit / IN_USE_SHARE
    }

    /// Counts pages that leave RAM. Returns the count before; it wraps.
    pub fn note_evicted(&self, nr_pages: usize) -> u32 {
        self.nr_evictions.fetch_add(nr_pages as u32, Ordering::Relaxed)
    }

    /// Pages evicted so far; wraps.
    pub fn nr_evictions(&self) -> u32 {
        self.nr_evictions.load(Ordering::Relaxed)
    }

    /// Updates the statistics after the number of frames with memory changed.
    pub fn note_resident(&self) {
        self.stats.resident_bytes.set((self.zones.populated() * PAGE_SIZE) as u64);
    }
}
