//! Writes folios to slots: one, a whole block in parts, or several to new places. Settles what has been written, and
//! gives copies up.
//!
//! A block in parts is written from its home, and the huge page is freed whole. It is never split: the kernel would
//! replace its pages of zeros by the shared zero page, and Linux 6.18 fails to move those one by one (EEXIST for a page
//! that it has just moved).

use std::ops::Range;

use folioswap_core::{BLOCK_PAGES, FolioId, FrameId, List, Order, SlotId, State};

use super::Block;
use crate::device::checksum;
use crate::state::reclaim::Written;

/// A slot for each part of a block. `None` for a part of zeros.
type Places = Vec<Option<SlotId>>;

impl Block<'_> {
    /// Writes one folio. Returns whether that succeeded.
    pub fn write_one(&mut self, index: usize, slot: SlotId) -> bool {
        let (frame, order) = (self.frame(index), self.order());
        // SAFETY: the block is locked, and the folio is at home while it is written. Its frames are used otherwise only
        // after the last use of `bytes`.
        let bytes = unsafe { self.ram().frames().bytes_at_home(frame, order) };
        let written = match self.swap().memory(slot) {
            Some(memory) => {
                memory.store(self, index * order.nr_pages(), bytes);
                Ok(slot)
            }
            None => self.swap().store(slot, order, bytes),
        };
        self.finish_folio(index, slot, written)
    }

    /// Puts a written folio on standby. After a failed write it stays in RAM, and its slots are not used again.
    pub fn finish_folio(&mut self, index: usize, slot: SlotId, written: std::io::Result<SlotId>) -> bool {
        let (frame, order) = (self.frame(index), self.order());
        let slot = match written {
            Ok(slot) => slot,
            Err(error) => {
                self.swap().not_written(slot, order, error);
                self.ram().put(frame, List::Laundry);
                return false;
            }
        };
        self.folio_mut(index).set_slot(Some(slot));
        self.ram().put(frame, List::Clean);
        self.parts.count_swap_out(order);
        self.ram().frame_freed().signal();
        self.swap().note_filling(slot);
        true
    }

    /// Settles a folio whose write has ended: it is clean, unless it was touched meanwhile.
    pub fn settle_write(&mut self, written: Written) {
        let Written { folio, order, frame, slot, failed } = written;
        match (self.untouched(written), failed) {
            (Some(index), false) => {
                self.folio_mut(index).set_slot(Some(slot));
                self.ram().put(frame, List::Clean);
                self.parts.count_swap_out(order);
                self.ram().frame_freed().signal();
            }
            (Some(index), true) => {
                self.folio_mut(index).cancel_write();
                self.ram().put(frame, List::Laundry);
            }
            (None, false) => self.swap().free_slots(slot, order),
            (None, true) => {} // the slots are bad
        }
        debug_assert_eq!(folio.block(), self.id());
    }

    /// The index of a folio that was being written, if nobody has touched it since.
    fn untouched(&self, written: Written) -> Option<usize> {
        let Written { folio, order, frame, slot, .. } = written;
        let index = self.index_of(folio.page_in_block());
        let untouched = self.order() == order
            && self.state(index) == State::Standby(frame)
            && self.folio(index).writing_to() == Some(slot);
        untouched.then_some(index)
    }

    /// Writes a whole block of the laundry in the largest parts, of order `most` or less, for which there are slots.
    /// `false`: there are none.
    pub fn write_parts(&mut self, most: Order) -> bool {
        let frame = self.frame(0);
        // SAFETY: the block is locked until the end, and its folio is in the laundry, so its content is at home. Its
        // frames are freed after the last use of `bytes`.
        let bytes = unsafe { self.ram().frames().bytes_at_home(frame, Order::HUGE) };
        self.release_slot(0);
        let orders = (0..=most.exponent()).rev().filter_map(Order::new);
        // A device that refused parts of one order may take smaller ones, or another device may.
        let Some((order, places)) = orders.into_iter().find_map(|order| {
            let mut places = self.slots_for_parts(bytes, frame, order)?;
            self.write_places(bytes, order, &mut places).then_some((order, places))
        }) else {
            return false;
        };
        self.join(); // leaves it empty, without hashes
        self.split(order);
        self.stats().split.add(Order::HUGE, 1);
        for (index, slot) in places.iter().enumerate() {
            if slot.is_some() {
                checksum::note(self, index * order.nr_pages(), part(bytes, order, index));
                self.folio_mut(index).set_slot(*slot);
                self.parts.count_swap_out(order);
            }
        }
        self.ram().release(frame);
        true
    }

    /// Slots for all parts that are not zero, or none at all.
    fn slots_for_parts(&self, bytes: &[u8], frame: FrameId, order: Order) -> Option<Places> {
        let mut places = Places::new();
        for index in 0..BLOCK_PAGES >> order.exponent() {
            if checksum::is_zero(part(bytes, order, index)) {
                places.push(None);
                continue;
            }
            let slot = self.parts.allocate_near(frame, order);
            if slot.is_none() {
                places.into_iter().flatten().for_each(|slot| self.swap().put_back_slots(slot, order));
                return None;
            }
            places.push(slot);
        }
        Some(places)
    }

    /// Writes the parts, contiguous ones in one write. If one fails, gives all slots up: the content stays in RAM.
    fn write_places(&self, bytes: &[u8], order: Order, places: &mut Places) -> bool {
        let (mut index, mut all) = (0, true);
        while index < places.len() && all {
            let Some(slot) = places[index] else {
                index += 1;
                continue;
            };
            let follows = |&(at, place): &(usize, &Option<SlotId>)| {
                place.is_some_and(|place| self.swap().devices().follows(place, slot, at * order.nr_pages()))
            };
            let count = places[index..].iter().enumerate().take_while(follows).count();
            let run = &bytes[index * order.bytes()..(index + count) * order.bytes()];
            self.swap().store_run(slot, order, run, |at, place| {
                places[index + at] = place;
                all &= place.is_some();
            });
            index += count;
        }
        if !all {
            places.iter().flatten().for_each(|&slot| self.swap().free_slots(slot, order));
        }
        all
    }

    /// Writes folios of a block to new slots, contiguous ones in one write, and frees their old slots. A folio whose
    /// write fails keeps its old slots, and its new ones are not used again. Returns whether any folio moved.
    pub fn put_elsewhere(&mut self, first_page: usize, bytes: &[u8], places: &[SlotId]) -> bool {
        let mut any = false;
        let order = self.order();
        let first = self.index_of(first_page);
        let (swap, mut start) = (self.swap(), 0);
        for group in places.chunk_by(|a, b| swap.devices().follows(*b, *a, order.nr_pages())) {
            let at: Range<usize> = start..start + group.len();
            start = at.end;
            let part = &bytes[at.start * order.bytes()..at.end * order.bytes()];
            swap.store_run(group[0], order, part, |index, place| {
                if place.is_some() {
                    self.release_slot(first + at.start + index);
                    self.folio_mut(first + at.start + index).set_slot(place);
                    any = true;
                }
            });
        }
        any
    }

    /// Whether a folio is in these frames and keeps a copy that can be given up.
    pub fn keeps_copy(&self, index: usize, frame: FrameId) -> bool {
        let folio = self.folio(index);
        folio.frame() == Some(frame)
            && folio.slot().is_some()
            && self.ram().zone(frame).list(frame) != Some(List::Clean)
    }

    pub fn shed_copy(&mut self, folio: FolioId, frame: FrameId) -> bool {
        let index = self.index_of(folio.page_in_block());
        let sheds = self.keeps_copy(index, frame);
        if sheds {
            self.release_slot(index);
        }
        sheds
    }
}

fn part(bytes: &[u8], order: Order, index: usize) -> &[u8] {
    &bytes[index * order.bytes()..(index + 1) * order.bytes()]
}
