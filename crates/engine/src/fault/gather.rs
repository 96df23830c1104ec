//! Gathering: makes a split block one folio again, by bringing its parts from RAM and device into one huge page.

use folioswap_core::{
    BLOCK_PAGES, BLOCK_PIECES, Folio, List, Locked, Order, PAGE_SIZE, PIECE, Phase, SlotId, State, Taken,
};

use crate::device::checksum;
use crate::engine::Engine;
use crate::process::stopwatch::Stopwatch;
use crate::swap::block::SlotRun;
use crate::swap::health::SwapInError;

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
}
