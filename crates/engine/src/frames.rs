//! The budget's memory: a home address for each frame, access to what is at home, and the making of fresh memory.
//!
//! A pageblock has a huge page at home or small pages. Small ones are made as such, never by splitting: a huge page
//! cannot be split while I/O runs on a part of it.

use std::sync::Mutex;

use folioswap_core::{FrameId, Locked, Order, PIECE};
use folioswap_sys::memory::{self, Reservation};

use crate::error::Error;

/// Fresh huge pages that may be in the making at the same time.
const NURSERY_BLOCKS: usize = 8;

/// Pageblocks of small pages that may be in the making at the same time.
const SMALL_NURSERY_BLOCKS: usize = 2;

/// Threads that may use scratch memory at the same time.
const SCRATCHES: usize = 4;

/// The addresses of all frames' homes, the nurseries behind them, and scratch memory.
pub(crate) struct Frames {
    homes: Reservation,
    len: usize,
    scratch: Reservation,
    free_scratch: Mutex<Vec<usize>>,
}

impl Frames {
    /// Reserves addresses for `nr_pageblocks` pageblocks; no memory yet.
    pub fn new(nr_pageblocks: usize) -> Result<Self, Error> {
        let block = Order::HUGE.bytes();
        let nurseries = (NURSERY_BLOCKS + SMALL_NURSERY_BLOCKS) * block;
        let len = nr_pageblocks * block;
        let homes = Reservation::new(len + nurseries, block).map_err(Error::system("reserving frames"))?;
        memory::protect_rw(homes.addr(), len + nurseries).map_err(Error::system("reserving frames"))?;
        memory::advise_hugepage(homes.addr(), len + NURSERY_BLOCKS * block)
            .map_err(Error::system("asking for huge pages"))?;
        let scratch = Reservation::new(SCRATCHES * PIECE.bytes(), PIECE.bytes())
            .and_then(|scratch| memory::protect_rw(scratch.addr(), scratch.len()).map(|()| scratch))
            .map_err(Error::system("reserving scratch memory"))?;
        let free_scratch = Mutex::new((0..SCRATCHES).map(|index| scratch.addr() + index * PIECE.bytes()).collect());
        let frames = Frames { homes, len, scratch, free_scratch };
        let small = frames.small_nursery();
        memory::advise_nohugepage(small.start, small.len()).map_err(Error::system("asking for small pages"))?;
        memory::dontfork(frames.homes.addr(), len + nurseries)
            .map_err(Error::system("keeping frames from children"))?;
        Ok(frames)
    }

    pub fn home(&self, frame: FrameId) -> usize {
        assert!(frame.offset_bytes() < self.len);
        self.homes.addr() + frame.offset_bytes()
    }

    /// The range of all homes, without the nurseries.
    pub fn range(&self) -> std::ops::Range<usize> {
        self.homes.addr()..self.homes.addr() + self.len
    }

    /// Where huge pages are made, behind the homes.
    pub fn nursery(&self) -> std::ops::Range<usize> {
        let end = self.range().end;
        end..end + NURSERY_BLOCKS * Order::HUGE.bytes()
    }

    /// Where small pages are made, behind that.
    pub fn small_nursery(&self) -> std::ops::Range<usize> {
        let end = self.nursery().end;
        end..end + SMALL_NURSERY_BLOCKS * Order::HUGE.bytes()
    }

    /// The bytes of a folio that is at home and whose block `_lock`'s holder has locked: the folio is unmapped, or its
    /// frames were just taken from the zone for it. Not to be used after the lock is given up.
    #[allow(clippy::mut_from_ref)] // one folio, one owner: its block's lock is the proof, not the borrow of all frames
    pub fn bytes(&self, frame: FrameId, order: Order, _lock: &Locked<'_>) -> &mut [u8] {
        assert!(frame.offset_bytes() + order.bytes() <= self.len);
        // SAFETY: the range lies within the reservation (asserted), is readable and writable anonymous memory that is
        // present (callers prepare frames before they use them, and they are not mapped elsewhere while at home), and
        // nobody else refers to it: frames are used by the holder of the lock of their folio's block only.
        unsafe { std::slice::from_raw_parts_mut(self.home(frame) as *mut u8, order.bytes()) }
    }

    /// Lends memory for one piece.
    pub fn with_scratch<R>(&self, work: impl FnOnce(&mut [u8]) -> R) -> R {
        let addr = loop {
            if let Some(addr) = self.free_scratch.lock().expect("nothing panics under this lock").pop() {
                break addr;
            }
            std::thread::yield_now();
        };
        assert!((self.scratch.addr()..self.scratch.addr() + self.scratch.len()).contains(&addr));
        // SAFETY: a piece of the reservation (asserted), readable and writable anonymous memory, taken from the list of
        // those that nobody uses, and given back after the borrow has ended.
        let result = work(unsafe { std::slice::from_raw_parts_mut(addr as *mut u8, PIECE.bytes()) });
        self.free_scratch.lock().expect("nothing panics under this lock").push(addr);
        result
    }

    /// Gives a pageblock's memory back to the kernel.
    pub fn unpopulate(&self, pageblock: FrameId) {
        if let Err(error) = memory::dontneed(self.home(pageblock), Order::HUGE.bytes()) {
            crate::fatal::say(&format!("a frame could not be given back: {error}"));
        }
    }
}
