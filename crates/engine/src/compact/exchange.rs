//! Two ways of moving the small folios of a pageblock to new homes.
//!
//! *Migration*: the free page at each folio's new home is moved to its old home. *Exchange*: the free pages of all new
//! homes are given back to the kernel in one call, the folios move without a system call, and the emptied pageblock
//! gets a fresh huge page. Neither touches the program's memory. Each moved page interrupts every CPU that runs a
//! thread of the program; a call that gives pages back does so once. For 256 folios of 4 KiB in a VM with 2 CPUs:
//! migration 0.28 ms, and 3.5 ms next to a running thread; exchange 0.15 and 0.18 ms.
//!
//! Folios are exchanged. In a locked budget, and while the kernel has no huge pages, pageblocks must keep their memory,
//! so folios migrate.

use std::cell::Cell;

use folioswap_core::{FrameId, Memory, Order, Taken, Zone};
use folioswap_sys::memory;

use crate::engine::Engine;
use crate::memory::compactor::CompactionMeans;

/// The moves of one run of compaction. All folios of a pageblock move in the same way.
pub(crate) struct Moving<'e> {
    pub engine: &'e Engine,
    zone: &'e Zone,
    /// A fault waits: an emptied pageblock is given back without memory, and gets a huge page when it is next taken.
    is_direct: bool,
    means: Cell<CompactionMeans>,
}

impl<'e> Moving<'e> {
    pub fn new(engine: &'e Engine, zone: &'e Zone, is_direct: bool) -> Self {
        Moving { engine, zone, is_direct, means: Cell::new(CompactionMeans::Migration) }
    }

    pub fn exchanges(&self) -> bool {
        self.means.get() == CompactionMeans::Exchange
    }

    /// Chooses the way for a pageblock. For an exchange it gives the memory of the new homes back to the kernel.
    pub fn begin(&self, places: &mut dyn Iterator<Item = (FrameId, Order)>) {
        let engine = self.engine;
        self.means.set(means_to_move(engine));
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
            unsafe { engine.ram().backing().repopulate(place, order) };
        }
    }

    /// Ends the work on a pageblock. If it is empty it gets a huge page; if not, it gets back the memory that it has
    /// lost.
    pub fn end(&self, block: FrameId) {
        let engine = self.engine;
        let emptied = if self.exchanges() { self.zone.pageblocks().take_emptied(block) } else { None };
        while let Some((frame, order)) = self.zone.pageblocks().isolated_in(block) {
            // SAFETY: isolated by this run, and no folio moved there.
            unsafe { self.restore(frame, order) };
            self.zone.put_back(frame, order);
        }
        if let Some(emptied) = emptied {
            engine.stats().compact_exchange.add(1);
            // SAFETY: the zone has just handed this pageblock out whole, without folios, so it belongs to this call
            // alone.
            unsafe { engine.ram().backing().unpopulate(block) };
            if self.is_direct {
                engine.ram().release_unpopulated(block);
            } else if engine.ram().try_make_huge(Taken { memory: Memory::Absent, ..emptied }) {
                engine.ram().release(block);
            }
        }
    }
}

fn means_to_move(engine: &Engine) -> CompactionMeans {
    let own_memory = engine.ram().frames().is_locked() || !engine.ram().mapper().registers_frames();
    if own_memory || engine.ram().backing().lacks_huge_pages() {
        return CompactionMeans::Migration;
    }
    engine.compactor().means()
}
