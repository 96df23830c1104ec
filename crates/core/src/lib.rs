//! The memory management of folioswap: no system call, thread, clock, randomness or global state. The same inputs give
//! the same result, so this code runs under the engine, a simulator, property tests and a model checker alike.
//!
//! [`folio`] maps addresses to the place of their content, [`frame`] manages frames of RAM and [`swap`] the slots of
//! devices. [`compact`] makes whole blocks of either, [`pool`] places compressed folios, [`policy`] decides on
//! readahead and eviction, and [`stats`] counts. [`order`] and [`id`] define the units.
//!
//! Calls made by fault handlers (all but constructors, [`FolioTable::ensure`] and functions that say so) do not
//! allocate, except for a block's entry in the folio table. Lock order: a block of the folio table, then one mutex in
//! here, a leaf except where [`swap`] and [`frame`] state an order. Signal handlers may take them as long as no managed
//! memory is touched under them.
//!
//! Its files and folders, from the ground up. Each uses only those above it here (a test holds that).
//!
//! | place | what it is about |
//! |---|---|
//! | `order` | the sizes of folios |
//! | `id` | the types of numbers |
//! | `packed` | numbers of 40 bits |
//! | `page_set` | sets of a block's pages |
//! | `sync` | mutexes and atomics, or those of the model checker |
//! | `ranges` | sets of ranges |
//! | `sparse` | tables of two levels |
//! | `stats` | what is counted, and latencies |
//! | `pool` | places of compressed pieces |
//! | `policy` | what is read ahead, kept back and read as a whole |
//! | `swap` | slots of devices |
//! | `folio` | the folio table |
//! | `frame` | frames of RAM |
//! | `compact` | which folios move, so that blocks become free |
#![forbid(unsafe_code)]

pub mod compact;
pub mod folio;
pub mod frame;
pub mod id;
pub mod order;
mod packed;
pub mod page_set;
pub mod policy;
pub mod pool;
pub mod ranges;
mod sparse;
pub mod stats;
pub mod swap;
pub mod sync;

pub use folio::{Ahead, Entry, Folio, FolioTable, HashKey, Locked, State};
pub use frame::{
    Contiguity, List, ListCounts, Memory, Miss, Oldest, Pageblocks, Shortage, Size, Taken, Watermarks, Zone,
    ZoneCounts, Zones,
};
pub use id::{BlockId, ClusterId, CpuId, DeviceId, FolioId, FrameId, NodeId, SlotId, SpaceBlockId, UnitId};
pub use order::{BLOCK_BYTES, BLOCK_PAGES, BLOCK_PIECES, MAX_ORDER, NR_ORDERS, Order, PAGE_SIZE, PIECE};
pub use page_set::PageSet;
pub use policy::drop_behind::{DropBehind, Stay};
pub use policy::history::History;
pub use policy::neighbours::Neighbours;
pub use policy::order_choice::{Choice, OrderChoice, Pressure, Wish};
pub use policy::readahead::{Room, StreamAdvice, Streams, Windows};
pub use policy::row::Row;
pub use ranges::RangeSet;
pub use stats::{
    ByOrder, Counter, DeviceFailure, DeviceIo, DeviceRecord, DeviceTransfers, Direction, FaultKind, FaultTimes, Gauge,
    GaugeSnapshot, Histogram, HistogramSnapshot, PHASES_OF_ONE_IN, Phase, ProcessMemory, ProcessRecord, Stats,
    StatsSnapshot, is_drawn,
};
pub use swap::{Attempt, Availability, Clusters, Freed, Listed, Priority, SlotCache};
