//! Settings that only benchmarks and tests change: earlier mechanisms to compare with, and artificial limits.

use folioswap_core::compact::Stage;

use crate::memory::compactor::CompactionMeans;
use crate::swap::attached::Frees;

/// Settings that only benchmarks and tests change.
#[derive(Debug, Clone, Copy)]
pub struct Tuning {
    /// Limits the throughput of each device in RAM in bytes per second, reads and writes together.
    pub throttle: Option<u64>,
    /// Treats devices as rotational disks or not, whatever the kernel reports.
    pub rotational: Option<bool>,
    /// How freed slots get back to their clusters.
    pub frees: Frees,
    /// How small folios are moved to make room for whole ones, in RAM and on devices. `None`: not at all.
    pub compaction: Option<Stage>,
    /// How small folios get new homes in RAM, where both ways are possible.
    pub compaction_means: CompactionMeans,
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning {
            throttle: None,
            rotational: None,
            frees: Frees::Cheapest,
            compaction: Some(Stage::default()),
            compaction_means: CompactionMeans::Exchange,
        }
    }
}
