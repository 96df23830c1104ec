//! Memory larger than RAM behind ordinary pointers, on Linux, in user space.
//!
//! An [`Arena`] has a budget of RAM and swap devices. [`Arena::map`] returns a [`Region`] (or use an [`ArenaVec`]):
//! memory that may be larger than the budget. It is swapped in when touched and swapped out when cold, in large folios:
//! a 2 MiB huge page is swapped out and in as one piece, and is a huge page again afterwards.
//!
//! ```
//! use folioswap::{Arena, ArenaVec};
//!
//! let arena = Arena::builder().memory(16 << 20).build()?;
//! let mut squares = ArenaVec::<u64>::zeroed(&arena, 8 << 20)?; // 64 MiB in 16 MiB of RAM
//! for (i, square) in squares.iter_mut().enumerate() {
//!     *square = (i as u64).wrapping_mul(i as u64);
//! }
//! assert_eq!(squares[1_000_000], 1_000_000_000_000);
//! assert!(arena.stats().swapped_out_bytes > 32 << 20);
//! # Ok::<(), folioswap::Error>(())
//! ```
//!
//! Collections that take an allocator (`allocator-api2`), such as hashbrown's, take an [`ArenaHeap`]. What takes its
//! memory from the global allocator only, such as bumpalo's `Bump`, needs one that asks an [`ArenaHeap`]:
//! `examples/bumpalo.rs` has it.
//!
//! A fault costs about 5 us if the folio is still in RAM, otherwise a read of the device. Sequential accesses are
//! served by readahead. `ARCHITECTURE.md` in the repository tells how memory is swapped in and out.

mod arena;
mod block;
mod compact;
mod config;
pub mod device;
mod engine;
mod fault;
mod manage;
mod memory;
mod policy;
mod process;
mod reclaim;
mod relocate;
mod swap;
#[cfg(test)]
mod tests;

pub use arena::advice::Advice;
pub use arena::by_address::{RawSpace, Replaced};
pub use arena::doctor::{Finding, Verdict, doctor};
pub use arena::fork::Forking;
pub use arena::heap::{ArenaHeap, LARGE_BYTES};
pub use arena::inherit::register_fork_handlers;
pub use arena::region::{ArenaVec, Region};
#[doc(hidden)]
pub use arena::run_settings::RunSettings;
#[doc(hidden)]
pub use arena::tuning::Tuning;
pub use arena::usage::Usage;
pub use arena::{Arena, ArenaBuilder, Residency, choose_faults};
pub use config::error::{Error, UnknownName};
pub use config::exit_status::ExitStatus;
pub use config::fault_mode::{FaultChoice, FaultMode};
pub use config::folio_size::{FolioSize, FolioSizeError};
pub use config::limits::{MAX_DEVICE_BYTES, MAX_DEVICES, MAX_MEMORY, MIN_MEMORY};
pub use config::mapping::Mapping;
pub use config::size::{Bytes, SizeError, parse_memory, parse_size};
pub use config::swap_in_policy::SwapIn;
pub use device::topology::{Topology, TopologyError};
pub use device::{Codec, DeviceSpec, MemoryUse, SwapDevice, SwapDeviceError};
pub use fault::direct::behind_sigbus;
pub use fault::monitor::works_for;
pub use folioswap_core::{
    BLOCK_BYTES, DeviceIo, DeviceTransfers, HistogramSnapshot, NodeId, Order, PAGE_SIZE, Priority, ProcessMemory,
    RangeSet, Stats, StatsSnapshot,
};
pub use manage::remap::Relocation;
pub use memory::compactor::CompactionMeans;
pub use memory::mlock::check_lock;
pub use memory::selftest::{SelfTest, self_test};
#[doc(hidden)]
pub use memory::waited::Waited;
pub use process::fatal::end_on_panics;
pub use process::shared_stats::{SharedCounters, SharedStats, StatsPlace, open_shared_stats};
pub use process::stopwatch::Stopwatch;
pub use process::threads::{internal_thread, is_internal, wait_for_starting};
#[doc(hidden)]
pub use swap::attached::Frees;
pub use swap::health::{DeviceErrors, DeviceState};
pub use swap::info::DeviceInfo;

/// The example in README, which is compiled and run with the documentation's.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
