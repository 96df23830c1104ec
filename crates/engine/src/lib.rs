//! Memory larger than RAM behind ordinary pointers, on Linux, in user space.
//!
//! An [`Arena`] has a budget of RAM and swap devices. [`Arena::map`] returns a [`Region`] (or use an [`ArenaVec`]):
//! memory that may be larger than the budget. It is swapped in when touched and swapped out when cold, in large folios:
//! a 2 MiB huge page is swapped out and in as one piece, and is a huge page again afterwards.
//!
//! ```no_run
//! use folioswap::{Arena, ArenaVec};
//!
//! let arena = Arena::builder().memory(512 << 20).build()?;
//! let mut squares = ArenaVec::<u64>::zeroed(&arena, 1 << 28)?; // 2 GiB in 512 MiB of RAM
//! for (i, square) in squares.iter_mut().enumerate() {
//!     *square = (i as u64).wrapping_mul(i as u64);
//! }
//! # Ok::<(), folioswap::Error>(())
//! ```
//!
//! A fault costs about 5 us if the folio is still in RAM, otherwise a read of the device. Sequential accesses are
//! served by readahead. See `ARCHITECTURE.md` for swap-in and swap-out.

mod address_space;
mod advise;
mod arena;
mod attached;
#[cfg(test)]
mod bad_device_tests;
mod checksum;
mod compactd;
pub mod device;
mod discard;
mod doctor;
mod engine;
mod error;
mod evacuation;
mod exchange;
mod failing;
mod fatal;
mod fault;
#[cfg(test)]
mod fault_plan_tests;
mod folio_size;
mod forking;
mod frames;
mod freeing;
mod gather;
#[cfg(test)]
mod hang_tests;
mod io_figures;
mod kept;
mod lent;
mod locking;
mod lost;
mod map;
#[cfg(test)]
mod monitor_tests;
#[cfg(test)]
mod next_device_tests;
mod outgoing;
mod overrun;
mod pager;
mod parts;
mod raw;
mod readahead;
mod reclaim;
mod reclaimd;
mod region;
mod rehome;
mod removal;
mod sealing;
mod selftest;
mod setup;
mod shared_stats;
mod size;
mod slot_compaction;
mod space;
mod stopwatch;
mod supply;
mod swap_in;
mod threads;
mod tiering;
mod topology;
mod transfer;
mod wakeup;
mod zeroed;
mod zoning;

pub use advise::Advice;
pub use arena::{Arena, ArenaBuilder, Mapping, Residency};
#[doc(hidden)]
pub use attached::Frees;
pub use device::{Codec, DeviceSpec, MemoryUse, SwapDevice, SwapDeviceError};
pub use doctor::{Finding, Verdict, doctor};
pub use error::{Error, MAX_ADDRESS_SPACE, MAX_MEMORY, MIN_MEMORY};
#[doc(hidden)]
pub use exchange::Means as CompactionMeans;
pub use failing::{DeviceErrors, DeviceState};
pub use fatal::EXIT_MEMORY;
pub use fault::{FaultMode, UnknownName};
pub use folio_size::{FolioSize, FolioSizeError};
pub use folioswap_core::{
    DeviceIo, DeviceTransfers, HistogramSnapshot, NodeId, Order, Priority, ProcessMemory, Stats, StatsSnapshot, Wish,
};
pub use locking::check_lock;
pub use raw::RawSpace;
pub use region::{ArenaVec, Region};
#[doc(hidden)]
pub use sealing::WholeFolio;
pub use selftest::{SelfTest, self_test};
pub use shared_stats::{SharedCounters, SharedStats, open_shared_stats};
pub use size::{Bytes, SizeError, parse_size};
pub use space::{DeviceInfo, MAX_DEVICE_BYTES, MAX_DEVICES};
pub use stopwatch::Stopwatch;
pub use swap_in::SwapIn;
pub use threads::internal_thread;
pub use topology::{Topology, TopologyError};
