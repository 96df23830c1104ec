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
use std::ops::{Deref, DerefMut};

use folioswap_core::{BlockId, Locked, Stats};

pub(crate) use self::parts::Parts;
use crate::memory::ram::Ram;
use crate::memory::table::Table;
use crate::state::faults::Faults;
use crate::state::reclaim::Reclaim;
use crate::swap::space::SwapSpace;

/// A locked block, with the parts of the engine that its content lies in. Reads like the block's entry.
///
/// **Invariant.** While it is held, nobody else changes the block's entry, its pages in RAM, or its slots; but for a
/// pause ([`Locked::pause`]), after which everything is looked at again.
#[must_use = "dropping it unlocks the block"]
pub(crate) struct Block<'p> {
    parts: &'p Parts,
    locked: Locked<'p>,
}

impl<'p> Block<'p> {
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
        Block { parts: self, locked: self.table().lock(block) }
    }

    /// Locks a block that nobody holds. Also `None` for a block that was never managed.
    pub fn try_lock(&self, block: BlockId) -> Option<Block<'_>> {
        let locked = self.table().try_lock(block)?;
        Some(Block { parts: self, locked })
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
