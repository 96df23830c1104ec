//! One locked block: the mechanism by which its folios are split, read from slots and written to them; and mapped,
//! unmapped and dropped ([`pages`]). Nothing here decides which folio, or when: the flows (faults, reclaim, relocation,
//! compaction) do, and are built from these steps.

mod pages;
mod parts;
mod slot_run;

use std::borrow::Borrow;
use std::cell::RefCell;
use std::io;
use std::ops::{Deref, DerefMut, Range};

use folioswap_core::{BlockId, List, Locked, Memory, Order, PAGE_SIZE, PIECE, Phase, SlotId, State};

pub(crate) use self::parts::Parts;
pub(crate) use self::slot_run::SlotRun;
use crate::device::checksum;
use crate::memory::map_error::patiently;
use crate::memory::ram::Ram;
use crate::memory::table::Table;
use crate::process::stopwatch::Stopwatch;
use crate::process::turns::Waits;
use crate::swap::health::{SwapInError, Trouble};
use crate::swap::space::SwapSpace;

/// A locked block, with the parts of the engine that its content lies in. Reads like the block's entry.
///
/// **Invariant.** While it is held, nobody else changes the block's entry, its pages in RAM, or its slots; but for a
/// pause ([`Block::pause`]), after which everything is looked at again.
#[must_use = "dropping it unlocks the block"]
pub(crate) struct Block<'p> {
    parts: &'p Parts,
    locked: Locked<'p>,
    /// How whoever holds it waits.
    waits: Waits<'p>,
}

impl<'p> Block<'p> {
    /// How whoever holds it waits.
    pub fn waits(&self) -> Waits<'p> {
        self.waits
    }

    /// Gives up the lock during `wait`. Others may change everything about the block meanwhile.
    pub async fn pause(&mut self, wait: impl Future) {
        let waits = self.waits;
        self.locked.unlock();
        wait.await;
        let locked = RefCell::new(&mut self.locked);
        waits.until(|| locked.borrow_mut().relock(), || locked.borrow_mut().try_relock().then_some(())).await;
    }

    fn table(&self) -> &'p Table {
        self.parts.table()
    }

    fn ram(&self) -> &'p Ram {
        self.parts.ram()
    }

    fn swap(&self) -> &'p SwapSpace {
        self.parts.swap()
    }

    pub fn pages_of(&self, index: usize) -> Range<usize> {
        let nr_pages = self.order().nr_pages();
        index * nr_pages..(index + 1) * nr_pages
    }

    /// Splits a block into folios of `order`. When pieces are split into smaller folios, those in RAM give up their
    /// slots, whose hashes cover whole pieces.
    pub fn split_to(&mut self, order: Order) {
        self.parts.stats().split.add(self.order(), 1);
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
            unsafe { self.ram().backing().unpopulate(frame) };
            let home = self.ram().frames().home(frame);
            // SAFETY: as above.
            patiently("made", || unsafe { self.ram().mapper().populate_small(home) });
            self.ram().frames().at_home_mut(self, 0).copy_from_slice(&content);
        }
        self.split_to(order);
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

    /// Reads a folio's slots and verifies their content. Ends the stopwatch's frame phase.
    pub async fn read_folio(
        &mut self,
        index: usize,
        slot: SlotId,
        bytes: &mut [u8],
        watch: &mut Stopwatch,
    ) -> Result<(), SwapInError> {
        let page = index * self.order().nr_pages();
        if self.order() < PIECE && self.piece_hash(page / PIECE.nr_pages()).is_some() {
            watch.long_part(Phase::Frame);
            return self.hash_pages(page, bytes).await;
        }
        if self.order() < Order::HUGE && self.swap().memory(slot).is_some() {
            watch.lap(Phase::Frame);
        } else {
            watch.long_part(Phase::Frame);
        }
        // A device in memory verifies as it copies. A second try reads it like any other.
        let first = self.swap().memory(slot).map(|memory| Trouble::unless(memory.load(self, page, bytes)));
        let addr = self.table().addr(self.name(index));
        let is_right = |bytes: &[u8]| checksum::verify(self, page, bytes);
        self.swap().read_verified(addr, slot, bytes, first, is_right, self.waits).await
    }

    /// Reads and verifies the piece that holds a page and has one hash. Hashes each of its pages, and passes its
    /// content to `bring`.
    pub async fn read_piece(&mut self, page: usize, bring: impl FnOnce(&[u8])) -> Result<(), SwapInError> {
        let piece = page / PIECE.nr_pages();
        let first = piece * PIECE.nr_pages();
        let State::Swapped(slot) = self.state(self.index_of(first)) else {
            unreachable!("a piece hashed as one is in its slots as one");
        };
        let mut scratch = self.ram().frames().scratch(self.waits).await;
        let read = &mut scratch.bytes_mut()[..PIECE.bytes()];
        let addr = self.table().addr(self.name(self.index_of(page)));
        let is_right = |read: &[u8]| self.piece_hash(piece) == Some(checksum::hash(self.key(), read));
        self.swap().read_verified(addr, slot, read, None, is_right, self.waits).await?;
        checksum::note_pages(self, first, read);
        bring(read);
        Ok(())
    }

    /// Prepares a page for reading or moving it alone, where its whole piece has one hash. Copies the page's content to
    /// `bytes`.
    pub async fn hash_pages(&mut self, page: usize, bytes: &mut [u8]) -> Result<(), SwapInError> {
        let at = page % PIECE.nr_pages() * PAGE_SIZE;
        self.read_piece(page, |read| bytes.copy_from_slice(&read[at..][..bytes.len()])).await
    }

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
    pub fn finish_folio(&mut self, index: usize, slot: SlotId, written: io::Result<SlotId>) -> bool {
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
            self.parts.kept_copies().note(frame);
        }
    }

    /// Frees the device's copy of a folio that was just mapped, unless the device has plenty of room.
    pub fn settle_slot(&mut self, index: usize, watch: &mut Stopwatch) {
        if self.folio(index).slot().is_some_and(|slot| !self.swap().at(slot).keeps_copies()) {
            watch.lap(Phase::Map);
            self.release_slot(index);
            watch.lap(Phase::Free);
        }
        self.note_copy(index);
    }
}

impl Parts {
    /// Locks a block. Waits for whoever holds it.
    pub fn lock(&self, block: BlockId) -> Block<'_> {
        Block { parts: self, locked: self.table().lock(block), waits: Waits::Asleep }
    }

    /// As [`Parts::lock`], for a flow that waits in its own way, also while it holds the block.
    pub async fn lock_for<'p>(&'p self, block: BlockId, waits: Waits<'p>) -> Block<'p> {
        let lock = || self.table().lock(block);
        let try_lock = || if self.table().has(block) { self.table().try_lock(block) } else { Some(lock()) };
        let locked = waits.until(lock, try_lock).await;
        Block { parts: self, locked, waits }
    }

    /// Locks a block that nobody holds. Also `None` for a block that was never managed.
    pub fn try_lock(&self, block: BlockId) -> Option<Block<'_>> {
        self.try_lock_for(block, Waits::Asleep)
    }

    /// As [`Parts::try_lock`], for a flow that waits in its own way while it holds the block.
    pub fn try_lock_for<'p>(&'p self, block: BlockId, waits: Waits<'p>) -> Option<Block<'p>> {
        let locked = self.table().try_lock(block)?;
        Some(Block { parts: self, locked, waits })
    }
}

impl<'p> Deref for Block<'p> {
    type Target = Locked<'p>;

    fn deref(&self) -> &Locked<'p> {
        &self.locked
    }
}

impl<'p> DerefMut for Block<'p> {
    fn deref_mut(&mut self) -> &mut Locked<'p> {
        &mut self.locked
    }
}

impl<'p> Borrow<Locked<'p>> for Block<'p> {
    fn borrow(&self) -> &Locked<'p> {
        &self.locked
    }
}
