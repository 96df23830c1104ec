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
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use folioswap_core::{FrameId, Memory, Order, Taken, Zone};
use folioswap_sys::memory;

use crate::engine::Engine;

/// One pageblock in this many is emptied in the costlier way, to see whether it still is.
const OTHER_WAY_OF: usize = 32;
const FIRST: usize = 8;

/// Fewest moved pages for which the cost per page is recorded: with fewer it means little.
const FEW: usize = 64;

/// The weight of earlier pageblocks is divided by this with each new one.
const FADES: u64 = 2;

/// How folios get new homes.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum CompactionMeans {
    /// Free pages move between homes.
    Migration,
    /// Free pages are exchanged with the kernel.
    Exchange,
}

impl CompactionMeans {
    fn other(self) -> CompactionMeans {
        match self {
            CompactionMeans::Migration => CompactionMeans::Exchange,
            CompactionMeans::Exchange => CompactionMeans::Migration,
        }
    }
}

/// Cost of one way: sums that fade with each pageblock.
#[derive(Default)]
struct Cost {
    ns: AtomicU64,
    nr_pages: AtomicU64,
}

impl Cost {
    /// Nanoseconds per moved page.
    fn ns_per_page(&self) -> u64 {
        self.ns.load(Ordering::Relaxed) / self.nr_pages.load(Ordering::Relaxed).max(1)
    }
}

/// Approximate costs of both ways: runs in several zones update them concurrently, without a lock.
#[derive(Default)]
pub(crate) struct Costs {
    by_means: [Cost; 2],
    nr_blocks: AtomicUsize,
}

impl Costs {
    /// The way that costs less. Exchange if nothing is known, because its cost does not depend on what the program
    /// does.
    fn cheaper(&self) -> CompactionMeans {
        let [migration, exchange] = [CompactionMeans::Migration, CompactionMeans::Exchange]
            .map(|means| self.by_means[means as usize].ns_per_page());
        if migration > 0 && migration < exchange { CompactionMeans::Migration } else { CompactionMeans::Exchange }
    }

    /// The way for the next pageblock. Now and then the costlier one, so that both costs stay known.
    fn choose(&self) -> CompactionMeans {
        let cheaper = self.cheaper();
        let nr = self.nr_blocks.fetch_add(1, Ordering::Relaxed);
        match nr {
            ..FIRST if nr.is_multiple_of(2) => CompactionMeans::Exchange,
            ..FIRST => CompactionMeans::Migration,
            _ if nr.is_multiple_of(OTHER_WAY_OF) => cheaper.other(),
            _ => cheaper,
        }
    }

    fn note(&self, means: CompactionMeans, took: Duration, nr_pages: usize) {
        if nr_pages < FEW {
            return;
        }
        let Cost { ns, nr_pages: sum } = &self.by_means[means as usize];
        for (sum, more) in [(ns, took.as_nanos() as u64), (sum, nr_pages as u64)] {
            let before = sum.load(Ordering::Relaxed);
            sum.store(before - before / FADES + more, Ordering::Relaxed);
        }
    }
}

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
            let ranges = places.map(|(frame, order)| (engine.frames.home(frame), order.bytes()));
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
            let home = engine.frames.home(place);
            // SAFETY: the caller's frames; nobody else has them.
            engine.patiently("made again", || unsafe { engine.mapper.repopulate(home, order.bytes()) });
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
        engine.compactor.costs.note(self.means.get(), emptying + restoring.elapsed(), self.nr_pages.get());
        if let Some(emptied) = emptied {
            engine.stats.compact_exchange.add(1);
            // SAFETY: the zone has just handed this pageblock out whole, without folios, so it belongs to this call
            // alone.
            unsafe { engine.frames.unpopulate(block) };
            if self.is_direct {
                self.zone.give_unpopulated(block);
                engine.note_resident();
            } else if engine.try_make_huge(Taken { memory: Memory::Absent, ..emptied }) {
                engine.release_frame(block);
            }
        }
    }
}

impl Engine {
    fn means_to_move(&self, is_direct: bool) -> CompactionMeans {
        let own_memory = self.frames.is_locked() || !self.mapper.registers_frames();
        match self.compactor.means {
            _ if own_memory || self.huge_pages_short.load(Ordering::Relaxed) > 0 => CompactionMeans::Migration,
            Some(means) => means,
            None if is_direct => self.compactor.costs.cheaper(),
            None => self.compactor.costs.choose(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cheaper_way_is_taken_and_the_other_one_tried_again() {
        let costs = Costs::default();
        let run = |migration_us, nr_blocks: usize| {
            let exchanged = (0..nr_blocks).filter(|&block| {
                let means = costs.choose();
                let us = if means == CompactionMeans::Exchange { 200 } else { migration_us };
                costs.note(means, Duration::from_micros(us), if block == 0 { 16 } else { 256 });
                means == CompactionMeans::Exchange
            });
            exchanged.count() as f64 / nr_blocks as f64
        };
        let share = run(3500, 10 * OTHER_WAY_OF);
        assert!(share > 0.9, "{share} go the cheaper way");
        run(50, 6 * OTHER_WAY_OF);
        let share = run(50, 10 * OTHER_WAY_OF);
        assert!(share < 0.1 && share > 0.0, "{share} go the way that costs more now");
    }
}
