//! Two ways of moving the small folios of a pageblock to new homes, and the choice between them.
//!
//! *Migration*: the free page at each folio's new home is moved to its old home. *Exchange*: the free pages of all new
//! homes are given back to the kernel in one call, the folios move without a system call, and the emptied pageblock
//! gets a fresh huge page. Neither touches the program's memory. Each moved page interrupts every CPU that runs a
//! thread of the program; a call that gives pages back does so once. For 256 folios of 4 KiB in a VM with 2 CPUs:
//! migration 0.28 ms, and 3.5 ms next to a running thread; exchange 0.15 and 0.18 ms.
//!
//! The way that was cheaper lately is taken; the other is tried now and then. In a locked budget, and while the kernel
//! has no huge pages, pageblocks must keep their memory, so folios migrate.

use std::cell::Cell;
use std::time::Instant;

use folioswap_core::{FrameId, Memory, Order, Taken, Zone};
use folioswap_sys::memory;

use crate::compact::costs::CompactionMeans;
use crate::engine::Engine;

/// The moves of one run of compaction. All folios of a pageblock move in the same way.
pub(crate) struct Moving<'e> {
    pub engine: &'e Engine,
    zone: &'e Zone,
    /// A fault waits: the costlier way is not tried, and an emptied pageblock is given back without memory. It gets a
    /// huge page when it is next taken.
    is_direct: bool,
    means: Cell<CompactionMeans>,
    begun: Cell<Instant>,
    nr_pages: Cell<usize>,
}

impl<'e> Moving<'e> {
    pub fn new(engine: &'e Engine, zone: &'e Zone, is_direct: bool) -> Self {
        let (means, begun) = (Cell::new(CompactionMeans::Migration), Cell::new(Instant::now()));
        Moving { engine, zone, is_direct, means, begun, nr_pages: Cell::new(0) }
    }

    pub fn exchanges(&self) -> bool {
        self.means.get() == CompactionMeans::Exchange
    }

    /// Notes that a folio has moved.
    pub fn moved(&self, order: Order) {
        self.nr_pages.set(self.nr_pages.get() + order.nr_pages());
    }

    /// Chooses the way for a pageblock. For an exchange it gives the memory of the new homes back to the kernel.
    pub fn begin(&self, places: &mut dyn Iterator<Item = (FrameId, Order)>) {
        let engine = self.engine;
        self.begun.set(Instant::now());
        self.nr_pages.set(0);
        self.means.set(engine.means_to_move(self.is_direct));
        if self.exchanges() {
            let ranges = places.map(|(frame, order)| (engine.ram().frames().home(frame), order.bytes()));
            // SAFETY: homes of free frames that compaction has isolated: they are within the frames' reservation, and
            // nothing else uses them.
            if let Err(error) = unsafe { memory::dontneed_many(ranges) } {
                crate::process::fatal::die(&format!("free frames could not be given back: {error}"));
            }
        }
    }

    /// Gives memory to a new home again that no folio moved to.
    ///
    /// # Safety
    /// This run has isolated these frames, and nothing is at their home.
    pub unsafe fn restore(&self, place: FrameId, order: Order) {
        let engine = self.engine;
        if self.exchanges() {
            // SAFETY: the caller's frames; nobody else has them.
            unsafe { engine.ram().repopulate(place, order) };
        }
    }

    /// Ends the work on a pageblock. If it is empty it gets a huge page; if not, it gets back the memory that it has
    /// lost.
    pub fn end(&self, block: FrameId) {
        let engine = self.engine;
        // Only this much is the cost of the exchange: an emptied pageblock takes the rest of the time with either way.
        let emptying = self.begun.get().elapsed();
        let emptied = if self.exchanges() { self.zone.take_emptied(block) } else { None };
        let restoring = Instant::now();
        while let Some((frame, order)) = self.zone.isolated_in(block) {
            // SAFETY: isolated by this run, and no folio moved there.
            unsafe { self.restore(frame, order) };
            self.zone.put_back(frame, order);
        }
        engine.compactor().costs.note(self.means.get(), emptying + restoring.elapsed(), self.nr_pages.get());
        if let Some(emptied) = emptied {
            engine.stats().compact_exchange.add(1);
            // SAFETY: the zone has just handed this pageblock out whole, without folios, so it belongs to this call
            // alone.
            unsafe { engine.ram().frames().unpopulate(block) };
            if self.is_direct {
                self.zone.give_unpopulated(block);
                engine.ram().note_resident();
            } else if engine.ram().try_make_huge(Taken { memory: Memory::Absent, ..emptied }) {
                engine.ram().release(block);
            }
        }
    }
}

impl Engine {
    fn means_to_move(&self, is_direct: bool) -> CompactionMeans {
        let own_memory = self.ram().frames().is_locked() || !self.ram().mapper().registers_frames();
        match self.compactor().means {
            _ if own_memory || self.ram().lacks_huge_pages() => CompactionMeans::Migration,
            Some(means) => means,
            None if is_direct => self.compactor().costs.cheaper(),
            None => self.compactor().costs.choose(),
        }
    }
}
