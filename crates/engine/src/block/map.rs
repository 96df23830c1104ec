//! Maps, unmaps and drops folios: the folio table, RAM and the swap space change together.

use std::ops::Range;

use folioswap_core::{Ahead, FrameId, List, Memory, Order, PAGE_SIZE, Phase, State};
use folioswap_sys::uffd::MoveError;

use super::Block;
use crate::memory::map_error::{MapError, patiently};
use crate::process::fatal;
use crate::process::stopwatch::Stopwatch;

impl Block<'_> {
    /// The pages of a folio in the block.
    pub fn pages_of(&self, index: usize) -> Range<usize> {
        let nr_pages = self.order().nr_pages();
        index * nr_pages..(index + 1) * nr_pages
    }

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
            if let Err(error) = unsafe { self.ram().mapper().discard(addr, Order::HUGE.bytes()) } {
                fatal::say(&format!("a block's page table could not be cleared: {error}"));
            }
            self.small_table = false;
        }
    }

    /// Notes that a folio is mapped, and puts it on `list`.
    pub fn note_mapped(&mut self, index: usize, frame: FrameId, list: List) {
        let pages = self.order().nr_pages();
        self.folio_mut(index).set_in_ram(frame, true);
        self.ram().counts().note_mapped(pages);
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
            Err(MapError::Missing) if self.fill_gaps(self.pages_of(index)) => self.unmap_by(index, unmap),
            unmapped => unmapped,
        }
    }

    /// As [`Block::unmap`], for content that nobody needs any more.
    pub(super) fn unmap_unneeded(&mut self, index: usize) -> Result<(), MapError> {
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
        self.ram().counts().note_unmapped(self.order().nr_pages());
        Ok(())
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

    /// Frees the device's copy of a folio that was just mapped, unless the device has plenty of room.
    pub fn settle_slot(&mut self, index: usize, watch: &mut Stopwatch<'_>) {
        if self.folio(index).slot().is_some_and(|slot| !self.swap().keeps_copies(slot)) {
            watch.lap(Phase::Map);
            self.release_slot(index);
            watch.lap(Phase::Free);
        }
        self.note_copy(index);
    }

    /// To be called before the bytes of a folio at home are changed: its copies become stale.
    pub fn spoil(&mut self, index: usize) {
        self.release_slot(index);
        self.folio_mut(index).cancel_write();
        self.ram().put(self.frame(index), List::Laundry);
    }

    /// Maps zeros at those of these pages, of mapped folios, that are missing: the program dropped them by a call that
    /// the engine did not see, and by the kernel's rules they are zero. Returns whether any was missing, and all are
    /// present now.
    pub fn fill_gaps(&mut self, pages: Range<usize>) -> bool {
        let mut has_filled = false;
        for page in pages {
            if self.is_sealed(page) {
                continue;
            }
            let addr = self.table().addr(self.id().page(page));
            if self.ram().mapper().has_page(addr) != Some(false) {
                continue;
            }
            // SAFETY: a page of this locked block at which nothing is present, though its folio is mapped.
            match unsafe { self.ram().mapper().fill(addr, PAGE_SIZE) } {
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

    /// Takes a folio off its list, so that nobody looks for it where it was. Its write no longer counts.
    pub fn take_off_list(&mut self, index: usize) {
        if let Some(frame) = self.folio(index).frame() {
            self.folio_mut(index).cancel_write();
            self.ram().zone(frame).remove(frame);
        }
    }

    /// Puts a folio on a list again that was taken off.
    pub fn put_on_list(&self, index: usize) {
        let Some(frame) = self.folio(index).frame() else { return };
        let is_mapped = matches!(self.state(index), State::Resident(_));
        let zone = self.ram().zone(frame);
        zone.insert_for(self.name(index), frame, if is_mapped { List::Active } else { List::Laundry });
        if is_mapped && self.pinned {
            zone.remove(frame);
        }
    }

    /// Maps a folio that was read ahead, unless its first access is to fault.
    pub fn admit(&mut self, index: usize, frame: FrameId, ahead: Ahead) {
        self.folio_mut(index).ahead = ahead;
        if ahead != Ahead::No {
            self.folio_mut(index).set_in_ram(frame, false);
            self.note_copy(index);
            // As young as the rest of its window: on standby it would be evicted next, before it is ever touched.
            self.ram().put(frame, List::Inactive);
        } else {
            self.map(index, frame, List::Inactive);
            self.settle_slot(index, &mut Stopwatch::still());
        }
    }
}
