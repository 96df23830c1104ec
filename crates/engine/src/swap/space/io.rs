//! Reading and writing slots: what is read is verified, and what a device refuses goes to another one.

use std::io::{self, IoSliceMut};
use std::sync::atomic::Ordering;

use folioswap_core::{Direction, Order, SlotId};

use crate::device::{Device, Refusal};
use crate::process::cpu::current_cpu;
use crate::process::fatal;
use crate::process::turns::{Waits, asleep};
use crate::swap::device_slot::{Extent, InMemory};
use crate::swap::health::{SwapInError, Trouble};
use crate::swap::space::SwapSpace;
use crate::swap::transfer::none_in_flight;

impl SwapSpace {
    /// Reads contiguous slots, and waits asleep.
    pub fn read(&self, slot: SlotId, bytes: &mut [u8]) -> io::Result<()> {
        asleep(self.read_pieces(slot, &mut [IoSliceMut::new(bytes)], Waits::Asleep))
    }

    /// Reads contiguous slots into several pieces of memory.
    pub async fn read_pieces(
        &self,
        slot: SlotId,
        mut pieces: &mut [IoSliceMut<'_>],
        waits: Waits<'_>,
    ) -> io::Result<()> {
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        let mut done = 0;
        if let Waits::ByTurns(turns) = waits
            && turns.has_ring()
            && let Some(extent) = self.extent(slot)
        {
            done = extent.read(pieces, len, turns).await.or_else(none_in_flight)?;
            if done == len {
                return Ok(());
            }
            IoSliceMut::advance_slices(&mut pieces, done); // it came back short
        }
        let (at, len) = (self.at(slot), len - done);
        let offset = at.within.offset_bytes() + done as u64;
        at.figures.measure(Direction::Read, len, || at.device.read_pieces(offset, pieces))
    }

    pub fn write(&self, slot: SlotId, bytes: &[u8]) -> io::Result<()> {
        self.write_by(slot, bytes, |device, offset, bytes| device.write(offset, bytes))
    }

    fn write_by(
        &self,
        slot: SlotId,
        bytes: &[u8],
        write: impl FnOnce(&dyn Device, u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let at = self.at(slot);
        at.note_use();
        let compresses = usize::from(at.device.compresses());
        self.nr_compressing.fetch_add(compresses, Ordering::Relaxed);
        let offset = at.within.offset_bytes();
        let written = at.figures.measure(Direction::Write, bytes.len(), || write(&*at.device, offset, bytes));
        self.nr_compressing.fetch_sub(compresses, Ordering::Relaxed);
        written?;
        at.health.wrote();
        Ok(())
    }

    /// The slot's place in memory, if its device lies there.
    pub fn memory(&self, slot: SlotId) -> Option<InMemory<'_>> {
        self.at(slot).into_memory()
    }

    /// Where the slot lies, for io_uring, if its device has a descriptor. Valid as long as the slot is in use.
    pub fn extent(&self, slot: SlotId) -> Option<Extent> {
        self.at(slot).extent()
    }

    /// Reads slots of the folio at `addr`, and checks the bytes. Tries once more if that fails. `first`: the result of
    /// a first try that has ended already.
    ///
    /// # Errors
    /// When both tries failed, or the device is gone.
    pub async fn read_verified(
        &self,
        addr: usize,
        slot: SlotId,
        bytes: &mut [u8],
        first: Option<Result<(), Trouble>>,
        is_right: impl Fn(&[u8]) -> bool,
        waits: Waits<'_>,
    ) -> Result<(), SwapInError> {
        let mut result = first;
        for is_again in [false, true] {
            let tried = match result.take() {
                Some(tried) => tried,
                None => {
                    let read = self.read_pieces(slot, &mut [IoSliceMut::new(bytes)], waits).await;
                    read.map_err(Trouble::Read).and_then(|()| Trouble::unless(is_right(bytes)))
                }
            };
            let Err(trouble) = tried else { return Ok(()) };
            self.note_trouble(slot, &trouble, is_again);
            if is_again || trouble.means_device_gone() {
                return Err(SwapInError::new(addr, self.at(slot).name.clone(), trouble.to_string()));
            }
        }
        unreachable!("the second try is the last")
    }

    /// Counts a failure of a slot's device. `again`: it was the second try of a read. Reports a device that is failing
    /// from now on, and starts its evacuation.
    pub fn note_trouble(&self, slot: SlotId, trouble: &Trouble, again: bool) {
        self.stats().io_errors.add(1);
        if matches!(trouble, Trouble::WrongBytes) {
            self.stats().verify_failures.add(1);
        }
        let reason = self.at(slot).note_failure(trouble, again);
        if let Some(reason) = reason {
            let name = self.at(slot).name.clone(); // its lock is not held while a message is written
            fatal::say(&format!(
                "swap {name} is failing: {reason}; it is written to no more, and what can be read there goes elsewhere"
            ));
            self.slot_work().evacuate();
        }
    }

    /// Counts and reports a failed write.
    pub fn write_failed(&self, slot: SlotId, error: io::Error) {
        let name = self.at(slot).name.clone();
        fatal::say(&format!("swap-out to {name} failed ({error}): the folio stays in RAM, its slot is not used again"));
        self.note_trouble(slot, &Trouble::Write(error), false);
    }

    /// Writes a folio to its slots. If their device refuses it, writes it to slots of another device, which the folio
    /// has from then on, and frees its former slots. If no other device takes it, the first stores it uncompressed.
    ///
    /// # Errors
    /// The device's. Its refusal, when there is no memory for the folio.
    pub fn store(&self, slot: SlotId, order: Order, bytes: &[u8]) -> io::Result<SlotId> {
        let Err(error) = self.write(slot, bytes) else { return Ok(slot) };
        let Some(refusal) = Refusal::of(&error) else { return Err(error) };
        let device = self.devices.device_of(slot);
        match self.allocate_after(device, refusal, current_cpu(), order) {
            Some(other) => match self.write(other, bytes) {
                Ok(()) => {
                    self.put_back_slots(slot, order);
                    Ok(other)
                }
                Err(failed) => {
                    self.not_written(other, order, failed);
                    Err(error)
                }
            },
            None if refusal == Refusal::Incompressible => {
                self.write_by(slot, bytes, |device, offset, bytes| device.write_anyway(offset, bytes))?;
                Ok(slot)
            }
            None => Err(error),
        }
    }

    /// Writes contiguous folios to contiguous slots, and reports where each went. If the device refuses the run, they
    /// are written one by one, and to another device if necessary. Slots of a folio that was not written are released.
    pub fn store_run(&self, first: SlotId, order: Order, bytes: &[u8], mut told: impl FnMut(usize, Option<SlotId>)) {
        let slots = (0..bytes.len() / order.bytes()).map(|index| first.plus(index * order.nr_pages()));
        match self.write(first, bytes) {
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
                    self.at(slot).mark_bad(order);
                    told(index, None);
                });
            }
        }
        self.note_filling(first);
    }

    /// Releases the slots of a folio that was not written. After a refusal they are free; after an error, which is
    /// reported, they are never used again.
    pub fn not_written(&self, slot: SlotId, order: Order, error: io::Error) {
        if Refusal::of(&error).is_some() {
            self.put_back_slots(slot, order);
        } else {
            self.write_failed(slot, error);
            self.at(slot).mark_bad(order);
        }
    }
}
