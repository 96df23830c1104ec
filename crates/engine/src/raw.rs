//! Managed memory by address, in pages, as the memory calls of a C library know it. For faces that stand in for those
//! calls; programs use [`Region`](crate::Region).
//!
//! The engine keeps whole folios. What concerns a part of one is done here: a part that is unmapped or discarded is
//! zeroed, and a folio's addresses are free again when all of its pages have been unmapped.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use folioswap_core::{FolioId, List, PAGE_SIZE, State};
use folioswap_sys::{memory, signals};

use crate::engine::Engine;
use crate::error::Error;
use crate::fault::{self, FaultMode};

/// Which pages of a folio have been unmapped while others have not, one bit a page.
type Holes = [u64; 8];

/// A door to an arena's memory by address. Cheap to clone.
#[derive(Clone)]
pub struct RawSpace {
    engine: Arc<Engine>,
    mode: FaultMode,
    partial: Arc<Mutex<HashMap<FolioId, Holes>>>,
    holds: Arc<Mutex<HashMap<FolioId, u32>>>,
}

impl RawSpace {
    pub(crate) fn new(engine: Arc<Engine>, mode: FaultMode) -> Self {
        RawSpace { engine, mode, partial: Arc::default(), holds: Arc::default() }
    }

    /// Whether the address is managed memory, mapped now or not.
    #[must_use]
    pub fn contains(&self, addr: usize) -> bool {
        self.engine.contains(addr)
    }

    /// All addresses that are or may become managed memory.
    #[must_use]
    pub fn span(&self) -> Range<usize> {
        self.engine.span.addr()..self.engine.span.addr() + self.engine.span.len()
    }

    /// Bytes of one folio.
    #[must_use]
    pub fn folio_bytes(&self) -> usize {
        self.engine.folio_bytes()
    }

    /// The budget in bytes.
    #[must_use]
    pub fn memory(&self) -> u64 {
        self.engine.memory.load(Ordering::Relaxed)
    }

    /// How faults are delivered: [`FaultMode::Direct`] or [`FaultMode::Monitor`].
    #[must_use]
    pub fn mode(&self) -> FaultMode {
        self.mode
    }

    /// Maps `len` bytes, zero, readable and writable, from a multiple of the folio size on; `len` is rounded up to
    /// whole folios.
    ///
    /// # Errors
    /// [`Error::BadLength`], [`Error::OutOfAddressSpace`], or what the kernel said.
    pub fn map(&self, len: usize) -> Result<usize, Error> {
        if len == 0 || len > self.engine.span.len() {
            return Err(Error::BadLength(len));
        }
        let count = len.div_ceil(self.folio_bytes());
        let folios =
            self.engine.addresses.allocate(count).ok_or(Error::OutOfAddressSpace(self.engine.span.len() as u64))?;
        self.open(folios.clone()).inspect_err(|_| self.engine.addresses.free(folios.clone()))?;
        Ok(self.addr(folios.start))
    }

    /// Makes addresses usable that were just allocated.
    fn open(&self, folios: Range<usize>) -> Result<(), Error> {
        self.engine.table.ensure(FolioId::new(folios.start as u32)..FolioId::new(folios.end as u32));
        memory::protect_rw(self.addr(folios.start), folios.len() * self.folio_bytes())
            .map_err(Error::system("mapping a region"))?;
        self.forget_holes(&folios);
        self.engine.set_open(folios, true);
        Ok(())
    }

    fn forget_holes(&self, folios: &Range<usize>) {
        let mut partial = self.partial.lock().expect("nothing panics under this lock");
        partial.retain(|folio, _| !folios.contains(&folio.index()));
    }

    /// Maps pages, zero, at addresses that are named, over whatever was there, as `MAP_FIXED` does.
    ///
    /// # Errors
    /// What the kernel said.
    ///
    /// # Safety
    /// Nobody relies on what these pages hold.
    pub unsafe fn map_at(&self, addr: usize, len: usize) -> Result<(), Error> {
        for claimed in self.engine.addresses.claim(self.covering(addr, len)) {
            self.open(claimed.clone()).inspect_err(|_| self.engine.addresses.free(claimed.clone()))?;
            let mut partial = self.partial.lock().expect("nothing panics under this lock");
            for folio in [claimed.start, claimed.end - 1] {
                // All of a new folio is a hole, but for what is filled below.
                partial.insert(FolioId::new(folio as u32), self.all_holes());
            }
        }
        // SAFETY: handed on.
        unsafe { self.discard(addr, len) };
        let mut partial = self.partial.lock().expect("nothing panics under this lock");
        for index in self.covering(addr, len) {
            let folio = FolioId::new(index as u32);
            if let Some(holes) = partial.get_mut(&folio) {
                for page in self.pages_of(folio, addr..addr + len) {
                    holes[page / 64] &= !(1 << (page % 64));
                }
                if holes.iter().all(|&word| word == 0) {
                    partial.remove(&folio);
                }
            }
        }
        Ok(())
    }

    /// A bit for each page of a folio.
    fn all_holes(&self) -> Holes {
        let mut holes = [0; 8];
        for page in 0..self.folio_bytes() / PAGE_SIZE {
            holes[page / 64] |= 1 << (page % 64);
        }
        holes
    }

    /// The pages of a folio, counted in it, that lie in a range of addresses.
    fn pages_of(&self, folio: FolioId, range: Range<usize>) -> Range<usize> {
        let base = self.engine.addr(folio);
        let (start, end) = (range.start.max(base), range.end.min(base + self.folio_bytes()));
        (start - base) / PAGE_SIZE..(end - base).div_ceil(PAGE_SIZE)
    }

    /// Unmaps any pages of what [`RawSpace::map`] gave. Whole folios go at once; the addresses of others are free
    /// again when their last page has gone, and read as zero until then.
    ///
    /// # Safety
    /// Nobody uses these pages any more.
    pub unsafe fn unmap(&self, addr: usize, len: usize) {
        let (first, whole, last) = self.split(addr, len);
        for part in [first, last].into_iter().flatten() {
            // SAFETY: handed on: nobody uses these pages.
            unsafe { self.unmap_part(part) }
        }
        // Unmapping what is not mapped is nothing.
        let mut start = whole.start;
        for index in whole.start..=whole.end {
            if index == whole.end || !self.engine.is_open(FolioId::new(index as u32)) {
                if start < index {
                    self.close(start..index);
                }
                start = index + 1;
            }
        }
    }

    /// Notes pages of one folio as unmapped; closes the folio when none are left.
    ///
    /// # Safety
    /// Nobody uses these pages any more.
    unsafe fn unmap_part(&self, part: Range<usize>) {
        let folio = self.engine.folio_at(part.start);
        if !self.engine.is_open(folio) {
            return; // unmapping what is not mapped is nothing
        }
        // SAFETY: handed on: nobody uses these pages.
        unsafe { self.zero(part.clone()) };
        let mut partial = self.partial.lock().expect("nothing panics under this lock");
        let holes = partial.entry(folio).or_insert([0; 8]);
        for page in self.pages_of(folio, part) {
            holes[page / 64] |= 1 << (page % 64);
        }
        let gone: u32 = holes.iter().map(|word| word.count_ones()).sum();
        if gone as usize * PAGE_SIZE == self.folio_bytes() {
            partial.remove(&folio);
            drop(partial);
            self.close(folio.index()..folio.index() + 1);
        }
    }

    fn forget_streams(&self, folios: &Range<usize>) {
        self.engine.streams.forget_folios(FolioId::new(folios.start as u32)..FolioId::new(folios.end as u32));
    }

    /// Ends whole folios and makes their addresses free.
    fn close(&self, folios: Range<usize>) {
        self.forget_holes(&folios);
        self.forget_streams(&folios);
        self.forget_holds(folios.clone());
        self.engine.set_open(folios.clone(), false);
        self.engine.drop_range(folios.clone());
        if let Err(error) = memory::protect_none(self.addr(folios.start), folios.len() * self.folio_bytes()) {
            crate::fatal::say(&format!("unmapping a region: {error}")); // it stays readable, as zeros
        }
        self.engine.addresses.free(folios);
    }

    /// Makes a mapping longer or shorter, as `mremap` does; the new address when it had to move.
    ///
    /// # Errors
    /// As [`RawSpace::map`]; [`Error::OutOfAddressSpace`] too when it may not move and cannot grow where it is.
    ///
    /// # Safety
    /// `addr..addr + old_len` is one mapping of the caller's, which nobody uses meanwhile; after a move the old
    /// addresses are gone.
    pub unsafe fn remap(&self, addr: usize, old_len: usize, new_len: usize, may_move: bool) -> Result<usize, Error> {
        let folio = self.folio_bytes();
        let (old_end, new_end) = (addr + old_len, addr + new_len);
        if new_len <= old_len {
            if new_end < old_end {
                // SAFETY: the caller gives up the tail.
                unsafe { self.unmap(new_end, old_end - new_end) };
            }
            return Ok(addr);
        }
        let (have, want) = (old_end.next_multiple_of(folio), new_end.next_multiple_of(folio));
        let next = (have - self.engine.span.addr()) / folio;
        let count = (want - have) / folio;
        let tail_is_ours = !self.has_holes(self.engine.folio_at(old_end - 1));
        if tail_is_ours && (count == 0 || self.engine.addresses.extend(next, count)) {
            if count > 0 {
                self.open(next..next + count).inspect_err(|_| self.engine.addresses.free(next..next + count))?;
            }
            return Ok(addr);
        }
        if !may_move {
            return Err(Error::OutOfAddressSpace(self.engine.span.len() as u64));
        }
        let target = self.map(new_len)?;
        let whole = if addr.is_multiple_of(folio) { old_len / folio } else { 0 };
        for offset in (0..whole * folio).step_by(folio) {
            if !self.transfer(addr + offset, target + offset) {
                // SAFETY: a folio of the old mapping and one of the new, which do not overlap.
                unsafe { copy(addr + offset, target + offset, folio) };
            }
        }
        let rest = whole * folio;
        // SAFETY: as above.
        unsafe { copy(addr + rest, target + rest, old_len - rest) };
        // SAFETY: the caller gives up the old addresses.
        unsafe { self.unmap(addr, old_len) };
        Ok(target)
    }

    /// Carries a whole folio to another address without touching its content; `false` when it is in use and cannot move.
    fn transfer(&self, from: usize, to: usize) -> bool {
        let engine = &*self.engine;
        let _pass = engine.gate.enter(signals::thread_id());
        let (from, to) = (engine.folio_at(from), engine.folio_at(to));
        if engine.table.peek(from).is_empty() {
            return true;
        }
        // The target is new: who holds it does so for a moment and waits for no other folio.
        let mut target = engine.lock(to);
        let mut source = engine.lock(from);
        if source.pinned() {
            return false;
        }
        if let State::Resident(frame) = source.state() {
            if engine.unmap(&mut source, frame).is_err() {
                return false;
            }
            engine.zone.insert(frame, List::Laundry);
        }
        if let State::Standby(frame) = source.state() {
            engine.zone.change_owner(frame, to);
        }
        // A late fault of the addresses' last use may have made a page there.
        engine.drop_content(&mut target);
        target.set(source.state());
        source.set(State::Empty);
        true
    }

    /// Makes pages read as zero, as `madvise(MADV_DONTNEED)` does.
    ///
    /// # Safety
    /// Nobody relies on what these pages hold.
    pub unsafe fn discard(&self, addr: usize, len: usize) {
        let (first, whole, last) = self.split(addr, len);
        for part in [first, last].into_iter().flatten() {
            // SAFETY: handed on.
            unsafe { self.zero(part) }
        }
        if !whole.is_empty() {
            self.engine.drop_range(whole);
        }
    }

    /// Zeroes a part of one folio. What reads as zero already is left alone.
    ///
    /// # Safety
    /// Nobody relies on what these bytes hold.
    unsafe fn zero(&self, part: Range<usize>) {
        if !self.engine.table.peek(self.engine.folio_at(part.start)).is_empty() {
            // SAFETY: the bytes lie in mapped managed memory; the caller says that nobody relies on them. A missing
            // folio is brought in by this touch, as by any other: no lock is held here.
            unsafe { std::ptr::write_bytes(part.start as *mut u8, 0, part.len()) }
        }
    }

    /// Asks for a range to be read in the background.
    pub fn will_need(&self, addr: usize, len: usize) {
        self.engine.will_need(self.covering(addr, len));
    }

    /// Makes a range leave RAM first.
    pub fn cold(&self, addr: usize, len: usize) {
        let _pass = self.engine.gate.enter(signals::thread_id());
        self.engine.cold(self.covering(addr, len));
    }

    /// Makes a range, as far as it is in RAM, the last to leave.
    pub fn keep(&self, addr: usize, len: usize) {
        self.forget_streams(&self.covering(addr, len));
        let _pass = self.engine.gate.enter(signals::thread_id());
        for index in self.covering(addr, len) {
            let Some(locked) = self.engine.try_lock(FolioId::new(index as u32)) else { continue };
            if let State::Resident(frame) = locked.state()
                && !locked.pinned()
            {
                self.engine.zone.insert(frame, List::Active);
            }
        }
    }

    /// Brings a range in, writable, as a touch would; cheap for what is there.
    pub fn touch(&self, addr: usize, len: usize) {
        let thread = signals::thread_id();
        for index in self.covering(addr, len) {
            let folio = FolioId::new(index as u32);
            if !self.engine.table.peek(folio).is_resident() && self.engine.is_open(folio) {
                fault::resolve(&self.engine, self.engine.addr(folio), thread);
            }
        }
    }

    /// Brings a range in and keeps it in RAM until [`RawSpace::release_hold`]: thread stacks, memory whose protection
    /// changes. Holds of one folio add up. `false` when content could not be brought in; the holds stand all the same.
    ///
    /// # Safety
    /// The range is mapped.
    pub unsafe fn hold(&self, addr: usize, len: usize) -> bool {
        let thread = signals::thread_id();
        for index in self.covering(addr, len) {
            let folio = FolioId::new(index as u32);
            if !self.engine.is_open(folio) {
                continue; // not mapped: who touches it is told by the kernel
            }
            *self.holds.lock().expect("nothing panics under this lock").entry(folio).or_insert(0) += 1;
            loop {
                if !self.engine.table.peek(folio).is_resident()
                    && !fault::resolve(&self.engine, self.engine.addr(folio), thread)
                {
                    return false;
                }
                let _pass = self.engine.gate.enter(thread);
                let mut locked = self.engine.lock(folio);
                if let State::Resident(frame) = locked.state() {
                    locked.set_pinned(true);
                    self.engine.zone.remove(frame);
                    break;
                }
                if !self.engine.is_open(folio) {
                    break; // unmapped meanwhile
                }
            }
        }
        true
    }

    /// Ends a hold.
    ///
    /// # Safety
    /// The range was held and is mapped readable and writable again.
    pub unsafe fn release_hold(&self, addr: usize, len: usize) {
        for index in self.covering(addr, len) {
            let folio = FolioId::new(index as u32);
            let mut holds = self.holds.lock().expect("nothing panics under this lock");
            match holds.get_mut(&folio) {
                Some(1) => {
                    holds.remove(&folio);
                    drop(holds);
                    self.unpin(folio);
                }
                Some(count) => *count -= 1,
                None => {}
            }
        }
    }

    fn forget_holds(&self, folios: Range<usize>) {
        let mut holds = self.holds.lock().expect("nothing panics under this lock");
        if holds.is_empty() {
            return;
        }
        let held: Vec<_> = holds.keys().copied().filter(|folio| folios.contains(&folio.index())).collect();
        for folio in &held {
            holds.remove(folio);
        }
        drop(holds);
        held.into_iter().for_each(|folio| self.unpin(folio));
    }

    fn unpin(&self, folio: FolioId) {
        let _pass = self.engine.gate.enter(signals::thread_id());
        if !self.engine.table.has(folio) {
            return;
        }
        let mut locked = self.engine.lock(folio);
        if self.holds.lock().expect("nothing panics under this lock").contains_key(&folio) {
            return; // held again meanwhile
        }
        locked.set_pinned(false);
        if let State::Resident(frame) = locked.state() {
            self.engine.zone.insert(frame, List::Active);
        }
    }

    /// What a handler of the program's own calls for a fault in managed memory; `false`: not ours, or lost.
    #[must_use]
    pub fn on_fault(&self, addr: usize) -> bool {
        self.contains(addr) && fault::resolve(&self.engine, addr, signals::thread_id())
    }

    /// To be called before fork, in the thread that forks: the engine pauses, and folios that are in RAM will be
    /// inherited copy-on-write.
    pub fn fork_prepare(&self) {
        self.engine.fork_prepare();
    }

    /// To be called after fork in the parent: the engine goes on.
    pub fn fork_parent(&self) {
        self.engine.fork_parent();
    }

    /// To be called after fork in the child: it has what was in RAM as ordinary memory. A touch of anything else ends
    /// it with one line and status 70.
    pub fn fork_child(&self) {
        self.engine.fork_child();
    }

    fn addr(&self, folio: usize) -> usize {
        self.engine.addr(FolioId::new(folio as u32))
    }

    fn has_holes(&self, folio: FolioId) -> bool {
        self.partial.lock().expect("nothing panics under this lock").contains_key(&folio)
    }

    /// The folios that a range touches.
    fn covering(&self, addr: usize, len: usize) -> Range<usize> {
        let base = self.engine.span.addr();
        (addr - base) / self.folio_bytes()..(addr + len - base).div_ceil(self.folio_bytes())
    }

    /// A range as a part of a folio, whole folios, and a part of another.
    fn split(&self, addr: usize, len: usize) -> (Option<Range<usize>>, Range<usize>, Option<Range<usize>>) {
        let (folio, base, end) = (self.folio_bytes(), self.engine.span.addr(), addr + len);
        let (up, down) = (addr.next_multiple_of(folio), end / folio * folio);
        if up > down {
            return (Some(addr..end), 0..0, None); // all within one folio
        }
        let first = (addr < up).then_some(addr..up);
        let last = (down < end).then_some(down..end);
        (first, (up - base) / folio..(down - base) / folio, last)
    }
}

/// Copies between two mappings.
///
/// # Safety
/// Both ranges are mapped, they do not overlap, and nobody writes them meanwhile.
unsafe fn copy(from: usize, to: usize, len: usize) {
    // SAFETY: handed on. Missing folios are brought in by the touch; no lock is held here.
    unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, len) }
}
