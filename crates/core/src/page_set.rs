//! A set of a block's pages.

use crate::order::{BLOCK_PAGES, PIECE};
use std::ops::Range;

/// One bit per page.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct PageSet([u64; BLOCK_PAGES / 64]);

impl PageSet {
    /// Adds pages.
    pub fn insert(&mut self, pages: Range<usize>) {
        pages.for_each(|page| self.0[page / 64] |= 1 << (page % 64));
    }

    /// Takes pages out.
    pub fn remove(&mut self, pages: Range<usize>) {
        pages.for_each(|page| self.0[page / 64] &= !(1 << (page % 64)));
    }

    /// Whether a page is in it.
    pub fn contains(&self, page: usize) -> bool {
        self.0[page / 64] >> (page % 64) & 1 == 1
    }

    /// Whether no page is in it.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }

    /// Whether all pages of the block are in it.
    pub fn is_full(&self) -> bool {
        self.0.iter().all(|&word| word == u64::MAX)
    }

    /// Whether each piece is in it completely or not at all.
    pub fn is_of_pieces(&self) -> bool {
        let mut pieces =
            (0..BLOCK_PAGES).step_by(PIECE.nr_pages()).map(|page| (self.0[page / 64] >> (page % 64)) as u16);
        pieces.all(|piece| piece == 0 || piece == u16::MAX)
    }

    /// Its pages in order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..BLOCK_PAGES).filter(move |&page| self.contains(page))
    }
}
