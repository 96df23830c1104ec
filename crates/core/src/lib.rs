//! The memory management of folioswap, and nothing else: no system call, no thread, no clock, no randomness, no global
//! state. The same inputs give the same result, so this code runs under the engine, under property tests and under a
//! model checker alike.
//!
//! - [`order`], [`id`]: the units.
//! - [`compact`]: two scanners that move folios together, so that whole blocks of frames or of slots become free.
//! - [`folio`]: the table from an address to where its content is, with a lock for each 2 MiB.
//! - [`frame`]: the zone: frames of folios of every order, who is in them, and the lists that reclaim works on.
//! - [`swap`]: the slots of a device, from clusters by CPU and order, freed slots on their way back to them, and which
//!   device is used next on which node.
//! - [`pool`]: memory for compressed folios, by size classes.
//! - [`policy`]: readahead, drop-behind, and the order in which a block comes back.
//! - [`stats`]: counters and latency histograms that may live in memory shared between processes.
//!
//! What a fault handler calls (everything but the constructors, [`FolioTable::ensure`] and
//! [`Clusters::grow`]) allocates nothing, but for what the folio table notes of a block.
//!
//! Lock order: a block of the folio table, then one of the mutexes in here; each is a leaf (no call made under it takes
//! another lock), but for the few that [`swap`] and [`frame`] take in the order they state. They may be taken in a signal handler as
//! long as no managed memory is touched under them.
#![forbid(unsafe_code)]

pub mod compact;
pub mod folio;
pub mod frame;
pub mod id;
pub mod order;
mod packed;
pub mod policy;
pub mod pool;
mod sparse;
pub mod stats;
pub mod swap;
pub mod sync;

pub use folio::{BLOCK_PAGES, BLOCK_PIECES, Block, Folio, FolioTable, HashKey, Locked, PIECE, State};
pub use frame::{ClassCounts, Contiguity, List, Memory, Oldest, Size, Taken, Watermarks, Zone, ZoneCounts, Zones};
pub use id::{BlockId, ClusterId, CpuId, DeviceId, FolioId, FrameId, NodeId, SlotId, SpaceBlockId, UnitId};
pub use order::{MAX_ORDER, NR_ORDERS, Order, PAGE_SIZE};
pub use policy::drop_behind::DropBehind;
pub use policy::order_choice::{Choice, OrderChoice, Wish};
pub use policy::overrun::{Access, Overruns};
pub use policy::readahead::{Advice, Room, Streams, Windows};
pub use stats::{
    ByOrder, Counter, DeviceFailure, DeviceIo, DeviceRecord, DeviceTransfers, Direction, FaultKind, FaultTimes, Gauge,
    GaugeSnapshot, Histogram, HistogramSnapshot, PHASES_OF_ONE_IN, Phase, ProcessMemory, ProcessRecord, Stats,
    StatsSnapshot, is_drawn,
};
pub use swap::{Attempt, Availability, Clusters, Freed, Listed, Priority, SlotCache};
