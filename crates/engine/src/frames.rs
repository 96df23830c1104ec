//! The budget's memory: a home address for each block of frames, and access to what is at home.

use folioswap_core::{FrameId, Locked, Order};
use folioswap_sys::memory::{self, Reservation};

use crate::error::Error;

/// Fresh pages that may be in the making at the same time.
const NURSERY_BLOCKS: usize = 8;

/// The addresses of all blocks' homes, and the nursery behind them.
pub(crate) struct Frames {
    homes: Reservation,
    order: Order,
    nr_blocks: usize,
}

impl Frames {
    /// Reserves addresses for `nr_blocks` blocks; no memory yet.
    pub fn new(order: Order, nr_blocks: usize) -> Result<Self, Error> {
        let len = (nr_blocks + NURSERY_BLOCKS) * order.bytes();
        let homes = Reservation::new(len, Order::HUGE.bytes()).map_err(Error::system("reserving frames"))?;
        memory::protect_rw(homes.addr(), len).map_err(Error::system("reserving frames"))?;
        if order == Order::HUGE {
            memory::advise_hugepage(homes.addr(), len).map_err(Error::system("asking for huge pages"))?;
        } else {
            // A huge page cannot be split while I/O runs on a part of it: blocks of small folios never are one.
            memory::advise_nohugepage(homes.addr(), len).map_err(Error::system("asking for small pages"))?;
        }
        memory::dontfork(homes.addr(), len).map_err(Error::system("keeping frames from children"))?;
        Ok(Frames { homes, order, nr_blocks })
    }

    pub fn home(&self, frame: FrameId) -> usize {
        assert!(frame.index() < self.nr_blocks);
        self.homes.addr() + frame.index() * self.order.bytes()
    }

    /// The range of all homes, without the nursery.
    pub fn range(&self) -> std::ops::Range<usize> {
        self.homes.addr()..self.homes.addr() + self.nr_blocks * self.order.bytes()
    }

    /// The nursery's range, behind the homes.
    pub fn nursery(&self) -> std::ops::Range<usize> {
        let end = self.range().end;
        end..end + NURSERY_BLOCKS * self.order.bytes()
    }

    /// The bytes of a block that is at home and that `_lock`'s holder owns: its folio is unmapped, or the block was
    /// just taken from the zone for it.
    #[allow(clippy::mut_from_ref)] // one block, one owner: the folio's lock is the proof, not the borrow of all frames
    pub fn bytes<'l>(&self, frame: FrameId, _lock: &'l Locked<'_>) -> &'l mut [u8] {
        // SAFETY: the range lies within the reservation (asserted by `home`), is readable and writable anonymous
        // memory that is present (callers populate a block before they use it, and it is not mapped elsewhere while
        // the folio is unmapped), and nobody else refers to it: a block is used by the holder of its folio's lock only.
        unsafe { std::slice::from_raw_parts_mut(self.home(frame) as *mut u8, self.order.bytes()) }
    }

    /// Gives the block's memory back to the kernel.
    pub fn unpopulate(&self, frame: FrameId) {
        if let Err(error) = memory::dontneed(self.home(frame), self.order.bytes()) {
            crate::fatal::say(&format!("a frame could not be given back: {error}"));
        }
    }
}
