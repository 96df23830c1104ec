//! The pages of a block: its folios are mapped, unmapped and dropped; the folio table and RAM change together.
//!
//! **Lost pages.** The device of a lost page cannot return its content. The loss of a folio is reported once, not at
//! each touch. In monitor mode lost pages are *poisoned* (`UFFDIO_POISON`): the kernel answers a touch with SIGBUS and
//! a system call with EFAULT, without another fault event. In direct mode each touch faults, and the engine tries to
//! read the page.
//!
//! **Invariant.** Only swapped pages of failing devices are lost. Mapping, dropping or transferring a folio removes the
//! poison, under its block's lock. So does each step of evacuation for folios that are in RAM or on another device by
//! then.

use std::io;
use std::ops::Range;

use folioswap_core::{FrameId, List, Order, PAGE_SIZE, PIECE, Phase, State};
use folioswap_sys::uffd::MoveError;

use super::Block;
use crate::memory::map_error::{MapError, patiently};
use crate::memory::waited;
use crate::process::fatal;
use crate::process::stopwatch::Stopwatch;
use crate::process::turns::asleep;

impl Block<'_> {
    /// The address, the home address and the length in bytes of a folio.
    fn places(&self, index: usize, frame: FrameId) -> (usize, usize, usize) {
        (self.table().addr(self.name(index)), self.ram().frames().home(frame), self.order().bytes())
    }

    /// Maps a folio from its home to its address, and puts it on `list`.
    pub fn map(&mut self, index: usize, frame: FrameId, list: List) {
        self.end_lost(self.pages_of(index));
        let (addr, home, len) = self.places(index, frame);
        // SAFETY: the folio's place and its frames' home; the block is locked.
        patiently("mapped", || unsafe { self.ram().mapper().map(addr, home, len) });
        self.note_mapped(index, frame, list);
    }

    /// Maps a whole block like [`Block::map`], but with fresh, zeroed memory instead of the content at home.
    pub fn map_fresh(&mut self, frame: FrameId, list: List, watch: &mut Stopwatch) {
        let (addr, home, _) = self.places(0, frame);
        // SAFETY: the folio's place and its frames' home; the block is locked.
        if !patiently("made", || unsafe { self.ram().mapper().map_fresh(addr, home) }) {
            self.ram().note_small(frame);
        }
        watch.lap(Phase::Frame); // allocating and clearing the page takes all but a microsecond
        self.note_mapped(0, frame, list);
    }

    /// Notes that a folio is mapped, and puts it on `list`.
    pub fn note_mapped(&mut self, index: usize, frame: FrameId, list: List) {
        self.folio_mut(index).set_in_ram(frame, true);
        if self.pinned {
            self.ram().zone(frame).set_owner(frame, self.name(index));
            self.ram().zone(frame).remove(frame);
        } else {
            self.ram().zone(frame).insert_for(self.name(index), frame, list);
        }
    }

    /// Moves a mapped folio to its home. Its frames stay on their list. Busy is also one in which a thread waits.
    pub fn unmap(&mut self, index: usize) -> Result<(), MapError> {
        if self.is_waited_on(index) {
            return Err(MapError::Busy);
        }
        let mapper = self.ram().mapper();
        // SAFETY: the folio's place and its frames' home; the block is locked.
        let unmap = |addr, home, len| unsafe { mapper.unmap(addr, home, len) };
        match self.unmap_by(index, unmap) {
            Err(MapError::Missing) if self.fill_gaps(self.pages_of(index)) => self.unmap_by(index, unmap),
            unmapped => unmapped,
        }
    }

    /// Whether a thread may sleep on a word in a folio.
    pub fn is_waited_on(&self, index: usize) -> bool {
        let addr = self.table().addr(self.name(index));
        waited::is_waited_on(&(addr..addr + self.order().bytes()))
    }

    /// As [`Block::unmap`], for content that nobody needs any more.
    fn unmap_unneeded(&mut self, index: usize) -> Result<(), MapError> {
        let mapper = self.ram().mapper();
        // SAFETY: as in `unmap`.
        self.unmap_by(index, |addr, home, len| unsafe { mapper.unmap_unneeded(addr, home, len) })
    }

    /// Moves a mapped folio to its home, into the laundry.
    pub fn unmap_to_laundry(&mut self, index: usize) -> Result<(), MapError> {
        self.unmap(index)?;
        self.ram().put(self.frame(index), List::Laundry);
        Ok(())
    }

    fn unmap_by(
        &mut self,
        index: usize,
        unmap: impl Fn(usize, usize, usize) -> Result<(), MapError>,
    ) -> Result<(), MapError> {
        let frame = self.frame(index);
        let (addr, home, len) = self.places(index, frame);
        if self.table().has_locked(&(addr..addr + len)) {
            return Err(MapError::Busy); // the kernel does not move it, and may not let it go
        }
        unmap(addr, home, len)?;
        self.folio_mut(index).set_in_ram(frame, false);
        Ok(())
    }

    /// Maps zeros at those of these pages, of mapped folios, that are missing: the program dropped them by a call that
    /// the engine did not see, and by the kernel's rules they are zero. Returns whether any was missing, and all are
    /// present now.
    pub fn fill_gaps(&mut self, pages: Range<usize>) -> bool {
        let mut has_filled = false;
        for page in pages {
            if self.is_sealed(page) {
                continue;
            }
            let addr = self.table().addr(self.id().page(page));
            if self.ram().mapper().has_page(addr) != Some(false) {
                continue;
            }
            // SAFETY: a page of this locked block at which nothing is present, though its folio is mapped.
            match unsafe { self.ram().mapper().fill(addr, PAGE_SIZE) } {
                Ok(()) => has_filled = true,
                Err(MoveError::Present) => {} // in the kernel's swap, which `has_page` may not see
                Err(_) => return false,       // it is another mapping now
            }
        }
        has_filled
    }

    /// Discards the content of all folios of a block. The block then reads as zero, as one folio.
    pub fn drop_block(&mut self) {
        for index in 0..self.nr_folios() {
            self.drop_content(index);
        }
        self.join();
    }

    /// Discards the content of a folio, which then reads as zero. Its frames go back to the zone, its slots to the
    /// space.
    fn drop_content(&mut self, index: usize) {
        let frame = match self.state(index) {
            State::Empty => return,
            State::Swapped(_) => None,
            State::Standby(frame) => Some(frame),
            State::Resident(frame) => match self.unmap_unneeded(index) {
                Ok(()) => Some(frame),
                Err(error) => {
                    self.abandon(index, error);
                    None
                }
            },
        };
        if let Some(frame) = frame {
            self.ram().release(frame);
        }
        self.release_slot(index);
        self.end_lost(self.pages_of(index));
        self.folio_mut(index).set_empty();
    }

    /// Discards a mapped folio that cannot be moved (in use by a system call, or shared with a child). The kernel frees
    /// its pages when their last user is done; the frames get new memory.
    fn abandon(&mut self, index: usize, error: MapError) {
        let (frame, order, addr) = (self.frame(index), self.order(), self.table().addr(self.name(index)));
        let pages = if self.has_sealed() { order.nr_pages() } else { 1 };
        for at in (0..pages).filter(|page| !self.is_sealed(index * order.nr_pages() + page)) {
            let len = order.bytes() / pages;
            // SAFETY: the caller has locked the block. These pages are managed, and their content no longer needed.
            match unsafe { self.ram().mapper().discard(addr + at * len, len) } {
                Ok(()) => {}
                // Its mapping is gone, or another one is there, made in a way that is not seen.
                Err(MapError::Refused(libc::ENOMEM | libc::EINVAL)) => {}
                Err(refused) => fatal::die(&format!("a folio could not be dropped: {error}, {refused}")),
            }
        }
        self.folio_mut(index).set_out();
        self.parts.free_lost(frame, order);
    }

    /// Drops pages of a block. Whole folios are dropped, and swapped ones are split for that. Pages of larger folios in
    /// RAM are zeroed in place if unmapped. Those of mapped folios are returned for the caller to zero.
    pub fn drop_pages(&mut self, pages: Range<usize>) -> Vec<Range<usize>> {
        let note_dropped = |block: &mut Self, part: &Range<usize>| {
            if block.order() == Order::HUGE {
                block.note_dropped(part.clone());
            }
        };
        let mut mapped = Vec::new();
        let mut page = pages.start;
        while page < pages.end {
            let nr_pages = self.order().nr_pages();
            let index = self.index_of(page);
            let folio = index * nr_pages..(index + 1) * nr_pages;
            let part = page..pages.end.min(folio.end);
            match self.state(index) {
                State::Empty => {}
                _ if part == folio => {
                    if self.order() < PIECE {
                        self.keep_checkable(page, &pages);
                    }
                    self.drop_content(index);
                }
                State::Swapped(_) => {
                    let aligned = |order: Order| {
                        part.start.is_multiple_of(order.nr_pages()) && part.end.is_multiple_of(order.nr_pages())
                    };
                    let order = if self.order() > PIECE && aligned(PIECE) { PIECE } else { Order::PAGE };
                    self.split_to(order);
                    continue;
                }
                State::Standby(frame) => {
                    note_dropped(self, &part);
                    // Its copies become stale.
                    self.release_slot(index);
                    self.folio_mut(index).cancel_write();
                    self.ram().put(frame, List::Laundry);
                    let bytes = self.ram().frames().at_home_mut(self, index);
                    bytes[(part.start - folio.start) * PAGE_SIZE..(part.end - folio.start) * PAGE_SIZE].fill(0);
                }
                // At home it can be zeroed whatever its protection.
                State::Resident(_) if !self.pinned && self.unmap_to_laundry(index).is_ok() => continue,
                State::Resident(_) => {
                    note_dropped(self, &part);
                    mapped.push(part.clone());
                }
            }
            page = part.end;
        }
        mapped
    }

    /// Zeroes pages of a mapped folio whatever their protection: they go, as the kernel lets them go, and others come.
    pub fn zero_mapped(&mut self, pages: Range<usize>) {
        let (addr, len) = (self.table().addr(self.id().page(pages.start)), pages.len() * PAGE_SIZE);
        // SAFETY: mapped pages of this locked block, whose content nobody needs. A thread that touches them waits.
        if let Err(error) = unsafe { self.ram().mapper().discard(addr, len) } {
            fatal::die(&format!("locked memory cannot be dropped: {error}"));
        }
        for at in (addr..addr + len).step_by(PAGE_SIZE) {
            // SAFETY: as above.
            patiently("zeroed", || unsafe { self.ram().mapper().fill(at, PAGE_SIZE) }.map_err(MapError::from));
        }
    }

    /// Prepares for dropping a page whose piece has one hash: hashes the remaining pages of the piece one by one, so
    /// that they can be verified when they come back.
    fn keep_checkable(&mut self, page: usize, dropped: &Range<usize>) {
        let first = page / PIECE.nr_pages() * PIECE.nr_pages();
        let piece = first..first + PIECE.nr_pages();
        if self.piece_hash(page / PIECE.nr_pages()).is_none() {
            return;
        }
        let all_go = dropped.start <= piece.start && piece.end <= dropped.end;
        if !all_go && let Err(error) = asleep(self.hash_pages(page, &mut [])) {
            fatal::say(&error.to_string());
        }
        if all_go || self.piece_hash(page / PIECE.nr_pages()).is_some() {
            self.forget_hashes(piece); // after a failed read the rest cannot be verified
        }
    }

    /// Gives up a mapped folio whose pages are the program's own from now on.
    pub fn let_go(&mut self, index: usize, frame: FrameId) {
        let order = self.order();
        self.folio_mut(index).set_out();
        self.parts.free_lost(frame, order);
        self.release_slot(index);
        self.end_lost(self.pages_of(index));
        self.folio_mut(index).set_empty();
    }

    /// Poisons the folio of a lost page, so that the kernel tells threads that touch it or wait for it. Does nothing if
    /// the folio is no longer swapped out, or no longer on a device that fails: it can be read again.
    ///
    /// # Errors
    /// When the kernel cannot poison (before Linux 6.6).
    pub fn poison(&mut self, page: usize) -> io::Result<()> {
        let index = self.index_of(page);
        let State::Swapped(slot) = self.state(index) else { return Ok(()) };
        if !self.swap().at(slot).health.is_failing() {
            return Ok(());
        }
        self.parts.lost().note(self.id(), self.pages_of(index));
        for page in self.pages_of(index) {
            let addr = self.table().addr(self.id().page(page));
            // SAFETY: a page of this locked block. It is swapped out, so nothing is mapped there, and the program shall
            // be told of a touch.
            match unsafe { self.ram().mapper().uffd().poison(addr, PAGE_SIZE) } {
                Ok(()) | Err(MoveError::Present) => {}
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(())
    }

    /// Forgets the loss of pages of a block, none of which is mapped, and removes their poison: they can be read again,
    /// or are no longer wanted.
    pub fn end_lost(&self, pages: Range<usize>) {
        for page in self.parts.lost().take(self.id(), pages) {
            let addr = self.table().addr(self.id().page(page));
            // SAFETY: the block is locked, and the page is not mapped, so only the poison marker is there.
            if let Err(error) = unsafe { self.ram().mapper().discard(addr, PAGE_SIZE) } {
                fatal::say(&format!("a page that was lost stays so: {error}"));
            }
        }
    }
}
