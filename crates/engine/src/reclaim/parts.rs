//! Writes a block that is one folio in RAM in parts: because pages of it were dropped or never used and should cost no
//! I/O, or because there is no run of slots for the whole block.
//!
//! The parts are written from their home, and the huge page is freed whole. It is never split: the kernel would replace
//! its pages of zeros by the shared zero page, and Linux 6.18 fails to move those one by one (EEXIST for a page that it
//! has just moved).

use folioswap_core::{BLOCK_PAGES, BLOCK_PIECES, Order, PAGE_SIZE, PIECE};

use crate::block::Block;
use crate::device::checksum;
use crate::engine::Engine;
use crate::reclaim::evict::Washed;

/// Writes a block of the laundry in parts if some of its pages were dropped and are still zero. `None`: no page or
/// every page is.
pub(crate) fn wash_dropped(engine: &Engine, block: &mut Block<'_>) -> Option<Washed> {
    let dropped: Vec<usize> = block.take_dropped()?.collect();
    let bytes = engine.ram().frames().at_home(block, 0);
    let zero = |page: &usize| checksum::is_zero(&bytes[page * PAGE_SIZE..(page + 1) * PAGE_SIZE]);
    let empty: Vec<usize> = dropped.into_iter().filter(zero).collect();
    let mut in_pieces = empty.chunk_by(|a, b| a / PIECE.nr_pages() == b / PIECE.nr_pages());
    let pieces_only = in_pieces.all(|pages| pages.len() == PIECE.nr_pages());
    if empty.is_empty() || empty.len() == BLOCK_PAGES {
        return None;
    }
    Some(Washed::in_parts(block.write_parts(if pieces_only { PIECE } else { Order::PAGE })))
}

/// Whether more than half of a block's pieces are zeros: its first touch made all of it, and the program uses little.
pub fn uses_few(bytes: &[u8]) -> bool {
    bytes.chunks(PIECE.bytes()).filter(|piece| checksum::is_zero(piece)).count() > BLOCK_PIECES / 2
}
