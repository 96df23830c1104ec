//! A buffer for a block's content on its way.

use std::io;

use folioswap_core::{BLOCK_PAGES, PAGE_SIZE};

/// Memory for one block's content, aligned for direct I/O.
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    start: usize,
}

impl Buffer {
    /// # Errors
    /// There is no memory for it.
    pub fn try_new() -> io::Result<Self> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact((BLOCK_PAGES + 1) * PAGE_SIZE)?;
        bytes.resize(bytes.capacity(), 0);
        let start = bytes.as_ptr().align_offset(PAGE_SIZE);
        Ok(Buffer { bytes, start })
    }

    /// # Panics
    /// If there is no memory for it.
    pub fn new() -> Self {
        Self::try_new().expect("there is memory for a block")
    }

    pub fn pages(&mut self, nr_pages: usize) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + nr_pages * PAGE_SIZE]
    }
}
