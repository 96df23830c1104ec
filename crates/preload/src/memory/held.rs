//! Folios that are held in RAM during a call, as many as the budget permits.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use folioswap::BLOCK_BYTES;

use crate::ground::{guard, state};
use crate::memory::resident;

/// The longest transfer for which folios are held at a time.
pub const PIECE_BYTES: usize = 4 << 20;

/// Bytes of the blocks that transfers with a [`Grant`] hold.
static GRANTED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Permission to hold more memory than [`PIECE_BYTES`] for a transfer.
pub struct Grant(usize);

impl Grant {
    /// `None`: transfers would hold more than a quarter of the budget.
    pub fn of(nr_bytes: usize) -> Option<Grant> {
        let most = state::space()?.memory() as usize / 4;
        let fits = |granted: usize| granted.checked_add(nr_bytes).filter(|&sum| sum <= most);
        GRANTED_BYTES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        Some(Grant(nr_bytes))
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        GRANTED_BYTES.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// Bytes of the blocks that a range overlaps.
pub fn span(range: &Range<usize>) -> usize {
    range.end.saturating_add(BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES - range.start / BLOCK_BYTES * BLOCK_BYTES
}

/// Keeps the folios of a range in RAM until dropped.
pub struct Held(Range<usize>);

impl Held {
    /// Holds the managed part of a range of at most [`PIECE_BYTES`], or for which there is a [`Grant`].
    pub fn new(addr: usize, len: usize) -> Held {
        let ours = len > 0 && state::overlaps(addr, len) && !guard::inside();
        let part = if ours { addr..addr + len } else { 0..0 };
        resident::hold_all(part.start, part.len());
        Held(part)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        resident::release(self.0.start, self.0.len());
    }
}

/// The length of the next piece to hold. A piece ends at a folio boundary.
pub fn piece(addr: usize, left: usize) -> usize {
    left.min(PIECE_BYTES - addr % BLOCK_BYTES)
}
