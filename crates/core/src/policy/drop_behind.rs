//! Drop-behind: whether to evict folios first that a stream has passed.
//!
//! A program that streams through more than its budget does not find the passed folios in RAM on its next round anyway;
//! dropping them first keeps the rest of its memory in RAM. If the stream fits the budget, the opposite is best. So
//! this is off until streams have passed a whole budget of folios, and off again when dropped folios refault. After
//! each such mistake it waits for twice as many folios.
//!
//! Of what a stream finds, only what was swapped in is dropped ([`Stay`]): the rest stays for its next round.
//!
//! **Locking.** One mutex, a leaf; nothing allocates.

use crate::sync::{Mutex, lock};

/// Refaults that switch it off: an eighth of the folios passed since it went on, and at least this many.
const REFAULTS_MIN: usize = 8;
/// The most budgets that streams have to pass before it goes on.
const BUDGETS_MAX: usize = 1024;

/// What a folio's stay in RAM says to streams that pass it.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub enum Stay {
    /// It was there before, or was filled there: a stream leaves it where it is.
    #[default]
    Kept,
    /// It was swapped in, and no stream has passed it since.
    SwappedIn,
    /// A stream has passed it. It is the next to be reclaimed, or was reclaimed for that.
    Dropped,
}

#[derive(Default)]
struct Record {
    on: bool,
    /// Folios passed since it last went on or off, and how many of them were in RAM before.
    passed: usize,
    kept: usize,
    refaults: usize,
    /// Log2 of the number of budgets to be passed before it goes on.
    doubled: u32,
}

/// Whether an arena drops folios behind its streams.
#[derive(Default)]
pub struct DropBehind {
    record: Mutex<Record>,
}

impl DropBehind {
    /// Records that a stream has passed `nr_folios`; the budget holds `budget_folios`. Returns whether to drop them
    /// now.
    pub fn passed(&self, nr_folios: usize, budget_folios: usize) -> bool {
        let mut record = lock(&self.record);
        record.passed = record.passed.saturating_add(nr_folios);
        if !record.on && record.passed >= budget_folios.max(1).saturating_mul(1 << record.doubled) {
            *record = Record { on: true, doubled: record.doubled, ..Record::default() };
        }
        record.on
    }

    /// Records that so many of the passed folios were in RAM before the stream came.
    pub fn kept(&self, nr_folios: usize) {
        lock(&self.record).kept += nr_folios;
    }

    /// Whether eviction by age would have kept a folio that was dropped: `nr_left` pages have left RAM since, which
    /// holds `ram_pages`. While streams pass what they find in RAM, none leaves.
    pub fn left_early(&self, nr_left: usize, ram_pages: usize) -> bool {
        let record = lock(&self.record);
        nr_left * record.passed < ram_pages * record.passed.saturating_sub(record.kept)
    }

    /// Records that a folio dropped behind a stream was touched again while still in RAM, or so soon that eviction by
    /// age would have kept it.
    pub fn refaulted(&self) {
        let mut record = lock(&self.record);
        if !record.on {
            return;
        }
        record.refaults += 1;
        if record.refaults >= REFAULTS_MIN.max(record.passed / 8) {
            let doubled = (record.doubled + 1).min(BUDGETS_MAX.ilog2());
            *record = Record { doubled, ..Record::default() };
        }
    }

    /// Whether passed folios are to be dropped.
    pub fn is_on(&self) -> bool {
        lock(&self.record).on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_on_after_a_whole_budget() {
        let drop_behind = DropBehind::default();
        assert!(!drop_behind.passed(60, 100));
        assert!(!drop_behind.passed(39, 100));
        assert!(drop_behind.passed(1, 100));
        assert!(drop_behind.is_on());
    }

    #[test]
    fn refaults_switch_it_off_and_double_what_it_asks_for() {
        let drop_behind = DropBehind::default();
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
    fn folios_that_age_would_not_have_kept_did_not_leave_early() {
        let drop_behind = DropBehind::default();
        drop_behind.passed(100, 100);
        drop_behind.passed(120, 100);
        assert!(drop_behind.left_early(99, 100) && !drop_behind.left_early(100, 100));
        // A stream goes round and round through 1.2 times the RAM, and finds five sixths of it there.
        drop_behind.kept(100);
        assert!(drop_behind.left_early(16, 100) && !drop_behind.left_early(20, 100));
    }

    #[test]
    fn few_refaults_among_many_are_forgiven() {
        let drop_behind = DropBehind::default();
        drop_behind.passed(100, 100);
        drop_behind.passed(1000, 100);
        (0..124).for_each(|_| drop_behind.refaulted());
        assert!(drop_behind.is_on());
        drop_behind.refaulted();
        assert!(!drop_behind.is_on());
    }
}
