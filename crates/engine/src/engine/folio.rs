//! What happens to a folio at hand, whose block is locked: it is mapped, unmapped, or dropped. Swap-in and swap-out are
//! built from these steps, which change the folio table, RAM and the swap space together.

use std::ops::Range;

use folioswap_core::{FrameId, List, Locked, Memory, Order, PAGE_SIZE, Phase, State};

use super::Engine;
use crate::memory::mapper::{MapError, patiently};
use crate::process::fatal;
use crate::process::stopwatch::Stopwatch;

impl Engine {
    /// The address, the home address and the length in bytes of a folio of a locked block.
    fn places(&self, locked: &Locked<'_>, index: usize, frame: FrameId) -> (usize, usize, usize) {
        (self.table.addr(locked.name(index)), self.ram.frames().home(frame), locked.order().bytes())
    }

    /// Maps a folio of a locked block from its home to its address, and puts it on `list`.
    pub fn map(&self, locked: &mut Locked<'_>, index: usize, frame: FrameId, list: List) {
        self.clear_table(locked);
        self.end_lost_folio(locked, index);
        let (addr, home, len) = self.places(locked, index, frame);
        // SAFETY: the folio's place and its frames' home; the block is locked.
        patiently("mapped", || unsafe { self.ram.mapper().map(addr, home, len) });
        // A whole folio may consist of small pages, if the kernel had no huge page.
        locked.small_table |= locked.order() < Order::HUGE || self.ram.zone(frame).memory(frame) != Memory::Huge;
        self.note_mapped(locked, index, frame, list);
    }

    /// Maps a whole block like [`Engine::map`], but with fresh, zeroed memory instead of the content at home.
    pub fn map_fresh(&self, locked: &mut Locked<'_>, frame: FrameId, list: List, watch: &mut Stopwatch<'_>) {
        self.clear_table(locked);
        let (addr, home, _) = self.places(locked, 0, frame);
        // SAFETY: the folio's place and its frames' home; the block is locked.
        if !patiently("made", || unsafe { self.ram.mapper().map_fresh(addr, home) }) {
            self.ram.note_small(frame);
            locked.small_table = true;
        }
        watch.lap(Phase::Frame); // allocating and clearing the page takes all but a microsecond
        self.note_mapped(locked, 0, frame, list);
    }

    /// Moving a huge page to addresses that have a page table of small pages would split it, so the table is dropped
    /// first. Before Linux 6.14 the table stays, and the huge page is split.
    fn clear_table(&self, locked: &mut Locked<'_>) {
        if locked.order() == Order::HUGE && locked.small_table {
            let addr = self.table.block_addr(locked.id());
            // SAFETY: the caller has locked the block. Nothing of it is mapped, because its only folio is just being
            // brought in.
            if let Err(error) = unsafe { self.ram.frames().drop_memory(addr, Order::HUGE.bytes()) } {
                fatal::say(&format!("a block's page table could not be cleared: {error}"));
            }
            locked.small_table = false;
        }
    }

    /// Notes that a folio is mapped, and puts it on `list`.
    pub fn note_mapped(&self, locked: &mut Locked<'_>, index: usize, frame: FrameId, list: List) {
        let pages = locked.order().nr_pages();
        locked.folio_mut(index).set_in_ram(frame, true);
        self.ram.note_mapped(pages);
        if locked.pinned {
            self.ram.zone(frame).set_owner(frame, locked.name(index));
            self.ram.zone(frame).remove(frame);
        } else {
            self.ram.zone(frame).insert_for(locked.name(index), frame, list);
        }
    }

    /// Moves a mapped folio of a locked block to its home. Its frames stay on their list.
    pub fn unmap(&self, locked: &mut Locked<'_>, index: usize) -> Result<(), MapError> {
        // SAFETY: the folio's place and its frames' home; the block is locked.
        let unmap = |addr, home, len| unsafe { self.ram.mapper().unmap(addr, home, len) };
        match self.unmap_by(locked, index, unmap) {
            Err(MapError::Missing) if self.fill_gaps(locked, pages_of(locked, index)) => {
                self.unmap_by(locked, index, unmap)
            }
            unmapped => unmapped,
        }
    }

    /// As [`Engine::unmap`], for content that nobody needs any more.
    fn unmap_unneeded(&self, locked: &mut Locked<'_>, index: usize) -> Result<(), MapError> {
        // SAFETY: as in `unmap`.
        self.unmap_by(locked, index, |addr, home, len| unsafe { self.ram.mapper().unmap_unneeded(addr, home, len) })
    }

    /// Moves a mapped folio of a locked block to its home, into the laundry.
    pub fn unmap_to_laundry(&self, locked: &mut Locked<'_>, index: usize) -> Result<(), MapError> {
        self.unmap(locked, index)?;
        self.ram.put(locked.frame(index), List::Laundry);
        Ok(())
    }

    fn unmap_by(
        &self,
        locked: &mut Locked<'_>,
        index: usize,
        unmap: impl Fn(usize, usize, usize) -> Result<(), MapError>,
    ) -> Result<(), MapError> {
        let frame = locked.frame(index);
        let (addr, home, len) = self.places(locked, index, frame);
        if self.table.has_locked(&(addr..addr + len)) {
            return Err(MapError::Busy); // the kernel does not move it, and may not let it go
        }
        unmap(addr, home, len)?;
        locked.folio_mut(index).set_in_ram(frame, false);
        self.ram.note_unmapped(locked.order().nr_pages());
        Ok(())
    }

    /// Discards the content of all folios of a block. The block then reads as zero, as one folio.
    pub fn drop_block(&self, locked: &mut Locked<'_>) {
        for index in 0..locked.nr_folios() {
            self.drop_content(locked, index);
        }
        locked.join();
    }

    /// Discards the content of a folio, which then reads as zero. Its frames go back to the zone, its slots to the
    /// space.
    pub fn drop_content(&self, locked: &mut Locked<'_>, index: usize) {
        let frame = match locked.state(index) {
            State::Empty => return,
            State::Swapped(_) => None,
            State::Standby(frame) => Some(frame),
            State::Resident(frame) => match self.unmap_unneeded(locked, index) {
                Ok(()) => Some(frame),
                Err(error) => {
                    self.abandon(locked, index, error);
                    None
                }
            },
        };
        if let Some(frame) = frame {
            self.ram.release(frame);
        }
        self.release_slot(locked, index);
        self.end_lost_folio(locked, index);
        locked.folio_mut(index).set_empty();
    }

    /// Discards a mapped folio that cannot be moved (in use by a system call, or shared with a child). The kernel frees
    /// its pages when their last user is done; the frames get new memory.
    fn abandon(&self, locked: &mut Locked<'_>, index: usize, error: MapError) {
        let (frame, order, addr) = (locked.frame(index), locked.order(), self.table.addr(locked.name(index)));
        let pages = if locked.has_sealed() { order.nr_pages() } else { 1 };
        for at in (0..pages).filter(|page| !locked.is_sealed(index * order.nr_pages() + page)) {
            let len = order.bytes() / pages;
            // SAFETY: the caller has locked the block. These pages are managed, and their content no longer needed.
            if let Err(refused) = unsafe { self.ram.frames().drop_memory(addr + at * len, len) } {
                fatal::die(&format!("a folio could not be dropped: {error}, {refused}"));
            }
        }
        locked.folio_mut(index).set_out();
        self.free_lost(frame, order);
    }

    /// Frees the frames of a mapped folio whose pages have gone; they get new memory.
    pub fn free_lost(&self, frame: FrameId, order: Order) {
        self.ram.note_unmapped(order.nr_pages());
        if order == Order::HUGE && self.ram.frames().is_locked() {
            // SAFETY: the home of frames that the folio has just left; nobody else has them.
            if !patiently("made again", || unsafe { self.ram.mapper().populate(self.ram.frames().home(frame)) }) {
                self.ram.zone(frame).disown(frame); // it may still be on a list
                self.ram.note_small(frame);
            }
            self.ram.release(frame);
        } else if order == Order::HUGE {
            self.ram.release_unpopulated(frame);
            self.ram.frame_freed().signal();
        } else {
            // SAFETY: the folio has just left these frames, and nobody else has them.
            unsafe { self.ram.repopulate(frame, order) };
            self.ram.release(frame);
        }
    }

    /// Frees the slots that hold a folio's copy.
    pub fn release_slot(&self, locked: &mut Locked<'_>, index: usize) {
        if let Some(slot) = locked.folio(index).slot() {
            let order = locked.order();
            locked.folio_mut(index).set_slot(None);
            self.swap.free_slots(slot, order);
        }
    }

    /// Notes the copy of a folio of a locked block, if it keeps one.
    pub fn note_copy(&self, locked: &Locked<'_>, index: usize) {
        if let (Some(frame), Some(_)) = (locked.folio(index).frame(), locked.folio(index).slot()) {
            self.reclaim.kept_copies().note(frame);
        }
    }

    /// To be called before the bytes of a folio at home are changed: its copies become stale.
    pub fn spoil(&self, locked: &mut Locked<'_>, index: usize) {
        self.release_slot(locked, index);
        locked.folio_mut(index).cancel_write();
        self.ram.put(locked.frame(index), List::Laundry);
    }

    /// Forgets the loss of pages of a block, none of which is mapped, and removes their poison: they can be read again,
    /// or are no longer wanted.
    pub fn end_lost(&self, locked: &Locked<'_>, pages: Range<usize>) {
        for page in self.faults.lost().take(locked.id(), pages) {
            let addr = self.table.addr(locked.id().page(page));
            // SAFETY: the block is locked, and the page is not mapped, so only the poison marker is there.
            if let Err(error) = unsafe { self.ram.frames().drop_memory(addr, PAGE_SIZE) } {
                fatal::say(&format!("a page that was lost stays so: {error}"));
            }
        }
    }

    /// The same for a folio of a locked block.
    pub fn end_lost_folio(&self, locked: &Locked<'_>, index: usize) {
        self.end_lost(locked, pages_of(locked, index));
    }
}

/// The pages of a folio in its block.
pub(crate) fn pages_of(locked: &Locked<'_>, index: usize) -> Range<usize> {
    let nr_pages = locked.order().nr_pages();
    index * nr_pages..(index + 1) * nr_pages
}
