//! Devices that compress: they may refuse what they are given, and are in front of those behind them.

use std::io;
use std::sync::atomic::Ordering;

use folioswap_core::{Attempt, CpuId, DeviceId, Listed, Order, SlotId};

use super::SwapSpace;
use crate::device::Refusal;
use crate::engine::{Engine, current_cpu};

impl SwapSpace {
    /// Stores what a device would refuse for not being worth while, too.
    pub fn write_anyway(&self, slot: SlotId, bytes: &[u8]) -> io::Result<()> {
        self.write_by(slot, bytes, |device, offset, bytes| device.write_anyway(offset, bytes))
    }

    /// Whether a thread is writing to a device that compresses.
    pub fn is_compressing(&self) -> bool {
        self.nr_compressing.load(Ordering::Relaxed) > 0
    }

    /// Whether there is a device whose writes are work for a CPU.
    pub fn compresses(&self) -> bool {
        self.compresses.load(Ordering::Relaxed)
    }

    /// Whether folios are written to this slot's device one by one: where it is not a disk, neighbours are not written faster
    /// together.
    pub fn takes_folios(&self, slot: SlotId) -> bool {
        let at = self.at(slot);
        at.device.memory().is_some() || at.device.compresses()
    }

    /// Devices that compress and have others behind them: of lower priority, and not of their kind.
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

    /// Whether more than so many eighths of the memory of a device are in use, if that is what fills it.
    pub fn is_filled(&self, id: DeviceId, eighths: u64) -> bool {
        let place = self.places[id.index()].read();
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

    /// As [`SwapSpace::allocate`], for a folio that a device has refused: elsewhere.
    fn allocate_after(&self, refused_by: DeviceId, refusal: Refusal, cpu: CpuId, order: Order) -> Option<SlotId> {
        self.availability.place(self.topology.node_of(cpu), |device| {
            let refuses = device == refused_by || refusal == Refusal::Incompressible && self.compresses_on(device);
            if refuses { Attempt::NoRun } else { self.allocate_on(device, cpu, order) }
        })
    }

    fn compresses_on(&self, id: DeviceId) -> bool {
        self.places[id.index()].read().as_ref().is_some_and(|attached| attached.device.compresses())
    }
}

impl Engine {
    /// Stores a folio in its slots, or where their device refuses it, in others of a device that takes it: those are the folio's
    /// then, and its own are free. What no other device takes is kept by the first, though it is not worth while.
    ///
    /// # Errors
    /// The device's; and its refusal, when there is no memory for the folio.
    pub fn store(&self, slot: SlotId, order: Order, bytes: &[u8]) -> io::Result<SlotId> {
        let Err(error) = self.space.write(slot, bytes) else { return Ok(slot) };
        let Some(refusal) = Refusal::of(&error) else { return Err(error) };
        let device = self.space.device_of(slot);
        match self.space.allocate_after(device, refusal, current_cpu(), order) {
            Some(other) => match self.space.write(other, bytes) {
                Ok(()) => {
                    self.put_back_slots(slot, order);
                    Ok(other)
                }
                Err(failed) => {
                    self.not_written(other, order, failed);
                    Err(error)
                }
            },
            None if refusal == Refusal::Incompressible => self.space.write_anyway(slot, bytes).map(|()| slot),
            None => Err(error),
        }
    }

    /// Writes folios that lie in a row to slots in a row, and tells where each went: where its device refuses it, one by one and elsewhere
    /// if need be. The slots of one that was not written are given up.
    pub fn store_run(&self, first: SlotId, order: Order, bytes: &[u8], mut told: impl FnMut(usize, Option<SlotId>)) {
        let slots = (0..bytes.len() / order.bytes()).map(|index| first.plus(index * order.nr_pages()));
        match self.space.write(first, bytes) {
            Ok(()) => slots.enumerate().for_each(|(index, slot)| told(index, Some(slot))),
            Err(error) if Refusal::of(&error).is_some() => {
                for ((index, slot), folio) in slots.enumerate().zip(bytes.chunks(order.bytes())) {
                    let stored = self.store(slot, order, folio);
                    told(index, stored.map_err(|error| self.not_written(slot, order, error)).ok());
                }
            }
            Err(error) => {
                self.write_failed(first, error);
                slots.enumerate().for_each(|(index, slot)| {
                    self.space.mark_bad(slot, order);
                    told(index, None);
                });
            }
        }
        self.note_filling(first);
    }

    /// A folio was not written to its slots: they are not used again, which is said; or by others, when their device only refused it.
    pub fn not_written(&self, slot: SlotId, order: Order, error: io::Error) {
        if Refusal::of(&error).is_some() {
            self.put_back_slots(slot, order);
        } else {
            self.write_failed(slot, error);
            self.space.mark_bad(slot, order);
        }
    }
}
