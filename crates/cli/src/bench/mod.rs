//! `folioswap bench`: the benchmarks, and what they share.
//!
//! A benchmark is a file with its arguments and a function from them to an exit status, a variant of [`BenchCommand`] and an arm
//! of [`run`]. Shared: the report and its JSON form (`report`), lines and bar (`progress`), medians (`medians`), arenas from the
//! command line (`setup`), a turn under the kernel's swap (`kernel_turn`), memory that is checked at each access (`pages`), what it is
//! filled with (`records`), the places of accesses (`access`), and what data took in compressed swap (`stored`).

mod access;
mod alloc;
mod auto;
mod compact;
mod compact_mix;
mod compact_slots;
mod devices;
mod first_touch;
mod fragment;
mod kernel_turn;
mod latency;
mod latency_plot;
mod latency_report;
mod latency_turn;
mod medians;
mod mix;
mod nodes;
mod orders;
mod pages;
mod progress;
mod random;
pub mod random_command;
mod raw;
mod records;
mod report;
mod setup;
mod stored;
mod sweep;
pub mod sweep_command;
mod sweep_managed;
mod sweep_pages;
mod tier;

use crate::exit::Failure;
use clap::Subcommand;

/// The benchmarks.
#[derive(Subcommand, Debug)]
pub enum BenchCommand {
    /// Threads write their shares of one array from begin to end, then read and check every word
    Sweep(sweep_command::SweepArgs),
    /// Threads read, change and write places chosen at random, each checked; operations a second and their latencies
    Random(random_command::RandomArgs),
    /// The sweep with folios of 4K, 64K and 2M: whole runs of slots against single slots
    Orders(orders::OrdersArgs),
    /// How often a folio finds no whole run of slots while an area nearly as large as its device is dropped and filled
    Fragment(fragment::FragmentArgs),
    /// Folio sizes against each other, and against the engine's own choice, on five workloads
    Auto(auto::AutoArgs),
    /// How many folios of 2M find a place in RAM, or on a device, that small ones have scattered, with compaction and without
    Compact(compact::CompactArgs),
    /// How long swap-ins take at a steady rate while slots are being freed: in batches in the fault, or as the engine does it
    ///
    /// In an open loop: each touch has its time, and counts from there. Without --swap the device is RAM, of 5/4 of --size: more than
    /// half full, it keeps no copies. Faults are direct unless --faults says monitor, whose wake-ups would be most of what is seen.
    /// Then first touches of 2M are timed, with the stock of zeroed memory and without
    Latency(latency::LatencyArgs),
    /// The slot allocator alone: nanoseconds for an allocation and a free, beside the same with its cache of freed slots, and one lock
    Alloc(alloc::AllocArgs),
    /// Two devices of one speed on two NUMA nodes: the nearest first, against one list for all and against equal priorities
    Nodes(nodes::NodesArgs),
    /// Two disks of equal priority: against each of them alone, and against direct reads and writes on both at once
    ///
    /// Takes --swap twice, files or block devices. Block devices are overwritten by both.
    Devices(devices::DevicesArgs),
    /// Compressed RAM in front of a file against the file alone, while a tenth of the memory is wanted most of the time
    ///
    /// Pages of 4K are read, checked and written at random, nine of ten in a tenth of the memory, which RAM has about room for; they
    /// compress to a third. What the front has no room for has gone on to the file before anything is counted
    Tier(tier::TierArgs),
}

/// Runs one.
pub fn run(command: &BenchCommand) -> Result<u8, Failure> {
    match command {
        BenchCommand::Sweep(args) => sweep_command::sweep(args),
        BenchCommand::Random(args) => random_command::random(args),
        BenchCommand::Orders(args) => orders::orders(args),
        BenchCommand::Fragment(args) => fragment::fragment(args),
        BenchCommand::Auto(args) => auto::auto(args),
        BenchCommand::Compact(args) => compact::compact(args),
        BenchCommand::Latency(args) => latency::latency(args),
        BenchCommand::Alloc(args) => alloc::alloc(args),
        BenchCommand::Nodes(args) => nodes::nodes(args),
        BenchCommand::Devices(args) => devices::devices(args),
        BenchCommand::Tier(args) => tier::tier(args),
    }
}
