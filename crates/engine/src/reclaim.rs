//! Folios' way out: inactive tail -> unmap to the laundry -> hash -> slots from the swap space -> device writes ->
//! standby -> frames free.
//!
//! Three lists hold what is on this way. A folio of the *inactive* list is mapped
//! (but for the marker of a window of readahead). In the *laundry* it is unmapped and
//! not yet known to be clean: a fault there is a reference that saved its write. On *standby* it is clean, and its
//! frame is free to whoever needs one. The same steps are taken by the reclaim thread, with several writes in flight,
//! and by a thread in need of a frame, one at a time (direct reclaim).

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use folioswap_core::{CpuId, FolioId, FrameId, List, Locked, SlotId, State};

use crate::checksum::{self, Checksum};
use crate::engine::Engine;
use crate::fatal;
use crate::map::MapError;

/// How long a thread waits for a frame without any being freed before it gives the program up.
const PATIENCE: Duration = Duration::from_secs(20);

/// Folios looked at in one search of a list: busy ones are passed over, never waited for.
const SCAN: usize = 64;

/// A folio to be written: locked, at home, with the slot it is to have and its checksum (none yet for a device in
/// memory, which finds it while it copies).
pub(crate) struct Outgoing<'t> {
    pub locked: Locked<'t>,
    pub frame: FrameId,
    pub slot: SlotId,
    pub checksum: Option<Checksum>,
}

/// What came of a look at the oldest folio in the laundry.
pub(crate) enum Laundered<'t> {
    /// It was clean or zero: a frame is free, or on standby.
    Clean,
    /// It must be written first.
    Write(Outgoing<'t>),
    /// There is no slot for it.
    NoSlot,
    /// The laundry has nothing that can be had now.
    Nothing,
}

impl Engine {
    /// A frame for a folio, and whether it has no memory yet. Reclaims directly when there is none, and ends the
    /// program when none can be had.
    pub fn take_frame(&self) -> (FrameId, bool) {
        let mut begun: Option<Instant> = None;
        let mut freed = self.frame_freed.now();
        loop {
            let before = std::mem::replace(&mut freed, self.frame_freed.now());
            if freed != before {
                begun = begun.map(|_| Instant::now()); // others had it, but there is progress
            }
            if let Some(taken) = self.try_take_frame(0) {
                return taken;
            }
            let waiting = begun.get_or_insert_with(|| {
                self.stats.direct_reclaims.add(1);
                Instant::now()
            });
            if waiting.elapsed() > PATIENCE {
                self.give_up();
            }
            if !self.reclaim_directly() {
                self.frame_freed.wait_for(freed, Duration::from_millis(2));
            }
        }
    }

    /// A free frame, or that of the oldest folio on standby, if more than `reserve` are to be had.
    pub fn try_take_frame(&self, reserve: usize) -> Option<(FrameId, bool)> {
        let available = self.zone.available();
        if available <= self.zone.watermarks().low {
            self.reclaim_wanted.signal();
        }
        if available <= reserve {
            return None;
        }
        match self.zone.take(0) {
            Some(taken) => Some((taken.frame, taken.fresh)),
            None => self.steal_standby().map(|frame| (frame, false)),
        }
    }

    /// Takes the frame of the oldest clean folio in RAM; its copy stays on the device.
    pub fn steal_standby(&self) -> Option<FrameId> {
        for _ in 0..SCAN {
            let (frame, folio) = self.zone.oldest(List::Standby)?;
            let Some(mut locked) = self.try_lock(folio) else {
                self.zone.rotate(frame, List::Standby);
                continue;
            };
            if locked.state() != State::Standby(frame) || self.zone.list(frame) != Some(List::Standby) {
                continue;
            }
            let slot = self.zone.slot(frame).expect("a folio on standby has a copy");
            let nr_evictions = self.nr_evictions.fetch_add(1, Ordering::Relaxed);
            if locked.dropped_behind() {
                self.space.set_evicted_at(slot, nr_evictions);
            }
            self.zone.disown(frame);
            locked.set_marker(false);
            locked.set(State::Swapped(slot));
            return Some(frame);
        }
        None
    }

    /// Takes one mapped folio of the inactive tail home, into the laundry.
    pub fn unmap_oldest(&self) -> bool {
        self.zone.balance();
        for _ in 0..SCAN {
            let Some((frame, folio)) = self.zone.oldest(List::Inactive) else { return false };
            let Some(mut locked) = self.try_lock(folio) else {
                self.zone.rotate(frame, List::Inactive);
                continue;
            };
            if self.zone.list(frame) != Some(List::Inactive) {
                continue;
            }
            match locked.state() {
                State::Resident(at) if at == frame => {}
                State::Standby(at) if at == frame => {
                    // The marker of a window that nobody has reached.
                    self.zone.insert(frame, List::Laundry);
                    return true;
                }
                // The frame has changed hands since it was looked up.
                _ => continue,
            }
            match self.unmap(&mut locked, frame) {
                Ok(()) => {
                    self.zone.insert(frame, List::Laundry);
                    return true;
                }
                Err(MapError::Missing) => self.set_aside(&mut locked, frame),
                Err(_) => {
                    self.stats.busy_victims.add(1);
                    self.zone.insert(frame, List::Active);
                }
            }
        }
        false
    }

    /// Leaves a folio alone for good whose pages the program dropped by a way that is not seen here.
    fn set_aside(&self, locked: &mut Locked<'_>, frame: FrameId) {
        fatal::say("a folio has missing pages: the program dropped them by a system call of its own; it stays in RAM");
        locked.set_pinned(true);
        self.zone.remove(frame);
    }

    /// Looks at the oldest folio of the laundry and finds out whether it is clean.
    pub fn launder_oldest(&self) -> Laundered<'_> {
        let mut found = Laundered::Nothing;
        for _ in 0..self.zone.counts().laundry.min(SCAN) {
            let Some((frame, folio)) = self.zone.oldest(List::Laundry) else { break };
            let Some(locked) = self.try_lock(folio) else {
                self.zone.rotate(frame, List::Laundry);
                continue;
            };
            if locked.state() != State::Standby(frame) || self.zone.list(frame) != Some(List::Laundry) {
                continue;
            }
            match self.launder(locked, frame) {
                // Others behind it may be clean or zero, and need no slot.
                Laundered::NoSlot => {
                    found = Laundered::NoSlot;
                    self.zone.rotate(frame, List::Laundry);
                }
                other => return other,
            }
        }
        found
    }

    fn launder<'t>(&self, mut locked: Locked<'t>, frame: FrameId) -> Laundered<'t> {
        let bytes = &*self.frames.bytes(frame, &locked);
        if checksum::is_zero(bytes) {
            self.stats.zero_folios_dropped.add(1);
            self.release_frame(frame);
            locked.set(State::Empty);
            return Laundered::Clean;
        }
        let kept = self.zone.slot(frame);
        // A device in memory can be compared with, and hashes while it copies.
        let in_memory = kept.and_then(|slot| self.space.memory(slot));
        let surely_dirty = in_memory.is_some_and(|(memory, at)| memory.surely_differs(at, bytes));
        let mut checksum = None;
        if let Some(slot) = kept
            && !surely_dirty
        {
            let found = checksum::hash(bytes);
            if self.space.checksum(slot) == found {
                self.stats.clean_folios_dropped.add(1);
                self.zone.insert(frame, List::Standby);
                self.frame_freed.signal();
                return Laundered::Clean;
            }
            checksum = Some(found);
        }
        let Some(slot) = kept.or_else(|| self.allocate_slot()) else { return Laundered::NoSlot };
        if checksum.is_none() && self.space.memory(slot).is_none() {
            checksum = Some(checksum::hash(bytes));
        }
        self.zone.set_slot(frame, None);
        self.zone.remove(frame);
        Laundered::Write(Outgoing { locked, frame, slot, checksum })
    }

    /// A slot; when the space is full, one whose content is also in RAM.
    fn allocate_slot(&self) -> Option<SlotId> {
        let cpu = CpuId::new(folioswap_sys::cpu::current_cpu() as u32);
        self.space.allocate(cpu).or_else(|| {
            self.shed_copies();
            self.space.allocate(cpu)
        })
    }

    /// Frees the copies of mapped folios: what they hold is in RAM.
    fn shed_copies(&self) {
        for frame in self.zone.all_frames() {
            let Some(folio) = self.zone.owner(frame) else { continue };
            let Some(locked) = self.try_lock(folio) else { continue };
            let unneeded = match locked.state() {
                State::Resident(at) => at == frame,
                State::Standby(at) => at == frame && self.zone.list(frame) == Some(List::Laundry),
                State::Empty | State::Swapped(_) => false,
            };
            if unneeded {
                self.release_slot(frame);
            }
        }
    }

    /// Writes a folio now. For devices in memory, and for threads that reclaim for themselves.
    pub fn write_now(&self, mut outgoing: Outgoing<'_>) -> bool {
        let bytes = &*self.frames.bytes(outgoing.frame, &outgoing.locked);
        let written = match self.space.memory(outgoing.slot) {
            Some((memory, offset)) => {
                outgoing.checksum = Some(memory.store(offset, bytes));
                Ok(())
            }
            None => self.space.write(outgoing.slot, bytes),
        };
        self.finish_write(outgoing, written)
    }

    /// Puts a written folio on standby; one whose write failed stays in RAM, its slot is not used again.
    pub fn finish_write(&self, outgoing: Outgoing<'_>, written: std::io::Result<()>) -> bool {
        let Outgoing { locked, frame, slot, checksum } = outgoing;
        let done = match written {
            Ok(()) => {
                self.space.set_checksum(slot, checksum.expect("a folio is hashed before or while it is written"));
                self.zone.set_slot(frame, Some(slot));
                self.zone.insert(frame, List::Standby);
                self.stats.swapped_out_folios.add(1);
                self.stats.swapped_out_bytes.add(self.folio_bytes() as u64);
                true
            }
            Err(error) => {
                self.stats.io_errors.add(1);
                fatal::say(&format!(
                    "swap-out to {} failed ({error}): the folio stays in RAM, its slot is not used again",
                    self.space.device_name(slot)
                ));
                self.space.mark_bad(slot);
                self.zone.insert(frame, List::Laundry);
                false
            }
        };
        drop(locked);
        if done {
            self.frame_freed.signal();
        }
        done
    }

    /// Blocks in use beyond the budget.
    pub fn excess(&self) -> usize {
        let counts = self.zone.counts();
        counts.in_use.saturating_sub(counts.limit)
    }

    /// Makes one frame available by this thread's own work; `false` when nothing could be done.
    pub fn reclaim_directly(&self) -> bool {
        self.reclaim_wanted.signal();
        for _ in 0..4 {
            match self.launder_oldest() {
                Laundered::Clean => return true,
                Laundered::Write(outgoing) => return self.write_now(outgoing),
                Laundered::NoSlot | Laundered::Nothing => {
                    if !self.unmap_oldest() {
                        return false;
                    }
                }
            }
        }
        false
    }

    fn give_up(&self) -> ! {
        let memory = crate::size::Bytes(self.memory.load(Ordering::Relaxed));
        let mapped = self.nr_mapped.load(Ordering::Relaxed);
        let in_use = self.zone.counts().in_use;
        let in_use = format!("all {memory} of RAM in use ({in_use} folios, {mapped} of them mapped)");
        let cpu = CpuId::new(folioswap_sys::cpu::current_cpu() as u32);
        match self.space.allocate(cpu) {
            None => fatal::die(&format!(
                "out of memory: {} and {in_use}; give more --memory, or more or larger --swap",
                self.space.describe_full()
            )),
            Some(_) => fatal::die(&format!(
                "out of memory: {in_use}, and none could be freed for {} s; give more --memory",
                PATIENCE.as_secs()
            )),
        }
    }

    /// Reclaims one particular folio now, as advice; leaves it where it is when it is busy.
    pub fn evict(&self, folio: FolioId) {
        let Some(mut locked) = self.try_lock(folio) else { return };
        if locked.pinned() {
            return;
        }
        if let State::Resident(frame) = locked.state() {
            match self.unmap(&mut locked, frame) {
                Ok(()) => self.zone.insert(frame, List::Laundry),
                Err(_) => self.stats.busy_victims.add(1),
            }
        }
        if let State::Standby(frame) = locked.state()
            && self.zone.list(frame) == Some(List::Laundry)
            && let Laundered::Write(outgoing) = self.launder(locked, frame)
        {
            self.write_now(outgoing);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Arena;
    use crate::device::DeviceSpec;
    use crate::region::ArenaVec;

    #[test]
    fn copies_of_mapped_folios_make_room_in_a_full_space() {
        let device = DeviceSpec::Ram { size: 32 << 20 };
        let arena = Arena::builder().memory(32 << 20).device(device).build().unwrap();
        let mut words = ArenaVec::<u64>::zeroed(&arena, (14 << 20) / 8).unwrap();
        words.fill(1);
        arena.evict_all();
        assert!(words.iter().all(|&word| word == 1), "mapped again, their copies kept");
        let engine = arena.engine();
        while engine.space.allocate(CpuId::new(0)).is_some() {}
        assert!(engine.allocate_slot().is_some());
        assert!(words.iter().all(|&word| word == 1));
    }
}
