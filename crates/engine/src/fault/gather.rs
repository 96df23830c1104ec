//! Gathering: makes a split block one folio again, by bringing its parts from RAM and device into one huge page.

use std::io::IoSliceMut;
use std::ops::Range;

use folioswap_core::{
    BLOCK_PAGES, BLOCK_PIECES, CpuId, Folio, FrameId, List, Locked, Order, PAGE_SIZE, PIECE, Phase, SlotId, State,
    Taken,
};

use crate::device::checksum;
use crate::engine::Engine;
use crate::memory::frames::Prepared;
use crate::process::stopwatch::Stopwatch;
use crate::swap::block::SlotRun;
use crate::swap::health::SwapInError;
use crate::swap::health::Trouble;

impl Engine {
    /// Brings all of a split block that is not pinned into RAM as one folio, maps it and puts it on `list`. `false`:
    /// there were no frames for it, or a part is in use; folios that are in RAM stay there.
    ///
    /// # Errors
    /// When the device cannot return the content.
    pub fn gather(
        &self,
        locked: &mut Locked<'_>,
        taken: Option<Taken>,
        list: List,
        watch: &mut Stopwatch<'_>,
    ) -> Result<bool, SwapInError> {
        let Some(taken) = taken else {
            self.stats().swpin_fallback.add(Order::HUGE, 1);
            self.compactor().want_whole();
            return Ok(false);
        };
        let mut whole = self.ram().prepare(taken, Order::HUGE);
        watch.long_part(Phase::Frame);
        let collected = self.collect(locked, whole.bytes_mut());
        watch.lap(Phase::Read);
        match collected {
            Ok(true) => {}
            not_all => {
                self.ram().release(whole.into_frame());
                return not_all;
            }
        }
        let run = self.slots_in_one_run(locked).filter(|&slot| self.swap().keeps_copies(slot));
        let known = run.map(|_| self.known_pieces(locked, whole.bytes()));
        let whole = whole.into_frame();
        for index in 0..locked.nr_folios() {
            if let Some(frame) = locked.folio(index).frame() {
                self.ram().release(frame);
            }
            if run.is_none() {
                self.release_slot(locked, index);
            }
        }
        watch.lap(if run.is_some() { Phase::Read } else { Phase::Free });
        locked.join();
        locked.folio_mut(0).set_slot(run);
        for (piece, hash) in known.iter().flatten().enumerate() {
            if let Some(hash) = *hash {
                locked.set_piece_hash(piece, hash);
            }
        }
        self.ram().zone(whole).set_owner(whole, locked.name(0));
        self.map(locked, 0, whole, list);
        self.note_copy(locked, 0);
        Ok(true)
    }

    /// The first slot of the run to which the block was once written whole, if all of its parts still have their places
    /// there.
    fn slots_in_one_run(&self, locked: &Locked<'_>) -> Option<SlotId> {
        let first = locked.folio(0).slot().filter(|slot| slot.index().is_multiple_of(BLOCK_PAGES))?;
        let nr_pages = locked.order().nr_pages();
        let in_place = |(index, folio): (usize, &Folio)| {
            folio.slot().is_some_and(|slot| self.swap().follows(slot, first, index * nr_pages))
        };
        locked.folios().iter().enumerate().all(in_place).then_some(first)
    }

    /// The hashes of those pieces whose slots hold the same bytes as the gathered block.
    fn known_pieces(&self, locked: &Locked<'_>, bytes: &[u8]) -> [Option<u128>; BLOCK_PIECES] {
        std::array::from_fn(|piece| {
            let bytes = &bytes[piece * PIECE.bytes()..(piece + 1) * PIECE.bytes()];
            checksum::is_noted(locked, piece * PIECE.nr_pages(), bytes)
                .then(|| locked.piece_hash(piece).unwrap_or_else(|| checksum::hash(locked.key(), bytes)))
        })
    }

    /// Copies and reads all parts of a block into a huge page. `false`: a part is in use.
    fn collect(&self, locked: &mut Locked<'_>, bytes: &mut [u8]) -> Result<bool, SwapInError> {
        let order = locked.order();
        let mut swapped: Vec<SlotRun> = Vec::new();
        for index in 0..locked.nr_folios() {
            let (start, end) = (index * order.nr_pages(), (index + 1) * order.nr_pages());
            let part = &mut bytes[start * PAGE_SIZE..end * PAGE_SIZE];
            if matches!(locked.state(index), State::Resident(_)) && self.unmap_to_laundry(locked, index).is_err() {
                self.stats().busy_victims.add(1);
                return Ok(false);
            }
            match locked.state(index) {
                State::Empty => part.fill(0),
                State::Standby(_) => part.copy_from_slice(self.ram().frames().at_home(locked, index)),
                State::Swapped(slot) => match swapped.last_mut() {
                    Some(run) if run.pages.end == start && self.swap().follows(slot, run.slot, run.pages.len()) => {
                        run.pages.end = end
                    }
                    _ => swapped.push(SlotRun { slot, pages: start..end }),
                },
                State::Resident(_) => unreachable!("it was just unmapped"),
            }
        }
        for run in &swapped {
            let part = &mut bytes[run.pages.start * PAGE_SIZE..run.pages.end * PAGE_SIZE];
            let addr = self.table().addr(locked.name(locked.index_of(run.pages.start)));
            self.swap().read_verified(addr, run.slot, part, None, |part| self.is_right(locked, run, part))?;
            self.stats().swapped_in_bytes.add(part.len() as u64);
        }
        if !swapped.is_empty() {
            self.stats().swapped_in_folios.add(1);
            self.stats().swpin.add(Order::HUGE, 1);
        }
        Ok(true)
    }

    /// Whether the bytes that were read of several folios are those that were written.
    pub fn is_right(&self, locked: &Locked<'_>, run: &SlotRun, bytes: &[u8]) -> bool {
        let order = locked.order();
        let mut page = run.pages.start;
        while page < run.pages.end {
            let at = (page - run.pages.start) * PAGE_SIZE;
            let piece = page / PIECE.nr_pages();
            let as_one = locked.piece_hash(piece);
            let (len, right) = match as_one {
                // The piece was written as one and is unchanged since, so all of it was read.
                Some(hash) if order < PIECE => {
                    (PIECE.nr_pages(), checksum::hash(locked.key(), &bytes[at..at + PIECE.bytes()]) == hash)
                }
                _ => (order.nr_pages(), checksum::verify(locked, page, &bytes[at..at + order.bytes()])),
            };
            if !right {
                return false;
            }
            page += len;
        }
        debug_assert!(page <= BLOCK_PAGES && page.div_ceil(PIECE.nr_pages()) <= BLOCK_PIECES);
        true
    }

    /// Swaps in those of a range of a split block's folios that are on the device, each as a folio of its own. Folios
    /// that are contiguous on the device are read in one request. Takes only frames that can be spared, near `cpu`. The
    /// marker of a window stays unmapped.
    ///
    /// # Errors
    /// When the device cannot return the content.
    pub fn read_parts(
        &self,
        locked: &mut Locked<'_>,
        folios: Range<usize>,
        marker: Option<usize>,
        cpu: CpuId,
    ) -> Result<(), SwapInError> {
        let order = locked.order();
        if order < PIECE {
            let pieces = folios.start * order.nr_pages() / PIECE.nr_pages()
                ..(folios.end * order.nr_pages()).div_ceil(PIECE.nr_pages());
            for piece in pieces {
                if locked.piece_hash(piece).is_some() {
                    self.hash_pages(locked, piece * PIECE.nr_pages(), &mut [])?;
                }
            }
        }
        let mut run: Vec<(usize, Prepared<'_>)> = Vec::new();
        let mut first: Option<SlotId> = None;
        for index in folios {
            let State::Swapped(slot) = locked.state(index) else { continue };
            if locked.is_sealed(index * order.nr_pages()) {
                continue;
            }
            let Some(taken) = self.ram().try_take_near(self.table(), cpu, order, self.ram().zones().watermarks().min)
            else {
                break;
            };
            let prepared = self.ram().prepare(taken, order);
            if !first.is_some_and(|first| self.swap().follows(slot, first, run.len() * order.nr_pages())) {
                if let Some(first) = first
                    && let Err(error) = self.read_run(locked, first, std::mem::take(&mut run), marker)
                {
                    self.ram().release(prepared.into_frame());
                    return Err(error);
                }
                first = Some(slot);
            }
            run.push((index, prepared));
        }
        first.map_or(Ok(()), |first| self.read_run(locked, first, run, marker))
    }

    fn read_run(
        &self,
        locked: &mut Locked<'_>,
        slot: SlotId,
        mut run: Vec<(usize, Prepared<'_>)>,
        marker: Option<usize>,
    ) -> Result<(), SwapInError> {
        let order = locked.order();
        let mut pieces: Vec<_> = run.iter_mut().map(|(_, prepared)| IoSliceMut::new(prepared.bytes_mut())).collect();
        let read = self.swap().read_pieces(slot, &mut pieces);
        let is_read = read.is_ok();
        if let Err(error) = read {
            self.swap().note_trouble(slot, &Trouble::Read(error), false);
        }
        let mut result = Ok(());
        for (at, (index, mut prepared)) in run.into_iter().enumerate() {
            let bytes = prepared.bytes_mut();
            if !is_read || !checksum::verify(locked, index * order.nr_pages(), bytes) {
                // One unreadable folio must not lose the others: read each alone.
                let read =
                    self.read_folio(locked, index, slot.plus(at * order.nr_pages()), bytes, &mut Stopwatch::still());
                if read.is_err() {
                    self.ram().release(prepared.into_frame());
                    result = read;
                    continue;
                }
            }
            let frame = prepared.into_frame();
            self.judge_drop(locked, index);
            self.ram().zone(frame).set_owner(frame, locked.name(index));
            self.count_swap_in(order);
            self.stats().readahead_folios.add(1);
            self.admit(locked, index, frame, marker == Some(index));
        }
        result
    }

    /// Maps a folio that was read ahead. The marker of a window stays unmapped, so that the first access to it faults.
    pub fn admit(&self, locked: &mut Locked<'_>, index: usize, frame: FrameId, marker: bool) {
        if marker {
            locked.folio_mut(index).set_in_ram(frame, false);
            locked.folio_mut(index).marker = true;
            self.note_copy(locked, index);
            // As young as the rest of its window: on standby it would be evicted next, before it is ever touched.
            self.ram().put(frame, List::Inactive);
        } else {
            self.map(locked, index, frame, List::Inactive);
            self.settle_slot(locked, index, &mut Stopwatch::still());
        }
    }
}
