//! A block's content on its way: a buffer for it, and a run of its slots.

use folioswap_core::{BLOCK_PAGES, PAGE_SIZE, SlotId};

/// Memory for one block's content, aligned for direct I/O.
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    start: usize,
}

impl Buffer {
    pub fn new() -> Self {
        let bytes = vec![0; (BLOCK_PAGES + 1) * PAGE_SIZE];
        let start = bytes.as_ptr().align_offset(PAGE_SIZE);
        Buffer { bytes, start }
    }

    pub fn pages(&mut self, nr_pages: usize) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + nr_pages * PAGE_SIZE]
    }
}

/// Parts of a block that are contiguous on the device.
pub(crate) struct SlotRun {
    pub slot: SlotId,
    /// Pages of the block.
    pub pages: std::ops::Range<usize>,
}
