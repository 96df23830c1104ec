//! What is told of swap devices.

use folioswap_core::{DeviceIo, Listed, NodeId, Priority};

use crate::device::MemoryUse;
use crate::swap::devices::{Devices, InUse};
use crate::swap::health::{DeviceErrors, DeviceState};

/// A snapshot of a swap device of an arena.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its name, for [`Arena::remove_device`](crate::Arena::remove_device).
    pub name: String,
    /// Bytes of slots in use, including copies of folios that are in RAM.
    pub used_bytes: u64,
    /// Bytes reserved for its slots: disk space, all of it for a file of a stated size, or the part of a block device
    /// or RAM in use so far.
    pub reserved_bytes: u64,
    /// The most bytes it can hold. `None`: limited by the file system only.
    pub size_bytes: Option<u64>,
    /// Memory use of compressed RAM. Its other sizes count slots, of which there are many times more than fit in its
    /// memory.
    pub memory: Option<MemoryUse>,
    /// Devices of higher priority are used first. The system chooses negative ones, and such a device comes before all
    /// others of negative priority on its own node.
    pub priority: Priority,
    /// Its NUMA node, if known.
    pub node: Option<NodeId>,
    /// I/O counts and times. Processes that share their counters are counted together.
    pub io: DeviceIo,
    /// Whether folios are written to it.
    pub state: DeviceState,
    /// How often it failed.
    pub errors: DeviceErrors,
}

/// All devices, by descending priority, then by age. Exact after a flush.
pub(crate) fn all(devices: &Devices) -> Vec<DeviceInfo> {
    let _blocked = folioswap_sys::signals::block_all(); // as in `DeviceEntry::set`
    let listed = devices.availability.devices();
    let info = |listed: Listed| {
        let attached = devices.get(listed.device)?; // it may have been removed meanwhile
        Some(DeviceInfo {
            name: attached.name.clone(),
            used_bytes: attached.used_bytes(),
            reserved_bytes: attached.reserved_bytes(),
            size_bytes: attached.device.limit_bytes(),
            memory: attached.device.memory_use(),
            priority: listed.priority,
            node: listed.node,
            io: attached.figures.snapshot(),
            state: attached.state(),
            errors: attached.health.errors(),
        })
    };
    listed.into_iter().filter_map(info).collect()
}

pub(crate) fn metadata_bytes(devices: &Devices) -> usize {
    devices.each().map(|(_, attached)| attached.metadata_bytes()).sum()
}

/// Says in one line which devices are full.
pub(crate) fn describe_full(devices: &Devices) -> String {
    let shown = |device: DeviceInfo| match device.state {
        DeviceState::Failing => format!("{}, which is failing", device.name),
        DeviceState::InUse | DeviceState::Leaving => device.name,
    };
    let names: Vec<_> = all(devices).into_iter().map(shown).collect();
    if names.is_empty() { "there is no swap".into() } else { format!("swap is full ({})", names.join(", ")) }
}

/// Describes the I/O in flight, by device. `None` if there is none. Devices that compress do not count, because
/// only other threads can hold them up.
pub(crate) fn describe_in_flight(devices: &Devices) -> Option<String> {
    let describe = |attached: InUse<'_>| {
        let nr = if attached.device.compresses() { 0 } else { attached.figures.in_flight() };
        (nr > 0).then(|| format!("{} (reads and writes under way: {nr})", attached.name))
    };
    let described: Vec<_> = devices.each().filter_map(|(_, attached)| describe(attached)).collect();
    (!described.is_empty()).then(|| described.join(", "))
}

/// The most memory that devices in memory may use, plain or compressed.
pub(crate) fn most_bytes_in_ram(devices: &Devices) -> u64 {
    let most_bytes = |attached: InUse<'_>| {
        let plain = attached.device.memory().and_then(|_| attached.device.limit_bytes());
        plain.or(attached.device.memory_use().map(|memory| memory.limit_bytes)).unwrap_or(0)
    };
    devices.each().map(|(_, attached)| most_bytes(attached)).sum()
}
