//! Counts of pages that are mapped, and of those that left RAM.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use folioswap_core::PAGE_SIZE;

/// The counts of an arena.
#[derive(Default)]
pub(crate) struct PageCounts {
    nr_mapped: AtomicUsize,
    nr_evictions: AtomicU32,
}

impl PageCounts {
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

    /// Counts pages that leave RAM. Returns the count before; it wraps.
    pub fn note_evicted(&self, nr_pages: usize) -> u32 {
        self.nr_evictions.fetch_add(nr_pages as u32, Ordering::Relaxed)
    }

    /// Pages evicted so far; wraps.
    pub fn nr_evictions(&self) -> u32 {
        self.nr_evictions.load(Ordering::Relaxed)
    }
}
