//! Maps, unmaps and drops folios: the folio table, RAM and the swap space change together.

use std::ops::Range;

use folioswap_core::{FrameId, List, Locked, Memory, Order, PAGE_SIZE, Phase, State};
use folioswap_sys::uffd::MoveError;

use super::Block;
use crate::memory::mapper::{MapError, patiently};
use crate::process::fatal;
use crate::process::stopwatch::Stopwatch;

/// Content of new pages.
pub(crate) static ZEROS: [u8; PAGE_SIZE] = [0; PAGE_SIZE];

/// The pages of a folio in its block.
pub(crate) fn pages_of(locked: &Locked<'_>, index: usize) -> Range<usize> {
    let nr_pages = locked.order().nr_pages();
    index * nr_pages..(index + 1) * nr_pages
}

impl Block<'_> {
    /// The address, the home address and the length in bytes of a folio.
    fn places(&self, index: usize, frame: FrameId) -> (usize, usize, usize) {
        (self.table().addr(self.name(index)), self.ram().frames().home(frame), self.order().bytes())
    }

    /// Maps a folio from its home to its address, and puts it on `list`.
    pub fn map(&mut self, index: usize, frame: FrameId, list: List) {
        self.clear_table();
        self.end_lost_folio(index);
        let (addr, home, len) = self.places(index, frame);
        // SAFETY: the folio's place and its frames' home; the block is locked.
        patiently("mapped", || unsafe { self.ram().mapper().map(addr, home, len) });
        // A whole folio may consist of small pages, if the kernel had no huge page.
        self.small_table |= self.order() < Order::HUGE || self.ram().zone(frame).memory(frame) != Memory::Huge;
        self.note_mapped(index, frame, list);
    }

    /// Maps a whole block like [`Block::map`], but with fresh, zeroed memory instead of the content at home.
    pub fn map_fresh(&mut self, frame: FrameId, list: List, watch: &mut Stopwatch<'_>) {
        self.clear_table();
        let (addr, home, _) = self.places(0, frame);
        // SAFETY: the folio's place and its frames' home; the block is locked.
        if !patiently("made", || unsafe { self.ram().mapper().map_fresh(addr, home) }) {
            self.ram().note_small(frame);
            self.small_table = true;
        }
        watch.lap(Phase::Frame); // allocating and clearing the page takes all but a microsecond
        self.note_mapped(0, frame, list);
    }

    /// Moving a huge page to addresses that have a page table of small pages would split it, so the table is dropped
    /// first. Before Linux 6.14 the table stays, and the huge page is split.
    fn clear_table(&mut self) {
        if self.order() == Order::HUGE && self.small_table {
            let addr = self.table().block_addr(self.id());
            // SAFETY: the caller has locked the block. Nothing of it is mapped, because its only folio is just being
            // brought in.
            if let Err(error) = unsafe { self.ram().frames().drop_memory(addr, Order::HUGE.bytes()) } {
                fatal::say(&format!("a block's page table could not be cleared: {error}"));
            }
            self.small_table = false;
        }
    }

    /// Notes that a folio is mapped, and puts it on `list`.
    pub fn note_mapped(&mut self, index: usize, frame: FrameId, list: List) {
        let pages = self.order().nr_pages();
        self.folio_mut(index).set_in_ram(frame, true);
        self.ram().note_mapped(pages);
        if self.pinned {
            self.ram().zone(frame).set_owner(frame, self.name(index));
            self.ram().zone(frame).remove(frame);
        } else {
            self.ram().zone(frame).insert_for(self.name(index), frame, list);
        }
    }

    /// Moves a mapped folio to its home. Its frames stay on their list.
    pub fn unmap(&mut self, index: usize) -> Result<(), MapError> {
        let mapper = self.ram().mapper();
        // SAFETY: the folio's place and its frames' home; the block is locked.
        let unmap = |addr, home, len| unsafe { mapper.unmap(addr, home, len) };
        match self.unmap_by(index, unmap) {
            Err(MapError::Missing) if self.fill_gaps(pages_of(self, index)) => self.unmap_by(index, unmap),
            unmapped => unmapped,
        }
    }

    /// As [`Block::unmap`], for content that nobody needs any more.
    fn unmap_unneeded(&mut self, index: usize) -> Result<(), MapError> {
        let mapper = self.ram().mapper();
        // SAFETY: as in `unmap`.
        self.unmap_by(index, |addr, home, len| unsafe { mapper.unmap_unneeded(addr, home, len) })
    }

    /// Moves a mapped folio to its home, into the laundry.
    pub fn unmap_to_laundry(&mut self, index: usize) -> Result<(), MapError> {
        self.unmap(index)?;
        self.ram().put(self.frame(index), List::Laundry);
        Ok(())
    }

    fn unmap_by(
        &mut self,
        index: usize,
        unmap: impl Fn(usize, usize, usize) -> Result<(), MapError>,
    ) -> Result<(), MapError> {
        let frame = self.frame(index);
        let (addr, home, len) = self.places(index, frame);
        if self.table().has_locked(&(addr..addr + len)) {
            return Err(MapError::Busy); // the kernel does not move it, and may not let it go
        }
        unmap(addr, home, len)?;
        self.folio_mut(index).set_in_ram(frame, false);
        self.ram().note_unmapped(self.order().nr_pages());
        Ok(())
    }

    /// Discards the content of all folios of a block. The block then reads as zero, as one folio.
    pub fn drop_block(&mut self) {
        for index in 0..self.nr_folios() {
            self.drop_content(index);
        }
        self.join();
    }

    /// Discards the content of a folio, which then reads as zero. Its frames go back to the zone, its slots to the
    /// space.
    pub fn drop_content(&mut self, index: usize) {
        let frame = match self.state(index) {
            State::Empty => return,
            State::Swapped(_) => None,
            State::Standby(frame) => Some(frame),
            State::Resident(frame) => match self.unmap_unneeded(index) {
                Ok(()) => Some(frame),
                Err(error) => {
                    self.abandon(index, error);
                    None
                }
            },
        };
        if let Some(frame) = frame {
            self.ram().release(frame);
        }
        self.release_slot(index);
        self.end_lost_folio(index);
        self.folio_mut(index).set_empty();
    }

    /// Discards a mapped folio that cannot be moved (in use by a system call, or shared with a child). The kernel frees
    /// its pages when their last user is done; the frames get new memory.
    fn abandon(&mut self, index: usize, error: MapError) {
        let (frame, order, addr) = (self.frame(index), self.order(), self.table().addr(self.name(index)));
        let pages = if self.has_sealed() { order.nr_pages() } else { 1 };
        for at in (0..pages).filter(|page| !self.is_sealed(index * order.nr_pages() + page)) {
            let len = order.bytes() / pages;
            // SAFETY: the caller has locked the block. These pages are managed, and their content no longer needed.
            if let Err(refused) = unsafe { self.ram().frames().drop_memory(addr + at * len, len) } {
                fatal::die(&format!("a folio could not be dropped: {error}, {refused}"));
            }
        }
        self.folio_mut(index).set_out();
        self.parts.free_lost(frame, order);
    }

    /// Frees the slots that hold a folio's copy.
    pub fn release_slot(&mut self, index: usize) {
        if let Some(slot) = self.folio(index).slot() {
            let order = self.order();
            self.folio_mut(index).set_slot(None);
            self.swap().free_slots(slot, order);
        }
    }

    /// Notes the copy of a folio, if it keeps one.
    pub fn note_copy(&self, index: usize) {
        if let (Some(frame), Some(_)) = (self.folio(index).frame(), self.folio(index).slot()) {
            self.reclaim().kept_copies().note(frame);
        }
    }

    /// To be called before the bytes of a folio at home are changed: its copies become stale.
    pub fn spoil(&mut self, index: usize) {
        self.release_slot(index);
        self.folio_mut(index).cancel_write();
        self.ram().put(self.frame(index), List::Laundry);
    }

    /// Forgets the loss of pages of a block, none of which is mapped, and removes their poison: they can be read again,
    /// or are no longer wanted.
    pub fn end_lost(&self, pages: Range<usize>) {
        for page in self.faults().lost().take(self.id(), pages) {
            let addr = self.table().addr(self.id().page(page));
            // SAFETY: the block is locked, and the page is not mapped, so only the poison marker is there.
            if let Err(error) = unsafe { self.ram().frames().drop_memory(addr, PAGE_SIZE) } {
                fatal::say(&format!("a page that was lost stays so: {error}"));
            }
        }
    }

    /// The same for a folio.
    pub fn end_lost_folio(&self, index: usize) {
        self.end_lost(pages_of(self, index));
    }

    /// Maps zeros at those of these pages, of mapped folios, that are missing. Returns whether any
    /// was missing, and all are present now.
    pub fn fill_gaps(&mut self, pages: Range<usize>) -> bool {
        let mut has_filled = false;
        for page in pages {
            if self.is_sealed(page) {
                continue;
            }
            let addr = self.table().addr(self.id().page(page));
            if !matches!(self.ram().pagemap().is_present(addr), Ok(false)) {
                continue;
            }
            // SAFETY: a page at which nothing is present, though its folio is mapped. The source is a
            // static of one page.
            match unsafe { self.faults().uffd().copy(addr, ZEROS.as_ptr() as usize, PAGE_SIZE) } {
                Ok(()) => {
                    self.small_table = true;
                    has_filled = true;
                }
                Err(MoveError::Present) => {} // the kernel has swapped it out
                Err(_) => return false,       // it is another mapping now
            }
        }
        has_filled
    }

    /// Notes that a folio's content is lost. `false`: that was known.
    pub fn note_lost(&self, index: usize) -> bool {
        self.faults().lost().note(self.id(), pages_of(self, index))
    }
}
