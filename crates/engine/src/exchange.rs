//! The two ways in which the small folios of a pageblock get new homes, and which of them to take.
//!
//! *Migration*: the free page of each folio's new home travels to the old one. *Exchange*: the free pages of all new homes
//! are given back to the kernel at once; the folios then move without a system call, and the pageblock, once it is empty,
//! gets a fresh huge page for what it and the new homes have lost. A program's memory is touched by neither.
//!
//! A page that travels interrupts every CPU that runs a thread of the program, and so does a range that is given back, but
//! many ranges in one call do so once. Measured in a virtual machine of 2 CPUs for 256 folios of 4 KiB: migration 0.28 ms,
//! 3.5 ms beside a running thread; exchange 0.15 and 0.18 ms.
//!
//! The cheaper one is taken, by what pages have cost lately; the other is tried now and then. In a locked budget, and while the
//! kernel has no huge pages, pageblocks keep their own memory: migration.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use folioswap_core::{FrameId, Memory, Order, Taken, Zone};
use folioswap_sys::memory;

use crate::engine::Engine;

/// One pageblock in so many is emptied the way that costs more, to see whether it still does; of the first ones, every other.
const OTHER_WAY_OF: usize = 32;
const FIRST: usize = 8;

/// Of a pageblock that had few pages to move, or few of which went, the cost of a page says little.
const FEW: usize = 64;

/// What a pageblock has cost counts so much less with each that follows it.
const FADES: u64 = 2;

/// How folios get new homes.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Means {
    /// Free pages travel between homes.
    Migration,
    /// Free pages are exchanged with the kernel.
    Exchange,
}

impl Means {
    fn other(self) -> Means {
        match self {
            Means::Migration => Means::Exchange,
            Means::Exchange => Means::Migration,
        }
    }
}

/// What one way has cost: sums in which each pageblock counts less than the next.
#[derive(Default)]
struct Cost {
    ns: AtomicU64,
    nr_pages: AtomicU64,
}

impl Cost {
    /// Nanoseconds for a page that moved.
    fn ns_per_page(&self) -> u64 {
        self.ns.load(Ordering::Relaxed) / self.nr_pages.load(Ordering::Relaxed).max(1)
    }
}

/// What each way has cost, about: runs of several zones note it beside each other.
#[derive(Default)]
pub(crate) struct Costs {
    by_means: [Cost; 2],
    nr_blocks: AtomicUsize,
}

impl Costs {
    /// The way that costs less. Exchange while nothing is known: it is the one whose cost does not depend on what the program does.
    fn cheaper(&self) -> Means {
        let [migration, exchange] =
            [Means::Migration, Means::Exchange].map(|means| self.by_means[means as usize].ns_per_page());
        if migration > 0 && migration < exchange { Means::Migration } else { Means::Exchange }
    }

    /// The way for the next pageblock, so that the cost of both stays known.
    fn choose(&self) -> Means {
        let cheaper = self.cheaper();
        let nr = self.nr_blocks.fetch_add(1, Ordering::Relaxed);
        match nr {
            ..FIRST if nr.is_multiple_of(2) => Means::Exchange,
            ..FIRST => Means::Migration,
            _ if nr.is_multiple_of(OTHER_WAY_OF) => cheaper.other(),
            _ => cheaper,
        }
    }

    fn note(&self, means: Means, took: Duration, nr_pages: usize) {
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

/// The moves of one run of compaction; a pageblock's folios go one way.
pub(crate) struct Moving<'e> {
    pub engine: &'e Engine,
    zone: &'e Zone,
    /// A fault waits: nothing is tried out, and an emptied pageblock does not get its huge page here, but from who takes it,
    /// beside others.
    is_direct: bool,
    means: Cell<Means>,
    begun: Cell<Instant>,
    nr_pages: Cell<usize>,
}

impl<'e> Moving<'e> {
    pub fn new(engine: &'e Engine, zone: &'e Zone, is_direct: bool) -> Self {
        let (means, begun) = (Cell::new(Means::Migration), Cell::new(Instant::now()));
        Moving { engine, zone, is_direct, means, begun, nr_pages: Cell::new(0) }
    }

    pub fn exchanges(&self) -> bool {
        self.means.get() == Means::Exchange
    }

    /// A folio has moved.
    pub fn moved(&self, order: Order) {
        self.nr_pages.set(self.nr_pages.get() + order.nr_pages());
    }

    /// Chooses the way for a pageblock, and takes their memory from the new homes if it is the one.
    pub fn begin(&self, places: &mut dyn Iterator<Item = (FrameId, Order)>) {
        let engine = self.engine;
        self.begun.set(Instant::now());
        self.nr_pages.set(0);
        self.means.set(engine.means_to_move(self.is_direct));
        if self.exchanges() {
            let ranges = places.map(|(frame, order)| (engine.frames.home(frame), order.bytes()));
            // SAFETY: the homes of free frames that the compaction has isolated: within the frames' reservation, and nobody's.
            if let Err(error) = unsafe { memory::dontneed_many(ranges) } {
                crate::fatal::die(&format!("free frames could not be given back: {error}"));
            }
        }
    }

    /// Gives a place that no folio moved to its memory again.
    pub fn restore(&self, place: FrameId, order: Order) {
        let engine = self.engine;
        if self.exchanges() {
            engine.patiently("made again", || engine.mapper.repopulate(engine.frames.home(place), order.bytes()));
        }
    }

    /// A pageblock that is empty now gets a huge page; one that is not, the memory that it has lost.
    pub fn end(&self, block: FrameId) {
        let engine = self.engine;
        // What else an emptied pageblock takes it takes either way.
        let emptying = self.begun.get().elapsed();
        let emptied = if self.exchanges() { self.zone.take_emptied(block) } else { None };
        let restoring = Instant::now();
        while let Some((frame, order)) = self.zone.isolated_in(block) {
            self.restore(frame, order);
            self.zone.put_back(frame, order);
        }
        engine.compactor.costs.note(self.means.get(), emptying + restoring.elapsed(), self.nr_pages.get());
        if let Some(emptied) = emptied {
            engine.stats.compact_exchange.add(1);
            // SAFETY: the zone has just given the pageblock whole, emptied.
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
    fn means_to_move(&self, is_direct: bool) -> Means {
        let own_memory = self.frames.is_locked() || !self.mapper.registers_frames();
        match self.compactor.means {
            _ if own_memory || self.huge_pages_short.load(Ordering::Relaxed) > 0 => Means::Migration,
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
                let us = if means == Means::Exchange { 200 } else { migration_us };
                costs.note(means, Duration::from_micros(us), if block == 0 { 16 } else { 256 });
                means == Means::Exchange
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
