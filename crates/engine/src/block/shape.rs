//! The sizes of a block's folios: splits and divides them.

use std::ops::Range;

use folioswap_core::{List, Memory, Order, PIECE, State};

use super::Block;
use crate::memory::map_error::patiently;

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
    fn divide_whole(&mut self, order: Order) {
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
        let is_apart = |block: &Block<'_>, index| {
            let folio = block.pages_of(index);
            let is_outside = folio.end <= pages.start || pages.end <= folio.start;
            let is_inside = pages.start <= folio.start && folio.end <= pages.end;
            is_outside || is_inside || folio.clone().all(|page| block.is_sealed(page))
        };
        if !(0..self.nr_folios()).all(|index| is_apart(self, index)) {
            if self.is_empty() { self.split(Order::PAGE) } else { self.divide(Order::PAGE) }
        }
    }
}
