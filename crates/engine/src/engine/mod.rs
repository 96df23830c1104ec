//! The engine of one arena: the sum of its parts. Each part keeps its state to itself. The flows in the folders
//! `fault`, `reclaim`, `relocate` and `compact` name the parts that they use.
//!
//! Lock order: the lock of a block of the folio table; then the compactor's lock, in a fault that compacts; then one
//! leaf lock (a zone with its per-CPU frames, freed slots and clusters, streams, order choice, or queue). Never hold
//! two leaf locks. A second block is locked only with `try_lock`. One exception: a moving mapping locks its source
//! after its target, which is new and which nobody else waits for. Managed memory is never touched under any of these
//! locks.

pub(crate) mod folio;

use std::sync::Arc;

use folioswap_core::{Locked, Stats};
use folioswap_sys::clock::Clock;
use folioswap_sys::pagemap::Scan;
use folioswap_sys::signals;

use crate::config::error::Error;
use crate::memory::ram::Ram;
use crate::memory::table::Table;
use crate::parts::compactor::Compactor;
use crate::parts::faults::Faults;
use crate::parts::policy::Policy;
use crate::parts::reclaim::Reclaim;
use crate::process::shared_stats::StatsHome;
use crate::process::signals::Signals;
use crate::process::wakeup::Gate;
use crate::swap::space::SwapSpace;

/// The engine of one arena.
pub(crate) struct Engine {
    table: Table,
    ram: Ram,
    swap: SwapSpace,
    policy: Policy,
    faults: Faults,
    reclaim: Reclaim,
    compactor: Compactor,
    signals: Signals,
    stats: Arc<StatsHome>,
    clock: Clock,
}

impl Engine {
    pub fn new(
        table: Table,
        ram: Ram,
        swap: SwapSpace,
        policy: Policy,
        faults: Faults,
        compactor: Compactor,
        stats: Arc<StatsHome>,
    ) -> Result<Self, Error> {
        let reclaim = Reclaim::new(ram.zones())?;
        let (signals, clock) = (Signals::default(), Clock::new());
        Ok(Engine { table, ram, swap, policy, faults, reclaim, compactor, signals, stats, clock })
    }

    /// The managed addresses and the folio table.
    pub fn table(&self) -> &Table {
        &self.table
    }

    pub fn ram(&self) -> &Ram {
        &self.ram
    }

    pub fn swap(&self) -> &SwapSpace {
        &self.swap
    }

    /// What decides about orders, streams and readahead.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// How faults are delivered, and what is known of lost pages.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// What is on its way out of RAM.
    pub fn reclaim(&self) -> &Reclaim {
        &self.reclaim
    }

    pub fn compactor(&self) -> &Compactor {
        &self.compactor
    }

    pub fn signals(&self) -> &Signals {
        &self.signals
    }

    pub fn gate(&self) -> &Gate {
        self.signals.gate()
    }

    /// Whether the arena ends.
    pub fn stopping(&self) -> bool {
        self.signals.stopping()
    }

    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Calls `visit` with each block that was ever mapped, locked. A thread that wants the block, and a fork, wait for
    /// one call at most. Ends at the first error.
    pub fn each_block<E>(&self, mut visit: impl FnMut(&mut Locked<'_>) -> Result<(), E>) -> Result<(), E> {
        self.table.blocks().try_for_each(|block| {
            let _blocked = signals::block_all(); // a signal handler might touch this block
            let _pass = self.gate().enter(signals::thread_id());
            visit(&mut self.table.lock(block))
        })
    }

    /// Scans the page tables of regions and frames for bytes in RAM, and notes the huge ones in the statistics.
    pub fn measure(&self) -> std::io::Result<Scan> {
        let frames = self.ram.frames();
        let homes = self.ram.scan(frames.range().start..frames.nursery().end)?;
        let regions = self.ram.scan(self.table.span())?;
        let scan = Scan {
            present_bytes: regions.present_bytes + homes.present_bytes,
            huge_bytes: regions.huge_bytes + homes.huge_bytes,
        };
        self.stats.huge_resident_bytes.set(scan.huge_bytes);
        Ok(scan)
    }

    /// Metadata in use, in bytes: folio table, zones, and the slot records of the devices.
    pub fn metadata_bytes(&self) -> usize {
        self.table.bytes() + self.ram.zones().bytes() + self.swap.metadata_bytes()
    }
}
