//! Drops folios and pages: what nobody needs any more, and what is no longer the engine's.

use std::ops::Range;

use folioswap_core::{FrameId, Order, PAGE_SIZE, PIECE, State};

use super::Block;
use crate::memory::map_error::{MapError, patiently};
use crate::process::fatal;
use crate::process::turns::asleep;

impl Block<'_> {
    /// Discards the content of all folios of a block. The block then reads as zero, as one folio.
    pub fn drop_block(&mut self) {
        for index in 0..self.nr_folios() {
            self.drop_content(index);
        }
        self.join();
    }

    /// Discards the content of a folio, which then reads as zero. Its frames go back to the zone, its slots to the
    /// space.
    fn drop_content(&mut self, index: usize) {
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
            if let Err(refused) = unsafe { self.ram().mapper().discard(addr + at * len, len) } {
                fatal::die(&format!("a folio could not be dropped: {error}, {refused}"));
            }
        }
        self.folio_mut(index).set_out();
        self.parts.free_lost(frame, order);
    }

    /// Drops pages of a block. Whole folios are dropped, and swapped ones are split for that. Pages of larger folios in
    /// RAM are zeroed in place if unmapped. Those of mapped folios are returned for the caller to zero.
    pub fn drop_pages(&mut self, pages: Range<usize>) -> Vec<Range<usize>> {
        let mut mapped = Vec::new();
        let mut page = pages.start;
        while page < pages.end {
            let nr_pages = self.order().nr_pages();
            let index = self.index_of(page);
            let folio = index * nr_pages..(index + 1) * nr_pages;
            let part = page..pages.end.min(folio.end);
            match self.state(index) {
                State::Empty => {}
                _ if part == folio => {
                    if self.order() < PIECE {
                        self.keep_checkable(page, &pages);
                    }
                    self.drop_content(index);
                }
                State::Swapped(_) => {
                    let aligned = |order: Order| {
                        part.start.is_multiple_of(order.nr_pages()) && part.end.is_multiple_of(order.nr_pages())
                    };
                    let order = if self.order() > PIECE && aligned(PIECE) { PIECE } else { Order::PAGE };
                    self.split_to(order);
                    continue;
                }
                State::Standby(_) => {
                    self.note_part_dropped(&part);
                    self.spoil(index);
                    let bytes = self.ram().frames().at_home_mut(self, index);
                    bytes[(part.start - folio.start) * PAGE_SIZE..(part.end - folio.start) * PAGE_SIZE].fill(0);
                }
                // At home it can be zeroed whatever its protection.
                State::Resident(_) if !self.pinned && self.unmap_to_laundry(index).is_ok() => continue,
                State::Resident(_) => {
                    self.note_part_dropped(&part);
                    mapped.push(part.clone());
                }
            }
            page = part.end;
        }
        mapped
    }

    /// Zeroes pages of a mapped folio whatever their protection: they go, as the kernel lets them go, and others come.
    pub fn zero_mapped(&mut self, pages: Range<usize>) {
        let (addr, len) = (self.table().addr(self.id().page(pages.start)), pages.len() * PAGE_SIZE);
        self.small_table = true;
        // SAFETY: mapped pages of this locked block, whose content nobody needs. A thread that touches them waits.
        if let Err(error) = unsafe { self.ram().mapper().discard(addr, len) } {
            fatal::die(&format!("locked memory cannot be dropped: {error}"));
        }
        for at in (addr..addr + len).step_by(PAGE_SIZE) {
            // SAFETY: as above.
            patiently("zeroed", || unsafe { self.ram().mapper().fill(at, PAGE_SIZE) }.map_err(MapError::from));
        }
    }

    fn note_part_dropped(&mut self, part: &Range<usize>) {
        if self.order() == Order::HUGE {
            self.note_dropped(part.clone());
        }
    }

    /// Prepares for dropping a page whose piece has one hash: hashes the remaining pages of the piece one by one, so
    /// that they can be verified when they come back.
    fn keep_checkable(&mut self, page: usize, dropped: &Range<usize>) {
        let first = page / PIECE.nr_pages() * PIECE.nr_pages();
        let piece = first..first + PIECE.nr_pages();
        if self.piece_hash(page / PIECE.nr_pages()).is_none() {
            return;
        }
        let all_go = dropped.start <= piece.start && piece.end <= dropped.end;
        if !all_go && let Err(error) = asleep(self.hash_pages(page, &mut [])) {
            fatal::say(&error.to_string());
        }
        if all_go || self.piece_hash(page / PIECE.nr_pages()).is_some() {
            self.forget_hashes(piece); // after a failed read the rest cannot be verified
        }
    }

    /// Gives up a mapped folio whose pages are the program's own from now on.
    pub fn let_go(&mut self, index: usize, frame: FrameId) {
        let order = self.order();
        self.folio_mut(index).set_out();
        self.parts.free_lost(frame, order);
        self.release_slot(index);
        self.end_lost_folio(index);
        self.folio_mut(index).set_empty();
    }
}
