//! The swap space: which runs of slots are taken.
//!
//! [`SlotAllocator`] is what the engine sees; [`SlotMap`] is the plain one behind it.

mod slot_map;

pub use slot_map::SlotMap;

use crate::id::{CpuId, SlotId};
use crate::order::Order;

/// Hands out runs of contiguous slots, each run aligned to its own size and holding one folio.
pub trait SlotAllocator: Send + Sync {
    /// A run for a folio of this order, to be written by this CPU; nothing when the space is full.
    fn allocate(&self, cpu: CpuId, order: Order) -> Option<SlotId>;
    /// Gives a run back. Panics when it was not taken.
    fn free(&self, slot: SlotId, order: Order);
    /// Runs in the space, taken or not.
    fn nr_slots(&self) -> usize;
    /// Runs that are taken, or bad.
    fn nr_used(&self) -> usize;
}
