//! Managed memory by address, in pages. For faces that stand in for the memory calls of a C library; programs use
//! [`Region`](crate::Region).
//!
//! The kernel keeps the address space. A face makes the kernel's own call, and tells the engine here which memory it
//! manages ([`RawSpace::manage`]) and which it is about to lose ([`RawSpace::forget`]).

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use folioswap_core::{BlockId, FolioId, List, PAGE_SIZE, State, Wish};
use folioswap_sys::memory::{self, Reservation};
use folioswap_sys::{fault_stack, signals};

use crate::arena::advice;
use crate::block::Block;
use crate::compact::compactd;
use crate::config::error::Error;
use crate::config::fault_mode::FaultMode;
use crate::config::folio_size::FolioSize;
use crate::engine::Engine;
use crate::fault::resolve;
use crate::manage::adopt;
use crate::manage::hand_over;
use crate::manage::pages;
use crate::manage::remap::{self, Relocation};
use crate::memory::table::{BLOCK_BYTES, blocks_of, pages_in};
use crate::swap::info;

/// Blocks whose wish is noted in one go.
const WISHES: usize = 64;

/// Access to an arena's memory by address. Cheap to clone.
#[derive(Clone)]
pub struct RawSpace {
    engine: Arc<Engine>,
    mode: FaultMode,
    holds: Arc<Mutex<HashMap<BlockId, u32>>>,
}

/// Memory whose content was dropped, and that is about to be unmapped or replaced.
pub struct Replaced<'a> {
    engine: &'a Engine,
    managed: &'a [Range<usize>],
}

impl Replaced<'_> {
    /// The parts that were managed before.
    #[must_use]
    pub fn managed(&self) -> &[Range<usize>] {
        self.managed
    }

    /// As [`RawSpace::manage`].
    ///
    /// # Errors
    /// As [`RawSpace::manage`].
    ///
    /// # Safety
    /// As [`RawSpace::manage`].
    pub unsafe fn manage(&self, range: Range<usize>) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { pages::manage_now(self.engine, range, None) }.map_err(Error::system("managing memory"))
    }
}

/// A length in whole pages. None has no bytes, or more than there are addresses.
fn whole_pages(len: usize) -> Result<usize, Error> {
    len.checked_next_multiple_of(PAGE_SIZE).filter(|&whole| whole != 0).ok_or(Error::BadLength(len))
}

impl RawSpace {
    pub(crate) fn new(engine: Arc<Engine>, mode: FaultMode) -> Self {
        RawSpace { engine, mode, holds: Arc::default() }
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Does work in which a fault of this thread would wait for itself, on a stack of which no page can be missing: if
    /// the caller's is managed memory, as a coroutine's may be, on another. The work should own what it uses.
    pub fn on_present_stack<R>(&self, work: impl FnOnce() -> R) -> R {
        let here = 0u8;
        // A handler stays where it is: a signal would overwrite its frames. The stack of signals is held.
        if self.contains(&raw const here as usize) && !signals::are_on_their_stack() {
            fault_stack::run(work)
        } else {
            work()
        }
    }

    /// Whether pages of the block at an address are managed, or were.
    #[must_use]
    pub fn contains(&self, addr: usize) -> bool {
        self.engine.table().contains(addr)
    }

    /// Whether pages of a block that overlaps the range are managed, or were. Cheap, and callable from signal handlers.
    #[must_use]
    pub fn overlaps(&self, addr: usize, len: usize) -> bool {
        self.engine.table().overlaps(addr..addr.saturating_add(len))
    }

    /// Notes that the program is about to lock a range in RAM: it does not leave. `false`, and not noted: more than
    /// half of the budget would be locked.
    #[must_use]
    pub fn note_locked(&self, range: Range<usize>) -> bool {
        self.inside(move || self.engine.table().note_locked(range, self.memory() as usize / 2))
    }

    /// Notes that the program has unlocked a range. Returns the parts of it that were locked.
    pub fn note_unlocked(&self, range: Range<usize>) -> Vec<Range<usize>> {
        self.inside(move || self.engine.table().note_unlocked(range))
    }

    /// Whether the program has locked any of a range in RAM.
    #[must_use]
    pub fn has_locked(&self, range: &Range<usize>) -> bool {
        let range = range.clone();
        self.inside(move || self.engine.table().has_locked(&range))
    }

    /// Whether the program has locked some of a range in RAM, but not all. The kernel has several mappings there.
    #[must_use]
    pub fn is_partly_locked(&self, range: &Range<usize>) -> bool {
        let range = range.clone();
        self.inside(move || self.engine.table().is_partly_locked(&range))
    }

    /// Makes a call that changes the protection of mappings, or other properties that they have without their content.
    /// Meanwhile no folio goes back to where it was, for which the kernel would bring the mapping that it had before.
    pub fn change_mappings<R>(&self, call: impl FnOnce() -> R) -> R {
        self.inside(move || {
            let _held = self.engine.ram().mapper().hold_mappings();
            call()
        })
    }

    /// The parts of a range that are managed, in order.
    #[must_use]
    pub fn managed_parts(&self, range: Range<usize>) -> Vec<Range<usize>> {
        self.on_present_stack(move || {
            let _blocked = signals::block_all(); // a signal handler might touch one of these
            pages::managed_parts(&self.engine, range)
        })
    }

    /// The parts of a range with content, in RAM or not, in the first block that has some. Empty: there is none.
    #[must_use]
    pub fn first_filled(&self, range: Range<usize>) -> Vec<Range<usize>> {
        self.on_present_stack(move || {
            let _blocked = signals::block_all(); // a signal handler might touch one of these
            pages::first_filled(&self.engine, range)
        })
    }

    /// Bytes of RAM that the engine uses: managed memory, frames without content, and the most that swap devices in
    /// memory may use.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        self.inside(|| {
            (self.engine.ram().zones().counts().populated * PAGE_SIZE) as u64
                + info::most_bytes_in_ram(self.engine.swap().devices())
        })
    }

    /// Does work inside the fork gate, which no handler interrupts: its fault might need what this thread holds.
    fn inside<R>(&self, work: impl FnOnce() -> R) -> R {
        self.on_present_stack(move || {
            let _blocked = signals::block_all();
            let _pass = self.engine.gate().enter(signals::thread_id());
            work()
        })
    }

    /// The budget in bytes.
    #[must_use]
    pub fn memory(&self) -> u64 {
        self.engine.ram().budget_bytes()
    }

    /// Whether the budget, and with it all managed memory, is locked in RAM.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.engine.ram().frames().is_locked()
    }

    /// How faults are delivered: [`FaultMode::Direct`] or [`FaultMode::Monitor`].
    #[must_use]
    pub fn mode(&self) -> FaultMode {
        self.mode
    }

    /// Manages private anonymous memory from now on, where it lies, and drops what is present.
    ///
    /// # Errors
    /// The kernel's: the memory is of another kind, or there are too many mappings. Nothing is managed then.
    ///
    /// # Safety
    /// The range is whole pages of private anonymous memory. Nobody relies on their content, and none is managed.
    pub unsafe fn manage(&self, range: Range<usize>) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        self.on_present_stack(move || unsafe { pages::manage(&self.engine, range, None) })
            .map_err(Error::system("managing memory"))
    }

    /// Manages private anonymous memory from now on, where it lies, with its content, without a copy. Takes frames for
    /// each block that is nearly full, and of the others for each piece of 64 KiB that has a page.
    ///
    /// # Errors
    /// The kernel's: the memory is of another kind, there are too many mappings, or the process may not read its page
    /// tables. It is as it was then.
    ///
    /// # Safety
    /// The range is whole pages of private anonymous memory, of which none is managed, and nobody unmaps it meanwhile.
    pub unsafe fn adopt(&self, range: &Range<usize>) -> Result<(), Error> {
        let range = range.clone();
        // SAFETY: the caller's promise.
        self.on_present_stack(move || unsafe { adopt::adopt(&self.engine, &range) })
            .map_err(Error::system("managing memory"))
    }

    /// Drops the content of pages and no longer manages them. Then calls `replace`, which unmaps or replaces them;
    /// threads that touch them wait for that. Pages that are not managed are skipped.
    ///
    /// # Safety
    /// Nobody relies on the content of the range.
    pub unsafe fn forget<R>(&self, range: Range<usize>, replace: impl FnOnce() -> R) -> R {
        // SAFETY: the caller's promise.
        unsafe { self.replace(range, |_| replace()) }
    }

    /// As [`RawSpace::forget`], for memory that stays mapped: the kernel resolves its faults from then on.
    ///
    /// # Safety
    /// Nobody relies on the content of the range.
    pub unsafe fn release<R>(&self, range: Range<usize>, change: impl FnOnce() -> R) -> R {
        let change = |replaced: &Replaced<'_>| {
            let result = change();
            for part in replaced.managed() {
                // Where the kernel has no room for another mapping, it goes on asking us. Nothing is lost.
                let _ = self.engine.uffd().unregister(part.start, part.len());
                let _ = memory::advise_hugepage(part.start, part.len());
            }
            result
        };
        // SAFETY: the caller's promise.
        unsafe { self.replace(range, change) }
    }

    /// As [`RawSpace::forget`]. What `replace` maps there, or leaves there, it may have managed before other threads
    /// touch it.
    ///
    /// # Safety
    /// Nobody relies on the content of the range.
    pub unsafe fn replace<R>(&self, range: Range<usize>, replace: impl FnOnce(&Replaced<'_>) -> R) -> R {
        self.on_present_stack(move || {
            self.forget_holds(&range);
            let replace = |managed: &_| replace(&Replaced { engine: &self.engine, managed });
            // SAFETY: the caller's promise.
            unsafe { pages::unmanage(&self.engine, range, replace) }
        })
    }

    /// No longer manages a range, and leaves its content to the kernel, in RAM. `false`: some of it stays managed,
    /// because it is lost.
    #[must_use]
    pub fn hand_over(&self, range: &Range<usize>) -> bool {
        let range = range.clone();
        self.on_present_stack(move || {
            let stays = hand_over::hand_over(&self.engine, &range);
            if stays.is_empty() {
                self.forget_holds(&range);
            }
            stays.is_empty()
        })
    }

    /// Maps `len` bytes of zeroed, readable and writable memory, aligned to 2 MiB. `len` is rounded up to whole pages.
    ///
    /// # Errors
    /// [`Error::BadLength`], or the kernel's error.
    pub fn map(&self, len: usize) -> Result<usize, Error> {
        self.map_with(len, FolioSize::Auto)
    }

    /// As [`RawSpace::map`], with a folio size of its own. `Auto` means the arena's.
    ///
    /// # Errors
    /// As [`RawSpace::map`].
    pub fn map_with(&self, len: usize, folio: FolioSize) -> Result<usize, Error> {
        let len = whole_pages(len)?;
        let mapping = Reservation::new(len, BLOCK_BYTES).map_err(Error::system("mapping a region"))?;
        mapping.protect_rw(mapping.range()).map_err(Error::system("mapping a region"))?;
        let range = mapping.range();
        // SAFETY: a new mapping, which nobody knows.
        self.on_present_stack(move || unsafe { pages::manage(&self.engine, range, folio.order()) })
            .map_err(Error::system("mapping a region"))?;
        let addr = mapping.addr();
        mapping.leak();
        Ok(addr)
    }

    /// Unmaps managed pages.
    ///
    /// # Safety
    /// Nobody uses these pages any more.
    pub unsafe fn unmap(&self, addr: usize, len: usize) {
        let range = addr..addr + len.next_multiple_of(PAGE_SIZE);
        // SAFETY: the caller's promise.
        let unmapped = unsafe { self.forget(range.clone(), || memory::unmap(range.start, range.len())) };
        if let Err(error) = unmapped {
            crate::process::fatal::say(&format!("unmapping a region: {error}")); // it stays, as zeros
        }
    }

    /// Grows or shrinks memory from [`RawSpace::map`]. Returns its address, which is a new one if it had to move.
    ///
    /// # Errors
    /// As [`RawSpace::map`].
    ///
    /// # Safety
    /// `addr..addr + old_len` is one mapping of the caller's, and nobody uses it meanwhile. After a move nobody uses
    /// the old addresses.
    pub unsafe fn remap(&self, addr: usize, old_len: usize, new_len: usize) -> Result<usize, Error> {
        let (old_len, new_len) = (whole_pages(old_len)?, whole_pages(new_len)?);
        if new_len <= old_len {
            if new_len < old_len {
                // SAFETY: the caller gives up the tail.
                unsafe { self.unmap(addr + new_len, old_len - new_len) };
            }
            return Ok(addr);
        }
        let target = Reservation::new(new_len, BLOCK_BYTES).map_err(Error::system("mapping a region"))?;
        let call = || {
            // SAFETY: the caller's mapping, to addresses that this call has just reserved.
            unsafe { memory::move_mapping(addr..addr + old_len, target.range()) }.map(|()| target.addr())
        };
        let ranges = Relocation { from: addr..addr + old_len, new_len, alike: true, replaced: &[], keeps_old: false };
        // SAFETY: addresses that this call has just reserved.
        let moved = unsafe { self.relocate(ranges, call) }.map_err(Error::system("moving a region"));
        target.leak(); // they may be another's if the kernel has failed
        moved
    }

    /// Moves managed memory, as mremap does. `call` moves the mappings, and returns where they are now. If it fails,
    /// everything is as it was, but for what the kernel has unmapped.
    ///
    /// # Errors
    /// Those of `call`. EIO, before the call: content on a device could not be read.
    ///
    /// # Safety
    /// If `call` succeeds, nobody relies on the content of `replaced`, and what was managed is private anonymous memory
    /// at the new place.
    pub unsafe fn relocate(
        &self,
        ranges: Relocation<'_>,
        call: impl FnOnce() -> io::Result<usize>,
    ) -> io::Result<usize> {
        // SAFETY: the caller's promise.
        self.on_present_stack(move || unsafe { remap::relocate(&self.engine, ranges, call) })
    }

    /// Makes pages read as zero, as `madvise(MADV_DONTNEED)` does.
    ///
    /// # Safety
    /// Nobody relies on the content of these pages.
    pub unsafe fn discard(&self, addr: usize, len: usize) {
        // SAFETY: the caller's promise.
        self.on_present_stack(move || unsafe { self.discard_here(addr, len) });
    }

    /// # Safety
    /// As for [`RawSpace::discard`].
    unsafe fn discard_here(&self, addr: usize, len: usize) {
        let (first, whole, last) = self.split(addr, len);
        for part in [first, last].into_iter().flatten() {
            // SAFETY: the caller's promise: nobody relies on this content.
            unsafe { self.discard_part(part) }
        }
        if !whole.is_empty() {
            advice::drop_range(&self.engine, whole);
        }
        self.inside(|| compactd::look_for_whole(&self.engine));
    }

    /// As [`RawSpace::discard`], for a part of one block. Frees the slots of dropped pages and the frames of dropped
    /// folios.
    ///
    /// # Safety
    /// Nobody relies on the content of these bytes.
    unsafe fn discard_part(&self, part: Range<usize>) {
        let id = self.block_at(part.start);
        let base = self.engine.table().block_addr(id);
        // The whole pages of the part.
        let inner = part.start.next_multiple_of(PAGE_SIZE)..part.end / PAGE_SIZE * PAGE_SIZE;
        if inner.is_empty() {
            // SAFETY: the caller's promise: nobody relies on this content.
            return unsafe { self.zero(part) };
        }
        let pages = (inner.start - base) / PAGE_SIZE..(inner.end - base) / PAGE_SIZE;
        {
            let _blocked = signals::block_all(); // a signal handler might touch this block
            let _pass = self.engine.gate().enter(signals::thread_id());
            let mut block = self.engine.lock(id);
            for mapped in block.drop_pages(pages) {
                block.zero_mapped(mapped);
            }
        }
        for edge in [part.start..inner.start, inner.end..part.end] {
            if !edge.is_empty() {
                // SAFETY: the caller's promise: nobody relies on this content.
                unsafe { self.zero(edge) };
            }
        }
    }

    /// Drops whole folios in the range. Other content may be dropped later or never, as after `madvise(MADV_FREE)`.
    ///
    /// # Safety
    /// Nobody relies on the content of these pages.
    pub unsafe fn offer(&self, range: Range<usize>) {
        self.inside(move || {
            let engine = self.engine();
            for index in self.covering(range.start, range.len()) {
                let id = BlockId::from_index(index);
                let pages = pages_in(id, &range);
                if engine.table().is_open(id) {
                    let mut block = engine.lock(id);
                    let nr_pages = block.order().nr_pages();
                    let whole = pages.start.next_multiple_of(nr_pages)..pages.end / nr_pages * nr_pages;
                    if !whole.is_empty() {
                        block.drop_pages(whole);
                    }
                }
            }
            compactd::look_for_whole(engine);
        });
    }

    /// Zeroes bytes of one block. Pages that read as zero already are left alone.
    ///
    /// # Safety
    /// Nobody relies on the content of these bytes.
    unsafe fn zero(&self, part: Range<usize>) {
        let mut start = part.start;
        while start < part.end {
            let end = part.end.min((start + 1).next_multiple_of(PAGE_SIZE));
            let page = self.engine.table().page_at(start);
            let empty = {
                let _blocked = signals::block_all(); // a signal handler might touch this block
                let _pass = self.engine.gate().enter(signals::thread_id());
                let block = self.engine.lock(page.block());
                block.state(block.index_of(page.page_in_block())) == State::Empty
            };
            if !empty {
                // SAFETY: the bytes lie in mapped managed memory, and nobody relies on them (the caller's promise). The
                // touch brings a missing folio in as any other touch does; no lock is held here.
                unsafe { std::ptr::write_bytes(start as *mut u8, 0, end - start) }
            }
            start = end;
        }
    }

    /// Requests background readahead of a range.
    pub fn will_need(&self, addr: usize, len: usize) {
        self.on_present_stack(move || advice::will_need(&self.engine, self.covering(addr, len)));
    }

    /// Makes what is in RAM of a range the oldest there.
    pub fn make_oldest(&self, addr: usize, len: usize) {
        self.on_present_stack(move || advice::make_oldest(&self.engine, self.covering(addr, len)));
    }

    /// Makes a range the first to leave RAM.
    pub fn cold(&self, addr: usize, len: usize) {
        self.on_present_stack(move || advice::cold(&self.engine, self.covering(addr, len)));
    }

    /// Makes the resident part of a range the last to leave RAM.
    pub fn keep(&self, addr: usize, len: usize) {
        self.on_present_stack(move || self.keep_here(self.covering(addr, len)));
    }

    fn keep_here(&self, blocks: Range<usize>) {
        {
            let _blocked = signals::block_all(); // a signal handler might fault and follow a stream
            let _pass = self.engine.gate().enter(signals::thread_id());
            self.engine.policy().forget_streams(BlockId::from_index(blocks.start)..BlockId::from_index(blocks.end));
        }
        advice::each_block_of(&self.engine, blocks, |id| {
            if let Some(block) = self.engine.try_lock(id).filter(|block| !block.pinned) {
                self.make_active(&block);
            }
        });
    }

    fn make_active(&self, block: &Block<'_>) {
        for index in 0..block.nr_folios() {
            if let State::Resident(frame) = block.state(index) {
                self.engine.ram().put(frame, List::Active);
            }
        }
    }

    /// Sets whether blocks come back in one piece, where the arena's policy leaves that open. A wish that makes no
    /// difference is noted for blocks only that were touched.
    pub fn wish(&self, addr: usize, len: usize, wish: Wish) {
        self.on_present_stack(move || self.wish_here(self.covering(addr, len), wish));
    }

    fn wish_here(&self, mut blocks: Range<usize>, wish: Wish) {
        let policy = self.engine.policy().swap_in();
        let differs = policy.allows_whole(wish) != policy.allows_whole(Wish::None);
        while !blocks.is_empty() {
            if !differs && let Some((end, _)) = self.engine.table().untouched(blocks.clone()) {
                blocks.start = end;
                continue;
            }
            let some = blocks.start..blocks.end.min(blocks.start + WISHES);
            let _blocked = signals::block_all();
            let _pass = self.engine.gate().enter(signals::thread_id());
            self.engine.table().ensure(some.clone());
            some.clone().for_each(|block| self.engine.lock(BlockId::from_index(block)).wish = wish);
            blocks.start = some.end;
        }
    }

    /// Brings a range in, writable, as a touch would. Cheap for resident pages.
    pub fn touch(&self, addr: usize, len: usize) {
        self.on_present_stack(move || {
            let thread = signals::thread_id();
            for index in self.covering(addr, len) {
                let block = BlockId::from_index(index);
                if self.engine.table().is_open(block) {
                    self.bring_in(block, pages_in(block, &(addr..addr + len)), thread);
                }
            }
        });
    }

    /// Brings pages of a block in. `false`: the content of one is lost. The pages may leave again at any time.
    fn bring_in(&self, block: BlockId, pages: Range<usize>, thread: u32) -> bool {
        loop {
            let missing = {
                let _pass = self.engine.gate().enter(thread);
                self.first_missing(&self.engine.lock(block), &pages)
            };
            let Some(missing) = missing else { return true };
            if !resolve::resolve(&self.engine, self.engine.table().addr(missing), thread) {
                return false;
            }
            if !self.engine.table().is_open(block) {
                return true; // unmapped meanwhile
            }
        }
    }

    /// The first of these pages that is neither mapped nor sealed.
    fn first_missing(&self, block: &Block<'_>, pages: &Range<usize>) -> Option<FolioId> {
        let nr_pages = block.order().nr_pages();
        let folios = block.index_of(pages.start)..=block.index_of(pages.end - 1);
        let mut missing = folios.filter(|&index| !matches!(block.state(index), State::Resident(_)));
        missing.find_map(|index| {
            let mut part = pages.start.max(index * nr_pages)..pages.end.min((index + 1) * nr_pages);
            part.find(|&page| !block.is_sealed(page)).map(|page| block.id().page(page))
        })
    }

    /// Brings a range in and keeps it in RAM until [`RawSpace::release_hold`]: for thread stacks, and for memory that
    /// the kernel uses. A hold keeps all resident folios of its blocks, and holds of one block are counted. `false`:
    /// some content could not be read; the holds stand nevertheless.
    ///
    /// # Safety
    /// The range is mapped.
    pub unsafe fn hold(&self, addr: usize, len: usize) -> bool {
        self.on_present_stack(move || self.hold_here(addr, len))
    }

    fn hold_here(&self, addr: usize, len: usize) -> bool {
        let thread = signals::thread_id();
        let mut all_in = true;
        for index in self.covering(addr, len) {
            let block = BlockId::from_index(index);
            if !self.engine.table().is_open(block) {
                continue; // not mapped: the kernel handles a touch
            }
            *self.holds.lock().expect("nothing panics under this lock").entry(block).or_insert(0) += 1;
            all_in &= self.bring_in_held(block, &pages_in(block, &(addr..addr + len)), thread);
        }
        all_in
    }

    /// As [`RawSpace::hold`], unless more than `most_bytes` would be held in all: then nothing is held, and the result
    /// is `None`. Each block counts as a whole, and once. For callers that cannot know what other threads hold: RAM
    /// that is all held leaves none for faults.
    ///
    /// # Safety
    /// The range is mapped.
    pub unsafe fn hold_within(&self, addr: usize, len: usize, most_bytes: u64) -> Option<bool> {
        self.on_present_stack(move || self.hold_within_here(addr, len, most_bytes))
    }

    fn hold_within_here(&self, addr: usize, len: usize, most_bytes: u64) -> Option<bool> {
        let blocks = self.covering(addr, len).map(BlockId::from_index);
        let blocks: Vec<_> = blocks.filter(|&block| self.engine.table().is_open(block)).collect();
        {
            let mut holds = self.holds.lock().expect("nothing panics under this lock");
            let new = blocks.iter().filter(|block| !holds.contains_key(block)).count();
            if new != 0 && ((holds.len() + new) * BLOCK_BYTES) as u64 > most_bytes {
                return None;
            }
            blocks.iter().for_each(|&block| *holds.entry(block).or_insert(0) += 1);
        }
        let (range, thread) = (addr..addr + len, signals::thread_id());
        let lost = blocks.iter().filter(|&&block| !self.bring_in_held(block, &pages_in(block, &range), thread)).count();
        Some(lost == 0)
    }

    /// Brings pages of a block in, and pins the block, which is held. `false`: some content is lost.
    fn bring_in_held(&self, id: BlockId, pages: &Range<usize>, thread: u32) -> bool {
        let mut all_in = true;
        loop {
            let is_lost = !self.bring_in(id, pages.clone(), thread);
            all_in &= !is_lost;
            let _pass = self.engine.gate().enter(thread);
            let mut block = self.engine.lock(id);
            if !self.engine.table().is_open(id) {
                return all_in; // unmapped meanwhile
            }
            if is_lost || self.first_missing(&block, pages).is_none() {
                block.pinned = true;
                return all_in;
            }
        }
    }

    /// Ends a hold.
    ///
    /// # Safety
    /// The range was held.
    pub unsafe fn release_hold(&self, addr: usize, len: usize) {
        self.on_present_stack(move || {
            self.covering(addr, len).for_each(|index| self.end_hold(BlockId::from_index(index)));
        });
    }

    fn end_hold(&self, block: BlockId) {
        let mut holds = self.holds.lock().expect("nothing panics under this lock");
        match holds.get_mut(&block) {
            Some(1) => {
                holds.remove(&block);
                drop(holds);
                self.unpin(block);
            }
            Some(count) => *count -= 1,
            None => {}
        }
    }

    /// Keeps other threads from the holds until the result is dropped.
    pub(crate) fn pause_holds(&self) -> MutexGuard<'_, HashMap<BlockId, u32>> {
        self.holds.lock().expect("nothing panics under this lock")
    }

    /// Unpins blocks that were held.
    pub(crate) fn unpin_all(&self, held: Vec<BlockId>) {
        held.into_iter().for_each(|block| self.unpin(block));
    }

    /// Ends the holds of blocks of which nothing stays managed.
    fn forget_holds(&self, range: &Range<usize>) {
        let mut holds = self.holds.lock().expect("nothing panics under this lock");
        if holds.is_empty() {
            return;
        }
        let whole = range.start.div_ceil(BLOCK_BYTES)..range.end / BLOCK_BYTES;
        let held: Vec<_> = holds.keys().copied().filter(|block| whole.contains(&block.index())).collect();
        for block in &held {
            holds.remove(block);
        }
        drop(holds);
        held.into_iter().for_each(|block| self.unpin(block));
    }

    fn unpin(&self, id: BlockId) {
        let _blocked = signals::block_all(); // a signal handler might touch this block
        let _pass = self.engine.gate().enter(signals::thread_id());
        if !self.engine.table().has(id) {
            return;
        }
        let mut block = self.engine.lock(id);
        if self.holds.lock().expect("nothing panics under this lock").contains_key(&id) {
            return; // held again meanwhile
        }
        block.pinned = false;
        for index in 0..block.nr_folios() {
            if let State::Resident(frame) = block.state(index)
                && self.engine.ram().zone(frame).list(frame).is_none()
            {
                self.engine.ram().put(frame, List::Active); // reclaim took it off its list while pinned
            }
        }
    }

    /// Resolves a fault in managed memory, for a program's own signal handler. `false`: the address is not managed, or
    /// its content is lost.
    #[must_use]
    pub fn on_fault(&self, addr: usize) -> bool {
        self.contains(addr) && resolve::resolve(&self.engine, addr, signals::thread_id())
    }

    /// Resolves a fault of the program in the engine's own memory, which reads as zero where it is empty. `false`: the
    /// address is of something else.
    #[must_use]
    pub fn on_own_fault(&self, addr: usize) -> bool {
        resolve::resolve_own(&self.engine, addr, signals::thread_id())
    }

    fn block_at(&self, addr: usize) -> BlockId {
        self.engine.table().page_at(addr).block()
    }

    /// The blocks that a range overlaps.
    pub(crate) fn covering(&self, addr: usize, len: usize) -> Range<usize> {
        blocks_of(&(addr..addr + len))
    }

    /// Splits a range into a part of a block, whole blocks, and a part of another block.
    fn split(&self, addr: usize, len: usize) -> (Option<Range<usize>>, Range<usize>, Option<Range<usize>>) {
        let (block, end) = (BLOCK_BYTES, addr + len);
        let (up, down) = (addr.next_multiple_of(block), end / block * block);
        if up > down {
            return (Some(addr..end), 0..0, None); // all within one block
        }
        let first = (addr < up).then_some(addr..up);
        let last = (down < end).then_some(down..end);
        (first, up / block..down / block, last)
    }
}
