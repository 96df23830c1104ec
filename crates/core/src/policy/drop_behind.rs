//! Drop-behind: whether folios that a stream has passed should leave RAM first.
//!
//! A program that streams through more than its budget will not find what it passed in RAM when it comes round again,
//! whatever is kept; dropping that first keeps the rest of the program's memory in. A program whose stream fits wants
//! the opposite. So it is off until streams have passed a whole budget's worth of folios, and goes off again when what
//! was dropped is wanted back while still at hand; each time it was wrong it asks for twice as much before it tries
//! again.
//!
//! **Locking.** One mutex, a leaf; nothing allocates.

use crate::sync::{Mutex, lock};

/// Refaults that switch it off: an eighth of what was dropped since it went on, and at least this many.
const REFAULTS_MIN: usize = 8;
/// The most budgets' worth that streams have to pass before it goes on.
const BUDGETS_MAX: usize = 1024;

#[derive(Default)]
struct Record {
    on: bool,
    /// Folios passed since it went off, or since it went on.
    passed: usize,
    refaults: usize,
    /// Log2 of the budgets' worth of folios to be passed before it goes on.
    doubled: u32,
}

/// Whether an arena drops behind its streams.
pub struct DropBehind {
    record: Mutex<Record>,
}

impl DropBehind {
    /// Off, nothing passed.
    pub fn new() -> Self {
        DropBehind { record: Mutex::new(Record::default()) }
    }

    /// A stream has passed `nr_folios`; the arena's budget holds `budget_folios`. Says whether to drop them now.
    pub fn passed(&self, nr_folios: usize, budget_folios: usize) -> bool {
        let mut record = lock(&self.record);
        record.passed = record.passed.saturating_add(nr_folios);
        if !record.on && record.passed >= budget_folios.max(1).saturating_mul(1 << record.doubled) {
            (record.on, record.passed, record.refaults) = (true, 0, 0);
        }
        record.on
    }

    /// A folio that was dropped behind a stream has been touched again while it was still in RAM.
    pub fn refaulted(&self) {
        let mut record = lock(&self.record);
        if !record.on {
            return;
        }
        record.refaults += 1;
        if record.refaults >= REFAULTS_MIN.max(record.passed / 8) {
            (record.on, record.passed, record.refaults) = (false, 0, 0);
            record.doubled = (record.doubled + 1).min(BUDGETS_MAX.ilog2());
        }
    }

    /// Whether passed folios are to be dropped.
    pub fn is_on(&self) -> bool {
        lock(&self.record).on
    }
}

impl Default for DropBehind {
    fn default() -> Self {
        DropBehind::new()
    }
}

impl std::fmt::Debug for DropBehind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DropBehind").field("on", &self.is_on()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_on_after_a_whole_budget() {
        let drop_behind = DropBehind::new();
        assert!(!drop_behind.passed(60, 100));
        assert!(!drop_behind.passed(39, 100));
        assert!(drop_behind.passed(1, 100));
        assert!(drop_behind.is_on());
    }

    #[test]
    fn refaults_switch_it_off_and_double_what_it_asks_for() {
        let drop_behind = DropBehind::new();
        let mut needed = 100;
        for _ in 0..12 {
            assert!(!drop_behind.passed(needed - 1, 100));
            assert!(drop_behind.passed(1, 100));
            for _ in 0..REFAULTS_MIN {
                assert!(drop_behind.is_on());
                drop_behind.refaulted();
            }
            assert!(!drop_behind.is_on());
            needed = (needed * 2).min(100 * BUDGETS_MAX);
        }
    }

    #[test]
    fn few_refaults_among_many_are_forgiven() {
        let drop_behind = DropBehind::new();
        drop_behind.passed(100, 100);
        drop_behind.passed(1000, 100);
        (0..124).for_each(|_| drop_behind.refaulted());
        assert!(drop_behind.is_on());
        drop_behind.refaulted();
        assert!(!drop_behind.is_on());
    }
}
