//! The types of arguments that several subcommands share, and how their values are parsed. Whether a value makes sense
//! on this machine is checked later.

use crate::exit::Failure;
use clap::Args;
use clap::builder::{OsStringValueParser, PathBufValueParser, TypedValueParser};
use folioswap::{
    Arena, ArenaBuilder, FaultMode, FolioSize, Mapping, SwapDevice, SwapIn, Topology, parse_memory, parse_size,
};
use std::path::{Path, PathBuf};

/// Heading in the help of the options for the budget and the swap devices.
pub const BUDGET_AND_SWAP: &str = "Budget and swap";
/// Heading of the options for folios and faults.
pub const FOLIOS_AND_FAULTS: &str = "Folios and faults";
/// Heading of the options for what is said at the end.
pub const REPORTS: &str = "Reports";

/// Budget and paging options that all paging subcommands share.
#[derive(Args, Clone, Debug)]
pub struct Paging {
    /// RAM that the managed memory may use, at least 16M: 512M, 2G, 50%
    ///
    /// A share such as 50% is of the machine's RAM, or of the memory cgroup's limit around the command if that is
    /// lower.
    #[arg(long, value_name = "SIZE", value_parser = memory, help_heading = BUDGET_AND_SWAP)]
    pub memory: u64,
    /// The other options.
    #[command(flatten)]
    pub options: PagingOptions,
}

/// Paging options that do not depend on the budget.
#[derive(Args, Clone, Debug)]
pub struct PagingOptions {
    /// Where the rest goes, repeatable: PATH, PATH:SIZE, ram:SIZE or zram:SIZE (compressed). Default: in /var/tmp
    ///
    /// PATH is a file, which is made, or a block device. For RAM, SIZE is the most memory that it takes, outside the
    /// budget; compressed RAM writes its oldest folios back to the devices after it. The default is an unnamed file in
    /// $FOLIOSWAP_DIR, or in /var/tmp if that is not set.
    ///
    /// Options follow after commas. `prio=N` (0 to 32767): devices of higher priority are used first, devices of equal
    /// priority take turns. Devices without a priority come last: first the one on the NUMA node of the memory, then
    /// the others in the order given. `node=N`: the NUMA node of the device. `algo=lz4` or `algo=zstd`: how `zram`
    /// compresses. `force=yes`: use a block device that holds a file system or partitions and destroy them; a device in
    /// use is always refused.
    #[arg(long, value_name = "DEVICE", value_parser = swap_device(), help_heading = BUDGET_AND_SWAP)]
    pub swap: Vec<SwapDevice>,
    /// File that states which CPUs and devices belong to which NUMA node, overriding the kernel
    ///
    /// Lines like `node 0 cpus 0-3` and `device /mnt/a/swap node 0`.
    #[arg(long, value_name = "FILE", help_heading = BUDGET_AND_SWAP)]
    pub topology: Option<PathBuf>,
    /// Which thread resolves faults: the one that has them (direct), or one of the engine (monitor)
    ///
    /// `monitor` needs permission, see `folioswap doctor`; `auto` takes it where it is permitted.
    #[arg(
        long, value_name = "auto|direct|monitor", default_value = "auto", value_parser = parsed::<FaultMode>,
        help_heading = FOLIOS_AND_FAULTS
    )]
    pub faults: FaultMode,
    /// How folios are mapped: moved, or copied where the kernel cannot move them
    #[arg(
        long, value_name = "auto|move|copy", default_value = "auto", value_parser = parsed::<Mapping>,
        help_heading = FOLIOS_AND_FAULTS
    )]
    pub mapper: Mapping,
}

impl PagingOptions {
    /// An arena's builder with these options.
    pub fn builder(&self) -> Result<ArenaBuilder, Failure> {
        let builder = Arena::builder().faults(self.faults).mapping(self.mapper);
        let builder = self.swap.iter().cloned().fold(builder, ArenaBuilder::device);
        let topology = self.topology.as_deref().map(Topology::from_file).transpose()?;
        Ok(topology.into_iter().fold(builder, ArenaBuilder::topology))
    }

    /// Checks that the swap devices can be used, before anything is set up. Returns them with absolute paths.
    pub fn check_swap(&self) -> Result<Vec<SwapDevice>, Failure> {
        Ok(self.builder()?.check_devices()?)
    }
}

/// Folio size and swap-in policy of one arena.
#[derive(Args, Clone, Debug)]
pub struct Folios {
    /// Folio size, a power of two from 4K to 2M; with `auto` the engine chooses for each 2 MiB
    #[arg(
        long, value_name = "auto|2M|64K|4K|...", default_value = "auto", value_parser = parsed::<FolioSize>,
        help_heading = FOLIOS_AND_FAULTS
    )]
    pub folio: FolioSize,
    /// Whether a folio that was swapped out whole comes back whole
    ///
    /// Always, only where the program advised huge pages, or never.
    #[arg(
        long, value_name = "always|madvise|never", default_value = "always", value_parser = parsed::<SwapIn>,
        help_heading = FOLIOS_AND_FAULTS
    )]
    pub swap_in: SwapIn,
}

/// Rejects a budget that no arena can have before any other work is done.
pub fn check_budget(memory_bytes: u64) -> Result<(), Failure> {
    match memory_bytes {
        0..folioswap::MIN_MEMORY => Err(folioswap::Error::BudgetTooSmall(memory_bytes).into()),
        folioswap::MIN_MEMORY..=folioswap::MAX_MEMORY => Ok(()),
        _ => Err(folioswap::Error::BudgetTooLarge(memory_bytes).into()),
    }
}

/// Parses a budget such as 512M or 50%.
pub fn memory(text: &str) -> Result<u64, String> {
    parse_memory(text).map_err(|error| error.to_string())
}

/// Parses a size such as 512M.
pub fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.to_string())
}

/// Parses a swap device, whose path need not be UTF-8.
fn swap_device() -> impl TypedValueParser<Value = SwapDevice> {
    OsStringValueParser::new().try_map(|text| SwapDevice::parse_bytes(&text))
}

/// Parses the path of a file that is written at the end: its directory is there from the start.
pub fn report_file() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| {
        let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
        match directory.is_none_or(Path::is_dir) {
            true => Ok(path),
            false => Err("its directory does not exist"),
        }
    })
}

/// Parses any type that implements `FromStr`.
pub fn parsed<T: std::str::FromStr>(text: &str) -> Result<T, String>
where
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|error: T::Err| error.to_string())
}
