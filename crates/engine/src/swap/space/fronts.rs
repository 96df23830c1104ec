//! Devices that compress. They may refuse a write, and are fronts of the devices behind them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use folioswap_core::{Attempt, CpuId, DeviceId, Listed, Order, SlotId};

use super::SwapSpace;
use crate::device::Refusal;
use crate::process::wakeup::Event;

/// Eighths of a front's memory at which writeback begins.
pub(crate) const HIGH: u64 = 7;

/// Wakes the thread that relieves fronts (`relocate::write_back`).
#[derive(Default)]
pub(crate) struct Relief {
    /// A front is about to be full.
    filled: Event,
    /// Whether the thread waits to be told of it.
    is_wanted: AtomicBool,
}

impl Relief {
    /// To be read before the fronts are looked at, and given to the wait that follows.
    pub fn now(&self) -> u32 {
        self.filled.now()
    }

    /// Waits until a front is about to be full, unless one has been since `seen`.
    pub fn wait(&self, seen: u32) {
        self.is_wanted.store(true, Ordering::SeqCst);
        self.filled.wait(seen);
    }

    /// Waits for this long. A front that fills meanwhile need not wake the thread: there is no room behind it.
    pub fn pause(&self, seen: u32, limit: Duration) {
        self.is_wanted.store(false, Ordering::SeqCst);
        self.filled.wait_for(seen, limit);
    }

    /// Wakes the thread.
    pub fn wake(&self) {
        self.filled.signal();
    }
}

impl SwapSpace {
    /// Whether a thread is writing to a device that compresses.
    pub fn is_compressing(&self) -> bool {
        self.nr_compressing.load(Ordering::Relaxed) > 0
    }

    /// Whether there is a device that compresses, so that writes take CPU time.
    pub fn compresses(&self) -> bool {
        self.compresses.load(Ordering::Relaxed)
    }

    /// Whether folios are written to this slot's device one by one: only disks gain from combining neighbours.
    pub fn takes_folios(&self, slot: SlotId) -> bool {
        let at = self.at(slot);
        at.device.memory().is_some() || at.device.compresses()
    }

    /// Devices that compress, each with the devices behind it: those of lower priority that do not compress.
    pub fn fronts(&self) -> Vec<(DeviceId, Vec<DeviceId>)> {
        let listed = {
            let _blocked = folioswap_sys::signals::block_all();
            self.availability.devices()
        };
        let behind = |front: &Listed| {
            let lower = listed.iter().filter(|other| other.priority < front.priority).map(|other| other.device);
            lower.filter(|&other| !self.compresses_on(other)).collect::<Vec<_>>()
        };
        let fronts = listed.iter().filter(|front| self.compresses_on(front.device));
        fronts.map(|front| (front.device, behind(front))).filter(|(_, behind)| !behind.is_empty()).collect()
    }

    /// Whether more than `eighths` eighths of a device's memory are in use, for devices whose memory is what fills up.
    pub fn is_filled(&self, id: DeviceId, eighths: u64) -> bool {
        let place = self.devices[id.index()].read();
        let memory = place.as_ref().and_then(|attached| attached.device.memory_use());
        memory.is_some_and(|memory| memory.kept_bytes > memory.limit_bytes / 8 * eighths)
    }

    /// As [`SwapSpace::allocate`], on the first of these devices that has a place.
    pub fn allocate_on_one(&self, devices: &[DeviceId], cpu: CpuId, order: Order) -> Option<SlotId> {
        devices.iter().find_map(|&device| match self.allocate_on(device, cpu, order) {
            Attempt::Placed(slot) => Some(slot),
            Attempt::NoRun | Attempt::Full => None,
        })
    }

    /// As [`SwapSpace::allocate`], on another device, for a folio that `refused_by` has refused.
    pub(super) fn allocate_after(
        &self,
        refused_by: DeviceId,
        refusal: Refusal,
        cpu: CpuId,
        order: Order,
    ) -> Option<SlotId> {
        self.availability.place(self.topology.node_of(cpu), |device| {
            let refuses = device == refused_by || refusal == Refusal::Incompressible && self.compresses_on(device);
            if refuses { Attempt::NoRun } else { self.allocate_on(device, cpu, order) }
        })
    }

    fn compresses_on(&self, id: DeviceId) -> bool {
        self.devices[id.index()].read().as_ref().is_some_and(|attached| attached.device.compresses())
    }

    /// Wakes the thread if a written folio has filled a front.
    pub fn note_filling(&self, slot: SlotId) {
        let is_front = self.compresses() && self.relief().is_wanted.load(Ordering::Relaxed);
        if is_front && self.is_filled(self.device_of(slot), HIGH) {
            self.relief().wake();
        }
    }
}
