//! Builds arenas from the command line and the needs of a benchmark.

use crate::peer::Backing;
use clap::{Args, ValueEnum};
use folioswap::{Arena, DeviceSpec, FolioSize, SwapDevice, SwapIn, Tuning};
use folioswap_command::args::{Folios, Paging, PagingOptions, check_budget, memory, report_file, size};
use folioswap_command::exit::Failure;
use std::path::{Path, PathBuf};

/// Options of benchmarks that use several arenas.
#[derive(Args, Clone, Debug)]
pub struct CommonArgs {
    /// Use larger defaults; takes minutes
    #[arg(long)]
    pub full: bool,
    /// Size of the memory; 1G with --full
    #[arg(
        long, value_name = "SIZE", default_value = "256M", default_value_if("full", "true", "1G"),
        value_parser = size
    )]
    pub size: u64,
    /// RAM that the memory may use, at least 16M; 256M with --full
    #[arg(
        long, value_name = "SIZE", default_value = "64M", default_value_if("full", "true", "256M"),
        value_parser = memory
    )]
    pub memory: u64,
    #[command(flatten)]
    pub options: PagingOptions,
    /// Also write the figures to this file
    #[arg(long, value_name = "FILE", value_parser = report_file())]
    pub json: Option<PathBuf>,
}

impl CommonArgs {
    /// Rejects options that cannot work. Returns the size in bytes, a multiple of the word size and at least
    /// `least_bytes`.
    pub fn check(&self, least_bytes: u64) -> Result<usize, Failure> {
        check_budget(self.memory)?;
        let bytes = whole_words(self.size, least_bytes)?;
        self.options.check_swap()?;
        Ok(bytes)
    }
}

/// How a value is called on command lines.
pub fn name_of(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Parses a time in seconds, such as 2 or 0.5.
pub fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.01..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err(format!("`{text}` is no number of seconds from 0.01 to 86400")),
    }
}

/// Rounds a size down to whole words. Fails if it is below `least_bytes`.
pub fn whole_words(size: u64, least_bytes: u64) -> Result<usize, Failure> {
    match usize::try_from(size) {
        Ok(bytes) if size >= least_bytes.max(8) => Ok(bytes / size_of::<u64>() * size_of::<u64>()),
        _ => Err(Failure::new(format!("this benchmark over {size} bytes makes no sense; try --size 2G"))),
    }
}

/// How to build an arena. It can be built several times.
#[derive(Clone, Debug)]
pub struct ArenaPlan<'a> {
    pub memory_bytes: u64,
    /// Devices and modes.
    pub options: &'a PagingOptions,
    pub folio: FolioSize,
    /// Whether folios are swapped in whole.
    pub swap_in: SwapIn,
    /// What this bench measures, or compares with.
    pub tuning: Tuning,
}

impl<'a> ArenaPlan<'a> {
    /// A plan with this folio size and defaults for everything else.
    pub fn new(memory_bytes: u64, options: &'a PagingOptions, folio: FolioSize) -> ArenaPlan<'a> {
        ArenaPlan { memory_bytes, options, folio, swap_in: SwapIn::default(), tuning: Tuning::default() }
    }

    /// The plan that the command line of one arena asks for.
    pub fn of(paging: &'a Paging, folios: &Folios) -> ArenaPlan<'a> {
        ArenaPlan { swap_in: folios.swap_in, ..ArenaPlan::new(paging.memory, &paging.options, folios.folio) }
    }

    pub fn build(&self) -> Result<Arena, Failure> {
        let builder = self.options.builder()?.memory(self.memory_bytes).folio(self.folio);
        Ok(builder.swap_in(self.swap_in).tuning(self.tuning).build()?)
    }
}

/// Where kernel swap and raw reads belong: on the device that the managed memory swaps to.
pub fn backing(swap: &[SwapDevice]) -> Backing {
    match swap.first().map(|device| &device.spec) {
        None => Backing::Directory(folioswap::device::default_directory()),
        Some(DeviceSpec::Ram { .. }) => Backing::Ram,
        Some(DeviceSpec::Zram { codec, .. }) => Backing::Zram(*codec),
        Some(DeviceSpec::File { path, .. }) => {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            Backing::Directory(path.parent().unwrap_or(Path::new("/")).to_owned())
        }
    }
}

/// Bytes that all devices have transferred so far.
pub fn moved(arena: &Arena) -> u64 {
    arena.devices().iter().map(|device| device.io.writes.bytes + device.io.reads.bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use folioswap::Codec;

    #[test]
    fn the_peer_lies_where_the_swap_lies() {
        let file = DeviceSpec::File { path: "/data/x/swap".into(), size: None };
        assert_eq!(backing(&[file.into()]), Backing::Directory("/data/x".into()));
        assert_eq!(backing(&[DeviceSpec::Ram { size: 1 }.into()]), Backing::Ram);
        for codec in [Codec::Lz4, Codec::Zstd] {
            assert_eq!(backing(&[DeviceSpec::Zram { size: 1, codec }.into()]), Backing::Zram(codec));
        }
    }

    #[test]
    fn sizes_are_whole_words_of_which_there_are_enough() {
        assert_eq!(whole_words(4099, 4096).ok(), Some(4096));
        assert_eq!(whole_words(4095, 4096).ok(), None);
        assert_eq!(whole_words(7, 0).ok(), None);
    }
}
