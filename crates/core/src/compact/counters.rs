//! What compaction did, under the names of Linux's `/proc/vmstat`.

/// Counters of one run.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct CompactCounters {
    /// Runs begun for a wanted order.
    pub compact_stall: u64,
    /// Those that ended with a free run of the wanted order.
    pub compact_success: u64,
    /// Those that did not.
    pub compact_fail: u64,
    /// Units isolated: those of folios to be moved, and free ones as targets.
    pub compact_isolated: u64,
    /// Units that the migrate scanner examined.
    pub compact_migrate_scanned: u64,
    /// Units that the free scanner examined.
    pub compact_free_scanned: u64,
    /// Units of folios that were moved; each was copied once.
    pub pgmigrate_success: u64,
    /// Units of folios whose move was tried and failed, because they were busy or gone.
    pub pgmigrate_fail: u64,
}
