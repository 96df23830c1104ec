//! Gathering: makes a split block one folio again, by bringing its parts from RAM and device into one huge page.

use std::io::{self, IoSliceMut};
use std::ops::Range;

use folioswap_core::{
    Ahead, BLOCK_PAGES, BLOCK_PIECES, CpuId, Folio, FrameId, List, Locked, Order, PAGE_SIZE, PIECE, Phase, SlotId,
    State, Taken,
};

use crate::device::checksum;
use crate::engine::Engine;
use crate::memory::frames::{Prepared, SCRATCH_PAGES};
use crate::process::cpu::current_cpu;
use crate::process::stopwatch::Stopwatch;
use crate::swap::block::SlotRun;
use crate::swap::health::SwapInError;
use crate::swap::health::Trouble;
use crate::swap::space::SwapSpace;

/// Which of the folios that come in together stay unmapped.
#[derive(Copy, Clone)]
pub enum Arrival {
    /// None.
    Mapped,
    /// This one, the marker of a window.
    Marked(usize),
    /// All but this one, which was touched.
    Around(usize),
}

/// A folio that is about to be read from its slots.
struct Part<'t> {
    slot: SlotId,
    index: usize,
    prepared: Prepared<'t>,
}

/// Slots that are read for nothing, so that one request reads what lies on both sides: that takes less time than
/// another request.
const MOST_GAP: usize = 16;
const NEAR: usize = 4;

/// Folios that one request reads, in the order of their slots. With gaps between them they are read by way of scratch
/// memory.
#[derive(Default)]
struct Run<'t> {
    parts: Vec<Part<'t>>,
    /// Slots from the first folio's first one to the last one's last.
    nr_slots: usize,
    has_gaps: bool,
}

impl<'t> Run<'t> {
    /// Whether a folio of `nr_pages` pages at `slot` can be read with these. Gaps may be read from a file only: other
    /// devices know which slots are in use.
    fn reaches(&self, slot: SlotId, nr_pages: usize, swap: &SwapSpace) -> bool {
        let Some(first) = self.parts.first().map(|part| part.slot) else { return false };
        let Some(gap) = slot.index().checked_sub(first.index() + self.nr_slots) else { return false };
        let is_near = match self.has_gaps || gap > 0 {
            true => gap <= MOST_GAP && self.nr_slots + gap + nr_pages <= SCRATCH_PAGES && swap.extent(first).is_some(),
            false => true,
        };
        is_near && swap.follows(slot, first, self.nr_slots + gap)
    }

    fn push(&mut self, part: Part<'t>) {
        let first = self.parts.first().map_or(part.slot, |first| first.slot);
        let at = part.slot.index() - first.index();
        self.has_gaps |= at > self.nr_slots;
        self.nr_slots = at + part.prepared.bytes().len() / PAGE_SIZE;
        self.parts.push(part);
    }

    /// Reads all of them.
    fn read(&mut self, engine: &Engine) -> io::Result<()> {
        let first = self.parts[0].slot;
        if !self.has_gaps {
            let mut pieces: Vec<_> =
                self.parts.iter_mut().map(|part| IoSliceMut::new(part.prepared.bytes_mut())).collect();
            return engine.swap().read_pieces(first, &mut pieces);
        }
        engine.ram().frames().with_scratch(|scratch| {
            engine.swap().read(first, &mut scratch[..self.nr_slots * PAGE_SIZE])?;
            for part in &mut self.parts {
                let (at, bytes) = ((part.slot.index() - first.index()) * PAGE_SIZE, part.prepared.bytes_mut());
                bytes.copy_from_slice(&scratch[at..at + bytes.len()]);
            }
            Ok(())
        })
    }
}

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

    /// Swaps in those of a split block's given folios that are on the device, each as a folio of its own. Folios that
    /// are contiguous on the device are read in one request. Takes only frames that can be spared, near `cpu`. The
    /// marker of a window stays unmapped.
    ///
    /// # Errors
    /// When the device cannot return the content.
    pub fn read_parts(
        &self,
        locked: &mut Locked<'_>,
        folios: impl Iterator<Item = usize>,
        arrival: Arrival,
        cpu: CpuId,
    ) -> Result<(), SwapInError> {
        let order = locked.order();
        let mut swapped = Vec::new();
        for index in folios {
            let (page, State::Swapped(slot)) = (index * order.nr_pages(), locked.state(index)) else { continue };
            if locked.is_sealed(page) {
                continue;
            }
            if order < PIECE && locked.piece_hash(page / PIECE.nr_pages()).is_some() {
                self.hash_pages(locked, page / PIECE.nr_pages() * PIECE.nr_pages(), &mut [])?;
            }
            swapped.push((slot, index));
        }
        swapped.sort_unstable();
        let mut run = Run::default();
        for (slot, index) in swapped {
            let Some(taken) = self.ram().try_take_near(self.table(), cpu, order, self.ram().zones().watermarks().min)
            else {
                break;
            };
            let prepared = self.ram().prepare(taken, order);
            if !run.reaches(slot, order.nr_pages(), self.swap())
                && let Err(error) = self.read_run(locked, std::mem::take(&mut run), arrival)
            {
                self.ram().release(prepared.into_frame());
                return Err(error);
            }
            run.push(Part { slot, index, prepared });
        }
        self.read_run(locked, run, arrival)
    }

    /// Swaps in a page of a block split into pages, and those of its group that come in the same request. Takes only
    /// frames that can be spared.
    ///
    /// # Errors
    /// When the device cannot return the content.
    pub fn read_around(&self, locked: &mut Locked<'_>, page: usize, group: Range<usize>) -> Result<(), SwapInError> {
        let mut swapped: Vec<_> = group
            .filter(|&index| !locked.is_sealed(index))
            .filter_map(|index| match locked.state(index) {
                State::Swapped(slot) => Some((slot, index)),
                _ => None,
            })
            .collect();
        swapped.sort_unstable();
        let Some(at) = swapped.iter().position(|&(_, index)| index == page) else { return Ok(()) };
        let near = |a: (SlotId, usize), b: (SlotId, usize)| {
            let gap = b.0.index() - a.0.index();
            gap <= NEAR && self.swap().follows(b.0, a.0, gap)
        };
        let first = (1..=at).rev().take_while(|&at| near(swapped[at - 1], swapped[at])).last().map_or(at, |at| at - 1);
        let end = (at..swapped.len()).take_while(|&next| next == at || near(swapped[next - 1], swapped[next])).last();
        let swapped = &swapped[first..=end.unwrap_or(at)];
        let mut run = Run::default();
        for &(slot, index) in swapped {
            let Some(taken) =
                self.ram().try_take_near(self.table(), current_cpu(), Order::PAGE, self.ram().zones().watermarks().min)
            else {
                break;
            };
            run.push(Part { slot, index, prepared: self.ram().prepare(taken, Order::PAGE) });
        }
        self.policy().read_neighbours(locked, run.parts.len().saturating_sub(1));
        self.read_run(locked, run, Arrival::Around(page))
    }

    /// Reads and verifies the piece that holds these pages, which has one hash, and hashes each of its pages.
    fn read_hashed(&self, locked: &mut Locked<'_>, parts: &mut [Part<'_>]) -> Result<(), SwapInError> {
        let piece = parts[0].index / PIECE.nr_pages();
        let first = piece * PIECE.nr_pages();
        let State::Swapped(slot) = locked.state(first) else {
            unreachable!("a piece hashed as one is in its slots as one");
        };
        self.ram().frames().with_scratch(|scratch| {
            let read = &mut scratch[..PIECE.bytes()];
            let addr = self.table().addr(locked.name(parts[0].index));
            let is_right = |read: &[u8]| locked.piece_hash(piece) == Some(checksum::hash(locked.key(), read));
            self.swap().read_verified(addr, slot, read, None, is_right)?;
            checksum::note_pages(locked, first, read);
            for part in parts {
                let at = (part.index - first) * PAGE_SIZE;
                part.prepared.bytes_mut().copy_from_slice(&read[at..at + PAGE_SIZE]);
            }
            Ok(())
        })
    }

    fn read_run(&self, locked: &mut Locked<'_>, mut run: Run<'_>, arrival: Arrival) -> Result<(), SwapInError> {
        let Some((first, index)) = run.parts.first().map(|part| (part.slot, part.index)) else { return Ok(()) };
        let order = locked.order();
        let is_hashed = order < PIECE && locked.piece_hash(index * order.nr_pages() / PIECE.nr_pages()).is_some();
        let is_read = if is_hashed {
            self.read_hashed(locked, &mut run.parts).is_ok()
        } else {
            let read = run.read(self);
            let is_read = read.is_ok();
            if let Err(error) = read
                && !run.has_gaps
            {
                self.swap().note_trouble(first, &Trouble::Read(error), false);
            }
            is_read
        };
        let mut result = Ok(());
        for Part { slot, index, mut prepared } in run.parts {
            let bytes = prepared.bytes_mut();
            if !is_read || !checksum::verify(locked, index * order.nr_pages(), bytes) {
                // One unreadable folio must not lose the others: read each alone.
                let read = self.read_folio(locked, index, slot, bytes, &mut Stopwatch::still());
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
            let ahead = match arrival {
                Arrival::Around(touched) if touched != index => Ahead::Neighbour,
                Arrival::Marked(marker) if marker == index => Ahead::Marker,
                _ => Ahead::No,
            };
            self.stats().readahead_folios.add(1);
            self.admit(locked, index, frame, ahead);
        }
        result
    }

    /// Maps a folio that was read ahead, unless its first access is to fault.
    pub fn admit(&self, locked: &mut Locked<'_>, index: usize, frame: FrameId, ahead: Ahead) {
        if ahead != Ahead::No {
            locked.folio_mut(index).set_in_ram(frame, false);
            locked.folio_mut(index).ahead = ahead;
            self.note_copy(locked, index);
            // As young as the rest of its window: on standby it would be evicted next, before it is ever touched.
            self.ram().put(frame, List::Inactive);
        } else {
            self.map(locked, index, frame, List::Inactive);
            self.settle_slot(locked, index, &mut Stopwatch::still());
        }
    }
}
