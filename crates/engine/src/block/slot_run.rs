//! A run of a block's slots: parts of the block that are contiguous on their device, and are read as one.

use std::ops::Range;

use folioswap_core::{BLOCK_PAGES, BLOCK_PIECES, DeviceId, PAGE_SIZE, PIECE, SlotId, State};

use super::Block;
use crate::device::checksum;
use crate::swap::health::SwapInError;

/// Parts of a block that are contiguous on the device.
pub(crate) struct SlotRun {
    pub slot: SlotId,
    pub pages: Range<usize>,
}

impl SlotRun {
    /// The first folios from `page` on that are only on the device and whose slots are contiguous.
    pub fn next(block: &Block<'_>, page: usize, device: DeviceId) -> Option<SlotRun> {
        let nr_pages = block.order().nr_pages();
        let mut found: Option<SlotRun> = None;
        for index in block.index_of(page)..block.nr_folios() {
            let slot = match block.state(index) {
                State::Swapped(slot) if block.swap().devices().device_of(slot) == device => Some(slot),
                _ => None,
            };
            match (&mut found, slot) {
                (Some(run), Some(slot)) if block.swap().devices().follows(slot, run.slot, run.pages.len()) => {
                    run.pages.end += nr_pages
                }
                (Some(_), _) => break,
                (None, Some(slot)) => found = Some(SlotRun { slot, pages: index * nr_pages..(index + 1) * nr_pages }),
                (None, None) => {}
            }
        }
        found
    }

    /// Gives each page its own hash where its piece has one, because the piece's pages may now be stored apart.
    pub async fn hash_pages(&self, block: &mut Block<'_>) -> Result<(), SwapInError> {
        if block.order() < PIECE {
            for page in self.pages.clone() {
                if block.piece_hash(page / PIECE.nr_pages()).is_some() {
                    block.hash_pages(page, &mut []).await?;
                }
            }
        }
        Ok(())
    }

    /// Reads and verifies a part of a block that is about to be moved alone.
    pub async fn read_alone(&self, block: &mut Block<'_>, bytes: &mut [u8]) -> Result<(), SwapInError> {
        self.hash_pages(block).await?;
        self.read(block, bytes).await
    }

    pub async fn read(&self, block: &Block<'_>, bytes: &mut [u8]) -> Result<(), SwapInError> {
        let addr = block.table().addr(block.id().page(self.pages.start));
        let is_right = |bytes: &[u8]| self.is_right(block, bytes);
        block.swap().read_verified(addr, self.slot, bytes, None, is_right, block.waits()).await
    }

    /// Whether the bytes that were read of several folios are those that were written.
    fn is_right(&self, block: &Block<'_>, bytes: &[u8]) -> bool {
        let order = block.order();
        let mut page = self.pages.start;
        while page < self.pages.end {
            let at = (page - self.pages.start) * PAGE_SIZE;
            let piece = page / PIECE.nr_pages();
            let as_one = block.piece_hash(piece);
            let (len, right) = match as_one {
                // The piece was written as one and is unchanged since, so all of it was read.
                Some(hash) if order < PIECE => {
                    (PIECE.nr_pages(), checksum::hash(block.key(), &bytes[at..at + PIECE.bytes()]) == hash)
                }
                _ => (order.nr_pages(), checksum::verify(block, page, &bytes[at..at + order.bytes()])),
            };
            if !right {
                return false;
            }
            page += len;
        }
        debug_assert!(page <= BLOCK_PAGES && page.div_ceil(PIECE.nr_pages()) <= BLOCK_PIECES);
        true
    }
}
