//! Folios on their way to a device.
//!
//! A whole block is written from its home and stays locked until the device has it. Small folios are copied to a buffer
//! and written in batches to contiguous slots. Their blocks stay unlocked meanwhile, so a fault there does not wait for
//! the write.
//!
//! **Invariant.** A small folio being written is unmapped and on no list, and its entry names the slots that are being
//! written. If it still does when the write ends, the folio is clean (`settle_in`). If it was touched, the
//! slots are freed.

use folioswap_core::{List, Order, SlotId, State};

use crate::block::Block;
use crate::engine::Engine;
use crate::swap::writeback::{BATCH_BYTES, Buffer, Written};

/// Small folios of one order that are written together.
pub(crate) struct Batch<'e> {
    buffer: Buffer<'e>,
    folios: Vec<Written>,
    /// Slot of the first folio. Those of the others follow.
    slot: SlotId,
    order: Order,
}

impl<'e> Batch<'e> {
    /// An empty batch, to be written from this slot on.
    pub fn new(engine: &'e Engine, slot: SlotId, order: Order) -> Self {
        Batch { buffer: engine.writeback().buffers().lend(), folios: Vec::new(), slot, order }
    }

    fn len_bytes(&self) -> usize {
        self.folios.len() * self.order.bytes()
    }

    pub fn has_room(&self) -> bool {
        self.len_bytes() < BATCH_BYTES
    }

    /// Copies a folio that is at home into the batch. `false`: it is full, of another order, or the folio's slots do
    /// not follow.
    pub fn push(&mut self, engine: &Engine, block: &mut Block<'_>, index: usize, slot: SlotId) -> bool {
        let (order, at) = (block.order(), self.len_bytes());
        let follows = engine.swap().devices().follows(slot, self.slot, self.folios.len() * order.nr_pages());
        if order != self.order || !follows || !self.has_room() {
            return false;
        }
        self.buffer.bytes()[at..at + order.bytes()].copy_from_slice(engine.ram().frames().at_home(block, index));
        block.folio_mut(index).begin_write(slot);
        let (folio, frame) = (block.name(index), block.frame(index));
        self.folios.push(Written { folio, order, frame, slot, failed: false });
        true
    }
}

/// What one write covers.
pub(crate) enum Outgoing<'t> {
    /// A whole block, locked, its folio at home and on no list.
    Whole {
        block: Block<'t>,
        slot: SlotId,
    },
    Small(Batch<'t>),
}

impl<'t> Outgoing<'t> {
    pub fn whole(block: Block<'t>, slot: SlotId) -> Self {
        Outgoing::Whole { block, slot }
    }

    pub fn slot(&self) -> SlotId {
        match self {
            Outgoing::Whole { slot, .. } => *slot,
            Outgoing::Small(batch) => batch.slot,
        }
    }

    pub fn nr_pages(&self) -> usize {
        match self {
            Outgoing::Whole { .. } => Order::HUGE.nr_pages(),
            Outgoing::Small(batch) => batch.folios.len() * batch.order.nr_pages(),
        }
    }

    /// The memory to be written: address and length.
    pub fn memory(&self, engine: &Engine) -> (usize, usize) {
        match self {
            Outgoing::Whole { block, .. } => (engine.ram().frames().home(block.frame(0)), Order::HUGE.bytes()),
            Outgoing::Small(batch) => (batch.buffer.addr(), batch.len_bytes()),
        }
    }
}

/// Writes synchronously, for devices in memory and for direct reclaim. Returns whether all was written.
pub(crate) fn write_now(engine: &Engine, outgoing: Outgoing<'_>) -> bool {
    match outgoing {
        Outgoing::Whole { mut block, slot } => block.write_one(0, slot),
        Outgoing::Small(batch) => write_batch(engine, batch, settle_later),
    }
}

/// Writes one dirty folio of a locked block. A whole block, or a folio for a device that takes single folios, is
/// written now, others in a batch. A batch that is full, or whose slots this folio's do not follow, is written
/// first.
pub(crate) fn send<'e>(
    engine: &'e Engine,
    batch: &mut Option<Batch<'e>>,
    block: &mut Block<'_>,
    index: usize,
    slot: SlotId,
) {
    let order = block.order();
    if order == Order::HUGE || engine.swap().at(slot).takes_folios() {
        block.write_one(index, slot);
        return;
    }
    while !batch.get_or_insert_with(|| Batch::new(engine, slot, order)).push(engine, block, index, slot) {
        if let Some(done) = batch.take() {
            write_batch(engine, done, |engine, written| settle_beside(engine, block, written));
        }
    }
}

/// Writes a batch and settles each of its folios.
pub(crate) fn write_batch(engine: &Engine, mut batch: Batch<'_>, settle: impl FnMut(&Engine, Written)) -> bool {
    let (slot, len) = (batch.slot, batch.len_bytes());
    let written = engine.swap().write(slot, &batch.buffer.bytes()[..len]);
    finish_batch(engine, batch, written, settle)
}

/// Finishes a write that has ended, successfully or not.
pub(crate) fn finish_write(engine: &Engine, outgoing: Outgoing<'_>, written: std::io::Result<()>) -> bool {
    if written.is_ok() {
        engine.swap().at(outgoing.slot()).health.wrote();
    }
    match outgoing {
        Outgoing::Whole { mut block, slot } => block.finish_folio(0, slot, written.map(|()| slot)),
        Outgoing::Small(batch) => finish_batch(engine, batch, written, settle_later),
    }
}

fn finish_batch(
    engine: &Engine,
    mut batch: Batch<'_>,
    written: std::io::Result<()>,
    mut settle: impl FnMut(&Engine, Written),
) -> bool {
    let (failed, order) = (written.is_err(), batch.order);
    let mut done = true;
    for (at, mut folio) in std::mem::take(&mut batch.folios).into_iter().enumerate() {
        let slot = batch.slot.plus(at * order.nr_pages());
        let bytes = &batch.buffer.bytes()[at * order.bytes()..(at + 1) * order.bytes()];
        // Write the folios one by one after a failure, to find out which one failed.
        if failed && !write_alone(engine, slot, order, bytes) {
            folio.failed = true;
            done = false;
        }
        settle(engine, folio);
    }
    done
}

/// Writes one folio of a batch that failed. `false`: this failed too, or the device is failing.
fn write_alone(engine: &Engine, slot: SlotId, order: Order, bytes: &[u8]) -> bool {
    if !engine.swap().at(slot).health.is_failing() {
        match engine.swap().write(slot, bytes) {
            Ok(()) => return true,
            Err(error) => engine.swap().write_failed(slot, error),
        }
    }
    engine.swap().at(slot).mark_bad(order);
    false
}

/// Settles a written folio now. If its block is locked, leaves that to a reclaim thread; nobody waits for the lock.
fn settle_later(engine: &Engine, written: Written) {
    if !settle(engine, written) {
        engine.writeback().push_unsettled([written]);
        engine.ram().reclaim_wanted().signal();
    }
}

/// Settles a written folio for a caller that holds a block's lock, possibly the lock of the folio's own block.
pub(crate) fn settle_beside(engine: &Engine, block: &mut Block<'_>, written: Written) {
    if written.folio.block() == block.id() {
        settle_in(engine, block, written);
    } else {
        settle_later(engine, written);
    }
}

/// Settles the folios whose blocks were locked before. Returns whether some still are.
pub(crate) fn settle_rest(engine: &Engine) -> bool {
    let mut still = engine.writeback().take_unsettled();
    still.retain(|&written| !settle(engine, written));
    let any = !still.is_empty();
    engine.writeback().push_unsettled(still);
    any
}

fn settle(engine: &Engine, written: Written) -> bool {
    let Some(mut block) = engine.try_lock(written.folio.block()) else { return false };
    settle_in(engine, &mut block, written);
    true
}

/// Settles a folio whose write has ended: it is clean, unless it was touched meanwhile.
fn settle_in(engine: &Engine, block: &mut Block<'_>, written: Written) {
    let Written { folio, order, frame, slot, failed } = written;
    match (untouched(block, written), failed) {
        (Some(index), false) => {
            block.folio_mut(index).set_slot(Some(slot));
            engine.ram().put(frame, List::Clean);
            engine.count_swap_out(order);
            engine.ram().frame_freed().signal();
        }
        (Some(index), true) => {
            block.folio_mut(index).cancel_write();
            engine.ram().put(frame, List::Laundry);
        }
        (None, false) => engine.swap().free_slots(slot, order),
        (None, true) => {} // the slots are bad
    }
    debug_assert_eq!(folio.block(), block.id());
}

/// The index of a folio that was being written, if nobody has touched it since.
fn untouched(block: &Block<'_>, written: Written) -> Option<usize> {
    let Written { folio, order, frame, slot, .. } = written;
    let index = block.index_of(folio.page_in_block());
    let untouched = block.order() == order
        && block.state(index) == State::Standby(frame)
        && block.folio(index).writing_to() == Some(slot);
    untouched.then_some(index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Arena;
    use crate::arena::region::ArenaVec;
    use crate::reclaim::evict;

    #[test]
    fn a_late_write_does_not_settle_for_a_newer_one() {
        let arena = Arena::builder().memory(16 << 20).folio(Order::PAGE).build().unwrap();
        let mut bytes = ArenaVec::<u8>::zeroed(&arena, Order::HUGE.bytes()).unwrap();
        let engine = arena.engine();
        let block = engine.table().page_at(bytes.as_ptr() as usize).block();
        let begin_write = || {
            let mut locked = engine.lock(block);
            let frame = locked.folio(0).frame().unwrap();
            let slot = evict::wash_now(engine, &mut locked, 0).unwrap();
            let mut batch = Batch::new(engine, slot, Order::PAGE);
            assert!(batch.push(engine, &mut locked, 0, slot));
            (Outgoing::Small(batch), frame, slot)
        };
        bytes[0] = 1;
        let (older, old_frame, old_slot) = begin_write();
        bytes[0] = 2;
        let (newer, frame, slot) = begin_write();
        assert!(old_frame == frame && old_slot != slot, "the same frame, on its way twice");
        write_now(engine, older);
        assert_eq!(engine.lock(block).folio(0).writing_to(), Some(slot), "the older write changes nothing");
        write_now(engine, newer);
        let mut locked = engine.lock(block);
        assert_eq!(locked.folio(0).slot(), Some(slot));
        engine.ram().leave(&mut locked, 0);
        drop(locked);
        assert_eq!(bytes[0], 2);
    }
}
