//! The sizes of a block's folios: splits and divides them, and drops pages of them.

use std::ops::Range;

use folioswap_core::{List, Locked, Memory, Order, PAGE_SIZE, PIECE, State};
use folioswap_sys::memory;

use super::Block;
use super::map::{ZEROS, pages_of};
use crate::memory::mapper::{MapError, patiently};
use crate::process::fatal;

impl Block<'_> {
    /// Splits a block into folios of `order`. When pieces are split into smaller folios, those in RAM give up their
    /// slots, whose hashes cover whole pieces.
    pub fn split_to(&mut self, order: Order) {
        self.stats().split.add(self.order(), 1);
        for index in 0..self.nr_folios() {
            let Some(frame) = self.folio(index).frame() else { continue };
            if order < PIECE && self.order() >= PIECE {
                self.release_slot(index);
                if self.ram().zone(frame).list(frame) == Some(List::Clean) {
                    self.ram().put(frame, List::Laundry); // it has no copy any more
                }
            }
            if self.folio(index).writing_to().is_some() {
                self.folio_mut(index).cancel_write();
                self.ram().put(frame, List::Laundry); // its write no longer counts
            }
            self.ram().zone(frame).split(frame, order);
        }
        self.split(order);
    }

    /// Makes smaller folios of a block that is one folio in RAM, where it is. A huge page at home is replaced by small
    /// ones; one that is mapped is split by the kernel when the first part of it moves.
    pub fn divide_whole(&mut self, order: Order) {
        if let State::Standby(frame) = self.state(0)
            && self.ram().zone(frame).memory(frame) != Memory::Small
        {
            let content = self.ram().frames().at_home(self, 0).to_vec();
            // SAFETY: the frames of a folio at home, whose block is locked; nobody else uses them.
            unsafe { self.ram().frames().unpopulate(frame) };
            let home = self.ram().frames().home(frame);
            // SAFETY: as above.
            patiently("made", || unsafe { self.ram().mapper().populate_small(home) });
            self.ram().frames().at_home_mut(self, 0).copy_from_slice(&content);
        }
        self.split_to(order);
        self.small_table = true;
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
        // SAFETY: mapped pages, whose content nobody needs. A thread that touches them waits.
        let dropped = unsafe { memory::dontneed(addr, len).or_else(|_| memory::dontneed_locked(addr, len)) };
        if let Err(error) = dropped {
            fatal::die(&format!("locked memory cannot be dropped: {error}"));
        }
        for at in (addr..addr + len).step_by(PAGE_SIZE) {
            // SAFETY: as above. The source is a static of one page.
            let copy = || unsafe { self.faults().uffd().copy(at, ZEROS.as_ptr() as usize, PAGE_SIZE) };
            patiently("zeroed", || copy().map_err(MapError::from));
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
        if !all_go && let Err(error) = self.hash_pages(page, &mut []) {
            fatal::say(&error.to_string());
        }
        if all_go || self.piece_hash(page / PIECE.nr_pages()).is_some() {
            self.forget_hashes(piece); // after a failed read the rest cannot be verified
        }
    }

    /// Makes the folios of a block so small that each is sealed as a whole or not at all.
    pub fn isolate(&mut self) {
        let order = self.sealed_order();
        if self.is_empty() {
            self.join(); // divided at the first touch
        } else if order < self.order() {
            self.divide(order);
        }
    }

    /// Splits a block, whatever it is.
    pub fn divide(&mut self, order: Order) {
        if self.order() == Order::HUGE && self.folio(0).frame().is_some() {
            self.divide_whole(order);
        } else {
            self.split_to(order);
        }
    }

    /// Divides the folios of a block so that each lies in these pages as a whole or not at all, or is sealed.
    pub fn make_apart(&mut self, pages: &Range<usize>) {
        let is_apart = |locked: &Locked<'_>, index| {
            let folio = pages_of(locked, index);
            let is_outside = folio.end <= pages.start || pages.end <= folio.start;
            let is_inside = pages.start <= folio.start && folio.end <= pages.end;
            is_outside || is_inside || folio.clone().all(|page| locked.is_sealed(page))
        };
        if (0..self.nr_folios()).all(|index| is_apart(self, index)) {
        } else if self.is_empty() {
            self.split(Order::PAGE);
        } else if self.order() == Order::HUGE && self.folio(0).frame().is_some() {
            self.divide_whole(Order::PAGE);
        } else {
            self.split_to(Order::PAGE);
        }
    }
}
