//! One folio's way in: address -> folio table -> frames from the zone -> device reads into them -> map -> table.

use std::sync::atomic::Ordering;
use std::time::Instant;

use folioswap_core::{FaultKind, FolioId, FrameId, List, Locked, Room, SlotId, State};

use crate::checksum;
use crate::engine::Engine;
use crate::readahead::Window;
use crate::wakeup::Pass;

/// Longest window of readahead, in bytes: 8 huge pages in flight are what a disk needs to be busy.
const WINDOW_BYTES: usize = 16 << 20;

/// A folio's content could not be had from its device. What was stored is lost to the thread that asked.
#[derive(Debug, thiserror::Error)]
#[error("swap-in from {device} failed: {reason}")]
pub(crate) struct SwapInError {
    device: String,
    reason: String,
}

impl Engine {
    /// Makes the folio present, on behalf of `thread`, for which the caller is inside the gate. Returns at once when it
    /// already is.
    ///
    /// # Errors
    /// When the device cannot give back what it holds.
    pub fn fault(&self, pass: Pass<'_>, folio: FolioId, thread: u32) -> Result<(), SwapInError> {
        let begun = Instant::now();
        let Some(mut locked) = self.lock_absent(folio) else {
            self.count(FaultKind::Wait, begun);
            return Ok(());
        };
        let kind = match locked.state() {
            State::Resident(_) => return Ok(()),
            // Reported before its addresses were given up; a signal made the thread go on.
            State::Empty if !self.is_open(folio) => return Ok(()),
            State::Empty => {
                self.first_touch(&mut locked);
                FaultKind::FirstTouch
            }
            State::Standby(frame) => {
                self.map(&mut locked, frame, List::Active);
                self.settle_slot(frame);
                FaultKind::Standby
            }
            State::Swapped(slot) => {
                self.swap_in(&mut locked, slot)?;
                FaultKind::SwapIn
            }
        };
        if locked.marker() {
            locked.set_marker(false);
            self.stats.readahead_hits.add(1);
        }
        if locked.dropped_behind() {
            locked.set_dropped_behind(false);
            if kind == FaultKind::Standby {
                self.drop_behind.refaulted();
            }
        }
        self.follow_fork(&locked, thread);
        drop(locked);
        drop(pass);
        self.count(kind, begun);
        self.follow_stream(folio, thread);
        Ok(())
    }

    fn count(&self, kind: FaultKind, begun: Instant) {
        self.stats.record_fault(kind, begun.elapsed().as_nanos() as u64);
    }

    /// Locks a folio that is not mapped; `None` when another thread brought it in while this one waited.
    fn lock_absent(&self, folio: FolioId) -> Option<Locked<'_>> {
        if let Some(locked) = self.try_lock(folio) {
            return Some(locked);
        }
        let locked = self.lock(folio);
        if matches!(locked.state(), State::Resident(_)) { None } else { Some(locked) }
    }

    fn first_touch(&self, locked: &mut Locked<'_>) {
        let (frame, fresh) = self.take_frame();
        self.zone.set_owner(frame, locked.folio(), None);
        if fresh {
            self.map_fresh(locked, frame, List::Inactive);
        } else {
            self.frames.bytes(frame, locked).fill(0);
            self.map(locked, frame, List::Inactive);
        }
    }

    fn swap_in(&self, locked: &mut Locked<'_>, slot: SlotId) -> Result<(), SwapInError> {
        let (frame, fresh) = self.take_frame();
        if fresh {
            self.patiently("made", || self.mapper.populate(self.frames.home(frame)));
        }
        let bytes = self.frames.bytes(frame, locked);
        let read = match self.space.memory(slot) {
            Some((memory, offset)) => Ok(memory.load(offset, bytes)),
            None => self.space.read(slot, bytes).map(|()| checksum::hash(bytes)),
        };
        let verified = read
            .map_err(|error| self.swap_in_error(slot, &error.to_string()))
            .and_then(|found| self.verify(slot, found));
        if let Err(error) = verified {
            self.zone.give(frame);
            return Err(error);
        }
        self.judge_drop(locked, slot);
        self.zone.set_owner(frame, locked.folio(), Some(slot));
        self.map(locked, frame, List::Inactive);
        self.settle_slot(frame);
        self.stats.swapped_in_folios.add(1);
        self.stats.swapped_in_bytes.add(self.folio_bytes() as u64);
        Ok(())
    }

    /// A folio that was dropped behind a stream is wanted back: was it wrong to drop it? It was if fewer folios have left
    /// RAM since than RAM holds, for then an eviction by age would have kept it.
    pub fn judge_drop(&self, locked: &mut Locked<'_>, slot: SlotId) {
        if locked.dropped_behind() {
            locked.set_dropped_behind(false);
            let since = self.nr_evictions.load(Ordering::Relaxed).wrapping_sub(self.space.evicted_at(slot));
            if (since as usize) < self.zone.counts().limit {
                self.drop_behind.refaulted();
            }
        }
    }

    /// Whether what was read is what was written.
    pub fn verify(&self, slot: SlotId, found: checksum::Checksum) -> Result<(), SwapInError> {
        if found == self.space.checksum(slot) {
            return Ok(());
        }
        self.stats.verify_failures.add(1);
        Err(self.swap_in_error(slot, "it returned other bytes than were written to it"))
    }

    pub fn swap_in_error(&self, slot: SlotId, reason: &str) -> SwapInError {
        self.stats.io_errors.add(1);
        SwapInError { device: self.space.device_name(slot), reason: reason.into() }
    }

    /// Decides whether a folio that was just mapped keeps its copy on the device: only while there is plenty of room.
    pub fn settle_slot(&self, frame: FrameId) {
        if !self.space.keeps_copies() {
            self.release_slot(frame);
        }
    }

    /// Tells the policies where this thread is, and acts on what they say.
    fn follow_stream(&self, folio: FolioId, thread: u32) {
        let blocks = self.zone.counts().limit;
        let room = Room { max_window: (WINDOW_BYTES / self.folio_bytes()).min(blocks / 16), max_total: blocks / 4 };
        let Some(advice) = self.streams.observe(u64::from(thread), folio, room) else { return };
        for folios in advice.windows.iter() {
            self.reads.push(Window { marker: Some(advice.marker(folios)), folios: folios.clone() });
        }
        let nr_behind = advice.behind.end.index() - advice.behind.start.index();
        if self.drop_behind.passed(nr_behind, blocks) {
            self.drop_passed(advice.behind);
        }
    }

    /// Makes the folios that a stream has left behind the next ones to go.
    fn drop_passed(&self, behind: std::ops::Range<FolioId>) {
        for index in behind.start.index()..behind.end.index() {
            let Some(mut locked) = self.try_lock(FolioId::new(index as u32)) else { continue };
            if let State::Resident(frame) = locked.state()
                && !locked.pinned()
            {
                locked.set_dropped_behind(true);
                self.zone.insert_tail(frame, List::Inactive);
            }
        }
    }
}
