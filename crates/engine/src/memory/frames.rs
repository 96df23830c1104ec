//! The budget's memory: a home address for each frame, access to the content at home, and the making of fresh memory.
//!
//! The homes of a zone's frames are contiguous. Each zone has its own nurseries: addresses where fresh pages are made.
//!
//! The bytes at a home have one owner: the holder of the lock of their folio's block ([`Frames::at_home`]), or, before
//! a folio has the frames, the caller that took them from the zone ([`Prepared`]).
//!
//! A pageblock has either a huge page at home or small pages. Small pages are allocated as such, not by splitting: a
//! huge page cannot be split while I/O runs on a part of it. The exception is a locked budget: there the huge page of a
//! free pageblock is split, so that its memory stays with the engine ([`crate::memory::mlock`]).

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use folioswap_core::{FrameId, Locked, Order, PAGE_SIZE, State, Zones};
use folioswap_sys::memory::{self, Reservation};

use crate::config::error::Error;
use crate::process::lent::Lent;
use crate::process::turns::Waits;

/// Huge pages that may be made at the same time; each zone has at least one place for it.
const NURSERY_BLOCKS: usize = 8;

/// Pageblocks of small pages that may be made at the same time; each zone has at least one place for it.
const SMALL_NURSERY_BLOCKS: usize = 2;

/// Bytes of addresses behind the homes of `nr_zones` zones: the nurseries, and a block for the spare pages.
pub(crate) fn bytes_behind_homes(nr_zones: usize) -> usize {
    (NURSERY_BLOCKS.max(nr_zones) + SMALL_NURSERY_BLOCKS.max(nr_zones) + 1) * Order::HUGE.bytes()
}

/// Folios that may be read by way of scratch memory at the same time.
const SCRATCHES: usize = 8;
/// Pages of scratch memory for one of them.
pub(crate) const SCRATCH_PAGES: usize = 64;
const SCRATCH_BYTES: usize = SCRATCH_PAGES * PAGE_SIZE;

/// Pageblocks of a locked budget that may be split at the same time.
const SPARE_PAGES: usize = 4;

/// The addresses of all frames' homes, the nurseries and spare pages behind them, and scratch memory.
pub(crate) struct Frames {
    homes: Reservation,
    len: usize,
    nr_zones: usize,
    /// Whether the budget is locked in RAM.
    is_locked: AtomicBool,
    lent_spare_pages: Lent<usize>,
    scratch: Reservation,
    lent_scratch: Lent<usize>,
}

impl Frames {
    /// Reserves addresses for `nr_pageblocks` pageblocks in `nr_zones` zones of equal size. They have no memory yet,
    /// and the homes cannot be used before [`Frames::open`].
    pub fn new(nr_pageblocks: usize, nr_zones: usize, is_locked: bool) -> Result<Self, Error> {
        let (block, behind) = (Order::HUGE.bytes(), bytes_behind_homes(nr_zones));
        let len = nr_pageblocks.next_multiple_of(nr_zones) * block;
        let homes = Reservation::undumped(len + behind, block).map_err(Error::system("reserving frames"))?;
        homes.protect_rw(homes.addr() + len..homes.range().end).map_err(Error::system("reserving frames"))?;
        memory::advise_hugepage(homes.addr(), len + NURSERY_BLOCKS.max(nr_zones) * block)
            .or_else(|error| if memory::has_huge_pages() { Err(error) } else { Ok(()) })
            .map_err(Error::system("asking for huge pages"))?;
        let scratch = Reservation::undumped(SCRATCHES * SCRATCH_BYTES, SCRATCH_BYTES)
            .and_then(|scratch| scratch.protect_rw(scratch.range()).map(|()| scratch))
            .map_err(Error::system("reserving scratch memory"))?;
        let lent_scratch = Lent::new((0..SCRATCHES).map(|index| scratch.addr() + index * SCRATCH_BYTES));
        let spare_pages = homes.addr() + len + behind - block;
        let lent_spare_pages = Lent::new((0..SPARE_PAGES).map(|index| spare_pages + index * Order::PAGE.bytes()));
        let frames =
            Frames { homes, len, nr_zones, is_locked: is_locked.into(), lent_spare_pages, scratch, lent_scratch };
        let small = frames.small_nursery();
        memory::advise_nohugepage(small.start, small.len()).map_err(Error::system("asking for small pages"))?;
        memory::dontfork(frames.homes.addr(), frames.homes.len())
            .map_err(Error::system("keeping frames from children"))?;
        Ok(frames)
    }

    /// Makes the homes of a budget of `nr_pageblocks` pageblocks accessible. With strict overcommit accounting
    /// (`vm.overcommit_memory=2`) the kernel charges them from then on.
    ///
    /// # Errors
    /// When the kernel does not grant that much memory.
    pub fn open(&self, nr_pageblocks: usize) -> Result<(), Error> {
        self.parts(0, nr_pageblocks)
            .try_for_each(|part| self.homes.protect_rw(part))
            .map_err(Error::system("getting memory for the budget"))
    }

    /// The homes that a budget of `more` pageblocks has and a budget of `less` has not. Zones use their first homes.
    pub fn parts(&self, less: usize, more: usize) -> impl Iterator<Item = Range<usize>> + '_ {
        let addresses = move |zone| {
            let homes = self.homes_of(zone);
            let [from, to] = [less, more].map(|nr| Zones::share(nr, self.nr_zones, zone) * Order::HUGE.bytes());
            assert!(to <= homes.len());
            homes.start + from..homes.start + to
        };
        (0..self.nr_zones).map(addresses).filter(|part| !part.is_empty())
    }

    /// The pageblocks that have a home.
    pub fn nr_pageblocks(&self) -> usize {
        self.len / Order::HUGE.bytes()
    }

    pub fn nr_zones(&self) -> usize {
        self.nr_zones
    }

    /// All of these addresses: homes, and what is behind them.
    pub fn all(&self) -> Range<usize> {
        self.homes.range()
    }

    /// In a forked child: nothing is locked in RAM.
    pub fn forget_lock(&self) {
        self.is_locked.store(false, Ordering::Relaxed);
    }

    pub fn homes_of(&self, zone: usize) -> Range<usize> {
        self.part_of(self.range(), zone)
    }

    /// Where the zone's huge pages are made.
    pub fn nursery_of(&self, zone: usize) -> Range<usize> {
        self.part_of(self.nursery(), zone)
    }

    /// Where the zone's small pages are made.
    pub fn small_nursery_of(&self, zone: usize) -> Range<usize> {
        self.part_of(self.small_nursery(), zone)
    }

    fn part_of(&self, all: Range<usize>, zone: usize) -> Range<usize> {
        let len = all.len() / Order::HUGE.bytes() / self.nr_zones * Order::HUGE.bytes();
        all.start + zone * len..all.start + (zone + 1) * len
    }

    pub fn home(&self, frame: FrameId) -> usize {
        assert!(frame.offset_bytes() < self.len);
        self.homes.addr() + frame.offset_bytes()
    }

    /// The range of all homes, without the nurseries.
    pub fn range(&self) -> Range<usize> {
        self.homes.addr()..self.homes.addr() + self.len
    }

    /// Where huge pages are made: behind the homes.
    pub fn nursery(&self) -> Range<usize> {
        let end = self.range().end;
        end..end + NURSERY_BLOCKS.max(self.nr_zones) * Order::HUGE.bytes()
    }

    /// Where small pages are made: behind the nursery.
    pub fn small_nursery(&self) -> Range<usize> {
        let end = self.nursery().end;
        end..end + SMALL_NURSERY_BLOCKS.max(self.nr_zones) * Order::HUGE.bytes()
    }

    /// Spare pages: addresses without memory behind the nurseries. One page of a pageblock is moved there and back to
    /// split it.
    pub fn spare_pages(&self) -> Range<usize> {
        let end = self.small_nursery().end;
        end..end + Order::HUGE.bytes()
    }

    /// All addresses behind the homes.
    pub fn behind(&self) -> Range<usize> {
        self.nursery().start..self.spare_pages().end
    }

    /// Whether the budget is locked in RAM.
    pub fn is_locked(&self) -> bool {
        self.is_locked.load(Ordering::Relaxed)
    }

    /// Lends a spare page, an address without memory for one page. It must be without memory again afterwards.
    pub fn with_spare_page<R>(&self, work: impl FnOnce(usize) -> R) -> R {
        self.lent_spare_pages.with(|&mut spare_page| work(spare_page))
    }

    /// Frames whose bytes are written before any folio has them.
    ///
    /// # Safety
    /// The caller has taken the frames from their zone for one folio of this order. They have memory at home. Nothing
    /// else gets them before [`Prepared::into_frame`] returns them.
    pub unsafe fn prepared(&self, frame: FrameId, order: Order) -> Prepared<'_> {
        Prepared { frames: self, frame, order }
    }

    /// The bytes of a folio of a locked block that is at home: in RAM and not mapped.
    ///
    /// # Panics
    /// If the folio is not at home.
    pub fn at_home<'l>(&'l self, locked: &'l Locked<'_>, index: usize) -> &'l [u8] {
        let State::Standby(frame) = locked.state(index) else {
            panic!("only what is in RAM and not mapped is at home")
        };
        // SAFETY: these are the folio's own frames, at home (checked). The borrow keeps the block locked and the folio
        // in this state.
        unsafe { self.bytes_at_home(frame, locked.order()) }
    }

    /// The same, mutable.
    ///
    /// # Panics
    /// As [`Frames::at_home`].
    pub fn at_home_mut<'l>(&'l self, locked: &'l mut Locked<'_>, index: usize) -> &'l mut [u8] {
        let State::Standby(frame) = locked.state(index) else {
            panic!("only what is in RAM and not mapped is at home")
        };
        // SAFETY: as in `at_home`. The lock is borrowed mutably, so this is the only reference.
        unsafe { &mut *self.memory(frame, locked.order()) }
    }

    /// The bytes of a folio at home, for callers that change the folio's entry while they use the bytes.
    ///
    /// # Safety
    /// The caller has locked the folio's block. While it uses the bytes it keeps that lock, neither maps the folio nor
    /// gives its frames away, and writes nothing there.
    pub unsafe fn bytes_at_home(&self, frame: FrameId, order: Order) -> &[u8] {
        // SAFETY: within the homes (asserted), and readable; content at home is present. Nobody writes it: frames
        // belong to the holder of the lock of their folio's block, which is the caller.
        unsafe { &*self.memory(frame, order) }
    }

    /// Copies the content of one home to another.
    ///
    /// # Safety
    /// Both homes have memory. The caller has locked the block of the folio at `from`, and owns the frames at `to`
    /// (taken or isolated). There are no references to either.
    pub unsafe fn copy_home(&self, to: FrameId, from: FrameId, order: Order) {
        assert!(to != from);
        // SAFETY: both are within the homes (asserted). The frames differ, so their homes do not overlap. They are the
        // caller's (its promise).
        unsafe { (*self.memory(to, order)).copy_from_slice(&*self.memory(from, order)) }
    }

    /// Zeroes a pageblock at home.
    ///
    /// # Safety
    /// The caller has taken the pageblock from the zone, and no folio has it yet.
    pub unsafe fn clear(&self, pageblock: FrameId) {
        // SAFETY: within the homes (asserted), readable and writable anonymous memory. There are no other references:
        // frames taken from the zone belong to their taker.
        unsafe { (*self.memory(pageblock, Order::HUGE)).fill(0) }
    }

    /// The home of a folio: readable and writable anonymous memory of the reservation.
    fn memory(&self, frame: FrameId, order: Order) -> *mut [u8] {
        assert!(frame.offset_bytes() + order.bytes() <= self.len);
        std::ptr::slice_from_raw_parts_mut(self.home(frame) as *mut u8, order.bytes())
    }

    /// Lends scratch memory: `SCRATCH_PAGES` pages of anything. The caller waits for nothing but a read before it
    /// gives that back.
    pub async fn scratch(&self, waits: Waits<'_>) -> Scratch<'_> {
        let lent = &self.lent_scratch;
        let addr = waits.until(|| lent.take(), || lent.try_take()).await;
        assert!((self.scratch.addr()..self.scratch.addr() + self.scratch.len()).contains(&addr));
        Scratch { lent, addr }
    }
}

/// Frames with memory at home that were taken for a folio and that nothing else knows yet. Dropping it does not free
/// them.
pub(crate) struct Prepared<'f> {
    frames: &'f Frames,
    frame: FrameId,
    order: Order,
}

impl Prepared<'_> {
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: present and owned by this value alone ([`Frames::prepared`]); borrowed with it.
        unsafe { &*self.frames.memory(self.frame, self.order) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, borrowed mutably.
        unsafe { &mut *self.frames.memory(self.frame, self.order) }
    }

    /// The frames, to be given to the folio or back to the zone.
    pub fn into_frame(self) -> FrameId {
        self.frame
    }
}

/// Scratch memory that is lent. Given back when it is dropped.
pub(crate) struct Scratch<'f> {
    lent: &'f Lent<usize>,
    addr: usize,
}

impl Scratch<'_> {
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: a part of the reservation ([`Frames::scratch`]), readable and writable anonymous memory, lent to this
        // value alone; borrowed with it.
        unsafe { std::slice::from_raw_parts_mut(self.addr as *mut u8, SCRATCH_BYTES) }
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        self.lent.give_back(self.addr);
    }
}
