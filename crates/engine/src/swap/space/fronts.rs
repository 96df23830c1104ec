//! Devices that compress. They may refuse a write, and are fronts of the devices behind them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use folioswap_core::{Attempt, CpuId, DeviceId, Order, SlotId};

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

    /// Whether folios are written to this slot's device one by one: only disks gain from combining neighbours.
    pub fn takes_folios(&self, slot: SlotId) -> bool {
        let at = self.devices.at(slot);
        at.device.memory().is_some() || at.device.compresses()
    }

    /// As [`SwapSpace::allocate`], on the first of these devices that has a place.
    pub fn allocate_on_one(&self, devices: &[DeviceId], cpu: CpuId, order: Order) -> Option<SlotId> {
        devices.iter().find_map(|&device| match self.devices.allocate_on(device, cpu, order) {
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
        self.devices.availability.place(self.devices.topology().node_of(cpu), |device| {
            let refuses =
                device == refused_by || refusal == Refusal::Incompressible && self.devices.compresses_on(device);
            if refuses { Attempt::NoRun } else { self.devices.allocate_on(device, cpu, order) }
        })
    }

    /// Wakes the thread if a written folio has filled a front.
    pub fn note_filling(&self, slot: SlotId) {
        let is_front = self.devices.compresses() && self.relief().is_wanted.load(Ordering::Relaxed);
        if is_front && self.devices.is_filled(self.devices.device_of(slot), HIGH) {
            self.relief().wake();
        }
    }
}
