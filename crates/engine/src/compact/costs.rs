//! What migration and exchange have cost lately, and the choice between them.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

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
    pub fn ns_per_page(&self) -> u64 {
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
    pub fn cheaper(&self) -> CompactionMeans {
        let [migration, exchange] = [CompactionMeans::Migration, CompactionMeans::Exchange]
            .map(|means| self.by_means[means as usize].ns_per_page());
        if migration > 0 && migration < exchange { CompactionMeans::Migration } else { CompactionMeans::Exchange }
    }

    /// The way for the next pageblock. Now and then the costlier one, so that both costs stay known.
    pub fn choose(&self) -> CompactionMeans {
        let cheaper = self.cheaper();
        let nr = self.nr_blocks.fetch_add(1, Ordering::Relaxed);
        match nr {
            ..FIRST if nr.is_multiple_of(2) => CompactionMeans::Exchange,
            ..FIRST => CompactionMeans::Migration,
            _ if nr.is_multiple_of(OTHER_WAY_OF) => cheaper.other(),
            _ => cheaper,
        }
    }

    pub fn note(&self, means: CompactionMeans, took: Duration, nr_pages: usize) {
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
