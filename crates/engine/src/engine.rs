//! The engine of one arena: the sum of its parts. Each part keeps its state to itself. What is done to one block
//! is in `block`. The flows, in the folders `reclaim`, `relocate`, `compact`, `fault` and `manage`, name the parts that
//! they use.
//!
//! Lock order: the lock of a block of the folio table; then the compactor's lock, in a fault that compacts; then one
//! leaf lock (a zone with its per-CPU frames, freed slots and clusters, streams, order choice, or queue). Never hold
//! two leaf locks. A second block is locked only with `try_lock`. Managed memory is never touched under any of these
//! locks. Before all of them, `Table::changing`: whoever changes what is managed.

use std::ops::Deref;
use std::time::Duration;

use folioswap_core::{BlockId, Order, Taken};
use folioswap_sys::descendants::Descendants;
use folioswap_sys::pagemap::Scan;
use folioswap_sys::signals::{self, Blocked};
use folioswap_sys::uffd::Userfaultfd;

use crate::block::Parts;
use crate::config::error::Error;
use crate::memory::compactor::Compactor;
use crate::memory::hold_counts::HoldCounts;
use crate::memory::patience::Patience;
use crate::policy::Policy;
use crate::process::lifecycle::Lifecycle;
use crate::process::renewable::Renewable;
use crate::process::turns::Waits;
use crate::process::wakeup::{Gate, Pass};
use crate::swap::info;
use crate::swap::read_queue::ReadQueue;
use crate::swap::writeback::Writeback;

/// What frees frames for a fault that finds none, on the fault's own thread.
pub(crate) trait DirectReclaim: Send + Sync {
    /// Frees frames for a folio of this order. `false`: nothing could be done.
    fn reclaim(&self, engine: &Engine, order: Order) -> bool;

    /// Moves folios until there is a whole pageblock, and takes it.
    fn compact(&self, engine: &Engine) -> Option<Taken>;

    /// Gives up all copies that folios in RAM keep in swap. `false`: there were none.
    fn shed_copies(&self, engine: &Engine) -> bool;
}

/// The engine of one arena: the parts that hold content, and the others.
pub(crate) struct Engine {
    parts: Parts,
    direct: Box<dyn DirectReclaim>,
    policy: Policy,
    compactor: Compactor,
    writeback: Writeback,
    reads: Renewable<ReadQueue>,
    patience: Patience,
    holds: HoldCounts,
    lifecycle: Lifecycle,
}

/// Held while a thread of the program is inside the gate. Signals are delivered once it has left.
pub(crate) struct Inside<'e> {
    _pass: Pass<'e>,
    _blocked: Blocked,
}

impl Deref for Engine {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.parts
    }
}

impl Engine {
    pub fn new(
        parts: Parts,
        policy: Policy,
        compactor: Compactor,
        direct: Box<dyn DirectReclaim>,
        patience: Duration,
    ) -> Result<Self, Error> {
        let descendants = Descendants::new().map_err(Error::system("making what tells of forked children"))?;
        Ok(Engine {
            writeback: Writeback::new(parts.ram().zones().all().len())?,
            parts,
            direct,
            policy,
            compactor,
            reads: Renewable::new(ReadQueue::new()),
            patience: Patience::new(patience),
            holds: HoldCounts::default(),
            lifecycle: Lifecycle::new(descendants),
        })
    }

    /// What frees frames for faults.
    pub fn direct(&self) -> &dyn DirectReclaim {
        &*self.direct
    }

    /// What reports faults.
    pub fn uffd(&self) -> &Userfaultfd {
        self.ram().mapper().uffd()
    }

    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    pub fn compactor(&self) -> &Compactor {
        &self.compactor
    }

    pub fn writeback(&self) -> &Writeback {
        &self.writeback
    }

    pub fn reads(&self) -> &ReadQueue {
        &self.reads
    }

    /// How long faults wait for frames.
    pub fn patience(&self) -> &Patience {
        &self.patience
    }

    /// What calls and devices need in RAM.
    pub fn holds(&self) -> &HoldCounts {
        &self.holds
    }

    /// In a forked child: no thread waits for what is to be read.
    pub fn forget_threads(&self) {
        self.reads.renew(ReadQueue::new());
    }

    pub fn lifecycle(&self) -> &Lifecycle {
        &self.lifecycle
    }

    pub fn gate(&self) -> &Gate {
        self.lifecycle.gate()
    }

    /// Enters the gate with signals blocked, for a thread of the program: a signal handler might touch managed memory,
    /// and wait for what this thread holds.
    pub fn enter(&self) -> Inside<'_> {
        let blocked = signals::block_all();
        Inside { _pass: self.gate().enter(signals::thread_id()), _blocked: blocked }
    }

    /// Enters the gate for a thread, in a flow that waits in its own way.
    pub async fn enter_for(&self, thread: u32, waits: Waits<'_>) -> Pass<'_> {
        waits.until(|| self.gate().enter(thread), || self.gate().try_enter(thread)).await
    }

    pub fn stopping(&self) -> bool {
        self.lifecycle.stopping()
    }

    /// Calls `visit` with each block in use that was ever mapped, inside the gate and with signals blocked. Ends at the
    /// first error. `is_over` is asked before each block, outside the gate; if it ends the walk, this returns `false`.
    pub fn each_block_in_use<E>(
        &self,
        is_over: impl Fn() -> bool,
        mut visit: impl FnMut(BlockId) -> Result<(), E>,
    ) -> Result<bool, E> {
        let blocks = {
            let _inside = self.enter();
            self.table().in_use()
        };
        for block in blocks.into_iter().flatten().map(BlockId::from_index).filter(|&block| self.table().has(block)) {
            if is_over() {
                return Ok(false);
            }
            let _inside = self.enter();
            visit(block)?;
        }
        Ok(true)
    }

    /// Scans the page tables of regions and frames for bytes in RAM, and notes the huge ones in the statistics.
    pub fn measure(&self) -> std::io::Result<Scan> {
        let frames = self.ram().frames();
        let pagemap = self.ram().mapper().pagemap();
        let homes = pagemap.scan(frames.range().start..frames.nursery().end)?;
        let mut scan = homes;
        let in_use = {
            let _inside = self.enter();
            self.table().in_use()
        };
        for blocks in in_use {
            let addresses = [blocks.start, blocks.end].map(|block| self.table().block_addr(BlockId::from_index(block)));
            let regions = pagemap.scan(addresses[0]..addresses[1])?;
            scan.present_bytes += regions.present_bytes;
            scan.huge_bytes += regions.huge_bytes;
        }
        self.stats().huge_resident_bytes.set(scan.huge_bytes);
        Ok(scan)
    }

    /// Metadata in use, in bytes: folio table, zones, and the slot records of the devices.
    pub fn metadata_bytes(&self) -> usize {
        self.table().bytes() + self.ram().zones().bytes() + info::metadata_bytes(self.swap().devices())
    }
}
