//! Writes a whole block in parts, when there is no run of slots for all of it, or most of it is zeros.
//!
//! It is written from its home, and the huge page is freed whole. It is never split: the kernel would replace its pages
//! of zeros by the shared zero page, and Linux 6.18 fails to move those one by one (EEXIST for a page that it has just
//! moved).

use folioswap_core::{BLOCK_PAGES, FrameId, Order, SlotId};

use crate::block::Block;
use crate::device::checksum;
use crate::engine::Engine;

/// The content of a block, and a slot for each of its parts. `None` for a part of zeros.
struct InParts<'e> {
    engine: &'e Engine,
    bytes: &'e [u8],
    order: Order,
    places: Vec<Option<SlotId>>,
}

/// Writes a whole block of the laundry in the largest parts, of order `most` or less, for which there are slots.
/// `false`: there are none.
pub(crate) fn write(engine: &Engine, block: &mut Block<'_>, most: Order) -> bool {
    let frame = block.frame(0);
    // SAFETY: the block is locked until the end, and its folio is in the laundry, so its content is at home. Its frames
    // are freed after the last use of `bytes`.
    let bytes = unsafe { engine.ram().frames().bytes_at_home(frame, Order::HUGE) };
    block.release_slot(0);
    let orders = (0..=most.exponent()).rev().filter_map(Order::new);
    // A device that refused parts of one order may take smaller ones, or another device may.
    let written = |order| {
        let mut parts = InParts { engine, bytes, order, places: Vec::new() };
        (parts.take_slots(frame) && parts.write()).then_some(parts)
    };
    let Some(parts) = orders.into_iter().find_map(written) else { return false };
    block.join(); // leaves it empty, without hashes
    block.split(parts.order);
    engine.stats().split.add(Order::HUGE, 1);
    for (index, slot) in parts.places.iter().enumerate() {
        if slot.is_some() {
            checksum::note(block, index * parts.order.nr_pages(), parts.part(index));
            block.folio_mut(index).set_slot(*slot);
            engine.count_swap_out(parts.order);
        }
    }
    engine.ram().release(frame);
    true
}

impl<'e> InParts<'e> {
    fn part(&self, index: usize) -> &'e [u8] {
        &self.bytes[index * self.order.bytes()..(index + 1) * self.order.bytes()]
    }

    /// Takes slots for all parts that are not zero, or none at all.
    fn take_slots(&mut self, frame: FrameId) -> bool {
        for index in 0..BLOCK_PAGES >> self.order.exponent() {
            if checksum::is_zero(self.part(index)) {
                self.places.push(None);
                continue;
            }
            let slot = self.engine.allocate_near(frame, self.order);
            if slot.is_none() {
                self.places.iter().flatten().for_each(|&slot| self.engine.swap().put_back_slots(slot, self.order));
                return false;
            }
            self.places.push(slot);
        }
        true
    }

    /// Writes the parts, contiguous ones in one write. If one fails, gives all slots up: the content stays in RAM.
    fn write(&mut self) -> bool {
        let (swap, order) = (self.engine.swap(), self.order);
        let (mut index, mut all) = (0, true);
        while index < self.places.len() && all {
            let Some(slot) = self.places[index] else {
                index += 1;
                continue;
            };
            let follows = |&(at, place): &(usize, &Option<SlotId>)| {
                place.is_some_and(|place| swap.devices().follows(place, slot, at * order.nr_pages()))
            };
            let count = self.places[index..].iter().enumerate().take_while(follows).count();
            let run = &self.bytes[index * order.bytes()..(index + count) * order.bytes()];
            swap.store_run(slot, order, run, |at, place| {
                self.places[index + at] = place;
                all &= place.is_some();
            });
            index += count;
        }
        if !all {
            self.places.iter().flatten().for_each(|&slot| swap.free_slots(slot, order));
        }
        all
    }
}
