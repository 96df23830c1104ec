//! Counters that one process keeps and another one prints.

use std::io;
use std::path::{Path, PathBuf};

use folioswap_core::Stats;
use folioswap_sys::shared::{SharedMemory, Zeroable};

/// Counters that begin as zeroed memory: they are too large to be made anywhere else.
#[repr(transparent)]
pub(crate) struct InMemory(Stats);

// SAFETY: `Stats` is made of atomic numbers alone, without padding that matters, pointers or destructors, and all-zero
// bytes are its empty value.
unsafe impl Zeroable for InMemory {}

// SAFETY: as above.
unsafe impl bytemuck::Zeroable for InMemory {}

impl InMemory {
    pub fn get(&self) -> &Stats {
        &self.0
    }
}

/// The counters of an arena that shares them with nobody. The kernel backs what is used of them.
pub(crate) fn of_its_own() -> Box<InMemory> {
    bytemuck::zeroed_box()
}

/// Counters in memory that other processes of the same user can open by [`SharedStats::path`].
pub struct SharedStats(SharedMemory<InMemory>);

impl SharedStats {
    /// All zero.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new() -> io::Result<Self> {
        SharedMemory::create("folioswap-stats").map(SharedStats)
    }

    /// Where others open it while this process lives.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.0.path()
    }

    /// The counters.
    #[must_use]
    pub fn get(&self) -> &Stats {
        &self.0.0
    }
}

/// Opens the counters of another process.
///
/// # Errors
/// The kernel's; `InvalidData` when the path is something else.
pub fn open_shared_stats(path: &Path) -> io::Result<&'static Stats> {
    SharedMemory::<InMemory>::open(path).map(|memory| &memory.leak().0)
}
