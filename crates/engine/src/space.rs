//! The swap space: all devices of an arena as one range of slot runs, each run as long as a folio.
//!
//! A device's runs have the numbers from `index << RUN_BITS` on. Devices are used in the order in which they were
//! given: the next one when the one before is full. What is noted of a run's content lies beside its device's map and
//! is read and written only by the holder of the lock of the folio that owns the run.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use folioswap_core::{CpuId, Order, SlotAllocator, SlotId, SlotMap};

use crate::checksum::Checksum;
use crate::device::Device;

/// Bits of a run's number that count within its device.
const RUN_BITS: u32 = 27;

/// By how much a file grows at a time: large, so that a full disk is met long before the write.
const GROWTH_BYTES: u64 = 256 << 20;

/// Runs whose notes are allocated at once.
const CHUNK: usize = 1024;

/// Where a run lies, for I/O that goes round the device's own calls.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extent {
    pub fd: RawFd,
    pub offset: u64,
}

/// What is known of a run's content besides the content.
#[derive(Default)]
struct Note {
    checksum_low: AtomicU64,
    checksum_high: AtomicU64,
    /// The arena's count of evictions when the content's folio left RAM.
    evicted_at: AtomicU32,
}

struct Attached {
    device: Box<dyn Device>,
    map: SlotMap,
    /// Guards growth; holds the number of runs that have their space.
    grown: Mutex<usize>,
    limit_runs: usize,
    full: AtomicBool,
    notes: Vec<OnceLock<Box<[Note]>>>,
}

/// All devices of an arena.
pub(crate) struct SwapSpace {
    order: Order,
    devices: Vec<Attached>,
}

impl SwapSpace {
    /// A space that never needs more than `nr_folios` runs of a device.
    pub fn new(order: Order, devices: Vec<Box<dyn Device>>, nr_folios: usize) -> Self {
        let most = nr_folios.min(1 << RUN_BITS);
        let attach = |device: Box<dyn Device>| {
            let limit_runs = device.limit_bytes().map_or(most, |bytes| most.min(bytes as usize / order.bytes()));
            let chunks = limit_runs.div_ceil(CHUNK);
            Attached {
                device,
                map: SlotMap::with_capacity(order, limit_runs),
                grown: Mutex::new(0),
                limit_runs,
                full: AtomicBool::new(false),
                notes: (0..chunks).map(|_| OnceLock::new()).collect(),
            }
        };
        assert!(devices.len() < 1 << (32 - RUN_BITS), "more devices than a run's number can name");
        SwapSpace { order, devices: devices.into_iter().map(attach).collect() }
    }

    /// A free run, near the one handed out before; `None` when every device is full.
    pub fn allocate(&self, cpu: CpuId) -> Option<SlotId> {
        self.devices.iter().enumerate().find_map(|(index, attached)| {
            let run = attached.allocate(cpu, self.order)?;
            Some(SlotId::new((index as u32) << RUN_BITS | run.index() as u32))
        })
    }

    pub fn free(&self, run: SlotId) {
        let (attached, within) = self.at(run);
        attached.map.free(within, self.order);
        attached.full.store(false, Ordering::Relaxed);
    }

    /// Takes a run whose write failed out of use for good.
    pub fn mark_bad(&self, run: SlotId) {
        let (attached, within) = self.at(run);
        attached.map.mark_bad(within);
    }

    /// Whether a folio that was read back should keep its run: only while there is plenty.
    pub fn keeps_copies(&self) -> bool {
        self.devices.iter().any(|attached| attached.map.nr_used() * 2 < attached.capacity_runs())
    }

    pub fn read(&self, run: SlotId, bytes: &mut [u8]) -> io::Result<()> {
        let (attached, _) = self.at(run);
        attached.device.read(self.offset(run), bytes)
    }

    pub fn write(&self, run: SlotId, bytes: &[u8]) -> io::Result<()> {
        let (attached, _) = self.at(run);
        attached.device.write(self.offset(run), bytes)
    }

    /// The device of the run, when it is memory, and the run's offset in it.
    pub fn memory(&self, run: SlotId) -> Option<(&crate::device::RamDevice, u64)> {
        let (attached, _) = self.at(run);
        Some((attached.device.memory()?, self.offset(run)))
    }

    /// Where the run lies for io_uring, if its device has a descriptor.
    pub fn extent(&self, run: SlotId) -> Option<Extent> {
        let (attached, _) = self.at(run);
        Some(Extent { fd: attached.device.fd()?, offset: self.offset(run) })
    }

    pub fn device_name(&self, run: SlotId) -> String {
        self.at(run).0.device.name()
    }

    /// What the run holds. Call with its folio locked.
    pub fn checksum(&self, run: SlotId) -> Checksum {
        let note = self.note(run);
        let (low, high) = (note.checksum_low.load(Ordering::Relaxed), note.checksum_high.load(Ordering::Relaxed));
        Checksum(u128::from(low) | u128::from(high) << 64)
    }

    /// Notes what the run holds. Call with its folio locked.
    pub fn set_checksum(&self, run: SlotId, checksum: Checksum) {
        let note = self.note(run);
        note.checksum_low.store(checksum.0 as u64, Ordering::Relaxed);
        note.checksum_high.store((checksum.0 >> 64) as u64, Ordering::Relaxed);
    }

    /// The count of evictions that was noted when the run's folio left RAM. Call with the folio locked.
    pub fn evicted_at(&self, run: SlotId) -> u32 {
        self.note(run).evicted_at.load(Ordering::Relaxed)
    }

    /// Notes the count of evictions. Call with the folio locked.
    pub fn set_evicted_at(&self, run: SlotId, nr_evictions: u32) {
        self.note(run).evicted_at.store(nr_evictions, Ordering::Relaxed);
    }

    pub fn metadata_bytes(&self) -> usize {
        let notes = |a: &Attached| {
            a.notes.iter().filter(|c| c.get().is_some()).count() * CHUNK * size_of::<Note>() + a.notes.len() * 16
        };
        self.devices.iter().map(|a| notes(a) + a.map.nr_slots().div_ceil(8)).sum()
    }

    /// One line on what is full and what would help.
    pub fn describe_full(&self) -> String {
        let names: Vec<_> = self.devices.iter().map(|attached| attached.device.name()).collect();
        format!("swap is full ({})", names.join(", "))
    }

    fn note(&self, run: SlotId) -> &Note {
        let (attached, within) = self.at(run);
        let chunk =
            attached.notes[within.index() / CHUNK].get_or_init(|| (0..CHUNK).map(|_| Note::default()).collect());
        &chunk[within.index() % CHUNK]
    }

    fn at(&self, run: SlotId) -> (&Attached, SlotId) {
        let number = run.index() as u32;
        (&self.devices[(number >> RUN_BITS) as usize], SlotId::new(number & ((1 << RUN_BITS) - 1)))
    }

    fn offset(&self, run: SlotId) -> u64 {
        (run.index() as u64 & ((1 << RUN_BITS) - 1)) * self.order.bytes() as u64
    }
}

impl Attached {
    fn allocate(&self, cpu: CpuId, order: Order) -> Option<SlotId> {
        loop {
            if let Some(run) = self.map.allocate(cpu, order) {
                return Some(run);
            }
            if self.full.load(Ordering::Relaxed) || !self.grow(order) {
                return None;
            }
        }
    }

    /// Adds runs; `false` when the device has no room for another one.
    fn grow(&self, order: Order) -> bool {
        let mut grown = self.grown.lock().expect("no panic while growing");
        if self.map.nr_used() < self.map.nr_slots() {
            return true; // another thread grew it, or freed a run, meanwhile
        }
        let mut step = (GROWTH_BYTES as usize / order.bytes()).min(self.limit_runs - *grown);
        while step > 0 {
            let runs = *grown + step;
            if self.device.reserve((runs * order.bytes()) as u64).is_ok() {
                *grown = runs;
                self.map.grow(runs);
                return true;
            }
            step /= 2;
        }
        self.full.store(true, Ordering::Relaxed);
        false
    }

    /// Runs it has, or, for one that grows without a limit of its own, as many as anyone could ask for.
    fn capacity_runs(&self) -> usize {
        if self.full.load(Ordering::Relaxed) { self.map.nr_slots() } else { self.limit_runs }
    }
}
