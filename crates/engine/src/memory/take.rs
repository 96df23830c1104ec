//! Takes frames without waiting, and gives them the kind of memory that a folio needs.
//!
//! Frames are free ones, or those of clean folios, whose copies stay on their devices. A thread that takes frames may
//! hold one block's lock. Other blocks are only tried for. Memory is a huge page, or small pages.

use folioswap_core::{Ahead, CpuId, FrameId, List, Locked, Memory, Order, Size, Taken, Zone};

use crate::memory::frames::Prepared;
use crate::memory::map_error::{MapError, patiently};
use crate::memory::oldest::{OldestFolios, SCAN, older_class};
use crate::memory::ram::Ram;
use crate::memory::table::Table;
use crate::process::cpu::current_cpu;

impl Ram {
    /// Contiguous free frames, or those of the oldest clean folio. `reserve` frames stay available.
    pub fn try_take(&self, table: &Table, order: Order, reserve: usize) -> Option<Taken> {
        self.try_take_near(table, current_cpu(), order, reserve)
    }

    /// As [`Ram::try_take`], for use on another CPU: from that CPU's zone if possible.
    pub fn try_take_near(&self, table: &Table, cpu: CpuId, order: Order, reserve: usize) -> Option<Taken> {
        if reserve == 0
            && let Some(taken) = self.zones().take_listed(cpu, order)
        {
            return Some(taken); // from the CPU's own list
        }
        let zone = self.zones().on(cpu);
        let counts = zone.counts();
        if counts.available() <= counts.watermarks.low + counts.kept_whole {
            self.reclaim_wanted().signal();
        }
        let wanted = reserve + order.nr_pages();
        if counts.available() < wanted && self.zones().counts().available() < wanted {
            return None;
        }
        for _ in 0..SCAN {
            let taken = self.note_taken(self.zones().take_on(cpu, order));
            if taken.is_some() || !self.evict_standby_near(table, cpu, order) {
                return taken;
            }
        }
        None
    }

    /// As [`Ram::try_take`], in one zone.
    pub fn try_take_in(&self, table: &Table, zone: &Zone, order: Order, reserve: usize) -> Option<Taken> {
        if zone.counts().available() < reserve + order.nr_pages() {
            return None;
        }
        for _ in 0..SCAN {
            let taken = self.take_now_in(zone, order);
            if taken.is_some() || !self.evict_standby_of(table, zone, order) {
                return taken;
            }
        }
        None
    }

    /// Contiguous frames of a zone that are free now.
    pub fn take_now_in(&self, zone: &Zone, order: Order) -> Option<Taken> {
        self.note_taken(zone.take_on(current_cpu(), order))
    }

    fn note_taken(&self, taken: Option<Taken>) -> Option<Taken> {
        if taken.is_some_and(|taken| taken.memory == Memory::Absent) {
            self.note_resident();
        }
        taken
    }

    /// Evicts a clean folio that helps a folio of this order, the oldest of the CPU's zone or else of another. Its copy
    /// stays on the device. Zones over their budget come last, because evicting there frees nothing for others.
    fn evict_standby_near(&self, table: &Table, cpu: CpuId, order: Order) -> bool {
        if let [only] = self.zones().all() {
            return self.evict_standby_of(table, only, order);
        }
        let zones =
            |in_excess: bool| self.zones().near(cpu).filter(move |zone| (zone.counts().excess > 0) == in_excess);
        zones(false).chain(zones(true)).any(|zone| self.evict_standby_of(table, zone, order))
    }

    /// As [`Ram::evict_standby_of`], in any zone.
    pub fn evict_standby(&self, table: &Table, order: Order) -> bool {
        self.evict_standby_near(table, current_cpu(), order)
    }

    /// As [`Ram::evict_standby_near`], in one zone.
    pub fn evict_standby_of(&self, table: &Table, zone: &Zone, order: Order) -> bool {
        let size = match Size::of(order) {
            Size::Whole => Some(Size::Whole),
            Size::Small => older_class(zone, List::Clean),
        };
        let Some(size) = size else { return false };
        let mut oldest = OldestFolios::new(|block| table.try_lock(block), zone, size, List::Clean);
        let Some((locked, index, _)) = oldest.next() else { return false };
        self.leave(locked, index);
        true
    }

    /// Frees the frames of a clean folio. Its copy stays on the device.
    pub fn leave(&self, locked: &mut Locked<'_>, index: usize) {
        assert!(locked.folio(index).slot().is_some(), "a folio leaves RAM once a device holds it");
        let frame = locked.frame(index);
        if locked.folio(index).ahead == Ahead::Neighbour {
            self.neighbours().unused(locked.id());
        }
        locked.left_at = self.note_evicted(locked.order().nr_pages());
        let left_at = locked.left_at;
        locked.folio_mut(index).set_evicted(left_at);
        self.release(frame);
    }

    /// Gives memory of the right kind to frames that were taken for a folio of this order.
    pub fn prepare(&self, taken: Taken, order: Order) -> Prepared<'_> {
        let frame = self.give_memory(taken, order);
        // SAFETY: the caller took the frames from the zone and hands them over here. They have just been given memory.
        unsafe { self.frames().prepared(frame, order) }
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
        // SAFETY: the caller took the whole pageblock from its zone, so nobody else uses it.
        unsafe { self.backing().make_small(taken) };
        let frame = self.zone(taken.frame).carve(taken.frame, order);
        self.frame_freed().signal();
        frame
    }

    /// Decides about the memory of a pageblock that was taken whole. `Some`: whether it has a huge page now; it keeps
    /// small pages if the kernel has no huge one. `None`: it has no memory now, and needs [`Ram::populate_huge`].
    fn settle_memory(&self, taken: Taken) -> Option<bool> {
        let frame = taken.frame;
        let is_huge = match taken.memory {
            Memory::Huge => return Some(true),
            Memory::Absent => return None,
            Memory::Small if self.frames().is_locked() => self.backing().collapse_in_place(frame),
            Memory::Small if self.backing().tries_huge_page() => {
                // SAFETY: the caller took the whole pageblock from its zone, so nobody else uses it.
                unsafe { self.backing().unpopulate(frame) };
                return None;
            }
            Memory::Small => false,
        };
        if !is_huge {
            self.zone(frame).carve(frame, Order::HUGE);
        }
        Some(is_huge)
    }

    /// Gives a huge page to a pageblock without memory. `false`: it got small pages, because the kernel had no huge
    /// page.
    fn populate_huge(&self, frame: FrameId) -> Result<bool, MapError> {
        // SAFETY: the caller took the whole pageblock from its zone, so nobody else uses it.
        let is_huge = unsafe { self.mapper().populate(self.frames().home(frame)) }?;
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
        self.backing().note_no_huge_page();
        self.zone(frame).carve(frame, Order::HUGE);
    }

    /// Counts a first touch of a whole folio, and takes a zeroed pageblock for it.
    pub fn take_zeroed(&self) -> Option<FrameId> {
        let (taken, wants_more) = self.stock().take_on(self.zones(), current_cpu());
        if wants_more {
            self.demand().begin();
            self.stock().want();
        }
        taken
    }

    /// Gives the stock of zeroed pageblocks back to the zones. Returns whether there was any.
    pub fn give_stock_back(&self) -> bool {
        let mut any = false;
        while let Some(frame) = self.stock().pop() {
            self.release(frame);
            any = true;
        }
        any
    }
}
