//! A block in RAM as one folio leaves in parts: because pages of it were dropped, which are to cost no I/O, or because
//! no run of slots is left for all of it.
//!
//! The parts are written from where they are and the huge page is given back whole. It is never split: a page of zeros
//! in a huge page that the kernel splits becomes a reference to its shared zero page, and Linux 6.18 fails to move those
//! one by one (EEXIST for a page that it has just moved).

use folioswap_core::{BLOCK_PAGES, FrameId, Locked, Order, PAGE_SIZE, PIECE, SlotId};

use crate::checksum;
use crate::engine::Engine;
use crate::reclaim::Washed;

/// A place for each part of a block; none for a part that is zero.
type Places = Vec<Option<SlotId>>;

impl Engine {
    /// Writes a block of the laundry, of which pages were dropped, in parts. `None`: they were written to since.
    pub fn wash_dropped(&self, locked: &mut Locked<'_>, frame: FrameId) -> Option<Washed> {
        let dropped: Vec<usize> = locked.take_dropped()?.collect();
        let bytes = self.frames.at_home(locked, 0);
        let zero = |page: &usize| checksum::is_zero(&bytes[page * PAGE_SIZE..(page + 1) * PAGE_SIZE]);
        let empty: Vec<usize> = dropped.into_iter().filter(zero).collect();
        let mut in_pieces = empty.chunk_by(|a, b| a / PIECE.nr_pages() == b / PIECE.nr_pages());
        let pieces_only = in_pieces.all(|pages| pages.len() == PIECE.nr_pages());
        if empty.is_empty() || empty.len() == BLOCK_PAGES {
            return None;
        }
        Some(self.write_parts(locked, frame, if pieces_only { PIECE } else { Order::PAGE }))
    }

    /// Writes a whole block of the laundry in the largest parts, of `most` or smaller, for which there are slots.
    pub fn write_parts(&self, locked: &mut Locked<'_>, frame: FrameId, most: Order) -> Washed {
        // SAFETY: the block is locked to the end, its folio is of the laundry, so at home; its frames are given back at the end.
        let bytes = unsafe { self.frames.bytes_at_home(frame, Order::HUGE) };
        self.release_slot(locked, 0);
        let orders = (0..=most.exponent()).rev().filter_map(Order::new);
        // A device that refused some of one size has room for less, or others have for smaller ones.
        let Some((order, places)) = orders.into_iter().find_map(|order| {
            let mut places = self.slots_for_parts(bytes, frame, order)?;
            self.write_places(bytes, order, &mut places).then_some((order, places))
        }) else {
            return Washed::NoSlot;
        };
        locked.join(); // empty, and without hashes
        locked.split(order);
        self.stats.split.add(Order::HUGE, 1);
        for (index, slot) in places.iter().enumerate() {
            if slot.is_some() {
                checksum::note(locked, index * order.nr_pages(), part(bytes, order, index));
                locked.folio_mut(index).set_slot(*slot);
                self.count_swap_out(order);
            }
        }
        self.release_frame(frame);
        Washed::Clean
    }

    /// Slots for all parts that are not zero, or none at all.
    fn slots_for_parts(&self, bytes: &[u8], frame: FrameId, order: Order) -> Option<Places> {
        let mut places = Places::new();
        for index in 0..BLOCK_PAGES >> order.exponent() {
            if checksum::is_zero(part(bytes, order, index)) {
                places.push(None);
                continue;
            }
            let slot = self.allocate_near(frame, order);
            if slot.is_none() {
                places.into_iter().flatten().for_each(|slot| self.put_back_slots(slot, order));
                return None;
            }
            places.push(slot);
        }
        Some(places)
    }

    /// Writes the parts, neighbours in one go. When one fails all are given up: the content stays in RAM.
    fn write_places(&self, bytes: &[u8], order: Order, places: &mut Places) -> bool {
        let (mut index, mut all) = (0, true);
        while index < places.len() && all {
            let Some(slot) = places[index] else {
                index += 1;
                continue;
            };
            let follows = |&(at, place): &(usize, &Option<SlotId>)| {
                place.is_some_and(|place| self.space.follows(place, slot, at * order.nr_pages()))
            };
            let count = places[index..].iter().enumerate().take_while(follows).count();
            let run = &bytes[index * order.bytes()..(index + count) * order.bytes()];
            self.store_run(slot, order, run, |at, place| {
                places[index + at] = place;
                all &= place.is_some();
            });
            index += count;
        }
        if !all {
            places.iter().flatten().for_each(|&slot| self.free_slots(slot, order));
        }
        all
    }
}

fn part(bytes: &[u8], order: Order, index: usize) -> &[u8] {
    &bytes[index * order.bytes()..(index + 1) * order.bytes()]
}
