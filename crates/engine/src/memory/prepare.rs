//! Gives frames that were taken the kind of memory that a folio needs: a huge page, or small pages.

use std::sync::atomic::Ordering;

use folioswap_core::{FrameId, Memory, Order, Taken};

use crate::memory::frames::Prepared;
use crate::memory::mapper::{MapError, patiently};
use crate::memory::ram::Ram;

/// Pageblocks that keep small pages after the kernel had no huge page, before it is asked again.
const NOT_TRIED: usize = 32;

impl Ram {
    /// Gives memory of the right kind to frames that were taken for a folio of this order.
    pub fn prepare(&self, taken: Taken, order: Order) -> Prepared<'_> {
        let frame = self.give_memory(taken, order);
        // SAFETY: the caller took the frames from the zone and hands them over here. They have just been given memory.
        unsafe { self.frames.prepared(frame, order) }
    }

    fn give_memory(&self, taken: Taken, order: Order) -> FrameId {
        if order == Order::HUGE {
            if self.settle_memory(taken).is_none() {
                patiently("made", || self.populate_huge(taken.frame));
            }
            return taken.frame;
        }
        if taken.memory == Memory::Small && taken.order == order {
            return taken.frame;
        }
        self.make_small(taken);
        let frame = self.zone(taken.frame).carve(taken.frame, order);
        self.frame_freed().signal();
        frame
    }

    /// Decides about the memory of a pageblock that was taken whole. `Some`: whether it has a huge page now; it keeps
    /// small pages if the kernel has no huge one. `None`: it has no memory now, and needs [`Ram::populate_huge`].
    fn settle_memory(&self, taken: Taken) -> Option<bool> {
        let frame = taken.frame;
        match taken.memory {
            Memory::Huge => return Some(true),
            Memory::Absent => return None,
            Memory::Small if self.frames.is_locked() => return Some(self.collapse_in_place(frame)),
            Memory::Small => {}
        }
        let one_less = |nr_left: usize| nr_left.checked_sub(1);
        if self.huge_pages_short.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok() {
            self.zone(frame).carve(frame, Order::HUGE);
            return Some(false);
        }
        // SAFETY: the caller took the whole pageblock from its zone, so nobody else uses it.
        unsafe { self.frames.unpopulate(frame) };
        None
    }

    /// Gives a huge page to a pageblock without memory. `false`: it got small pages, because the kernel had no huge
    /// page.
    fn populate_huge(&self, frame: FrameId) -> Result<bool, MapError> {
        // SAFETY: the caller took the whole pageblock from its zone, so nobody else uses it.
        let is_huge = unsafe { self.mapper.populate(self.frames.home(frame)) }?;
        if !is_huge {
            self.note_small(frame);
        }
        Ok(is_huge)
    }

    /// Gives a huge page to a pageblock that was taken whole, ahead of demand. If there is no memory, the pageblock
    /// goes back to the zone without. Returns whether it got a huge page.
    pub fn try_make_huge(&self, taken: Taken) -> bool {
        match self.settle_memory(taken).map_or_else(|| self.populate_huge(taken.frame), Ok) {
            Ok(true) => return true,
            Ok(false) => self.release(taken.frame),
            Err(_) => self.release_unpopulated(taken.frame),
        }
        false
    }

    /// Notes that a pageblock that the caller holds got small pages instead of a huge page.
    pub fn note_small(&self, frame: FrameId) {
        self.stats.thp_fault_fallback.add(1);
        self.huge_pages_short.store(NOT_TRIED, Ordering::Relaxed);
        self.zone(frame).carve(frame, Order::HUGE);
    }

    /// Gives small pages to a pageblock that was taken whole.
    fn make_small(&self, taken: Taken) {
        // SAFETY: the caller took the whole pageblock from its zone, so nobody else uses it.
        if taken.memory == Memory::Huge && self.frames.is_locked() && unsafe { self.divide_in_place(taken.frame) } {
            return;
        }
        if taken.memory != Memory::Absent {
            // SAFETY: the caller took the whole pageblock from its zone, so nobody else uses it.
            unsafe { self.frames.unpopulate(taken.frame) };
        }
        // SAFETY: as above.
        patiently("made", || unsafe { self.mapper.populate_small(self.frames.home(taken.frame)) });
    }
}
