//! Counters that one process updates and another one prints.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

use folioswap_core::{DeviceIo, DeviceRecord, ProcessMemory, ProcessRecord, Stats};
use folioswap_sys::offered::{self, Key, Offer};
use folioswap_sys::shared::{SharedMemory, Zeroable};

use crate::config::fault_mode::FaultMode;
use crate::config::limits::MAX_DEVICES;

/// Counters that begin as zeroed memory, because they are too large for the stack.
#[repr(transparent)]
pub(crate) struct InMemory(Stats);

// SAFETY: `Stats` consists of atomic numbers, without padding that matters, pointers or destructors. All-zero bytes are
// its empty value.
unsafe impl bytemuck::Zeroable for InMemory {}

impl InMemory {
    pub fn get(&self) -> &Stats {
        &self.0
    }
}

/// The counters of an arena that shares them with nobody. The kernel backs only the pages in use.
pub(crate) fn of_its_own() -> Box<InMemory> {
    bytemuck::zeroed_box()
}

/// Counters shared by processes: totals, and figures of each swap device. 907 KiB of addresses, of which the kernel
/// backs the pages in use, about 20 KiB for each device.
#[repr(C)]
pub struct SharedCounters {
    stats: Stats,
    devices: [DeviceRecord; MAX_DEVICES],
    processes: [ProcessRecord; MOST_PROCESSES],
    /// Processes that ended because code of folioswap panicked.
    defects: AtomicU64,
    /// Processes that have said why their memory is not paged, by their numbers; 0: no more.
    unpaged: [AtomicU64; MOST_UNPAGED],
    /// Arenas that were built in *direct* and in *monitor* mode.
    modes: [AtomicU64; 2],
}

/// Processes whose memory is noted: the first ones to end.
const MOST_PROCESSES: usize = 256;

/// Processes noted that are not paged: the first ones to say so.
const MOST_UNPAGED: usize = 64;

// SAFETY: `repr(C)`, with fields of atomic numbers, without pointers or destructors. All-zero bytes are their empty
// value, and so is any value that another process of this program stores.
unsafe impl Zeroable for SharedCounters {}

impl SharedCounters {
    /// The counters.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The name and the figures of each device of the processes that count here, summed over all processes.
    pub fn devices(&self) -> Vec<(String, DeviceIo)> {
        self.devices.iter().filter_map(|record| Some((record.name()?, record.snapshot()))).collect()
    }

    /// Notes the RAM use of a process that ends, if there is room.
    pub fn note_end(&self, process: &ProcessMemory) {
        let _ = self.processes.iter().any(|record| record.claim(process));
    }

    /// Counts a process that ends because code of folioswap has panicked.
    pub fn count_defect(&self) {
        self.defects.fetch_add(1, Ordering::Relaxed);
    }

    /// How many of these there were.
    pub fn defects(&self) -> u64 {
        self.defects.load(Ordering::Relaxed)
    }

    /// Notes that a process has said why its memory is not paged.
    pub fn note_unpaged(&self, process: u32) {
        let is_free = |place: &&AtomicU64| {
            place.compare_exchange(0, process.into(), Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        let _ = self.unpaged.iter().find(is_free);
    }

    /// The processes that have said so.
    pub fn unpaged(&self) -> impl Iterator<Item = u32> {
        self.unpaged.iter().map(|place| place.load(Ordering::Relaxed) as u32).take_while(|&process| process != 0)
    }

    pub(crate) fn count_mode(&self, mode: FaultMode) {
        self.modes[usize::from(mode == FaultMode::Monitor)].fetch_add(1, Ordering::Relaxed);
    }

    /// How many arenas of this mode were built.
    pub fn nr_in_mode(&self, mode: FaultMode) -> u64 {
        self.modes[usize::from(mode == FaultMode::Monitor)].load(Ordering::Relaxed)
    }

    /// The processes that have ended.
    pub fn ended(&self) -> Vec<ProcessMemory> {
        self.processes.iter().map_while(ProcessRecord::get).collect()
    }

    /// The record of the device of this name. `None` if all records are taken by others.
    pub(crate) fn device(&self, name: &str) -> Option<&DeviceRecord> {
        self.devices.iter().find(|record| record.claim(name))
    }
}

/// How the processes of a run find its counters.
#[derive(Debug, Clone, PartialEq)]
pub struct StatsPlace {
    /// For those that cannot open the path.
    key: Key,
    path: PathBuf,
}

impl fmt::Display for StatsPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.key, self.path.display())
    }
}

impl FromStr for StatsPlace {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (key, path) = text.split_once(':').ok_or(())?;
        Ok(StatsPlace { key: key.parse()?, path: path.into() })
    }
}

/// Counters in memory that other processes can open ([`SharedStats::offer`]).
pub struct SharedStats(SharedMemory<SharedCounters>);

impl SharedStats {
    /// Zeroed counters.
    pub fn new() -> io::Result<Self> {
        SharedMemory::create("folioswap-stats").map(SharedStats)
    }

    /// Lets others open it while this process lives, once they are [answered](Offer::answer). Without sockets there is
    /// no offer, and those of the same user and root find it.
    pub fn offer(&self) -> io::Result<(StatsPlace, Option<Offer>)> {
        let key = Key::draw()?;
        let offer = Offer::new(key, self.0.as_fd().try_clone_to_owned()?).ok();
        Ok((StatsPlace { key, path: self.0.path() }, offer))
    }

    /// The counters.
    pub fn get(&self) -> &SharedCounters {
        &self.0
    }
}

/// Opens the counters of another process.
///
/// # Errors
/// The kernel's. `InvalidData` if it is something else.
pub fn open_shared_stats(place: &StatsPlace) -> io::Result<&'static SharedCounters> {
    let by_path = SharedMemory::<SharedCounters>::open(&place.path);
    by_path.or_else(|_| SharedMemory::of(offered::ask(place.key)?.into())).map(SharedMemory::leak)
}

/// Counters of an arena: private, or in memory shared with the process that prints them.
pub(crate) enum StatsHome {
    Own(Box<InMemory>),
    Shared(&'static SharedCounters),
}

impl StatsHome {
    /// The shared counters. `None`: the arena has its own.
    pub fn shared(&self) -> Option<&'static SharedCounters> {
        match self {
            StatsHome::Own(_) => None,
            StatsHome::Shared(counters) => Some(counters),
        }
    }
}

impl std::ops::Deref for StatsHome {
    type Target = Stats;

    fn deref(&self) -> &Stats {
        match self {
            StatsHome::Own(stats) => stats.get(),
            StatsHome::Shared(counters) => counters.stats(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use folioswap_core::Direction;

    #[test]
    fn processes_find_a_device_by_its_name() {
        let shared = SharedStats::new().unwrap();
        let other = open_shared_stats(&shared.offer().unwrap().0).unwrap();
        for (counters, name, len) in [(shared.get(), "a", 1), (other, "b", 10), (other, "a", 100)] {
            let _ = counters.device(name).unwrap().count(Direction::Write, len);
        }
        let seen: Vec<_> = shared.get().devices().into_iter().map(|(name, io)| (name, io.writes.bytes)).collect();
        assert_eq!(seen, [("a".to_owned(), 101), ("b".to_owned(), 10)]);
        let others: Vec<_> = (0..MAX_DEVICES).map(|index| other.device(&index.to_string()).is_some()).collect();
        assert_eq!(others.iter().filter(|found| **found).count(), MAX_DEVICES - 2, "no room for more");
        let (place, offer) = shared.offer().unwrap();
        offer.unwrap().answer().unwrap();
        assert_eq!(place.to_string().parse(), Ok(place.clone()));
        let by_key = open_shared_stats(&StatsPlace { path: "/proc/none".into(), ..place }).unwrap();
        assert_eq!(by_key.devices().len(), MAX_DEVICES);
    }
}
