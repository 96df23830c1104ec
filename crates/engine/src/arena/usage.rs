//! Where an arena's memory is at one moment, for faces that show it to people.

use folioswap_core::PAGE_SIZE;

use crate::arena::Arena;

/// Where the memory is. All in bytes; others may move memory while it is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// The budget.
    pub budget_bytes: u64,
    /// Folios in RAM that the program can touch without a fault, and folios in use by a transfer.
    pub mapped_bytes: u64,
    /// Folios on standby: in RAM, and the first to leave. A touch costs a fault, but no read.
    pub standby_bytes: u64,
    /// Slots in use on swap devices, those of folios that are in RAM as well included.
    pub swapped_bytes: u64,
}

impl Arena {
    /// Where the memory is. Takes a few microseconds a device.
    pub fn usage(&self) -> Usage {
        let swapped_bytes = self.devices().iter().map(|device| device.used_bytes).sum();
        let _inside = self.running.engine.enter();
        let counts = self.running.engine.ram().zones().counts();
        let standby = counts.lists.clean + counts.lists.laundry;
        let bytes = |frames: usize| (frames * PAGE_SIZE) as u64;
        Usage {
            budget_bytes: self.running.engine.ram().budget_bytes(),
            mapped_bytes: bytes(counts.in_use.saturating_sub(standby)),
            standby_bytes: bytes(standby),
            swapped_bytes,
        }
    }
}
