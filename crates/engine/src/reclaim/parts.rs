//! Writes a block that is one folio in RAM in parts: because pages of it were dropped or never used and should cost no
//! I/O, or because there is no run of slots for the whole block.
//!
//! The parts are written from their home, and the huge page is freed whole. It is never split: the kernel would replace
//! its pages of zeros by the shared zero page, and Linux 6.18 fails to move those one by one (EEXIST for a page that it
//! has just moved).

use folioswap_core::{BLOCK_PAGES, BLOCK_PIECES, FrameId, Locked, Memory, Order, PAGE_SIZE, PIECE, SlotId, State};

use crate::device::checksum;
use crate::engine::Engine;
use crate::memory::mapper::patiently;
use crate::reclaim::evict::Washed;

/// A slot for each part of a block. `None` for a part of zeros.
type Places = Vec<Option<SlotId>>;

impl Engine {
    /// Writes a block of the laundry in parts if some of its pages were dropped and are still zero. `None`: no page or
    /// every page is.
    pub fn wash_dropped(&self, locked: &mut Locked<'_>) -> Option<Washed> {
        let dropped: Vec<usize> = locked.take_dropped()?.collect();
        let bytes = self.ram().frames().at_home(locked, 0);
        let zero = |page: &usize| checksum::is_zero(&bytes[page * PAGE_SIZE..(page + 1) * PAGE_SIZE]);
        let empty: Vec<usize> = dropped.into_iter().filter(zero).collect();
        let mut in_pieces = empty.chunk_by(|a, b| a / PIECE.nr_pages() == b / PIECE.nr_pages());
        let pieces_only = in_pieces.all(|pages| pages.len() == PIECE.nr_pages());
        if empty.is_empty() || empty.len() == BLOCK_PAGES {
            return None;
        }
        Some(self.write_parts(locked, if pieces_only { PIECE } else { Order::PAGE }))
    }

    /// Writes a whole block of the laundry in the largest parts, of order `most` or less, for which there are slots.
    pub fn write_parts(&self, locked: &mut Locked<'_>, most: Order) -> Washed {
        let frame = locked.frame(0);
        // SAFETY: the block is locked until the end, and its folio is in the laundry, so its content is at home. Its
        // frames are freed after the last use of `bytes`.
        let bytes = unsafe { self.ram().frames().bytes_at_home(frame, Order::HUGE) };
        self.release_slot(locked, 0);
        let orders = (0..=most.exponent()).rev().filter_map(Order::new);
        // A device that refused parts of one order may take smaller ones, or another device may.
        let Some((order, places)) = orders.into_iter().find_map(|order| {
            let mut places = self.slots_for_parts(bytes, frame, order)?;
            self.write_places(bytes, order, &mut places).then_some((order, places))
        }) else {
            return Washed::NoSlot;
        };
        locked.join(); // leaves it empty, without hashes
        locked.split(order);
        self.stats().split.add(Order::HUGE, 1);
        for (index, slot) in places.iter().enumerate() {
            if slot.is_some() {
                checksum::note(locked, index * order.nr_pages(), part(bytes, order, index));
                locked.folio_mut(index).set_slot(*slot);
                self.count_swap_out(order);
            }
        }
        self.ram().release(frame);
        Washed::Clean
    }

    /// Makes smaller folios of a block that is one folio in RAM, where it is. A huge page at home is replaced by small
    /// ones; one that is mapped is split by the kernel when the first part of it moves.
    pub fn divide_whole(&self, locked: &mut Locked<'_>, order: Order) {
        if let State::Standby(frame) = locked.state(0)
            && self.ram().zone(frame).memory(frame) != Memory::Small
        {
            let content = self.ram().frames().at_home(locked, 0).to_vec();
            // SAFETY: the frames of a folio at home, whose block is locked; nobody else uses them.
            unsafe { self.ram().frames().unpopulate(frame) };
            let home = self.ram().frames().home(frame);
            // SAFETY: as above.
            patiently("made", || unsafe { self.ram().mapper().populate_small(home) });
            self.ram().frames().at_home_mut(locked, 0).copy_from_slice(&content);
        }
        self.split_block(locked, order);
        locked.small_table = true;
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
                place.is_some_and(|place| self.swap().follows(place, slot, at * order.nr_pages()))
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
}

/// Whether more than half of a block's pieces are zeros: its first touch made all of it, and the program uses little.
pub fn uses_few(bytes: &[u8]) -> bool {
    bytes.chunks(PIECE.bytes()).filter(|piece| checksum::is_zero(piece)).count() > BLOCK_PIECES / 2
}

fn part(bytes: &[u8], order: Order, index: usize) -> &[u8] {
    &bytes[index * order.bytes()..(index + 1) * order.bytes()]
}
