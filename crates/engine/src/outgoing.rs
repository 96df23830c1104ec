//! Folios on their way to a device: a batch whose slots follow each other, written in one go.

use folioswap_core::{BlockId, FrameId, List, Locked, Order, SlotId};

use crate::engine::Engine;

/// The most pages in a batch of small folios: a write of 1 MiB is as fast as a disk gets.
const BATCH_PAGES: usize = 256;

/// The most blocks that one batch keeps locked: whoever faults on them waits for the write.
const BATCH_BLOCKS: usize = 64;

/// One folio of a batch.
pub(crate) struct Leaving {
    /// Which of the batch's blocks it lies in.
    block: usize,
    index: usize,
    frame: FrameId,
}

/// Folios of one order to be written: at home, on no list, their blocks locked.
pub(crate) struct Outgoing<'t> {
    pub blocks: Vec<Locked<'t>>,
    pub folios: Vec<Leaving>,
    /// Of the first folio; the others follow.
    slot: SlotId,
    order: Order,
}

impl<'t> Outgoing<'t> {
    pub fn new() -> Self {
        Outgoing { blocks: Vec::new(), folios: Vec::new(), slot: SlotId::new(0), order: Order::PAGE }
    }

    pub fn one(locked: Locked<'t>, index: usize, frame: FrameId, slot: SlotId) -> Self {
        let order = locked.order();
        Outgoing { blocks: vec![locked], folios: vec![Leaving { block: 0, index, frame }], slot, order }
    }

    pub fn is_empty(&self) -> bool {
        self.folios.is_empty()
    }

    pub fn nr_pages(&self) -> usize {
        self.folios.len() << self.order.exponent()
    }

    pub fn slot(&self) -> SlotId {
        self.slot
    }

    pub fn has_room(&self) -> bool {
        self.nr_pages() < BATCH_PAGES && self.blocks.len() < BATCH_BLOCKS
    }

    /// Where among the batch's blocks a block is, which is locked for it if it can be had.
    pub fn hold(&mut self, engine: &'t Engine, block: BlockId) -> Option<usize> {
        if let Some(at) = self.blocks.iter().rposition(|locked| locked.id() == block) {
            return Some(at);
        }
        self.blocks.push(engine.try_lock(block)?);
        Some(self.blocks.len() - 1)
    }

    /// Adds a folio of the batch's block at `block`; `false` when its slots do not follow those of the batch.
    pub fn push(&mut self, block: usize, index: usize, frame: FrameId, slot: SlotId) -> bool {
        let order = self.blocks[block].order();
        if self.folios.is_empty() {
            (self.slot, self.order) = (slot, order);
        }
        let follows = slot == self.slot.plus(self.nr_pages()) && order == self.order;
        if follows {
            self.folios.push(Leaving { block, index, frame });
        }
        follows
    }

    /// Whether a folio of the batch's block at `block` is in the batch.
    pub fn holds_folio_of(&self, block: usize) -> bool {
        self.folios.iter().any(|leaving| leaving.block == block)
    }

    /// The memory to be written, in the order of the slots.
    pub fn pieces(&self, engine: &Engine) -> Vec<(usize, usize)> {
        let mut pieces: Vec<(usize, usize)> = Vec::with_capacity(self.folios.len());
        for leaving in &self.folios {
            let home = engine.frames.home(leaving.frame);
            match pieces.last_mut() {
                Some((addr, len)) if *addr + *len == home => *len += self.order.bytes(),
                _ => pieces.push((home, self.order.bytes())),
            }
        }
        pieces
    }
}

impl Engine {
    /// Writes a batch now. For devices in memory, and for threads that reclaim for themselves.
    pub fn write_now(&self, mut outgoing: Outgoing<'_>) -> bool {
        self.write_all(&mut outgoing)
    }

    /// Writes each folio of a batch, whose blocks stay locked.
    pub fn write_all(&self, outgoing: &mut Outgoing<'_>) -> bool {
        let mut done = true;
        for (at, leaving) in std::mem::take(&mut outgoing.folios).into_iter().enumerate() {
            let slot = outgoing.slot.plus(at << outgoing.order.exponent());
            done &= self.write_one(&mut outgoing.blocks[leaving.block], leaving.index, leaving.frame, slot);
        }
        done
    }

    /// Writes one folio of a locked block.
    pub fn write_one(&self, locked: &mut Locked<'_>, index: usize, frame: FrameId, slot: SlotId) -> bool {
        let order = locked.order();
        let bytes = &*self.frames.bytes(frame, order, locked);
        let written = match self.space.memory(slot) {
            Some((memory, offset)) => {
                memory.store(locked, index * order.nr_pages(), offset, bytes);
                Ok(())
            }
            None => self.space.write(slot, bytes),
        };
        self.finish_folio(locked, index, frame, slot, written)
    }

    /// Puts the folios of a batch that was written on standby; those of one that failed stay in RAM.
    pub fn finish_write(&self, mut outgoing: Outgoing<'_>, written: std::io::Result<()>) -> bool {
        if written.is_err() && outgoing.folios.len() > 1 {
            return self.write_all(&mut outgoing); // one by one, to find out which it was
        }
        let mut written = Some(written);
        let mut done = true;
        for (at, leaving) in outgoing.folios.iter().enumerate() {
            let slot = outgoing.slot.plus(at << outgoing.order.exponent());
            let result = written.take().unwrap_or(Ok(()));
            done &= self.finish_folio(&mut outgoing.blocks[leaving.block], leaving.index, leaving.frame, slot, result);
        }
        done
    }

    /// Puts a written folio on standby; one whose write failed stays in RAM, its slots are not used again.
    fn finish_folio(
        &self,
        locked: &mut Locked<'_>,
        index: usize,
        frame: FrameId,
        slot: SlotId,
        written: std::io::Result<()>,
    ) -> bool {
        let order = locked.order();
        if let Err(error) = written {
            self.write_failed(slot, &error);
            self.space.mark_bad(slot, order);
            self.zone.insert(frame, List::Laundry);
            return false;
        }
        locked.folio_mut(index).set_slot(Some(slot));
        self.zone.insert(frame, List::Standby);
        self.count_swap_out(order);
        self.frame_freed.signal();
        true
    }

    pub fn count_swap_out(&self, order: Order) {
        self.stats.swapped_out_folios.add(1);
        self.stats.swapped_out_bytes.add(order.bytes() as u64);
        self.stats.swpout.add(order, 1);
        if order == Order::HUGE {
            self.stats.thp_swpout.add(1);
        }
    }
}
