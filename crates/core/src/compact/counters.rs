//! What compaction did, under the names that Linux gives it in `/proc/vmstat`.

use std::ops::AddAssign;

/// Counters of one run, or summed up over many.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct CompactCounters {
    /// Runs for a wanted order that were begun.
    pub compact_stall: u64,
    /// Those of them after which a run of the wanted order was free.
    pub compact_success: u64,
    /// The others.
    pub compact_fail: u64,
    /// Units isolated: those of folios that were to be moved, and free ones for them to move to.
    pub compact_isolated: u64,
    /// Units that the migrate scanner looked at.
    pub compact_migrate_scanned: u64,
    /// Units that the free scanner looked at.
    pub compact_free_scanned: u64,
    /// Units of folios that were moved: each of them was copied once.
    pub pgmigrate_success: u64,
    /// Units of folios whose move was tried and failed, because they were busy or gone.
    pub pgmigrate_fail: u64,
}

impl AddAssign for CompactCounters {
    fn add_assign(&mut self, other: CompactCounters) {
        self.compact_stall += other.compact_stall;
        self.compact_success += other.compact_success;
        self.compact_fail += other.compact_fail;
        self.compact_isolated += other.compact_isolated;
        self.compact_migrate_scanned += other.compact_migrate_scanned;
        self.compact_free_scanned += other.compact_free_scanned;
        self.pgmigrate_success += other.pgmigrate_success;
        self.pgmigrate_fail += other.pgmigrate_fail;
    }
}
