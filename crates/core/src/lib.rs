//! The memory management of folioswap, and nothing else: no system call, no thread, no clock, no randomness, no global
//! state. The same inputs give the same result, so this code runs under the engine, under property tests and under a
//! model checker alike.
//!
//! - [`order`], [`id`]: the units.
//! - [`folio`]: the table from a folio to its state, with a lock bit for each folio.
//! - [`zone`]: the blocks of frames, who is in them, and the lists that reclaim works on.
//! - [`swap`]: which slots of the swap space are taken.
//! - [`policy`]: readahead and drop-behind.
//! - [`stats`]: counters and latency histograms that may live in memory shared between processes.
//!
//! What a fault handler calls (everything but the constructors, [`FolioTable::ensure`] and [`SlotMap::grow`]) allocates
//! nothing.
//!
//! Lock order: a folio's entry lock, then one of the mutexes in here; each mutex is a leaf (no call made under it takes
//! another lock), so they may be taken in a signal handler as long as no managed memory is touched under them.
#![forbid(unsafe_code)]

pub mod folio;
pub mod id;
pub mod order;
pub mod policy;
pub mod stats;
pub mod swap;
pub mod sync;
pub mod zone;

pub use folio::{FolioTable, Locked, Park, Peek, State};
pub use id::{CpuId, DeviceId, FolioId, FrameId, NodeId, SlotId};
pub use order::{MAX_ORDER, Order, PAGE_SIZE};
pub use policy::drop_behind::DropBehind;
pub use policy::readahead::{Advice, Room, Streams, Windows};
pub use stats::{Counter, FaultKind, Gauge, GaugeSnapshot, Histogram, HistogramSnapshot, Stats, StatsSnapshot};
pub use swap::{SlotAllocator, SlotMap};
pub use zone::{List, Taken, Watermarks, Zone, ZoneCounts};
