//! Reads folios from their slots, verifies them, and joins parts to one folio.

use folioswap_core::{
    BLOCK_PAGES, BLOCK_PIECES, DeviceId, Folio, List, Order, PAGE_SIZE, PIECE, Phase, SlotId, State, Taken,
};

use super::Block;
use crate::device::checksum;
use crate::process::stopwatch::Stopwatch;
use crate::swap::block::SlotRun;
use crate::swap::health::{SwapInError, Trouble};

impl Block<'_> {
    /// Reads a folio's slots and verifies their content. Ends the stopwatch's frame phase.
    pub async fn read_folio(
        &mut self,
        index: usize,
        slot: SlotId,
        bytes: &mut [u8],
        watch: &mut Stopwatch<'_>,
    ) -> Result<(), SwapInError> {
        let page = index * self.order().nr_pages();
        if self.order() < PIECE && self.piece_hash(page / PIECE.nr_pages()).is_some() {
            watch.long_part(Phase::Frame);
            return self.hash_pages(page, bytes).await;
        }
        if self.order() < Order::HUGE && self.swap().memory(slot).is_some() {
            watch.lap(Phase::Frame);
        } else {
            watch.long_part(Phase::Frame);
        }
        // A device in memory verifies as it copies. A second try reads it like any other.
        let first = self.swap().memory(slot).map(|memory| Trouble::unless(memory.load(self, page, bytes)));
        let addr = self.table().addr(self.name(index));
        let is_right = |bytes: &[u8]| checksum::verify(self, page, bytes);
        self.swap().read_verified(addr, slot, bytes, first, is_right, self.waits).await
    }

    /// Reads and verifies the piece that holds a page and has one hash. Hashes each of its pages, and passes its
    /// content to `bring`.
    pub async fn read_piece(&mut self, page: usize, bring: impl FnOnce(&[u8])) -> Result<(), SwapInError> {
        let piece = page / PIECE.nr_pages();
        let first = piece * PIECE.nr_pages();
        let State::Swapped(slot) = self.state(self.index_of(first)) else {
            unreachable!("a piece hashed as one is in its slots as one");
        };
        let mut scratch = self.ram().frames().scratch(self.waits).await;
        let read = &mut scratch.bytes_mut()[..PIECE.bytes()];
        let addr = self.table().addr(self.name(self.index_of(page)));
        let is_right = |read: &[u8]| self.piece_hash(piece) == Some(checksum::hash(self.key(), read));
        self.swap().read_verified(addr, slot, read, None, is_right, self.waits).await?;
        checksum::note_pages(self, first, read);
        bring(read);
        Ok(())
    }

    /// Prepares a page for reading or moving it alone, where its whole piece has one hash. Copies the page's content to
    /// `bytes`.
    pub async fn hash_pages(&mut self, page: usize, bytes: &mut [u8]) -> Result<(), SwapInError> {
        let at = page % PIECE.nr_pages() * PAGE_SIZE;
        self.read_piece(page, |read| bytes.copy_from_slice(&read[at..][..bytes.len()])).await
    }

    /// Brings all of a split block that is not pinned into RAM as one folio, maps it and puts it on `list`. `false`: a
    /// part is in use; folios that are in RAM stay there.
    ///
    /// # Errors
    /// When the device cannot return the content.
    pub async fn gather(&mut self, taken: Taken, list: List, watch: &mut Stopwatch<'_>) -> Result<bool, SwapInError> {
        let mut whole = self.ram().prepare(taken, Order::HUGE);
        watch.long_part(Phase::Frame);
        let collected = self.collect(whole.bytes_mut()).await;
        watch.lap(Phase::Read);
        match collected {
            Ok(true) => {}
            not_all => {
                self.ram().release(whole.into_frame());
                return not_all;
            }
        }
        let run = self.slots_in_one_run().filter(|&slot| self.swap().at(slot).keeps_copies());
        let known = run.map(|_| self.known_pieces(whole.bytes()));
        let whole = whole.into_frame();
        for index in 0..self.nr_folios() {
            if let Some(frame) = self.folio(index).frame() {
                self.ram().release(frame);
            }
            if run.is_none() {
                self.release_slot(index);
            }
        }
        watch.lap(if run.is_some() { Phase::Read } else { Phase::Free });
        self.join();
        self.folio_mut(0).set_slot(run);
        for (piece, hash) in known.iter().flatten().enumerate() {
            if let Some(hash) = *hash {
                self.set_piece_hash(piece, hash);
            }
        }
        self.ram().zone(whole).set_owner(whole, self.name(0));
        self.map(0, whole, list);
        self.note_copy(0);
        Ok(true)
    }

    /// The first slot of the run to which the block was once written whole, if all of its parts still have their places
    /// there.
    fn slots_in_one_run(&self) -> Option<SlotId> {
        let first = self.folio(0).slot().filter(|slot| slot.index().is_multiple_of(BLOCK_PAGES))?;
        let nr_pages = self.order().nr_pages();
        let in_place = |(index, folio): (usize, &Folio)| {
            folio.slot().is_some_and(|slot| self.swap().devices().follows(slot, first, index * nr_pages))
        };
        self.folios().iter().enumerate().all(in_place).then_some(first)
    }

    /// The hashes of those pieces whose slots hold the same bytes as the gathered block.
    fn known_pieces(&self, bytes: &[u8]) -> [Option<u128>; BLOCK_PIECES] {
        std::array::from_fn(|piece| {
            let bytes = &bytes[piece * PIECE.bytes()..(piece + 1) * PIECE.bytes()];
            checksum::is_noted(self, piece * PIECE.nr_pages(), bytes)
                .then(|| self.piece_hash(piece).unwrap_or_else(|| checksum::hash(self.key(), bytes)))
        })
    }

    /// Copies and reads all parts of a block into a huge page. `false`: a part is in use.
    async fn collect(&mut self, bytes: &mut [u8]) -> Result<bool, SwapInError> {
        let order = self.order();
        let mut swapped: Vec<SlotRun> = Vec::new();
        for index in 0..self.nr_folios() {
            let (start, end) = (index * order.nr_pages(), (index + 1) * order.nr_pages());
            let part = &mut bytes[start * PAGE_SIZE..end * PAGE_SIZE];
            if matches!(self.state(index), State::Resident(_)) && self.unmap_to_laundry(index).is_err() {
                self.stats().busy_victims.add(1);
                return Ok(false);
            }
            match self.state(index) {
                State::Empty => part.fill(0),
                State::Standby(_) => part.copy_from_slice(self.ram().frames().at_home(self, index)),
                State::Swapped(slot) => match swapped.last_mut() {
                    Some(run)
                        if run.pages.end == start && self.swap().devices().follows(slot, run.slot, run.pages.len()) =>
                    {
                        run.pages.end = end
                    }
                    _ => swapped.push(SlotRun { slot, pages: start..end }),
                },
                State::Resident(_) => unreachable!("it was just unmapped"),
            }
        }
        for run in &swapped {
            let part = &mut bytes[run.pages.start * PAGE_SIZE..run.pages.end * PAGE_SIZE];
            let addr = self.table().addr(self.name(self.index_of(run.pages.start)));
            let is_right = |part: &[u8]| self.is_right(run, part);
            self.swap().read_verified(addr, run.slot, part, None, is_right, self.waits).await?;
            self.stats().swapped_in_bytes.add(part.len() as u64);
        }
        if !swapped.is_empty() {
            self.stats().swapped_in_folios.add(1);
            self.stats().swpin.add(Order::HUGE, 1);
        }
        Ok(true)
    }

    /// Whether the bytes that were read of several folios are those that were written.
    fn is_right(&self, run: &SlotRun, bytes: &[u8]) -> bool {
        let order = self.order();
        let mut page = run.pages.start;
        while page < run.pages.end {
            let at = (page - run.pages.start) * PAGE_SIZE;
            let piece = page / PIECE.nr_pages();
            let as_one = self.piece_hash(piece);
            let (len, right) = match as_one {
                // The piece was written as one and is unchanged since, so all of it was read.
                Some(hash) if order < PIECE => {
                    (PIECE.nr_pages(), checksum::hash(self.key(), &bytes[at..at + PIECE.bytes()]) == hash)
                }
                _ => (order.nr_pages(), checksum::verify(self, page, &bytes[at..at + order.bytes()])),
            };
            if !right {
                return false;
            }
            page += len;
        }
        debug_assert!(page <= BLOCK_PAGES && page.div_ceil(PIECE.nr_pages()) <= BLOCK_PIECES);
        true
    }

    /// The first folios from `page` on that are only on the device and whose slots are contiguous.
    pub fn next_run(&self, page: usize, device: DeviceId) -> Option<SlotRun> {
        let nr_pages = self.order().nr_pages();
        let mut found: Option<SlotRun> = None;
        for index in self.index_of(page)..self.nr_folios() {
            let slot = match self.state(index) {
                State::Swapped(slot) if self.swap().devices().device_of(slot) == device => Some(slot),
                _ => None,
            };
            match (&mut found, slot) {
                (Some(run), Some(slot)) if self.swap().devices().follows(slot, run.slot, run.pages.len()) => {
                    run.pages.end += nr_pages
                }
                (Some(_), _) => break,
                (None, Some(slot)) => found = Some(SlotRun { slot, pages: index * nr_pages..(index + 1) * nr_pages }),
                (None, None) => {}
            }
        }
        found
    }

    /// Gives each page of a run its own hash where its piece has one, because the piece's pages may now be stored
    /// apart.
    pub async fn hash_run_by_pages(&mut self, run: &SlotRun) -> Result<(), SwapInError> {
        if self.order() < PIECE {
            for page in run.pages.clone() {
                if self.piece_hash(page / PIECE.nr_pages()).is_some() {
                    self.hash_pages(page, &mut []).await?;
                }
            }
        }
        Ok(())
    }

    /// Reads and verifies a part of a block that is about to be moved alone.
    pub async fn read_run_alone(&mut self, run: &SlotRun, bytes: &mut [u8]) -> Result<(), SwapInError> {
        self.hash_run_by_pages(run).await?;
        self.read_run_checked(run, bytes).await
    }

    pub async fn read_run_checked(&self, run: &SlotRun, bytes: &mut [u8]) -> Result<(), SwapInError> {
        let addr = self.table().addr(self.name(self.index_of(run.pages.start)));
        let is_right = |bytes: &[u8]| self.is_right(run, bytes);
        self.swap().read_verified(addr, run.slot, bytes, None, is_right, self.waits).await
    }
}
