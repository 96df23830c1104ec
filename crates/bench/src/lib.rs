//! The benchmarks of `folioswap bench`, and what they share.
//!
//! A benchmark is a module with its arguments and a function from them to an exit status, a variant of
//! [`BenchCommand`], and an arm of [`run`]. What several of them use is in `shared`; `peer` sets the kernel's swap up
//! to compare with. A [`Step`] is a hidden subcommand with which a benchmark, or that set-up, starts itself again.

#![forbid(unsafe_code)]

mod alloc;
mod auto;
mod calls;
mod compact;
mod devices;
mod latency;
mod nodes;
mod peer;
mod random;
mod shared;
mod sweep;
mod tier;

use clap::Subcommand;
use folioswap_command::exit::Failure;
use folioswap_command::later::Later;
use shared::progress::check_told;

/// The benchmarks.
#[derive(Subcommand, Debug)]
pub enum BenchCommand {
    /// Threads write their shares of one array from start to end, then read and check every word
    Sweep(sweep::args::SweepArgs),
    /// Threads read, change and write pages at random and check each access; operations per second and their
    /// latencies
    Random(random::command::RandomArgs),
    /// Fixed folio sizes against each other and against the engine's own choice, on five workloads
    Auto(auto::AutoArgs),
    /// How many 2M folios find a place in RAM, or on a device, that small folios have fragmented, with and without
    /// compaction
    Compact(compact::CompactArgs),
    /// Latency of swap-ins at a steady rate while slots are being freed: in batches in the fault, or as the engine
    /// does it
    ///
    /// The benchmark is an open loop: each touch is due at a fixed time and its latency counts from there. Without
    /// --swap the device is RAM, 5/4 the size of --size. It is more than half full and therefore keeps no copies.
    /// Faults are direct unless --faults says monitor, because the wake-ups of monitor mode would dominate the
    /// result.
    Latency(latency::LatencyArgs),
    /// The slot allocator alone: nanoseconds for an allocation and a free, compared with a cache of freed slots and
    /// with one lock
    Alloc(alloc::AllocArgs),
    /// Memory calls under `run`, compared with the kernel alone: mmap, munmap, mprotect, mremap, madvise, fork
    Calls(calls::CallsArgs),
    /// Two equally fast devices on two NUMA nodes: nearest first, compared with one list for all and with equal
    /// priorities
    Nodes(nodes::NodesArgs),
    /// Two disks of equal priority, compared with each of them alone and with direct reads and writes on both at once
    ///
    /// Takes --swap twice: files or block devices. The content of block devices is overwritten.
    Devices(devices::DevicesArgs),
    /// Compressed RAM in front of a file, compared with the file alone, while most accesses go to a tenth of the
    /// memory
    ///
    /// Pages of 4K are read, checked and written at random. Nine of ten accesses go to a tenth of the memory, which
    /// about fits in RAM. The pages compress to a third. What the compressed RAM cannot hold has been written back to
    /// the file before anything is counted.
    Tier(tier::TierArgs),
}

/// Runs a benchmark.
pub fn run(command: &BenchCommand) -> Result<u8, Failure> {
    let status = match command {
        BenchCommand::Sweep(args) => sweep::command::sweep(args),
        BenchCommand::Random(args) => random::command::random(args),
        BenchCommand::Auto(args) => auto::auto(args),
        BenchCommand::Compact(args) => compact::compact(args),
        BenchCommand::Latency(args) => latency::latency(args),
        BenchCommand::Alloc(args) => alloc::alloc(args),
        BenchCommand::Calls(args) => calls::calls(args),
        BenchCommand::Nodes(args) => nodes::nodes(args),
        BenchCommand::Devices(args) => devices::devices(args),
        BenchCommand::Tier(args) => tier::tier(args),
    }?;
    check_told()?;
    Ok(status)
}

/// Hidden subcommands.
#[derive(Subcommand, Debug)]
pub enum Step {
    /// Runs a program under kernel swap, in a memory cgroup.
    #[command(name = "__kernel", hide = true)]
    Kernel(Later<peer::kernel::KernelArgs>),
    /// Sets up kernel swap for its parent and undoes it when the parent ends.
    #[command(name = "__guard", hide = true)]
    Guard(Later<peer::guard::GuardArgs>),
    /// Times memory calls.
    #[command(name = "__calls", hide = true)]
    Calls(Later<calls::InnerArgs>),
    /// Sweeps the memory of an ordinary process.
    #[command(name = "__sweep", hide = true)]
    Sweep(Later<sweep::args::Shape>),
    /// Accesses the memory of an ordinary process at random.
    #[command(name = "__random", hide = true)]
    Random(Later<random::command::Shape>),
}

/// Runs a hidden subcommand. `find` finds the file of a program.
pub fn step(step: &Step, find: peer::kernel::Find) -> Result<u8, Failure> {
    match step {
        Step::Kernel(Later(args)) => peer::kernel::kernel(args, find),
        Step::Guard(Later(args)) => peer::guard::guard(args),
        Step::Calls(Later(args)) => calls::inner(args),
        Step::Sweep(Later(args)) => sweep::command::inner(args),
        Step::Random(Later(args)) => random::command::inner(args),
    }
}
