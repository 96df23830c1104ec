//! The mechanism of one block: its folios are mapped, unmapped, read, written, split, joined and dropped. Nothing here
//! decides which folio, or when: the flows (faults, reclaim, relocation, compaction) do, and are built from these
//! steps.

mod drop;
mod lost;
mod map;
mod parts;
mod read;
mod shape;
mod write;

use std::borrow::Borrow;
use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use folioswap_core::{BlockId, Locked, Stats};

pub(crate) use self::parts::Parts;
use crate::memory::ram::Ram;
use crate::memory::table::Table;
use crate::process::turns::Waits;
use crate::state::faults::Faults;
use crate::state::reclaim::Reclaim;
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

    fn faults(&self) -> &'p Faults {
        self.parts.faults()
    }

    fn reclaim(&self) -> &'p Reclaim {
        self.parts.reclaim()
    }

    fn stats(&self) -> &'p Stats {
        self.parts.stats()
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
