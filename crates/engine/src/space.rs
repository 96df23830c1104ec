//! The swap space: the slots of all devices of an arena, as one range.
//!
//! A device's slots have the numbers from `index << DEVICE_SHIFT` on. Devices are used in the order in which they were
//! given: the next one when the one before has no place for a folio's order, whole.

use std::io::{self, IoSliceMut};
use std::os::fd::RawFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use folioswap_core::{Clusters, CpuId, Order, SlotId};

use crate::device::Device;

/// Bits of a slot's number that count within its device: 512 GiB each, 32 devices.
const DEVICE_SHIFT: u32 = 27;

/// By how much a file grows at a time: large, so that a full disk is met long before the write.
const GROWTH_BYTES: u64 = 256 << 20;

/// Where slots lie, for I/O that goes round the device's own calls.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extent {
    pub fd: RawFd,
    pub offset: u64,
}

struct Attached {
    device: Box<dyn Device>,
    clusters: Clusters,
    /// Guards growth; holds the number of slots that have their space.
    grown: Mutex<usize>,
    limit_slots: usize,
    full: AtomicBool,
}

/// All devices of an arena.
pub(crate) struct SwapSpace {
    devices: Vec<Attached>,
    /// Every order is allocated as single slots, one after another: what it costs not to keep folios whole.
    split_slots: bool,
}

impl SwapSpace {
    /// A space that never needs more than `nr_pages` slots of a device.
    pub fn new(devices: Vec<Box<dyn Device>>, nr_pages: usize, nr_cpus: usize, split_slots: bool) -> Self {
        let huge = Order::HUGE.nr_pages();
        let most = nr_pages.min(1 << DEVICE_SHIFT);
        let attach = |device: Box<dyn Device>| {
            let limit_slots =
                device.limit_bytes().map_or(most, |bytes| most.min(bytes as usize / Order::PAGE.bytes()) / huge * huge);
            Attached {
                clusters: Clusters::new(limit_slots, nr_cpus, false),
                device,
                grown: Mutex::new(0),
                limit_slots,
                full: AtomicBool::new(false),
            }
        };
        assert!(devices.len() <= 1 << (32 - DEVICE_SHIFT), "more devices than a slot's number can name");
        SwapSpace { devices: devices.into_iter().map(attach).collect(), split_slots }
    }

    /// The first of 2^k free slots in a row, near the ones handed out before; `None` when no device has them.
    pub fn allocate(&self, cpu: CpuId, order: Order) -> Option<SlotId> {
        if self.split_slots && order > Order::PAGE {
            return None;
        }
        self.devices.iter().enumerate().find_map(|(index, attached)| {
            let slot = attached.allocate(cpu, order)?;
            Some(SlotId::new((index as u32) << DEVICE_SHIFT | slot.get()))
        })
    }

    /// Frees slots, all that were handed out at once or an aligned part of them.
    pub fn free(&self, slot: SlotId, order: Order) {
        let (attached, within) = self.at(slot);
        attached.clusters.free(within, order);
        attached.full.store(false, Ordering::Relaxed);
    }

    /// Takes slots whose write failed out of use for good.
    pub fn mark_bad(&self, slot: SlotId, order: Order) {
        let (attached, within) = self.at(slot);
        attached.clusters.mark_bad(within, order);
    }

    /// Whether a folio that was read back should keep its slots: only while there is plenty.
    pub fn keeps_copies(&self) -> bool {
        self.devices.iter().any(|attached| attached.clusters.nr_used() * 2 < attached.capacity_slots())
    }

    pub fn read(&self, slot: SlotId, bytes: &mut [u8]) -> io::Result<()> {
        let (attached, within) = self.at(slot);
        attached.device.read(within.offset_bytes(), bytes)
    }

    /// Fills several pieces of memory from slots in a row.
    pub fn read_pieces(&self, slot: SlotId, pieces: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        let (attached, within) = self.at(slot);
        attached.device.read_pieces(within.offset_bytes(), pieces)
    }

    pub fn write(&self, slot: SlotId, bytes: &[u8]) -> io::Result<()> {
        let (attached, within) = self.at(slot);
        attached.device.write(within.offset_bytes(), bytes)
    }

    /// The device of the slot, when it is memory, and the slot's offset in it.
    pub fn memory(&self, slot: SlotId) -> Option<(&crate::device::RamDevice, u64)> {
        let (attached, within) = self.at(slot);
        Some((attached.device.memory()?, within.offset_bytes()))
    }

    /// Where the slot lies for io_uring, if its device has a descriptor.
    pub fn extent(&self, slot: SlotId) -> Option<Extent> {
        let (attached, within) = self.at(slot);
        Some(Extent { fd: attached.device.fd()?, offset: within.offset_bytes() })
    }

    pub fn device_name(&self, slot: SlotId) -> String {
        self.at(slot).0.device.name()
    }

    pub fn metadata_bytes(&self) -> usize {
        self.devices.iter().map(|attached| attached.clusters.bytes()).sum()
    }

    /// One line on what is full and what would help.
    pub fn describe_full(&self) -> String {
        let names: Vec<_> = self.devices.iter().map(|attached| attached.device.name()).collect();
        format!("swap is full ({})", names.join(", "))
    }

    fn at(&self, slot: SlotId) -> (&Attached, SlotId) {
        let number = slot.get();
        (&self.devices[(number >> DEVICE_SHIFT) as usize], SlotId::new(number & ((1 << DEVICE_SHIFT) - 1)))
    }
}

impl Attached {
    fn allocate(&self, cpu: CpuId, order: Order) -> Option<SlotId> {
        loop {
            let nr_slots = self.clusters.nr_slots();
            if let Some(slot) = self.clusters.allocate(cpu, order) {
                return Some(slot);
            }
            if self.full.load(Ordering::Relaxed) || !self.grow(nr_slots) {
                return None;
            }
        }
    }

    /// Adds slots to the `nr_slots` that were not enough; `false` when the device has no room for more.
    fn grow(&self, nr_slots: usize) -> bool {
        let mut grown = self.grown.lock().expect("no panic while growing");
        if *grown > nr_slots {
            return true; // another thread grew it meanwhile
        }
        let huge = Order::HUGE.nr_pages();
        let mut step = (GROWTH_BYTES as usize / Order::PAGE.bytes()).min(self.limit_slots - *grown);
        while step >= huge {
            let slots = *grown + step / huge * huge;
            if self.device.reserve((slots * Order::PAGE.bytes()) as u64).is_ok() {
                *grown = slots;
                self.clusters.grow(slots);
                return true;
            }
            step /= 2;
        }
        self.full.store(true, Ordering::Relaxed);
        false
    }

    /// Slots it has, or, for one that grows without a limit of its own, as many as anyone could ask for.
    fn capacity_slots(&self) -> usize {
        if self.full.load(Ordering::Relaxed) { self.clusters.nr_slots() } else { self.limit_slots }
    }
}
