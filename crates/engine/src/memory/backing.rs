//! The memory of frames: their homes, and what changes the pages there. A pageblock has a huge page, small pages, or
//! nothing yet. Nothing here knows which frames are free.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use folioswap_core::{FrameId, Memory, Order, PAGE_SIZE, Taken};
use folioswap_sys::memory;

use crate::memory::frames::Frames;
use crate::memory::map_error::patiently;
use crate::memory::mapper::Mapper;
use crate::process::fatal;
use crate::process::shared_stats::StatsHome;

/// Pageblocks that keep small pages after the kernel had no huge page, before it is asked again.
const NOT_TRIED: usize = 32;

/// How often a pageblock is tried whose pages may still be held by I/O that has just ended.
const DIVIDE_TRIES: usize = 20;
const COLLAPSE_TRIES: usize = 3;

/// The memory of an arena's frames.
pub(crate) struct Backing {
    frames: Frames,
    mapper: Box<dyn Mapper>,
    /// Pageblocks that keep their small pages before a huge page is tried again.
    nr_not_tried: AtomicUsize,
    stats: Arc<StatsHome>,
}

impl Backing {
    pub fn new(frames: Frames, mapper: Box<dyn Mapper>, stats: Arc<StatsHome>) -> Self {
        Backing { frames, mapper, nr_not_tried: AtomicUsize::new(0), stats }
    }

    pub fn frames(&self) -> &Frames {
        &self.frames
    }

    pub fn mapper(&self) -> &dyn Mapper {
        &*self.mapper
    }

    /// The addresses that are registered with the userfaultfd beside managed memory.
    pub fn registered(&self) -> impl Iterator<Item = Range<usize>> {
        let homes = self.mapper.registers_frames().then(|| self.frames.range());
        homes.into_iter().chain(self.frames.is_locked().then(|| self.frames.spare_pages()))
    }

    /// In a forked child: nothing is locked.
    pub fn forget_lock(&self) {
        self.frames.forget_lock();
        self.mapper.forget_lock();
    }

    /// Notes that the kernel had no huge page.
    pub fn note_no_huge_page(&self) {
        self.stats.thp_fault_fallback.add(1);
        self.nr_not_tried.store(NOT_TRIED, Ordering::Relaxed);
    }

    /// Whether the kernel had no huge page lately.
    pub fn lacks_huge_pages(&self) -> bool {
        self.nr_not_tried.load(Ordering::Relaxed) > 0
    }

    /// Whether the kernel is asked for a huge page again, for a pageblock that has small ones.
    pub fn tries_huge_page(&self) -> bool {
        let one_less = |nr_left: usize| nr_left.checked_sub(1);
        self.nr_not_tried.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_err()
    }

    /// Puts pages back at a home that has lost its own.
    ///
    /// # Safety
    /// The frames belong to the caller alone, as for [`Mapper`].
    pub unsafe fn repopulate(&self, frame: FrameId, order: Order) {
        // SAFETY: the home of frames that belong to the caller alone (its promise).
        patiently("made again", || unsafe { self.mapper.repopulate(self.frames.home(frame), order.bytes()) });
    }

    /// Gives a pageblock's memory back to the kernel.
    ///
    /// # Safety
    /// The pageblock belongs to the caller alone: taken from the zone, or free and isolated. No folio has its frames.
    pub unsafe fn unpopulate(&self, pageblock: FrameId) {
        // SAFETY: the home of a pageblock that belongs to the caller alone (its promise).
        if let Err(error) = unsafe { self.mapper.discard(self.frames.home(pageblock), Order::HUGE.bytes()) } {
            fatal::say(&format!("a frame could not be given back: {error}"));
        }
    }

    /// Gives small pages to a pageblock that was taken whole.
    ///
    /// # Safety
    /// The caller has taken the pageblock from its zone.
    pub unsafe fn make_small(&self, taken: Taken) {
        // SAFETY: nobody else uses the pageblock (the caller's promise).
        if taken.memory == Memory::Huge && self.frames.is_locked() && unsafe { self.divide_in_place(taken.frame) } {
            return;
        }
        if taken.memory != Memory::Absent {
            // SAFETY: as above.
            unsafe { self.unpopulate(taken.frame) };
        }
        // SAFETY: as above.
        patiently("made", || unsafe { self.mapper.populate_small(self.frames.home(taken.frame)) });
    }

    /// Splits the huge page of a free pageblock into small ones. `false`: the kernel does not split it because
    /// somebody, such as a pipe, holds a page of it that was once mapped by a folio.
    ///
    /// # Safety
    /// The caller has taken the pageblock from its zone.
    pub unsafe fn divide_in_place(&self, frame: FrameId) -> bool {
        let home = self.frames.home(frame);
        self.frames.with_spare_page(|spare_page| {
            let is_split = (0..DIVIDE_TRIES).any(|_| {
                // SAFETY: a page of a pageblock that the caller has taken, and a place that is lent to this call alone.
                let done = unsafe { self.mapper.move_home(spare_page, home, PAGE_SIZE) }.is_ok();
                if !done {
                    folioswap_sys::cpu::yield_now();
                }
                done
            });
            if is_split {
                // SAFETY: as above.
                patiently("divided", || unsafe { self.mapper.move_home(home, spare_page, PAGE_SIZE) });
            }
            is_split
        })
    }

    /// Makes a huge page of a free pageblock's small ones. `false`: it stays as it is.
    pub fn collapse_in_place(&self, frame: FrameId) -> bool {
        let collapse = || memory::collapse(self.frames.home(frame), Order::HUGE.bytes()).is_ok();
        let is_huge = (0..COLLAPSE_TRIES).any(|_| collapse());
        let counter = if is_huge { &self.stats.thp_collapse_alloc } else { &self.stats.thp_collapse_alloc_failed };
        counter.add(1);
        is_huge
    }
}
